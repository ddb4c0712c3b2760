/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expiry of a login, as far as it says so itself: an engine. Nothing is verified.
 */
#ifndef DLRUN_KUBE_API_EXPIRY_H
#define DLRUN_KUBE_API_EXPIRY_H

#include <stdint.h>

/* Milliseconds since 1970, 0: it does not say. */
/* A JSON Web Token (RFC 7519): "exp" of its claims. */
int64_t kube_expiry_token(const char *token);
/* The first certificate of PEM text (RFC 7468; X.509, RFC 5280 4.1.2.5): notAfter. */
int64_t kube_expiry_certificate(const char *pem);

#endif
