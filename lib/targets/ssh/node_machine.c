/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/node_machine.h"

#include <string.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { MACHINES_MAX = 256 << 10, IDENTITY_LEN = 32 };

struct identity {
	char machine[IDENTITY_LEN + 1], place[IDENTITY_LEN + 1];
};

static void hash_text(const char *text, char out[static IDENTITY_LEN + 1])
{
	uint8_t sha256[SHA256_SIZE];

	digest_sha256(text, strlen(text), sha256);
	hex_encode(sha256, IDENTITY_LEN / 2, out);
}

/* machine-id(5) is not to be shown to others. Machines that were installed from one image may have
 * the same, so the name counts, too. */
static void identity_of(const struct node_facts *facts, struct identity *ret)
{
	const char *id = facts->id ? facts->id : "";
	AUTO_FREE char *machine = mem_printf("dlrun machine\n%s\n%s\n", id, facts->host);
	AUTO_FREE char *place = mem_printf("dlrun place\n%u\n%s\n", facts->uid, facts->local);

	hash_text(machine, ret->machine);
	hash_text(place, ret->place);
}

static bool read_machines(const char *path, struct buf *ret)
{
	*ret = (struct buf){0};
	return fs_read(path, MACHINES_MAX, ret, NULL, NULL) == 0;
}

struct line {
	const char *machine, *place, *name;
};

/* The line of a host, whose parts are within text, cut off there. */
static bool find_line(char *text, const char *host, struct line *ret)
{
	for (char *line; (line = strsep(&text, "\n"));) {
		const char *first = strsep(&line, " ");

		ret->machine = strsep(&line, " ");
		ret->place = strsep(&line, " ");
		ret->name = line;
		if (line && str_eq(first, host))
			return true;
	}
	return false;
}

void node_machine_note(const struct dirs *dirs, const char *run_id, const char *host,
	const struct node_facts *facts)
{
	AUTO_FREE char *dir = dirs_run(dirs, run_id), *path = fs_join(dir, RUN_MACHINES);
	struct identity identity;
	struct line was;
	AUTO_BUF struct buf text = {0};
	AUTO_BUF struct buf all = {0};

	if (!facts)
		return;
	identity_of(facts, &identity);
	if (!read_machines(path, &text))
		buf_init(&text, MACHINES_MAX);
	AUTO_FREE char *lines = mem_strndup(text.len ? text.data : "", text.len);
	if (find_line(lines, host, &was) && str_eq(was.machine, identity.machine) &&
		str_eq(was.place, identity.place))
		return;
	/* The first line of a host counts. */
	AUTO_FREE char *name = str_escaped(facts->host);
	buf_init(&all, MACHINES_MAX);
	buf_addf(&all, "%s %s %s %s\n", host, identity.machine, identity.place, name);
	if (text.len)
		buf_add(&all, text.data, text.len);
	if (buf_check(&all, path, NULL) == 0)
		fs_replace(path, all.data, all.len, 0600, FS_SYNC_NONE, NULL);
}

char *node_machine_other(const struct dirs *dirs, const char *run_id, const char *host,
	const struct node_facts *facts)
{
	AUTO_FREE char *dir = dirs_run(dirs, run_id), *path = fs_join(dir, RUN_MACHINES);
	struct identity identity;
	struct line was;
	AUTO_BUF struct buf text = {0};

	if (!facts || !read_machines(path, &text) || !text.len || !find_line(text.data, host, &was))
		return NULL;
	identity_of(facts, &identity);
	AUTO_FREE char *then = str_shown(was.name), *now = str_shown(facts->host);
	if (!str_eq(was.machine, identity.machine))
		return mem_printf(
			"%s is another machine now (%s): the run is on %s", host, now, then);
	if (str_eq(was.place, identity.place))
		return NULL;
	AUTO_FREE char *local = str_shown(facts->local);
	return mem_printf("%s leads to another place now (uid %u, %s): the run is elsewhere on it",
		host, facts->uid, local);
}
