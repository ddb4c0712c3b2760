/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh.h"
#include "net/ssh/ssh_config.h"
#include "net/ssh/ssh_keys.h"
#include "net/ssh/ssh_libssh2_impl.h"
#include "net/ssh/ssh_openssh.h"

/* Algorithms of libssh2, as OpenSSH prefers them, and the types of keys that they are for. The last
 * need RFC 8332. */
static const struct {
	const char *name, *key;
} algorithms[] = {
	{"ssh-ed25519", "ssh-ed25519"},
	{"ecdsa-sha2-nistp256", "ecdsa-sha2-nistp256"},
	{"ecdsa-sha2-nistp384", "ecdsa-sha2-nistp384"},
	{"ecdsa-sha2-nistp521", "ecdsa-sha2-nistp521"},
	{"rsa-sha2-512", "ssh-rsa"},
	{"rsa-sha2-256", "ssh-rsa"},
};
enum { N_RSA = 2 };

static size_t n_usable(void)
{
	return ARRAY_LEN(algorithms) - (ssh_libssh2_has_rsa_sha2() ? 0 : N_RSA);
}

static void ssh_libssh2_auth_add_name(struct buf *out, const char *name)
{
	buf_addf(out, "%s%s", out->len > 0 ? "," : "", name);
}

static void add_usable(const struct ssh_known *known, bool want_known, struct buf *out)
{
	for (size_t i = 0; i < n_usable(); i++) {
		if (ssh_known_has_type(known, algorithms[i].key) == want_known)
			ssh_libssh2_auth_add_name(out, algorithms[i].name);
	}
}

/* Of the configuration's list those that are not about certificates or devices, as numbers. */
static size_t read_wanted(const char *list, size_t out[static ARRAY_LEN(algorithms)])
{
	size_t n = 0;

	for (const char *at = list, *end; *at; at = *end ? end + 1 : end) {
		end = strchrnul(at, ',');
		for (size_t i = 0; i < ARRAY_LEN(algorithms) && n < ARRAY_LEN(algorithms); i++) {
			if (strlen(algorithms[i].name) == (size_t)(end - at) &&
				memcmp(algorithms[i].name, at, (size_t)(end - at)) == 0)
				out[n++] = i;
		}
	}
	return n;
}

static bool is_usual(const size_t *wanted, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (wanted[i] != i)
			return false;
	}
	return n == ARRAY_LEN(algorithms);
}

static void ssh_libssh2_auth_load(struct ssh_libssh2 *ssh)
{
	const struct ssh_libssh2_login *login = &ssh->login;

	ssh_known_init(&ssh->known, login->hostname, login->port, login->key_alias);
	for (size_t i = 0; login->user_known_hosts && login->user_known_hosts[i]; i++)
		ssh_known_load(&ssh->known, login->user_known_hosts[i]);
	for (size_t i = 0; login->global_known_hosts && login->global_known_hosts[i]; i++)
		ssh_known_load(&ssh->known, login->global_known_hosts[i]);
}

/* A list of the user's own is kept in its order, whatever is known: where another key comes before
 * the one that would be asked for here, the OpenSSH client asks for that. */
static bool add_wanted(struct ssh_libssh2 *ssh, const size_t *wanted, size_t n, struct buf *out)
{
	bool has_known = ssh_known_has_keys(&ssh->known);

	if (n == 0 || wanted[0] >= n_usable() ||
		(has_known && !ssh_known_has_type(&ssh->known, algorithms[wanted[0]].key))) {
		ssh_libssh2_fall_back(ssh,
			"libssh2 %s cannot ask for the host's key as HostKeyAlgorithms says",
			libssh2_version(0));
		return false;
	}
	for (size_t i = 0; i < n; i++) {
		if (wanted[i] < n_usable())
			ssh_libssh2_auth_add_name(out, algorithms[wanted[i]].name);
	}
	return true;
}

static bool ssh_libssh2_auth_add_known(struct ssh_libssh2 *ssh, struct buf *out)
{
	add_usable(&ssh->known, true, out);
	if (out->len == 0 && ssh_known_has_keys(&ssh->known)) {
		ssh_libssh2_fall_back(ssh,
			"the host is known by %s only, which libssh2 %s cannot use",
			ssh_known_has_type(&ssh->known, "ssh-rsa") ? "an RSA key" : "a type of key",
			libssh2_version(0));
		return false;
	}
	add_usable(&ssh->known, false, out);
	return true;
}

