/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/supply.h"

#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/snapshot.h"

struct supply {
	struct loop *loop;
	struct http *http; /* NULL: no provider needs one */
	const struct scale_settings *settings;
	struct provider_programs *programs;
	struct supply_sources VEC_OF(struct supply_source) sources;
};
struct supply_source {
	struct supply *supply;
	const struct settings_provider *wanted;
	struct provider *provider;
	struct provider_call *call;
	struct loop_wait *wait;
	struct json *groups; /* its last response */
	int64_t seen_ms;     /* clock_ms() of it; 0: there was none */
	struct err error;    /* of the newest request */
};

static struct http *supply_http(struct supply *supply, const char *const *env)
{
	struct http_options options = http_options_of(supply->loop, env);

	/* Keys are about to be here. */
	os_protect_memory();
	if (!supply->http)
		supply->http = http_new(&options);
	return supply->http;
}

static struct provider *supply_find(const struct supply *supply, const char *name)
{
	vec_foreach (const struct supply_source, source, &supply->sources)
		if (str_eq(provider_name(source->provider), name))
			return source->provider;
	return NULL;
}

/* The path, and a number if that is another's name or may become so. The caller frees. */
static char *supply_name(const struct supply *supply, const char *path)
{
	AUTO_FREE char *name = mem_strdup(path);

	for (int n = 2; str_eq(name, "aws") || supply_find(supply, name); n++)
		REPLACE(name, mem_printf("%s#%d", path, n));
	return TAKE(name);
}

/* The same program with the same arguments has the same groups. */
static bool supply_is_same(const struct settings_provider *a, const struct settings_provider *b)
{
	size_t i = 0;

	while (i < a->words.n && i < b->words.n && str_eq(a->words.v[i], b->words.v[i]))
		i++;
	return a->kind == b->kind && i == a->words.n && i == b->words.n;
}

static int supply_add(struct supply *supply, const char *const *env,
	const struct settings_provider *wanted, struct err *err)
{
	const char *const *words = (const char *const *)wanted->words.v;
	struct provider *provider = NULL;

	vec_foreach (const struct supply_source, other, &supply->sources)
		if (supply_is_same(other->wanted, wanted))
			return err_set(err, E_SCALE_SETTINGS, "provider %s is there twice",
				provider_name(other->provider));
	if (wanted->kind == SETTINGS_EXEC) {
		AUTO_FREE char *name = supply_name(supply, words[0]);
		provider = provider_exec_new(supply->loop, supply->programs, name, words, env);
	} else {
		ERR_TRY(provider_aws_new(
			supply->loop, supply_http(supply, env), words, env, &provider, err));
	}
	*vec_push(&supply->sources) =
		(struct supply_source){.supply = supply, .wanted = wanted, .provider = provider};
	return 0;
}

int supply_open(struct loop *loop, const char *const *env, const struct scale_settings *settings,
	struct supply **ret, struct err *err)
{
	AUTO_SUPPLY struct supply *supply = mem_alloc(1, sizeof(*supply));

	supply->loop = loop;
	supply->settings = settings;
	/* None that hangs must keep another from being asked for its groups. */
	size_t n = settings_providers(settings)->n;
	supply->programs = provider_programs_new(n > SUPPLY_PROGRAMS_MAX ? n : SUPPLY_PROGRAMS_MAX);
	vec_foreach (const struct settings_provider, wanted, settings_providers(settings))
		ERR_TRY(supply_add(supply, env, wanted, err));
	*ret = TAKE(supply);
	return 0;
}

void supply_free(struct supply *supply)
{
	if (!supply)
		return;
	vec_foreach (struct supply_source, source, &supply->sources) {
		provider_cancel(source->call);
		provider_free(source->provider);
		json_free(source->groups);
		err_clear(&source->error);
	}
	vec_done(&supply->sources);
	provider_programs_free(supply->programs);
	http_free(supply->http);
	free(supply);
}

static int supply_on_groups(void *ctx, struct provider_reply *reply, struct err *err UNUSED)
{
	struct supply_source *source = ctx;

	source->call = NULL;
	bool has_groups = reply->response && json_get(reply->response, "groups") &&
			  json_kind(json_get(reply->response, "groups")) == JSON_ARRAY;
	if (reply->response && !has_groups) {
		err_set(&source->error, E_SCALE_PROVIDER, "its response has no groups");
	} else if (reply->response) {
		json_free(source->groups);
		source->groups = TAKE(reply->response);
		source->seen_ms = clock_ms();
	} else {
		err_move(&source->error, &reply->error);
	}
	loop_wait_done(source->wait);
	return 0;
}

