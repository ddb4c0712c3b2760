/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MARK "0123456789abcdef"

/* What a flow says, as one text: it must not matter how its bytes were cut. */
static int listen(const uint8_t *data, size_t size, size_t piece, bool is_loose, struct buf *out)
{
	struct node_wire wire;
	struct node_said said;
	int r = 0;

	node_wire_init(&wire, MARK, is_loose);
	for (size_t at = 0; at < size && r == 0; at += piece) {
		node_wire_add(&wire, data + at, size - at < piece ? size - at : piece);
		while ((r = node_wire_next(&wire, &said, NULL)) > 0) {
			BUG_ON(strchr(said.line, '\n'));
			BUG_ON(strlen(said.line) > NODE_LINE_MAX);
			buf_addf(out, "%d %s\n", said.what, said.line);
		}
		BUG_ON(!is_loose && wire.noise > NODE_NOISE_MAX && r == 0);
	}
	buf_addf(out, "%d\n", r);
	if (r == 0) {
		const char *rest;
		size_t len = node_wire_rest(&wire, &rest);

		BUG_ON(len > NODE_LINE_MAX);
		buf_add(out, rest, len);
	}
	node_wire_done(&wire);
	return r;
}

static void check_cuts(const uint8_t *data, size_t size, size_t piece, bool is_loose)
{
	AUTO_BUF struct buf whole;
	AUTO_BUF struct buf cut;

	buf_init(&whole, SIZE_MAX / 2);
	buf_init(&cut, SIZE_MAX / 2);
	listen(data, size, size ? size : 1, is_loose, &whole);
	listen(data, size, piece, is_loose, &cut);
	BUG_ON(whole.len != cut.len || memcmp(whole.data, cut.data, cut.len) != 0);
}

/* Any words come back as they were. */
static void check_words(const char *text)
{
	AUTO_BUF struct buf line;
	struct node_words words = {0};

	buf_init(&line, SIZE_MAX / 2);
	node_word_add(&line, text);
	node_word_add(&line, "");
	node_word_add(&line, text);
	BUG_ON(strpbrk(line.data, "\n'!\""));
	BUG_ON(node_words_split(line.data, &words, NULL) < 0);
	BUG_ON(words.n != 3 || strcmp(words.v[0], text) != 0 || *words.v[1] != '\0');
	BUG_ON(strcmp(words.v[2], text) != 0);
	vec_done(&words);
}

static void check_facts(const char *text)
{
	struct node_handshake handshake = {0}, kept = {0};
	AUTO_FREE char *copy = mem_strdup(text);
	char *line, *rest = copy;

	while ((line = strsep(&rest, "\n")))
		node_handshake_add(&handshake, line, NULL);
	BUG_ON(handshake.facts.layers.n > NODE_LAYERS_MAX || handshake.partials.n > NODE_FACTS_MAX);
	node_handshake_merge(&kept, &handshake);
	node_handshake_merge(&kept, &handshake);
	BUG_ON(kept.old.n);
	node_handshake_done(&handshake);
	node_handshake_done(&kept);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0 || size > NODE_WIRE_PIECE)
		return 0;
	AUTO_FREE char *text = mem_strndup((const char *)data + 1, size - 1);

	check_cuts(data + 1, size - 1, 1 + data[0] % 64, data[0] & 64);
	check_words(text);
	check_facts(text);
	return 0;
}
