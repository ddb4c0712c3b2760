/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/status_impl.h"

/*
 * Quantities (k8s.io/apimachinery/pkg/api/resource): a decimal number, then a binary or decimal
 * suffix or an exponent. Counted in thousandths, rounded up as Kubernetes does.
 */

enum { WHOLE_DIGITS_MAX = 18, EXPONENT_MAX = 18 };

struct number {
	int64_t whole, milli; /* milli: 0 to 1000, rounded up */
};

static const char *read_number(const char *text, struct number *ret)
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

static bool read_suffix(const char *suffix, int64_t *ret_multiplier)
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
	suffix = read_number(text + (*text == '+'), &number);
	if (!suffix)
		return false;
	if (str_eq(suffix, "m") || str_eq(suffix, "u") || str_eq(suffix, "n")) {
		*ret_milli = *suffix == 'm'   ? number.whole
			     : *suffix == 'u' ? number.whole / 1000
					      : number.whole / 1000000;
		return true;
	}
	if (!read_suffix(suffix, &multiplier) ||
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
static bool is_device(const char *key)
{
	return key && strchr(key, '/') && !strstr(key, "kubernetes.io/") &&
	       strlen(key) < sizeof(((struct kube_demand *)0)->resource);
}

static int64_t add_bounded(int64_t a, int64_t b)
{
	int64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

/* requests, and limits for what has no request: that is how the API server fills them in. */
static void read_container(const struct json *container, struct kube_demand *ret)
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
		for (const struct json *m = json_first(lists[i]); m; m = json_next(m))
			if (!*ret->resource && is_device(json_key(m)) && kube_quantity_of(m) > 0) {
				snprintf(ret->resource, sizeof(ret->resource), "%s", json_key(m));
				ret->gpus = kube_quantity_of(m) / 1000;
			}
	}
}

static int64_t larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static void combine(struct kube_demand *ret, const struct kube_demand *one, bool adds)
{
	int64_t (*join)(int64_t, int64_t) = adds ? add_bounded : larger;

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

void kube_demand_of(const struct json *spec, struct kube_demand *ret)
{
	static const char *const lists[] = {"containers", "initContainers"};

	*ret = (struct kube_demand){0};
	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		const struct json *list = json_get(spec, lists[i]);

		if (!list || json_kind(list) != JSON_ARRAY)
			continue;
		for (const struct json *m = json_first(list); m; m = json_next(m)) {
			struct kube_demand one;

			read_container(m, &one);
			/* Init containers run before the others, but for sidecars. */
			combine(ret, &one,
				i == 0 || str_eq(json_get_str(m, "restartPolicy"), "Always"));
		}
	}
	ret->cpu_milli =
		add_bounded(ret->cpu_milli, kube_quantity_of(kube_at(spec, "overhead.cpu")));
	ret->memory =
		add_bounded(ret->memory, kube_quantity_of(kube_at(spec, "overhead.memory")) / 1000);
}

const struct json *kube_pod_spec(const struct kube_facts *facts)
{
	const struct json *job = facts->job ? facts->job : facts->last_seen;
	const struct json *spec = kube_at(job, "spec.template.spec");

	if (spec)
		return spec;
	return facts->pods.n ? json_get(facts->pods.v[0], "spec") : NULL;
}

int64_t kube_pod_memory(const struct json *pod)
{
	const struct json *list = kube_at(pod, "spec.containers");
	const struct json *program = kube_named(list, KUBE_CONTAINER);

	if (!program && list && json_kind(list) == JSON_ARRAY)
		program = json_first(list);
	return kube_quantity_of(kube_at(program, "resources.limits.memory")) / 1000;
}
