/*
 * Shared libraries that are loaded when they are first needed: with what they bring along some take
 * longer than many commands of dlrun, most of which do not need them.
 */
#ifndef DLRUN_BASE_LIBRARY_H
#define DLRUN_BASE_LIBRARY_H

#include <stddef.h>

#include "base/err.h"

struct library_symbol {
	size_t offset; /* of the pointer to it in the table */
	const char *name;
};

struct library {
	const char *file; /* "libcurl.so.4" */
	const char *what; /* "libcurl, which speaks to registries," */
	const char *package;
	const struct library_symbol *symbols; /* all are needed */
	size_t n_symbols;
	size_t table_size;
};

/* Fill table with the addresses of the symbols. E_IO when it is not installed or lacks one; then
 * table is left as it was. The library stays: threads of it may be at work. */
int library_load(const struct library *library, void *table, struct err *err);

#endif