char *ssh_libssh2_host_key_types(struct ssh_libssh2 *ssh)
{
	const char *list = ssh->login.host_key_types;
	size_t wanted[ARRAY_LEN(algorithms)];
	size_t n = list ? read_wanted(list, wanted) : 0;
	AUTO_BUF struct buf out = buf_with(1024);

	ssh_libssh2_auth_load(ssh);
	if (ssh->known.is_cut) {
		ssh_libssh2_fall_back(
			ssh, "the files of known hosts are larger than dlrun reads them");
		return NULL;
	}
	if (ssh_known_has_ca(&ssh->known)) {
		ssh_libssh2_fall_back(ssh,
			"the host is known by a certificate authority, and libssh2 knows no "
			"certificates");
		return NULL;
	}
	bool is_own = list && !is_usual(wanted, n);
	if (is_own ? !add_wanted(ssh, wanted, n, &out) : !ssh_libssh2_auth_add_known(ssh, &out))
		return NULL;
	return buf_take(&out);
}

/*
 * The key that the host has presented
 */

struct shown {
	const char *blob;
	size_t len;
	char *type;
	char print[SSH_FINGERPRINT_SIZE];
	const char *where; /* the line of known_hosts that decided, or NULL */
};

static int ssh_libssh2_auth_add_facts(const struct shown *shown, struct err *err)
{
	err_evidence(err, "its %s key has the fingerprint %s", shown->type, shown->print);
	if (shown->where)
		err_evidence(err, "known by %s", shown->where);
	return -(int)err->code;
}

static int refuse_changed(struct ssh_libssh2 *ssh, const struct shown *shown, struct err *err)
{
	err_set(err, E_SSH_HOST_KEY,
		"the host key of %s has changed: another machine has its address, or somebody "
		"intercepts the connection",
		ssh->login.name);
	err_hint(
		err, "ssh-keygen -R '%s'   # only if you know why it has changed", ssh->known.name);
	return ssh_libssh2_auth_add_facts(shown, err);
}

static int refuse_revoked(struct ssh_libssh2 *ssh, const struct shown *shown, struct err *err)
{
	err_set(err, E_SSH_HOST_KEY, "the key of %s has been revoked", ssh->login.name);
	err_hint(err, "ask who runs %s for its key", ssh->login.name);
	return ssh_libssh2_auth_add_facts(shown, err);
}

static int refuse_unknown(struct ssh_libssh2 *ssh, const struct shown *shown, struct err *err)
{
	if (shown->where)
		err_set(err, E_SSH_UNKNOWN_HOST,
			"the host key of %s is of type %s, known_hosts has others", ssh->login.name,
			shown->type);
	else
		err_set(err, E_SSH_UNKNOWN_HOST, "the host key of %s is not known yet",
			ssh->login.name);
	/* Of a host that has other keys no new one is accepted without the user. */
	err_hint(err, shown->where ? "ssh %s true" : "ssh %s true   # or --accept-new-host",
		ssh->login.name);
	return ssh_libssh2_auth_add_facts(shown, err);
}

static void ssh_libssh2_auth_remember(struct ssh_libssh2 *ssh, const struct shown *shown)
{
	AUTO_ERR struct err err = {0};
	const char *const *files = ssh->login.user_known_hosts;
	const char *file = files ? files[0] : NULL;

	if (!file)
		return;
	if (ssh_known_save(file, ssh->known.name, ssh->login.hash_known_hosts, shown->blob,
		    shown->len, &err) < 0)
		ssh_libssh2_print(ssh, false, "the key of %s is not remembered: %s",
			ssh->login.name, err.message);
	else
		ssh_libssh2_print(ssh, false, "%s is known from now on: %s %s in %s",
			ssh->login.name, shown->type, shown->print, file);
}

/* As OpenSSH takes it: yes, or the fingerprint. */
static bool ssh_libssh2_auth_is_yes(const char *answer, const struct shown *shown)
{
	AUTO_FREE char *lower = str_lower(answer, strlen(answer));

	return str_eq(lower, "yes") || str_eq(answer, shown->print);
}