void supply_ask(struct supply *supply, struct loop_wait *wait)
{
	AUTO_JSON struct json *request = json_object();

	json_set_str(request, "verb", "groups");
	json_set_str(request, "cluster", settings_cluster(supply->settings));
	vec_foreach (struct supply_source, source, &supply->sources) {
		provider_cancel(source->call);
		err_clear(&source->error);
		source->wait = wait;
		wait->n_open++;
		source->call = provider_start(
			source->provider, request, wait->deadline_ms, supply_on_groups, source);
	}
}

static void supply_take_remarks(const struct supply_source *source, struct scale_model *model)
{
	const struct json *remarks = json_get(source->groups, "remarks");
	size_t n = 0;

	for (const struct json *m = json_first(remarks); m && n < SUPPLY_REMARKS_MAX;
		m = json_next(m), n++) {
		AUTO_FREE char *text = provider_shown(json_str(m), "a remark that is no text");

		strv_addf(
			&model->remarks, "provider %s: %s", provider_name(source->provider), text);
	}
}

static void supply_take_groups(
	struct supply_source *source, const char *silent, struct scale_model *model)
{
	const struct json *groups = json_get(source->groups, "groups");
	const char *name = provider_name(source->provider);

	for (const struct json *m = json_first(groups); m; m = json_next(m)) {
		AUTO_ERR struct err err = {0};
		if (snapshot_read_group(m, model, &err) < 0) {
			strv_addf(&model->remarks, "provider %s: %s", name, err.message);
			continue;
		}
		struct scale_group *group = &model->groups.v[model->groups.n - 1];
		if (strlen(group->id) > SUPPLY_ID_MAX) {
			strv_addf(&model->remarks, "provider %s: the id of a group is too long",
				name);
			scale_group_done(&model->groups.v[--model->groups.n]);
			continue;
		}
		REPLACE(group->provider, mem_strdup(name));
		settings_apply(source->supply->settings, group);
		if (silent && !group->refused)
			group->refused = mem_strdup(silent);
	}
}

/* Whether its last response still counts. */
static bool supply_is_known(const struct supply_source *source)
{
	return source->seen_ms && clock_ms() - source->seen_ms <= SUPPLY_KEEP_MS;
}

/* The same program with other arguments, whose groups may have the same ids and are not known;
 * NULL: there is none. */
static const struct supply_source *supply_unknown_twin(const struct supply_source *source)
{
	if (source->wanted->kind != SETTINGS_EXEC)
		return NULL;
	vec_foreach (const struct supply_source, other, &source->supply->sources)
		if (other != source && other->wanted->kind == SETTINGS_EXEC &&
			str_eq(other->wanted->words.v[0], source->wanted->words.v[0]) &&
			!supply_is_known(other))
			return other;
	return NULL;
}

void supply_take(struct supply *supply, struct scale_model *model)
{
	vec_foreach (struct supply_source, source, &supply->sources) {
		const char *name = provider_name(source->provider);
		bool is_silent = source->call || err_is_set(&source->error);
		const char *why = !is_silent              ? ""
				  : source->error.message ? source->error.message
							  : "no response in time";
		provider_cancel(TAKE(source->call));
		if (is_silent)
			strv_addf(&model->remarks, "provider %s: %s", name, why);
		if (!supply_is_known(source))
			continue;
		const struct supply_source *twin = supply_unknown_twin(source);
		if (twin) {
			strv_addf(&model->remarks,
				"provider %s: not used before the groups of %s are known, which may "
				"have the same ids",
				name, provider_name(twin->provider));
			continue;
		}
		AUTO_FREE char *silent = mem_printf("its provider does not respond: %s", why);
		supply_take_groups(source, is_silent ? silent : NULL, model);
		supply_take_remarks(source, model);
	}
	if (!supply_is_blind(supply))
		settings_unmatched(supply->settings, model);
}

bool supply_is_blind(const struct supply *supply)
{
	vec_foreach (const struct supply_source, source, &supply->sources)
		if (!supply_is_known(source))
			return true;
	return false;
}

struct provider *supply_provider(const struct supply *supply, const struct scale_group *group)
{
	return supply_find(supply, group->provider);
}
