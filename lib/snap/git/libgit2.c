/* SPDX-License-Identifier: Apache-2.0 */
#define LIBGIT2_LOADER
#include "snap/git/libgit2.h"

#include "base/loop/library.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "snap/git/repo.h"

struct libgit2 libgit2;

static const struct library_symbol symbols[] = {
#define SYMBOL(name) {offsetof(struct libgit2, name), "git_" #name},
	LIBGIT2(SYMBOL)
#undef SYMBOL
};

static enum library_state state;

static void libgit2_start(void)
{
	libgit2.libgit2_init();
}

LIBRARY_NOTE("git", "Reads git repositories", "required", LIBRARY_FILE("git2", LIBGIT2_SOVERSION));

const char repo_library_file[] = LIBRARY_FILE("git2", LIBGIT2_SOVERSION);

static const struct library library = {
	.file = repo_library_file,
	.what = "libgit2, which reads repositories,",
	.package = "libgit2-" LIBGIT2_SOVERSION,
	.symbols = symbols,
	.n_symbols = ARRAY_LEN(symbols),
	.table = &libgit2,
	.table_size = sizeof(libgit2),
	.start = libgit2_start,
	.state = &state,
};

int libgit2_load(struct err *err)
{
	return library_load(&library, err);
}

char *libgit2_message(void)
{
	const git_error *error = libgit2.error_last();

	return str_escaped(error && error->message ? error->message : "no reason given");
}

void libgit2_free_repository(git_repository **repository)
{
	if (*repository)
		libgit2.repository_free(*repository);
}

void libgit2_free_reference(git_reference **reference)
{
	if (*reference)
		libgit2.reference_free(*reference);
}
