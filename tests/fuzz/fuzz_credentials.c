/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/util/str.h"
#include "oci/auth/credentials.h"

static void openssh_login_is_over(const struct credential *login)
{
	const char *why = NULL;

	assert(credential_check(login, &why) == 0 && !why);
	assert(!login->user == !login->password);
	assert(!credential_is_there(login) == !login->origin);
	assert(!login->user || strlen(login->user) <= CREDENTIAL_SECRET_MAX);
	assert(!login->password || strlen(login->password) <= CREDENTIAL_SECRET_MAX);
	assert(!login->identity_token || strlen(login->identity_token) <= CREDENTIAL_SECRET_MAX);
	assert(!login->registry_token || strlen(login->registry_token) <= CREDENTIAL_SECRET_MAX);
}

static void check_helper(const char *helper, const char *key)
{
	static const char ok[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

	assert(!helper == !key);
	assert(!helper || (*helper && strspn(helper, ok) == strlen(helper)));
}

static void check_file(const char *text, size_t len, const char *host, const char *repo)
{
	AUTO_CREDENTIAL struct credential login = {0};
	AUTO_FREE char *helper = NULL, *key = NULL;
	AUTO_ERR struct err err = {0};

	int r = credential_file_find(text, len, "it", host, repo, &login, &helper, &key, &err);
	assert(err_is_set(&err) == (r < 0));
	assert((r == 1) == (helper || credential_is_there(&login)));
	openssh_login_is_over(&login);
	check_helper(helper, key);
	assert(r >= 0 || err.id == E_DATA || err.id == E_DATA_LIMIT);
}

static void check_response(const char *text, size_t len, int status)
{
	AUTO_CREDENTIAL struct credential login = {0};
	AUTO_ERR struct err err = {0};

	int r = credential_helper_parse(text, len, status, "x", &login, &err);
	assert(err_is_set(&err) == (r < 0));
	assert((r == 1) == credential_is_there(&login));
	openssh_login_is_over(&login);
	if (r >= 0)
		return;
	/* Its words come along only if it failed, and then few. */
	assert(err.id == E_REGISTRY_HELPER && err.n_evidence <= (status ? 1 : 0));
	assert(err.n_evidence == 0 || strlen(err.evidence[0]) <= strlen("it said: ") + 200);
	assert(err.n_evidence == 0 || str_is_plain(err.evidence[0]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;

	check_file(text, size, "r.example", "a/b");
	check_file(text, size, "docker.io", "me/app");
	check_response(text, size, 0);
	check_response(text, size, 1);
	check_response(text, size, 137);
	return 0;
}
