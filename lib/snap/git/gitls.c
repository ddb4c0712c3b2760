/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "snap/git/gitdir.h"
#include "snap/git/gitls.h"
#include "snap/git/repo.h"

enum {
	TIMEOUT_MS = 120 * 1000,
	OUTPUT_MAX = 1 << 29,
	FACT_MAX = 1 << 20,
	STATUS_FATAL = 128,
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

static const char *const settings[] = {
	"--no-pager",
	"-c",
	"core.fsmonitor=false",
	"-c",
	"core.hooksPath=/dev/null",
	"-c",
	"protocol.allow=never",
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

bool gitls_find(struct gitls *git)
{
	AUTO_FREE char *found = NULL;

	git->program = proc_find("git", NULL);
	git->explicit =
		gitdir_at(git->work_dir, &found) != GITDIR_FOUND || !str_eq(found, git->git_dir);
	return git->program;
}

void gitls_done(struct gitls *git)
{
	free(git->program);
	git->program = NULL;
}

/* words: what follows `git`, NULL at the end. ret_status: the exit status. */
static int gitls_run(const struct gitls *git, const char *const *words, size_t max, struct buf *out,
	int *ret_status, struct err *err)
{
	AUTO_STRV struct strv argv = {0};
	int status;

	for (size_t i = 0; i < COUNT(environment); i++)
		strv_add(&argv, environment[i]);
	strv_add(&argv, git->program);
	for (size_t i = 0; i < COUNT(settings); i++)
		strv_add(&argv, settings[i]);
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

	for (size_t i = 0; i < COUNT(paths); i++)
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

int gitls_tracked(const struct gitls *git, struct gitindex *ret, struct err *err)
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
	else if (str_eq(line, "remote.origin.url")) {
		free(facts->remote_url);
		facts->remote_url = repo_url_without_user(value);
	}
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

int gitls_facts(const struct gitls *git, struct repo_facts *facts, struct err *err)
{
	int rc = gitls_check_opens(git, err);

	if (rc == 0)
		rc = query_settings(git, facts, err);
	if (rc == 0)
		query_head(git, facts);
	return rc;
}
