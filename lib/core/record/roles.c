/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/roles.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/record/resources.h"
#include "core/record/spec.h"

enum { ROLES_GPUS_MAX = 1024, ROLES_WORD_MAX = 256 << 10 };

static void role_done(struct role *role)
{
	free(role->name);
	strv_done(&role->command);
	strv_done(&role->env);
}

void roles_done(struct roles *roles)
{
	if (!roles)
		return;
	vec_foreach (struct role, role, &roles->list)
		role_done(role);
	vec_done(&roles->list);
	free(roles->ends_with);
	*roles = (struct roles){0};
}

int roles_sum(const struct roles *roles)
{
	int64_t sum = 0;

	vec_foreach (const struct role, role, &roles->list)
		sum += role->nodes;
	return sum > RESOURCES_NODES_MAX ? RESOURCES_NODES_MAX + 1 : (int)sum;
}

static const char roles_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-";

static bool roles_name_is_valid(const char *name)
{
	size_t len = strlen(name);

	return islower((unsigned char)*name) && strspn(name, roles_letters) == len &&
	       name[len - 1] != '-' && len <= ROLES_NAME_MAX;
}

static ptrdiff_t roles_index(const struct roles *roles, const char *name)
{
	for (size_t i = 0; i < roles->list.n; i++)
		if (str_eq(roles->list.v[i].name, name))
			return (ptrdiff_t)i;
	return -1;
}

/*
 * {ROLE.N}
 */

struct roles_address {
	size_t len; /* of {ROLE.N} */
	char name[ROLES_NAME_MAX + 1];
	int rank;
};

/* Whether {NAME.N} stands at text, of whichever name. */
static bool roles_parse_address(const char *text, struct roles_address *ret)
{
	size_t name = *text == '{' ? strspn(text + 1, roles_letters) : 0;
	const char *digits = text + 1 + name + 1;

	if (name == 0 || name > ROLES_NAME_MAX || !islower((unsigned char)text[1]) ||
		text[1 + name] != '.')
		return false;
	size_t n = strspn(digits, "0123456789");
	if (n == 0 || n > 6 || digits[n] != '}')
		return false;
	memcpy(ret->name, text + 1, name);
	ret->name[name] = '\0';
	ret->rank = (int)strtol(digits, NULL, 10);
	ret->len = (size_t)(digits + n + 1 - text);
	return true;
}

/* The next {NAME.N} of text, or NULL. */
static const char *roles_next_address(const char *text, struct roles_address *ret)
{
	for (text = strchr(text, '{'); text; text = strchr(text + 1, '{'))
		if (roles_parse_address(text, ret))
			return text;
	return NULL;
}

static int roles_check_text(const struct spec *spec, const char *text, struct err *err)
{
	struct roles_address address;

	while ((text = roles_next_address(text, &address))) {
		ptrdiff_t i = roles_index(&spec->roles, address.name);
		if (i < 0) {
			err_set(err, E_CONFIG, "%.*s: there is no role '%s'", (int)address.len,
				text, address.name);
			return err_hint(err, "{%s.0}", spec->roles.list.v[0].name);
		}
		const struct role *role = &spec->roles.list.v[i];
		if (address.rank >= role->nodes) {
			err_set(err, E_CONFIG, "%.*s: role %s has the ranks 0 to %d",
				(int)address.len, text, role->name, role->nodes - 1);
			return err_hint(err, "{%s.%d}", role->name, role->nodes - 1);
		}
		text += address.len;
	}
	return 0;
}

static int roles_check_texts(const struct spec *spec, const struct strv *texts, struct err *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < texts->n; i++)
		r = roles_check_text(spec, texts->v[i], err);
	return r;
}

static bool roles_has_address(const struct spec *spec, const char *text)
{
	struct roles_address address;

	while (spec->roles.list.n && (text = roles_next_address(text, &address))) {
		if (roles_index(&spec->roles, address.name) >= 0)
			return true;
		text += address.len;
	}
	return false;
}

char *roles_fill(const struct spec *spec, const struct strv *addresses, const char *text)
{
	struct roles_address address;
	AUTO_BUF struct buf out = buf_with(ROLES_WORD_MAX);
	const char *at;

	if (!roles_has_address(spec, text))
		return mem_strdup(text);
	for (; (at = roles_next_address(text, &address)); text = at + address.len) {
		ptrdiff_t i = roles_index(&spec->roles, address.name);
		struct roles_part part = {0};
		if (i >= 0)
			roles_nth(spec, (size_t)i, &part);
		size_t rank = (size_t)part.first + (size_t)address.rank;
		buf_add(&out, text, (size_t)(at - text));
		if (address.rank < part.nodes && rank < addresses->n)
			buf_adds(&out, addresses->v[rank]);
		else
			buf_add(&out, at, address.len);
	}
	buf_adds(&out, text);
	return buf_check(&out, "an argument", NULL) == 0 ? buf_take(&out) : mem_strdup("");
}

