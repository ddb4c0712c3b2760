/* SPDX-License-Identifier: Apache-2.0 */
#include "snap/tree/refuse.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/str.h"
#include "snap/ignore/wildmatch.h"

enum { HINT_MAX = 16 * 1024 };

/* The rule that matches path and nothing else; false if a line cannot hold it. */
static bool add_rule(struct buf *out, const char *path)
{
	size_t len = strlen(path);
	const char *slash = strchr(path, '/');

	if (strchr(path, '\n') || path[len - 1] == '\r')
		return false;
	/* Without a slash inside, a rule would match at any depth. */
	if (!slash || !slash[1])
		buf_addc(out, '/');
	for (const char *at = path; *at; at++) {
		bool first = at == path && slash && slash[1] && (*at == '!' || *at == '#');
		bool last_blank = *at == ' ' && !at[1];
		if (wild_is_special(*at) || first || last_blank)
			buf_addc(out, '\\');
		buf_addc(out, *at);
	}
	return true;
}

static void add_file_name(struct buf *out, const char *root, const char *shell_dir)
{
	struct stat here, there;
	bool is_here = stat(shell_dir ? shell_dir : ".", &here) == 0 && stat(root, &there) == 0 &&
		       here.st_dev == there.st_dev && here.st_ino == there.st_ino;
	AUTO_FREE char *file = fs_join(is_here ? "" : root, ".dlrunignore");

	str_shell_quote(out, file);
}

void hint_ignore(struct err *err, const char *root, const char *shell_dir, const char *const *paths,
	size_t n)
{
	AUTO_BUF struct buf rules = buf_with(HINT_MAX), rule = buf_with(HINT_MAX),
			    line = buf_with(HINT_MAX);
	bool plain = n == 1;

	for (size_t i = 0; i < n; i++) {
		buf_reset(&rule);
		if (!add_rule(&rule, paths[i]))
			return;
		/* echo may take a backslash for an escape. */
		plain &= !strchr(rule.data, '\\');
		buf_addc(&rules, ' ');
		str_shell_quote(&rules, rule.data);
	}
	buf_adds(&line, plain ? "echo" : "printf '%s\\n'");
	buf_adds(&line, rules.data);
	buf_adds(&line, " >> ");
	add_file_name(&line, root, shell_dir);
	if (!rules.full && !rule.full && !line.full)
		err_hint(err, "%s", line.data);
}

enum { COUNT_TEXT_SIZE = 32 };

/* A directory with the sums of all below it. */
struct node {
	const struct walk_dir *dir;
	size_t parent;
	size_t children; /* position of the first; the others follow */
	uint64_t bytes, files;
};

struct heap {
	const struct walk *walk;
	bool by_count;                    /* what is too much are files, not bytes */
	struct VEC_OF(struct node) nodes; /* parents first */
	/* Files that were named already. */
	const struct path *files[ERR_EVIDENCE_MAX];
	size_t n_files;
};

/* A large item: a directory, or a file in it. */
struct pick {
	size_t node;
	const struct path *file; /* NULL: the directory itself */
};

/* "250,000" */
static const char *count_text(uint64_t n, char out[static COUNT_TEXT_SIZE])
{
	char digits[COUNT_TEXT_SIZE];
	size_t len = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, n);
	char *end = out;

	for (size_t i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			*end++ = ',';
		*end++ = digits[i];
	}
	*end = '\0';
	return out;
}

static bool refuse_is_allowed(
	const struct walk *walk, const struct walk_dir *dir, const struct path *file)
{
	return pathset_enter(&walk->allow, dir->allow, file->path).covered;
}

static uint64_t weight_of(const struct heap *heap, const struct node *node)
{
	return heap->by_count ? node->files : node->bytes;
}

static void refuse_add_own(struct heap *heap, size_t at)
{
	const struct walk_dir *dir = heap->nodes.v[at].dir;

	for (size_t i = 0; i < dir->n_files; i++) {
		if (refuse_is_allowed(heap->walk, dir, &dir->files[i]))
			continue;
		heap->nodes.v[at].bytes += dir->files[i].size;
		heap->nodes.v[at].files++;
	}
}

