/* SPDX-License-Identifier: Apache-2.0 */
#include "events/tftensor.h"

#include <math.h>

#include "base/util/mem.h"

enum { TENSOR_DTYPE = 1, TENSOR_SHAPE = 2, TENSOR_CONTENT = 4, SHAPE_DIM = 2, DIM_SIZE = 1 };

enum kind { KIND_SIGNED, KIND_UNSIGNED, KIND_FLOAT, KIND_DOUBLE, KIND_HALF, KIND_BFLOAT };

struct dtype {
	unsigned number; /* tensorflow.DataType */
	unsigned field;  /* of TensorProto, where values stand unless in tensor_content */
	enum kind kind;
	unsigned size; /* in tensor_content, little endian */
};

static const struct dtype dtypes[] = {
	{1, 5, KIND_FLOAT, 4},
	{2, 6, KIND_DOUBLE, 8},
	{3, 7, KIND_SIGNED, 4},
	{4, 7, KIND_UNSIGNED, 1},
	{5, 7, KIND_SIGNED, 2},
	{6, 7, KIND_SIGNED, 1},
	{9, 10, KIND_SIGNED, 8},
	{10, 11, KIND_UNSIGNED, 1},
	{14, 13, KIND_BFLOAT, 2},
	{17, 7, KIND_UNSIGNED, 2},
	{19, 13, KIND_HALF, 2},
	{22, 16, KIND_UNSIGNED, 4},
	{23, 17, KIND_UNSIGNED, 8},
};

static const struct dtype *find_dtype(uint64_t number)
{
	for (size_t i = 0; i < ARRAY_LEN(dtypes); i++)
		if (dtypes[i].number == number)
			return &dtypes[i];
	return NULL;
}

/* IEEE 754 binary16. */
static double from_half(unsigned bits)
{
	unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
	double value = fraction; /* in units of 2^-24 while the exponent is 0 or 1 */

	if (exponent == 31)
		value = fraction ? (double)NAN : (double)INFINITY;
	else if (exponent > 0)
		value = (double)((1024 + (uint64_t)fraction) << (exponent - 1));
	return (bits & 0x8000 ? -value : value) / (1 << 24);
}

static double from_bits(const struct dtype *dtype, uint64_t bits)
{
	unsigned unused = 64 - 8 * dtype->size;

	bits = bits << unused >> unused;
	switch (dtype->kind) {
	case KIND_SIGNED:
		return (double)((int64_t)(bits << unused) >> unused);
	case KIND_UNSIGNED:
		return (double)bits;
	case KIND_FLOAT:
		return protobuf_float(bits);
	case KIND_DOUBLE:
		return protobuf_double(bits);
	case KIND_HALF:
		return from_half((unsigned)bits);
	case KIND_BFLOAT:
		return protobuf_float(bits << 16);
	}
	return (double)NAN;
}

static uint64_t little_endian(const uint8_t *p, unsigned size)
{
	uint64_t bits = 0;

	for (unsigned i = 0; i < size; i++)
		bits |= (uint64_t)p[i] << 8 * i;
	return bits;
}

static bool has_one_element(struct protobuf shape)
{
	struct protobuf_field dim, size;

	while (protobuf_next(&shape, &dim)) {
		if (dim.number != SHAPE_DIM || dim.wire != PB_BYTES)
			continue;
		uint64_t n = 0;
		while (protobuf_next(&dim.sub, &size))
			if (size.number == DIM_SIZE && size.wire == PB_VARINT)
				n = size.value;
		if (n != 1)
			return false;
	}
	return !shape.bad;
}

/* A value of its own field: alone, or the first of packed ones. */
static bool field_bits(const struct dtype *dtype, struct protobuf_field *field, uint64_t *ret)
{
	unsigned size = dtype->kind == KIND_FLOAT ? 4 : 8;

	*ret = field->value;
	if (field->wire != PB_BYTES)
		return true;
	if (dtype->kind != KIND_FLOAT && dtype->kind != KIND_DOUBLE)
		return protobuf_varint(&field->sub, ret);
	if (protobuf_len(&field->sub) < size)
		return false;
	*ret = little_endian(field->sub.p, size);
	return true;
}

/* NULL: it has more than one element, or is no number. */
static const struct dtype *read_type(struct protobuf tensor)
{
	const struct dtype *dtype = NULL;
	struct protobuf_field field;

	while (protobuf_next(&tensor, &field)) {
		if (field.number == TENSOR_DTYPE && field.wire == PB_VARINT)
			dtype = find_dtype(field.value);
		if (field.number == TENSOR_SHAPE && field.wire == PB_BYTES &&
			!has_one_element(field.sub))
			return NULL;
	}
	return tensor.bad ? NULL : dtype;
}

static bool content_bits(
	const struct dtype *dtype, const struct protobuf_field *field, uint64_t *ret)
{
	if (field->wire != PB_BYTES || protobuf_len(&field->sub) != dtype->size)
		return false;
	*ret = little_endian(field->sub.p, dtype->size);
	return true;
}

bool tftensor_scalar(struct protobuf tensor, double *ret)
{
	const struct dtype *dtype = read_type(tensor);
	struct protobuf_field field;
	uint64_t bits;
	bool found = false;

	while (dtype && !found && protobuf_next(&tensor, &field)) {
		if (field.number == dtype->field)
			found = field_bits(dtype, &field, &bits);
		else if (field.number == TENSOR_CONTENT)
			found = content_bits(dtype, &field, &bits);
	}
	if (found)
		*ret = from_bits(dtype, bits);
	return found;
}