/*
 * The configuration
 */

static int roles_read_number(const struct json *json, const char *what, const char *key,
	int64_t min, int64_t max, int *ret, struct err *err)
{
	AUTO_FREE char *name = mem_printf("%s.%s", what, key);
	const char *text = json_get_str(json, key);
	AUTO_ERR struct err cause = {0};
	int64_t value = 0;

	if (!text)
		return 0;
	if (str_to_int(text, min, max, name, &value, &cause) < 0)
		return err_set(err, E_CONFIG, "%s", cause.message);
	*ret = (int)value;
	return 0;
}

static int roles_read_sizes(
	const struct json *json, const char *what, struct role *role, struct err *err)
{
	const char *cpus = json_get_str(json, "cpus"), *memory = json_get_str(json, "memory");
	AUTO_FREE char *name = mem_printf("%s.cpus", what);
	AUTO_ERR struct err cause = {0};

	if (memory && str_to_size(memory, &role->memory_bytes, &cause) < 0)
		return err_set(err, E_CONFIG, "%s.memory: %s", what, cause.message);
	return cpus ? resources_parse_cpus(cpus, name, &role->cpus_milli, err) : 0;
}

static int roles_read_words(
	const struct json *json, const char *what, struct role *role, struct err *err)
{
	const struct json *command = json_get(json, "command"), *env = json_get(json, "env");
	AUTO_FREE char *option = mem_printf("--%s.env", what);
	int r = 0;

	role->shell = json_str(command) != NULL;
	if (role->shell)
		strv_add(&role->command, json_str(command));
	else
		for (const struct json *item = json_first(command); item; item = json_next(item))
			strv_add(&role->command, json_str(item));
	for (const struct json *item = json_first(env); r == 0 && item; item = json_next(item)) {
		AUTO_FREE char *pair = mem_printf("%s=%s", json_key(item), json_str(item));
		r = words_check_name(pair, option, err);
		if (r == 0 && config_name_is_secret(json_key(item))) {
			err_set(err, E_CONFIG, "%s: %s looks like a secret, which is the run's",
				option + 2, json_key(item));
			return err_hint(err, "secrets: [%s]", json_key(item));
		}
		strv_add(&role->env, pair);
	}
	return r;
}

static int roles_check_names(const struct roles *roles, struct err *err);
static int roles_check_ends_with(const struct roles *roles, struct err *err);

int roles_from_config(const struct config *config, struct roles *ret, struct err *err)
{
	const char *ends_with = config_str(config, "ends_with");
	const struct json *json = config_roles(config);
	int r = 0;

	if (!json && str_empty(ends_with))
		return 0;
	if (!json) {
		err_set(err, E_CONFIG, "ends_with is for a run with roles");
		config_blame(config, "ends_with", err);
		return err_hint(err, "roles: {%s: {nodes: 1}}", ends_with);
	}
	ret->ends_with = str_empty(ends_with) ? NULL : mem_strdup(ends_with);
	for (const struct json *item = json_first(json); r == 0 && item; item = json_next(item)) {
		struct role *role = vec_push(&ret->list);
		AUTO_FREE char *shown = str_shown(json_key(item)),
			       *what = mem_printf("roles.%s", shown);

		*role = (struct role){
			.name = mem_strdup(json_key(item)), .nodes = 1, .gpus = ROLES_GPUS_UNSET};
		r = roles_read_number(item, what, "nodes", 1, ROLES_NODES_MAX, &role->nodes, err);
		if (r == 0)
			r = roles_read_number(
				item, what, "gpus", 0, ROLES_GPUS_MAX, &role->gpus, err);
		if (r == 0)
			r = roles_read_sizes(item, what, role, err);
		r = r < 0 ? r : roles_read_words(item, what, role, err);
	}
	if (r == 0)
		r = roles_check_names(ret, err);
	if (r < 0)
		return config_blame(config, "roles", err);
	r = roles_check_ends_with(ret, err);
	return r < 0 ? config_blame(config, "ends_with", err) : 0;
}

