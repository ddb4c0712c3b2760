#include "run/config.h"

#include <ctype.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"
#include "base/yaml.h"
#include "run/words.h"

enum { KEYS_MAX = 64 };

struct config_value {
	bool set;
	struct config_origin origin;
	char *text;           /* scalars: as written, checked */
	struct strv list;     /* lists, commands, env */
	bool shell;           /* CONFIG_COMMAND: one line for sh -c */
	struct json *targets; /* CONFIG_TARGETS */
};

struct config {
	struct config_value values[KEYS_MAX];
};

/* Where a value is being read from, for messages and origins. */
struct place {
	enum config_source source;
	const char *file;
	unsigned line;
};

static size_t key_index(const char *name)
{
	for (size_t i = 0; i < config_keys_n; i++)
		if (str_eq(config_keys[i].name, name))
			return i;
	return config_keys_n;
}

static const struct config_value *value_of(const struct config *config, const char *name)
{
	size_t i = key_index(name);

	BUG_ON(i == config_keys_n);
	return &config->values[i];
}

static int place_error(struct err *err, enum err_id id, const struct place *place, const char *text)
{
	if (place->line)
		return err_set(err, id, "%s:%u: %s", place->file, place->line, text);
	return err_set(err, id, "%s: %s", place->file, text);
}

static int place_errorf(struct err *err, const struct place *place, const char *fmt, ...)
	ERR_PRINTF(3, 4);
static int place_errorf(struct err *err, const struct place *place, const char *fmt, ...)
{
	AUTO_FREE char *text = NULL;
	va_list args;

	va_start(args, fmt);
	text = mem_vprintf(fmt, args);
	va_end(args);
	return place_error(err, E_CONFIG, place, text);
}

static void value_done(struct config_value *value)
{
	free(value->origin.file);
	free(value->text);
	strv_done(&value->list);
	json_free(value->targets);
	*value = (struct config_value){0};
}

static void value_mark(struct config_value *value, const struct place *place)
{
	char *file = mem_strdup(place->file);

	free(value->origin.file);
	value->origin = (struct config_origin){place->source, file, place->line};
	value->set = true;
}

/* --- scalars ------------------------------------------------------------------------------- */

static bool word_in(const char *words, const char *word)
{
	size_t len = strlen(word);

	for (const char *p = words; p && *p;) {
		size_t n = strcspn(p, " ");

		if (n == len && memcmp(p, word, n) == 0)
			return true;
		p += n + strspn(p + n, " ");
	}
	return false;
}

static int check_scalar(const struct config_key *key, const char *text, struct err *err)
{
	uint64_t size;
	int64_t number;

	switch (key->type) {
	case CONFIG_INT:
		return str_to_int(text, 0, INT64_MAX, key->name, &number, err);
	case CONFIG_SIZE:
		return str_to_size(text, &size, err);
	case CONFIG_DURATION:
		return duration_parse(text, &number, err);
	case CONFIG_ENUM:
		if (!word_in(key->choices, text))
			return err_set(err, E_CONFIG, "'%s' is none of: %s", text, key->choices);
		return 0;
	default:
		return 0;
	}
}

static int set_scalar(struct config *config, size_t i, const char *text, const struct place *place,
	struct err *err)
{
	const struct config_key *key = &config_keys[i];
	struct config_value *value = &config->values[i];
	AUTO_ERR struct err cause = {0};

	if (check_scalar(key, text, &cause) < 0)
		return place_errorf(err, place, "%s: %s", key->name, cause.message);
	free(value->text);
	value->text = mem_strdup(text);
	value_mark(value, place);
	return 0;
}

/* --- what stands in a file ------------------------------------------------------------------- */

static const char *kind_name(const struct yaml *node)
{
	static const char *const names[] = {"a single value", "a list", "a map"};

	return names[node->kind];
}

static int wrong_kind(struct err *err, const struct place *place, const char *key,
	const char *wanted, const struct yaml *node)
{
	return place_errorf(err, place, "%s must be %s, not %s", key, wanted, kind_name(node));
}

static int read_words(const struct yaml *node, const char *key, const struct place *place,
	struct strv *ret, struct err *err)
{
	for (const struct yaml *item = node->first; item; item = item->next) {
		if (item->kind != YAML_SCALAR)
			return place_errorf(err,
				&(struct place){place->source, place->file, item->line},
				"an item of %s must be a single value, not %s", key,
				kind_name(item));
		strv_add(ret, item->text);
	}
	return 0;
}

