/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that held secrets is wiped before it is given back. What a growing buffer or a library
 * copied on its way is not reached.
 */
#ifndef DLRUN_OCI_AUTH_CREDENTIAL_SECRET_H
#define DLRUN_OCI_AUTH_CREDENTIAL_SECRET_H

#include <stddef.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/buf.h"

void secret_wipe(void *data, size_t len);
/* Wipe and free; NULL is accepted by all three. */
void secret_free(char *secret);
void secret_buf_done(struct buf *buf);
/* All strings of the document. */
void secret_json_free(struct json *json);
AUTO_POINTER(char, secret_free)
AUTO_POINTER(struct json, secret_json_free)
#define AUTO_SECRET      AUTO(secret_free_auto)
#define AUTO_SECRET_BUF  AUTO(secret_buf_done)
#define AUTO_SECRET_JSON AUTO(secret_json_free_auto)

#endif
