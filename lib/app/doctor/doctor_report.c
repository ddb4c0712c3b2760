/* SPDX-License-Identifier: Apache-2.0 */
#include "app/doctor/doctor.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/loop/library.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/store/store.h"
#include "snap/git/repo.h"
#include "targets/target_list.h"

enum {
	LINE_BYTES = 256 << 10,
	RUNS_SHOWN = 20,
	SECRET_MIN = 6,
	TOKEN_MIN = 16,
	WORD_MAX = 1024,
	FILE_MAX = 64 << 10
};

static const char hidden[] = "(hidden)";

/*
 * Redaction
 */

static const char ends[] = " \t\r\n\"<>"; /* of a word that has no quotes */

static bool redact_is_word(char c)
{
	return c == '_' || c == '-' || str_is_digit(c) || (c >= 'a' && c <= 'z') ||
	       (c >= 'A' && c <= 'Z');
}

/* Also what dlrun does not warn of elsewhere: a report is published. */
static bool redact_is_secret(const char *name)
{
	static const char *const last[] = {"token", "password", "passwd", "_pwd", "secret",
		"apikey", "accesskey", "credential", "signature"};
	AUTO_FREE char *lower = str_lower(name, strlen(name));

	for (size_t i = 0; i < ARRAY_LEN(last); i++)
		if (str_ends(lower, last[i]))
			return true;
	return str_is_word_of(lower, "auth cookie pass pw sig") || config_name_is_secret(name);
}

/* Bytes before the first of stops, WORD_MAX at most: each word is looked at more than once. */
static size_t redact_span(const char *s, const char *stops)
{
	size_t n = 0;

	while (n < WORD_MAX && s[n] && !strchr(stops, s[n]))
		n++;
	return n;
}

/* Bytes at s that are the value of a variable whose name says that it is a secret. A short value is
 * in half of all texts. */
static size_t redact_env(const char *s, const char *const *env)
{
	size_t longest = 0;

	for (; env && *env; env++) {
		const char *value = strchr(*env, '=');
		size_t len = value ? strlen(value + 1) : 0;
		if (len < SECRET_MIN || len <= longest || strncmp(s, value + 1, len) != 0)
			continue;
		AUTO_FREE char *name = mem_strndup(*env, (size_t)(value - *env));
		if (redact_is_secret(name))
			longest = len;
	}
	return longest;
}

/* Bytes of a word at s that has the form of a token. */
static size_t redact_token(const char *s)
{
	static const char *const starts[] = {"eyJ", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-",
		"hf_", "sk-", "xoxb-", "xoxp-", "AKIA", "ASIA", "dckr_pat_", "nvapi-", "wandb_v1_"};
	size_t len = 0;

	for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
		if (!str_starts(s, starts[i]))
			continue;
		while (redact_is_word(s[len]) || (s[len] && strchr(".+/=", s[len])))
			len++;
		return len >= TOKEN_MIN ? len : 0;
	}
	return 0;
}

/* Bytes of a value at s: a value in quotes goes to its quote, one in escaped quotes to the quote
 * around them; marks at the end of another may be of the sentence. *ret_quote: bytes of a quote
 * before it. */
static size_t redact_value(const char *s, size_t *ret_quote)
{
	bool escaped = s[0] == '\\' && s[1] == '"';
	char quote = s[escaped];
	size_t n = 0;

	*ret_quote = 0;
	if (quote != '"' && quote != '\'') {
		n = strchr("[{", *s) ? 0 : strcspn(s, ends);
		while (n && strchr(",;:)'}]\\", s[n - 1]))
			n--;
		return n;
	}
	s += *ret_quote = escaped + 1U;
	while (s[n] && s[n] != quote)
		n += s[n] == '\\' && s[n + 1] ? 2 : 1;
	return n;
}

/* Bytes at s of the name of a secret or of a kind of login, with all that is before its value; 0:
 * there is none. */
