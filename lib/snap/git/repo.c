/* SPDX-License-Identifier: Apache-2.0 */
#include "snap/git/repo.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/par.h"
#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "snap/git/gitdir.h"
#include "snap/git/libgit2.h"

static void repo_facts_done(struct repo_facts *facts);

/*
 * Settings of the repository that the walk of its tree needs, as the last snapshot saw them. The
 * walk begins with them while libgit2 reads the current ones, and is repeated if those differ.
 */

struct settings {
	bool ignore_case;    /* core.ignoreCase */
	char *excludes_file; /* the path that core.excludesFile comes to; NULL: none */
};
#define AUTO_SETTINGS AUTO(settings_done)

/* "ignore_case 0" or "ignore_case 1", and where there is one "excludes_file PATH": lines. */
#define IGNORE_CASE   "ignore_case "
#define EXCLUDES_FILE "excludes_file "
enum { FILE_MAX = 8192 };

static void settings_done(struct settings *settings)
{
	free(settings->excludes_file);
	*settings = (struct settings){0};
}

static bool settings_equal(const struct settings *a, const struct settings *b)
{
	return a->ignore_case == b->ignore_case && str_eq(a->excludes_file, b->excludes_file);
}

char *settings_path(const char *statcache_path)
{
	AUTO_FREE char *dir = fs_dirname(statcache_path);

	return fs_join(dir, "settings.v1");
}

/* The rest of a line that begins so, which is ended there; *at goes behind it. */
static char *repo_take_line(char **at, const char *name)
{
	char *end = strchr(*at, '\n'), *value = *at + strlen(name);

	if (!end || !str_starts(*at, name))
		return NULL;
	*end = '\0';
	*at = end + 1;
	return value;
}

/* false: the file is missing or not good, *ret is zero. */
static bool settings_load(const char *path, struct settings *ret)
{
	AUTO_BUF struct buf text = {0};
	char *at, *value;

	*ret = (struct settings){0};
	if (fs_read(path, FILE_MAX, &text, NULL, NULL) < 0 || strlen(text.data) != text.len)
		return false;
	at = text.data;
	value = repo_take_line(&at, IGNORE_CASE);
	if (!value || (strcmp(value, "0") != 0 && strcmp(value, "1") != 0))
		return false;
	ret->ignore_case = *value == '1';
	value = repo_take_line(&at, EXCLUDES_FILE);
	if (value && *value)
		ret->excludes_file = mem_strdup(value);
	if (!*at && (!value || *value))
		return true;
	settings_done(ret);
	return false;
}

/* path: absolute. */
static int settings_save(const char *path, const struct settings *settings, struct err *err)
{
	AUTO_FREE char *dir = fs_dirname(path);
	AUTO_BUF struct buf text = buf_with(FILE_MAX);

	if (settings->excludes_file && strchr(settings->excludes_file, '\n'))
		return err_set(err, E_DATA, "a path with a line break is not kept");
	buf_addf(&text, IGNORE_CASE "%d\n", settings->ignore_case);
	if (settings->excludes_file)
		buf_addf(&text, EXCLUDES_FILE "%s\n", settings->excludes_file);
	int r = buf_check(&text, "settings of the repository", err);
	if (r == 0)
		r = fs_mkdirs(dir, 0700, err);
	return r < 0 ? r : fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, err);
}

enum { INDEX_MAP_MIN = 256 << 10 }; /* bytes; a smaller index is read */

static void free_config(git_config **config)
{
	if (*config)
		git_config_free(*config);
}

static void free_commit(git_commit **commit)
{
	if (*commit)
		git_commit_free(*commit);
}

/*
 * libgit2
 */

static void set_search_path(int level, const char *path)
{
	git_libgit2_opts(GIT_OPT_SET_SEARCH_PATH, level, path ? path : "");
}

/* The user's configuration is that of options, not that of the environment. */
static void configure_library(const struct repos_options *options)
{
	AUTO_FREE char *xdg = NULL;

	git_libgit2_opts(GIT_OPT_SET_OWNER_VALIDATION, 1);
	if (options->xdg_config)
		xdg = fs_join(options->xdg_config, "git");
	else if (options->home)
		xdg = fs_join(options->home, ".config/git");
	set_search_path(GIT_CONFIG_LEVEL_GLOBAL, options->home);
	set_search_path(GIT_CONFIG_LEVEL_XDG, xdg);
}

