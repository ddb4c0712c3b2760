/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "node/hosts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Hosts, written out, are the same hosts. */
static void check_names(const char *text)
{
	AUTO_STRV struct strv hosts = {0}, again = {0};
	AUTO_BUF struct buf joined;

	buf_init(&joined, 1 << 20);
	if (node_hosts_parse(text, &hosts, NULL) < 0)
		return;
	BUG_ON(hosts.n == 0 || hosts.n > NODE_HOSTS_MAX);
	for (size_t i = 0; i < hosts.n; i++) {
		BUG_ON(!*hosts.v[i] || *hosts.v[i] == '-' || strpbrk(hosts.v[i], " \n\t,[]"));
		buf_addf(&joined, "%s%s", i ? "," : "", hosts.v[i]);
	}
	if (joined.full || joined.len > 60000)
		return;
	BUG_ON(node_hosts_parse(joined.data, &again, NULL) < 0);
	BUG_ON(again.n != hosts.n);
	for (size_t i = 0; i < hosts.n; i++)
		BUG_ON(strcmp(hosts.v[i], again.v[i]) != 0);
}

static void check_choice(const uint8_t *data, size_t size)
{
	struct node_offer offers[8];
	struct node_choice choice;
	struct node_requirements requirements;
	size_t n = 0;

	if (size < 4)
		return;
	requirements = (struct node_requirements){.nodes = data[0] % 10,
		.gpus = data[1] % 6 - 1,
		.memory_bytes = data[2],
		.disk_bytes = data[3],
		.cpus = data[0] / 64.0};
	for (size_t i = 4; i + 8 <= size && n < 8; i += 8)
		offers[n++] = (struct node_offer){.host = "h",
			.answered = data[i] & 1,
			.gpus = data[i + 1] % 9,
			.gpus_free = data[i + 2] % 9,
			.cpus = data[i] >> 1,
			.load = data[i + 3] / 4.0 - 1,
			.memory_bytes = data[i + 4],
			.memory_free_bytes = data[i + 5],
			.disk_free_bytes = data[i + 6],
			.queued = data[i + 7] % 3,
			.missing_bytes = data[i + 7]};
	node_choose(offers, n, &requirements, &choice);
	BUG_ON(!choice.why || !*choice.why);
	BUG_ON(choice.hosts.n && choice.hosts.n != (requirements.nodes ? requirements.nodes : 1));
	for (size_t i = 0; i < choice.hosts.n; i++) {
		BUG_ON(choice.hosts.v[i] >= n || !offers[choice.hosts.v[i]].answered);
		BUG_ON(i && choice.hosts.v[i] <= choice.hosts.v[i - 1]);
	}
	node_choice_done(&choice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);

	check_names(text);
	check_choice(data, size);
	return 0;
}
