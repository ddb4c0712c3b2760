/* SPDX-License-Identifier: Apache-2.0 */
#include "node/hosts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { TEXT_MAX = 64 << 10, GROUPS_MAX = 8, DIGITS_MAX = 9 };

/*
 * Names
 */

struct expansion {
	const char *text; /* for messages */
	struct strv *hosts;
	struct err *err;
};

static int hosts_refuse(const struct expansion *expansion, const char *why)
{
	AUTO_FREE char *shown = str_shown(expansion->text);

	return err_set(expansion->err, E_USAGE, "hosts \"%s\": %s", shown, why);
}

static int hosts_add_host(const struct expansion *expansion, const char *host)
{
	struct strv *hosts = expansion->hosts;

	if (!*host)
		return hosts_refuse(expansion, "a name is empty");
	if (*host == '-')
		return hosts_refuse(expansion, "a name begins with \"-\"");
	if (strv_find(hosts, host) >= 0)
		return 0;
	if (hosts->n >= NODE_HOSTS_MAX)
		return hosts_refuse(expansion, "more than 1024 hosts");
	strv_add(hosts, host);
	return 0;
}

/* "03-16" or "7" of len bytes. */
struct range {
	uint64_t from, to;
	int width;
};

static bool hosts_parse_number(const char *text, size_t len, uint64_t *ret)
{
	AUTO_FREE char *word = mem_strndup(text, len);

	*ret = 0;
	if (len == 0 || len > DIGITS_MAX || strspn(word, "0123456789") != len)
		return false;
	for (size_t i = 0; i < len; i++)
		*ret = 10 * *ret + (uint64_t)(word[i] - '0');
	return true;
}

static bool parse_range(const char *text, size_t len, struct range *ret)
{
	const char *dash = memchr(text, '-', len);
	size_t first = dash ? (size_t)(dash - text) : len;

	ret->width = (int)first;
	if (!hosts_parse_number(text, first, &ret->from))
		return false;
	ret->to = ret->from;
	return !dash || hosts_parse_number(dash + 1, len - first - 1, &ret->to);
}

static int hosts_expand(
	const struct expansion *expansion, const char *done, const char *rest, int depth);

static int expand_range(const struct expansion *expansion, const char *done,
	const struct range *range, const char *rest, int depth)
{
	if (range->to < range->from)
		return hosts_refuse(expansion, "a range goes down");
	if (range->to - range->from >= NODE_HOSTS_MAX)
		return hosts_refuse(expansion, "more than 1024 hosts");
	for (uint64_t i = range->from; i <= range->to; i++) {
		AUTO_FREE char *next = mem_printf("%s%0*" PRIu64, done, range->width, i);
		int r = hosts_expand(expansion, next, rest, depth + 1);

		if (r < 0)
			return r;
	}
	return 0;
}

/* Append the text before the first bracket of rest to done, then expand each of its ranges. */
static int hosts_expand(
	const struct expansion *expansion, const char *done, const char *rest, int depth)
{
	size_t len = strcspn(rest, "[]");
	AUTO_FREE char *start = mem_printf("%s%.*s", done, (int)len, rest);
	const char *open = rest + len, *close = strchr(open, ']');
	struct range range;

	/* An address of IPv6. */
	if (*open == '[' && close && memchr(open, ':', (size_t)(close - open))) {
		AUTO_FREE char *next = mem_printf("%s%.*s", start, (int)(close + 1 - open), open);
		return hosts_expand(expansion, next, close + 1, depth);
	}

	if (!*open)
		return hosts_add_host(expansion, start);
	if (*open == ']' || !close || memchr(open + 1, '[', (size_t)(close - open)))
		return hosts_refuse(expansion, "brackets do not match");
	if (depth >= GROUPS_MAX)
		return hosts_refuse(expansion, "more than 8 ranges in one name");
	for (const char *p = open + 1; p <= close;) {
		size_t n = strcspn(p, ",]");

		if (!parse_range(p, n, &range))
			return hosts_refuse(expansion, "a range is not of the form [1-8]");
		int r = expand_range(expansion, start, &range, close + 1, depth);
		if (r < 0)
			return r;
		p += n + 1;
	}
	return 0;
}

/* Up to a comma outside of brackets. */
static size_t item_len(const char *text)
{
	bool is_inside = false;
	size_t len = 0;

	for (; text[len] && (is_inside || text[len] != ','); len++) {
		if (text[len] == '[')
			is_inside = true;
		else if (text[len] == ']')
			is_inside = false;
	}
	return len;
}

