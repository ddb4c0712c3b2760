/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/ssh_config.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_keys.h"

#define KEPT(name, kind, field)                                                                    \
	{                                                                                          \
		name, SSH_VALUE_##kind, offsetof(struct ssh_config, field)                         \
	}
#define CLIENT(name, but, because)                                                                 \
	{                                                                                          \
		name, .harmless = but, .why = because                                              \
	}

const struct ssh_keyword ssh_keywords[] = {
	KEPT("addressfamily", FAMILY, family),
	KEPT("batchmode", YES, batch_mode),
	CLIENT("bindaddress", "none",
		"the connection comes from an address of its own (BindAddress)"),
	CLIENT("bindinterface", "none",
		"the connection comes from an address of its own (BindInterface)"),
	{"certificatefile", SSH_VALUE_LINES, offsetof(struct ssh_config, certificates), "none",
		"the login is by a certificate"},
	CLIENT("channeltimeout", "none", "connections are closed after a time (ChannelTimeout)"),
	CLIENT("checkhostip", "no,false", "the host's address must be known, too (CheckHostIP)"),
	KEPT("ciphers", TEXT, ciphers),
	CLIENT("connectionattempts", "1", "it is tried more than once (ConnectionAttempts)"),
	KEPT("connecttimeout", SECONDS, connect_s),
	KEPT("controlpath", TEXT, control_path),
	KEPT("forkafterauthentication", YES, forks),
	KEPT("globalknownhostsfile", WORDS, global_known_hosts),
	KEPT("gssapiauthentication", YES, gssapi),
	CLIENT("gssapikeyexchange", "no,false",
		"Kerberos vouches for the host (GSSAPIKeyExchange)"),
	KEPT("hashknownhosts", YES, hash_known_hosts),
	CLIENT("hostbasedauthentication", "no,false", "the login is host-based"),
	KEPT("hostkeyalgorithms", TEXT, host_key_types),
	KEPT("hostkeyalias", TEXT, key_alias),
	KEPT("hostname", TEXT, hostname),
	KEPT("identitiesonly", YES, identities_only),
	KEPT("identityagent", AGENT, agent),
	KEPT("identityfile", LINES, identities),
	KEPT("kexalgorithms", TEXT, kex),
	CLIENT("knownhostscommand", "none", "a KnownHostsCommand tells the hosts' keys"),
	KEPT("logverbose", PRESENT, has_log_verbose),
	KEPT("macs", TEXT, macs),
	CLIENT("nohostauthenticationforlocalhost", "no,false",
		"keys of this machine are not looked at (NoHostAuthenticationForLocalhost)"),
	CLIENT("pkcs11provider", "none", "a key is on a token (PKCS11Provider)"),
	KEPT("port", PORT, port),
	{"preferredauthentications",
		.why = "keys are not what is tried first (PreferredAuthentications)"},
	{"proxycommand", SSH_VALUE_TEXT, offsetof(struct ssh_config, proxy_command), "none",
		"the configuration has a ProxyCommand"},
	{"proxyjump", SSH_VALUE_TEXT, offsetof(struct ssh_config, proxy_jump), "none",
		"the host is behind a jump host (ProxyJump)"},
	KEPT("pubkeyacceptedalgorithms", TEXT, user_key_types),
	KEPT("pubkeyacceptedkeytypes", TEXT, user_key_types),
	CLIENT("pubkeyauthentication", "yes,true",
		"the configuration says how keys log in, or that they do not (PubkeyAuthentication)"),
	CLIENT("refuseconnection", "none",
		"the configuration refuses the connection (RefuseConnection)"),
	CLIENT("rekeylimit", "0 0,default,default none",
		"keys are changed on the way (RekeyLimit)"),
	KEPT("requiredrsasize", BITS, rsa_bits),
	CLIENT("revokedhostkeys", "none",
		"a file tells which hosts' keys are revoked (RevokedHostKeys)"),
	KEPT("rsaminsize", BITS, rsa_bits),
	KEPT("sendenv", LINES, send_env),
	KEPT("serveraliveinterval", SECONDS, keepalive_s),
	KEPT("sessiontype", PRESENT, has_session_type),
	{"setenv", SSH_VALUE_LINES, offsetof(struct ssh_config, set_env), NULL,
		"a variable has a value that only ssh can make (SetEnv)"},
	KEPT("stdinnull", YES, stdin_null),
	KEPT("stricthostkeychecking", STRICT, strict),
	CLIENT("usekeychain", "no,false", "passphrases are in the keychain (UseKeychain)"),
	KEPT("user", TEXT, user),
	KEPT("userknownhostsfile", WORDS, user_known_hosts),
	CLIENT("verifyhostkeydns", "no,false", "host keys are looked up in DNS"),
	CLIENT("versionaddendum", "none", "the client calls itself otherwise (VersionAddendum)"),
};
const size_t ssh_n_keywords = ARRAY_LEN(ssh_keywords);

