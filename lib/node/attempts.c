/* SPDX-License-Identifier: Apache-2.0 */
#include "node/attempts.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"

bool node_attempt_name(const char *name, char run[static NODE_NAME_SIZE], int *ret_attempt)
{
	const char *slash = strchr(name, '/');
	uint64_t number;

	if (!slash || slash - name >= NODE_NAME_SIZE)
		return false;
	snprintf(run, NODE_NAME_SIZE, "%.*s", (int)(slash - name), name);
	if (!node_name_is_good(run) || !node_word_number(slash + 1, &number) || number < 1 ||
		number > INT_MAX)
		return false;
	*ret_attempt = (int)number;
	return true;
}

static void add_field(struct node_attempt *attempt, const char *word)
{
	const char *equals = strchr(word, '=');

	if (!equals || equals == word)
		return;
	struct node_field *field = vec_push(&attempt->fields);

	field->key = mem_strndup(word, (size_t)(equals - word));
	field->value = mem_strdup(equals + 1);
}

int node_attempt_parse(const struct node_words *words, struct node_attempt *ret, struct err *err)
{
	char run[NODE_NAME_SIZE];
	int attempt;

	if (words->n < 3 || !node_attempt_name(words->v[1], run, &attempt))
		return err_set(err, E_NODE_PROTOCOL, "the host sent an invalid attempt");
	*ret = (struct node_attempt){
		.run = mem_strdup(run), .attempt = attempt, .state = mem_strdup(words->v[2])};
	for (size_t i = 3; i < words->n; i++)
		add_field(ret, words->v[i]);
	return 0;
}

void node_attempt_done(struct node_attempt *attempt)
{
	free(attempt->run);
	free(attempt->user);
	free(attempt->record);
	free(attempt->state);
	vec_foreach (struct node_field, field, &attempt->fields) {
		free(field->key);
		free(field->value);
	}
	vec_done(&attempt->fields);
	*attempt = (struct node_attempt){0};
}

void node_attempt_copy(const struct node_attempt *from, struct node_attempt *ret)
{
	*ret = (struct node_attempt){.run = mem_strdup(from->run),
		.user = mem_strdup(from->user),
		.record = mem_strdup(from->record),
		.attempt = from->attempt,
		.state = mem_strdup(from->state)};
	for (size_t i = 0; i < from->fields.n; i++)
		*vec_push(&ret->fields) = (struct node_field){
			mem_strdup(from->fields.v[i].key), mem_strdup(from->fields.v[i].value)};
}

void node_attempts_done(struct node_attempts *attempts)
{
	if (!attempts)
		return;
	vec_foreach (struct node_attempt, attempt, attempts)
		node_attempt_done(attempt);
	vec_done(attempts);
}

const char *node_attempt_get(const struct node_attempt *attempt, const char *key)
{
	/* The last one: `exit` is said behind `state`. */
	for (size_t i = attempt->fields.n; i-- > 0;)
		if (str_eq(attempt->fields.v[i].key, key))
			return attempt->fields.v[i].value;
	return NULL;
}

int64_t node_attempt_int(const struct node_attempt *attempt, const char *key, int64_t missing)
{
	const char *value = node_attempt_get(attempt, key);
	int64_t number;

	if (!value || str_to_int(value, INT64_MIN, INT64_MAX, key, &number, NULL) < 0)
		return missing;
	return number;
}

int node_gpu_parse(const struct node_words *words, struct node_gpu *ret, struct err *err)
{
	char *const *v = words->v;
	uint64_t index, memory;

	if (words->n < 8 || !node_word_number(v[2], &index) || index > INT_MAX ||
		!node_word_number(v[4], &memory))
		return err_set(err, E_NODE_PROTOCOL, "the host sent an invalid GPU");
	*ret = (struct node_gpu){
		.index = (unsigned)index, .memory_bytes = memory, .used = !str_eq(v[5], "0")};
	snprintf(ret->vendor, sizeof(ret->vendor), "%s", v[1]);
	snprintf(ret->id, sizeof(ret->id), "%s", v[3]);
	snprintf(ret->holder, sizeof(ret->holder), "%s", str_eq(v[6], "-") ? "" : v[6]);
	snprintf(ret->model, sizeof(ret->model), "%s", v[7]);
	return 0;
}