static int read_list(struct config *config, size_t i, const struct yaml *node,
	const struct place *place, struct err *err)
{
	struct config_value *value = &config->values[i];
	AUTO_STRV struct strv list = {0};
	int r;

	if (node->kind != YAML_LIST)
		return wrong_kind(err, place, config_keys[i].name, "a list", node);
	r = read_words(node, config_keys[i].name, place, &list, err);
	if (r < 0)
		return r;
	strv_done(&value->list);
	value->list = list;
	list = (struct strv){0};
	value_mark(value, place);
	return 0;
}

static int read_command(struct config *config, size_t i, const struct yaml *node,
	const struct place *place, struct err *err)
{
	struct config_value *value = &config->values[i];

	if (node->kind == YAML_MAP)
		return wrong_kind(
			err, place, config_keys[i].name, "a list of words or a string", node);
	if (node->kind == YAML_LIST) {
		value->shell = false;
		return read_list(config, i, node, place, err);
	}
	if (!*node->text)
		return place_errorf(err, place, "%s is empty", config_keys[i].name);
	strv_done(&value->list);
	strv_add(&value->list, node->text);
	value->shell = true;
	value_mark(value, place);
	return 0;
}

static bool env_name_is_valid(const char *name)
{
	if (!isalpha((unsigned char)*name) && *name != '_')
		return false;
	for (const char *p = name; *p; p++)
		if (!isalnum((unsigned char)*p) && *p != '_')
			return false;
	return true;
}

/* A later (higher) layer's value of the same name wins. */
static void env_put(struct strv *list, const char *name, const char *text)
{
	size_t len = strlen(name);
	char *item = text ? mem_printf("%s=%s", name, text) : mem_strdup(name);

	for (size_t i = 0; i < list->n; i++) {
		if (strncmp(list->v[i], name, len) == 0 && strchr("=", list->v[i][len])) {
			free(list->v[i]);
			list->v[i] = item;
			return;
		}
	}
	strv_add_take(list, item);
}

static int read_env(struct config *config, size_t i, const struct yaml *node,
	const struct place *place, struct err *err)
{
	struct config_value *value = &config->values[i];

	if (node->kind != YAML_MAP)
		return wrong_kind(
			err, place, config_keys[i].name, "a map of names to values", node);
	for (const struct yaml *item = node->first; item; item = item->next) {
		struct place here = {place->source, place->file, item->key_line};

		if (!env_name_is_valid(item->key))
			return place_errorf(err, &here, "'%s' is no name of a variable", item->key);
		if (item->kind != YAML_SCALAR)
			return wrong_kind(err, &here, item->key, "a single value", item);
		env_put(&value->list, item->key, yaml_is_null(item) ? NULL : item->text);
	}
	value_mark(value, place);
	return 0;
}

/* A list of names, or a map in which a name without a value is from this shell, too. */
static int read_secrets(struct config *config, size_t i, const struct yaml *node,
	const struct place *place, struct err *err)
{
	struct config_value *value = &config->values[i];

	if (node->kind == YAML_SCALAR)
		return wrong_kind(err, place, "secrets", "a list of names", node);
	for (const struct yaml *item = node->first; item; item = item->next) {
		bool named = node->kind == YAML_MAP;
		struct place here = {
			place->source, place->file, named ? item->key_line : item->line};
		const char *name = named ? item->key : item->text, *from = NULL;

		if (item->kind != YAML_SCALAR)
			return wrong_kind(err, &here, "an item of secrets", "a name", item);
		if (named && !yaml_is_null(item))
			from = item->text;
		if (!env_name_is_valid(name))
			return place_errorf(err, &here, "'%s' is no name of a variable", name);
		/* A value in a file that git tracks is what secrets are there to avoid. */
		if (from && (from[0] != '@' || !from[1]))
			return place_errorf(err, &here,
				"%s: a secret comes from this shell or from \"@FILE\"", name);
		env_put(&value->list, name, from);
	}
	value_mark(value, place);
	return 0;
}

/*
 * Targets
 */

static int read_target_text(
	struct json *target, const struct yaml *node, const struct place *place, struct err *err)
{
	if (node->kind != YAML_SCALAR || yaml_is_null(node))
		return wrong_kind(err, place, node->key, "a single value", node);
	json_set_str(target, node->key, node->text);
	return 0;
}

static int read_target_kind(
	struct json *target, const struct yaml *node, const struct place *place, struct err *err)
{
	if (node->kind != YAML_SCALAR || !str_eq(node->text, "local"))
		return place_errorf(err, place, "the only kind of target is local");
	json_set_str(target, "kind", "local");
	return 0;
}