/* libgit2 1.5.1 says "not found" when no safe.directory is configured at all. */
static bool is_owner_error(int rc)
{
	AUTO_FREE char *message = libgit2_message();

	return rc == GIT_EOWNER || (rc == GIT_ENOTFOUND && strstr(message, "safe.directory"));
}

static char *get_string(git_config *config, const char *name)
{
	const char *value;

	return git_config_get_string(&value, config, name) == 0 ? mem_strdup(value) : NULL;
}

static void get_settings(git_repository *library, struct repo_facts *facts)
{
	AUTO(free_config) git_config *config = NULL;
	int ignore_case = 0, file_mode = 1;

	if (git_repository_config_snapshot(&config, library))
		return;
	git_config_get_bool(&ignore_case, config, "core.ignorecase");
	git_config_get_bool(&file_mode, config, "core.filemode");
	facts->ignore_case = ignore_case;
	facts->file_mode = file_mode;
	facts->excludes_file = get_string(config, "core.excludesfile");
	facts->user_name = get_string(config, "user.name");
	facts->user_email = get_string(config, "user.email");
	AUTO_FREE char *url = get_string(config, "remote.origin.url");
	if (url)
		facts->remote_url = repo_url_without_user(url);
}

static void get_head(git_repository *library, struct repo_facts *facts)
{
	static const char heads[] = "refs/heads/";
	AUTO(libgit2_free_reference) git_reference *head = NULL;
	AUTO(free_commit) git_commit *commit = NULL;
	git_oid oid;

	if (git_reference_lookup(&head, library, "HEAD"))
		return;
	const char *target = git_reference_symbolic_target(head);
	if (target)
		facts->branch =
			mem_strdup(target + (str_starts(target, heads) ? sizeof(heads) - 1 : 0));
	if (git_reference_name_to_id(&oid, library, "HEAD"))
		return;
	facts->commit = mem_strdup(git_oid_tostr_s(&oid));
	if (git_commit_lookup(&commit, library, &oid))
		return;
	memcpy(facts->tree, git_commit_tree_id(commit)->id, SHA1_SIZE);
	facts->has_tree = true;
}

static int fail_owner(const char *work_dir, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(work_dir);

	err_set(err, E_SNAPSHOT_OWNER, "the repository '%s' belongs to another user", shown);
	return hint_path(err, "git config --global --add safe.directory ", work_dir, "");
}

/* Match as git does: an empty value resets the list, a star behind a slash stands for all below. */
struct safe_search {
	const char *dir;
	bool found;
};

static int see_safe(const git_config_entry *entry, void *ctx)
{
	struct safe_search *search = ctx;
	const char *value = entry->value ? entry->value : "";
	size_t len = strlen(value);
	bool below = str_ends(value, "/*") && strncmp(value, search->dir, len - 1) == 0;

	if (!*value)
		search->found = false;
	else if (below || str_eq(value, "*") || str_eq(value, search->dir))
		search->found = true;
	return 0;
}

bool repo_is_called_safe(const struct repos_options *options, const char *dir)
{
	AUTO(free_config) git_config *config = NULL;
	struct safe_search search = {.dir = dir};

	if (libgit2_load(NULL) < 0)
		return false;
	configure_library(options);
	if (git_config_open_default(&config) ||
		git_config_foreach_match(config, "^safe\\.directory$", see_safe, &search))
		return false;
	return search.found;
}

/* 1: opened, facts are set; 0: libgit2 cannot, ret_why says it. */
static int query_library(const struct repos_options *options, const char *work_dir,
	struct repo *repo, char **ret_why, struct err *err)
{
	AUTO(libgit2_free_repository) git_repository *library = NULL;
	AUTO_ERR struct err error = {0};

	if (libgit2_load(&error) < 0) {
		*ret_why = mem_strdup(error.message);
		return 0;
	}
	configure_library(options);
	int rc = git_repository_open_ext(&library, repo->git_dir,
		GIT_REPOSITORY_OPEN_NO_SEARCH | GIT_REPOSITORY_OPEN_NO_DOTGIT, NULL);
	if (rc && is_owner_error(rc))
		return fail_owner(work_dir, err);
	if (rc) {
		AUTO_FREE char *shown = libgit2_message();
		*ret_why = mem_printf("libgit2 says: %s", shown);
		return 0;
	}
	get_settings(library, &repo->facts);
	get_head(library, &repo->facts);
	return 1;
}

