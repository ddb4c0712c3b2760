/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/job_impl.h"
#include "kube/status/status.h"

/*
 * Words
 */

int job_check_text(const char *text, const char *what, struct err *err)
{
	if (str_is_utf8(text, strlen(text)))
		return 0;
	AUTO_FREE char *shown = str_shown(text);
	return err_set(err, E_USAGE, "%s '%s' is not UTF-8, and nothing else can be said to a pod",
		what, shown);
}

/* 'it'\''s' */
void job_add_quoted(struct buf *out, const char *text)
{
	buf_adds(out, "'");
	for (const char *at = text; *at; at++)
		if (*at == '\'')
			buf_adds(out, "'\\''");
		else
			buf_add(out, at, 1);
	buf_adds(out, "'");
}

/* A line for the shell behind an ENTRYPOINT is that one's argument. */
bool job_is_own_line(const struct kube_run *run)
{
	return run->shell && (run->drop_entrypoint || run->image_entrypoint.n == 0);
}

void job_add_command(const struct kube_run *run, const struct strv *command, struct strv *ret)
{
	if (!run->shell || (run->n_members && run->before && job_is_own_line(run))) {
		for (size_t i = 0; i < command->n; i++)
			strv_add(ret, command->v[i]);
		return;
	}
	strv_add(ret, "/bin/sh");
	strv_add(ret, "-c");
	if (run->signal)
		strv_addf(ret, "trap : %s\n%s", run->signal, command->v[0]);
	else
		strv_add(ret, command->v[0]);
}

/*
 * The members of a study: one line of shell for each, which sets its words and variables.
 */

/* A ConfigMap takes 1 MiB; entries that members are cancelled by are added later. */
enum { LINES_MAX = 900 << 10 };

#define INDEX   "$(" JOB_INDEX ")"
#define MEMBERS "members-" /* entries with a line of shell, or of JSON, for each member */
#define PARAMS  "params-"
#define BEGIN   "set -- \"$@\"" /* of such a line; then words, and variables */
#define EXPORT  "; export "

/* A line has no newline: a word that has one gets it from $_nl. A member that is cancelled must not
 * count as failed with fail_fast. */
void job_add_member_lines(const struct kube_run *run, struct buf *script)
{
	buf_addf(script,
		"if [ -e \"" KUBE_STUDY_DIR "/" KUBE_STUDY_CANCEL
		"$JOB_COMPLETION_INDEX\" ]; then\n"
		"\tprintf '" KUBE_JOB_CANCELLED "' >/dev/termination-log\n"
		"\texit %d\n"
		"fi\n",
		run->fail_fast ? 0 : 125);
	buf_adds(script, "_n=0 _l= _nl='\n'\n"
			 "while IFS= read -r _l && [ $_n -lt $((JOB_COMPLETION_INDEX % 64)) ]; do\n"
			 "\t_n=$((_n + 1)) _l=\n"
			 "done <\"" KUBE_STUDY_DIR "/" MEMBERS "$((JOB_COMPLETION_INDEX / 64))\"\n"
			 "if [ -z \"$_l\" ]; then\n"
			 "\techo \"dlrun: the study has no member $JOB_COMPLETION_INDEX\" >&2\n"
			 "\texit 125\n"
			 "fi\n"
			 "eval \"$_l\"\n"
			 "unset _n _l _nl\n");
}
_Static_assert(KUBE_MEMBERS_EACH == 64, "the script has it, too");

/* The id of a study ends in a dash and a suffix, which those of its members have, too. */
char *job_member_id(const struct kube_run *run)
{
	const char *dash = strrchr(run->run_id, '-');
	size_t len = dash ? (size_t)(dash - run->run_id) : strlen(run->run_id);

	return mem_printf("%.*s-" INDEX "%s", (int)len, run->run_id, run->run_id + len);
}

char *kube_member_path(const char *expression, int index)
{
	AUTO_BUF struct buf out;

	buf_init(&out, strlen(expression) + 32);
	while (*expression) {
		if (str_starts(expression, INDEX)) {
			buf_addf(&out, "%d", index);
			expression += strlen(INDEX);
			continue;
		}
		buf_addc(&out, *expression);
		expression += expression[0] == '$' && expression[1] == '$' ? 2 : 1;
	}
	return buf_take(&out);
}

