/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/hosts.h"

/*
 * Names
 */

static void are(const char *text, const char *hosts)
{
	AUTO_STRV struct strv list = {0};
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf joined;

	if (node_hosts_parse(text, &list, &err) < 0)
		fail_msg("%s", err.message);
	buf_init(&joined, 1 << 20);
	for (size_t i = 0; i < list.n; i++)
		buf_addf(&joined, "%s%s", i ? " " : "", list.v[i]);
	assert_string_equal(joined.data, hosts);
}

static void test_names(void **state)
{
	are("gpu1", "gpu1");
	are("gpu1,me@gpu2", "gpu1 me@gpu2");
	are("gpu[03-05]", "gpu03 gpu04 gpu05");
	are("gpu[8-11]", "gpu8 gpu9 gpu10 gpu11");
	are("gpu[098-101]", "gpu098 gpu099 gpu100 gpu101");
	are("a[1-2]b[1-3]", "a1b1 a1b2 a1b3 a2b1 a2b2 a2b3");
	are("a[1,4-5,07],b", "a1 a4 a5 a07 b");
	are("[1-2].lab", "1.lab 2.lab");
	are("b,a,b,a[1-2],a2", "b a a1 a2");
	are("me@n[1-2].example.org:22", "me@n1.example.org:22 me@n2.example.org:22");
	are("a[0-0]", "a0");
	are("//a,//me@b:22/,[::1],me@[fe80::1]:22,::1", "a me@b:22 [::1] me@[fe80::1]:22 ::1");
	are("a[999999999]", "a999999999");
	are("b\303\274ro", "b\303\274ro");
}

static void is_refused(const char *text)
{
	AUTO_STRV struct strv list = {0};
	AUTO_ERR struct err err = {0};

	strv_add(&list, "before");
	if (node_hosts_add(&list, text, &err) == 0)
		fail_msg("taken: %s", text);
	assert_int_equal(err.id, E_USAGE);
	assert_int_equal(list.n, 1);
	assert_int_equal(node_hosts_parse(text, &list, NULL), -ERR_USAGE);
	assert_string_equal(list.v[0], "before");
}

static void test_destinations(void **state)
{
	static const struct {
		const char *host, *destination;
		unsigned port;
	} rows[] = {{"gpu1", "gpu1", 0}, {"me@gpu1", "me@gpu1", 0}, {"gpu1:2222", "gpu1", 2222},
		{"me@gpu1:22", "me@gpu1", 22}, {"[::1]", "::1", 0}, {"[::1]:22", "::1", 22},
		{"me@[::1]:22", "me@::1", 22}, {"::1", "::1", 0}, {"me@fe80::1", "me@fe80::1", 0},
		{"a:b", "a:b", 0}, {"a:", "a:", 0}, {"a:0", "a:0", 0}, {"a:65536", "a:65536", 0},
		{"a@b@c:1", "a@b@c", 1}, {"[]", "[]", 0}, {"[a", "[a", 0}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		unsigned port = 1;
		AUTO_FREE char *destination = node_host_destination(rows[i].host, &port);
		assert_string_equal(destination, rows[i].destination);
		assert_int_equal(port, rows[i].port);
	}
}