/* A run of libgit2 beside the walk. */
struct repo_query {
	const struct repos_options *options;
	struct repo *repo;
	char *work_dir, *why;
	struct err err;
	int rc;
	struct par_task *task;
};

static void repo_query_run(void *ctx)
{
	struct repo_query *query = ctx;

	query->rc = query_library(
		query->options, query->work_dir, query->repo, &query->why, &query->err);
}

static struct repo_query *repo_query_start(
	const struct repos_options *options, const char *work_dir, struct repo *repo)
{
	struct repo_query *query = mem_alloc(1, sizeof(*query));

	*query = (struct repo_query){
		.options = options, .repo = repo, .work_dir = mem_strdup(work_dir)};
	query->task = par_start(repo_query_run, query);
	return query;
}

static void repo_query_wait(struct repo_query *query)
{
	if (query)
		par_wait(TAKE(query->task));
}

/* As query_library. */
static int repo_query_end(struct repo *repo, char **ret_why, struct err *err)
{
	struct repo_query *query = TAKE(repo->query);
	int rc;

	repo_query_wait(query);
	rc = query->rc;
	*ret_why = query->why;
	if (rc < 0)
		err_move(err, &query->err);
	err_done(&query->err);
	free(query->work_dir);
	free(query);
	return rc;
}

char *repo_url_without_user(const char *url)
{
	const char *host = strstr(url, "://");

	if (!host)
		return mem_strdup(url);
	host += 3;
	size_t len = strcspn(host, "/?#");
	while (len > 0 && host[len - 1] != '@')
		len--;
	return mem_printf("%.*s%s", (int)(host - url), url, host + len);
}

/*
 * A repository as the git program sees it, for repositories that dlrun cannot read itself. git is
 * started so that it runs nothing that the repository names: no hook, no fsmonitor, no diff driver,
 * no fetch of missing objects; it writes nothing.
 */

enum {
	TIMEOUT_MS = 120 * 1000,
	OUTPUT_MAX = 1 << 29,
	FACT_MAX = 1 << 20,
	STATUS_FATAL = 128,
};

struct gitls {
	const char *work_dir, *git_dir;
	char *program; /* set by gitls_find */
	bool explicit; /* git does not find git_dir by itself from work_dir */
};

/* Command that unsets what would lead git to another repository, and keeps it from fetching and
 * prompting. */
static const char *const environment[] = {
	"env",
	"-u",
	"GIT_DIR",
	"-u",
	"GIT_WORK_TREE",
	"-u",
	"GIT_COMMON_DIR",
	"-u",
	"GIT_INDEX_FILE",
	"-u",
	"GIT_NAMESPACE",
	"-u",
	"GIT_OBJECT_DIRECTORY",
	"-u",
	"GIT_ALTERNATE_OBJECT_DIRECTORIES",
	"GIT_ALLOW_PROTOCOL=none",
	"GIT_NO_LAZY_FETCH=1",
	"GIT_OPTIONAL_LOCKS=0",
	"GIT_TERMINAL_PROMPT=0",
	"LC_ALL=C",
};

static const char *const git_settings[] = {
	"--no-pager",
	"-c",
	"core.fsmonitor=false",
	"-c",
	"core.hooksPath=/dev/null",
	"-c",
	"protocol.allow=never",
};

/* False: there is no git on PATH. */
static bool gitls_find(struct gitls *git)
{
	AUTO_FREE char *found = NULL;

	git->program = proc_find("git", NULL);
	git->explicit =
		gitdir_at(git->work_dir, &found) != GITDIR_FOUND || !str_eq(found, git->git_dir);
	return git->program;
}

static void gitls_done(struct gitls *git)
{
	free(TAKE(git->program));
}

