/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/util/mem.h"
#include "snap/tree/secret.h"

/* The first bytes of a file. */
struct head {
	const char *text;
	size_t len;
};

/* Whether the content is what the name promises. keys: of the rule. */
typedef bool check_fn(const struct head *head, const char *const *keys);

struct rule {
	const char *text;
	const char *what;
	check_fn *check; /* NULL: the name says enough, unless it is that of an example */
	const char *const *keys;
	const char *dir; /* NULL: any; else the end of the path of its directory */
};

static const char key_text[] = "a private key";
static const char env_text[] = "environment settings, which often hold secrets";
static const char kube_text[] = "a kubeconfig";
static const char cloud_text[] = "cloud credentials";
static const char login_text[] = "a login with its password";
static const char store_text[] = "a store of keys or passwords";
static const char token_text[] = "an access token";
static const char state_text[] = "Terraform data, which holds secrets in clear";
static const char yaml_text[] = "a kubeconfig or a Kubernetes Secret";
static const char clear_text[] = "secrets in clear";

static const char *const login_keys[] = {"password", "passwd", "pass", NULL};
static const char *const token_keys[] = {"token", "api_key", "apikey", "secret", "password", NULL};
static const char *const npm_keys[] = {"_authToken", "_auth", "_password", "npmAuthToken", NULL};
static const char *const docker_keys[] = {"auth", "identitytoken", "registrytoken", NULL};
static const char *const s3_keys[] = {"secret_access_key", "secret_key", "Secret access key", NULL};
static const char *const json_keys[] = {"private_key", "client_secret", "refresh_token",
	"secret_access_key", "SecretAccessKey", "api_key", "apikey", "password", NULL};
static const char *const env_keys[] = {"token", "secret", "password", "passwd", "api_key", "apikey",
	"access_key", "private_key", "credentials", NULL};
static const char *const cds_keys[] = {"key", NULL};
static const char *const oauth_keys[] = {"oauth_token", NULL};
static const char *const rclone_keys[] = {"pass", "access_token", "secret_access_key", "key", NULL};
static const char *const kube_keys[] = {"client-key-data", "token", "password", NULL};

static bool contains(const struct head *head, const char *text)
{
	return memmem(head->text, head->len, text, strlen(text)) != NULL;
}

/* Whether the value is a placeholder for one that is filled in elsewhere. */
static bool is_placeholder(const char *value, size_t len)
{
	static const char *const words[] = {"changeme", "change-me", "change_me", "example", "null",
		"none", "true", "false", "your", "xxx", "todo", "..."};

	if (len == 0 || strchr("<$%{}[],#*|>&!\r\n", *value))
		return true;
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (len >= strlen(words[i]) && strncasecmp(value, words[i], strlen(words[i])) == 0)
			return true;
	return false;
}

/* Whether a value stands at `at`, behind a key: `= x`, `": "x"`, ` x` at the end of a word. */
static bool has_value_at(const char *at, const char *end)
{
	if (at < end && (*at == '"' || *at == '\''))
		at++;
	while (at < end && (*at == ' ' || *at == '\t'))
		at++;
	if (at == end || (*at != '=' && *at != ':'))
		return false;
	for (at++; at < end && strchr(" \t\"'", *at) && *at;)
		at++;
	return at < end && !is_placeholder(at, (size_t)(end - at));
}

static bool secret_has_value(const struct head *head, const char *key)
{
	const char *end = head->text + head->len;
	size_t len = strlen(key);

	for (const char *at = head->text; (size_t)(end - at) > len; at++)
		if (strncasecmp(at, key, len) == 0 && has_value_at(at + len, end))
			return true;
	return false;
}

static bool has_values(const struct head *head, const char *const *keys)
{
	for (; *keys; keys++)
		if (secret_has_value(head, *keys))
			return true;
	return false;
}

/* PKCS#1, PKCS#8 and SEC1 (RFC 8017, 5208, 5915) are a sequence that begins with a version, 0 or 1;
 * a certificate begins with another sequence. */
static bool is_der_key(const struct head *head)
{
	const unsigned char *der = (const unsigned char *)head->text;
	size_t at = head->len < 8 ? 0 : der[1] == 0x82 ? 4 : der[1] == 0x81 ? 3 : 2;

	return at && der[0] == 0x30 && der[at] == 2 && der[at + 1] == 1 && der[at + 2] <= 1;
}

