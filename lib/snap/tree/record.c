/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "snap/git/gitdir.h"
#include "snap/git/gitindex.h"
#include "snap/git/gitodb.h"
#include "snap/tree/private.h"
#include "snap/tree/record.h"

struct writing {
	const struct record_request *request;
	struct snapshot *snapshot;
	const struct repo *repo;
	struct gitodb *db;
	struct gittree_item *items; /* one for each entry */
	struct gittree tree;
	struct VEC_OF(size_t) dirs;  /* of tree, not in the repository yet */
	struct VEC_OF(size_t) blobs; /* of items, the same */
	uint64_t bytes;              /* of blobs */
};

static void writing_done(struct writing *writing)
{
	gitodb_free(writing->db);
	gittree_done(&writing->tree);
	free(writing->items);
	vec_done(&writing->dirs);
	vec_done(&writing->blobs);
}

static void set_items(struct writing *writing)
{
	struct snapshot *s = writing->snapshot;

	writing->items = mem_alloc(s->entries.n + 1, sizeof(*writing->items));
	for (size_t i = 0; i < s->entries.n; i++) {
		const struct path *path = &s->paths.v[i];
		uint32_t mode = gitstate_mode(path);
		/* Without core.fileMode the exec bits on disk mean nothing. */
		if (!writing->repo->facts.file_mode && mode == TRACKED_MODE_EXEC)
			mode = path->tracked && path->tracked->mode == TRACKED_MODE_EXEC
				       ? TRACKED_MODE_EXEC
				       : TRACKED_MODE_FILE;
		writing->items[i] = (struct gittree_item){
			.path = path->path, .oid = s->private->git_ids[i], .mode = mode};
	}
	gittree_init(&writing->tree, writing->items, s->entries.n);
}

/* A blob that the index names exists. The empty one is an exception: intent-to-add names it,
 * too. */
static bool is_known_blob(struct writing *writing, size_t i)
{
	const struct path *path = &writing->snapshot->paths.v[i];
	const struct tracked_path *t = path->tracked;
	const uint8_t *oid = writing->items[i].oid;

	if (t && path->size > 0 &&
		gitstate_repo(writing->snapshot, t, writing->repo) == writing->repo &&
		memcmp(t->oid, oid, SHA1_SIZE) == 0)
		return true;
	return gitodb_has(writing->db, oid);
}

/* A tree that exists has all that is below it, so only new ones are descended into. */
static void find_new(struct writing *writing)
{
	const struct gittree *tree = &writing->tree;

	for (size_t d = 0; d < tree->n;) {
		struct gittree_walk walk = {0};
		size_t item, sub;

		if (gitodb_has(writing->db, tree->v[d].oid)) {
			d = tree->v[d].next;
			continue;
		}
		*vec_push(&writing->dirs) = d;
		while (gittree_next(tree, d, &walk, &item, &sub)) {
			if (item == SIZE_MAX || is_known_blob(writing, item))
				continue;
			*vec_push(&writing->blobs) = item;
			writing->bytes += writing->snapshot->entries.v[item].size;
		}
		d++;
	}
}

/* NULL if the new blobs are within the limits, else the sentence that says which is not. */
static char *check_limits(const struct writing *writing)
{
	char size[16], max[16];

	for (size_t k = 0; k < writing->blobs.n; k++) {
		const struct entry *entry = &writing->snapshot->entries.v[writing->blobs.v[k]];
		if (entry->size <= RECORD_BLOB_MAX)
			continue;
		AUTO_FREE char *shown = str_escaped(entry->path);
		return mem_printf("'%s' has %s, and no file over %s is put into the repository",
			shown, str_size(entry->size, size), str_size(RECORD_BLOB_MAX, max));
	}
	if (writing->bytes <= RECORD_TOTAL_MAX)
		return NULL;
	return mem_printf(
		"the changed files have %s, and not more than %s are put into the repository",
		str_size(writing->bytes, size), str_size(RECORD_TOTAL_MAX, max));
}

static int record_fail_changed(const struct entry *entry, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(entry->path);

	return err_set(err, E_IO_CHANGED, "'%s' changed before it was recorded", shown);
}

static int read_blob(
	struct writing *writing, const struct entry *entry, struct buf *buf, struct err *err)
{
	struct entry_opener opener = snapshot_opener(writing->snapshot);
	AUTO_FD int fd = -1;

	buf_reset(buf);
	if (entry->kind == ENTRY_LINK) {
		buf_adds(buf, entry->target);
		return 0;
	}
	int rc = opener.open(opener.ctx, entry, &fd, err);
	if (rc < 0)
		return rc;
	return fs_read_fd(fd, entry->path, RECORD_BLOB_MAX, buf, err);
}

