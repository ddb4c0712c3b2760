/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading protobuf messages field by field (Protocol Buffers documentation, "Encoding"). An engine
 * over bytes in memory; nothing is copied.
 */
#ifndef DLRUN_EVENTS_PROTOBUF_H
#define DLRUN_EVENTS_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum protobuf_wire { PB_VARINT = 0, PB_FIXED64 = 1, PB_BYTES = 2, PB_FIXED32 = 5 };

struct protobuf {
	const uint8_t *p, *end;
	bool bad; /* what follows is no field */
};

struct protobuf_field {
	uint32_t number;
	enum protobuf_wire wire;
	uint64_t value;      /* of numbers, as bits */
	struct protobuf sub; /* of bytes */
};

static inline struct protobuf protobuf_of(const void *data, size_t len)
{
	return (struct protobuf){data, (const uint8_t *)data + len, false};
}

/* false at the end, or where message->bad. */
bool protobuf_next(struct protobuf *message, struct protobuf_field *ret);
/* A bare varint, as packed fields have them. */
bool protobuf_varint(struct protobuf *message, uint64_t *ret);

static inline size_t protobuf_len(const struct protobuf *bytes)
{
	return (size_t)(bytes->end - bytes->p);
}

static inline double protobuf_double(uint64_t bits)
{
	double value;

	__builtin_memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline double protobuf_float(uint64_t bits)
{
	uint32_t low = (uint32_t)bits;
	float value;

	__builtin_memcpy(&value, &low, sizeof(value));
	return (double)value;
}

#endif
