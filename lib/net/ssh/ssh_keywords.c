/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/ssh_keywords.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_config.h"

#define AT(field) offsetof(struct ssh_config, field)
#define KEPT(name, value, field)                                                                   \
	{                                                                                          \
		name, SSH_RULE_KEPT, SSH_VALUE_##value, AT(field), NULL, NULL                      \
	}
#define KEPT_IF(name, value, field, why)                                                           \
	{                                                                                          \
		name, SSH_RULE_KEPT, SSH_VALUE_##value, AT(field), NULL, why                       \
	}
#define CLIENT(name, harmless, why)                                                                \
	{                                                                                          \
		name, SSH_RULE_CLIENT, SSH_VALUE_NONE, 0, harmless, why                            \
	}
#define CLIENT_OF(name, value, field, harmless, why)                                               \
	{                                                                                          \
		name, SSH_RULE_CLIENT, SSH_VALUE_##value, AT(field), harmless, why                 \
	}
#define IDLE(name, why)                                                                            \
	{                                                                                          \
		name, SSH_RULE_IDLE, SSH_VALUE_NONE, 0, NULL, why                                  \
	}
#define IDLE_OF(name, value, field, why)                                                           \
	{                                                                                          \
		name, SSH_RULE_IDLE, SSH_VALUE_##value, AT(field), NULL, why                       \
	}