static int check_characters(const struct expansion *expansion)
{
	const char *text = expansion->text;

	if (!*text)
		return hosts_refuse(expansion, "no host is named");
	if (strlen(text) > TEXT_MAX)
		return hosts_refuse(expansion, "longer than 64 KiB");
	for (const char *p = text; *p; p++)
		if ((unsigned char)*p <= ' ' || *p == 0x7f)
			return hosts_refuse(
				expansion, "names have no spaces or control characters");
	return 0;
}

static int add_items(const struct expansion *expansion)
{
	const char *p = expansion->text;

	for (;;) {
		/* The rest of ssh://HOST or ssh://HOST/, behind the name of the kind. */
		size_t len = item_len(p), skip = len >= 2 && memcmp(p, "//", 2) == 0 ? 2 : 0;
		bool has_slash = skip && len > skip && p[len - 1] == '/';
		AUTO_FREE char *item = mem_strndup(p + skip, len - skip - has_slash);
		if (strchr(item, '/'))
			return hosts_refuse(expansion, "a name of a host has no \"/\"");
		int r = hosts_expand(expansion, "", item, 0);

		if (r < 0 || !p[len])
			return r;
		p += len + 1;
	}
}

int node_hosts_add(struct strv *hosts, const char *text, struct err *err)
{
	AUTO_STRV struct strv all = {0};
	const struct expansion expansion = {.text = text ? text : "", .hosts = &all, .err = err};
	int r = check_characters(&expansion);

	strv_copy(&all, hosts);
	if (r == 0)
		r = add_items(&expansion);
	if (r < 0)
		return r;
	strv_copy(hosts, &all);
	return 0;
}

char *node_host_destination(const char *host, unsigned *ret_port)
{
	const char *at = strrchr(host, '@'), *name = at ? at + 1 : host, *port = strrchr(name, ':');
	int user_len = (int)(name - host), name_len = (int)strlen(name);
	bool is_bracketed = *name == '[', has_port = false;
	uint64_t number;

	/* Without brackets several colons are an address. */
	if (port && port > name && (is_bracketed ? port[-1] == ']' : strchr(name, ':') == port))
		has_port = hosts_parse_number(port + 1, strlen(port + 1), &number) && number > 0 &&
			   number <= UINT16_MAX;
	*ret_port = has_port ? (unsigned)number : 0;
	if (has_port)
		name_len = (int)(port - name);
	if (is_bracketed && name_len > 2 && name[name_len - 1] == ']')
		return mem_printf("%.*s%.*s", user_len, host, name_len - 2, name + 1);
	return mem_printf("%.*s%.*s", user_len, host, name_len, name);
}

int node_hosts_parse(const char *text, struct strv *ret, struct err *err)
{
	AUTO_STRV struct strv hosts = {0};
	int r = node_hosts_add(&hosts, text, err);

	if (r == 0)
		strv_copy(ret, &hosts);
	return r;
}

/*
 * Choice: what each host is for the run
 */

enum { RANKS = 9 };

struct candidate {
	size_t index;
	const struct node_offer *offer;
	unsigned gpus; /* that the run takes there */
	bool is_ready; /* it would begin at once */
	bool has_layers;
	int64_t ranks[RANKS]; /* the first that differs decides: less is better */
};

struct candidates VEC_OF(struct candidate);

static unsigned gpus_of(
	const struct node_offer *offer, const struct node_requirements *requirements)
{
	if (requirements->gpus >= 0)
		return (unsigned)requirements->gpus;
	return offer->gpus ? 1 : 0;
}

enum lack { LACK_NOTHING, LACK_GPUS, LACK_CPUS, LACK_MEMORY, LACK_DISK, N_LACKS };

/* The resource that a host lacks even when it is idle. */
static enum lack lack_of(
	const struct node_offer *offer, const struct node_requirements *requirements)
{
	uint64_t disk = offer->disk_free_bytes;

	if (offer->gpus < gpus_of(offer, requirements))
		return LACK_GPUS;
	if (offer->cpus < requirements->cpus)
		return LACK_CPUS;
	/* 0: not known. */
	if (offer->memory_bytes && offer->memory_bytes < requirements->memory_bytes)
		return LACK_MEMORY;
	if (disk < requirements->disk_bytes ||
		disk - requirements->disk_bytes < offer->missing_bytes)
		return LACK_DISK;
	return LACK_NOTHING;
}

