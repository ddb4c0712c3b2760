/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images below the code, each tagged by the key of an environment or of data: looked up in the
 * repository, and made the base of a submit. Functions block.
 */
#ifndef DLRUN_APP_ENVIRONMENT_TAGGED_H
#define DLRUN_APP_ENVIRONMENT_TAGGED_H

#include <stdint.h>

#include "app/prepare/prepare.h"
#include "oci/model/ref.h"

/* For the user, now; ctx: a struct submit. */
void tagged_note(void *ctx, const char *text);
/* The repository that the code for the target goes to: 1; 0: it has none. */
int tagged_find_registry(
	struct config *config, const char *target, struct ref *ret, struct err *err);
/* The digest that ref stands for, by what was found out not longer ago than trust_ms; *ret is NULL
 * if the registry has none. */
int tagged_lookup(struct submit *submit, const struct ref *ref, int64_t trust_ms, char **ret,
	struct err *err);
/* Do not take for granted any more that the registry has it. */
void tagged_forget(const struct submit *submit, const struct ref *ref);
/* The submit's base as it was looked up, whatever its tag stands for by now; NULL (as digest
 * is): that of the configuration, which is a layout. The caller frees. */
char *tagged_name_base(const struct submit *submit, const char *digest);
/* Push what `layers` has (its environment or data, nothing else) on base, as submit_push does the
 * code of `of`; of image.h: what was written. */
int tagged_push(const struct submit *of, struct submit *layers, const char *base, const char *tag,
	char **ret_digest, struct err *err);
/* An image of the repository takes the place of the base, under the base's name. */
int tagged_set_base(
	struct submit *submit, const struct ref *to, const char *digest, struct err *err);

#endif