static int read_target_data(
	struct json *target, const struct yaml *node, const struct place *place, struct err *err)
{
	struct json *data = json_object();

	json_set(target, "data", data);
	if (node->kind != YAML_MAP)
		return wrong_kind(err, place, "data", "a map of tree paths to places", node);
	for (const struct yaml *item = node->first; item; item = item->next) {
		struct place here = {place->source, place->file, item->key_line};

		if (item->kind != YAML_SCALAR || (item->text[0] != '/' && item->text[0] != '~'))
			return place_errorf(err, &here, "%s must be an absolute path", item->key);
		json_set_str(data, item->key, item->text);
	}
	return 0;
}

static int read_target_key(
	struct json *target, const struct yaml *node, const struct place *place, struct err *err)
{
	static const struct {
		const char *key;
		int (*read)(struct json *, const struct yaml *, const struct place *, struct err *);
	} keys[] = {{"before", read_target_text}, {"data", read_target_data},
		{"kind", read_target_kind}};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (str_eq(node->key, keys[i].key))
			return keys[i].read(target, node, place, err);
	return place_error(
		err, E_CONFIG_KEY, place, "a target here has the keys kind, before and data");
}

static int read_target(
	struct json *targets, const struct yaml *node, const struct place *place, struct err *err)
{
	struct json *target = json_object();
	int r = 0;

	json_set(targets, node->key, target);
	if (node->kind != YAML_MAP)
		return wrong_kind(err, place, node->key, "a map", node);
	for (const struct yaml *item = node->first; item && r == 0; item = item->next)
		r = read_target_key(target, item,
			&(struct place){place->source, place->file, item->key_line}, err);
	if (r == 0 && !yaml_get(node, "kind"))
		r = place_errorf(err, place, "target %s has no kind", node->key);
	return r;
}

static int read_targets(struct config *config, size_t i, const struct yaml *node,
	const struct place *place, struct err *err)
{
	struct config_value *value = &config->values[i];
	int r = 0;

	if (node->kind != YAML_MAP)
		return wrong_kind(
			err, place, config_keys[i].name, "a map of names to targets", node);
	if (!value->targets)
		value->targets = json_object();
	for (const struct yaml *item = node->first; item && r == 0; item = item->next)
		r = read_target(value->targets, item,
			&(struct place){place->source, place->file, item->key_line}, err);
	if (r == 0)
		value_mark(value, place);
	return r;
}

static int read_map(struct config *config, const struct yaml *map, const char *prefix,
	const struct place *place, struct err *err);

static int read_value(struct config *config, size_t i, const struct yaml *node,
	const struct place *place, struct err *err)
{
	const struct config_key *key = &config_keys[i];

	if (yaml_is_null(node))
		return place_errorf(err, place, "%s has no value", key->name);
	switch (key->type) {
	case CONFIG_LIST:
		return read_list(config, i, node, place, err);
	case CONFIG_COMMAND:
		return read_command(config, i, node, place, err);
	case CONFIG_ENV:
		return read_env(config, i, node, place, err);
	case CONFIG_SECRETS:
		return read_secrets(config, i, node, place, err);
	case CONFIG_TARGETS:
		return read_targets(config, i, node, place, err);
	case CONFIG_MAP:
		if (node->kind != YAML_MAP)
			return wrong_kind(err, place, key->name, "a map", node);
		return read_map(config, node, key->name, place, err);
	default:
		if (node->kind != YAML_SCALAR)
			return wrong_kind(err, place, key->name, "a single value", node);
		return set_scalar(config, i, node->text, place, err);
	}
}

/* The part of a key's name below prefix, or NULL if it does not lie directly there. */
static const char *name_below(const char *name, const char *prefix)
{
	size_t len = strlen(prefix);

	if (len) {
		if (strncmp(name, prefix, len) != 0 || name[len] != '.')
			return NULL;
		name += len + 1;
	}
	return strchr(name, '.') ? NULL : name;
}

static int unknown_key(
	struct err *err, const struct place *place, const char *prefix, const char *name)
{
	const char *known[KEYS_MAX], *near;
	AUTO_BUF struct buf shown;
	size_t n = 0;

	for (size_t i = 0; i < config_keys_n; i++) {
		const char *below = name_below(config_keys[i].name, prefix);

		if (below)
			known[n++] = below;
	}
	buf_init(&shown, 256);
	str_escape(&shown, name, strlen(name));
	err_set(err, E_CONFIG_KEY, "%s:%u: there is no key '%s'%s%s", place->file, place->line,
		shown.data, *prefix ? " in " : "", prefix);
	near = str_suggest(name, known, n);
	if (near)
		return err_hint(err, "did you mean '%s'?", near);
	return err_hint(err, "dlrun help dlrun.yaml");
}