/* Keywords that decide nothing here. */
static const char *const idle[] = {
	"addkeystoagent", /* keys stay where they are */
	/* ssh -G has done it */
	"canonicaldomains,canonicalizefallbacklocal,canonicalizehostname,canonicalizemaxdots,"
	"canonicalizepermittedcnames,host,ignoreunknown,include,match,tag",
	"casignaturealgorithms", /* certificates are the OpenSSH client's */
	/* asked of the OpenSSH client only */
	"challengeresponseauthentication,gssapiclientidentity,gssapidelegatecredentials,"
	"gssapikexalgorithms,gssapirenewalforcesrekey,gssapiserveridentity,gssapitrustdns,"
	"kbdinteractiveauthentication,kbdinteractivedevices,numberofpasswordprompts,"
	"passwordauthentication,proxyusefdpass",
	/* nothing is forwarded */
	"clearallforwardings,dynamicforward,exitonforwardfailure,forwardagent,forwardx11,"
	"forwardx11timeout,forwardx11trusted,gatewayports,localforward,permitremoteopen,"
	"remoteforward,streamlocalbindmask,streamlocalbindunlink,tunnel,tunneldevice,"
	"xauthlocation",
	"compression",    /* what is sent is compressed before */
	"controlmaster",  /* one that lives is used, none is begun */
	"controlpersist", /* none is begun */
	/* it is for terminals of people */
	"enableescapecommandline,escapechar,obscurekeystroketiming,visualhostkey",
	/* logins by the host are the OpenSSH client's */
	"enablesshkeysign,hostbasedacceptedalgorithms,hostbasedkeytypes",
	"fingerprinthash", /* fingerprints are told as SHA256 */
	"ipqos",           /* it marks packets only */
	/* the command line says otherwise */
	"localcommand,loglevel,permitlocalcommand,remotecommand,requesttty",
	"securitykeyprovider", /* keys in devices are the OpenSSH client's */
	"serveralivecountmax", /* three answers may be missed */
	"syslogfacility",      /* nothing is logged */
	"tcpkeepalive",        /* answers are asked for within the connection */
	"updatehostkeys",      /* other keys of a host are not learnt */
	"warnweakcrypto",      /* it warns only */
};

static int ssh_config_compare(const void *name, const void *row)
{
	return strcasecmp(name, ((const struct ssh_keyword *)row)->name);
}