static int ssh_libssh2_auth_prompt_host(
	struct ssh_libssh2 *ssh, const struct shown *shown, struct err *err)
{
	AUTO_BUF struct buf answer = buf_with(SSH_ANSWER_MAX);
	AUTO_FREE char *question = mem_printf(
		"%s%s: its %s key has the fingerprint %s. Trust it? (yes, no, or the "
		"fingerprint)",
		ssh->login.name,
		shown->where ? " shows a key of another type than is known" : " is not known yet",
		shown->type, shown->print);

	int r = ssh_libssh2_prompt(ssh, question, false, &answer, err);
	if (r < 0)
		return r;
	if (r == 0 || !ssh_libssh2_auth_is_yes(answer.data, shown))
		return refuse_unknown(ssh, shown, err);
	ssh_libssh2_auth_remember(ssh, shown);
	return 0;
}

static int trust_new(struct ssh_libssh2 *ssh, const struct shown *shown, struct err *err)
{
	bool takes_new =
		ssh->login.strict == SSH_STRICT_ACCEPT_NEW || ssh->login.strict == SSH_STRICT_OFF;

	/* A host that has other keys is not new: only the user can know. */
	if (takes_new && !shown->where) {
		ssh_libssh2_auth_remember(ssh, shown);
		return 0;
	}
	if (ssh->login.strict == SSH_STRICT_ASK && ssh->login.has_askpass)
		ssh_libssh2_fall_back(ssh, "a program asks about the host's key (SSH_ASKPASS)");
	if (ssh->login.strict == SSH_STRICT_YES || !ssh_libssh2_may_prompt(ssh))
		return refuse_unknown(ssh, shown, err);
	return ssh_libssh2_auth_prompt_host(ssh, shown, err);
}

static int ssh_libssh2_auth_decide(struct ssh_libssh2 *ssh, struct shown *shown, struct err *err)
{
	switch (ssh_known_check(&ssh->known, shown->blob, shown->len, &shown->where)) {
	case SSH_KNOWN_OK:
		return 0;
	case SSH_KNOWN_CHANGED:
		return refuse_changed(ssh, shown, err);
	case SSH_KNOWN_REVOKED:
		return refuse_revoked(ssh, shown, err);
	case SSH_KNOWN_CA_ONLY: /* not asked for then */
	case SSH_KNOWN_OTHER:
	case SSH_KNOWN_NEW:
		break;
	}
	return trust_new(ssh, shown, err);
}

int ssh_libssh2_trust(struct ssh_libssh2 *ssh, struct err *err)
{
	struct shown shown = {0};

	shown.blob = libssh2_session_hostkey(ssh->session, &shown.len, NULL);
	AUTO_FREE char *type = shown.blob ? ssh_key_type(shown.blob, shown.len) : NULL;
	if (!type)
		return err_set(
			err, E_SSH_HOST_KEY, "%s sent an unreadable host key", ssh->login.name);
	if (str_eq(type, "ssh-rsa") &&
		ssh_key_rsa_bits(shown.blob, shown.len) < ssh_libssh2_rsa_bits(ssh)) {
		ssh_libssh2_fall_back(ssh, "the host's key is smaller than RequiredRSASize");
		return err_set(err, E_SSH_CONFIG, "the RSA key of %s is smaller than allowed",
			ssh->login.name);
	}
	shown.type = type;
	ssh_key_fingerprint(shown.blob, shown.len, shown.print);
	int r = ssh_libssh2_auth_decide(ssh, &shown, err);
	if (r == 0)
		buf_add(&ssh->trusted, shown.blob, shown.len);
	return r;
}

enum { PASSPHRASES_MAX = 3 };

/* Why a key was left out, for the sentence that says why OpenSSH has to do it. */
enum excluded {
	USABLE,
	RSA,
	FIDO,
	CERTIFICATE,
	OTHER,
	NOT_ALLOWED,
	SMALL,
	NO_PASSPHRASE,
	READABLE,
	N_EXCLUDED
};

static const char *const excluded_text[N_EXCLUDED] = {
	[RSA] = "RSA",
	[FIDO] = "FIDO",
	[CERTIFICATE] = "certificate",
	[OTHER] = "of another type",
	[NOT_ALLOWED] = "not among PubkeyAcceptedAlgorithms",
	[SMALL] = "of RSA smaller than RequiredRSASize",
	[NO_PASSPHRASE] = "encrypted",
	[READABLE] = "readable by others",
};

