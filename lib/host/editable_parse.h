/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsers for the small texts around a Python interpreter, for host/editable. The texts are
 * untrusted: anything that is not exactly of the expected form is left out. No file is opened here.
 */
#ifndef DLRUN_HOST_EDITABLE_PARSE_H
#define DLRUN_HOST_EDITABLE_PARSE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/vec.h"

enum {
	PARSE_LINES_MAX = 1024, /* of a .pth */
	PARSE_PAIRS_MAX = 4096, /* of a finder */
	PARSE_WORDS_MAX = 256,  /* of a command line or #! */
	PARSE_PATH_MAX = 4096,  /* bytes of one name or path */
};

/* Adds the directories that a .pth file names (site module: no comments, no "import" lines). */
void parse_pth(const char *text, size_t len, struct strv *ret);

/* Names of modules and their places: names.v[i] lies at paths.v[i]. */
struct module_map {
	struct strv names, paths;
};
void module_map_done(struct module_map *map);
/* Adds what a finder maps: MAPPING = {'x': '/p/x'} and NAMESPACES = {'n': ['/p/n']} of setuptools,
 * F.map_module('x', '/p/x/__init__.py') of "editables". Only string literals as repr() writes them.
 * A list stops where it is anything else. */
void parse_finder(const char *text, size_t len, struct module_map *ret);
/* The directory that path has to be imported from as name: /p for a.b at /p/a/b, /p/a/b.py or
 * /p/a/b/__init__.py. NULL where the end of path is not name's. The caller frees. */
char *module_base(const char *name, const char *path);

/* The directory of direct_url.json with dir_info.editable, or NULL. The caller frees. */
char *parse_direct_url(const char *text, size_t len);

/* The value of key in pyvenv.cfg ("key = value", in any case), or NULL. The caller frees. */
char *parse_venv_cfg(const char *text, size_t len, const char *key);

/* The words of the interpreter of a script: of #!, without env and -S; of the second line where pip
 * wrote #!/bin/sh and '''exec' "/a path/python". Empty where there is none. */
void parse_shebang(const char *text, size_t len, struct strv *ret);

/* The words of a shell line, quotes resolved, roughly: nothing is expanded. ";" stands for
 * everything that ends a command. */
void parse_shell_line(const char *line, struct strv *ret);

/* "python", "python3", "python3.12", "/opt/x/bin/python3.13t", pypy3: by its last component. */
bool is_python_name(const char *path);
/* Options of the interpreter in front of a script. words: those after the interpreter. */
struct python_options {
	bool ignores_env; /* -E, -I: PYTHONPATH is not read */
	bool no_user;     /* -s, -I */
};
void parse_python_options(char *const *words, size_t n, struct python_options *ret);

/* NAME=value in front of a command. */
bool is_assignment(const char *word);

#endif