/* Of the CPUs, in tenths. */
static int load_step(const struct node_offer *offer)
{
	/* Not known: as one that is half busy. */
	if (offer->load < 0 || !offer->cpus)
		return 5;
	double load = 10 * offer->load / offer->cpus;

	return load > 100 ? 100 : (int)load;
}

/* Free, in eighths. */
static int memory_step(const struct node_offer *offer)
{
	uint64_t eighth = offer->memory_bytes / 8;

	return eighth ? (int)(offer->memory_free_bytes / eighth) : 0;
}

static void consider(struct candidates *list, size_t index, const struct node_offer *offer,
	const struct node_requirements *requirements)
{
	unsigned gpus = gpus_of(offer, requirements);
	/* Runs that are queued there go first. */
	bool has_gpus = gpus == 0 || (offer->gpus_free >= gpus && !offer->queued);
	bool has_memory =
		!offer->memory_bytes || offer->memory_free_bytes >= requirements->memory_bytes;
	bool is_ready = has_gpus && has_memory;
	bool has_layers = offer->missing_bytes <= NODE_LAYERS_SLACK;

	*vec_push(list) = (struct candidate){
		.index = index,
		.offer = offer,
		.gpus = gpus,
		.is_ready = is_ready,
		.has_layers = has_layers,
		.ranks = {requirements->gpus != 0 && gpus == 0, !is_ready,
			requirements->gpus == 0 && offer->gpus > 0, is_ready ? 0 : offer->queued,
			!has_layers, gpus ? -(int64_t)offer->gpus_free : 0, load_step(offer),
			-memory_step(offer), (int64_t)index},
	};
}

static int hosts_compare(const void *left, const void *right)
{
	const struct candidate *a = left, *b = right;

	for (int i = 0; i < RANKS; i++)
		if (a->ranks[i] != b->ranks[i])
			return a->ranks[i] < b->ranks[i] ? -1 : 1;
	return 0;
}

/*
 * Choice: in words
 */

static const char *plural(size_t n)
{
	return n == 1 ? "" : "s";
}

static void add_responses(struct buf *out, const struct node_offer *offers, size_t n)
{
	size_t n_answered = 0;

	for (size_t i = 0; i < n; i++)
		n_answered += offers[i].answered;
	if (n == 1)
		buf_adds(out, offers[0].host);
	else if (n_answered == n)
		buf_addf(out, "all %zu hosts answered", n);
	else
		buf_addf(out, "%zu of %zu hosts answered", n_answered, n);
}

static void add_lack(struct buf *out, enum lack lack, const struct node_requirements *requirements)
{
	char size[16];

	if (lack == LACK_GPUS)
		buf_addf(out, "%d GPU%s", requirements->gpus, plural((size_t)requirements->gpus));
	else if (lack == LACK_CPUS)
		buf_addf(out, "%g CPU%s", requirements->cpus, requirements->cpus == 1 ? "" : "s");
	else if (lack == LACK_MEMORY)
		buf_addf(out, "%s of memory", str_size(requirements->memory_bytes, size));
	else
		buf_addf(out, "%s free disk",
			requirements->disk_bytes ? str_size(requirements->disk_bytes, size)
						 : "enough");
}

/* None fits: what all of them lack, or what each of them lacks something of. */
static char *why_none_fits(
	const struct node_offer *offers, size_t n, const struct node_requirements *requirements)
{
	AUTO_BUF struct buf out = buf_with(TEXT_MAX);
	size_t lacks[N_LACKS] = {0}, n_answered = 0;
	const char *between = " ";

	for (size_t i = 0; i < n; i++) {
		if (!offers[i].answered)
			continue;
		n_answered++;
		lacks[lack_of(&offers[i], requirements)]++;
	}
	if (n_answered == 0 && n == 1)
		return mem_printf(
			"%s", offers[0].why_not ? offers[0].why_not : "the host did not answer");
	if (n_answered == 0)
		return mem_printf("none of %zu hosts answered%s%s", n,
			offers[0].why_not ? ": " : "", offers[0].why_not ? offers[0].why_not : "");
	add_responses(&out, offers, n);
	buf_adds(&out, n == 1 ? " has not" : "; none has");
	for (enum lack lack = LACK_GPUS; lack < N_LACKS; lack++) {
		if (!lacks[lack])
			continue;
		buf_adds(&out, between);
		add_lack(&out, lack, requirements);
		between = lacks[lack] == n_answered ? " " : " and ";
	}
	return buf_take(&out);
}