struct identity {
	const char *path;
	struct ssh_key_file key;
	bool in_agent;
};

struct auth {
	struct ssh_libssh2 *ssh;
	LIBSSH2_AGENT *agent;
	struct identity identities[SSH_IDENTITIES_MAX];
	size_t n_identities;
	unsigned n_tried, n_excluded[N_EXCLUDED];
	char *no_agent; /* why; NULL: it answers, or is not asked */
};

static void ssh_libssh2_auth_done(struct auth *auth)
{
	if (auth->agent)
		libssh2_agent_free(auth->agent);
	free(auth->no_agent);
	for (size_t i = 0; i < auth->n_identities; i++)
		ssh_key_file_done(&auth->identities[i].key);
}

static enum excluded classify(const char *type)
{
	if (!type)
		return OTHER;
	if (str_eq(type, "ssh-ed25519"))
		return USABLE;
	if (strstr(type, "-cert-v01@"))
		return CERTIFICATE;
	if (str_starts(type, "sk-"))
		return FIDO;
	if (str_starts(type, "ecdsa"))
		return USABLE;
	if (str_eq(type, "ssh-rsa"))
		return ssh_libssh2_has_rsa_sha2() ? USABLE : RSA;
	return OTHER;
}

/* All algorithms of keys of that type must be allowed: libssh2 chooses among them. */
static bool ssh_libssh2_auth_is_allowed(const struct ssh_libssh2 *ssh, const char *type)
{
	static const struct {
		const char *type, *algorithm;
	} rows[] = {
		{"ssh-ed25519", "ssh-ed25519"},
		{"ecdsa-sha2-nistp256", "ecdsa-sha2-nistp256"},
		{"ecdsa-sha2-nistp384", "ecdsa-sha2-nistp384"},
		{"ecdsa-sha2-nistp521", "ecdsa-sha2-nistp521"},
		{"ssh-rsa", "rsa-sha2-512"},
		{"ssh-rsa", "rsa-sha2-256"},
	};
	const char *list = ssh->login.user_key_types;

	for (size_t i = 0; list && i < ARRAY_LEN(rows); i++) {
		if (str_eq(type, rows[i].type) && !ssh_list_has(list, rows[i].algorithm))
			return false;
	}
	return true;
}

/* Whether the key is to be tried; counted if it is not. */
static bool ssh_libssh2_auth_is_usable(
	struct auth *auth, const char *type, const void *blob, size_t len)
{
	enum excluded why = classify(type);

	if (why == USABLE && !ssh_libssh2_auth_is_allowed(auth->ssh, type))
		why = NOT_ALLOWED;
	else if (why == USABLE && str_eq(type, "ssh-rsa") &&
		 ssh_key_rsa_bits(blob, len) < ssh_libssh2_rsa_bits(auth->ssh))
		why = SMALL;
	auth->n_excluded[why]++;
	return why == USABLE;
}

/*
 * A login attempt
 */

struct attempt {
	struct auth *auth;
	struct libssh2_agent_publickey *agent_key;
	const struct ssh_key_file *file;
	const char *passphrase;
	bool is_accepted; /* the server would take a signature of it */
};

static int sign_never(LIBSSH2_SESSION *session UNUSED, unsigned char **ret UNUSED,
	size_t *ret_len UNUSED, const unsigned char *data UNUSED, size_t len UNUSED,
	void **abstract)
{
	struct attempt *attempt = *abstract;

	attempt->is_accepted = true;
	return -1;
}

static int step_agent(struct ssh_libssh2 *ssh, void *arg)
{
	const struct attempt *attempt = arg;

	return libssh2_agent_userauth(attempt->auth->agent, ssh->login.user, attempt->agent_key);
}

static int step_probe(struct ssh_libssh2 *ssh, void *arg)
{
	void *abstract = arg;
	const struct buf *blob = &((struct attempt *)arg)->file->blob;

	return libssh2_userauth_publickey(ssh->session, ssh->login.user,
		(const unsigned char *)blob->data, blob->len, sign_never, &abstract);
}

static int step_file(struct ssh_libssh2 *ssh, void *arg)
{
	const struct attempt *attempt = arg;
	const char *user = ssh->login.user;

	return libssh2_userauth_publickey_frommemory(ssh->session, user, strlen(user), NULL, 0,
		attempt->file->text.data, attempt->file->text.len, attempt->passphrase);
}

