/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/status/object.h"

#include <stdio.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kinds.h"

enum { KEY_MAX = 63, DIGITS_MAX = 9 };

void kube_copy_members(struct json *to, const struct json *from, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct json *value = json_get(from, names[i]);
		if (value)
			json_set(to, names[i], json_clone(value));
	}
}

const struct json *kube_at(const struct json *object, const char *path)
{
	char key[KEY_MAX + 1];

	while (object && *path) {
		size_t len = strcspn(path, ".");

		if (len > KEY_MAX)
			return NULL;
		memcpy(key, path, len);
		key[len] = '\0';
		object = json_get(object, key);
		path += len + (path[len] == '.');
	}
	return object;
}

const char *kube_str_at(const struct json *object, const char *path)
{
	const struct json *value = kube_at(object, path);

	return value ? json_str(value) : NULL;
}

int64_t kube_time_at(const struct json *object, const char *path)
{
	const char *text = kube_str_at(object, path);
	int64_t ms;

	return text && clock_parse(text, &ms, NULL) == 0 && ms > 0 ? ms : 0;
}

const struct json *kube_first(const struct json *object, const char *path)
{
	const struct json *array = kube_at(object, path);

	return array && json_kind(array) == JSON_ARRAY ? json_first(array) : NULL;
}

static const struct json *object_element(
	const struct json *object, const char *path, const char *key, const char *value)
{
	const struct json *m = kube_first(object, path);

	while (m && !str_eq(json_get_str(m, key), value))
		m = json_next(m);
	return m;
}

const struct json *kube_named(const struct json *object, const char *path, const char *name)
{
	return object_element(object, path, "name", name);
}

const struct json *kube_condition(const struct json *object, const char *type)
{
	return object_element(object, "status.conditions", "type", type);
}

bool kube_condition_is(const struct json *object, const char *type, const char *status)
{
	const struct json *condition = kube_condition(object, type);

	return condition && str_eq(json_get_str(condition, "status"), status);
}

const struct json *kube_condition_true(const struct json *object, const char *type)
{
	return kube_condition_is(object, type, "True") ? kube_condition(object, type) : NULL;
}

const struct json *kube_pod_program(const struct json *pod)
{
	static const char path[] = "status.containerStatuses";
	const struct json *program = kube_named(pod, path, KUBE_CONTAINER);

	return program ? program : kube_first(pod, path);
}

const char *kube_label(const struct json *object, const char *key)
{
	return json_get_str(kube_at(object, "metadata.labels"), key);
}

const char *kube_annotation(const struct json *object, const char *key)
{
	return json_get_str(kube_at(object, "metadata.annotations"), key);
}

const char *kube_completion_index(const struct json *pod)
{
	const char *label = kube_label(pod, KUBE_INDEX);

	return label ? label : kube_annotation(pod, KUBE_INDEX);
}

int kube_rank_of(const struct json *pod)
{
	const char *index = kube_completion_index(pod);
	int64_t number = 0;

	if (index && str_to_int(index, 0, INT32_MAX, "index", &number, NULL) < 0)
		return -1;
	number += kube_number(kube_annotation(pod, KUBE_ANNOTATION_FIRST), 0);
	return number <= INT32_MAX ? (int)number : -1;
}

int64_t kube_deleted_ms(const struct json *object)
{
	const struct json *metadata = json_get(object, "metadata");
	int64_t ms = kube_time_at(metadata, "deletionTimestamp");
	int64_t grace = json_get_int(metadata, "deletionGracePeriodSeconds", 0);

	if (!ms || grace <= 0 || grace > ms / 1000)
		return ms;
	return ms - grace * 1000;
}

/*
 * Words in texts
 */

char *kube_between(const char *text, const char *before, const char *end)
{
	const char *from = text ? strstr(text, before) : NULL;
	const char *to;

	if (!from)
		return NULL;
	from += strlen(before);
	to = *end ? strstr(from, end) : NULL;
	return mem_strndup(from, to ? (size_t)(to - from) : strlen(from));
}

