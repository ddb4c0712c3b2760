/* SPDX-License-Identifier: Apache-2.0 */
#include <git2/sys/odb_backend.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "snap/git/gitodb.h"
#include "snap/git/libgit2.h"

static void free_packbuilder(git_packbuilder **packbuilder)
{
	if (*packbuilder)
		git_packbuilder_free(*packbuilder);
}

static const char temp_prefix[] = "tmp_objdir-dlrun-", dead_suffix[] = ".dead",
		  lock_name[] = "lock", ref_name[] = "ref";

enum { LOOSE_LEVEL = 1, REF_MAX = 4096, PACKED_REFS_MAX = 256 << 20 };

struct gitodb {
	char *common_dir, *objects_dir;
	git_odb *odb;    /* of the repository */
	git_odb *staged; /* the loose objects in temp_dir */
	char *temp_dir;  /* NULL before gitodb_begin */
	int lock_fd;
	bool pack;
	struct VEC_OF(git_oid) added;
};

static int fail_library(struct err *err, const char *what)
{
	AUTO_FREE char *shown = libgit2_message();

	return err_set(err, E_SNAPSHOT_REPO, "%s: %s", what, shown);
}

int gitodb_open(const char *common_dir, struct gitodb **ret, struct err *err)
{
	AUTO_GITODB struct gitodb *db = mem_alloc(1, sizeof(*db));

	db->lock_fd = -1;
	int r = libgit2_load(err);
	if (r < 0)
		return r;
	db->common_dir = mem_strdup(common_dir);
	db->objects_dir = fs_join(common_dir, "objects");
	if (git_odb_open(&db->odb, db->objects_dir))
		return fail_library(err, "opening the objects of the repository");
	*ret = TAKE(db);
	return 0;
}