const struct ssh_keyword *ssh_keyword_find(const char *name)
{
	return bsearch(
		name, ssh_keywords, ssh_n_keywords, sizeof(*ssh_keywords), ssh_config_compare);
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

static bool ssh_keyword_is_idle(const char *name)
{
	AUTO_FREE char *lower = str_lower(name, strlen(name));

	for (size_t i = 0; i < ARRAY_LEN(idle); i++)
		if (ssh_list_has(idle[i], lower))
			return true;
	return false;
}

/* Behind what the OpenSSH client is there for anyway, where it is turned on. */
static bool prefers_keys(const char *methods)
{
	for (;;) {
		size_t len = strcspn(methods, ",");
		AUTO_FREE char *first = mem_strndup(methods, len);

		if (!methods[len] || !ssh_list_has("gssapi-keyex,gssapi-with-mic,hostbased", first))
			return strcmp(first, "publickey") == 0;
		methods += len + 1;
	}
}

/* Whether libssh2's transport may do the login as far as this line goes. keyword NULL: it is not
 * known. */
static bool ssh_keyword_is_kept(const struct ssh_keyword *keyword, const char *value)
{
	/* An unknown keyword that is off does nothing. */
	if (!keyword)
		return !*value || ssh_list_has("no,false,none,0", value);
	if (keyword->harmless)
		return !*value || ssh_list_has(keyword->harmless, value);
	if (str_eq(keyword->name, "preferredauthentications"))
		return prefers_keys(value);
	/* Newer clients put in what these stand for (TOKENS of ssh_config(5)). */
	if (str_eq(keyword->name, "setenv"))
		return str_is_plain(value) && !strchr(value, '%') && !strstr(value, "${");
	return true;
}

enum { HOST_MAX = 255, READ_MS = 10000, WORDS_MAX = 1024, EVIDENCE_LINES = 3 };

/*
 * Names of hosts
 */

static const char *host_error(const char *host)
{
	const char *at = strrchr(host, '@');

	if (!*host)
		return "is empty";
	if (strlen(host) > HOST_MAX)
		return "is too long";
	if (host[0] == '-' || (at && at[1] == '-'))
		return "begins with \"-\"";
	if (at && !at[1])
		return "ends with \"@\"";
	if (!str_is_plain(host))
		return "has characters that are not printable";
	if (strpbrk(host, " '\"`$\\;&<>|(){}*?!#^\t\n"))
		return "has characters that no host's name has";
	return NULL;
}

int ssh_config_check_host(const char *host, struct err *err)
{
	const char *error = host_error(host);

	if (!error)
		return 0;
	AUTO_FREE char *shown = str_shown(host);
	return err_set(err, E_USAGE, "the name of a host, \"%s\", %s", shown, error);
}

/*
 * Values
 */

static bool ssh_config_is_yes(const char *value)
{
	return str_eq(value, "yes") || str_eq(value, "true");
}

static bool ssh_config_is_no(const char *value)
{
	return str_eq(value, "no") || str_eq(value, "false");
}

static void ssh_config_add_name(struct strv *list, const char *name)
{
	if (*name && !str_eq(name, "none") && list->n < SSH_CONFIG_LIST_MAX)
		strv_add(list, name);
}

/* Blanks between them; one that has blanks stands in double quotes, if ssh is so kind. */
static void ssh_config_add_words(struct strv *list, const char *value)
{
	while (*value) {
		bool is_quoted = *value == '"';
		const char *start = value + is_quoted;
		size_t len = strcspn(start, is_quoted ? "\"" : " \t");
		AUTO_FREE char *word = mem_strndup(start, len);

		ssh_config_add_name(list, word);
		value = start + len;
		value += strspn(value, is_quoted ? "\" \t" : " \t");
	}
}

static int family_of(const char *value)
{
	return str_eq(value, "inet") ? AF_INET : str_eq(value, "inet6") ? AF_INET6 : AF_UNSPEC;
}

static enum ssh_strict ssh_config_strict_of(const char *value)
{
	if (ssh_config_is_yes(value))
		return SSH_STRICT_YES;
	if (str_eq(value, "accept-new"))
		return SSH_STRICT_ACCEPT_NEW;
	return ssh_config_is_no(value) || str_eq(value, "off") ? SSH_STRICT_OFF : SSH_STRICT_ASK;
}

static int64_t ssh_config_number_of(const char *value, int64_t max)
{
	int64_t number;

	return str_to_int(value, 0, max, "a number", &number, NULL) < 0 ? 0 : number;
}

static void ssh_config_set_text(char **field, const char *value)
{
	free(*field);
	*field = *value && !str_eq(value, "none") ? mem_strdup(value) : NULL;
}

static void set_value(
	struct ssh_config *config, const struct ssh_keyword *keyword, const char *value)
{
	void *field = (char *)config + keyword->offset;

	switch (keyword->value) {
	case SSH_VALUE_NONE:
		break;
	case SSH_VALUE_TEXT:
		ssh_config_set_text(field, value);
		break;
	case SSH_VALUE_AGENT:
		ssh_config_set_text(field, value);
		config->no_agent = str_eq(value, "none");
		break;
	case SSH_VALUE_YES:
		*(bool *)field = ssh_config_is_yes(value);
		break;
	case SSH_VALUE_PRESENT:
		*(bool *)field = true;
		break;
	case SSH_VALUE_LINES:
		ssh_config_add_name(field, value);
		break;
	case SSH_VALUE_WORDS:
		ssh_config_add_words(field, value);
		break;
	case SSH_VALUE_SECONDS:
		*(int *)field = (int)ssh_config_number_of(value, 24 * 3600);
		break;
	case SSH_VALUE_BITS:
		*(int *)field = (int)ssh_config_number_of(value, INT_MAX);
		break;
	case SSH_VALUE_PORT:
		*(uint16_t *)field = (uint16_t)ssh_config_number_of(value, UINT16_MAX);
		break;
	case SSH_VALUE_FAMILY:
		*(int *)field = family_of(value);
		break;
	case SSH_VALUE_STRICT:
		*(enum ssh_strict *)field = ssh_config_strict_of(value);
		break;
	}
}

static void set_why(struct ssh_config *config, const struct ssh_keyword *keyword, const char *name)
{
	AUTO_FREE char *shown = str_shown(name);

	if (config->openssh_why)
		return;
	config->openssh_why =
		keyword ? mem_strdup(keyword->why)
			: mem_printf("dlrun does not know what \"%.64s\" of the configuration says",
				  shown);
}

static int ssh_config_parse_line(struct ssh_config *config, char *line, struct err *err)
{
	size_t len = strcspn(line, " ");
	char *value = line + len + (line[len] == ' ');

	line[len] = '\0';
	if (!*line)
		return 0;
	const struct ssh_keyword *keyword = ssh_keyword_find(line);
	if (!keyword && ssh_keyword_is_idle(line))
		return 0;
	bool is_kept = ssh_keyword_is_kept(keyword, value);
	if (!is_kept)
		set_why(config, keyword, line);
	if (!keyword || keyword->value == SSH_VALUE_NONE)
		return 0;
	if (str_is_plain(value))
		set_value(config, keyword, value);
	else if (is_kept)
		return err_set(
			err, E_SSH_CONFIG, "ssh -G printed a %s with unprintable characters", line);
	return 0;
}

static void set_id(struct ssh_config *config, const char *text, size_t len)
{
	uint8_t hash[SHA256_SIZE];
	char hex[SHA256_HEX_SIZE];

	digest_sha256(text, len, hash);
	hex_encode(hash, sizeof(hash), hex);
	memcpy(config->id, hex, sizeof(config->id) - 1);
}

static int ssh_config_check_whole(const struct ssh_config *config, struct err *err)
{
	const char *missing = !config->hostname ? "hostname"
			      : !config->user   ? "user"
			      : !config->port   ? "port"
						: NULL;

	return missing ? err_set(err, E_SSH_CONFIG, "ssh -G printed no %s", missing) : 0;
}

int ssh_config_parse(const char *text, size_t len, struct ssh_config *ret, struct err *err)
{
	AUTO_SSH_CONFIG struct ssh_config config = {0};
	int r = 0;

	if (len > SSH_CONFIG_MAX || memchr(text, '\0', len))
		return err_set(err, E_SSH_CONFIG, "the output of ssh -G is unreadable");
	AUTO_FREE char *copy = mem_strndup(text, len);
	set_id(&config, text, len);
	for (char *line = copy, *next; line && r == 0; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		line[strcspn(line, "\r")] = '\0';
		r = ssh_config_parse_line(&config, line, err);
	}
	if (r == 0)
		r = ssh_config_check_whole(&config, err);
	if (r < 0)
		return r;
	*ret = config;
	config = (struct ssh_config){0};
	return 0;
}

/* Two names may be of one field. */
static void free_field(void *field, enum ssh_value value)
{
	if (value == SSH_VALUE_TEXT || value == SSH_VALUE_AGENT)
		free(TAKE(*(char **)field));
	else if (value == SSH_VALUE_LINES || value == SSH_VALUE_WORDS)
		strv_done(field);
}

void ssh_config_done(struct ssh_config *config)
{
	for (size_t i = 0; i < ssh_n_keywords; i++)
		free_field((char *)config + ssh_keywords[i].offset, ssh_keywords[i].value);
	free(config->openssh_why);
	*config = (struct ssh_config){0};
}

/*
 * Names of files
 */

/* ${NAME}; false: not set, or not closed. */
static bool add_variable(struct buf *out, const char **at, const struct ssh_config_location *place)
{
	size_t len = strcspn(*at + 2, "}");
	AUTO_FREE char *name = mem_strndup(*at + 2, len);
	const char *value = place->env ? env_get(place->env, name) : NULL;

	if (!value || (*at)[2 + len] != '}')
		return false;
	buf_adds(out, value);
	*at += len + 2;
	return true;
}

static bool add_token(struct buf *out, char token, const struct ssh_config *config,
	const struct ssh_config_location *place)
{
	const char *value = token == '%'   ? "%"
			    : token == 'd' ? place->home
			    : token == 'h' ? config->hostname
			    : token == 'r' ? config->user
			    : token == 'u' ? place->local_user
			    : token == 'n' ? place->host
					   : NULL;

	if (value)
		buf_adds(out, value);
	else if (token == 'p')
		buf_addf(out, "%u", config->port);
	return value || token == 'p';
}

static bool expand_into(struct buf *out, const char *name, const struct ssh_config *config,
	const struct ssh_config_location *place)
{
	if (str_starts(name, "~/")) {
		buf_adds(out, place->home);
		name++;
	} else if (*name == '~') {
		return false;
	}
	for (; *name; name++) {
		bool known = true;

		if (*name == '%' && name[1])
			known = add_token(out, *++name, config, place);
		else if (name[0] == '$' && name[1] == '{')
			known = add_variable(out, &name, place);
		else
			buf_addc(out, *name);
		if (!known)
			return false;
	}
	return !out->full;
}

static bool ssh_config_expand_name(
	char **name, const struct ssh_config *config, const struct ssh_config_location *place)
{
	AUTO_BUF struct buf out = buf_with(4096);

	if (!expand_into(&out, *name, config, place))
		return false;
	free(*name);
	/* ssh itself looks for the others from where it is started. */
	*name = out.data[0] == '/' ? buf_take(&out) : mem_printf("%s/%s", place->home, out.data);
	return true;
}

/* "SSH_AUTH_SOCK" and "$NAME" name a variable. */
static bool expand_agent(struct ssh_config *config, const struct ssh_config_location *place)
{
	const char *name = config->agent;

	if (!name)
		return true;
	if (!str_eq(name, "SSH_AUTH_SOCK") && (name[0] != '$' || name[1] == '{'))
		return ssh_config_expand_name(&config->agent, config, place);
	name += name[0] == '$';
	char *value = place->env ? mem_strdup(env_get(place->env, name)) : NULL;
	REPLACE(config->agent, value);
	return true;
}

bool ssh_config_expand(struct ssh_config *config, const struct ssh_config_location *place)
{
	struct strv *const lists[] = {&config->identities, &config->certificates,
		&config->user_known_hosts, &config->global_known_hosts};
	bool whole = expand_agent(config, place);

	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		for (size_t j = 0; j < lists[i]->n; j++)
			whole &= ssh_config_expand_name(&lists[i]->v[j], config, place);
	return whole;
}

void ssh_config_default(const struct ssh_config_location *place, struct ssh_config *ret)
{
	static const char *const keys[] = {"id_rsa", "id_ecdsa", "id_ed25519"};
	const char *at = strrchr(place->host, '@');

	*ret = (struct ssh_config){.port = 22, .family = AF_UNSPEC};
	ret->hostname = mem_strdup(at ? at + 1 : place->host);
	ret->user = at ? mem_strndup(place->host, (size_t)(at - place->host))
		       : mem_strdup(place->local_user ? place->local_user : "root");
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		strv_addf(&ret->identities, "%s/.ssh/%s", place->home, keys[i]);
	strv_addf(&ret->user_known_hosts, "%s/.ssh/known_hosts", place->home);
	strv_add(&ret->global_known_hosts, "/etc/ssh/ssh_known_hosts");
	set_id(ret, place->host, strlen(place->host));
}

/*
 * Variables
 */

static bool is_sent(const struct ssh_config *config, const char *pair)
{
	AUTO_FREE char *name = mem_strndup(pair, strcspn(pair, "="));

	for (size_t i = 0; i < config->send_env.n; i++) {
		const char *pattern = config->send_env.v[i];

		if (ssh_pattern_matches(pattern, strlen(pattern), name))
			return true;
	}
	return false;
}

void ssh_config_env(const struct ssh_config *config, const char *const *env, struct strv *ret)
{
	for (; *env; env++)
		if (strchr(*env, '=') && is_sent(config, *env))
			strv_add(ret, *env);
	for (size_t i = 0; i < config->set_env.n; i++)
		if (strchr(config->set_env.v[i], '='))
			strv_add(ret, config->set_env.v[i]);
}

/*
 * Running ssh -G
 */

/* The first lines that ssh has printed tell what it rejects. */
static int ssh_config_fail_read(
	const struct ssh_config_call *call, const struct buf *errors, struct err *err)
{
	const char *line = errors->data;

	err_set(err, E_SSH_CONFIG, "ssh cannot use its configuration for %s", call->host);
	for (int i = 0; i < EVIDENCE_LINES && *line; i++) {
		size_t len = strcspn(line, "\r\n");
		AUTO_FREE char *copy = mem_strndup(line, len);
		AUTO_FREE char *shown = str_escaped(copy);

		if (*shown)
			err_evidence(err, "ssh: %s", shown);
		line += len;
		line += strspn(line, "\r\n");
	}
	return err_hint(err, "ssh -G %s", call->host);
}

static int ssh_config_run_once(const struct ssh_config_call *call, const char *option,
	struct buf *out, struct buf *errors, struct err *err)
{
	AUTO_STRV struct strv argv = {0};
	int status = 0;

	strv_add(&argv, "ssh");
	strv_add(&argv, "-G");
	strv_add(&argv, "-T");
	if (option)
		strv_add(&argv, option);
	if (call->config) {
		strv_add(&argv, "-F");
		strv_add(&argv, call->config);
	}
	if (call->port)
		strv_addf(&argv, "-p%u", call->port);
	strv_add(&argv, "--");
	strv_add(&argv, call->host);
	const struct proc_capture_spec spec = {.argv = (const char *const *)argv.v,
		.env = call->env,
		.timeout_ms = READ_MS,
		.errors = errors,
		.drops = true,
		.cancel_fd = call->cancel_fd};
	buf_reset(out);
	buf_reset(errors);
	int r = proc_capture_with(&spec, out, &status, err);
	if (r < 0 && err_is_set(err) && err->id == E_IO) {
		err_set(err, E_SSH_CONFIG,
			"ssh -G %s did not end: a command of its Match exec may hang", call->host);
		return err_hint(err, "ssh -G %s", call->host);
	}
	if (r < 0)
		return r;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || out->full)
		return ssh_config_fail_read(call, errors, err);
	return 0;
}

int ssh_config_read(const struct ssh_config_call *call, struct ssh_config *ret, struct err *err)
{
	AUTO_BUF struct buf out = buf_with(SSH_CONFIG_MAX);
	AUTO_BUF struct buf errors = buf_with(WORDS_MAX);

	int r = ssh_config_run_once(call, NULL, &out, &errors, err);
	/* To fork ssh needs a command, which cannot be given beside a RemoteCommand. Older clients
	 * do not know the option. */
	bool forks = r < 0 && strstr(errors.data, "Cannot fork into background");
	if (forks) {
		err_clear(err);
		r = ssh_config_run_once(call, "-oForkAfterAuthentication=no", &out, &errors, err);
	}
	if (r == 0)
		r = ssh_config_parse(out.data, out.len, ret, err);
	if (r == 0)
		ret->forks |= forks;
	return r;
}