static int add_blobs(struct writing *writing, struct err *err)
{
	AUTO_BUF struct buf buf = buf_with(RECORD_BLOB_MAX);
	uint8_t oid[SHA1_SIZE], expected[SHA1_SIZE];

	for (size_t k = 0; k < writing->blobs.n; k++) {
		size_t i = writing->blobs.v[k];
		const struct entry *entry = &writing->snapshot->entries.v[i];

		int rc = read_blob(writing, entry, &buf, err);
		if (rc < 0)
			return rc;
		gittree_object_id("blob", buf.data, buf.len, expected);
		if (memcmp(expected, writing->items[i].oid, SHA1_SIZE) != 0)
			return record_fail_changed(entry, err);
		rc = gitodb_add(writing->db, GITODB_BLOB, buf.data, buf.len, oid, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int add_trees(struct writing *writing, struct err *err)
{
	uint8_t oid[SHA1_SIZE];

	for (size_t k = writing->dirs.n; k-- > 0;) {
		const struct buf *object = gittree_object(&writing->tree, writing->dirs.v[k]);
		int rc = gitodb_add(writing->db, GITODB_TREE, object->data, object->len, oid, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Part of a name as git takes it: no angle brackets, no control characters, no blanks around. */
static void add_person(struct buf *out, const char *text)
{
	size_t start = out->len;

	for (; text && *text; text++)
		if ((unsigned char)*text > ' ' || (*text == ' ' && out->len > start))
			if (*text != '<' && *text != '>' && *text != 0x7f)
				buf_addc(out, *text);
	while (out->len > start && out->data[out->len - 1] == ' ')
		buf_truncate(out, out->len - 1);
	if (out->len == start)
		buf_adds(out, "dlrun");
}

static void add_signature(struct buf *out, const char *role, const struct writing *writing)
{
	buf_addf(out, "%s ", role);
	add_person(out, writing->repo->facts.user_name);
	buf_adds(out, " <");
	add_person(out, writing->repo->facts.user_email);
	buf_addf(out, "> %" PRId64 " +0000\n", writing->request->wall_ms / 1000);
}

static int add_commit(struct writing *writing, uint8_t ret[static SHA1_SIZE], struct err *err)
{
	enum { COMMIT_MAX = 4 << 20 };
	const char *message = writing->request->message;
	const char *parent = writing->repo->facts.commit;
	char hex[2 * SHA1_SIZE + 1];
	AUTO_BUF struct buf text = buf_with(COMMIT_MAX);

	hex_encode(writing->tree.v[0].oid, SHA1_SIZE, hex);
	buf_addf(&text, "tree %s\n", hex);
	if (parent)
		buf_addf(&text, "parent %s\n", parent);
	add_signature(&text, "author", writing);
	add_signature(&text, "committer", writing);
	buf_addf(&text, "\n%s%s", message, str_ends(message, "\n") ? "" : "\n");
	int rc = buf_check(&text, "the message of the commit", err);
	if (rc < 0)
		return rc;
	return gitodb_add(writing->db, GITODB_COMMIT, text.data, text.len, ret, err);
}

static int record_add_all(struct writing *writing, struct record *ret, struct err *err)
{
	size_t n_objects = writing->blobs.n + writing->dirs.n + 1;
	uint8_t commit[SHA1_SIZE];
	char hex[2 * SHA1_SIZE + 1];

	int rc = gitodb_begin(writing->db, n_objects > RECORD_PACK_ABOVE, err);
	if (rc == 0)
		rc = add_blobs(writing, err);
	if (rc == 0)
		rc = add_trees(writing, err);
	if (rc == 0)
		rc = add_commit(writing, commit, err);
	if (rc == 0)
		rc = gitodb_publish(writing->db, ret->ref, commit, err);
	if (rc < 0)
		return rc;
	hex_encode(commit, SHA1_SIZE, hex);
	ret->commit = mem_strdup(hex);
	return 0;
}

/* NULL when a record can be tried, else why not. */
static char *record_refuse(const struct writing *writing)
{
	const struct repo *repo = writing->repo;

	if (!repo)
		return mem_strdup("the tree is not in a git repository");
	if (repo->oid_size != SHA1_SIZE)
		return mem_strdup("the repository uses SHA-256, which libgit2 cannot write");
	if (!repo->has_objects)
		return mem_printf("the repository cannot be written to: %s", repo->why);
	return NULL;
}

/* A sentence why there is no record, or NULL. */
static char *record_write_record(struct writing *writing, struct record *ret)
{
	AUTO_ERR struct err err = {0};
	char *why = record_refuse(writing);

	if (why)
		return why;
	gitodb_sweep(writing->repo->common_dir);
	if (gitodb_open(writing->repo->common_dir, &writing->db, &err) < 0)
		return TAKE(err.message);
	set_items(writing);
	find_new(writing);
	why = check_limits(writing);
	if (why)
		return why;
	return record_add_all(writing, ret, &err) < 0 ? TAKE(err.message) : NULL;
}

static char *ref_of(const char *run_id)
{
	return mem_printf("refs/dlrun/%s", run_id);
}

void record_write(const struct record_request *request, struct record *ret)
{
	struct writing writing = {.request = request, .snapshot = request->snapshot};

	writing.repo = repos_at(&request->snapshot->private->repos, "");
	*ret = (struct record){.ref = ref_of(request->run_id)};
	ret->why = record_write_record(&writing, ret);
	writing_done(&writing);
	if (ret->why)
		log_note("no git record of %s: %s", request->run_id, ret->why);
}

void record_done(struct record *record)
{
	if (!record)
		return;
	free(record->ref);
	free(record->commit);
	free(record->why);
	*record = (struct record){0};
}

void record_sweep(const char *root)
{
	AUTO_FREE char *git_dir = NULL;

	if (gitdir_at(root, &git_dir) != GITDIR_FOUND)
		return;
	AUTO_FREE char *common_dir = gitdir_common(git_dir);
	gitodb_sweep(common_dir);
}

int record_remove(const char *root, const char *run_id, const char *commit, struct err *err)
{
	AUTO_FREE char *ref = ref_of(run_id);
	AUTO_FREE char *git_dir = NULL;

	if (gitdir_at(root, &git_dir) != GITDIR_FOUND)
		return 0;
	AUTO_FREE char *common_dir = gitdir_common(git_dir);
	gitodb_sweep(common_dir);
	return gitodb_remove_ref(git_dir, common_dir, ref, commit, err);
}