/* words: what follows `git`, NULL at the end. ret_status: the exit status. */
static int gitls_run(const struct gitls *git, const char *const *words, size_t max, struct buf *out,
	int *ret_status, struct err *err)
{
	AUTO_STRV struct strv argv = {0};
	int status;

	for (size_t i = 0; i < ARRAY_LEN(environment); i++)
		strv_add(&argv, environment[i]);
	strv_add(&argv, git->program);
	for (size_t i = 0; i < ARRAY_LEN(git_settings); i++)
		strv_add(&argv, git_settings[i]);
	if (git->explicit) {
		strv_addf(&argv, "--git-dir=%s", git->git_dir);
		strv_addf(&argv, "--work-tree=%s", git->work_dir);
	}
	strv_add(&argv, "-C");
	strv_add(&argv, git->work_dir);
	for (; *words; words++)
		strv_add(&argv, *words);
	buf_done(out);
	buf_init(out, max);
	int rc = proc_capture((const char *const *)argv.v, NULL, TIMEOUT_MS, out, &status, err);
	if (rc < 0)
		return err_prefix(err, "asking git");
	*ret_status = WIFEXITED(status) ? WEXITSTATUS(status) : 255;
	return 0;
}

/* Whether another user owns the repository: git reports that on stderr only, and localized. */
static bool is_foreign(const struct gitls *git)
{
	const char *const paths[] = {git->work_dir, git->git_dir};
	struct stat st;

	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		if (stat(paths[i], &st) == 0 && st.st_uid != geteuid())
			return true;
	return false;
}

static int gitls_fail(const struct gitls *git, int status, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(git->work_dir);

	if (is_foreign(git))
		return err_set(err, E_SNAPSHOT_OWNER, "'%s' belongs to another user", shown);
	err_set(err, E_SNAPSHOT_REPO, "git cannot read the repository '%s'", shown);
	err_evidence(err, "git exited with status %d", status);
	return hint_path(err, "git -C ", git->work_dir, " status");
}

/*
 * Paths
 */

static int gitls_fail_form(struct err *err)
{
	return err_set(err, E_SNAPSHOT_REPO, "the output of git ls-files is not as expected");
}

/* "H 100644 <oid> 0\tpath": mode, object id and path; false if it is no such line. */
static bool gitls_split_line(const char *line, struct tracked_path *ret)
{
	enum { MODE_AT = 2, OID_AT = MODE_AT + 7 };
	const char *path = strchr(line, '\t');

	if (!path || path - line < OID_AT + 2 * SHA1_SIZE + 2 || line[1] != ' ')
		return false;
	AUTO_FREE char *hex = mem_strndup(line + OID_AT, 2 * SHA1_SIZE);
	ret->mode = (uint32_t)strtoul(line + MODE_AT, NULL, 8);
	ret->conflict = path[-1] != '0';
	ret->path = path + 1;
	return hex_decode(hex, SHA1_SIZE, ret->oid) && gitindex_path_is_valid(ret->path);
}

static bool gitls_parse_line(const char *line, struct tracked *tracked)
{
	struct tracked_path *last = tracked->n ? &tracked->v[tracked->n - 1] : NULL;
	struct tracked_path parsed = {0};

	if (!gitls_split_line(line, &parsed))
		return false;
	int order = last ? strcmp(last->path, parsed.path) : -1;
	if (order == 0)
		last->conflict = true;
	if (order < 0) {
		parsed.path = arena_strdup(&tracked->arena, parsed.path);
		*vec_push(tracked) = parsed;
	}
	return order <= 0;
}

int gitls_parse(const char *text, size_t len, struct gitindex *ret, struct err *err)
{
	struct gitindex index = {0};
	const char *end = text + len;
	struct VEC_OF(bool) skipped = {0};

	if (len && end[-1] != '\0')
		return gitls_fail_form(err);
	for (const char *line = text; line < end; line += strlen(line) + 1) {
		size_t n = index.tracked.n;
		if (!gitls_parse_line(line, &index.tracked)) {
			vec_done(&skipped);
			gitindex_done(&index);
			return gitls_fail_form(err);
		}
		if (index.tracked.n > n)
			*vec_push(&skipped) = line[0] == 'S';
	}
	index.stats = mem_alloc(index.tracked.n + 1, sizeof(*index.stats));
	for (size_t i = 0; i < index.tracked.n; i++)
		index.stats[i].skip_worktree = skipped.v[i];
	vec_done(&skipped);
	*ret = index;
	return 0;
}

/* `git ls-files -s`: paths, modes, object ids, skip_worktree. Blocks until git ends.
 * E_SNAPSHOT_OWNER when git does not trust the repository, E_SNAPSHOT_REPO when it cannot read. */