static void heap_init(struct heap *heap, const struct walk *walk, bool by_count)
{
	*heap = (struct heap){.walk = walk, .by_count = by_count};
	vec_push(&heap->nodes)->dir = walk->root;
	for (size_t at = 0; at < heap->nodes.n; at++) {
		const struct walk_dir *dir = heap->nodes.v[at].dir;
		heap->nodes.v[at].children = heap->nodes.n;
		for (size_t i = 0; i < dir->n_dirs; i++) {
			struct node *child = vec_push(&heap->nodes);
			child->dir = dir->dirs[i];
			child->parent = at;
		}
		refuse_add_own(heap, at);
	}
	for (size_t at = heap->nodes.n; at-- > 1;) {
		const struct node *node = &heap->nodes.v[at];
		heap->nodes.v[node->parent].bytes += node->bytes;
		heap->nodes.v[node->parent].files += node->files;
	}
}

static bool refuse_is_named(const struct heap *heap, const struct path *file)
{
	for (size_t i = 0; i < heap->n_files; i++)
		if (heap->files[i] == file)
			return true;
	return false;
}

static const struct path *largest_file(const struct heap *heap, const struct node *node)
{
	const struct walk_dir *dir = node->dir;
	const struct path *best = NULL;

	for (size_t i = 0; i < dir->n_files; i++) {
		const struct path *file = &dir->files[i];
		if (best && file->size <= best->size)
			continue;
		if (!refuse_is_named(heap, file) && !refuse_is_allowed(heap->walk, dir, file))
			best = file;
	}
	return best;
}

/* Position of the largest child, 0 if there is none. */
static size_t largest_child(const struct heap *heap, const struct node *node)
{
	size_t best = 0;
	uint64_t most = 0;

	for (size_t i = 0; i < node->dir->n_dirs; i++) {
		size_t child = node->children + i;
		uint64_t weight = weight_of(heap, &heap->nodes.v[child]);
		if (weight > most) {
			most = weight;
			best = child;
		}
	}
	return best;
}

/* Pick the item that says most in one line: the deepest directory, or the file, that still holds
 * most of what its surroundings hold. */
static struct pick pick_largest(const struct heap *heap)
{
	struct pick pick = {0};

	for (;;) {
		const struct node *node = &heap->nodes.v[pick.node];
		const struct path *file = heap->by_count ? NULL : largest_file(heap, node);
		size_t child = largest_child(heap, node);
		uint64_t size = file ? file->size : 0;
		uint64_t weight = child ? weight_of(heap, &heap->nodes.v[child]) : 0;
		uint64_t most = size > weight ? size : weight;
		bool stays_here = pick.node ? most < weight_of(heap, node) / 5 * 4
					    : heap->by_count && most < node->files / 5;
		if (stays_here || most == 0)
			return pick;
		if (size > weight) {
			pick.file = file;
			return pick;
		}
		pick.node = child;
	}
}

static void take_away(struct heap *heap, struct pick pick)
{
	struct node *node = &heap->nodes.v[pick.node];
	uint64_t bytes = pick.file ? pick.file->size : node->bytes;
	uint64_t files = pick.file ? 1 : node->files;

	if (pick.file)
		heap->files[heap->n_files++] = pick.file;
	for (size_t at = pick.node;; at = heap->nodes.v[at].parent) {
		heap->nodes.v[at].bytes -= bytes;
		heap->nodes.v[at].files -= files;
		if (at == 0)
			return;
	}
}

/* hint: the first line, which names what to exclude, too. */
static void refuse_add_line(const struct heap *heap, struct pick pick, bool hint, struct err *err)
{
	const struct node *node = &heap->nodes.v[pick.node];
	const struct walk_dir *dir = node->dir;
	AUTO_FREE char *name = pick.file ? mem_strdup(pick.file->path)
					 : mem_printf("%s/", dir->len ? dir->path : ".");
	AUTO_FREE char *shown = str_shown(name);
	char size[16], count[COUNT_TEXT_SIZE];

	if (pick.file)
		err_evidence(err, "%s: %s", shown, str_size(pick.file->size, size));
	else
		err_evidence(err, "%s: %s in %s file%s", shown, str_size(node->bytes, size),
			count_text(node->files, count), node->files == 1 ? "" : "s");
	if (hint && pick.node == 0 && !pick.file)
		err_hint(err, "limit the snapshot to parts of the tree by paths: in dlrun.yaml");
	else if (hint)
		hint_ignore(err, heap->walk->options->root, heap->walk->options->shell_dir,
			(const char *const[]){name}, 1);
}

