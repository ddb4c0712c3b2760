#include "base/library.h"

#include <dlfcn.h>
#include <string.h>

#include "base/auto.h"
#include "base/mem.h"
#include "base/str.h"

static int fail(const struct library *library, struct err *err)
{
	AUTO_FREE char *shown = str_shown(dlerror());

	err_set(err, E_IO, "%s cannot be loaded", library->what);
	err_evidence(err, "%s", shown);
	return err_hint(err, "apt-get install %s", library->package);
}

int library_load(const struct library *library, void *table, struct err *err)
{
	AUTO_FREE char *loaded = mem_alloc(1, library->table_size);
	void *handle = dlopen(library->file, RTLD_LAZY | RTLD_LOCAL);

	if (!handle)
		return fail(library, err);
	for (size_t i = 0; i < library->n_symbols; i++) {
		void *symbol = dlsym(handle, library->symbols[i].name);
		if (!symbol)
			return fail(library, err);
		/* ISO C has no conversion from an object to a function; POSIX's dlsym has. */
		memcpy(loaded + library->symbols[i].offset, &symbol, sizeof(symbol));
	}
	memcpy(table, loaded, library->table_size);
	return 0;
}
