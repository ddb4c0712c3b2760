/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that is fed bytes as they come says the same however they are cut.
 */
#ifndef DLRUN_TEST_PIECEFIX_H
#define DLRUN_TEST_PIECEFIX_H

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/mem.h"

/* Feed text in pieces of that size; what it says goes to out, which is emptied first. */
typedef int piece_read_fn(
	const char *text, size_t len, size_t piece, struct buf *out, struct err *err);

/* want: what it says; NULL: it refuses, as E_DATA. */
static inline void pieces_check(
	piece_read_fn *read_in, const char *text, size_t len, const char *want)
{
	static const size_t pieces[] = {1, 3, 100000};
	AUTO_BUF struct buf out = {0};

	buf_init(&out, 1 << 20);
	for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
		AUTO_ERR struct err err = {0};
		int r = read_in(text, len, pieces[i], &out, &err);

		assert_int_equal(r < 0, want == NULL);
		if (want)
			assert_string_equal(out.data, want);
		else
			assert_int_equal(err.id, E_DATA);
	}
}

#endif
