/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The user's configuration of a host, by its name: the output of `ssh -G` (ssh(1)), one keyword of
 * ssh_config(5) in lower case and its value a line. dlrun reads no ssh_config itself.
 */
#ifndef DLRUN_NET_SSH_SSH_CONFIG_H
#define DLRUN_NET_SSH_SSH_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "net/ssh/ssh_libssh2.h"

enum {
	SSH_CONFIG_MAX = 256 << 10, /* bytes of the output */
	SSH_CONFIG_LIST_MAX = 64,   /* files of one kind; more are left out */
};

/* NULL, false, 0 and empty where nothing, or "none", was said. */
struct ssh_config {
	char *hostname, *user, *key_alias;
	char *proxy_jump, *proxy_command, *control_path, *agent;
	/* Names of algorithms with commas between: KexAlgorithms, Ciphers, MACs, HostKeyAlgorithms,
	 * PubkeyAcceptedAlgorithms. */
	char *kex, *ciphers, *macs, *host_key_types, *user_key_types;
	struct strv identities, certificates, user_known_hosts, global_known_hosts;
	struct strv send_env, set_env; /* patterns of names; NAME=VALUE */
	uint16_t port;
	int family; /* AF_UNSPEC, AF_INET, AF_INET6 */
	int connect_s, keepalive_s, rsa_bits;
	enum ssh_strict strict;
	bool identities_only, hash_known_hosts, gssapi, batch_mode, stdin_null, forks,
		has_log_verbose, has_session_type, /* the client knows LogVerbose, SessionType */
		no_agent;                          /* IdentityAgent none */
	/* The first line that libssh2 cannot keep (struct ssh_keyword), behind "because"; NULL:
	 * none. */
	char *openssh_why;
	char id[33]; /* 32 hex digits that change with the output */
};

/* E_USAGE: empty, longer than 255 bytes, begins with "-" (behind "@", too), or has blanks, controls
 * or characters that mean something to a shell. Such a name gets to no command line. */
int ssh_config_check_host(const char *host, struct err *err);

/* An engine. E_SSH_CONFIG: no hostname, port or user, NUL bytes, values that are not printable.
 * What is not known is a reason for the OpenSSH client. */
int ssh_config_parse(const char *text, size_t len, struct ssh_config *ret, struct err *err);
void ssh_config_done(struct ssh_config *config);
#define AUTO_SSH_CONFIG AUTO(ssh_config_done)

/* Where a name of a file begins with "~", or has tokens or variables (ssh_config(5), "TOKENS"). */
struct ssh_config_location {
	const char *home;
	const char *host;       /* as the user wrote it */
	const char *local_user; /* NULL: not known */
	const char *const *env;
};
/* Names become absolute paths; a name with a token that is not known here stays as it is and is
 * reported: false. */
bool ssh_config_expand(struct ssh_config *config, const struct ssh_config_location *place);
/* Without an ssh client: the user, or local_user, port 22, the usual files. */
void ssh_config_default(const struct ssh_config_location *place, struct ssh_config *ret);

/* The variables that are sent to the server, NAME=VALUE, of those in env and of set_env. */
void ssh_config_env(const struct ssh_config *config, const char *const *env, struct strv *ret);

struct ssh_config_call {
	const char *host;       /* checked */
	unsigned port;          /* 0: none is given */
	const char *config;     /* for -F, or NULL */
	const char *const *env; /* NULL: ours */
	int cancel_fd;          /* see struct proc_capture_spec */
};
/* Runs `ssh -G`. E_RUN_EXEC: there is no ssh client. E_SSH_CONFIG with its words; E_CANCELED.
 * Blocks, 10 s at most: `Match exec` runs commands of the user's. */
int ssh_config_read(const struct ssh_config_call *call, struct ssh_config *ret, struct err *err);

/*
 * Keywords that `ssh -G` of OpenSSH 8.5 to 10.2 prints (ssh_config(5)), and what dlrun makes of
 * each, but for those that decide nothing here. One that dlrun does not know is newer, or of a
 * patch: what it says may decide whether `ssh` would log in.
 */
struct ssh_keyword {
	const char *name; /* in lower case */
	/* Where the value goes in struct ssh_config; SSH_VALUE_NONE: nowhere. */
	enum ssh_value {
		SSH_VALUE_NONE,
		SSH_VALUE_TEXT,
		SSH_VALUE_AGENT,
		SSH_VALUE_YES,
		SSH_VALUE_LINES,
		SSH_VALUE_WORDS,
		SSH_VALUE_SECONDS,
		SSH_VALUE_BITS,
		SSH_VALUE_PORT,
		SSH_VALUE_FAMILY,
		SSH_VALUE_STRICT,
		SSH_VALUE_PRESENT,
	} value;
	size_t offset;
	/* NULL: libssh2's transport does what it says; else only the OpenSSH client does, but for
	 * these values, with commas between; "" is such a value always. */
	const char *harmless;
	const char *why; /* it is left to the OpenSSH client, behind "because" */
};

/* In the order of their names. */
extern const struct ssh_keyword ssh_keywords[];
extern const size_t ssh_n_keywords;

/* In any case of letters; NULL: there is none. */
const struct ssh_keyword *ssh_keyword_find(const char *name);

/* Whether word is in a list with commas between. */
bool ssh_list_has(const char *list, const char *word);

#endif
