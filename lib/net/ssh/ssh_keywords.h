/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every keyword that `ssh -G` of OpenSSH 8.5 to 10.2 prints (ssh_config(5)), and what dlrun makes
 * of it. One that is not here is newer, or of somebody's patch: what it says may decide whether
 * `ssh` would log in.
 */
#ifndef DLRUN_NET_SSH_SSH_KEYWORDS_H
#define DLRUN_NET_SSH_SSH_KEYWORDS_H

#include <stdbool.h>
#include <stddef.h>

struct ssh_keyword {
	const char *name; /* in lower case */
	enum ssh_keyword_rule {
		SSH_RULE_KEPT,   /* libssh2's carrier does what it says */
		SSH_RULE_CLIENT, /* only the OpenSSH client does, where it is not in harmless */
		SSH_RULE_IDLE,   /* decides nothing here */
	} rule;
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
	/* Of CLIENT: what libssh2's carrier does anyway, with commas between; "" is such a value
	 * always. */
	const char *harmless;
	/* Of CLIENT: why, behind "because"; of IDLE: why it decides nothing. */
	const char *why;
};

/* In the order of their names. */
extern const struct ssh_keyword ssh_keywords[];
extern const size_t ssh_n_keywords;

/* In any case of letters; NULL: there is none. */
const struct ssh_keyword *ssh_keyword_find(const char *name);
/* Whether libssh2's carrier may do the login as far as this line goes. keyword NULL: it is not
 * known. */
bool ssh_keyword_is_kept(const struct ssh_keyword *keyword, const char *value);

/* Whether word is in a list with commas between. */
bool ssh_list_has(const char *list, const char *word);

#endif
