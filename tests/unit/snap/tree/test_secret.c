/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "snap/tree/secret.h"

/* The name alone says it. */
static const char *const secret_names[] = {
	".env",
	"a/b/.env",
	".env.local",
	".env.production",
	".ENV",
	".netrc",
	"_netrc",
	".pgpass",
	".mylogin.cnf",
	".git-credentials",
	"home/.config/git/credentials",
	".aws/credentials",
	"x/.aws/credentials",
	".azure/accessTokens.json",
	"msal_token_cache.json",
	"msal_token_cache.bin",
	"application_default_credentials.json",
	".config/gcloud/credentials.db",
	".config/gcloud/access_tokens.db",
	"ci_accessKeys.csv",
	"kubeconfig",
	"kubeconfig.yaml",
	"kubeconfig.yml",
	"prod.kubeconfig",
	".kube/config",
	".dockercfg",
	".dockerconfigjson",
	".cargo/credentials",
	".cargo/credentials.toml",
	".gem/credentials",
	".terraform.d/credentials.tfrc.json",
	"terraform.tfstate",
	"terraform.tfstate.backup",
	"prod.tfvars",
	"prod.auto.tfvars.json",
	".vault-token",
	".vault_pass",
	".vault-password",
	"vault_pass.txt",
	".htpasswd",
	"web.htpasswd",
	"server.p12",
	"server.pfx",
	"server.pkcs12",
	"a.jks",
	"a.jceks",
	"a.bcfks",
	"a.keystore",
	"a.kdb",
	"passwords.kdbx",
	"login.keychain",
	"login.keychain-db",
	"logins.json",
	"key4.db",
	".huggingface/token",
	".cache/huggingface/token",
	".cache/huggingface/stored_tokens",
	".hf_token",
	"hf_token.txt",
	".wandb_api_key",
	".api_key",
	"api_key",
	"api_key.txt",
	"apikey.txt",
	"kaggle.json",
	".kaggle/kaggle.json",
	"credentials.json",
	"id_rsa",
	"id_dsa",
	"id_ecdsa",
	"id_ecdsa_sk",
	"id_ed25519",
	"id_ed25519_sk",
	".ssh/work",
	"backup/.ssh/anything",
};

static const char *const harmless_names[] = {
	"train.py",
	"README.md",
	".env.example",
	".env.sample",
	".env.template",
	".env.local.example",
	".env.dist",
	".env.vault",
	".env.gpg",
	"example.tfvars",
	"terraform.tfvars.example",
	"kubeconfig.template",
	"sample.kubeconfig",
	".envs",
	"env",
	"environment.yml.lock",
	"id_rsa.pub",
	"id_ed25519_sk.pub",
	"work_rsa.pub",
	".ssh/config",
	".ssh/known_hosts",
	".ssh/authorized_keys",
	".ssh/id_rsa.pub",
	"config",
	"x.kube/config",
	"kube/config",
	"config.json",
	"docker/config.json",
	"credentials.py",
	"token",
	"tokenizer.json",
	"tokenizer_config.json",
	"special_tokens_map.json",
	"tokens.txt",
	"settings",
	"huggingface/tokenizer",
	"monkey.db",
	"keys.py",
	"data.keys",
	"secrets.py",
	"model.pkl",
	"",
};

