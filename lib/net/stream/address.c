/* SPDX-License-Identifier: Apache-2.0 */
#include "net/stream/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"

struct zone4 {
	uint32_t prefix;
	int bits;
	enum address_zone zone;
};

#define IP4(a, b, c, d)                                                                            \
	((uint32_t)(a) << 24 | (uint32_t)(b) << 16 | (uint32_t)(c) << 8 | (uint32_t)(d))

/* The first that matches counts. */
static const struct zone4 zones4[] = {
	{IP4(100, 100, 100, 200), 32, ADDRESS_FORBIDDEN}, /* metadata of a cloud */
	{IP4(168, 63, 129, 16), 32, ADDRESS_FORBIDDEN},   /* and of another */
	{IP4(0, 0, 0, 0), 8, ADDRESS_FORBIDDEN},
	{IP4(127, 0, 0, 0), 8, ADDRESS_LOOPBACK},
	{IP4(169, 254, 0, 0), 16, ADDRESS_FORBIDDEN},
	{IP4(10, 0, 0, 0), 8, ADDRESS_PRIVATE},
	{IP4(172, 16, 0, 0), 12, ADDRESS_PRIVATE},
	{IP4(192, 168, 0, 0), 16, ADDRESS_PRIVATE},
	{IP4(100, 64, 0, 0), 10, ADDRESS_PRIVATE},
	/* For measurements; in practice what proxies that catch all traffic answer for names. */
	{IP4(198, 18, 0, 0), 15, ADDRESS_PRIVATE},
	{IP4(192, 0, 0, 0), 24, ADDRESS_FORBIDDEN},
	{IP4(192, 0, 2, 0), 24, ADDRESS_FORBIDDEN},
	{IP4(192, 88, 99, 0), 24, ADDRESS_FORBIDDEN},
	{IP4(198, 51, 100, 0), 24, ADDRESS_FORBIDDEN},
	{IP4(203, 0, 113, 0), 24, ADDRESS_FORBIDDEN},
	{IP4(224, 0, 0, 0), 3, ADDRESS_FORBIDDEN},
};

static enum address_zone zone_of_ip4(uint32_t ip)
{
	for (size_t i = 0; i < ARRAY_LEN(zones4); i++) {
		const struct zone4 *row = &zones4[i];

		if ((ip ^ row->prefix) >> (32 - row->bits) == 0)
			return row->zone;
	}
	return ADDRESS_PUBLIC;
}

struct zone6 {
	uint8_t prefix[ADDRESS_SIZE];
	int bits;
	enum address_zone zone; /* at least */
	int ip4_at;             /* the byte where an IPv4 address begins that counts too, or 0 */
};

/* The first that matches counts. */
static const struct zone6 zones6[] = {
	{{0}, 128, ADDRESS_FORBIDDEN, 0}, {{[15] = 1}, 128, ADDRESS_LOOPBACK, 0},
	{{0}, 96, ADDRESS_PUBLIC, 12},                             /* compatible */
	{{[10] = 0xff, [11] = 0xff}, 96, ADDRESS_PUBLIC, 12},      /* mapped */
	{{[8] = 0xff, [9] = 0xff}, 96, ADDRESS_PUBLIC, 12},        /* translated */
	{{0x00, 0x64, 0xff, 0x9b}, 96, ADDRESS_PUBLIC, 12},        /* NAT64 */
	{{0x00, 0x64, 0xff, 0x9b, 0, 1}, 48, ADDRESS_PRIVATE, 12}, /* NAT64, local use */
	{{0x20, 0x02}, 16, ADDRESS_PUBLIC, 2},                     /* 6to4 */
	{{0x20, 0x01}, 23, ADDRESS_FORBIDDEN, 0},                  /* protocols, Teredo */
	{{0x20, 0x01, 0x0d, 0xb8}, 32, ADDRESS_FORBIDDEN, 0},      /* documentation */
	{{0x3f, 0xff}, 20, ADDRESS_FORBIDDEN, 0},                  /* documentation */
	{{0x20}, 3, ADDRESS_PUBLIC, 0},                            /* global unicast */
	{{0xfd, 0x00, 0x0e, 0xc2, [14] = 0x02, 0x54}, 128, ADDRESS_FORBIDDEN, 0}, /* metadata */
	{{0xfd, 0x20, 0x00, 0xce, [14] = 0x02, 0x54}, 128, ADDRESS_FORBIDDEN, 0}, /* metadata */
	{{0xfc}, 7, ADDRESS_PRIVATE, 0}, {{0xfe, 0xc0}, 10, ADDRESS_PRIVATE, 0},  /* site-local */
};

bool address_in_block(const uint8_t *address, const uint8_t *block, int bits)
{
	int rest = bits % 8;

	if (memcmp(address, block, (size_t)bits / 8) != 0)
		return false;
	return rest == 0 || (address[bits / 8] ^ block[bits / 8]) >> (8 - rest) == 0;
}

static enum address_zone zone_of_ip6(const uint8_t *ip)
{
	for (size_t i = 0; i < ARRAY_LEN(zones6); i++) {
		const struct zone6 *row = &zones6[i];
		const uint8_t *ip4 = ip + row->ip4_at;
		enum address_zone inner;

		if (!address_in_block(ip, row->prefix, row->bits))
			continue;
		if (row->ip4_at == 0)
			return row->zone;
		inner = zone_of_ip4(IP4(ip4[0], ip4[1], ip4[2], ip4[3]));
		return inner > row->zone ? inner : row->zone;
	}
	return ADDRESS_FORBIDDEN;
}

enum address_zone address_zone(const struct sockaddr *address)
{
	struct sockaddr_in in;
	struct sockaddr_in6 in6;

	switch (address->sa_family) {
	case AF_INET:
		memcpy(&in, address, sizeof(in));
		return zone_of_ip4(ntohl(in.sin_addr.s_addr));
	case AF_INET6:
		memcpy(&in6, address, sizeof(in6));
		return zone_of_ip6(in6.sin6_addr.s6_addr);
	default:
		return ADDRESS_FORBIDDEN;
	}
}

/* inet_aton stops at a blank. */
static bool ip4_of_text(const char *text, struct in_addr *ret)
{
	size_t len = strspn(text, "0123456789abcdefABCDEFxX.");

	return str_is_digit(*text) && !text[len] && inet_aton(text, ret) != 0;
}

static bool ip6_of_text(const char *text, struct in6_addr *ret)
{
	char ip[INET6_ADDRSTRLEN];
	size_t len = strcspn(text, "%");

	if (len >= sizeof(ip))
		return false;
	memcpy(ip, text, len);
	ip[len] = '\0';
	return inet_pton(AF_INET6, ip, ret) == 1;
}

bool address_of_text(const char *text, uint8_t ret[static ADDRESS_SIZE])
{
	struct in_addr ip4;
	struct in6_addr ip6;

	if (ip4_of_text(text, &ip4)) {
		memset(ret, 0, ADDRESS_IP4_AT - 2);
		memset(ret + ADDRESS_IP4_AT - 2, 0xff, 2);
		memcpy(ret + ADDRESS_IP4_AT, &ip4, sizeof(ip4));
		return true;
	}
	if (!ip6_of_text(text, &ip6))
		return false;
	memcpy(ret, &ip6, ADDRESS_SIZE);
	return true;
}

bool address_zone_of_text(const char *text, enum address_zone *ret)
{
	uint8_t ip[ADDRESS_SIZE];

	if (!address_of_text(text, ip))
		return false;
	*ret = zone_of_ip6(ip);
	return true;
}
