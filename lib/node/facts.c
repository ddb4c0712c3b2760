/* SPDX-License-Identifier: Apache-2.0 */
#include "node/facts.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/str.h"

/* The strings of struct node_facts, in the order of words. */
static const struct {
	const char *key;
	size_t offset;
} strings[] = {
	{"boot", offsetof(struct node_facts, boot)},
	{"home", offsetof(struct node_facts, home)},
	{"host", offsetof(struct node_facts, host)},
	{"id", offsetof(struct node_facts, id)},
	{"launch", offsetof(struct node_facts, launch)},
	{"local", offsetof(struct node_facts, local)},
	{"machine", offsetof(struct node_facts, machine)},
	{"root", offsetof(struct node_facts, root)},
	{"shell", offsetof(struct node_facts, shell)},
	{"system", offsetof(struct node_facts, system)},
};
_Static_assert(ARRAY_LEN(strings) == NODE_FACT_WORDS, "as many words as strings");

static void clear_partials(struct node_hello *hello)
{
	vec_foreach (struct node_partial, partial, &hello->partials)
		free(partial->name);
	vec_done(&hello->partials);
}

void node_hello_done(struct node_hello *hello)
{
	if (!hello)
		return;
	for (size_t i = 0; i < NODE_FACT_WORDS; i++)
		free(hello->words[i]);
	strv_done(&hello->old);
	strv_done(&hello->facts.missing);
	strv_done(&hello->facts.layers);
	strv_done(&hello->facts.spares);
	clear_partials(hello);
	*hello = (struct node_hello){0};
}

static void set_word(struct node_hello *hello, size_t i, const char *value)
{
	if (hello->words[i] && str_eq(hello->words[i], value))
		return;
	if (hello->words[i])
		strv_add_take(&hello->old, hello->words[i]);
	hello->words[i] = mem_strdup(value);
	*(const char **)((char *)&hello->facts + strings[i].offset) = hello->words[i];
}

static void add_name(struct strv *list, const char *name, size_t max)
{
	if (list->n < max && node_name_is_good(name))
		strv_add(list, name);
}

static int set_number(struct node_hello *hello, const char *key, const char *value, struct err *err)
{
	struct node_facts *facts = &hello->facts;
	uint64_t number = 0;
	bool is_good = node_word_number(value, &number);

	hello->has_free |= str_eq(key, "free");
	if (str_eq(key, "time"))
		facts->time_ms = number <= INT64_MAX ? (int64_t)number : 0;
	else if (str_eq(key, "free"))
		facts->free_bytes = number;
	else if (str_eq(key, "memory"))
		facts->memory_bytes = number;
	else if (str_eq(key, "uid"))
		facts->uid = (unsigned)number;
	else if (str_eq(key, "cpus"))
		facts->cpus = number <= INT_MAX ? (unsigned)number : 0;
	else
		return 0;
	if (!is_good)
		return err_set(err, E_NODE_PROTOCOL, "the host sent no number for \"%s\"", key);
	return 0;
}

static int add_fact(struct node_hello *hello, char **v, size_t n, struct err *err)
{
	struct node_facts *facts = &hello->facts;
	const char *key = v[0], *value = v[1];
	uint64_t bytes;

	for (size_t i = 0; i < ARRAY_LEN(strings); i++) {
		if (!str_eq(key, strings[i].key))
			continue;
		set_word(hello, i, value);
		return 0;
	}
	if (str_eq(key, "missing") && facts->missing.n < NODE_FACTS_MAX)
		strv_add(&facts->missing, value);
	else if (str_eq(key, "layer"))
		add_name(&facts->layers, value, NODE_LAYERS_MAX);
	else if (str_eq(key, "spare"))
		add_name(&facts->spares, value, NODE_FACTS_MAX);
	else if (str_eq(key, "partial") && n >= 3 && node_word_number(v[2], &bytes) &&
		 hello->partials.n < NODE_FACTS_MAX)
		*vec_push(&hello->partials) = (struct node_partial){mem_strdup(value), bytes};
	else
		return set_number(hello, key, value, err);
	return 0;
}

int node_hello_add(struct node_hello *hello, char *line, struct err *err)
{
	struct node_words words = {0};
	int r = node_words_split(line, &words, err);

	if (r == 0 && words.n >= 2)
		r = add_fact(hello, words.v, words.n, err);
	vec_done(&words);
	return r;
}

int node_hello_check(struct node_hello *hello, struct err *err)
{
	static const char *const needed[] = {"boot", "host", "local", "root"};

	for (size_t i = 0; i < ARRAY_LEN(strings); i++)
		for (size_t j = 0; j < ARRAY_LEN(needed); j++)
			if (str_eq(strings[i].key, needed[j]) && str_empty(hello->words[i]))
				return err_set(err, E_NODE_PROTOCOL,
					"the host did not send its \"%s\"", needed[j]);
	if (!hello->has_free)
		hello->facts.free_bytes = NODE_FREE_UNKNOWN;
	return 0;
}

const char *node_tool_needed(const char *tool)
{
	static const char *const needed[] = {"tar", "gzip", "sha256sum"};

	if (str_eq(tool, "flock"))
		return "flock, perl or python3";
	for (size_t i = 0; i < ARRAY_LEN(needed); i++)
		if (str_eq(tool, needed[i]))
			return needed[i];
	return NULL;
}

void node_hello_compare(struct node_hello *hello, int64_t from_ms, int64_t to_ms)
{
	int64_t time_ms = hello->facts.time_ms, ahead_ms = 0;

	if (time_ms > to_ms)
		ahead_ms = time_ms - to_ms;
	else if (time_ms && time_ms < from_ms)
		ahead_ms = time_ms - from_ms;
	/* Not every date tells milliseconds. */
	hello->facts.ahead_ms = llabs(ahead_ms) < 1000 ? 0 : ahead_ms;
}

void node_hello_merge(struct node_hello *to, const struct node_hello *from)
{
	const struct node_facts *news = &from->facts;
	struct node_facts *facts = &to->facts;

	for (size_t i = 0; i < NODE_FACT_WORDS; i++)
		set_word(to, i, from->words[i] ? from->words[i] : "");
	strv_copy(&facts->missing, &news->missing);
	strv_copy(&facts->layers, &news->layers);
	strv_copy(&facts->spares, &news->spares);
	facts->time_ms = news->time_ms;
	facts->ahead_ms = news->ahead_ms;
	facts->free_bytes = news->free_bytes;
	facts->memory_bytes = news->memory_bytes;
	facts->uid = news->uid;
	facts->cpus = news->cpus;
}

/* Whether name is that of the transfer, with or without who took it (".ID"). */
static bool is_of(const char *name, const char *transfer)
{
	size_t len = strlen(transfer);

	return strncmp(name, transfer, len) == 0 && (!name[len] || name[len] == '.');
}

uint64_t node_hello_partial(const struct node_hello *hello, const char *name)
{
	uint64_t most = 0;

	for (size_t i = 0; i < hello->partials.n; i++)
		if (is_of(hello->partials.v[i].name, name) && hello->partials.v[i].bytes > most)
			most = hello->partials.v[i].bytes;
	return most;
}