static void refuse_add_evidence(const struct walk *walk, bool by_count, struct err *err)
{
	struct heap heap;
	uint64_t enough = 0;

	heap_init(&heap, walk, by_count);
	for (int i = 0; i < ERR_EVIDENCE_MAX; i++) {
		struct pick pick = pick_largest(&heap);
		const struct node *node = &heap.nodes.v[pick.node];
		uint64_t weight = pick.file ? pick.file->size : weight_of(&heap, node);
		if (weight <= enough)
			break;
		/* Ignore items that account for less than 1 % of the first line. */
		if (i == 0)
			enough = weight / 100;
		refuse_add_line(&heap, pick, i == 0, err);
		/* The whole tree: what lies below is named with it. */
		if (pick.node == 0 && !pick.file)
			break;
		take_away(&heap, pick);
	}
	vec_done(&heap.nodes);
}

static int oversize_by_size(const void *a, const void *b)
{
	const struct path *const *x = a, *const *y = b;

	if ((*x)->size != (*y)->size)
		return (*x)->size > (*y)->size ? -1 : 1;
	return strcmp((*x)->path, (*y)->path);
}

/* Files that are over the limit for a single one. */
static int oversize_files(const struct walk *walk, struct err *err)
{
	uint64_t max = walk->options->limits.file_bytes;
	struct VEC_OF(const struct path *) large = {0};
	const char *shown[ERR_EVIDENCE_MAX];
	char size[16], limit[16];
	struct heap heap;
	size_t n = 0;

	heap_init(&heap, walk, false);
	vec_foreach (struct node, node, &heap.nodes)
		for (size_t i = 0; i < node->dir->n_files; i++) {
			const struct path *file = &node->dir->files[i];
			if (file->kind == ENTRY_FILE && file->size > max &&
				!refuse_is_allowed(walk, node->dir, file))
				*vec_push(&large) = file;
		}
	vec_done(&heap.nodes);
	vec_sort(&large, oversize_by_size);
	str_size(max, limit);
	int r = err_set(err, E_SNAPSHOT_LIMIT, "%zu files are over the limit of %s for a file",
		large.n, limit);
	for (; n < large.n && n < ERR_EVIDENCE_MAX; n++) {
		AUTO_FREE char *name = str_shown(large.v[n]->path);
		shown[n] = large.v[n]->path;
		str_size(large.v[n]->size, size);
		if (large.n == 1)
			r = err_set(err, E_SNAPSHOT_LIMIT,
				"%s has %s, over the limit of %s for a file", name, size, limit);
		else
			err_evidence(err, "%s: %s", name, size);
	}
	vec_done(&large);
	hint_ignore(err, walk->options->root, walk->options->shell_dir, shown, n);
	return r;
}

int oversize_refuse(const struct walk *walk, struct err *err)
{
	const struct paths_limits *limits = &walk->options->limits;
	const char *cut = walk->is_cut ? "more than " : "";
	char count[COUNT_TEXT_SIZE], limit[COUNT_TEXT_SIZE];
	int r;

	if (walk->over & WALK_OVER_TOTAL)
		r = err_set(err, E_SNAPSHOT_LIMIT,
			"the working tree has %s%s, over the limit of %s", cut,
			str_size(walk->bytes, count), str_size(limits->total_bytes, limit));
	else if (walk->over & WALK_OVER_FILES)
		r = err_set(err, E_SNAPSHOT_LIMIT,
			"the working tree has %s%s files, over the limit of %s", cut,
			count_text(walk->files, count), count_text(limits->files, limit));
	else if (walk->over & WALK_OVER_DIRS)
		r = err_set(err, E_SNAPSHOT_LIMIT, "the working tree has more than %s directories",
			count_text(WALK_DIRS_MAX, limit));
	else
		return oversize_files(walk, err);
	refuse_add_evidence(walk, !(walk->over & WALK_OVER_TOTAL), err);
	return r;
}