static int gitls_tracked(const struct gitls *git, struct gitindex *ret, struct err *err)
{
	static const char *const words[] = {"ls-files", "-s", "-t", "-z", NULL};
	AUTO_BUF struct buf out = {0};
	int status;

	int rc = gitls_run(git, words, OUTPUT_MAX, &out, &status, err);
	if (rc < 0)
		return rc;
	return status ? gitls_fail(git, status, err) : gitls_parse(out.data, out.len, ret, err);
}

/*
 * Facts
 */

static void replace(char **to, const char *value)
{
	free(*to);
	*to = mem_strdup(value);
}

static bool gitls_is_true(const char *value)
{
	return !value || strcasecmp(value, "true") == 0 || strcasecmp(value, "yes") == 0 ||
	       strcasecmp(value, "on") == 0 || str_eq(value, "1");
}

/* key LF value, or key alone for true; section and last part of the key in small letters. */
static void take_setting(struct repo_facts *facts, char *line)
{
	char *value = strchr(line, '\n');

	if (value)
		*value++ = '\0';
	if (str_eq(line, "core.ignorecase"))
		facts->ignore_case = gitls_is_true(value);
	else if (str_eq(line, "core.filemode"))
		facts->file_mode = gitls_is_true(value);
	else if (!value)
		return;
	else if (str_eq(line, "core.excludesfile"))
		replace(&facts->excludes_file, value);
	else if (str_eq(line, "user.name"))
		replace(&facts->user_name, value);
	else if (str_eq(line, "user.email"))
		replace(&facts->user_email, value);
	else if (str_eq(line, "remote.origin.url"))
		REPLACE(facts->remote_url, repo_url_without_user(value));
}

static int query_settings(const struct gitls *git, struct repo_facts *facts, struct err *err)
{
	static const char *const words[] = {"config", "-z", "--list", NULL};
	AUTO_BUF struct buf out = {0};
	int status;

	int rc = gitls_run(git, words, FACT_MAX, &out, &status, err);
	if (rc < 0 || status)
		return rc < 0 ? rc : gitls_fail(git, status, err);
	for (char *line = out.data, *next; line < out.data + out.len; line = next) {
		next = line + strlen(line) + 1;
		take_setting(facts, line);
	}
	return 0;
}

/* The first line of git's output, or NULL if it fails. */
static char *gitls_first_line(const struct gitls *git, const char *const *words)
{
	AUTO_BUF struct buf out = {0};
	int status;

	if (gitls_run(git, words, FACT_MAX, &out, &status, NULL) < 0 || status)
		return NULL;
	buf_truncate(&out, strcspn(out.data, "\n"));
	return out.len ? buf_take(&out) : NULL;
}

static void query_staged(const struct gitls *git, struct repo_facts *facts)
{
	static const char *const words[] = {"diff-index", "--cached", "--quiet", "--no-ext-diff",
		"--no-textconv", "--ignore-submodules=none", "HEAD", "--", NULL};
	AUTO_BUF struct buf out = {0};
	int status;

	facts->staged = gitls_run(git, words, FACT_MAX, &out, &status, NULL) < 0 || status != 0;
}

static void query_head(const struct gitls *git, struct repo_facts *facts)
{
	static const char *const branch[] = {"symbolic-ref", "-q", "--short", "HEAD", NULL};
	static const char *const commit[] = {"rev-parse", "-q", "--verify", "HEAD^{commit}", NULL};
	static const char *const tree[] = {"rev-parse", "-q", "--verify", "HEAD^{tree}", NULL};

	facts->branch = gitls_first_line(git, branch);
	facts->commit = gitls_first_line(git, commit);
	if (!facts->commit)
		return;
	AUTO_FREE char *id = gitls_first_line(git, tree);
	facts->has_tree =
		id && strlen(id) == 2 * SHA1_SIZE && hex_decode(id, SHA1_SIZE, facts->tree);
	if (!facts->has_tree)
		query_staged(git, facts);
}

/* Check first that git opens this repository: otherwise all other output would be that of a
 * repository further up, or none. */
static int gitls_check_opens(const struct gitls *git, struct err *err)
{
	static const char *const words[] = {"rev-parse", "--git-dir", NULL};
	AUTO_BUF struct buf out = {0};
	int status;

	int rc = gitls_run(git, words, FACT_MAX, &out, &status, err);
	if (rc < 0)
		return rc;
	return status ? gitls_fail(git, status, err) : 0;
}