/* 1: logged in; 0: not by this key; a negative code: no more tries. */
static int ssh_libssh2_auth_evaluate(struct auth *auth, int r, const char *what, struct err *err)
{
	struct ssh_libssh2 *ssh = auth->ssh;

	if (r == 0) {
		ssh_libssh2_print(ssh, true, "logged in with %s", what);
		return 1;
	}
	if (r == SSH_STEP_CANCELED)
		return err_set(err, E_CANCELED, "interrupted");
	log_note("ssh: %s: %s", what, ssh_session_error(ssh, NULL));
	buf_addf(&ssh->tried, "%s%s", ssh->tried.len > 0 ? ", " : "", what);
	auth->n_tried++;
	if (r == LIBSSH2_ERROR_TIMEOUT || ssh->is_lost || r == LIBSSH2_ERROR_SOCKET_DISCONNECT)
		return err_set(err, E_SSH_LOGIN, "%s ends the connection behind %u keys",
			ssh->login.name, auth->n_tried);
	return 0;
}

/*
 * Keys of the agent
 */

static int try_agent_key(
	struct auth *auth, struct libssh2_agent_publickey *key, const char *type, struct err *err)
{
	struct attempt attempt = {.auth = auth, .agent_key = key};
	AUTO_FREE char *comment = str_shown(key->comment ? key->comment : "");
	AUTO_FREE char *what = mem_printf("the agent's key %s", comment);

	if (!ssh_libssh2_auth_is_usable(auth, type, key->blob, key->blob_len))
		return 0;
	return ssh_libssh2_auth_evaluate(
		auth, ssh_session_run(auth->ssh, step_agent, &attempt), what, err);
}

static struct identity *find_identity(struct auth *auth, const struct libssh2_agent_publickey *key)
{
	for (size_t i = 0; i < auth->n_identities; i++) {
		const struct buf *blob = &auth->identities[i].key.blob;
		if (blob->len > 0 && blob->len == key->blob_len &&
			memcmp(blob->data, key->blob, blob->len) == 0)
			return &auth->identities[i];
	}
	return NULL;
}

/* Try the agent's keys that the configuration names, or its other keys. */
static int try_agent(struct auth *auth, bool named, struct err *err)
{
	struct libssh2_agent_publickey *key = NULL;
	int r = 0;

	if (!auth->agent || (!named && auth->ssh->login.identities_only))
		return 0;
	while (r == 0 && libssh2_agent_get_identity(auth->agent, &key, key) == 0) {
		AUTO_FREE char *type = ssh_key_type(key->blob, key->blob_len);
		struct identity *identity = find_identity(auth, key);
		if (!type || named != (identity != NULL))
			continue;
		if (identity)
			identity->in_agent = true;
		r = try_agent_key(auth, key, type, err);
	}
	return r;
}

/*
 * Keys in files
 */

static int try_passphrase(
	struct auth *auth, struct identity *identity, struct attempt *attempt, struct err *err)
{
	AUTO_BUF struct buf answer = buf_with(SSH_ANSWER_MAX);
	AUTO_FREE char *question = mem_printf("Passphrase of %s", identity->path);
	unsigned n_tried = auth->n_tried;
	int r = 0;

	/* All of it at once: what grows leaves copies behind. */
	buf_reserve(&answer, SSH_ANSWER_MAX);
	for (int i = 0; i < PASSPHRASES_MAX && r == 0; i++) {
		buf_reset(&answer);
		r = ssh_libssh2_prompt(auth->ssh, question, true, &answer, err);
		if (r <= 0)
			break;
		attempt->passphrase = answer.data;
		r = ssh_libssh2_auth_evaluate(
			auth, ssh_session_run(auth->ssh, step_file, attempt), identity->path, err);
	}
	/* The passphrase was wrong or not given: the key would have been accepted. */
	auth->n_excluded[NO_PASSPHRASE] += r == 0 ? 1 : 0;
	auth->n_tried = n_tried;
	explicit_bzero(answer.data, answer.cap);
	return r;
}