static size_t redact_label(const char *s)
{
	size_t n = 0, at, gap;

	while (redact_is_word(s[n]))
		n++;
	AUTO_FREE char *name = mem_strndup(s, n);
	for (char *c = name; *c; c++)
		*c = *c == '-' ? '_' : *c;
	at = n + (s[n] == '\\' && s[n + 1] == '"');
	at += s[at] == '"' || s[at] == '\'';
	gap = strspn(s + at, " ");
	at += gap;
	if (strcasecmp(name, "bearer") == 0 || strcasecmp(name, "basic") == 0)
		return gap ? at : 0;
	if (!redact_is_secret(name + strspn(name, "_")))
		return 0;
	if (s[at] == '=' || s[at] == ':')
		return at + 1 + strspn(s + at + 1, " ");
	return *s == '-' && gap && s[at] != '-' ? at : 0;
}

static bool redact_named(const char *s, size_t *ret_at, size_t *ret_len)
{
	size_t at = redact_label(s), quote;

	if (at == 0)
		return false;
	*ret_len = redact_value(s + at, &quote);
	*ret_at = at + quote;
	return *ret_len > 0;
}

/* Bytes of "user:password", which ends with "@"; s is behind the slashes of a URL. Either may hold
 * an "@", a password a slash: what is behind the colon is no port then. */
static size_t redact_userinfo(const char *s)
{
	size_t len = redact_span(s, " \t\r\n\"<>/"), colon = redact_span(s, " \t\r\n\"<>/:");
	size_t user = 0;

	if (s[len] == '/' && colon + 1 < len && !memchr(s, '@', len) &&
		strspn(s + colon + 1, "0123456789") < len - colon - 1)
		len = redact_span(s, ends);
	for (size_t i = 0; i < len; i++)
		if (s[i] == '@')
			user = i;
	return user;
}

/* The same without a URL, s is at the beginning of a word. Targets ("ssh:me@host") and images with
 * a digest ("name:tag@sha256:…") look alike. */
static size_t redact_login(const char *s)
{
	size_t n = 0, len;

	while (n < WORD_MAX && (redact_is_word(s[n]) || s[n] == '.'))
		n++;
	if (n == 0 || s[n] != ':' || str_starts(s, "ssh:") || str_starts(s, "kube:"))
		return 0;
	len = redact_span(s + n + 1, " \t\r\n\"<>/@',;");
	return len && s[n + 1 + len] == '@' && !str_starts(s + n + 1 + len, "@sha") ? n + 1 + len
										    : 0;
}

/* Whether something at text is to be hidden: *ret_len bytes, *ret_at bytes further on. begin: of
 * the whole text; url: it is in one. */
static bool redact_find(const char *text, const char *begin, bool url, const char *const *env,
	size_t *ret_at, size_t *ret_len)
{
	bool starts = text == begin || !redact_is_word(text[-1]);

	*ret_at = 0;
	*ret_len = redact_env(text, env);
	if (!*ret_len && text - begin > 2 && strncmp(text - 3, "://", 3) == 0)
		*ret_len = redact_userinfo(text);
	if (!*ret_len && starts)
		*ret_len = redact_token(text);
	if (!*ret_len && starts)
		*ret_len = redact_login(text);
	if (!*ret_len && url && *text == '?') {
		*ret_at = 1;
		*ret_len = strcspn(text + 1, ends);
	}
	return *ret_len || (starts && redact_named(text, ret_at, ret_len));
}

char *doctor_redact(const char *text, const char *home, const char *const *env)
{
	size_t home_len = home && home[0] == '/' && home[1] ? strlen(home) : 0;
	const char *begin = text;
	bool url = false;
	AUTO_BUF struct buf out = buf_with(LINE_BYTES);

	for (size_t n; *text; text += n) {
		size_t at, len;

		url = (url || str_starts(text, "://")) && !strchr(ends, *text);
		n = str_utf8_len(text, strnlen(text, 4));
		n += n == 0;
		if (home_len && strncmp(text, home, home_len) == 0 &&
			!redact_is_word(text[home_len])) {
			n = home_len;
			buf_addc(&out, '~');
		} else if (redact_find(text, begin, url, env, &at, &len)) {
			n = at + len;
			str_escape(&out, text, at);
			buf_adds(&out, hidden);
		} else {
			str_escape(&out, text, n);
		}
	}
	return buf_take(&out);
}