const struct ssh_keyword ssh_keywords[] = {
	IDLE("addkeystoagent", "keys stay where they are"),
	KEPT("addressfamily", FAMILY, family),
	KEPT("batchmode", YES, batch_mode),
	CLIENT("bindaddress", "none",
		"the connection comes from an address of its own (BindAddress)"),
	CLIENT("bindinterface", "none",
		"the connection comes from an address of its own (BindInterface)"),
	IDLE("canonicaldomains", "ssh -G has done it"),
	IDLE("canonicalizefallbacklocal", "ssh -G has done it"),
	IDLE("canonicalizehostname", "ssh -G has done it"),
	IDLE("canonicalizemaxdots", "ssh -G has done it"),
	IDLE("canonicalizepermittedcnames", "ssh -G has done it"),
	IDLE("casignaturealgorithms", "certificates are the OpenSSH client's"),
	CLIENT_OF("certificatefile", LINES, certificates, "none", "the login is by a certificate"),
	IDLE("challengeresponseauthentication", "asked of the OpenSSH client only"),
	CLIENT("channeltimeout", "none", "connections are closed after a time (ChannelTimeout)"),
	CLIENT("checkhostip", "no,false", "the host's address must be known, too (CheckHostIP)"),
	KEPT("ciphers", TEXT, ciphers),
	IDLE("clearallforwardings", "nothing is forwarded"),
	IDLE("compression", "what is sent is compressed before"),
	CLIENT("connectionattempts", "1", "it is tried more than once (ConnectionAttempts)"),
	KEPT("connecttimeout", SECONDS, connect_s),
	IDLE("controlmaster", "one that lives is used, none is begun"),
	KEPT("controlpath", TEXT, control_path),
	IDLE("controlpersist", "none is begun"),
	IDLE("dynamicforward", "nothing is forwarded"),
	IDLE("enableescapecommandline", "it is for terminals of people"),
	IDLE("enablesshkeysign", "logins by the host are the OpenSSH client's"),
	IDLE("escapechar", "it is for terminals of people"),
	IDLE("exitonforwardfailure", "nothing is forwarded"),
	IDLE("fingerprinthash", "fingerprints are told as SHA256"),
	IDLE_OF("forkafterauthentication", YES, forks, "the command line says otherwise"),
	IDLE("forwardagent", "nothing is forwarded"),
	IDLE("forwardx11", "nothing is forwarded"),
	IDLE("forwardx11timeout", "nothing is forwarded"),
	IDLE("forwardx11trusted", "nothing is forwarded"),
	IDLE("gatewayports", "nothing is forwarded"),
	KEPT("globalknownhostsfile", WORDS, global_known_hosts),
	KEPT("gssapiauthentication", YES, gssapi),
	IDLE("gssapiclientidentity", "asked of the OpenSSH client only"),
	IDLE("gssapidelegatecredentials", "asked of the OpenSSH client only"),
	IDLE("gssapikexalgorithms", "asked of the OpenSSH client only"),
	CLIENT("gssapikeyexchange", "no,false",
		"Kerberos vouches for the host (GSSAPIKeyExchange)"),
	IDLE("gssapirenewalforcesrekey", "asked of the OpenSSH client only"),
	IDLE("gssapiserveridentity", "asked of the OpenSSH client only"),
	IDLE("gssapitrustdns", "asked of the OpenSSH client only"),
	KEPT("hashknownhosts", YES, hash_known_hosts),
	{"host", SSH_RULE_KEPT},
	IDLE("hostbasedacceptedalgorithms", "logins by the host are the OpenSSH client's"),
	CLIENT("hostbasedauthentication", "no,false", "the login is host-based"),
	IDLE("hostbasedkeytypes", "logins by the host are the OpenSSH client's"),
	KEPT("hostkeyalgorithms", TEXT, host_key_types),
	KEPT("hostkeyalias", TEXT, key_alias),
	KEPT("hostname", TEXT, hostname),
	KEPT("identitiesonly", YES, identities_only),
	KEPT("identityagent", AGENT, agent),
	KEPT("identityfile", LINES, identities),
	IDLE("ignoreunknown", "ssh -G has done it"),
	IDLE("include", "ssh -G has done it"),
	IDLE("ipqos", "it marks packets only"),
	IDLE("kbdinteractiveauthentication", "asked of the OpenSSH client only"),
	IDLE("kbdinteractivedevices", "asked of the OpenSSH client only"),
	KEPT("kexalgorithms", TEXT, kex),
	CLIENT("knownhostscommand", "none", "a KnownHostsCommand tells the hosts' keys"),
	IDLE("localcommand", "the command line says otherwise"),
	IDLE("localforward", "nothing is forwarded"),
	IDLE("loglevel", "the command line says otherwise"),
	IDLE_OF("logverbose", PRESENT, has_log_verbose, "the command line says otherwise"),
	KEPT("macs", TEXT, macs),
	IDLE("match", "ssh -G has done it"),
	CLIENT("nohostauthenticationforlocalhost", "no,false",
		"keys of this machine are not looked at (NoHostAuthenticationForLocalhost)"),
	IDLE("numberofpasswordprompts", "asked of the OpenSSH client only"),
	IDLE("obscurekeystroketiming", "it is for terminals of people"),
	IDLE("passwordauthentication", "asked of the OpenSSH client only"),
	IDLE("permitlocalcommand", "the command line says otherwise"),
	IDLE("permitremoteopen", "nothing is forwarded"),
	CLIENT("pkcs11provider", "none", "a key is on a token (PKCS11Provider)"),
	KEPT("port", PORT, port),
	{"preferredauthentications", SSH_RULE_KEPT,
		.why = "keys are not what is tried first (PreferredAuthentications)"},
	CLIENT_OF("proxycommand", TEXT, proxy_command, "none",
		"the configuration has a ProxyCommand"),
	CLIENT_OF("proxyjump", TEXT, proxy_jump, "none",
		"the host is behind a jump host (ProxyJump)"),
	IDLE("proxyusefdpass", "asked of the OpenSSH client only"),
	KEPT("pubkeyacceptedalgorithms", TEXT, user_key_types),
	KEPT("pubkeyacceptedkeytypes", TEXT, user_key_types),
	CLIENT("pubkeyauthentication", "yes,true",
		"the configuration says how keys log in, or that they do not (PubkeyAuthentication)"),
	CLIENT("refuseconnection", "none",
		"the configuration refuses the connection (RefuseConnection)"),
	CLIENT("rekeylimit", "0 0,default,default none",
		"keys are changed on the way (RekeyLimit)"),
	IDLE("remotecommand", "the command line says otherwise"),
	IDLE("remoteforward", "nothing is forwarded"),
	IDLE("requesttty", "the command line says otherwise"),
	KEPT("requiredrsasize", BITS, rsa_bits),
	CLIENT("revokedhostkeys", "none",
		"a file tells which hosts' keys are revoked (RevokedHostKeys)"),
	KEPT("rsaminsize", BITS, rsa_bits),
	IDLE("securitykeyprovider", "keys in devices are the OpenSSH client's"),
	KEPT("sendenv", LINES, send_env),
	IDLE("serveralivecountmax", "three answers may be missed"),
	KEPT("serveraliveinterval", SECONDS, keepalive_s),
	IDLE_OF("sessiontype", PRESENT, has_session_type, "the command line says otherwise"),
	KEPT_IF("setenv", LINES, set_env, "a variable has a value that only ssh can make (SetEnv)"),
	IDLE_OF("stdinnull", YES, stdin_null, "the command line says otherwise"),
	IDLE("streamlocalbindmask", "nothing is forwarded"),
	IDLE("streamlocalbindunlink", "nothing is forwarded"),
	KEPT("stricthostkeychecking", STRICT, strict),
	IDLE("syslogfacility", "nothing is logged"),
	IDLE("tag", "ssh -G has done it"),
	IDLE("tcpkeepalive", "answers are asked for within the connection"),
	IDLE("tunnel", "nothing is forwarded"),
	IDLE("tunneldevice", "nothing is forwarded"),
	IDLE("updatehostkeys", "other keys of a host are not learnt"),
	CLIENT("usekeychain", "no,false", "passphrases are in the keychain (UseKeychain)"),
	KEPT("user", TEXT, user),
	KEPT("userknownhostsfile", WORDS, user_known_hosts),
	CLIENT("verifyhostkeydns", "no,false", "host keys are looked up in DNS"),
	CLIENT("versionaddendum", "none", "the client calls itself otherwise (VersionAddendum)"),
	IDLE("visualhostkey", "it is for terminals of people"),
	IDLE("warnweakcrypto", "it warns only"),
	IDLE("xauthlocation", "nothing is forwarded"),
};
const size_t ssh_n_keywords = ARRAY_LEN(ssh_keywords);