/*
 * Checks
 */

static int roles_check_name(const struct roles *roles, size_t i, struct err *err)
{
	const char *name = roles->list.v[i].name;
	AUTO_FREE char *shown = str_shown(name);

	if (!roles_name_is_valid(name)) {
		err_set(err, E_CONFIG,
			"'%s' is not a valid name of a role: at most %d of a-z, 0-9 and -, a letter "
			"first",
			shown, ROLES_NAME_MAX);
		return err_hint(err, "roles: {learner: {gpus: 1}}");
	}
	/* DLRUN_ROLE_RANK is something else. */
	if (str_eq(name, "rank") || str_eq(name, "nodes"))
		return err_set(err, E_CONFIG, "a role cannot be named '%s'", shown);
	if (roles_index(roles, name) != (ptrdiff_t)i)
		return err_set(err, E_CONFIG, "role '%s' is there twice", shown);
	return 0;
}

static int roles_check_names(const struct roles *roles, struct err *err)
{
	int r = 0;

	if (roles->list.n > ROLES_MAX)
		return err_set(err, E_CONFIG, "there are %zu roles, and a run has %d at most",
			roles->list.n, ROLES_MAX);
	for (size_t i = 0; r == 0 && i < roles->list.n; i++)
		r = roles_check_name(roles, i, err);
	if (r == 0 && roles_sum(roles) > ROLES_NODES_MAX)
		r = err_set(err, E_CONFIG, "the roles have more than %d nodes", ROLES_NODES_MAX);
	return r;
}

static int roles_check_ends_with(const struct roles *roles, struct err *err)
{
	if (!roles->ends_with || roles_index(roles, roles->ends_with) >= 0)
		return 0;
	AUTO_FREE char *shown = str_shown(roles->ends_with);
	int r = err_set(err, E_CONFIG, "ends_with: there is no role '%s'", shown);
	return roles->list.n ? err_hint(err, "ends_with: %s", roles->list.v[0].name) : r;
}

static int roles_check_list(const struct roles *roles, struct err *err)
{
	int r = roles_check_names(roles, err);

	return r < 0 ? r : roles_check_ends_with(roles, err);
}

int roles_check(const struct spec *spec, struct err *err)
{
	if (!spec->roles.list.n)
		return 0;
	int r = roles_check_list(&spec->roles, err);
	if (r == 0 && spec->resources.nodes != roles_sum(&spec->roles))
		r = err_set(err, E_CONFIG, "the roles have %d nodes, and the run has %d",
			roles_sum(&spec->roles), spec->resources.nodes);
	if (r == 0)
		r = roles_check_texts(spec, &spec->command, err);
	if (r == 0)
		r = roles_check_texts(spec, &spec->env, err);
	for (size_t i = 0; r == 0 && i < spec->roles.list.n; i++) {
		r = roles_check_texts(spec, &spec->roles.list.v[i].command, err);
		if (r == 0)
			r = roles_check_texts(spec, &spec->roles.list.v[i].env, err);
	}
	return r;
}

/*
 * JSON
 */

static struct json *role_to_json(const struct role *role)
{
	struct json *json = json_object();

	json_set_str(json, "name", role->name);
	json_set_int(json, "nodes", role->nodes);
	if (role->gpus != ROLES_GPUS_UNSET)
		json_set_int(json, "gpus", role->gpus);
	if (role->cpus_milli)
		json_set_int(json, "cpus_milli", role->cpus_milli);
	if (role->memory_bytes)
		json_set_int(json, "memory_bytes", (int64_t)role->memory_bytes);
	if (role->command.n)
		words_set(json, "command", &role->command);
	if (role->shell)
		json_set_bool(json, "shell", true);
	if (role->env.n)
		words_set(json, "env", &role->env);
	return json;
}

void roles_to_json(const struct roles *roles, struct json *object)
{
	struct json *list;

	if (!roles->list.n)
		return;
	list = json_array();
	vec_foreach (const struct role, role, &roles->list)
		json_add(list, role_to_json(role));
	json_set(object, "roles", list);
	if (roles->ends_with)
		json_set_str(object, "ends_with", roles->ends_with);
}

