/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/util/str.h"
#include "targets/ssh/role_hosts.h"

#define GIB (1024ull * 1024 * 1024)

static struct node_offer offer(const char *host, unsigned gpus, unsigned gpus_free)
{
	return (struct node_offer){.host = host,
		.answered = true,
		.gpus = gpus,
		.gpus_free = gpus_free,
		.cpus = 16,
		.memory_bytes = 64 * GIB,
		.memory_free_bytes = 60 * GIB,
		.disk_free_bytes = 100 * GIB};
}

static struct role_wish wish(const char *name, unsigned nodes, int gpus)
{
	return (struct role_wish){name, {.nodes = nodes, .gpus = gpus}};
}

static void chosen(const struct node_offer *offers, size_t n, struct role_wish *wishes,
	size_t n_wishes, const char *indexes, const char *why)
{
	const struct role_wishes roles = {.v = wishes, .n = n_wishes};
	struct node_choice choice;
	char text[64] = "";

	role_hosts_choose(offers, n, &roles, &choice);
	for (size_t i = 0; i < choice.hosts.n; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%zu", i ? " " : "",
			choice.hosts.v[i]);
	if (!str_eq(text, indexes) || !str_eq(choice.why, why))
		fail_msg("chose \"%s\": %s", text, choice.why);
	assert_int_equal(choice.is_ready, choice.hosts.n > 0);
	node_choice_done(&choice);
}

static void test_each_rank_has_a_host(void **state)
{
	struct node_offer offers[] = {
		offer("g1", 4, 4), offer("c1", 0, 0), offer("g2", 8, 8), offer("c2", 0, 0)};
	struct role_wish learner_first[] = {wish("learner", 1, 4), wish("actors", 2, 0)},
			 actors_first[] = {wish("actors", 2, 0), wish("learner", 1, 8)},
			 three[] = {wish("actors", 3, 0), wish("learner", 1, 4)};

	chosen(offers, 4, learner_first, 2, "2 1 3", "learner on g2; actors on c1, c2");
	chosen(offers, 4, actors_first, 2, "1 3 2", "actors on c1, c2; learner on g2");
	/* Hosts with GPUs are taken by others last. */
	chosen(offers, 4, three, 2, "0 1 3 2", "actors on g1, c1, c2; learner on g2");
}

static void test_who_wants_most_chooses_first(void **state)
{
	struct node_offer offers[] = {offer("a", 8, 8), offer("b", 2, 2), offer("c", 1, 1)};
	struct role_wish roles[] = {wish("small", 1, 1), wish("middle", 1, 2), wish("large", 1, 8)};

	chosen(offers, 3, roles, 3, "2 1 0", "small on c; middle on b; large on a");
}

static void test_none_waits(void **state)
{
	struct node_offer offers[] = {offer("a", 2, 1), offer("b", 0, 0), offer("c", 0, 0)};
	struct role_wish roles[] = {wish("learner", 1, 2), wish("actors", 2, 0)},
			 many[] = {wish("learner", 1, 1), wish("actors", 12, 0)},
			 more[] = {wish("learner", 2, 1), wish("actors", 1, 0)};

	chosen(offers, 3, roles, 2, "",
		"role learner would have to wait: all 3 hosts answered; no GPU that fits is free, "
		"and a has 1 of 2 GPUs free with 0 runs waiting");
	chosen(offers, 3, many, 2, "", "13 hosts are wanted, and there are 3");
	chosen(offers, 3, more, 2, "",
		"role learner: all 3 hosts answered; 2 are wanted at once, 1 would do");
	/* Memory that others use may be free later. */
	more[0].wanted = (struct node_requirements){.nodes = 1, .memory_bytes = 62 * GIB};
	chosen(offers, 3, more, 2, "", "role learner would have to wait: b: load 0.0 on 16 CPUs");
	offers[2].answered = false;
	roles[0].wanted.gpus = 1;
	chosen(offers, 3, roles, 2, "",
		"role actors: 1 of 2 hosts answered; 2 are wanted at once, 1 would do");
	chosen(offers, 0, roles, 2, "", "3 hosts are wanted, and there are 0");
}

static void test_no_roles(void **state)
{
	struct node_offer offers[] = {offer("a", 2, 0), offer("b", 2, 0)};
	struct role_wish none[] = {wish(NULL, 1, 1)};
	const struct role_wishes roles = {.v = none, .n = 1};
	struct node_choice choice;

	role_hosts_choose(offers, 2, &roles, &choice);
	/* A run of one host waits there. */
	assert_true(choice.hosts.n == 1 && !choice.is_ready);
	node_choice_done(&choice);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_rank_has_a_host),
		cmocka_unit_test(test_who_wants_most_chooses_first),
		cmocka_unit_test(test_none_waits),
		cmocka_unit_test(test_no_roles),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