static bool has_private_key(const struct head *head, const char *const *keys UNUSED)
{
	if (contains(head, "PRIVATE KEY"))
		return contains(head, "-----BEGIN ");
	return contains(head, "PuTTY-User-Key-File") || is_der_key(head);
}

/* Whether a line is exactly this. */
static bool secret_has_line(const struct head *head, const char *line)
{
	const char *end = head->text + head->len, *at = head->text;
	size_t len = strlen(line);

	while ((at = memmem(at, (size_t)(end - at), line, len))) {
		bool begins = at == head->text || at[-1] == '\n';
		at += len;
		if (begins && (at == end || *at == '\n' || *at == '\r' || *at == ' '))
			return true;
	}
	return false;
}

static bool is_secret_yaml(const struct head *head, const char *const *keys UNUSED)
{
	if (contains(head, "ENC["))
		return false;
	if (secret_has_line(head, "kind: Config"))
		return has_values(head, kube_keys);
	return secret_has_line(head, "kind: Secret") &&
	       (secret_has_line(head, "data:") || secret_has_line(head, "stringData:"));
}

/* Whether the file is as the console of AWS offers it for download: a line of titles, then
 * values. */
static bool has_access_key(const struct head *head, const char *const *keys UNUSED)
{
	return contains(head, "ecret access key") || contains(head, "Password");
}

/* Whether the values are not encrypted by sops, ansible-vault or age. */
static bool is_in_clear(const struct head *head, const char *const *keys UNUSED)
{
	return head->len > 0 && !contains(head, "ENC[") && !contains(head, "$ANSIBLE_VAULT") &&
	       !contains(head, "age-encryption.org");
}
/* Sorted by strcasecmp, for bsearch. */
static const struct rule names[] = {
	{".api_key", token_text},
	{".boto", cloud_text, has_values, s3_keys},
	{".cdsapirc", token_text, has_values, cds_keys},
	{".comet.config", token_text, has_values, token_keys},
	{".databrickscfg", token_text, has_values, token_keys},
	{".dockercfg", login_text},
	{".dockerconfigjson", login_text},
	{".env", env_text},
	{".envrc", env_text, has_values, env_keys},
	{".flyrc", token_text, has_values, token_keys},
	{".git-credentials", login_text},
	{".hf_token", token_text},
	{".htpasswd", login_text},
	{".modal.toml", token_text, has_values, token_keys},
	{".msmtprc", login_text, has_values, login_keys},
	{".my.cnf", login_text, has_values, login_keys},
	{".mylogin.cnf", login_text},
	{".netrc", login_text},
	{".npmrc", token_text, has_values, npm_keys},
	{".pgpass", login_text},
	{".pypirc", login_text, has_values, login_keys},
	{".renviron", env_text, has_values, env_keys},
	{".s3cfg", cloud_text, has_values, s3_keys},
	{".terraformrc", token_text, has_values, token_keys},
	{".vault-password", clear_text},
	{".vault-token", token_text},
	{".vault_pass", clear_text},
	{".wandb_api_key", token_text},
	{".yarnrc.yml", token_text, has_values, npm_keys},
	{"_netrc", login_text},
	{"access_tokens.db", cloud_text},
	{"accesstokens.json", cloud_text, NULL, NULL, ".azure"},
	{"api_key", token_text},
	{"api_key.txt", token_text},
	{"apikey.txt", token_text},
	{"application_default_credentials.json", cloud_text},
	{"auth.json", login_text, has_values, docker_keys},
	{"boto.cfg", cloud_text, has_values, s3_keys},
	{"config", kube_text, NULL, NULL, ".kube"},
	{"config.json", login_text, has_values, docker_keys, ".docker"},
	{"config.local", cloud_text, has_values, s3_keys, ".dvc"},
	{"credentials", cloud_text, NULL, NULL, ".aws"},
	{"credentials", login_text, NULL, NULL, ".cargo"},
	{"credentials", login_text, NULL, NULL, ".gem"},
	{"credentials", login_text, NULL, NULL, ".config/git"},
	{"credentials", cloud_text, has_values, s3_keys},
	{"credentials.csv", cloud_text, has_access_key},
	{"credentials.db", cloud_text},
	{"credentials.json", login_text},
	{"credentials.tfrc.json", token_text},
	{"credentials.toml", login_text, NULL, NULL, ".cargo"},
	{"credentials.yaml", clear_text, is_in_clear},
	{"credentials.yml", clear_text, is_in_clear},
	{"hf_token.txt", token_text},
	{"hosts.yml", token_text, has_values, oauth_keys, ".config/gh"},
	{"id_dsa", key_text},
	{"id_ecdsa", key_text},
	{"id_ecdsa_sk", key_text},
	{"id_ed25519", key_text},
	{"id_ed25519_sk", key_text},
	{"id_rsa", key_text},
	{"kaggle.json", token_text},
	{"key.json", cloud_text, has_values, json_keys},
	{"key4.db", store_text},
	{"kubeconfig", kube_text},
	{"kubeconfig.yaml", kube_text},
	{"kubeconfig.yml", kube_text},
	{"logins.json", store_text},
	{"msal_token_cache.bin", cloud_text},
	{"msal_token_cache.json", cloud_text},
	{"rclone.conf", cloud_text, has_values, rclone_keys},
	{"secrets.json", clear_text, is_in_clear},
	{"secrets.toml", clear_text, is_in_clear},
	{"secrets.yaml", clear_text, is_in_clear},
	{"secrets.yml", clear_text, is_in_clear},
	{"settings", token_text, has_values, token_keys, "wandb"},
	{"stored_tokens", token_text, NULL, NULL, "huggingface"},
	{"token", token_text, NULL, NULL, ".huggingface"},
	{"token", token_text, NULL, NULL, "huggingface"},
	{"token.json", token_text, has_values, json_keys},
	{"vault_pass.txt", clear_text},
};