static int read_map(struct config *config, const struct yaml *map, const char *prefix,
	const struct place *place, struct err *err)
{
	int r = 0;

	for (const struct yaml *item = map->first; item && r == 0; item = item->next) {
		struct place here = {place->source, place->file, item->key_line};
		AUTO_FREE char *name =
			*prefix ? mem_printf("%s.%s", prefix, item->key) : mem_strdup(item->key);
		size_t i = key_index(name);

		if (i == config_keys_n || !name_below(name, prefix))
			return unknown_key(err, &here, prefix, item->key);
		r = read_value(config, i, item, &here, err);
	}
	return r;
}

static int read_file(struct config *config, enum config_source source, const char *path,
	bool must_exist, struct err *err)
{
	AUTO_BUF struct buf text;
	AUTO_YAML struct yaml *root = NULL;
	bool missing = false;
	int r;

	buf_init(&text, YAML_SIZE_MAX);
	r = fs_read(path, YAML_SIZE_MAX, &text, &missing, err);
	if (r < 0) {
		if (!missing || must_exist)
			return r;
		err_clear(err);
		return 0;
	}
	r = yaml_parse(text.data, text.len, path, &root, err);
	if (r < 0)
		return r;
	if (root->kind != YAML_MAP)
		return err_set(
			err, E_CONFIG, "%s:%u: the file must be a map of keys", path, root->line);
	return read_map(config, root, "", &(struct place){source, path, 0}, err);
}

/* --- the environment ------------------------------------------------------------------------- */

