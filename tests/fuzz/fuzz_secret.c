/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names and contents of any bytes. Input: the path, NUL, the content. Properties: content is only
 * asked for where the name asks for it, and each yes says what it is.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "snap/tree/secret.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
	if (!holds)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *path = mem_strndup((const char *)data, size);
	size_t skip = strlen(path) < size ? strlen(path) + 1 : size;
	const char *what = NULL;

	enum secret_decision decision = secret_by_name(path, &what);
	check((decision == SECRET_YES) == (what != NULL));
	what = NULL;
	bool found = secret_by_content(path, (const char *)data + skip, size - skip, &what);
	check(found == (what != NULL));
	check(decision != SECRET_NO || !found);
	return 0;
}