static void test_refused(void **state)
{
	static const char *const bad[] = {"", ",", "a,", ",a", "a,,b", "-a", "a,-oProxyCommand=x",
		"a b", "a\tb", "a\nb", "\177", " a", "a[", "a]", "a[]", "a[1-]", "a[-1]", "a[2-1]",
		"a[1-2", "a[1,]", "a[,1]", "a[x]", "a[1-2-3]", "a[[1]]", "a]1[", "a[1]]", "a[[1-2]",
		"a[1-1025]", "a[1-40]b[1-40]", "a[0-999999999]", "a[1000000000]", "a[1 - 2]",
		"[1-2]-,-", "a[1][1][1][1][1][1][1][1][1]"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		is_refused(bad[i]);
	is_refused(NULL);
}

static void test_ceilings(void **state)
{
	AUTO_STRV struct strv list = {0};
	AUTO_FREE char *much = mem_alloc(100001, 1);

	assert_int_equal(node_hosts_parse("a[1-1024]", &list, NULL), 0);
	assert_int_equal(list.n, NODE_HOSTS_MAX);
	assert_int_equal(node_hosts_add(&list, "a[1-1024]", NULL), 0);
	assert_int_equal(node_hosts_add(&list, "b", NULL), -ERR_USAGE);
	assert_int_equal(list.n, NODE_HOSTS_MAX);
	memset(much, 'a', 100000);
	is_refused(much);
}

static void test_added_behind(void **state)
{
	AUTO_STRV struct strv list = {0};

	assert_int_equal(node_hosts_add(&list, "b[1-2]", NULL), 0);
	assert_int_equal(node_hosts_add(&list, "a,b2,c", NULL), 0);
	assert_int_equal(list.n, 4);
	assert_string_equal(list.v[2], "a");
	assert_string_equal(list.v[3], "c");
}

/*
 * Choice
 */

#define GIB (1024ull * 1024 * 1024)

/* A host with nothing to do: 4 GPUs, 16 CPUs, 64 GiB, 100 GiB of disk. */
static struct node_offer idle(const char *host)
{
	return (struct node_offer){.host = host,
		.answered = true,
		.gpus = 4,
		.gpus_free = 4,
		.cpus = 16,
		.load = 0,
		.memory_bytes = 64 * GIB,
		.memory_free_bytes = 60 * GIB,
		.disk_free_bytes = 100 * GIB};
}

static const struct node_requirements one_gpu = {.nodes = 1, .gpus = 1};

static void chosen(const struct node_offer *offers, size_t n,
	const struct node_requirements *requirements, const char *indexes, const char *why)
{
	struct node_choice choice;
	char text[64] = "";

	node_choose(offers, n, requirements, &choice);
	for (size_t i = 0; i < choice.hosts.n; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%zu", i ? " " : "",
			choice.hosts.v[i]);
	if (!str_eq(text, indexes) || (why && !str_eq(choice.why, why)))
		fail_msg("chose \"%s\": %s", text, choice.why);
	node_choice_done(&choice);
}

static void test_order_of_writing(void **state)
{
	struct node_offer offers[] = {idle("a"), idle("b"), idle("c")};

	chosen(offers, 3, &one_gpu, "0", "a: 4 of 4 GPUs are free, and it has the code already");
	/* Moments do not count. */
	offers[0].load = 0.9;
	offers[0].memory_free_bytes -= GIB;
	chosen(offers, 3, &one_gpu, "0", NULL);
	offers[0].load = 3;
	chosen(offers, 3, &one_gpu, "1", NULL);
	offers[1].memory_free_bytes = 10 * GIB;
	chosen(offers, 3, &one_gpu, "2", NULL);
}

static void test_what_counts_first(void **state)
{
	struct node_offer offers[] = {idle("a"), idle("b")};

	/* More GPUs are free on a, but b has the code. */
	offers[1].gpus_free = 1;
	offers[0].missing_bytes = NODE_LAYERS_SLACK + 1;
	chosen(offers, 2, &one_gpu, "1", "b: 1 of 4 GPUs is free, and it has the code already");
	offers[0].missing_bytes = NODE_LAYERS_SLACK;
	chosen(offers, 2, &one_gpu, "0", NULL);
	/* One that is ready counts more than one that has the code. */
	offers[0].missing_bytes = 10 * GIB;
	offers[1].gpus_free = 0;
	chosen(offers, 2, &one_gpu, "0", "a: 4 of 4 GPUs are free");
	/* Who waits there was first. */
	offers[1].gpus_free = 4;
	offers[1].queued = 1;
	chosen(offers, 2, &one_gpu, "0", NULL);
	offers[0].answered = false;
	chosen(offers, 2, &one_gpu, "1", NULL);
}

static void test_busy(void **state)
{
	struct node_offer offers[] = {idle("a"), idle("b"), idle("c")};

	for (int i = 0; i < 3; i++)
		offers[i].gpus_free = 0;
	offers[0].queued = 3;
	offers[1].queued = 1;
	offers[2].queued = 2;
	chosen(offers, 3, &one_gpu, "1",
		"all 3 hosts answered; no GPU that fits is free, and b has 0 of 4 GPUs free with "
		"1 run waiting");
	chosen(offers, 1, &one_gpu, "0", "a has 0 of 4 GPUs free with 3 runs waiting");
}

static void test_gpus_by_themselves(void **state)
{
	const struct node_requirements any = {.nodes = 1, .gpus = -1},
				       none = {.nodes = 1, .gpus = 0};
	struct node_offer offers[] = {idle("a"), idle("b")};

	offers[0].gpus = offers[0].gpus_free = 0;
	chosen(offers, 2, &any, "1", NULL);
	offers[1].gpus_free = 0;
	chosen(offers, 2, &any, "1", NULL);
	chosen(offers, 1, &any, "0", "a: load 0.0 on 16 CPUs, and it has the code already");
	offers[0].load = -1;
	chosen(offers, 1, &none, "0", "a: 16 CPUs, and it has the code already");
	/* Hosts with GPUs are for those who want them, unless no other has room. */
	chosen(offers, 2, &none, "0", NULL);
	offers[1].gpus_free = 4;
	chosen(offers, 2, &none, "0", NULL);
	const struct node_requirements large = {.nodes = 1, .gpus = 0, .memory_bytes = 32 * GIB};
	chosen(offers, 2, &large, "0", NULL);
	offers[0].memory_free_bytes = GIB;
	chosen(offers, 2, &large, "1", NULL);
}

static void test_readiness(void **state)
{
	struct node_offer offers[] = {idle("a"), idle("b")};
	const struct node_requirements two = {.nodes = 1, .gpus = 2};
	struct node_choice choice;

	node_choose(offers, 2, &two, &choice);
	assert_true(choice.hosts.n == 1 && choice.is_ready);
	node_choice_done(&choice);
	offers[0].gpus_free = offers[1].gpus_free = 1;
	node_choose(offers, 2, &two, &choice);
	assert_true(choice.hosts.n == 1 && !choice.is_ready);
	node_choice_done(&choice);
	offers[0].gpus = offers[1].gpus = 1;
	node_choose(offers, 2, &two, &choice);
	assert_true(choice.hosts.n == 0 && !choice.is_ready);
	node_choice_done(&choice);
}

static void test_nothing_fits(void **state)
{
	struct node_offer offers[] = {idle("a"), idle("b"), idle("c"), idle("d")};
	struct node_requirements requirements = {.nodes = 1, .gpus = 8};

	offers[3].answered = false;
	offers[3].why_not = "d cannot be reached";
	chosen(offers, 4, &requirements, "", "3 of 4 hosts answered; none has 8 GPUs");
	chosen(offers, 1, &requirements, "", "a has not 8 GPUs");
	chosen(offers + 3, 1, &requirements, "", "d cannot be reached");
	offers[3].why_not = NULL;
	chosen(offers + 3, 1, &requirements, "", "the host did not answer");
	for (int i = 0; i < 4; i++)
		offers[i].answered = false;
	chosen(offers, 4, &requirements, "", "none of 4 hosts answered");
	chosen(offers, 0, &requirements, "", "no host is named");
	for (int i = 0; i < 4; i++)
		offers[i].answered = true;
	requirements = (struct node_requirements){.nodes = 1, .cpus = 17};
	chosen(offers, 4, &requirements, "", "all 4 hosts answered; none has 17 CPUs");
	requirements = (struct node_requirements){.nodes = 1, .memory_bytes = 65 * GIB};
	chosen(offers, 4, &requirements, "", "all 4 hosts answered; none has 65 GiB of memory");
	requirements = (struct node_requirements){.nodes = 1, .disk_bytes = 101 * GIB};
	chosen(offers, 4, &requirements, "", "all 4 hosts answered; none has 101 GiB free disk");
	requirements = (struct node_requirements){.nodes = 1};
	for (int i = 0; i < 4; i++)
		offers[i].missing_bytes = 100 * GIB + 1;
	chosen(offers, 4, &requirements, "", "all 4 hosts answered; none has enough free disk");
	requirements = (struct node_requirements){.nodes = 1, .gpus = 1, .cpus = 4};
	for (int i = 0; i < 4; i++) {
		offers[i] = idle("x");
		offers[i].gpus = i % 2 ? 0 : 4;
		offers[i].cpus = i % 2 ? 4 : 2;
	}
	chosen(offers, 4, &requirements, "", "all 4 hosts answered; none has 1 GPU and 4 CPUs");
}

static void test_gang(void **state)
{
	struct node_offer offers[] = {idle("a"), idle("b"), idle("c"), idle("d")};
	struct node_requirements requirements = {.nodes = 2, .gpus = 2};

	offers[0].gpus_free = 1;
	offers[2].load = 8;
	chosen(offers, 4, &requirements, "1 3", "2 of 4 hosts that fit: b, d");
	/* In the order of writing, whoever is better. */
	offers[1].load = 4;
	chosen(offers, 4, &requirements, "1 3", NULL);
	requirements.nodes = 3;
	chosen(offers, 4, &requirements, "1 2 3", NULL);
	requirements.nodes = 4;
	chosen(offers, 4, &requirements, "",
		"all 4 hosts answered; 4 are wanted at once, 4 would do, of which 3 are free now");
	offers[3].gpus = 1;
	chosen(offers, 4, &requirements, "",
		"all 4 hosts answered; 4 are wanted at once, 3 would do");
	requirements.nodes = 5;
	chosen(offers, 4, &requirements, "", "5 hosts are wanted, and there are 4");
	chosen(offers, 1, &requirements, "", "5 hosts are wanted, and there is 1");
	requirements = (struct node_requirements){.nodes = 2, .gpus = 9};
	chosen(offers, 4, &requirements, "", "all 4 hosts answered; none has 9 GPUs");
}

/* Whatever is offered: who is chosen fits, and nobody is left that fits and is better in the first
 * thing that counts. */
static void test_all_small_offers(void **state)
{
	for (unsigned bits = 0; bits < 1u << 12; bits++) {
		struct node_offer offers[] = {idle("a"), idle("b"), idle("c")};
		struct node_choice choice;
		bool fits = false, ready = false;

		for (unsigned i = 0; i < 3; i++) {
			unsigned own = bits >> 4 * i & 15;

			offers[i].answered = own & 1;
			offers[i].gpus = own & 2 ? 4 : 0;
			offers[i].gpus_free = own & 4 ? offers[i].gpus : 0;
			offers[i].missing_bytes = own & 8 ? 2 * GIB : 0;
			fits = fits || (offers[i].answered && offers[i].gpus);
			ready = ready || (offers[i].answered && offers[i].gpus_free);
		}
		node_choose(offers, 3, &one_gpu, &choice);
		assert_int_equal(choice.hosts.n, fits);
		assert_non_null(choice.why);
		if (fits) {
			const struct node_offer *one = &offers[choice.hosts.v[0]];

			assert_true(one->answered && one->gpus);
			assert_int_equal(one->gpus_free > 0, ready);
		}
		node_choice_done(&choice);
	}
}

/* Each host has as many slots as members can come to it, and all of them are the limit. */
static void test_slots(void **state)
{
	enum { HOSTS = 7, PARALLEL = 20 };

	for (size_t n = 1; n <= HOSTS; n++)
		for (int parallel = 1; parallel <= PARALLEL; parallel++) {
			int slots[HOSTS] = {0}, sum = 0;

			for (int i = 0; i < parallel; i++)
				slots[node_member_host(i, parallel, n)]++;
			for (size_t host = 0; host < n; host++) {
				assert_int_equal(node_member_slots(host, parallel, n), slots[host]);
				sum += slots[host];
			}
			assert_int_equal(sum, parallel);
			assert_int_equal(node_member_host(parallel + 3, parallel, n),
				node_member_host(3 % parallel, parallel, n));
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_destinations),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_ceilings),
		cmocka_unit_test(test_added_behind),
		cmocka_unit_test(test_order_of_writing),
		cmocka_unit_test(test_what_counts_first),
		cmocka_unit_test(test_busy),
		cmocka_unit_test(test_gpus_by_themselves),
		cmocka_unit_test(test_readiness),
		cmocka_unit_test(test_nothing_fits),
		cmocka_unit_test(test_gang),
		cmocka_unit_test(test_all_small_offers),
		cmocka_unit_test(test_slots),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
