/* SPDX-License-Identifier: Apache-2.0 */
#include "base/loop/library.h"

#include <dlfcn.h>
#ifndef __APPLE__
#include <link.h>
#endif
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/* Not held while a library is loaded: users of libraries that are already loaded must not wait for
 * it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

static int library_fail(const struct library *library, struct err *err)
{
	AUTO_FREE char *shown = str_shown(dlerror());

	err_set(err, E_IO, "%s cannot be loaded", library->what);
	err_evidence(err, "%s", shown);
	return err_hint(err, "apt-get install %s", library->package);
}

static int library_open(const struct library *library, struct err *err)
{
	AUTO_FREE char *loaded = mem_alloc(1, library->table_size);
	void *handle = dlopen(library->file, RTLD_LAZY | RTLD_LOCAL);

	if (!handle)
		return library_fail(library, err);
	for (size_t i = 0; i < library->n_symbols; i++) {
		void *symbol = dlsym(handle, library->symbols[i].name);
		if (!symbol)
			return library_fail(library, err);
		/* ISO C has no conversion from an object to a function; POSIX's dlsym has. */
		memcpy(loaded + library->symbols[i].offset, &symbol, sizeof(symbol));
	}
	memcpy(library->table, loaded, library->table_size);
	return 0;
}

static enum library_state library_begin(const struct library *library)
{
	pthread_mutex_lock(&lock);
	while (*library->state == LIBRARY_LOADING)
		pthread_cond_wait(&ended, &lock);
	enum library_state found = *library->state;
	if (found == LIBRARY_ABSENT)
		*library->state = LIBRARY_LOADING;
	pthread_mutex_unlock(&lock);
	return found;
}

static void library_end(const struct library *library, enum library_state state)
{
	pthread_mutex_lock(&lock);
	*library->state = state;
	pthread_cond_broadcast(&ended);
	pthread_mutex_unlock(&lock);
}

int library_load(const struct library *library, struct err *err)
{
	if (library_begin(library) == LIBRARY_LOADED)
		return 0;
	int r = library_open(library, err);
	if (r == 0 && library->start)
		library->start();
	library_end(library, r == 0 ? LIBRARY_LOADED : LIBRARY_ABSENT);
	return r;
}

#ifndef __APPLE__
static int library_add(struct dl_phdr_info *info, size_t size UNUSED, void *ctx)
{
	AUTO_FREE char *path = *info->dlpi_name == '/' ? realpath(info->dlpi_name, NULL) : NULL;

	if (path)
		strv_add(ctx, strrchr(path, '/') + 1);
	return 0;
}
#endif

void library_list(const char *const *files, size_t n, struct strv *ret)
{
	for (size_t i = 0; i < n; i++) {
		bool loaded = dlopen(files[i], RTLD_LAZY | RTLD_LOCAL) != NULL;
		if (!loaded)
			strv_addf(ret, "%s: not found", files[i]);
#ifdef __APPLE__
		else
			strv_add(ret, files[i]);
#endif
	}
#ifndef __APPLE__
	dl_iterate_phdr(library_add, ret);
#endif
}