/* Settings and HEAD. The same errors. */
static int gitls_facts(const struct gitls *git, struct repo_facts *facts, struct err *err)
{
	int rc = gitls_check_opens(git, err);

	if (rc == 0)
		rc = query_settings(git, facts, err);
	if (rc == 0)
		query_head(git, facts);
	return rc;
}

/*
 * A repository
 */

struct index_job {
	char *path;
	size_t oid_size;
	struct gitindex index;
	int64_t mtime_ns;
	int rc;
	struct err err;
};

static int parse_index(struct index_job *job, const void *data, size_t len)
{
	if (len == 0)
		return err_set(&job->err, E_SNAPSHOT_REPO, "the index of the repository is empty");
	return gitindex_parse(data, len, job->oid_size, &job->index, &job->err);
}

/* Reading the file into memory of our own takes as long as the parser. Git replaces the file and
 * maps it, too. 0: cannot be mapped. */
static int parse_mapped(struct index_job *job, int fd, const struct stat *st, int *ret_rc)
{
	size_t size = (size_t)st->st_size;

	if (!S_ISREG(st->st_mode) || st->st_size < INDEX_MAP_MIN ||
		st->st_size > GITINDEX_SIZE_MAX || os_network_fs(fd))
		return 0;
	void *map = fs_map(fd, size);
	if (!map)
		return 0;
	*ret_rc = parse_index(job, map, size);
	munmap(map, size);
	return 1;
}

static int read_index(struct index_job *job)
{
	AUTO_FD int fd = open(job->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	AUTO_BUF struct buf data = {0};
	struct stat st;
	int rc;

	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd < 0 || fstat(fd, &st))
		return fs_error(&job->err, errno, "%s", job->path);
	job->mtime_ns = st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec;
	if (parse_mapped(job, fd, &st, &rc))
		return rc;
	rc = fs_read_fd(fd, job->path, GITINDEX_SIZE_MAX, &data, &job->err);
	return rc < 0 ? rc : parse_index(job, data.data, data.len);
}

static void run_index_job(void *ctx)
{
	struct index_job *job = ctx;

	job->rc = read_index(job);
}

static void index_job_done(struct index_job *job)
{
	free(job->path);
	gitindex_done(&job->index);
	err_done(&job->err);
}

static void take_index(struct repo *repo, struct gitindex *index, int64_t mtime_ns)
{
	repo->paths.tracked = index->tracked;
	repo->stats = index->stats;
	repo->has_tree = index->has_tree;
	memcpy(repo->tree, index->tree, SHA1_SIZE);
	repo->index_mtime_ns = mtime_ns;
	*index = (struct gitindex){0};
}

/* Ask git, because libgit2 and gitindex.c could not read all of the repository. */
static int query_git(const char *work_dir, struct repo *repo, struct index_job *job,
	const char *why, struct err *err)
{
	struct gitls git = {.work_dir = work_dir, .git_dir = repo->git_dir};
	AUTO_ERR struct err git_err = {0};
	struct gitindex index = {0};
	const char *reason = why ? why : job->err.message;

	int rc = gitls_find(&git) ? 0 : err_set(&git_err, E_SNAPSHOT_REPO, "there is no git");
	bool has_git = rc == 0;
	if (rc == 0 && why)
		rc = gitls_facts(&git, &repo->facts, &git_err);
	if (rc == 0)
		rc = gitls_tracked(&git, &index, &git_err);
	gitls_done(&git);
	if (rc == 0) {
		take_index(repo, &index, 0);
		repo->why = mem_printf("git was asked for the paths (%s)", reason);
		return 0;
	}
	gitindex_done(&index);
	if (git_err.id == E_SNAPSHOT_OWNER)
		return fail_owner(work_dir, err);
	if (job->rc == 0) {
		take_index(repo, &job->index, job->mtime_ns);
		repo->why = mem_printf("only its index could be read (%s)", reason);
		return 0;
	}
	if (has_git)
		return err_move(err, &git_err);
	repo->why =
		mem_printf("there is no git to ask, so that files count by .gitignore alone and "
			   "tracked ones that it ignores are excluded (%s)",
			reason);
	return 0;
}

