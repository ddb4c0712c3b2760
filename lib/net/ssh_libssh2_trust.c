#include <string.h>

#include "base/auto.h"
#include "base/mem.h"
#include "base/str.h"
#include "net/ssh.h"
#include "net/ssh_libssh2_impl.h"

/* Types of keys, and what libssh2 calls the use of one. The last needs RFC 8332. */
static const struct {
	const char *key, *algorithms;
} types[] = {
	{"ssh-ed25519", "ssh-ed25519"},
	{"ecdsa-sha2-nistp256", "ecdsa-sha2-nistp256"},
	{"ecdsa-sha2-nistp384", "ecdsa-sha2-nistp384"},
	{"ecdsa-sha2-nistp521", "ecdsa-sha2-nistp521"},
	{"ssh-rsa", "rsa-sha2-512,rsa-sha2-256"},
};

static size_t n_types(void)
{
	return ARRAY_LEN(types) - (ssh_libssh2_has_rsa_sha2() ? 0 : 1);
}

static void add_types(const struct ssh_known *known, bool want_known, struct buf *out)
{
	for (size_t i = 0; i < n_types(); i++) {
		if (ssh_known_has_type(known, types[i].key) == want_known)
			buf_addf(out, "%s%s", out->len > 0 ? "," : "", types[i].algorithms);
	}
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

char *ssh_libssh2_host_key_types(struct ssh_libssh2 *ssh)
{
	AUTO_BUF struct buf out = {0};

	load(ssh);
	if (ssh->known.is_cut) {
		ssh_libssh2_fall_back(
			ssh, "the files of known hosts are larger than dlrun reads them");
		return NULL;
	}
	buf_init(&out, 1024);
	add_types(&ssh->known, true, &out);
	if (out.len == 0 && ssh_known_has_keys(&ssh->known)) {
		ssh_libssh2_fall_back(ssh,
			"the host is known by %s only, which libssh2 %s cannot use",
			ssh_known_has_type(&ssh->known, "ssh-rsa") ? "an RSA key" : "a type of key",
			libssh2_version(0));
		return NULL;
	}
	if (out.len == 0 && ssh_known_has_ca(&ssh->known)) {
		ssh_libssh2_fall_back(ssh,
			"the host is known by a certificate authority, and libssh2 knows no "
			"certificates");
		return NULL;
	}
	add_types(&ssh->known, false, &out);
	return buf_take(&out);
}

/*
 * What was shown
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
		"the key of %s is not the one that is known: another machine has its address, or "
		"somebody stands between",
		ssh->login.name);
	err_hint(err, "ssh-keygen -R '%s'    (only if you know why it has changed)",
		ssh->known.name);
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
		err_set(err, E_SSH_UNKNOWN_HOST, "%s is known, but not by a key of type %s",
			ssh->login.name, shown->type);
	else
		err_set(err, E_SSH_UNKNOWN_HOST, "%s is not known yet", ssh->login.name);
	/* Of a host that has other keys no new one is accepted without a person. */
	err_hint(err, shown->where ? "ssh %s true" : "ssh %s true    (or --accept-new-host)",
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
			err, E_SSH_HOST_KEY, "%s shows no key that can be read", ssh->login.name);
	shown.type = type;
	ssh_key_fingerprint(shown.blob, shown.len, shown.print);
	int r = decide(ssh, &shown, err);
	if (r == 0)
		buf_add(&ssh->trusted, shown.blob, shown.len);
	return r;
}
