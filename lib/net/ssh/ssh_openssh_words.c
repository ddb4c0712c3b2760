/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/ssh_openssh_words.h"

#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { EVIDENCE_MAX = 256 }; /* bytes of a line */

const char ssh_words_verbose[] = "packet.c:sshpkt_vfatal():*,"
				 "channels.c:channel_input_open_failure():*,"
				 "clientloop.c:server_alive_check():*,"
				 "clientloop.c:client_input_channel_req():*,"
				 "mux.c:mux_client_request_session():*,"
				 "mux.c:mux_client_request_stdio_fwd():*,"
				 "sshconnect2.c:ssh_userauth2():*,"
				 "ssh.c:main():*";

/*
 * Lines: "debug1: FILE.c:FUNCTION():LINE (pid=N): TEXT", the first two parts of some only. What
 * comes from the server stands in TEXT, with its line ends escaped.
 */

struct line {
	const char *text;
	size_t len;
	bool is_debug;
};

static const char *skip_tag(const char *text, const char *end)
{
	const char *at = memmem(text, (size_t)(end - text), "():", 3);
	const char *blank = memchr(text, ' ', (size_t)(end - text));

	/* A tag has no blank before its function's name ends. */
	if (!at || !blank || blank < at)
		return text;
	const char *close = memmem(at, (size_t)(end - at), "): ", 3);
	return close ? close + 3 : text;
}

static bool ssh_openssh_words_next_line(const char **at, const char *end, struct line *ret)
{
	if (*at >= end)
		return false;
	const char *newline = memchr(*at, '\n', (size_t)(end - *at));
	const char *stop = newline ? newline : end;
	const char *text = *at;

	*at = newline ? newline + 1 : end;
	ret->is_debug = stop - text > 8 && memcmp(text, "debug", strlen("debug")) == 0;
	if (ret->is_debug)
		text += strlen("debug1: ");
	text = skip_tag(text, stop);
	while (stop > text && (stop[-1] == '\r' || stop[-1] == ' '))
		stop--;
	ret->text = text;
	ret->len = (size_t)(stop - text);
	return true;
}

static bool ssh_openssh_words_has(const struct line *line, const char *words)
{
	return memmem(line->text, line->len, words, strlen(words)) != NULL;
}

static bool begins(const struct line *line, const char *words)
{
	return line->len >= strlen(words) && memcmp(line->text, words, strlen(words)) == 0;
}

void ssh_words_read(const char *text, size_t len, struct ssh_words *ret)
{
	const char *at = text, *end = text + len;
	struct line line;

	*ret = (struct ssh_words){0};
	while (ssh_openssh_words_next_line(&at, end, &line)) {
		bool is_request = begins(&line, "client_input_channel_req: channel ");

		ret->has_open |=
			begins(&line, "Authenticated to ") || begins(&line, "master session id: ");
		ret->has_exit_status |=
			(is_request && ssh_openssh_words_has(&line, " rtype exit-status ")) ||
			begins(&line, "Received exit status from master ");
		ret->has_exit_signal |=
			is_request && ssh_openssh_words_has(&line, " rtype exit-signal ");
		ret->master_is_gone |= begins(&line, "Control master terminated unexpectedly");
	}
}

/*
 * Errors
 */

static const char *const messages[] = {
	[E_SSH_CONFIG] = "ssh cannot use its configuration for %s",
	[E_SSH_HOST_KEY] = "the key of %s is not the one that is known",
	[E_SSH_LOGIN] = "%s does not accept the login",
	[E_SSH_LOST] = "the connection to %s was lost",
	[E_SSH_PORT] = "nothing answers at the port, seen from %s",
	[E_SSH_REFUSED] = "the ssh server of %s does not allow it",
	[E_SSH_UNKNOWN_HOST] = "%s is not known yet",
	[E_SSH_UNREACHABLE] = "%s cannot be reached",
};

/* The first that stands anywhere decides: what follows from it is below it. */
static const struct {
	const char *words;
	enum err_id id;
} causes[] = {
	{"HOST IDENTIFICATION HAS CHANGED", E_SSH_HOST_KEY},
	{"REVOKED HOST KEY", E_SSH_HOST_KEY},
	{" revoked by file ", E_SSH_HOST_KEY},
	{" in revoked keys file ", E_SSH_CONFIG},
	{"Certificate invalid: ", E_SSH_HOST_KEY},
	{"Bad server host key: Invalid key length", E_SSH_CONFIG},
	{" host key is known for ", E_SSH_UNKNOWN_HOST},
	{"Host key verification failed", E_SSH_UNKNOWN_HOST},
	{"Permission denied (", E_SSH_LOGIN},
	{"Too many authentication failures", E_SSH_LOGIN},
	{"authentication methods", E_SSH_LOGIN},
	{"Authentication failed", E_SSH_LOGIN},
	{"Bad configuration option", E_SSH_CONFIG},
	{"bad configuration options", E_SSH_CONFIG},
	{"Bad owner or permissions", E_SSH_CONFIG},
	{"Unable to negotiate", E_SSH_CONFIG},
	{"Could not resolve hostname", E_SSH_UNREACHABLE},
	{"connect to host ", E_SSH_UNREACHABLE},
	{"UNKNOWN port 65535", E_SSH_UNREACHABLE}, /* a proxy's connection */
	{"open failed: connect failed", E_SSH_PORT},
	{"Stdio forwarding request failed", E_SSH_REFUSED},
	{"stdio forwarding failed", E_SSH_REFUSED},
	{"open failed: ", E_SSH_REFUSED},
	{"Session open refused", E_SSH_REFUSED},
	{"session request failed", E_SSH_REFUSED},
	{"banner exchange", E_SSH_UNREACHABLE},
};

