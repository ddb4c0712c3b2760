/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays a corpus through a fuzz target without a fuzzing engine: replay DIR…
 *
 * Each file is fed as it is, and cut short at every length up to 64 bytes and at some beyond, in a
 * block of its own so that a sanitizer sees a read past its end.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 4 << 20 };

static void feed(const char *data, size_t len)
{
	AUTO_FREE uint8_t *copy = malloc(len ? len : 1);

	if (!copy)
		abort();
	memcpy(copy, data, len);
	LLVMFuzzerTestOneInput(copy, len);
}

static void feed_cuts(const struct buf *input)
{
	feed(input->data, input->len);
	for (size_t cut = 0; cut < input->len; cut += cut < 64 ? 1 : cut / 4)
		feed(input->data, cut);
}

static int replay_dir(const char *dir)
{
	AUTO_DIR DIR *stream = opendir(dir);
	int n = 0;

	if (!stream) {
		perror(dir);
		return -1;
	}
	for (struct dirent *entry; (entry = readdir(stream));) {
		AUTO_FREE char *path = fs_join(dir, entry->d_name);
		AUTO_ERR struct err err = {0};
		AUTO_BUF struct buf input = {0};

		if (entry->d_name[0] == '.')
			continue;
		buf_init(&input, INPUT_MAX);
		if (fs_read(path, INPUT_MAX, &input, NULL, &err) < 0) {
			fprintf(stderr, "%s\n", err.message);
			return -1;
		}
		feed_cuts(&input);
		n++;
	}
	return n;
}

int main(int argc, char **argv)
{
	int total = 0;

	for (int i = 1; i < argc; i++) {
		int n = replay_dir(argv[i]);

		if (n < 0)
			return 1;
		total += n;
	}
	if (total == 0) {
		fprintf(stderr, "no input to replay\n");
		return 1;
	}
	return 0;
}
