/* SPDX-License-Identifier: Apache-2.0 */
#include "snap/ignore/ignore.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "snap/ignore/wildmatch.h"

static int ignore_refuse(const char *what, const char *path, const char *why, struct err *err)
{
	AUTO_FREE char *shown = str_shown(path);

	int r = err_set(err, E_SNAPSHOT_INCLUDE, "%s: \"%s\" %s", what, shown, why);
	err_hint(err, "name paths relative to the root of the working tree, like data/vocab.txt");
	return r;
}

/* *ret: without empty and "." components; empty for the whole tree. */
static int normalise(const char *path, const char *what, char **ret, struct err *err)
{
	AUTO_FREE char *normal = mem_alloc(strlen(path) + 1, 1);
	char *end = normal;

	if (!*path)
		return ignore_refuse(what, path, "is not a valid path", err);
	if (*path == '/')
		return ignore_refuse(what, path, "is an absolute path", err);
	for (const char *at = path; *at;) {
		size_t len = strcspn(at, "/");
		if (len == 2 && at[0] == '.' && at[1] == '.')
			return ignore_refuse(what, path, "may lead out of the tree by ..", err);
		if (len > 0 && !(len == 1 && *at == '.')) {
			if (end > normal)
				*end++ = '/';
			memcpy(end, at, len);
			end += len;
		}
		at += len + (at[len] == '/');
	}
	*end = '\0';
	*ret = TAKE(normal);
	return 0;
}

int pathset_init(struct pathset *set, const struct strv *paths, const char *what, struct err *err)
{
	*set = (struct pathset){0};
	for (size_t i = 0; paths && i < paths->n; i++) {
		AUTO_FREE char *path = NULL;
		int r = normalise(paths->v[i], what, &path, err);
		if (!path) {
			pathset_done(set);
			return r;
		}
		if (*path)
			strv_add_take(&set->paths, TAKE(path));
		else
			set->all = true;
	}
	strv_sort(&set->paths);
	size_t kept = 0;
	for (size_t i = 0; i < set->paths.n; i++) {
		if (kept && str_eq(set->paths.v[kept - 1], set->paths.v[i]))
			free(set->paths.v[i]);
		else
			set->paths.v[kept++] = set->paths.v[i];
	}
	if (set->paths.n)
		set->paths.v[kept] = NULL;
	set->paths.n = kept;
	return 0;
}

void pathset_done(struct pathset *set)
{
	if (!set)
		return;
	strv_done(&set->paths);
	set->all = false;
}

/* The first position whose path is not before the len bytes at path with the byte tail behind. */
static size_t ignore_lower_bound(
	const struct pathset *set, const char *path, size_t len, unsigned char tail)
{
	return vec_bound(&set->paths, other, str_is_before(*other, path, len, tail));
}

static bool ignore_has(const struct pathset *set, const char *path, size_t len)
{
	size_t at = ignore_lower_bound(set, path, len, '\0');

	return at < set->paths.n && strncmp(set->paths.v[at], path, len) == 0 &&
	       set->paths.v[at][len] == '\0';
}

static bool has_below(const struct pathset *set, const char *dir)
{
	size_t len = strlen(dir), at = ignore_lower_bound(set, dir, len, '/');

	return at < set->paths.n && strncmp(set->paths.v[at], dir, len) == 0 &&
	       set->paths.v[at][len] == '/';
}

bool pathset_covers(const struct pathset *set, const char *path)
{
	if (set->all)
		return true;
	for (size_t len = strcspn(path, "/"); set->paths.n;
		len += 1 + strcspn(path + len + 1, "/")) {
		if (ignore_has(set, path, len))
			return true;
		if (!path[len])
			return false;
	}
	return false;
}

struct pathset_reach pathset_at_root(const struct pathset *set)
{
	return (struct pathset_reach){.covered = set->all, .below = !set->all && set->paths.n};
}

struct pathset_reach pathset_enter(
	const struct pathset *set, struct pathset_reach reach, const char *path)
{
	if (!reach.below)
		return reach;
	if (ignore_has(set, path, strlen(path)))
		return (struct pathset_reach){.covered = true};
	return (struct pathset_reach){.below = has_below(set, path)};
}

enum rule_kind {
	RULE_NAME,      /* the name is text */
	RULE_SUFFIX,    /* the name ends in text */
	RULE_NAME_WILD, /* the name matches wild */
	RULE_PATH,      /* the path below the directory of the file is text */
	RULE_PATH_WILD, /* it begins with text, and the rest of it matches wild */
};

struct rule {
	const char *text;
	uint32_t len;
	uint8_t kind;
	bool negated, dir_only;
	struct wild *wild;
};

struct name_rule {
	const char *text;
	uint32_t len;
	uint32_t rule; /* position in rules */
};

