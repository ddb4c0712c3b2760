/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_openssh_words.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whatever a client, or a server through it, says: one of the errors of net/ssh/ssh.h, fit to
 * print. */
static void check_error(const char *text, const char *said)
{
	AUTO_ERR struct err err = {0};

	BUG_ON(ssh_words_error(text, said, "gpu7", &err) >= 0);
	BUG_ON(err.id < E_SSH_CONFIG || err.id > E_SSH_UNREACHABLE);
	BUG_ON(!strstr(err.message, "gpu7") || !str_is_plain(err.message));
	for (size_t i = 0; i < err.n_evidence; i++)
		BUG_ON(!str_is_plain(err.evidence[i]) || strlen(err.evidence[i]) > 1100);
	BUG_ON(err.hint && !str_is_plain(err.hint));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	struct ssh_words words, copy;

	ssh_words_read((const char *)data, size, &words);
	/* Lines before do not change what a line says. */
	AUTO_FREE char *longer = mem_printf("debug1: before\n%s", text);
	ssh_words_read(longer, strlen(longer), &copy);
	if (strlen(text) == size)
		BUG_ON(memcmp(&words, &copy, sizeof(words)) != 0);
	check_error(text, NULL);
	check_error("", text);
	return 0;
}