/* The user gets a prompt only for what would be accepted. */
static int try_encrypted(struct auth *auth, struct identity *identity, struct err *err)
{
	struct attempt attempt = {.auth = auth, .file = &identity->key};

	if (!ssh_libssh2_may_prompt(auth->ssh)) {
		auth->n_excluded[NO_PASSPHRASE]++;
		return 0;
	}
	int r = ssh_session_run(auth->ssh, step_probe, &attempt);
	if (!attempt.is_accepted)
		return ssh_libssh2_auth_evaluate(auth, r, identity->path, err);
	return try_passphrase(auth, identity, &attempt, err);
}

static int try_identity(struct auth *auth, struct identity *identity, struct err *err)
{
	struct attempt attempt = {.auth = auth, .file = &identity->key, .passphrase = ""};

	if (identity->in_agent || identity->key.text.len == 0)
		return 0;
	const struct buf *blob = &identity->key.blob;

	if (!ssh_libssh2_auth_is_usable(auth, identity->key.type, blob->data, blob->len))
		return 0;
	if (identity->key.is_open) {
		auth->n_excluded[READABLE]++;
		return 0;
	}
	if (identity->key.is_encrypted)
		return try_encrypted(auth, identity, err);
	return ssh_libssh2_auth_evaluate(
		auth, ssh_session_run(auth->ssh, step_file, &attempt), identity->path, err);
}

/*
 * The end
 */

static int step_list(struct ssh_libssh2 *ssh, void *arg)
{
	const char *user = ssh->login.user;
	int code;

	*(char **)arg = libssh2_userauth_list(ssh->session, user, (unsigned)strlen(user));
	if (*(char **)arg)
		return 0;
	ssh_session_error(ssh, &code);
	return code;
}

static void ssh_libssh2_auth_add_excluded(const struct auth *auth, struct buf *out)
{
	for (int i = USABLE + 1; i < N_EXCLUDED; i++) {
		if (auth->n_excluded[i] > 0)
			buf_addf(out, "%s%u %s", out->len > 0 ? ", " : "", auth->n_excluded[i],
				excluded_text[i]);
	}
}

static void hint_file(struct err *err, const char *command, const char *path)
{
	AUTO_BUF struct buf hint = buf_with(32 << 10);

	buf_adds(&hint, command);
	str_shell_quote(&hint, path);
	err_hint(err, "%s", hint.data);
}

/* The first of each, which are not in the agent. */
static void find_bad_files(
	const struct auth *auth, const char **ret_encrypted, const char **ret_open)
{
	for (size_t i = auth->n_identities; i-- > 0;) {
		const struct identity *identity = &auth->identities[i];

		if (!identity->in_agent && identity->key.is_encrypted)
			*ret_encrypted = identity->path;
		if (!identity->in_agent && identity->key.is_open)
			*ret_open = identity->path;
	}
}

/* Tell which keys were tried or left out, and what to do about it. */
static void advise(const struct auth *auth, struct err *err)
{
	const struct ssh_libssh2 *ssh = auth->ssh;
	const char *encrypted = NULL, *open = NULL; /* paths */
	AUTO_BUF struct buf excluded = buf_with(512);

	find_bad_files(auth, &encrypted, &open);
	ssh_libssh2_auth_add_excluded(auth, &excluded);
	if (ssh->tried.len > 0)
		err_evidence(err, "tried: %s", ssh->tried.data);
	if (excluded.len > 0)
		err_evidence(err, "keys left to the OpenSSH client: %s", excluded.data);
	else if (auth->n_tried == 0)
		err_evidence(err, "there is no key: no IdentityFile exists, and %s",
			auth->no_agent ? auth->no_agent
			: auth->agent  ? "the ssh agent has none"
				       : "no ssh agent is asked");
	if (open)
		hint_file(err, "chmod 600 ", open);
	else if (encrypted)
		hint_file(err, auth->agent ? "ssh-add " : "eval \"$(ssh-agent)\" && ssh-add ",
			encrypted);
	else if (auth->n_tried == 0 && excluded.len == 0)
		err_hint(err, "ssh-keygen -t ed25519 && ssh-copy-id %s", ssh->login.name);
	else
		err_hint(err, "ssh-copy-id %s   # if %s is the user's name there", ssh->login.name,
			ssh->login.user);
}