/* A name that asks for a look, a content that is a secret, and one that is not. */
static const struct observe {
	const char *name, *secret, *harmless;
} polls[] = {
	{"a.pem", "-----BEGIN RSA PRIVATE KEY-----\nMII", "-----BEGIN CERTIFICATE-----\nMII"},
	{"test_key.pem", "x\n-----BEGIN ENCRYPTED PRIVATE KEY-----",
		"-----BEGIN PUBLIC KEY-----\n"},
	{"example.pem", "-----BEGIN PRIVATE KEY-----", "-----BEGIN CERTIFICATE-----"},
	{"tls.key", "-----BEGIN EC PRIVATE KEY-----", "PK\3\4 slides"},
	{"a.p8", "-----BEGIN PRIVATE KEY-----", ""},
	{"a.crt", "-----BEGIN OPENSSH PRIVATE KEY-----", "-----BEGIN CERTIFICATE-----"},
	{"putty.ppk", "PuTTY-User-Key-File-3: ssh-ed25519", "x"},
	{"backup.asc", "-----BEGIN PGP PRIVATE KEY BLOCK-----", "-----BEGIN PGP SIGNATURE-----"},
	{"vpn.ovpn", "<key>\n-----BEGIN PRIVATE KEY-----", "remote example.com"},
	{"id_rsa_work", "-----BEGIN OPENSSH PRIVATE KEY-----", "notes"},
	{"id_ed25519.old", "-----BEGIN OPENSSH PRIVATE KEY-----", "notes"},
	{"deploy_ed25519", "-----BEGIN OPENSSH PRIVATE KEY-----", "notes"},
	{"deploy_rsa", "-----BEGIN OPENSSH PRIVATE KEY-----", "notes"},
	{"prod.env", "HF_TOKEN=hf_abc\n", "EPOCHS=10\nHF_TOKEN=\nAPI_KEY=${API_KEY}\n"},
	{".envrc", "export WANDB_API_KEY='0123'\n", "layout python3\nexport TOKEN=<your token>\n"},
	{".Renviron", "AWS_SECRET_ACCESS_KEY=abc\n", "R_LIBS=~/R\n"},
	{".npmrc", "//registry.npmjs.org/:_authToken=npm_x\n",
		"//registry.npmjs.org/:_authToken=${NPM_TOKEN}\nsave-exact=true\n"},
	{".yarnrc.yml", "npmAuthToken: abc\n", "nodeLinker: node-modules\n"},
	{".pypirc", "[pypi]\nusername = __token__\npassword = pypi-x\n", "[pypi]\nusername = me\n"},
	{".my.cnf", "[client]\npassword=\"x\"\n", "[client]\npassword=\nuser=me\n"},
	{".msmtprc", "password: x\n", "host mail\n"},
	{".docker/config.json", "{\"auths\": {\"h\": {\"auth\": \"dTpw\"}}}",
		"{\"auths\": {\"h\": {}}, \"credsStore\": \"desktop\"}"},
	{"auth.json", "{\"auths\": {\"h\": {\"auth\": \"dTpw\"}}}", "{\"auth\": {}}"},
	{"credentials", "[default]\naws_secret_access_key = abc\n", "Jane Doe, PhD\n"},
	{"credentials.csv", "User name,Password\nme,x", "name,title\n"},
	{".boto", "aws_secret_access_key = x\n", "[Boto]\n"},
	{"boto.cfg", "aws_secret_access_key = x\n", "[Boto]\n"},
	{".s3cfg", "secret_key = x\n", "secret_key = \n"},
	{".dvc/config.local", "['remote \"s3\"']\n    secret_access_key = x\n", "[core]\n"},
	{"rclone.conf", "[s3]\nsecret_access_key = x\n", "[local]\ntype = local\n"},
	{".databrickscfg", "token = dapi0\n", "host = https://h\n"},
	{".modal.toml", "token_secret = \"as-x\"\n", "[default]\n"},
	{".comet.config", "api_key=x\n", "workspace=me\n"},
	{".cdsapirc", "url: https://h\nkey: 1:2\n", "url: https://h\n"},
	{".flyrc", "token: x\n", "x\n"},
	{".terraformrc", "token = \"x\"\n", "disable_checkpoint = true\n"},
	{".config/gh/hosts.yml", "github.com:\n    oauth_token: gho_x\n",
		"github.com:\n    user: me\n"},
	{"wandb/settings", "[default]\napi_key = x\n", "[default]\nentity = me\n"},
	{"proj-0123456789ab.json", "{\"private_key\": \"-----BEGIN\"}", "{\"loss\": 1}"},
	{"service-account.json", "{\"private_key\": \"x\"}", "{\"private_key\": \"\"}"},
	{"gcp-sa.json", "{\"private_key\": \"x\"}", "{}"},
	{"app-firebase-adminsdk.json", "{\"private_key\": \"x\"}", "{}"},
	{"client_secret_1.json", "{\"installed\":{\"client_secret\":\"x\"}}", "{}"},
	{"token.json", "{\"refresh_token\": \"x\"}", "{\"[PAD]\": 0}"},
	{"key.json", "{\"private_key\": \"x\"}", "{\"C\": \"major\"}"},
	{"secrets.yaml", "db: hunter2\n", "db: ENC[AES256_GCM,data:x]\n"},
	{"secrets.yml", "db: hunter2\n", "$ANSIBLE_VAULT;1.1;AES256\n"},
	{".streamlit/secrets.toml", "key = \"x\"\n", ""},
	{"secrets.json", "{\"a\":\"b\"}", ""},
	{"credentials.yaml", "a: b\n", ""},
	{"credentials.yml", "a: b\n", ""},
	{"cluster.yaml",
		"apiVersion: v1\nkind: Config\nusers:\n- user:\n    client-key-data: LS0t\n",
		"apiVersion: skaffold/v4\nkind: Config\nbuild: {}\n"},
	{"cluster.yml", "kind: Config\nusers:\n- user:\n    token: abc\n",
		"kind: ConfigMap\ndata:\n  token: abc\n"},
	{"deploy.yaml", "kind: Secret\nstringData:\n  a: b\n", "kind: SecretStore\ndata:\n"},
	{"conf/train.yaml", "a: 1\n---\nkind: Secret\ndata:\n  a: b\n", "lr: 0.1\ntoken: <pad>\n"},
};