/*
 * Lines
 */

struct report {
	const struct doctor *doctor;
	struct buf *out;
};

static void report_line(const struct report *report, const char *fmt, ...) ERR_PRINTF(2, 3);
static void report_line(const struct report *report, const char *fmt, ...)
{
	const struct session *session = report->doctor->session;
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *text = mem_vprintf(fmt, args);
	va_end(args);
	AUTO_FREE char *clean =
		doctor_redact(text, env_get(session->env.env, "HOME"), session->env.env);
	buf_addf(report->out, "%s\n", clean);
}

static void report_head(const struct report *report, const char *title)
{
	buf_addf(report->out, "\n## %s\n\n", title);
}

static void report_error(const struct report *report, const struct err *error)
{
	report_line(report, "not known: %s (%s)", error->message ? error->message : "",
		err_info(error->id)->name);
}

/*
 * Sections
 */

static void report_libraries(const struct report *report)
{
	static const char *const files[] = {
		"libarchive.so.13", "libcurl.so.4", repo_library_file, "libssh2.so.1"};
	AUTO_STRV struct strv found = {0};

	report_head(report, "Libraries");
	library_list(files, ARRAY_LEN(files), &found);
	vec_foreach (char *, name, &found)
		report_line(report, "%s", *name);
}

/* Whether the value of a key, or of a member below one, may hold anything: commands, variables. */
static bool report_is_private(const char *key)
{
	return str_is_word_of(key, "command before run setup.run annotations labels") ||
	       config_name_is_secret(key);
}

/* A copy of value for people: of variables only the names. The caller frees it with json_free. */
static struct json *report_value(const char *key, const struct json *value, bool names_only)
{
	struct json *copy;

	if (json_kind(value) == JSON_OBJECT || json_kind(value) == JSON_ARRAY) {
		bool object = json_kind(value) == JSON_OBJECT;
		if (key && report_is_private(key))
			return json_string(hidden);
		copy = object ? json_object() : json_array();
		for (const struct json *item = json_first(value); item; item = json_next(item)) {
			bool below = names_only || str_eq(key, "env");
			struct json *member =
				report_value(object ? json_key(item) : NULL, item, below);
			if (object)
				json_set(copy, json_key(item), member);
			else
				json_add(copy, member);
		}
		return copy;
	}
	return names_only || (key && report_is_private(key)) ? json_string(hidden)
							     : json_clone(value);
}

static void report_config(const struct report *report)
{
	AUTO_ERR struct err error = {0};
	AUTO_JSON struct json *json = NULL;
	struct config *config;

	report_head(report, "Configuration");
	if (session_config(report->doctor->session, &config, &error) < 0) {
		report_error(report, &error);
		return;
	}
	json = config_to_json(config);
	for (const struct json *item = json_first(json); item; item = json_next(item)) {
		const char *file = json_get_str(item, "file"), *from = json_get_str(item, "source");
		int64_t line = json_get_int(item, "line", 0);
		if (str_eq(from, "default"))
			continue;
		AUTO_JSON struct json *value =
			report_value(json_key(item), json_get(item, "value"), false);
		AUTO_BUF struct buf text = buf_with(LINE_BYTES);

		json_print(value, &text);
		AUTO_FREE char *at = line ? mem_printf(":%lld", (long long)line) : NULL;
		report_line(report, "%s = %s (%s%s)", json_key(item), text.data, file ? file : from,
			at ? at : "");
	}
	report_line(report, "all other keys have their defaults");
}

