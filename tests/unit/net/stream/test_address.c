/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "base/util/mem.h"
#include "net/stream/address.h"

enum {
	OUT = ADDRESS_PUBLIC,
	IN = ADDRESS_PRIVATE,
	SELF = ADDRESS_LOOPBACK,
	NO = ADDRESS_FORBIDDEN
};

static const struct row {
	const char *text;
	int zone;
} rows[] = {
	{"8.8.8.8", OUT},
	{"9.255.255.255", OUT},
	{"10.0.0.0", IN},
	{"10.255.255.255", IN},
	{"11.0.0.0", OUT},
	{"100.63.255.255", OUT},
	{"100.64.0.0", IN},
	{"100.127.255.255", IN},
	{"100.128.0.0", OUT},
	{"100.100.100.200", NO},
	{"100.100.100.201", IN},
	{"126.255.255.255", OUT},
	{"127.0.0.0", SELF},
	{"127.255.255.255", SELF},
	{"128.0.0.0", OUT},
	{"168.63.129.16", NO},
	{"169.253.255.255", OUT},
	{"169.254.0.0", NO},
	{"169.254.169.254", NO},
	{"169.255.0.0", OUT},
	{"172.15.255.255", OUT},
	{"172.16.0.0", IN},
	{"172.31.255.255", IN},
	{"172.32.0.0", OUT},
	{"192.0.0.192", NO},
	{"192.0.2.1", NO},
	{"192.167.255.255", OUT},
	{"192.168.0.0", IN},
	{"192.169.0.0", OUT},
	{"198.18.0.1", IN},
	{"198.20.0.0", OUT},
	{"223.255.255.255", OUT},
	{"224.0.0.1", NO},
	{"239.255.255.250", NO},
	{"240.0.0.0", NO},
	{"255.255.255.255", NO},
	{"0.0.0.0", NO},
	{"0.1.2.3", NO},
	{"::", NO},
	{"::1", SELF},
	{"::2", NO}, /* compatible with 0.0.0.2 */
	{"::127.0.0.1", SELF},
	{"::ffff:127.0.0.1", SELF},
	{"::ffff:8.8.8.8", OUT},
	{"::ffff:a9fe:a9fe", NO},
	{"::ffff:0:10.0.0.1", IN},
	{"64:ff9b::8.8.8.8", OUT},
	{"64:ff9b::169.254.169.254", NO},
	{"64:ff9b:1::8.8.8.8", IN},
	{"64:ff9b:1::127.0.0.1", SELF},
	{"2002:7f00:1::", SELF},
	{"2002:808:808::1", OUT},
	{"2001:4860:4860::8888", OUT},
	{"2001::1", NO},
	{"2001:db8::1", NO},
	{"3fff::1", NO},
	{"2a00:1450::1", OUT},
	{"3ffe::1", OUT},
	{"4000::1", NO},
	{"100::1", NO},
	{"fbff::1", NO},
	{"fc00::1", IN},
	{"fdff::1", IN},
	{"fd00:ec2::253", IN},
	{"fd00:ec2::254", NO},
	{"fd20:ce::254", NO},
	{"fe00::1", NO},
	{"fe80::1", NO},
	{"febf::1", NO},
	{"fec0::1", IN},
	{"ff02::1", NO},
};

static void test_zones(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(80)};
		struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(80)};
		const struct sockaddr *address = (const struct sockaddr *)&in;
		enum address_zone zone;

		if (inet_pton(AF_INET, rows[i].text, &in.sin_addr) != 1) {
			assert_int_equal(inet_pton(AF_INET6, rows[i].text, &in6.sin6_addr), 1);
			address = (const struct sockaddr *)&in6;
		}
		assert_true(address_zone_of_text(rows[i].text, &zone));
		if ((int)zone != rows[i].zone || (int)address_zone(address) != rows[i].zone)
			fail_msg("%s is %d and %d, not %d", rows[i].text, (int)zone,
				(int)address_zone(address), rows[i].zone);
	}
}

static void test_families(void **state)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};

	assert_int_equal(address_zone((const struct sockaddr *)&un), NO);
}

/* What getaddrinfo would take for an address. */
static void test_odd_forms(void **state)
{
	static const struct row odd[] = {
		{"127.1", SELF},
		{"127.0.1", SELF},
		{"0x7f.1", SELF},
		{"0X7F000001", SELF},
		{"0177.0.0.01", SELF},
		{"2130706433", SELF},
		{"017700000001", SELF},
		{"0", NO},
		{"0xa9fea9fe", NO},
		{"2852039166", NO},
		{"169.16689662", NO},
		{"10.1", IN},
		{"134744072", OUT},
		{"fe80::1%eth0", NO},
		{"fe80::1%", NO},
		{"::1%25lo", SELF},
	};

	for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
		enum address_zone zone;

		if (!address_zone_of_text(odd[i].text, &zone) || (int)zone != odd[i].zone)
			fail_msg("%s", odd[i].text);
	}
}

static void test_names(void **state)
{
	static const char *const names[] = {"", "localhost", "a", "face", "x1", "1.2.3.4.5",
		"256.0.0.1", "1.2.3.256", "4294967296", "127.0.0.1.", "127.0.0.1 ", " 127.0.0.1",
		"127.0.0.1\n", "127.0.0.1 x", "0x", "08.0.0.1", "1.2.3.4/8", "[::1]", ":::1",
		"::1/8", "%eth0", "1::2::3", "10.0.0.1%eth0", "-1",
		"0000000000000000000000000000000000000000000000000000000000000000000000000000::1"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		enum address_zone zone = ADDRESS_PUBLIC;

		if (address_zone_of_text(names[i], &zone))
			fail_msg("\"%s\" is %d", names[i], (int)zone);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_zones),
		cmocka_unit_test(test_families),
		cmocka_unit_test(test_odd_forms),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