/* beside: libgit2 goes on when the index is read. */
static int read_both(const struct repos_options *options, const char *work_dir, struct repo *repo,
	bool beside, struct index_job *job, char **ret_why, struct err *err)
{
	if (beside) {
		repo->query = repo_query_start(options, work_dir, repo);
		run_index_job(job);
		return job->rc == 0 ? 1 : repo_query_end(repo, ret_why, err);
	}
	struct par_task *task = par_start(run_index_job, job);
	int rc = query_library(options, work_dir, repo, ret_why, err);
	par_wait(task);
	return rc;
}

static int repo_read_repository(const struct repos_options *options, const char *work_dir,
	struct repo *repo, bool beside, struct err *err)
{
	struct index_job job = {
		.path = fs_join(repo->git_dir, "index"), .oid_size = repo->oid_size};
	AUTO_FREE char *why = NULL;

	int rc = read_both(options, work_dir, repo, beside, &job, &why, err);
	repo->has_objects = rc == 1 && repo->oid_size == SHA1_SIZE;
	if (rc == 1 && job.rc == 0) {
		take_index(repo, &job.index, job.mtime_ns);
		rc = 0;
	} else if (rc >= 0) {
		log_note("repository %s: %s", work_dir, why ? why : job.err.message);
		rc = query_git(work_dir, repo, &job, why, err);
	}
	index_job_done(&job);
	return rc;
}

/* gitignore(5): if the setting is missing, git/ignore in the user's configuration directory. */
static char *excludes_file(const struct repos_options *options, const char *set)
{
	if (str_empty(set) && set)
		return NULL;
	if (set && set[0] == '~')
		return set[1] == '/' && options->home ? fs_join(options->home, set + 2) : NULL;
	if (set)
		return fs_join(options->root, set);
	if (!str_empty(options->xdg_config))
		return fs_join(options->xdg_config, "git/ignore");
	return options->home ? fs_join(options->home, ".config/git/ignore") : NULL;
}

static void set_settings(
	const struct repos_options *options, const struct repo *repo, struct settings *ret)
{
	settings_done(ret);
	ret->ignore_case = repo->facts.ignore_case;
	ret->excludes_file = excludes_file(options, repo->facts.excludes_file);
}

static void repo_free(struct repo *repo)
{
	AUTO_FREE char *why = NULL;

	if (!repo)
		return;
	if (repo->query)
		repo_query_end(repo, &why, NULL);
	free(repo->dir);
	free(repo->git_dir);
	free(repo->common_dir);
	free(repo->stats);
	free(repo->why);
	tracked_done(&repo->paths.tracked);
	free(repo->paths.info_exclude);
	free(repo->paths.excludes_file);
	repo_facts_done(&repo->facts);
	free(repo);
}

static void free_repo(struct repo **repo)
{
	repo_free(*repo);
}

/* With settings_path, use the settings saved there until repos_settle. Takes git_dir over. */
static int open_repository(const struct repos_options *options, const char *dir, char *git_dir,
	struct repo **ret, struct err *err)
{
	AUTO(free_repo) struct repo *repo = mem_alloc(1, sizeof(*repo));
	AUTO_FREE char *work_dir = fs_join(options->root, dir);
	AUTO_GITDIR_CONFIG struct gitdir_config config;
	AUTO_SETTINGS struct settings settings = {0};
	bool beside =
		!*dir && options->settings_path && settings_load(options->settings_path, &settings);

	repo->dir = mem_strdup(dir);
	repo->facts.file_mode = true;
	repo->git_dir = git_dir;
	repo->common_dir = gitdir_common(git_dir);
	gitdir_config_read(git_dir, &config);
	repo->oid_size = config.object_format && !str_eq(config.object_format, "sha1")
				 ? GITINDEX_RAW_SHA256_SIZE
				 : GITINDEX_RAW_SHA1_SIZE;
	int rc = gitdir_check(git_dir, repo->common_dir, err);
	if (rc == 0)
		rc = repo_read_repository(options, work_dir, repo, beside, err);
	if (rc < 0)
		return rc;
	if (!repo->query)
		set_settings(options, repo, &settings);
	repo->paths.info_exclude = fs_join(repo->common_dir, "info/exclude");
	repo->paths.excludes_file = TAKE(settings.excludes_file);
	repo->paths.ignore_case = settings.ignore_case;
	*ret = TAKE(repo);
	return 0;
}

