/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh.h"
#include "net/ssh/ssh_libssh2_impl.h"

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

static void add_name(struct buf *out, const char *name)
{
	buf_addf(out, "%s%s", out->len > 0 ? "," : "", name);
}

static void add_usable(const struct ssh_known *known, bool want_known, struct buf *out)
{
	for (size_t i = 0; i < n_usable(); i++) {
		if (ssh_known_has_type(known, algorithms[i].key) == want_known)
			add_name(out, algorithms[i].name);
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

static void load(struct ssh_libssh2 *ssh)
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
			add_name(out, algorithms[wanted[i]].name);
	}
	return true;
}

static bool add_known(struct ssh_libssh2 *ssh, struct buf *out)
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
	AUTO_BUF struct buf out = {0};

	load(ssh);
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
	buf_init(&out, 1024);
	bool is_own = list && !is_usual(wanted, n);
	if (is_own ? !add_wanted(ssh, wanted, n, &out) : !add_known(ssh, &out))
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

static int add_facts(const struct shown *shown, struct err *err)
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
	return add_facts(shown, err);
}

static int refuse_revoked(struct ssh_libssh2 *ssh, const struct shown *shown, struct err *err)
{
	err_set(err, E_SSH_HOST_KEY, "the key of %s has been revoked", ssh->login.name);
	err_hint(err, "ask who runs %s for its key", ssh->login.name);
	return add_facts(shown, err);
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
	/* Of a host that has other keys no new one is accepted without a person. */
	err_hint(err, shown->where ? "ssh %s true" : "ssh %s true   # or --accept-new-host",
		ssh->login.name);
	return add_facts(shown, err);
}

static void remember(struct ssh_libssh2 *ssh, const struct shown *shown)
{
	AUTO_ERR struct err err = {0};
	const char *const *files = ssh->login.user_known_hosts;
	const char *file = files ? files[0] : NULL;

	if (!file)
		return;
	if (ssh_known_save(file, ssh->known.name, ssh->login.hash_known_hosts, shown->blob,
		    shown->len, &err) < 0)
		ssh_libssh2_say(ssh, false, "the key of %s is not remembered: %s", ssh->login.name,
			err.message);
	else
		ssh_libssh2_say(ssh, false, "%s is known from now on: %s %s in %s", ssh->login.name,
			shown->type, shown->print, file);
}

/* As OpenSSH takes it: yes, or the fingerprint. */
static bool is_yes(const char *answer, const struct shown *shown)
{
	AUTO_FREE char *lower = str_lower(answer, strlen(answer));

	return str_eq(lower, "yes") || str_eq(answer, shown->print);
}

static int ask_person(struct ssh_libssh2 *ssh, const struct shown *shown, struct err *err)
{
	AUTO_BUF struct buf answer = {0};
	AUTO_FREE char *question = mem_printf(
		"%s%s: its %s key has the fingerprint %s. Trust it? (yes, no, or the "
		"fingerprint)",
		ssh->login.name,
		shown->where ? " shows a key of another type than is known" : " is not known yet",
		shown->type, shown->print);

	buf_init(&answer, SSH_ANSWER_MAX);
	int r = ssh_libssh2_ask(ssh, question, false, &answer, err);
	if (r < 0)
		return r;
	if (r == 0 || !is_yes(answer.data, shown))
		return refuse_unknown(ssh, shown, err);
	remember(ssh, shown);
	return 0;
}

static int trust_new(struct ssh_libssh2 *ssh, const struct shown *shown, struct err *err)
{
	bool takes_new =
		ssh->login.strict == SSH_STRICT_ACCEPT_NEW || ssh->login.strict == SSH_STRICT_OFF;

	/* A host that has other keys is not new: only a person can know. */
	if (takes_new && !shown->where) {
		remember(ssh, shown);
		return 0;
	}
	if (ssh->login.strict == SSH_STRICT_ASK && ssh->login.has_askpass)
		ssh_libssh2_fall_back(ssh, "a program asks about the host's key (SSH_ASKPASS)");
	if (ssh->login.strict == SSH_STRICT_YES || !ssh_libssh2_can_ask(ssh))
		return refuse_unknown(ssh, shown, err);
	return ask_person(ssh, shown, err);
}

static int decide(struct ssh_libssh2 *ssh, struct shown *shown, struct err *err)
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
	int r = decide(ssh, &shown, err);
	if (r == 0)
		buf_add(&ssh->trusted, shown.blob, shown.len);
	return r;
}