/* Variables of which Kubernetes makes what each member gets. */
static bool member_is_made(const char *name, size_t len)
{
	static const char *const names[] = {
		JOB_INDEX, "DLRUN_RUN_ID", "DLRUN_STUDY", "DLRUN_STUDY_INDEX", "DLRUN_STUDY_SIZE"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strlen(names[i]) == len && strncmp(names[i], name, len) == 0)
			return true;
	return false;
}

bool job_is_member_variable(const struct kube_run *run, const char *name, size_t len)
{
	const struct strv *own = run->n_members ? run->members[0].env : NULL;

	if (run->n_members && member_is_made(name, len))
		return true;
	for (size_t i = 0; own && i < own->n; i++)
		if (strncmp(own->v[i], name, len) == 0 && own->v[i][len] == '=')
			return true;
	return false;
}

/*
 * Lines
 */

static void member_add_word(struct buf *line, const char *word)
{
	AUTO_BUF struct buf quoted;

	buf_init(&quoted, 5 * strlen(word) + 2);
	job_add_quoted(&quoted, word);
	for (const char *at = quoted.data; *at; at++)
		if (*at == '\n')
			buf_adds(line, "'\"$_nl\"'");
		else
			buf_addc(line, *at);
}

static int member_check_name(const char *pair, size_t len, struct err *err)
{
	bool is_valid = len > 0 && pair[len] == '=' && !isdigit((unsigned char)*pair);

	for (size_t i = 0; i < len; i++)
		is_valid = is_valid && (isalnum((unsigned char)pair[i]) || pair[i] == '_');
	if (is_valid)
		return 0;
	AUTO_FREE char *name = mem_strndup(pair, len), *shown = str_shown(name);
	return err_set(err, E_TARGET_UNSUPPORTED,
		"the variable '%s' differs between members, and a shell cannot set it", shown);
}

static int member_add_line(const struct kube_run *run, const struct kube_member *member,
	struct buf *line, struct err *err)
{
	AUTO_STRV struct strv words = {0};
	int r = 0;

	job_add_command(run, member->command, &words);
	buf_adds(line, BEGIN);
	for (size_t i = 0; r == 0 && i < words.n; i++) {
		r = job_check_text(words.v[i], "the word", err);
		buf_adds(line, " ");
		member_add_word(line, words.v[i]);
	}
	for (size_t i = 0; r == 0 && member->env && i < member->env->n; i++) {
		const char *pair = member->env->v[i];
		size_t len = strcspn(pair, "=");
		if (member_is_made(pair, len))
			continue;
		r = member_check_name(pair, len, err);
		if (r == 0)
			r = job_check_text(pair, "the variable", err);
		if (r < 0)
			return r;
		buf_addf(line, EXPORT "%.*s=", (int)len, pair);
		member_add_word(line, pair + len + 1);
	}
	buf_adds(line, "\n");
	return r;
}

/* false: they are too large. */
static bool member_add_params(const struct kube_run *run, size_t size, struct json *data)
{
	AUTO_BUF struct buf lines = buf_with(LINES_MAX);

	for (size_t i = 0; i < run->n_members; i++) {
		if (run->members[i].params)
			json_print(run->members[i].params, &lines);
		buf_adds(&lines, "\n");
		if ((i + 1) % KUBE_MEMBERS_EACH && i + 1 < run->n_members)
			continue;
		AUTO_FREE char *key = mem_printf(PARAMS "%zu", i / KUBE_MEMBERS_EACH);
		json_set_str(data, key, lines.data);
		size += lines.len;
		if (size > LINES_MAX || buf_check(&lines, key, NULL) < 0)
			return false;
		buf_reset(&lines);
	}
	return true;
}

static void member_remove_params(const struct kube_run *run, struct json *data)
{
	for (size_t i = 0; i * KUBE_MEMBERS_EACH < run->n_members; i++) {
		AUTO_FREE char *key = mem_printf(PARAMS "%zu", i);
		json_remove(data, key);
	}
}

char *job_list_cancelled(const struct kube_run *run)
{
	AUTO_FREE bool *marks = mem_alloc(run->n_members + 1, sizeof(*marks));

	for (size_t i = 0; i < run->n_members; i++)
		marks[i] = run->members[i].is_cancelled;
	return kube_list_indexes(marks, (int)run->n_members);
}

static void member_add_cancelled(const struct kube_run *run, struct json *data)
{
	for (size_t i = 0; i < run->n_members; i++) {
		AUTO_FREE char *key = mem_printf(KUBE_STUDY_CANCEL "%zu", i);
		if (run->members[i].is_cancelled)
			json_set_str(data, key, "");
	}
}