static char *why_no_gang(const struct candidates *list, size_t n_ready,
	const struct node_offer *offers, size_t n, const struct node_requirements *requirements)
{
	AUTO_BUF struct buf out = buf_with(TEXT_MAX);

	if (requirements->nodes > n)
		return mem_printf("%u hosts are wanted, and there %s %zu", requirements->nodes,
			n == 1 ? "is" : "are", n);
	add_responses(&out, offers, n);
	buf_addf(&out, "; %u are wanted at once, %zu would do", requirements->nodes, list->n);
	if (list->n >= requirements->nodes)
		buf_addf(&out, ", of which %zu %s free now", n_ready, n_ready == 1 ? "is" : "are");
	return buf_take(&out);
}

static void add_choice(struct buf *out, const struct candidate *one)
{
	const struct node_offer *offer = one->offer;

	buf_adds(out, offer->host);
	if (one->gpus)
		buf_addf(out, ": %u of %u GPU%s %s free", offer->gpus_free, offer->gpus,
			plural(offer->gpus), offer->gpus_free == 1 ? "is" : "are");
	else if (offer->load >= 0)
		buf_addf(out, ": load %.1f on %u CPU%s", offer->load, offer->cpus,
			plural(offer->cpus));
	else
		buf_addf(out, ": %u CPU%s", offer->cpus, plural(offer->cpus));
	if (one->is_ready)
		buf_adds(out, one->has_layers ? ", and it has the code already" : "");
}

/* Explain the choice of a single host. */
static char *why_one(const struct candidate *one, const struct node_offer *offers, size_t n)
{
	AUTO_BUF struct buf out = buf_with(TEXT_MAX);

	if (one->is_ready || !one->gpus) {
		add_choice(&out, one);
		return buf_take(&out);
	}
	if (n > 1) {
		add_responses(&out, offers, n);
		buf_adds(&out, "; no GPU that fits is free, and ");
	}
	buf_addf(&out, "%s has %u of %u GPU%s free with %u run%s waiting", one->offer->host,
		one->offer->gpus_free, one->offer->gpus, plural(one->offer->gpus),
		one->offer->queued, plural(one->offer->queued));
	return buf_take(&out);
}

static char *why_gang(const struct candidates *list, const struct node_requirements *requirements)
{
	AUTO_BUF struct buf out = buf_with(TEXT_MAX);

	buf_addf(&out, "%u of %zu hosts that fit: ", requirements->nodes, list->n);
	for (unsigned i = 0; i < requirements->nodes && i < 4; i++)
		buf_addf(&out, "%s%s", i ? ", " : "", list->v[i].offer->host);
	if (requirements->nodes > 4)
		buf_addf(&out, " and %u more", requirements->nodes - 4);
	return buf_take(&out);
}

static int by_writing(const void *a, const void *b)
{
	const size_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

void node_choose(const struct node_offer *offers, size_t n,
	const struct node_requirements *requirements, struct node_choice *ret)
{
	struct candidates list = {0};
	unsigned nodes = requirements->nodes ? requirements->nodes : 1;
	size_t n_ready = 0;

	*ret = (struct node_choice){0};
	for (size_t i = 0; i < n; i++)
		if (offers[i].answered && lack_of(&offers[i], requirements) == LACK_NOTHING)
			consider(&list, i, &offers[i], requirements);
	vec_sort(&list, hosts_compare);
	vec_foreach (const struct candidate, one, &list)
		n_ready += one->is_ready;
	if (n == 0)
		ret->why = mem_strdup("no host is named");
	else if (list.n == 0 && nodes <= n)
		ret->why = why_none_fits(offers, n, requirements);
	else if (nodes > 1 && n_ready < nodes)
		ret->why = why_no_gang(&list, n_ready, offers, n, requirements);
	else
		for (unsigned i = 0; i < nodes; i++)
			*vec_push(&ret->hosts) = list.v[i].index;
	vec_sort(&ret->hosts, by_writing);
	ret->is_ready = ret->hosts.n > 0 && n_ready >= nodes;
	if (ret->hosts.n == 1)
		ret->why = why_one(&list.v[0], offers, n);
	else if (ret->hosts.n > 1)
		ret->why = why_gang(&list, requirements);
	vec_done(&list);
}

void node_choice_done(struct node_choice *choice)
{
	if (!choice)
		return;
	vec_done(&choice->hosts);
	free(choice->why);
	*choice = (struct node_choice){0};
}

size_t node_member_host(int index, int parallel, size_t n)
{
	return (size_t)(index % parallel) % n;
}

int node_member_slots(size_t host, int parallel, size_t n)
{
	size_t slots = (size_t)parallel;

	return (int)(slots / n + (host < slots % n));
}
