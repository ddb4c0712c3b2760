/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config/ports.h"

#include "base/util/str.h"

enum { PORT_MAX = 65535 };

static bool ports_has(const struct ports *ports, uint16_t port)
{
	for (size_t i = 0; i < ports->n; i++)
		if (ports->v[i] == port)
			return true;
	return false;
}

static int ports_put(struct ports *ports, uint16_t port, struct err *err)
{
	if (ports->n == PORTS_MAX)
		return err_set(err, E_CONFIG, "more than %d ports are listed", PORTS_MAX);
	ports->v[ports->n++] = port;
	return 0;
}

int ports_add(struct ports *ports, const char *text, struct err *err)
{
	int64_t port;

	if (str_to_int(text, 1, PORT_MAX, "port", &port, NULL) < 0) {
		AUTO_FREE char *shown = str_shown(text);
		return err_set(err, E_CONFIG, "'%s' is not a valid port; use a number from 1 to %d",
			shown, PORT_MAX);
	}
	if (ports_has(ports, (uint16_t)port))
		return err_set(err, E_CONFIG, "port %d is listed twice", (int)port);
	return ports_put(ports, (uint16_t)port, err);
}

int ports_merge(struct ports *ports, const struct ports *more, struct err *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < more->n; i++)
		if (!ports_has(ports, more->v[i]))
			r = ports_put(ports, more->v[i], err);
	return r;
}

struct json *ports_to_json(const struct ports *ports)
{
	struct json *list = json_array();

	for (size_t i = 0; i < ports->n; i++)
		json_add_int(list, ports->v[i]);
	return list;
}

void ports_from_json(const struct json *list, struct ports *ret)
{
	*ret = (struct ports){0};
	if (json_kind(list) != JSON_ARRAY)
		return;
	for (const struct json *item = json_first(list); item; item = json_next(item)) {
		int64_t port = json_int(item, 0);

		if (port >= 1 && port <= PORT_MAX && !ports_has(ret, (uint16_t)port))
			ports_put(ret, (uint16_t)port, NULL);
	}
}