static void repo_facts_done(struct repo_facts *facts)
{
	if (!facts)
		return;
	free(facts->commit);
	free(facts->branch);
	free(facts->remote_url);
	free(facts->excludes_file);
	free(facts->user_name);
	free(facts->user_email);
	*facts = (struct repo_facts){0};
}

/*
 * All of a tree
 */

void repos_init(struct repos *repos, const struct repos_options *options)
{
	*repos = (struct repos){.options = options};
}

void repos_done(struct repos *repos)
{
	if (!repos)
		return;
	vec_foreach (struct repo *, repo, &repos->list)
		repo_free(*repo);
	vec_done(&repos->list);
	strv_done(&repos->notes);
	strv_done(&repos->bare_links);
}

const struct repo *repos_at(const struct repos *repos, const char *dir)
{
	vec_foreach (struct repo *, repo, &repos->list)
		if (str_eq((*repo)->dir, dir))
			return *repo;
	return NULL;
}

static void note_broken(struct repos *repos, const char *dir, const char *target)
{
	AUTO_FREE char *shown = str_escaped(*dir ? dir : ".");
	AUTO_FREE char *there = target ? str_escaped(target) : mem_strdup("nothing");

	strv_addf(&repos->notes,
		"'%s/.git' names a repository that is not there (%s), so that only .gitignore "
		"files say what is excluded",
		shown, there);
}

/* A directory that cannot be read counts as full: the walk reports it. */
static bool is_empty_dir(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry = NULL;

	if (!dir)
		return false;
	while ((entry = readdir(dir)))
		if (!str_eq(entry->d_name, ".") && !str_eq(entry->d_name, ".."))
			break;
	closedir(dir);
	return !entry;
}

/* The .git directory for dir, or NULL. */
static char *locate(struct repos *repos, const char *dir)
{
	AUTO_FREE char *work_dir = fs_join(repos->options->root, dir);
	char *git_dir = NULL;

	if (!*dir && repos->options->git_dir)
		return mem_strdup(repos->options->git_dir);
	enum gitdir_found found = gitdir_at(work_dir, &git_dir);
	if (found == GITDIR_BROKEN)
		note_broken(repos, dir, git_dir);
	else if (found == GITDIR_NONE && *dir && is_empty_dir(work_dir))
		strv_add(&repos->bare_links, dir);
	if (found == GITDIR_FOUND && *dir)
		return git_dir;
	free(git_dir);
	return NULL;
}

int repos_find(void *ctx, const char *dir, const struct paths_repo **ret_repo, struct err *err)
{
	struct repos *repos = ctx;
	const struct repo *known = repos_at(repos, dir);
	struct repo *repo;

	if (known) {
		*ret_repo = &known->paths;
		return 0;
	}
	/* Search paths are global to libgit2: wait until the root repository has been read. */
	known = repos_at(repos, "");
	repo_query_wait(known ? known->query : NULL);
	char *git_dir = locate(repos, dir);
	if (!git_dir) {
		*ret_repo = NULL;
		return 0;
	}
	int rc = open_repository(repos->options, dir, git_dir, &repo, err);
	if (rc < 0)
		return rc;
	repo->number = repos->list.n;
	*vec_push(&repos->list) = repo;
	*ret_repo = &repo->paths;
	return 0;
}

int repos_settle(struct repos *repos, bool *ret_again, struct err *err)
{
	/* The repository at the root is found first. repos_at would give a const one. */
	struct repo *repo = repos->list.n ? repos->list.v[0] : NULL;
	AUTO_SETTINGS struct settings now = {0};
	AUTO_FREE char *why = NULL;

	*ret_again = false;
	if (!repo || !repo->query)
		return 0;
	int rc = repo_query_end(repo, &why, err);
	if (rc < 0)
		return rc;
	set_settings(repos->options, repo, &now);
	const struct settings then = {repo->paths.ignore_case, repo->paths.excludes_file};
	repos->is_remembered = rc == 1 && settings_equal(&now, &then);
	*ret_again = !repos->is_remembered;
	if (*ret_again)
		unlink(repos->options->settings_path);
	return 0;
}

void repos_remember(const struct repos *repos)
{
	const struct repo *repo = repos_at(repos, "");
	const char *path = repos->options->settings_path;

	if (!repo || !path || repos->is_remembered || repo->why)
		return;
	const struct settings now = {repo->paths.ignore_case, repo->paths.excludes_file};
	settings_save(path, &now, NULL);
}