int64_t kube_number(const char *text, int64_t fallback)
{
	int64_t value = 0;
	size_t n = 0;

	if (!text)
		return fallback;
	for (; n < DIGITS_MAX && str_is_digit(text[n]); n++)
		value = value * 10 + (text[n] - '0');
	return n ? value : fallback;
}

/*
 * Quantities (k8s.io/apimachinery/pkg/api/resource): a decimal number, then a binary or decimal
 * suffix or an exponent. Counted in thousandths, rounded up as Kubernetes does.
 */

enum { WHOLE_DIGITS_MAX = 18, EXPONENT_MAX = 18 };

struct number {
	int64_t whole, milli; /* milli: 0 to 1000, rounded up */
};

static const char *quantity_digits(const char *text, struct number *ret)
{
	size_t n = 0, frac = 0;

	*ret = (struct number){0};
	for (; str_is_digit(text[n]); n++) {
		if (n >= WHOLE_DIGITS_MAX)
			return NULL;
		ret->whole = ret->whole * 10 + (text[n] - '0');
	}
	text += n;
	if (*text == '.') {
		int64_t unit = 100;

		for (text++; str_is_digit(*text); text++, frac++, unit /= 10)
			ret->milli += unit ? unit * (*text - '0') : 0;
	}
	return n || frac ? text : NULL;
}

static bool quantity_suffix(const char *suffix, int64_t *ret_multiplier)
{
	static const struct {
		const char *suffix;
		int64_t multiplier;
	} table[] = {
		{"", 1},
		{"k", 1000},
		{"M", 1000000},
		{"G", 1000000000},
		{"T", 1000000000000},
		{"P", 1000000000000000},
		{"Ki", 1LL << 10},
		{"Mi", 1LL << 20},
		{"Gi", 1LL << 30},
		{"Ti", 1LL << 40},
		{"Pi", 1LL << 50},
	};

	for (size_t i = 0; i < ARRAY_LEN(table); i++)
		if (str_eq(suffix, table[i].suffix)) {
			*ret_multiplier = table[i].multiplier;
			return true;
		}
	if ((*suffix != 'e' && *suffix != 'E') || !str_is_digit(suffix[1]) ||
		strspn(suffix + 1, "0123456789") != strlen(suffix + 1))
		return false;
	*ret_multiplier = 1;
	for (int64_t n = kube_number(suffix + 1, EXPONENT_MAX + 1); n > 0; n--)
		if (n > EXPONENT_MAX || __builtin_mul_overflow(*ret_multiplier, 10, ret_multiplier))
			return false;
	return true;
}

bool kube_quantity(const char *text, int64_t *ret_milli)
{
	struct number number;
	int64_t multiplier, whole, part;
	const char *suffix;

	if (!text)
		return false;
	suffix = quantity_digits(text + (*text == '+'), &number);
	if (!suffix)
		return false;
	if (str_eq(suffix, "m") || str_eq(suffix, "u") || str_eq(suffix, "n")) {
		*ret_milli = *suffix == 'm'   ? number.whole
			     : *suffix == 'u' ? number.whole / 1000
					      : number.whole / 1000000;
		return true;
	}
	if (!quantity_suffix(suffix, &multiplier) ||
		__builtin_mul_overflow(number.whole, multiplier, &whole) ||
		__builtin_mul_overflow(whole, 1000, &whole) ||
		__builtin_mul_overflow(number.milli, multiplier, &part) ||
		__builtin_add_overflow(whole, part, &whole))
		return false;
	*ret_milli = whole;
	return true;
}

int64_t kube_quantity_of(const struct json *json)
{
	int64_t milli;

	if (!json)
		return 0;
	if (json_kind(json) == JSON_NUMBER) {
		int64_t value = json_int(json, 0);

		return value > 0 && value < INT64_MAX / 1000 ? value * 1000 : 0;
	}
	return json_kind(json) == JSON_STRING && kube_quantity(json_str(json), &milli) ? milli : 0;
}