static void remove_temp(const char *objects_dir, const char *temp_dir)
{
	AUTO_FD int fd = open(objects_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	AUTO_ERR struct err err = {0};

	if (fd >= 0 && fs_remove_tree(fd, strrchr(temp_dir, '/') + 1, &err) < 0)
		log_note("%s", err.message);
}

void gitodb_free(struct gitodb *db)
{
	if (!db)
		return;
	if (db->staged)
		git_odb_free(db->staged);
	if (db->odb)
		git_odb_free(db->odb);
	if (db->temp_dir)
		remove_temp(db->objects_dir, db->temp_dir);
	if (db->lock_fd >= 0)
		close(db->lock_fd);
	free(db->common_dir);
	free(db->objects_dir);
	free(db->temp_dir);
	vec_done(&db->added);
	free(db);
}

static git_oid to_oid(const uint8_t oid[static SHA1_SIZE])
{
	git_oid ret = {0};

	memcpy(ret.id, oid, SHA1_SIZE);
	return ret;
}

bool gitodb_has(struct gitodb *db, const uint8_t oid[static SHA1_SIZE])
{
	git_oid id = to_oid(oid);

	/* A miss is the rule here: do not look for new packs each time. */
	return git_odb_exists_ext(db->odb, &id, GIT_ODB_LOOKUP_NO_REFRESH);
}

/*
 * The directory of our own
 */

/* A process that sweeps may take a new directory for a dead one before it is locked: then retry. */
static int make_temp_dir(struct gitodb *db, struct err *err)
{
	enum { TRIES = 10 };

	for (int i = 0; i < TRIES; i++) {
		AUTO_FREE char *dir = mem_printf("%s/%sXXXXXX", db->objects_dir, temp_prefix);
		if (!mkdtemp(dir))
			return fs_error(err, errno, "%s", db->objects_dir);
		AUTO_FREE char *lock = fs_join(dir, lock_name);
		if (fs_lock(lock, true, -1, &db->lock_fd, NULL) == 0) {
			db->temp_dir = TAKE(dir);
			return 0;
		}
		rmdir(dir);
	}
	return err_set(err, E_IO, "no directory can be made in %s", db->objects_dir);
}

int gitodb_begin(struct gitodb *db, bool pack, struct err *err)
{
	git_odb_backend *backend;

	db->pack = pack;
	int rc = make_temp_dir(db, err);
	if (rc < 0)
		return rc;
	if (git_odb_new(&db->staged))
		return fail_library(err, "staging objects");
	/* Level 0 for objects to be packed would be faster, but libgit2 1.5 cannot read them
	 * again. */
	if (git_odb_backend_loose(&backend, db->temp_dir, LOOSE_LEVEL, 0, 0, 0))
		return fail_library(err, "staging objects");
	if (git_odb_add_backend(db->staged, backend, 1)) {
		backend->free(backend);
		return fail_library(err, "staging objects");
	}
	return 0;
}

int gitodb_add(struct gitodb *db, enum gitodb_type type, const void *data, size_t len,
	uint8_t ret_oid[static SHA1_SIZE], struct err *err)
{
	static const git_object_t types[] = {
		[GITODB_BLOB] = GIT_OBJECT_BLOB,
		[GITODB_TREE] = GIT_OBJECT_TREE,
		[GITODB_COMMIT] = GIT_OBJECT_COMMIT,
	};
	git_oid oid;

	if (git_odb_write(&oid, db->staged, data, len, types[type]))
		return fail_library(err, "writing an object");
	*vec_push(&db->added) = oid;
	memcpy(ret_oid, oid.id, SHA1_SIZE);
	return 0;
}

/*
 * Moving in place
 */

/* Keep the permissions of a repository that a group shares. */
static void copy_mode(const char *from, const char *to)
{
	struct stat st;

	if (stat(from, &st) == 0 && st.st_mode & S_IWGRP)
		chmod(to, st.st_mode & 07777);
}

static int gitodb_make_dir(const char *parent, const char *dir, struct err *err)
{
	if (mkdir(dir, 0777) == 0) {
		copy_mode(parent, dir);
		return 0;
	}
	return errno == EEXIST ? 0 : fs_error(err, errno, "%s", dir);
}

static int gitodb_move(const char *from, const char *to, struct err *err)
{
	/* An object that is there already is the same one. */
	if (access(to, F_OK) == 0)
		return 0;
	return rename(from, to) ? fs_error(err, errno, "%s", to) : 0;
}

static int publish_loose(struct gitodb *db, struct err *err)
{
	vec_foreach (git_oid, oid, &db->added) {
		char name[GIT_OID_HEXSZ + 2];

		git_oid_pathfmt(name, oid);
		name[sizeof(name) - 1] = '\0';
		AUTO_FREE char *from = fs_join(db->temp_dir, name);
		AUTO_FREE char *to = fs_join(db->objects_dir, name);
		AUTO_FREE char *dir = mem_printf("%s/%.2s", db->objects_dir, name);
		int rc = gitodb_make_dir(db->objects_dir, dir, err);
		if (rc == 0)
			rc = gitodb_move(from, to, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Flush the file to disk, as git does for packs, which hold many objects. */
static void sync_file(const char *path)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd >= 0)
		fsync(fd);
}

/* The one file of dir whose name ends in suffix, or NULL. */
static char *find_by_suffix(const char *dir, const char *suffix)
{
	AUTO_DIR DIR *d = opendir(dir);
	struct dirent *entry;

	while (d && (entry = readdir(d)))
		if (str_ends(entry->d_name, suffix))
			return mem_strdup(entry->d_name);
	return NULL;
}

static int move_pack_file(
	const char *objects_dir, const char *dir, const char *suffix, struct err *err)
{
	AUTO_FREE char *name = find_by_suffix(dir, suffix);
	AUTO_FREE char *pack_dir = fs_join(objects_dir, "pack");

	if (!name)
		return err_set(err, E_SNAPSHOT_REPO, "no pack was written");
	AUTO_FREE char *from = fs_join(dir, name);
	AUTO_FREE char *to = fs_join(pack_dir, name);
	sync_file(from);
	int rc = gitodb_make_dir(objects_dir, pack_dir, err);
	return rc < 0 ? rc : gitodb_move(from, to, err);
}

static int publish_pack(struct gitodb *db, struct err *err)
{
	AUTO(libgit2_free_repository) git_repository *repository = NULL;
	AUTO(free_packbuilder) git_packbuilder *builder = NULL;
	AUTO_FREE char *dir = fs_join(db->temp_dir, "pack");

	if (git_repository_wrap_odb(&repository, db->staged) ||
		git_packbuilder_new(&builder, repository))
		return fail_library(err, "packing objects");
	git_packbuilder_set_threads(builder, 1);
	vec_foreach (git_oid, oid, &db->added)
		if (git_packbuilder_insert(builder, oid, NULL))
			return fail_library(err, "packing objects");
	int rc = gitodb_make_dir(db->temp_dir, dir, err);
	if (rc < 0)
		return rc;
	if (git_packbuilder_write(builder, dir, 0, NULL, NULL))
		return fail_library(err, "packing objects");
	/* A pack counts once its index is there. */
	rc = move_pack_file(db->objects_dir, dir, ".pack", err);
	return rc < 0 ? rc : move_pack_file(db->objects_dir, dir, ".idx", err);
}

static int publish_ref(
	struct gitodb *db, const char *ref, const uint8_t oid[static SHA1_SIZE], struct err *err)
{
	AUTO_FREE char *from = fs_join(db->temp_dir, ref_name);
	AUTO_FREE char *to = fs_join(db->common_dir, ref);
	AUTO_FREE char *dir = fs_dirname(to);
	AUTO_FREE char *refs = fs_join(db->common_dir, "refs");
	git_oid id = to_oid(oid);
	AUTO_FREE char *line = mem_printf("%s\n", git_oid_tostr_s(&id));

	int rc = gitodb_make_dir(refs, dir, err);
	if (rc < 0)
		return rc;
	AUTO_FD int fd = open(from, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return fs_error(err, errno, "%s", from);
	rc = fs_write_fd(fd, from, line, strlen(line), err);
	if (rc < 0)
		return rc;
	return rename(from, to) ? fs_error(err, errno, "%s", to) : 0;
}

int gitodb_publish(
	struct gitodb *db, const char *ref, const uint8_t oid[static SHA1_SIZE], struct err *err)
{
	int rc = db->pack ? publish_pack(db, err) : publish_loose(db, err);

	return rc < 0 ? rc : publish_ref(db, ref, oid, err);
}

/* Move the index of a pack that is in place: without it the pack would never be removed. */
static void finish_pack(const char *objects_dir, const char *temp_dir)
{
	AUTO_FREE char *dir = fs_join(temp_dir, "pack");
	AUTO_FREE char *pack = find_by_suffix(dir, ".pack");
	AUTO_FREE char *idx = find_by_suffix(dir, ".idx");

	if (!pack && idx)
		move_pack_file(objects_dir, dir, ".idx", NULL);
}

/*
 * Rename temp_dir first to a name that nobody makes: while the lock file is being removed, a
 * process that has just made temp_dir would make and lock a new one, and lose the directory all the
 * same.
 */
static void bury(const char *objects_dir, const char *temp_dir)
{
	AUTO_FREE char *dead = mem_printf("%s%s", temp_dir, dead_suffix);

	finish_pack(objects_dir, temp_dir);
	if (str_ends(temp_dir, dead_suffix))
		remove_temp(objects_dir, temp_dir);
	else if (rename(temp_dir, dead) == 0)
		remove_temp(objects_dir, dead);
}

void gitodb_sweep(const char *common_dir)
{
	AUTO_FREE char *objects_dir = fs_join(common_dir, "objects");
	AUTO_DIR DIR *dir = opendir(objects_dir);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		if (!str_starts(entry->d_name, temp_prefix))
			continue;
		AUTO_FREE char *temp_dir = fs_join(objects_dir, entry->d_name);
		AUTO_FREE char *lock = fs_join(temp_dir, lock_name);
		AUTO_FD int lock_fd = -1;
		if (fs_lock(lock, true, 0, &lock_fd, NULL) < 0)
			continue;
		bury(objects_dir, temp_dir);
	}
}

/*
 * Removing a reference
 */

/* The loose form: a file with the id. */
static int remove_loose(const char *path, const char *commit, struct err *err)
{
	AUTO_BUF struct buf text = {0};

	if (fs_read(path, REF_MAX, &text, NULL, NULL) < 0)
		return 0;
	if (commit && strncmp(text.data, commit, strlen(commit)) != 0)
		return 0;
	return unlink(path) && errno != ENOENT ? fs_error(err, errno, "%s", path) : 0;
}

static bool is_packed(const char *common_dir, const char *ref)
{
	AUTO_FREE char *path = fs_join(common_dir, "packed-refs");
	AUTO_FREE char *line_end = mem_printf(" %s\n", ref);
	AUTO_BUF struct buf text = {0};

	return fs_read(path, PACKED_REFS_MAX, &text, NULL, NULL) == 0 &&
	       memmem(text.data, text.len, line_end, strlen(line_end));
}

static int remove_packed(const char *git_dir, const char *ref, const char *commit, struct err *err)
{
	AUTO(libgit2_free_repository) git_repository *repository = NULL;
	AUTO(libgit2_free_reference) git_reference *reference = NULL;
	git_oid oid;

	int r = libgit2_load(err);
	if (r < 0)
		return r;
	if (git_repository_open_ext(&repository, git_dir,
		    GIT_REPOSITORY_OPEN_NO_SEARCH | GIT_REPOSITORY_OPEN_NO_DOTGIT, NULL))
		return fail_library(err, "opening the repository");
	if (git_reference_lookup(&reference, repository, ref) || !git_reference_target(reference))
		return 0;
	if (commit && (git_oid_fromstr(&oid, commit) ||
			      !git_oid_equal(git_reference_target(reference), &oid)))
		return 0;
	return git_reference_delete(reference) ? fail_library(err, "removing a reference") : 0;
}

int gitodb_remove_ref(const char *git_dir, const char *common_dir, const char *ref,
	const char *commit, struct err *err)
{
	AUTO_FREE char *path = fs_join(common_dir, ref);
	int rc = remove_loose(path, commit, err);

	if (rc < 0 || !is_packed(common_dir, ref))
		return rc;
	return remove_packed(git_dir, ref, commit, err);
}