struct ignore {
	const struct ignore *next;
	bool fold;
	char *text; /* of the file; rules point into it */
	char *dir;
	size_t dir_len;
	struct VEC_OF(struct rule) rules;
	/* Most rules of an ordinary file are plain names: sorted by text, they are found without
	 * testing each. The positions of all the others stay in order. */
	struct VEC_OF(struct name_rule) names;
	struct VEC_OF(uint32_t) others;
};

/* The path to check. */
struct question {
	const char *path, *name;
	size_t path_len, name_len;
	bool is_dir;
};

static int compare_bytes(const char *a, const char *b, size_t len, bool fold)
{
	if (!fold)
		return memcmp(a, b, len);
	for (size_t i = 0; i < len; i++) {
		int d = wild_fold((unsigned char)a[i]) - wild_fold((unsigned char)b[i]);
		if (d)
			return d;
	}
	return 0;
}

static bool same(const char *a, const char *b, size_t len, bool fold)
{
	return compare_bytes(a, b, len, fold) == 0;
}

static int compare_text(const char *a, size_t a_len, const char *b, size_t b_len, bool fold)
{
	int d = compare_bytes(a, b, a_len < b_len ? a_len : b_len, fold);

	return d ? d : (a_len > b_len) - (a_len < b_len);
}

static int compare_names(const struct name_rule *a, const struct name_rule *b, bool fold)
{
	int d = compare_text(a->text, a->len, b->text, b->len, fold);

	return d ? d : (a->rule > b->rule) - (a->rule < b->rule);
}

static int ignore_by_name(const void *a, const void *b)
{
	return compare_names(a, b, false);
}

static int by_folded_name(const void *a, const void *b)
{
	return compare_names(a, b, true);
}

/* The length without trailing blanks, unless a backslash protects them. */
static size_t trimmed_len(const char *line, size_t len)
{
	size_t kept = 0;

	for (size_t i = 0; i < len; i++) {
		bool blank = line[i] == ' ';
		if (line[i] == '\\' && i + 1 < len)
			i++;
		if (!blank)
			kept = i + 1;
	}
	return kept;
}

static size_t literal_len(const char *pattern, size_t len)
{
	size_t i = 0;

	while (i < len && !wild_is_special(pattern[i]))
		i++;
	return i;
}

static void set_name_rule(struct rule *rule, bool fold)
{
	size_t literal = literal_len(rule->text, rule->len);

	if (literal == rule->len) {
		rule->kind = RULE_NAME;
		return;
	}
	bool suffix =
		rule->text[0] == '*' && literal_len(rule->text + 1, rule->len - 1) == rule->len - 1;
	if (suffix) {
		rule->kind = RULE_SUFFIX;
		rule->text++;
		rule->len--;
		return;
	}
	rule->kind = RULE_NAME_WILD;
	rule->wild = wild_compile(rule->text, rule->len, false, fold);
}

/* The part before the first wildcard is compared apart and cut off, and with it what stands before
 * a `**`: so git, unlike its manual, lets `a**` + `/b` cross slashes, and so do we. */
static void set_path_rule(struct rule *rule, bool fold)
{
	if (rule->text[0] == '/') {
		rule->text++;
		rule->len--;
	}
	size_t literal = literal_len(rule->text, rule->len);
	rule->kind = RULE_PATH;
	if (literal == rule->len)
		return;
	rule->kind = RULE_PATH_WILD;
	rule->wild = wild_compile(rule->text + literal, rule->len - literal, true, fold);
	rule->len = (uint32_t)literal;
}

static void ignore_add_pattern(struct ignore *ignore, const char *pattern, size_t len)
{
	struct rule rule = {.text = pattern, .len = (uint32_t)len};

	if (rule.len && *rule.text == '!') {
		rule.negated = true;
		rule.text++;
		rule.len--;
	}
	if (rule.len && rule.text[rule.len - 1] == '/') {
		rule.dir_only = true;
		rule.len--;
	}
	if (rule.len == 0)
		return;
	if (memchr(rule.text, '/', rule.len))
		set_path_rule(&rule, ignore->fold);
	else
		set_name_rule(&rule, ignore->fold);

	uint32_t at = (uint32_t)ignore->rules.n;
	*vec_push(&ignore->rules) = rule;
	if (rule.kind == RULE_NAME)
		*vec_push(&ignore->names) = (struct name_rule){rule.text, rule.len, at};
	else
		*vec_push(&ignore->others) = at;
}

static void ignore_add_line(struct ignore *ignore, const char *line, size_t len)
{
	if (len == 0 || *line == '#')
		return;
	if (line[len - 1] == '\r')
		len--;
	/* git reads the line as a C string, which ends at a NUL. */
	len = strnlen(line, len);
	ignore_add_pattern(ignore, line, trimmed_len(line, len));
}