/* File name extensions (behind the last dot); sorted the same way. */
static const struct rule extensions[] = {
	{"asc", key_text, has_private_key},
	{"bcfks", store_text},
	{"crt", key_text, has_private_key},
	{"der", key_text, has_private_key},
	{"env", env_text, has_values, env_keys},
	{"htpasswd", login_text},
	{"jceks", store_text},
	{"jks", store_text},
	{"kdb", store_text},
	{"kdbx", store_text},
	{"key", key_text, has_private_key},
	{"keychain", store_text},
	{"keychain-db", store_text},
	{"keystore", store_text},
	{"kubeconfig", kube_text},
	{"ovpn", key_text, has_private_key},
	{"p12", store_text},
	{"p8", key_text, has_private_key},
	{"pem", key_text, has_private_key},
	{"pfx", store_text},
	{"pkcs12", store_text},
	{"ppk", key_text, has_private_key},
	{"tfstate", state_text},
	{"tfvars", state_text},
	{"yaml", yaml_text, is_secret_yaml},
	{"yml", yaml_text, is_secret_yaml},
};

static const struct rule beginnings[] = {
	{".env.", env_text},
	{"client_secret", login_text, has_values, json_keys},
	{"id_dsa", key_text, has_private_key},
	{"id_ecdsa", key_text, has_private_key},
	{"id_ed25519", key_text, has_private_key},
	{"id_rsa", key_text, has_private_key},
};

static const struct rule endings[] = {
	{".tfstate.backup", state_text},
	{".tfvars.json", state_text},
	{"_accesskeys.csv", cloud_text},
	{"_dsa", key_text, has_private_key},
	{"_ecdsa", key_text, has_private_key},
	{"_ed25519", key_text, has_private_key},
	{"_rsa", key_text, has_private_key},
};

/* Names that a JSON file with a key or token has. */
static const char *const json_names[] = {"adminsdk", "credential", "firebase", "gcloud", "gcp",
	"keyfile", "oauth", "secret", "service-account", "service_account", "serviceaccount",
	"-key", "_key"};

static const struct rule json_rule = {"json", cloud_text, has_values, json_keys, NULL};
static const struct rule ssh_rule = {"", key_text, NULL, NULL, ".ssh"};

/* Files in ~/.ssh that are no keys. */
static const char *const ssh_public[] = {
	"authorized_keys", "config", "environment", "known_hosts", "known_hosts.old", "rc"};

/* Names of such files when they hold no real values, or hold them encrypted. */
static const char *const example_words[] = {"example", "sample", "template", "dummy"};
static const char *const example_endings[] = {".dist", ".tmpl", ".tpl", ".j2", ".schema", ".vault",
	".enc", ".sops", ".age", ".gpg", ".md"};

static bool secret_has_word(const char *name, const char *const *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcasestr(name, words[i]))
			return true;
	return false;
}

static bool ends_in(const char *name, const char *ending)
{
	size_t len = strlen(name), ending_len = strlen(ending);

	return len >= ending_len && strcasecmp(name + len - ending_len, ending) == 0;
}