static int role_from_json(const struct json *json, struct role *role, struct err *err)
{
	int64_t nodes = json_get_int(json, "nodes", 0);
	int64_t gpus = json_get_int(json, "gpus", ROLES_GPUS_UNSET);
	int64_t cpus = json_get_int(json, "cpus_milli", 0);
	int64_t memory = json_get_int(json, "memory_bytes", 0);
	const char *name = json_get_str(json, "name");

	*role = (struct role){.name = mem_strdup(name ? name : ""),
		.nodes = (int)nodes,
		.gpus = (int)gpus,
		.cpus_milli = cpus,
		.memory_bytes = (uint64_t)memory,
		.shell = json_get_bool(json, "shell", false)};
	if (nodes < 1 || nodes > ROLES_NODES_MAX || gpus < ROLES_GPUS_UNSET ||
		gpus > ROLES_GPUS_MAX || cpus < 0 || memory < 0)
		return err_set(err, E_DATA, "a role of the run is not complete");
	int r = words_get(json, "command", &role->command, err);
	return r < 0 ? r : words_get(json, "env", &role->env, err);
}

int roles_from_json(const struct json *object, struct roles *ret, struct err *err)
{
	const struct json *list = json_get(object, "roles");
	const char *ends_with = json_get_str(object, "ends_with");
	AUTO_ERR struct err cause = {0};
	int r = 0;

	if (!list)
		return 0;
	for (const struct json *item = json_first(list); r == 0 && item; item = json_next(item))
		r = role_from_json(item, vec_push(&ret->list), err);
	ret->ends_with = ends_with ? mem_strdup(ends_with) : NULL;
	if (r == 0 && roles_check_list(ret, &cause) < 0)
		return err_set(err, E_DATA, "%s", cause.message);
	return r;
}

void roles_to_record(const struct roles *roles, struct json *doc)
{
	struct json *object;

	if (!roles->list.n)
		return;
	object = json_sub(doc, "roles");
	vec_foreach (const struct role, role, &roles->list)
		json_set_int(object, role->name, role->nodes);
	if (roles->ends_with)
		json_set_str(doc, "ends_with", roles->ends_with);
}

/*
 * Of a run
 */

size_t roles_count(const struct spec *spec)
{
	return spec->roles.list.n ? spec->roles.list.n : 1;
}

void roles_nth(const struct spec *spec, size_t index, struct roles_part *ret)
{
	*ret = (struct roles_part){
		.nodes = spec->resources.nodes > 1 ? spec->resources.nodes : 1,
		.gpus = spec->runtime.gpus,
		.cpus_milli = spec->resources.cpus_milli,
		.memory_bytes = spec->resources.memory_bytes,
		.command = &spec->command,
		.shell = spec->shell,
		.is_deciding = true,
	};
	if (!spec->roles.list.n)
		return;
	BUG_ON(index >= spec->roles.list.n);
	const struct role *role = &spec->roles.list.v[index];
	for (size_t i = 0; i < index; i++)
		ret->first += spec->roles.list.v[i].nodes;
	ret->name = role->name;
	ret->index = index;
	ret->nodes = role->nodes;
	ret->is_deciding = !spec->roles.ends_with || str_eq(spec->roles.ends_with, role->name);
	if (role->gpus != ROLES_GPUS_UNSET)
		ret->gpus = role->gpus;
	if (role->cpus_milli)
		ret->cpus_milli = role->cpus_milli;
	if (role->memory_bytes)
		ret->memory_bytes = role->memory_bytes;
	if (role->command.n) {
		ret->command = &role->command;
		ret->shell = role->shell;
	}
}

const struct role *roles_main(const struct spec *spec)
{
	const struct roles *roles = &spec->roles;
	ptrdiff_t i = roles->ends_with ? roles_index(roles, roles->ends_with) : -1;

	return &roles->list.v[i < 0 ? 0 : i];
}

bool roles_take_command(const struct spec *spec)
{
	vec_foreach (const struct role, role, &spec->roles.list)
		if (!role->command.n)
			return true;
	return !spec->roles.list.n;
}

void roles_command_part(const struct spec *spec, struct roles_part *ret)
{
	const struct roles *roles = &spec->roles;
	size_t i = 0;

	if (roles->list.n && !roles_take_command(spec))
		i = (size_t)(roles_main(spec) - roles->list.v);
	else
		while (i < roles->list.n && roles->list.v[i].command.n)
			i++;
	roles_nth(spec, i, ret);
}

int roles_gpus(const struct spec *spec)
{
	struct roles_part part;
	int sum = 0;

	if (!spec->roles.list.n && spec->runtime.gpus == RUNTIME_GPUS_AUTO)
		return RUNTIME_GPUS_AUTO;
	for (size_t i = 0; i < roles_count(spec); i++) {
		roles_nth(spec, i, &part);
		sum += part.nodes * (part.gpus > 0 ? part.gpus : 0);
	}
	return sum;
}