static int compare(const void *name, const void *row)
{
	return strcasecmp(name, ((const struct ssh_keyword *)row)->name);
}

const struct ssh_keyword *ssh_keyword_find(const char *name)
{
	return bsearch(name, ssh_keywords, ssh_n_keywords, sizeof(*ssh_keywords), compare);
}

bool ssh_list_has(const char *list, const char *word)
{
	size_t len = strlen(word);

	for (const char *at = list; at; at = strchr(at, ',')) {
		at += *at == ',';
		if (strcspn(at, ",") == len && memcmp(at, word, len) == 0)
			return true;
	}
	return false;
}

/* Behind what the OpenSSH client is there for anyway, where it is turned on. */
static bool prefers_keys(const char *methods)
{
	for (;;) {
		size_t len = strcspn(methods, ",");
		AUTO_FREE char *first = mem_strndup(methods, len);

		if (!methods[len] || !ssh_list_has("gssapi-keyex,gssapi-with-mic,hostbased", first))
			return str_eq(first, "publickey");
		methods += len + 1;
	}
}

bool ssh_keyword_is_kept(const struct ssh_keyword *keyword, const char *value)
{
	/* An unknown keyword that is off does nothing. */
	if (!keyword)
		return !*value || ssh_list_has("no,false,none,0", value);
	if (keyword->rule == SSH_RULE_CLIENT)
		return !*value || ssh_list_has(keyword->harmless, value);
	if (str_eq(keyword->name, "preferredauthentications"))
		return prefers_keys(value);
	/* Newer clients put in what these stand for (TOKENS of ssh_config(5)). */
	if (str_eq(keyword->name, "setenv"))
		return str_is_plain(value) && !strchr(value, '%') && !strstr(value, "${");
	return true;
}