static bool secret_is_example(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(example_endings); i++)
		if (ends_in(name, example_endings[i]))
			return true;
	return secret_has_word(name, example_words, ARRAY_LEN(example_words));
}

/* A path, its last component, and what comes before that. */
struct subject {
	const char *path, *name;
	size_t dir_len;
};

static struct subject subject_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		return (struct subject){.path = path, .name = path};
	return (struct subject){path, slash + 1, (size_t)(slash - path)};
}

static bool lies_in(const struct subject *s, const char *dir)
{
	size_t len = strlen(dir);

	if (s->dir_len < len || strncasecmp(s->path + s->dir_len - len, dir, len) != 0)
		return false;
	return s->dir_len == len || s->path[s->dir_len - len - 1] == '/';
}

/* The decision so far: a rule that need not read the file wins. */
struct matches {
	const struct rule *sure, *maybe;
};

static void add_match(struct matches *matches, const struct subject *s, const struct rule *rule)
{
	if (rule->dir && !lies_in(s, rule->dir))
		return;
	if (rule->check)
		matches->maybe = matches->maybe ? matches->maybe : rule;
	else if (!secret_is_example(s->name))
		matches->sure = matches->sure ? matches->sure : rule;
}

static int secret_by_text(const void *key, const void *row)
{
	return strcasecmp(key, ((const struct rule *)row)->text);
}

/* Apply all rows of a sorted table that are exactly text. */
static void add_same(struct matches *matches, const struct subject *s, const struct rule *table,
	size_t n, const char *text)
{
	const struct rule *row = bsearch(text, table, n, sizeof(*table), secret_by_text);

	if (!row)
		return;
	while (row > table && secret_by_text(text, row - 1) == 0)
		row--;
	for (; row < table + n && secret_by_text(text, row) == 0; row++)
		add_match(matches, s, row);
}

static bool is_hex(const char *s, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!strchr("0123456789abcdef", s[i]))
			return false;
	return true;
}

/* The console of GCP calls a key PROJECT-0123456789ab.json. */
static bool is_suspicious_json(const char *name, const char *dot)
{
	enum { ID_LEN = 12 };
	bool has_id =
		dot - name > ID_LEN && dot[-ID_LEN - 1] == '-' && is_hex(dot - ID_LEN, ID_LEN);

	return has_id || secret_has_word(name, json_names, ARRAY_LEN(json_names));
}

static void match_ssh(struct matches *matches, const struct subject *s)
{
	for (size_t i = 0; i < ARRAY_LEN(ssh_public); i++)
		if (strcmp(s->name, ssh_public[i]) == 0)
			return;
	add_match(matches, s, &ssh_rule);
}

static struct matches secret_match(const char *path)
{
	struct subject s = subject_of(path);
	struct matches matches = {0};
	const char *dot = strrchr(s.name, '.');

	if (ends_in(s.name, ".pub"))
		return matches;
	add_same(&matches, &s, names, ARRAY_LEN(names), s.name);
	if (dot)
		add_same(&matches, &s, extensions, ARRAY_LEN(extensions), dot + 1);
	for (size_t i = 0; i < ARRAY_LEN(beginnings); i++)
		if (strncasecmp(s.name, beginnings[i].text, strlen(beginnings[i].text)) == 0)
			add_match(&matches, &s, &beginnings[i]);
	for (size_t i = 0; i < ARRAY_LEN(endings); i++)
		if (ends_in(s.name, endings[i].text))
			add_match(&matches, &s, &endings[i]);
	if (dot && strcasecmp(dot, ".json") == 0 && is_suspicious_json(s.name, dot))
		add_match(&matches, &s, &json_rule);
	match_ssh(&matches, &s);
	return matches;
}

static void secret_set_what(const struct rule *rule, const char **ret_what)
{
	if (ret_what)
		*ret_what = rule->what;
}

enum secret_decision secret_by_name(const char *path, const char **ret_what)
{
	struct matches matches = secret_match(path);

	if (matches.sure) {
		secret_set_what(matches.sure, ret_what);
		return SECRET_YES;
	}
	return matches.maybe ? SECRET_READ : SECRET_NO;
}

bool secret_by_content(const char *path, const char *text, size_t len, const char **ret_what)
{
	const struct rule *rule = secret_match(path).maybe;
	struct head head = {text, len};

	if (!rule || !rule->check(&head, rule->keys))
		return false;
	secret_set_what(rule, ret_what);
	return true;
}
