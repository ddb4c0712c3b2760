/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kind of network that an address belongs to, so that a server cannot send its client to where
 * only the client may go (RFC 6890; RFC 4193; RFC 4291 section 2.5). An engine.
 */
#ifndef DLRUN_NET_STREAM_ADDRESS_H
#define DLRUN_NET_STREAM_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* From the outside inwards. */
enum address_zone {
	ADDRESS_PUBLIC,
	ADDRESS_PRIVATE, /* 10/8, 172.16/12, 192.168/16, 100.64/10, 198.18/15, fc00::/7 */
	ADDRESS_LOOPBACK,
	/* Link-local (169.254/16, fe80::/10), other metadata services of clouds (fd00:ec2::254,
	 * 100.100.100.200, …), unspecified, multicast, reserved. */
	ADDRESS_FORBIDDEN,
};

/* IPv4 within IPv6 (mapped, compatible, 6to4, NAT64) counts as that IPv4 address. An unknown family
 * is forbidden. */
enum address_zone address_zone(const struct sockaddr *address);
/* The zone of an IPv4 or IPv6 address as text (without brackets); false if text is a name. What
 * name lookup takes for an address is one: 127.1, 0x7f.1, 2130706433 (inet_aton), fe80::1%eth0. */
bool address_zone_of_text(const char *text, enum address_zone *ret);

enum { ADDRESS_SIZE = 16, ADDRESS_IP4_AT = 12 };
/* The same text as an IPv6 address in network order, IPv4 mapped (::ffff:0:0/96). */
bool address_of_text(const char *text, uint8_t ret[static ADDRESS_SIZE]);
/* The first bits (0 to 128) of both are the same. */
bool address_in_block(const uint8_t *address, const uint8_t *block, int bits);

#endif
