/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP ports that a program listens on, as people name them for a run (ports:, --port): made
 * known to the location that it runs on, and reachable here while its log is followed.
 */
#ifndef DLRUN_CORE_CONFIG_PORTS_H
#define DLRUN_CORE_CONFIG_PORTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"

enum { PORTS_MAX = 64 };

/* Each once, in the order in which they were named. */
struct ports {
	uint16_t v[PORTS_MAX];
	size_t n;
};

/* text: "6006". E_CONFIG: not a number from 1 to 65535, named already, or one too many. */
int ports_add(struct ports *ports, const char *text, struct err *err);
/* Add the ports of more that ports does not have yet. E_CONFIG: too many. */
int ports_merge(struct ports *ports, const struct ports *more, struct err *err);
/* A list of numbers. Reading is lenient: what is no port is left out. */
struct json *ports_to_json(const struct ports *ports);
void ports_from_json(const struct json *list, struct ports *ret);

#endif