static bool stands_in(const char *text, const char *words)
{
	return text && strstr(text, words);
}

/* *ret_before: it is a host that stands before the one that is meant. */
static enum err_id cause_of(const char *text, const char *said, bool *ret_before)
{
	struct ssh_words words;

	*ret_before = false;
	for (size_t i = 0; i < ARRAY_LEN(causes); i++) {
		if (stands_in(text, causes[i].words))
			return causes[i].id;
		*ret_before = stands_in(said, causes[i].words);
		if (*ret_before)
			return causes[i].id;
	}
	ssh_words_read(text, strlen(text), &words);
	return words.has_open ? E_SSH_LOST : E_SSH_UNREACHABLE;
}

#define REMOVAL "  ssh-keygen -f "

/* Lines that would only push better ones out. */
static bool ssh_openssh_words_is_idle(const struct line *line)
{
	static const char *const idle[] = {"@", "IT IS POSSIBLE", "Someone could be", "It is also",
		"Please contact", "Add correct host key", "  remove with", REMOVAL,
		"This could mean", "impersonate", "The fingerprint for", "Authenticated to",
		"Permanently added"};

	if (line->len == 0 || line->is_debug)
		return true;
	for (size_t i = 0; i < ARRAY_LEN(idle); i++)
		if (begins(line, idle[i]))
			return true;
	return false;
}

static void ssh_openssh_words_add_evidence(const char *text, struct err *err)
{
	const char *at = text, *end = text + strlen(text);
	struct line line;

	while (ssh_openssh_words_next_line(&at, end, &line)) {
		if (ssh_openssh_words_is_idle(&line))
			continue;
		AUTO_BUF struct buf shown = buf_with(4 * EVIDENCE_MAX);

		str_escape(&shown, line.text, line.len < EVIDENCE_MAX ? line.len : EVIDENCE_MAX);
		err_evidence(err, "%s%s", begins(&line, "ssh: ") ? "" : "ssh: ", shown.data);
	}
}

/* The command that ssh proposes for a key that has changed. A hint gets pasted: what a server says
 * stands behind words of ssh, never at the beginning of a line. */
static bool find_removal(const char *text, struct line *ret)
{
	const char *end = text + strlen(text);

	while (ssh_openssh_words_next_line(&text, end, ret)) {
		if (!ret->is_debug && ret->len <= EVIDENCE_MAX && begins(ret, REMOVAL))
			return true;
	}
	return false;
}

static bool is_revoked(const char *text)
{
	return strstr(text, "REVOKED HOST KEY") || strstr(text, " revoked by file ");
}

static void hint_key(const char *text, const char *host, struct err *err)
{
	struct line line;
	AUTO_BUF struct buf shown = buf_with(4 * EVIDENCE_MAX);

	if (is_revoked(text) || !find_removal(text, &line)) {
		err_hint(err, "ask who runs %s for its key", host);
		return;
	}
	str_escape(&shown, line.text + strspn(line.text, " "), line.len - strspn(line.text, " "));
	err_hint(err, "%s   # only if you know why it has changed", shown.data);
}

static void ssh_openssh_words_add_hint(
	enum err_id id, const char *text, const char *host, struct err *err)
{
	if (id == E_SSH_UNKNOWN_HOST)
		err_hint(err, "ssh %s true   # or --accept-new-host", host);
	else if (id == E_SSH_HOST_KEY)
		hint_key(text, host, err);
	else if (id == E_SSH_CONFIG)
		err_hint(err, "ssh -G %s", host);
	else if (id != E_SSH_REFUSED && id != E_SSH_PORT)
		err_hint(err, "ssh -v %s true", host);
}

int ssh_words_error(const char *text, const char *said, const char *host, struct err *err)
{
	bool is_before;
	enum err_id id = cause_of(text, said, &is_before);
	AUTO_FREE char *shown = str_shown(host);
	AUTO_BUF struct buf message = buf_with(1024);
	const char *form = id == E_SSH_HOST_KEY && is_revoked(is_before ? said : text)
				   ? "the key of %s has been revoked"
				   : messages[id];
	const char *gap = strstr(form, "%s");

	buf_add(&message, form, (size_t)(gap - form));
	buf_addf(&message, "%s%s", is_before ? "a host on the way to " : "", shown);
	buf_adds(&message, gap + 2);
	int r = err_set(err, id, "%s", message.data);
	if (said)
		ssh_openssh_words_add_evidence(said, err);
	ssh_openssh_words_add_evidence(text, err);
	ssh_openssh_words_add_hint(id, is_before ? said : text, host, err);
	return r;
}