static void add_lines(struct ignore *ignore, const char *text, size_t len)
{
	static const char bom[] = {'\xef', '\xbb', '\xbf'};
	const char *end = text + len;

	if (len >= sizeof(bom) && memcmp(text, bom, sizeof(bom)) == 0)
		text += sizeof(bom);
	while (text < end) {
		const char *line_end = memchr(text, '\n', (size_t)(end - text));
		if (!line_end)
			line_end = end;
		ignore_add_line(ignore, text, (size_t)(line_end - text));
		text = line_end + 1;
	}
}

struct ignore *ignore_parse(
	const char *text, size_t len, const char *dir, bool ignore_case, const struct ignore *next)
{
	struct ignore *ignore = mem_alloc(1, sizeof(*ignore));

	ignore->next = next;
	ignore->fold = ignore_case;
	ignore->text = mem_dup(text, len);
	ignore->dir = mem_strdup(dir);
	ignore->dir_len = strlen(dir);
	add_lines(ignore, ignore->text, len);
	vec_sort(&ignore->names, ignore->fold ? by_folded_name : ignore_by_name);
	return ignore;
}

void ignore_free(struct ignore *ignore)
{
	if (!ignore)
		return;
	vec_foreach (struct rule, rule, &ignore->rules)
		wild_free(rule->wild);
	vec_done(&ignore->rules);
	vec_done(&ignore->names);
	vec_done(&ignore->others);
	free(ignore->text);
	free(ignore->dir);
	free(ignore);
}

/* The number of plain names before or at this one. */
static size_t names_up_to(const struct ignore *ignore, const char *name, size_t len)
{
	return vec_bound(&ignore->names, rule,
		compare_text(rule->text, rule->len, name, len, ignore->fold) <= 0);
}

/* The last rule that is exactly this name, or NULL. */
static const struct rule *ignore_find_name(const struct ignore *ignore, const struct question *q)
{
	for (size_t i = names_up_to(ignore, q->name, q->name_len); i-- > 0;) {
		const struct name_rule *name = &ignore->names.v[i];
		const struct rule *rule = &ignore->rules.v[name->rule];
		if (name->len != q->name_len || !same(name->text, q->name, name->len, ignore->fold))
			return NULL;
		if (q->is_dir || !rule->dir_only)
			return rule;
	}
	return NULL;
}

static bool path_begins(const struct rule *rule, const char *path, size_t len, bool fold)
{
	return len >= rule->len && same(rule->text, path, rule->len, fold);
}

static bool rule_matches(const struct ignore *ignore, const struct rule *rule, const char *path,
	const struct question *q)
{
	size_t path_len = q->path_len - (size_t)(path - q->path);

	if (rule->dir_only && !q->is_dir)
		return false;
	switch (rule->kind) {
	case RULE_SUFFIX:
		return q->name_len >= rule->len &&
		       same(rule->text, q->name + q->name_len - rule->len, rule->len, ignore->fold);
	case RULE_NAME_WILD:
		return wild_match(rule->wild, q->name, q->name_len);
	case RULE_PATH:
		return path_len == rule->len && path_begins(rule, path, path_len, ignore->fold);
	case RULE_PATH_WILD:
		return path_begins(rule, path, path_len, ignore->fold) &&
		       wild_match(rule->wild, path + rule->len, path_len - rule->len);
	default:
		return false;
	}
}

/* The path as seen from the directory of the file, or NULL if it does not lie below it. */
static const char *ignore_path_below(const struct ignore *ignore, const char *path)
{
	if (ignore->dir_len == 0)
		return path;
	if (strncmp(path, ignore->dir, ignore->dir_len) != 0 || path[ignore->dir_len] != '/')
		return NULL;
	return path + ignore->dir_len + 1;
}

static const struct rule *ignore_find_rule(const struct ignore *ignore, const struct question *q)
{
	const char *path = ignore_path_below(ignore, q->path);

	if (!path)
		return NULL;
	const struct rule *best = ignore_find_name(ignore, q);
	for (size_t i = ignore->others.n; i-- > 0;) {
		const struct rule *rule = &ignore->rules.v[ignore->others.v[i]];
		if (best && rule < best)
			return best;
		if (rule_matches(ignore, rule, path, q))
			return rule;
	}
	return best;
}

enum ignore_decision ignore_check(const struct ignore *chain, const char *path, bool is_dir)
{
	if (!chain)
		return IGNORE_NO_MATCH;
	struct question q = {.path = path,
		.path_len = strlen(path),
		.name = fs_basename(path),
		.is_dir = is_dir};

	q.name_len = q.path_len - (size_t)(q.name - path);
	for (; chain; chain = chain->next) {
		const struct rule *rule = ignore_find_rule(chain, &q);
		if (rule)
			return rule->negated ? IGNORE_NEGATED : IGNORE_MATCH;
	}
	return IGNORE_NO_MATCH;
}