static int read_environment(struct config *config, const char *const *env, struct err *err)
{
	for (size_t i = 0; i < config_keys_n; i++) {
		AUTO_FREE char *name = mem_printf("DLRUN_%s", config_keys[i].name);
		const char *text;
		int r;

		if (!config_keys[i].env)
			continue;
		for (char *p = name; *p; p++)
			*p = (char)toupper((unsigned char)*p);
		text = env_get(env, name);
		if (str_empty(text))
			continue;
		r = set_scalar(config, i, text, &(struct place){CONFIG_FROM_ENV, name, 0}, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static void set_defaults(struct config *config)
{
	BUG_ON(config_keys_n > KEYS_MAX);
	for (size_t i = 0; i < config_keys_n; i++)
		config->values[i].text = mem_strdup(config_keys[i].fallback);
}

static int load(struct config *config, const struct config_files *files, struct err *err)
{
	const struct {
		enum config_source source;
		const char *path;
		bool must_exist;
	} layers[] = {
		{CONFIG_FROM_SITE, files->site, false},
		{CONFIG_FROM_USER, files->user, false},
		{CONFIG_FROM_PROJECT, files->project, true},
	};

	for (size_t i = 0; i < sizeof(layers) / sizeof(layers[0]); i++) {
		int r = 0;

		if (layers[i].path)
			r = read_file(config, layers[i].source, layers[i].path,
				layers[i].must_exist, err);
		if (r < 0)
			return r;
	}
	return files->inside_run ? 0 : read_environment(config, files->env, err);
}

int config_load(const struct config_files *files, struct config **ret, struct err *err)
{
	AUTO_CONFIG struct config *config = mem_alloc(1, sizeof(*config));
	int r;

	set_defaults(config);
	r = load(config, files, err);
	if (r < 0)
		return r;
	*ret = TAKE(config);
	return 0;
}

void config_free(struct config *config)
{
	if (!config)
		return;
	for (size_t i = 0; i < config_keys_n; i++)
		value_done(&config->values[i]);
	free(config);
}

int config_override(struct config *config, const char *key, const char *text, struct err *err)
{
	size_t i = key_index(key);
	AUTO_ERR struct err cause = {0};

	BUG_ON(i == config_keys_n);
	if (config_keys[i].type == CONFIG_LIST) {
		strv_done(&config->values[i].list);
		strv_add(&config->values[i].list, text);
	} else if (check_scalar(&config_keys[i], text, &cause) < 0) {
		return err_set(err, E_USAGE, "--%s: %s", key, cause.message);
	} else {
		free(config->values[i].text);
		config->values[i].text = mem_strdup(text);
	}
	value_mark(&config->values[i], &(struct place){CONFIG_FROM_OPTION, "the command line", 0});
	return 0;
}

/* --- readers --------------------------------------------------------------------------------- */

const char *config_str(const struct config *config, const char *key)
{
	return value_of(config, key)->text;
}

int64_t config_int(const struct config *config, const char *key, int64_t unset)
{
	const char *text = value_of(config, key)->text;
	int64_t number = unset;

	if (text)
		str_to_int(text, 0, INT64_MAX, key, &number, NULL);
	return number;
}

uint64_t config_size(const struct config *config, const char *key)
{
	const char *text = value_of(config, key)->text;
	uint64_t size = 0;

	if (text)
		str_to_size(text, &size, NULL);
	return size;
}

int64_t config_duration(const struct config *config, const char *key, int64_t unset)
{
	const char *text = value_of(config, key)->text;
	int64_t ms = unset;

	if (text)
		duration_parse(text, &ms, NULL);
	return ms;
}

const struct strv *config_list(const struct config *config, const char *key)
{
	return &value_of(config, key)->list;
}

bool config_is_set(const struct config *config, const char *key)
{
	return value_of(config, key)->set;
}

const struct strv *config_command(const struct config *config, bool *ret_shell)
{
	const struct config_value *value = value_of(config, "command");

	*ret_shell = value->shell;
	return &value->list;
}

const struct strv *config_env(const struct config *config)
{
	return &value_of(config, "env")->list;
}

const struct strv *config_secrets(const struct config *config)
{
	return &value_of(config, "secrets")->list;
}

const struct json *config_target(const struct config *config, const char *name)
{
	return json_get(value_of(config, "targets")->targets, name);
}

void config_target_names(const struct config *config, struct strv *ret)
{
	const struct json *targets = value_of(config, "targets")->targets;

	if (!targets)
		return;
	for (const struct json *item = json_first(targets); item; item = json_next(item))
		strv_add(ret, json_key(item));
}

const struct config_origin *config_origin(const struct config *config, const char *key)
{
	return &value_of(config, key)->origin;
}

/* Values of secret names are not shown. */
static struct json *env_json(const struct strv *env)
{
	struct json *object = json_object();

	for (size_t i = 0; i < env->n; i++) {
		const char *equals = strchr(env->v[i], '=');
		AUTO_FREE char *name = mem_strndup(
			env->v[i], equals ? (size_t)(equals - env->v[i]) : strlen(env->v[i]));

		if (!equals)
			json_set(object, name, json_null());
		else
			json_set_str(object, name,
				config_name_is_secret(name) ? "(hidden)" : equals + 1);
	}
	return object;
}

static struct json *value_json(const struct config_key *key, const struct config_value *value)
{
	struct json *holder = json_object(), *list;

	switch (key->type) {
	case CONFIG_COMMAND:
		if (value->shell) {
			json_set_str(holder, "value", value->list.v[0]);
			break;
		}
		/* fallthrough */
	case CONFIG_LIST:
	case CONFIG_SECRETS:
		list = json_array();
		json_add_strv(list, &value->list);
		json_set(holder, "value", list);
		break;
	case CONFIG_ENV:
		json_set(holder, "value", env_json(&value->list));
		break;
	case CONFIG_TARGETS:
		json_set(holder, "value",
			value->targets ? json_clone(value->targets) : json_object());
		break;
	default:
		json_set_str(holder, "value", value->text);
	}
	return holder;
}

struct json *config_to_json(const struct config *config)
{
	static const char *const sources[] = {
		"default", "site", "user", "project", "environment", "option"};
	struct json *values = json_object();

	for (size_t i = 0; i < config_keys_n; i++) {
		const struct config_value *value = &config->values[i];
		struct json *item;

		if (config_keys[i].type == CONFIG_MAP || (!value->set && !value->text))
			continue;
		item = value_json(&config_keys[i], value);
		json_set_str(item, "source", sources[value->origin.source]);
		json_set_str(item, "file", value->origin.file);
		if (value->origin.line)
			json_set_int(item, "line", value->origin.line);
		json_set(values, config_keys[i].name, item);
	}
	return values;
}

/* Whether `word` is one of the words of name, which are joined by '_'. */
static bool has_word(const char *name, const char *word)
{
	size_t len = strlen(word);

	for (const char *p = name; *p;) {
		size_t n = strcspn(p, "_");

		if (n == len && strncasecmp(p, word, n) == 0)
			return true;
		p += n;
		p += *p == '_';
	}
	return false;
}

bool config_name_is_secret(const char *name)
{
	static const char *const words[] = {"TOKEN", "KEY", "APIKEY", "SECRET", "SECRETS",
		"PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIALS"};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (has_word(name, words[i]))
			return true;
	return false;
}
