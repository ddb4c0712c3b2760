/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses of a host, looked up in a thread: getaddrinfo cannot be made to end, and is left to
 * itself when the result is not wanted any more.
 */
#ifndef DLRUN_NET_SSH_LOOKUP_H
#define DLRUN_NET_SSH_LOOKUP_H

#include <netdb.h>
#include <stdint.h>

#include "base/util/auto.h"

struct lookup;
/* family: AF_UNSPEC, AF_INET, AF_INET6. Copies host. */
struct lookup *lookup_start(const char *host, uint16_t port, int family);
/* A descriptor that can be read (its end) when the result is there. Stays the lookup's. */
int lookup_fd(const struct lookup *lookup);
/* When it is there: the addresses of streams, best first, for freeaddrinfo, or NULL and an EAI_*
 * code. Once. */
struct addrinfo *lookup_take(struct lookup *lookup, int *ret_code);
/* Also gives up. NULL is accepted. */
void lookup_free(struct lookup *lookup);
AUTO_POINTER(struct lookup, lookup_free)
#define AUTO_LOOKUP AUTO(lookup_free_auto)

#endif
