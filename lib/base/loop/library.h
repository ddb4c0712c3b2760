/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared libraries that are loaded when they are first needed: with what they bring along some take
 * longer than many commands of dlrun, most of which do not need them.
 */
#ifndef DLRUN_BASE_LOOP_LIBRARY_H
#define DLRUN_BASE_LOOP_LIBRARY_H

#include <stddef.h>

#include "base/util/err.h"
#include "base/util/vec.h"

struct library_symbol {
	size_t offset; /* of the pointer to it in the table */
	const char *name;
};

enum library_state { LIBRARY_ABSENT, LIBRARY_LOADING, LIBRARY_LOADED };

struct library {
	const char *file; /* "libcurl.so.4" */
	const char *what; /* "libcurl, which speaks to registries," */
	const char *package;
	const struct library_symbol *symbols; /* all are needed */
	size_t n_symbols;
	void *table; /* of pointers to functions */
	size_t table_size;
	void (*start)(void);       /* or NULL: called when it has been loaded */
	enum library_state *state; /* LIBRARY_ABSENT at first */
};

/* Fill the table with the addresses of the symbols and start it, once; from any thread. E_IO when
 * it is not installed or lacks one; then the table is left as it was. The library stays: threads of
 * it may be at work. */
int library_load(const struct library *library, struct err *err);

/* The shared libraries of this process, after these files have been loaded, by the names of their
 * files behind all links ("libcurl.so.4.8.0"); of one that cannot be loaded "FILE: not found". For
 * a report about this program. */
void library_list(const char *const *files, size_t n, struct strv *ret);

#endif
