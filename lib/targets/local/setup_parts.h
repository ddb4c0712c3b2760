/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of setup.c: the products of a setup.
 */
#ifndef DLRUN_TARGETS_LOCAL_SETUP_PARTS_H
#define DLRUN_TARGETS_LOCAL_SETUP_PARTS_H

#include <stdbool.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/record/world.h"

/* The names below made that are not below tree, sorted; a new directory is one name. */
int setup_products_find(const char *made, const char *tree, struct strv *ret, struct err *err);
/* Links to them into tree, where it has the directory and nothing of that name. */
int setup_products_link(
	const struct strv *products, const char *made, const char *tree, struct err *err);
/* The product that is a virtual environment of Python in the directory cwd of made, or NULL. */
const char *setup_venv_find(const struct strv *products, const char *made, const char *cwd);

/* dir/done. */
int setup_done_write(const char *dir, const struct strv *products, struct err *err);
/* false: there is none, or it cannot be relied on: the machine stopped before its disk had what the
 * setup made. */
bool setup_done_read(const char *dir, struct strv *ret_products);
/* Record a use of the setup now. */
void setup_stamp(const char *dir);

#endif