void roles_of_rank(const struct spec *spec, int rank, struct roles_part *ret)
{
	size_t index = 0, n = roles_count(spec);
	int first = 0;

	while (index + 1 < n && rank >= first + spec->roles.list.v[index].nodes)
		first += spec->roles.list.v[index++].nodes;
	roles_nth(spec, index, ret);
	ret->rank = rank - ret->first;
}

char *roles_part_text(const struct roles_part *part)
{
	return part->name ? mem_printf("%s.%d", part->name, part->rank)
			  : mem_printf("rank %d", part->rank);
}

/* DLRUN_ROLE_<NAME>; the caller frees. */
static char *roles_variable(const char *name)
{
	char *variable = mem_printf("DLRUN_ROLE_%s", name);

	for (char *c = variable; *c; c++)
		*c = (char)(*c == '-' ? '_' : toupper((unsigned char)*c));
	return variable;
}

static void roles_add_addresses(
	const struct spec *spec, const struct strv *addresses, struct strv *ret)
{
	for (size_t i = 0; i < spec->roles.list.n; i++) {
		struct roles_part part;
		roles_nth(spec, i, &part);
		AUTO_FREE char *variable = roles_variable(part.name);
		AUTO_STRV struct strv own = {0};
		for (int k = part.first; k < part.first + part.nodes; k++)
			if ((size_t)k < addresses->n)
				strv_add(&own, addresses->v[k]);
		AUTO_FREE char *text = strv_join(&own, ",");
		strv_addf(ret, "%s=%s", variable, text);
	}
}

void roles_add_env(
	const struct spec *spec, int rank, const struct strv *addresses, struct strv *ret)
{
	struct roles_part part;

	if (!spec->roles.list.n)
		return;
	roles_of_rank(spec, rank, &part);
	strv_addf(ret, "DLRUN_ROLE=%s", part.name);
	strv_addf(ret, "DLRUN_ROLE_RANK=%d", part.rank);
	strv_addf(ret, "DLRUN_ROLE_NODES=%d", part.nodes);
	if (addresses)
		roles_add_addresses(spec, addresses, ret);
}

/*
 * Of a record
 */

static int roles_record_nodes(const struct json *role)
{
	int64_t nodes = json_int(role, 0);

	return nodes < 0 || nodes > ROLES_NODES_MAX || !roles_name_is_valid(json_key(role))
		       ? 0
		       : (int)nodes;
}

const char *roles_of_record(const struct json *doc, int *rank)
{
	int first = 0;

	for (const struct json *role = json_first(json_get(doc, "roles")); role && *rank >= 0;
		role = json_next(role)) {
		int nodes = roles_record_nodes(role);
		if (*rank < first + nodes) {
			*rank -= first;
			return json_key(role);
		}
		first += nodes;
	}
	return NULL;
}

char *roles_summary(const struct json *doc)
{
	AUTO_STRV struct strv names = {0};

	for (const struct json *role = json_first(json_get(doc, "roles")); role;
		role = json_next(role))
		if (roles_record_nodes(role))
			strv_addf(&names, "%s %d", json_key(role), roles_record_nodes(role));
	return names.n ? strv_join(&names, ", ") : NULL;
}

char *roles_rank_text(const struct json *doc, int rank)
{
	const char *role = roles_of_record(doc, &rank);

	return role ? mem_printf("%s.%d", role, rank) : mem_printf("rank %d", rank);
}

int roles_find(
	const struct json *doc, const char *name, int *ret_first, int *ret_nodes, struct err *err)
{
	const struct json *roles = json_get(doc, "roles");
	AUTO_FREE char *shown = str_shown(name);
	AUTO_STRV struct strv names = {0};
	int first = 0;

	for (const struct json *role = json_first(roles); role; role = json_next(role)) {
		int nodes = roles_record_nodes(role);
		if (!nodes)
			continue;
		if (str_eq(json_key(role), name)) {
			*ret_first = first;
			*ret_nodes = nodes;
			return 0;
		}
		first += nodes;
		strv_add(&names, json_key(role));
	}
	if (!names.n)
		return err_set(err, E_USAGE, "the run has no roles");
	AUTO_FREE char *known = strv_join(&names, ", ");
	err_set(err, E_USAGE, "the run has no role '%s': it has %s", shown, known);
	return err_hint(err, "--role %s", names.v[0]);
}