enum { CANDIDATES_MAX = 20000 };

/* The first position whose path is not before the text with the byte tail behind it. */
static size_t refuse_lower_bound(const struct path_list *list, const char *text, unsigned char tail)
{
	size_t len = strlen(text);

	return vec_bound(list, item, str_is_before(item->path, text, len, tail));
}

static bool has_match(const struct path_list *list, const char *entry)
{
	size_t at = refuse_lower_bound(list, entry, '\0'),
	       below = refuse_lower_bound(list, entry, '/');
	size_t len = strlen(entry);

	if (at < list->n && str_eq(list->v[at].path, entry))
		return true;
	return below < list->n && strncmp(list->v[below].path, entry, len) == 0 &&
	       list->v[below].path[len] == '/';
}

/* How far an entry leads into the tree. */
struct trace {
	const char *entry;
	size_t parent_len; /* of the directory that has no such member; with it all before exists */
	size_t len;        /* of the part that is missing or leads no further */
	bool missing;
	mode_t mode; /* of the part up to len, if it is there */
};

static void refuse_follow(const struct walk *walk, const char *entry, struct trace *ret)
{
	*ret = (struct trace){.entry = entry};
	for (;;) {
		struct stat st;
		ret->len += strcspn(entry + ret->len, "/");
		AUTO_FREE char *part = mem_strndup(entry, ret->len);
		ret->missing = fstatat(walk->root_fd, part, &st, AT_SYMLINK_NOFOLLOW) < 0;
		if (ret->missing)
			return;
		ret->mode = st.st_mode;
		if (!entry[ret->len] || !S_ISDIR(st.st_mode))
			return;
		ret->parent_len = ret->len++;
	}
}

