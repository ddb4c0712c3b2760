/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared libraries that are loaded when they are first needed: with what they bring along some take
 * longer than many commands of dlrun, most of which do not need them. Each is declared in a note of
 * the program (https://systemd.io/ELF_DLOPEN_METADATA/), from which tools for packages make their
 * dependencies.
 */
#ifndef DLRUN_BASE_LOOP_LIBRARY_H
#define DLRUN_BASE_LOOP_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"
#include "base/util/vec.h"

#ifdef __APPLE__
#define LIBRARY_FILE(name, version) "lib" name "." version ".dylib"
#else
#define LIBRARY_FILE(name, version) "lib" name ".so." version
#endif

/* priority: "required", "recommended" or "suggested"; file: the one in a struct
 * library. A source has one. */
#ifdef __ELF__
#define LIBRARY_NOTE(feature, description, priority, file)                                         \
	LIBRARY_NOTE_JSON("[{\"feature\":\"" feature "\",\"description\":\"" description           \
			  "\",\"priority\":\"" priority "\",\"soname\":[\"" file "\"]}]")
#define LIBRARY_NOTE_JSON(json)                                                                    \
	__attribute__((used, section(".note.dlopen"), aligned(4))) static const struct {           \
		uint32_t name_size, json_size, type;                                               \
		char name[4];                                                                      \
		_Alignas(uint32_t) char text[sizeof(json)];                                        \
	} library_note = {sizeof("FDO"), sizeof(json), 0x407c0c0a, "FDO", json}
#else
#define LIBRARY_NOTE(feature, description, priority, file)                                         \
	struct library_note /* nothing tells packagers */
#endif

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
