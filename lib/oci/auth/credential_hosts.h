/* SPDX-License-Identifier: Apache-2.0 */
/*
 * List the registries that have logins in the files of credentials.h. No helper is started, and no
 * secret is kept.
 */
#ifndef DLRUN_OCI_AUTH_CREDENTIAL_HOSTS_H
#define DLRUN_OCI_AUTH_CREDENTIAL_HOSTS_H

#include <stddef.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "oci/auth/credentials.h"

enum { CREDENTIAL_HOSTS_MAX = 64 };

/* Add the registries named in one file to ret: "docker.io", "host:5000", "host/team" (a login for a
 * part of it), each once, up to CREDENTIAL_HOSTS_MAX. An engine. E_DATA, E_DATA_LIMIT for text that
 * is not JSON. */
int credential_file_hosts(
	const char *text, size_t len, const char *what, struct strv *ret, struct err *err);
/* Of all files, in the order in which they are looked at; what cannot be read is passed over. */
void credential_hosts(const struct credential_env *env, struct strv *ret);

#endif