/* The member of the directory whose name is nearest to the missing one, or NULL. */
static char *near_member(const struct walk *walk, const struct trace *trace)
{
	size_t skip = trace->parent_len ? trace->parent_len + 1 : 0;
	AUTO_FREE char *dir = skip ? mem_strndup(trace->entry, trace->parent_len) : mem_strdup(".");
	AUTO_FREE char *name = mem_strndup(trace->entry + skip, trace->len - skip);
	AUTO_STRV struct strv names = {0};
	int fd = fs_open_beneath(walk->root_fd, dir, O_RDONLY | O_DIRECTORY, 0);
	AUTO_DIR DIR *stream = fd < 0 ? NULL : fdopendir(fd);

	if (!stream) {
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	for (struct dirent *entry; (entry = readdir(stream)) && names.n < CANDIDATES_MAX;)
		if (entry->d_name[0] != '.' || name[0] == '.')
			strv_add(&names, entry->d_name);
	const char *near = str_suggest(name, (const char *const *)names.v, names.n);
	if (!near)
		return NULL;
	AUTO_FREE char *whole =
		mem_printf("%.*s%s%s", (int)skip, trace->entry, near, trace->entry + trace->len);
	struct stat st;
	if (fstatat(walk->root_fd, whole, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return TAKE(whole);
	return mem_printf("%.*s%s", (int)skip, trace->entry, near);
}

/* The first path with the name of the entry, somewhere else in the tree. */
static const char *refuse_same_name(const struct path_list *list, const char *entry)
{
	vec_foreach (const struct path, path, list)
		if (str_eq(fs_basename(path->path), fs_basename(entry)))
			return path->path;
	vec_foreach (const struct excluded, row, &list->excluded)
		if (str_eq(fs_basename(row->path), fs_basename(entry)))
			return row->path;
	return NULL;
}

/* A path that may have been meant, or NULL. */
static char *near_match(
	const struct walk *walk, const struct path_list *list, const struct trace *trace)
{
	char *member = near_member(walk, trace);

	return member ? member : mem_strdup(refuse_same_name(list, trace->entry));
}

static bool refuse_is_dropped(const struct path_list *list, const char *entry)
{
	vec_foreach (const struct excluded, row, &list->excluded) {
		size_t len = strlen(row->path);
		if (row->why != EXCLUDED_DLRUNIGNORE || strncmp(row->path, entry, len - 1) != 0)
			continue;
		bool is_dir = row->path[len - 1] == '/';
		bool same = is_dir ? !entry[len - 1] || entry[len - 1] == '/'
				   : str_eq(row->path, entry);
		if (same)
			return true;
	}
	return false;
}

static bool names_git(const char *entry)
{
	for (const char *at = entry; (at = strstr(at, ".git")); at += 4)
		if ((at == entry || at[-1] == '/') && (!at[4] || at[4] == '/'))
			return true;
	return false;
}

static const char *reason(
	const struct walk *walk, const struct path_list *list, const struct trace *trace)
{
	const char *rest = trace->entry + trace->len;

	if (walk->paths.paths.n && !pathset_covers(&walk->paths, trace->entry))
		return "lies outside of paths:";
	if (names_git(trace->entry))
		return "belongs to a repository itself and is never sent";
	if (refuse_is_dropped(list, trace->entry))
		return "is dropped by .dlrunignore";
	if (trace->missing)
		return "matches nothing";
	if (*rest)
		return S_ISLNK(trace->mode) ? "leads through a symbolic link"
					    : "leads through a file";
	if (S_ISDIR(trace->mode))
		return "holds no file for the snapshot";
	if (S_ISREG(trace->mode) || S_ISLNK(trace->mode))
		return "is ignored by git";
	return "is not a file or link";
}

static int tree_refuse(const struct walk *walk, const struct path_list *list, const char *entry,
	const char *what, struct err *err)
{
	AUTO_FREE char *shown = str_shown(entry);
	struct trace trace;

	refuse_follow(walk, entry, &trace);
	const char *why = reason(walk, list, &trace);
	int r = err_set(err, E_SNAPSHOT_INCLUDE, "%s: \"%s\" %s", what, shown, why);
	AUTO_FREE char *found =
		str_eq(why, "matches nothing") ? near_match(walk, list, &trace) : NULL;
	if (!found)
		return r;
	AUTO_BUF struct buf quoted = buf_with(4 * strlen(found) + 16);
	str_shell_quote(&quoted, found);
	if (str_eq(what, "include"))
		err_hint(err, "--include %s", quoted.data);
	else
		err_hint(err, "%s: [%s]", what, quoted.data);
	return r;
}

static int check_set(const struct walk *walk, const struct path_list *list,
	const struct pathset *set, const char *what, struct err *err)
{
	for (size_t i = 0; i < set->paths.n; i++)
		if (!has_match(list, set->paths.v[i]))
			return tree_refuse(walk, list, set->paths.v[i], what, err);
	return 0;
}

int unmatched_refuse(const struct walk *walk, const struct path_list *list, struct err *err)
{
	int r = check_set(walk, list, &walk->paths, "paths", err);

	return r < 0 ? r : check_set(walk, list, &walk->include, "include", err);
}

static void refuse_note(
	const struct walk *walk, const struct path_list *list, const char *entry, struct strv *ret)
{
	AUTO_FREE char *shown = str_shown(entry), *near = NULL, *near_shown = NULL;
	struct trace trace;

	refuse_follow(walk, entry, &trace);
	const char *why = reason(walk, list, &trace);
	if (trace.missing)
		near = near_match(walk, list, &trace);
	if (near)
		near_shown = str_shown(near);
	strv_addf(ret, "allow: \"%s\" %s%s%s%s", shown, why, near ? ", did you mean \"" : "",
		near ? near_shown : "", near ? "\"?" : "");
}

void unmatched_note(const struct walk *walk, const struct path_list *list, struct strv *ret)
{
	const struct pathset *allow = &walk->allow;

	for (size_t i = 0; i < allow->paths.n && ret->n < UNMATCHED_NOTES_MAX; i++) {
		const char *entry = allow->paths.v[i];
		bool outside = walk->paths.paths.n && !pathset_covers(&walk->paths, entry);
		if (!outside && !has_match(list, entry))
			refuse_note(walk, list, entry, ret);
	}
}