static void ssh_libssh2_auth_explain(struct auth *auth, const char *methods)
{
	struct ssh_libssh2 *ssh = auth->ssh;
	AUTO_BUF struct buf excluded = buf_with(512);

	ssh_libssh2_auth_add_excluded(auth, &excluded);
	if (methods && !strstr(methods, "publickey"))
		ssh_libssh2_fall_back(ssh, "the host accepts no keys, but %s", methods);
	else if (excluded.len > 0 && auth->n_tried == 0)
		ssh_libssh2_fall_back(ssh, "libssh2 %s can use none of the keys (%s)",
			libssh2_version(0), excluded.data);
	else if (excluded.len > 0)
		ssh_libssh2_fall_back(ssh,
			"none of %u keys is accepted, and libssh2 %s cannot use the others (%s)",
			auth->n_tried, libssh2_version(0), excluded.data);
	else if (auth->n_tried == 0)
		ssh_libssh2_fall_back(ssh, "there is no key to log in with");
	else
		ssh_libssh2_fall_back(ssh, "none of %u keys is accepted", auth->n_tried);
}

/* The host may need no key, or say what it wants instead. */
static int ssh_libssh2_auth_give_up(struct auth *auth, struct err *err)
{
	struct ssh_libssh2 *ssh = auth->ssh;
	char *list = NULL;

	int r = ssh_session_run(ssh, step_list, &list);
	if (r == SSH_STEP_CANCELED)
		return err_set(err, E_CANCELED, "interrupted");
	if (libssh2_userauth_authenticated(ssh->session))
		return 0;
	AUTO_FREE char *methods = list ? str_shown(list) : NULL;
	ssh_libssh2_auth_explain(auth, methods);
	err_set(err, E_SSH_LOGIN, "%s does not accept the login of %s", ssh->login.name,
		ssh->login.user);
	advise(auth, err);
	if (methods)
		err_evidence(err, "the host accepts: %s", methods);
	return -(int)err->code;
}

/* libssh2 connects without a time limit, to whatever has room for one more, and does not report why
 * it cannot: another connection shows it first. */
static int open_agent(struct auth *auth, const char *path, struct err *err)
{
	struct ssh_libssh2 *ssh = auth->ssh;
	int r = ssh_socket_probe(path);

	if (r < 0)
		return err_set_errno(err, E_IO, -r, "the ssh agent at %s", path);
	ssh->agent_ms = SSH_AGENT_LIST_MS;
	auth->agent = libssh2_agent_init(ssh->session);
	if (!auth->agent)
		return err_set(err, E_IO, "libssh2 asks no ssh agent");
	libssh2_agent_set_identity_path(auth->agent, path);
	if (libssh2_agent_connect(auth->agent) == 0 &&
		libssh2_agent_list_identities(auth->agent) == 0) {
		ssh->agent_ms = SSH_AGENT_SIGN_MS;
		return 0;
	}
	libssh2_agent_free(TAKE(auth->agent));
	return err_set(err, E_IO, "the ssh agent does not answer");
}

static void gather(struct auth *auth)
{
	struct ssh_libssh2 *ssh = auth->ssh;
	const char *const *paths = ssh->login.identities;
	AUTO_ERR struct err err = {0};

	for (size_t i = 0; paths && paths[i] && auth->n_identities < SSH_IDENTITIES_MAX; i++) {
		struct identity *identity = &auth->identities[auth->n_identities];
		identity->path = paths[i];
		if (ssh_key_file_read(paths[i], &identity->key, NULL) == 0)
			auth->n_identities++;
	}
	if (ssh->login.agent && open_agent(auth, ssh->login.agent, &err) < 0) {
		log_note("ssh: %s", err.message);
		auth->no_agent = mem_strdup(err.message);
	}
}

int ssh_libssh2_auth(struct ssh_libssh2 *ssh, struct err *err)
{
	AUTO(ssh_libssh2_auth_done) struct auth auth = {.ssh = ssh};

	gather(&auth);
	int r = try_agent(&auth, true, err);
	if (r == 0)
		r = try_agent(&auth, false, err);
	for (size_t i = 0; i < auth.n_identities && r == 0; i++)
		r = try_identity(&auth, &auth.identities[i], err);
	if (r == 0)
		return ssh_libssh2_auth_give_up(&auth, err);
	if (r < 0 && err->id != E_CANCELED)
		ssh_libssh2_auth_explain(&auth, NULL);
	return r < 0 ? r : 0;
}