static void report_targets(const struct report *report)
{
	AUTO_TARGET_LIST struct target_list list = {0};
	AUTO_ERR struct err error = {0};

	report_head(report, "Targets");
	if (target_list_make(report->doctor->session, &(struct strv){0}, &list, &error) < 0) {
		report_error(report, &error);
		return;
	}
	if (list.error)
		report_line(report, "no contexts: %s", list.error);
	vec_foreach (const struct target_item, item, &list.items)
		report_line(report, "%s: %s%s%s, %zu hosts", item->name, item->ops->kind,
			item->is_configured ? ", configured" : "",
			item->is_default ? ", default" : "", item->hosts.n);
}

static void report_row(const struct report *report, const struct doctor_row *row)
{
	report_line(report, "%s %s: %s", doctor_status_name(row->status), row->id,
		row->found ? row->found : "");
	if (row->cause)
		report_line(report, "    %s", row->cause);
	if (row->fix)
		report_line(report, "    fix: %s", row->fix);
	vec_foreach (const struct doctor_row, more, &row->more)
		report_row(report, more);
}

static void report_runs(const struct report *report)
{
	const struct doctor *doctor = report->doctor;
	AUTO(run_list_done) struct run_list runs = {0};
	struct store_filter filter = {.limit = RUNS_SHOWN};
	AUTO_ERR struct err error = {0};
	struct store *store;

	report_head(report, "Last runs");
	if (doctor->error) {
		report_error(report, doctor->error);
		return;
	}
	AUTO_FREE char *path = fs_join(doctor->session->dirs.state, "runs.db");
	if (access(path, F_OK) < 0) {
		report_line(report, "none");
		return;
	}
	if (session_store(doctor->session, &store, &error) < 0 ||
		store_list(store, &filter, &runs, &error) < 0) {
		report_error(report, &error);
		return;
	}
	vec_foreach (struct run *, run, &runs) {
		char when[CLOCK_TEXT_SIZE];
		struct run_exit exit;
		run_get_exit(*run, &exit);
		const char *why = exit.known ? exit.reason : NULL;
		const struct run_reason *reason = run_reason(why);
		clock_format(run_submitted_ms(*run), when);
		report_line(report, "%s: %s, submitted %s to %s, attempts %d%s%s%s%s", run_id(*run),
			run_state_name(run_state(*run)), when, run_target(*run), run_attempts(*run),
			why ? ", " : "", why ? why : "", reason ? ", " : "",
			reason ? err_info(reason->id)->name : "");
	}
}

void doctor_report(const struct doctor *doctor, const char *version, const struct doctor_row *rows,
	struct buf *out)
{
	struct report report = {.doctor = doctor, .out = out};

	buf_adds(out,
		"# dlrun report\n\n"
		"Read this before you send it: it names hosts, registries, targets and runs.\n"
		"It holds no environment, no login, no command; what looked like a secret is "
		"\"(hidden)\".\n");
	const struct session_env *env = &report.doctor->session->env;
	AUTO_BUF struct buf text = {0};
	struct utsname name;

	report_head(&report, "System");
	report_line(&report, "dlrun %s", version);
	if (uname(&name) == 0)
		report_line(&report, "%s %s %s", name.sysname, name.release, name.machine);
	if (fs_read("/etc/os-release", FILE_MAX, &text, NULL, NULL) == 0) {
		const char *pretty = strstr(text.data, "PRETTY_NAME=");
		if (pretty)
			report_line(&report, "%.*s", (int)strcspn(pretty, "\n"), pretty);
	}
	report_line(&report, "%ld CPUs, %s", sysconf(_SC_NPROCESSORS_ONLN),
		env->inside_run ? "inside of a run" : "outside of any run");
	report_libraries(&report);
	report_config(&report);
	report_targets(&report);
	report_head(&report, "Findings");
	for (size_t i = 0; i < doctor_checks_n; i++)
		report_row(&report, &rows[i]);
	report_runs(&report);
}