int job_members(const struct job *job, struct json *data, struct err *err)
{
	const struct kube_run *run = job->run;
	AUTO_BUF struct buf lines = buf_with(LINES_MAX + 1);
	size_t size = 0;

	for (size_t i = 0; i < run->n_members; i++) {
		int r = member_add_line(run, &run->members[i], &lines, err);
		if (r < 0)
			return r;
		if (size + lines.len > LINES_MAX || buf_check(&lines, "its members", NULL) < 0) {
			err_set(err, E_DATA_LIMIT,
				"the commands of the %zu members are over %d KiB together, which "
				"is all that a cluster takes",
				run->n_members, LINES_MAX >> 10);
			return err_hint(
				err, "dlrun sweep -- ./run.sh {lr}   # a script has the rest");
		}
		if ((i + 1) % KUBE_MEMBERS_EACH && i + 1 < run->n_members)
			continue;
		AUTO_FREE char *key = mem_printf(MEMBERS "%zu", i / KUBE_MEMBERS_EACH);
		json_set_str(data, key, lines.data);
		size += lines.len;
		buf_reset(&lines);
	}
	if (run->n_members && run->members[0].params && !member_add_params(run, size, data))
		member_remove_params(run, data);
	member_add_cancelled(run, data);
	return 0;
}

/*
 * Reading
 */

/* The line of a member in entries of that name, without its end; or NULL. The caller frees. */
static char *member_line(const struct json *config, const char *entry, int index)
{
	AUTO_FREE char *key = mem_printf("%s%d", entry, index / KUBE_MEMBERS_EACH);
	const char *text = json_get_str(json_get(config, "data"), key);

	for (int i = 0; text && i < index % KUBE_MEMBERS_EACH; i++) {
		text = strchr(text, '\n');
		text = text ? text + 1 : NULL;
	}
	return text && *text ? mem_strndup(text, strcspn(text, "\n")) : NULL;
}

/* A word as member_add_word makes it; NULL: there is none. The caller frees. */
static char *member_take_word(const char **at)
{
	static const char newline[] = "\"$_nl\"", quote[] = "\\'";
	AUTO_BUF struct buf word = buf_with(LINES_MAX);
	const char *text = *at;

	while (*text && *text != ' ' && *text != ';') {
		size_t len = *text == '\'' ? strcspn(text + 1, "'") : 0;
		if (*text == '\'' && text[1 + len]) {
			buf_add(&word, text + 1, len);
			text += len + 2;
		} else if (str_starts(text, newline)) {
			buf_addc(&word, '\n');
			text += strlen(newline);
		} else if (str_starts(text, quote)) {
			buf_addc(&word, '\'');
			text += strlen(quote);
		} else {
			return NULL;
		}
	}
	if (text == *at)
		return NULL;
	*at = text;
	return buf_take(&word);
}

static bool member_take_variable(const char **at, struct strv *ret)
{
	size_t len = strcspn(*at, "=");
	const char *value = *at + len + 1;

	if ((*at)[len] != '=')
		return false;
	AUTO_FREE char *name = mem_strndup(*at, len), *word = member_take_word(&value);
	if (!word)
		return false;
	strv_addf(ret, "%s=%s", name, word);
	*at = value;
	return true;
}

int kube_member_read(const struct json *config, int index, struct strv *ret_words,
	struct strv *ret_env, struct err *err)
{
	AUTO_FREE char *line = index >= 0 ? member_line(config, MEMBERS, index) : NULL;
	const char *at = line && str_starts(line, BEGIN) ? line + strlen(BEGIN) : NULL;

	while (at && *at == ' ') {
		at++;
		char *word = member_take_word(&at);
		if (word)
			strv_add_take(ret_words, word);
		else
			at = NULL;
	}
	while (at && str_starts(at, EXPORT)) {
		at += strlen(EXPORT);
		if (!member_take_variable(&at, ret_env))
			at = NULL;
	}
	if (at && !*at && ret_words->n > 0)
		return 0;
	return err_set(err, E_DATA, "the study has no words for its member %d", index);
}

struct json *kube_member_params(const struct json *config, int index)
{
	AUTO_FREE char *line = index >= 0 ? member_line(config, PARAMS, index) : NULL;
	struct json *json = NULL;

	if (!line || json_parse(line, strlen(line), LINES_MAX, "params", &json, NULL) < 0)
		return NULL;
	if (json_kind(json) == JSON_OBJECT)
		return json;
	json_free(json);
	return NULL;
}
