/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_list(const struct strv *list, bool whole)
{
	BUG_ON(list->n > SSH_CONFIG_LIST_MAX);
	for (size_t i = 0; i < list->n; i++) {
		BUG_ON(!*list->v[i] || !str_is_plain(list->v[i]));
		BUG_ON(whole && list->v[i][0] != '/');
	}
}

static void check_config(struct ssh_config *config)
{
	static const char *const env[] = {"NAME=value", "SSH_SOCK=/run/agent", NULL};
	const struct ssh_config_location place = {
		.home = "/home/me", .host = "gpu", .local_user = "me", .env = env};

	BUG_ON(!config->port || !str_is_plain(config->hostname) || !str_is_plain(config->user));
	BUG_ON(strlen(config->id) != 32);
	bool whole = ssh_config_expand(config, &place);
	check_list(&config->identities, whole);
	check_list(&config->certificates, whole);
	check_list(&config->user_known_hosts, whole);
	check_list(&config->global_known_hosts, whole);
	BUG_ON((config->proxy_jump || config->proxy_command) && !config->openssh_why);
	BUG_ON(config->openssh_why && !str_is_plain(config->openssh_why));
}

/* What gets to a command line is one plain word that is no option. */
static void check_host(const char *host)
{
	AUTO_ERR struct err err = {0};

	if (ssh_config_check_host(host, &err) < 0) {
		BUG_ON(err.id != E_USAGE || !str_is_plain(err.message));
		return;
	}
	const char *at = strrchr(host, '@');
	BUG_ON(!*host || *host == '-' || (at && (!at[1] || at[1] == '-')));
	BUG_ON(strpbrk(host, " \t\r\n;|&$`'\"\\<>()"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	AUTO_SSH_CONFIG struct ssh_config config = {0};
	AUTO_ERR struct err err = {0};

	check_host(text);
	if (ssh_config_parse((const char *)data, size, &config, &err) == 0)
		check_config(&config);
	else
		BUG_ON(err.id != E_SSH_CONFIG || !str_is_plain(err.message));
	return 0;
}