const char *kube_bytes_text(int64_t bytes, char out[static 24])
{
	static const char units[][3] = {"", "Ki", "Mi", "Gi", "Ti", "Pi"};
	size_t unit = 0;
	int64_t tenths = bytes > 0 && bytes < INT64_MAX / 10 ? bytes * 10 : 0;

	for (; tenths >= 10240 && unit + 1 < ARRAY_LEN(units); unit++)
		tenths = (tenths + 512) / 1024;
	if (tenths % 10 && tenths < 1000)
		snprintf(out, 24, "%d.%d%s", (int)(tenths / 10), (int)(tenths % 10), units[unit]);
	else
		snprintf(out, 24, "%d%s", (int)((tenths + 5) / 10), units[unit]);
	return out;
}

bool kube_is_gpu(const char *resource)
{
	return str_ends(resource, "/gpu");
}

/*
 * Resource requests of pods
 */

/* Extended resources have a domain; those of kubernetes.io and hugepages are no devices. */
static bool demand_is_device(const char *key)
{
	return key && strchr(key, '/') && !strstr(key, "kubernetes.io/") &&
	       strlen(key) < sizeof(((struct kube_demand *)0)->resource);
}

int64_t kube_add(int64_t a, int64_t b)
{
	int64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

/* requests, and limits for what has no request: that is how the API server fills them in. */
static void demand_of_container(const struct json *container, struct kube_demand *ret)
{
	const struct json *lists[] = {
		kube_at(container, "resources.requests"), kube_at(container, "resources.limits")};

	*ret = (struct kube_demand){0};
	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		if (!lists[i] || json_kind(lists[i]) != JSON_OBJECT)
			continue;
		if (!ret->cpu_milli)
			ret->cpu_milli = kube_quantity_of(json_get(lists[i], "cpu"));
		if (!ret->memory)
			ret->memory = kube_quantity_of(json_get(lists[i], "memory")) / 1000;
		if (!ret->disk)
			ret->disk =
				kube_quantity_of(json_get(lists[i], "ephemeral-storage")) / 1000;
		json_foreach (m, lists[i])
			if (!*ret->resource && demand_is_device(json_key(m)) &&
				kube_quantity_of(m) > 0) {
				snprintf(ret->resource, sizeof(ret->resource), "%s", json_key(m));
				ret->gpus = kube_quantity_of(m) / 1000;
			}
	}
}

static int64_t demand_larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static void demand_combine(struct kube_demand *ret, const struct kube_demand *one, bool adds)
{
	int64_t (*join)(int64_t, int64_t) = adds ? kube_add : demand_larger;

	ret->cpu_milli = join(ret->cpu_milli, one->cpu_milli);
	ret->memory = join(ret->memory, one->memory);
	ret->disk = join(ret->disk, one->disk);
	if (!*one->resource)
		return;
	if (!*ret->resource)
		memcpy(ret->resource, one->resource, sizeof(ret->resource));
	if (str_eq(ret->resource, one->resource))
		ret->gpus = join(ret->gpus, one->gpus);
}

static int64_t demand_times(int64_t one, int64_t pods)
{
	int64_t all;

	return __builtin_mul_overflow(one, pods, &all) ? INT64_MAX : all;
}

void kube_demand_add(struct kube_demand *sum, const struct kube_demand *one, int64_t pods)
{
	struct kube_demand all = *one;

	all.cpu_milli = demand_times(one->cpu_milli, pods);
	all.memory = demand_times(one->memory, pods);
	all.disk = demand_times(one->disk, pods);
	all.gpus = demand_times(one->gpus, pods);
	demand_combine(sum, &all, true);
}

void kube_demand_of(const struct json *spec, struct kube_demand *ret)
{
	static const char *const lists[] = {"containers", "initContainers"};

	*ret = (struct kube_demand){0};
	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		for (const struct json *m = kube_first(spec, lists[i]); m; m = json_next(m)) {
			struct kube_demand one;

			demand_of_container(m, &one);
			/* Init containers run before the others, but for sidecars. */
			demand_combine(ret, &one,
				i == 0 || str_eq(json_get_str(m, "restartPolicy"), "Always"));
		}
	}
	ret->cpu_milli = kube_add(ret->cpu_milli, kube_quantity_of(kube_at(spec, "overhead.cpu")));
	ret->memory =
		kube_add(ret->memory, kube_quantity_of(kube_at(spec, "overhead.memory")) / 1000);
}
