/* SPDX-License-Identifier: Apache-2.0 */
/*
 * YAML: an accepted tree holds together, an error names a line that exists.
 */
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/yaml.h"
#include "base/util/err.h"
#include "base/util/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const char *text)
{
	BUG_ON(!text || !str_is_utf8(text, strlen(text)));
}

static void check_node(const struct yaml *node, const struct yaml *parent, unsigned n_lines)
{
	unsigned depth = 0;

	BUG_ON(node->parent != parent || node->mark.line < 1 || node->mark.line > n_lines);
	BUG_ON((node->key != NULL) != (parent && parent->kind == YAML_MAP));
	for (const struct yaml *up = parent; up; up = up->parent)
		depth++;
	BUG_ON(depth > YAML_DEPTH_MAX);
	if (node->key) {
		check_text(node->key);
		BUG_ON(node->key_mark.line < 1 || node->key_mark.line > node->mark.line);
		/* Also that no earlier member has the same key. */
		BUG_ON(yaml_get(parent, node->key) != node);
	}
	BUG_ON((node->kind == YAML_SCALAR) != (node->text != NULL));
	BUG_ON(node->kind == YAML_SCALAR && node->first);
	if (node->text)
		check_text(node->text);
	for (const struct yaml *member = node->first; member; member = member->next)
		check_node(member, node, n_lines);
}

/* "f:LINE:COLUMN: text" or "f is larger …". */
static void check_error(const struct err *err, size_t size, unsigned n_lines)
{
	char *end;

	BUG_ON(err->id != E_CONFIG_SYNTAX);
	if (size > YAML_SIZE_MAX)
		return;
	BUG_ON(strncmp(err->message, "f:", 2) != 0 || !isdigit((unsigned char)err->message[2]));
	unsigned long line = strtoul(err->message + 2, &end, 10);
	BUG_ON(line < 1 || line > n_lines || end[0] != ':' || !isdigit((unsigned char)end[1]));
	unsigned long column = strtoul(end + 1, &end, 10);
	BUG_ON(column < 1 || strncmp(end, ": ", 2) != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_YAML struct yaml *yaml = NULL;
	AUTO_ERR struct err err = {0};
	unsigned n_lines = 2;

	/* YAML 1.1 also ends lines by CR, NEL, LS and PS: whatever the line, it is no more than
	 * this. */
	for (size_t i = 0; i < size; i++)
		n_lines += data[i] == '\n' || data[i] == '\r' || data[i] == 0x85 ||
			   data[i] == 0xa8 || data[i] == 0xa9;
	if (yaml_parse((const char *)data, size, "f", &yaml, &err) < 0) {
		BUG_ON(yaml);
		check_error(&err, size, n_lines);
		return 0;
	}
	check_node(yaml, NULL, n_lines);
	return 0;
}