static void test_names(void **state)
{
	const char *what;

	for (size_t i = 0; i < ARRAY_LEN(secret_names); i++) {
		what = NULL;
		if (secret_by_name(secret_names[i], &what) != SECRET_YES || !what)
			fail_msg("%s is not seen", secret_names[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(harmless_names); i++) {
		what = NULL;
		if (secret_by_name(harmless_names[i], &what) == SECRET_YES || what)
			fail_msg("%s is harmless", harmless_names[i]);
		if (secret_by_content(harmless_names[i], "x = 1\n", 6, &what))
			fail_msg("%s is harmless, whatever the content", harmless_names[i]);
	}
}

static void test_contents(void **state)
{
	const char *what;

	for (size_t i = 0; i < ARRAY_LEN(polls); i++) {
		const struct observe *observe = &polls[i];
		if (secret_by_name(observe->name, NULL) != SECRET_READ)
			fail_msg("%s is not looked into", observe->name);
		what = NULL;
		if (!secret_by_content(
			    observe->name, observe->secret, strlen(observe->secret), &what) ||
			!what)
			fail_msg(
				"%s: this content is a secret: %s", observe->name, observe->secret);
		if (secret_by_content(
			    observe->name, observe->harmless, strlen(observe->harmless), &what))
			fail_msg("%s: this content is harmless: %s", observe->name,
				observe->harmless);
	}
}

static void test_binary_keys(void **state)
{
	static const char pkcs1[] = {'0', '\x82', 4, '\xa4', 2, 1, 0, 2, '\x82'};
	static const char pkcs8[] = {'0', '\x81', '\x87', 2, 1, 0, '0', 19};
	static const char sec1[] = {'0', 119, 2, 1, 1, 4, 32, 1};
	static const char certificate[] = {'0', '\x82', 4, '\xa4', '0', '\x82', 3, '\x8c'};

	assert_true(secret_by_content("a.der", pkcs1, sizeof(pkcs1), NULL));
	assert_true(secret_by_content("a.key", pkcs8, sizeof(pkcs8), NULL));
	assert_true(secret_by_content("a.pem", sec1, sizeof(sec1), NULL));
	assert_false(secret_by_content("a.der", certificate, sizeof(certificate), NULL));
	assert_false(secret_by_content("a.der", pkcs1, 7, NULL));
}

/* The head of a file is no string. */
static void test_head_without_end(void **state)
{
	static const char head[] = {'t', 'o', 'k', 'e', 'n', '='};

	for (size_t len = 0; len <= sizeof(head); len++) {
		char *copy = mem_dup(head, len);
		assert_false(secret_by_content(".flyrc", copy, len, NULL));
		free(copy);
	}
	assert_true(secret_by_content("a.env", "token=\0x\0token=y", 16, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_contents),
		cmocka_unit_test(test_binary_keys),
		cmocka_unit_test(test_head_without_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
