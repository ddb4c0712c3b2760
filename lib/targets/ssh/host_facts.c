/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/host_facts.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/* Clocks that are closer than this are taken as the same: the question itself takes a while. */
enum { CLOCK_NEAR_MS = 2000 };

#define NONE      "none"
#define NOT_KNOWN "not known"

/* Each returns the caller's to free, or NULL: not known. */

static char *fact_field(const struct node_probe *probe, const char *key)
{
	vec_foreach (const struct node_field, field, &probe->fields)
		if (str_eq(field->key, key))
			return mem_strdup(field->value);
	return NULL;
}

static char *fact_size(const struct node_probe *probe, const char *key)
{
	AUTO_FREE char *bytes = fact_field(probe, key);
	int64_t size;
	char text[16];

	if (!bytes || str_to_int(bytes, 0, INT64_MAX, key, &size, NULL) < 0)
		return NULL;
	return mem_strdup(str_size((uint64_t)size, text));
}

static char *fact_machine(const struct node_probe *probe, const char *key UNUSED)
{
	return mem_strdup(probe->facts->machine);
}

static char *fact_cpus(const struct node_probe *probe, const char *key UNUSED)
{
	return probe->facts->cpus ? mem_printf("%u", probe->facts->cpus) : NULL;
}

static char *fact_memory(const struct node_probe *probe, const char *key UNUSED)
{
	char text[16];

	return probe->facts->memory_bytes ? mem_strdup(str_size(probe->facts->memory_bytes, text))
					  : NULL;
}

/* "8 × NVIDIA A100", the models in the order of their first index. */
static char *fact_gpus(const struct node_probe *probe, const char *key UNUSED)
{
	AUTO_STRV struct strv models = {0};
	AUTO_STRV struct strv texts = {0};

	if (!probe->has_gpus)
		return mem_strdup(NOT_KNOWN);
	vec_foreach (const struct node_gpu, gpu, &probe->gpus)
		if (strv_find(&models, gpu->model) < 0)
			strv_add(&models, gpu->model);
	for (size_t i = 0; i < models.n; i++) {
		size_t n = 0;
		vec_foreach (const struct node_gpu, gpu, &probe->gpus)
			n += str_eq(gpu->model, models.v[i]);
		strv_addf(&texts, "%zu × %s", n, models.v[i]);
	}
	return texts.n ? strv_join(&texts, ", ") : NULL;
}

static char *fact_missing(const struct node_probe *probe, const char *key UNUSED)
{
	return probe->facts->missing.n ? strv_join(&probe->facts->missing, " ") : NULL;
}

static char *fact_launch(const struct node_probe *probe, const char *key UNUSED)
{
	return mem_strdup(probe->facts->launch);
}

static char *fact_clock(const struct node_probe *probe, const char *key UNUSED)
{
	int64_t ahead_ms = probe->facts->ahead_ms;

	if (llabs(ahead_ms) < CLOCK_NEAR_MS)
		return mem_strdup("right");
	return mem_printf("%lld s %s", llabs(ahead_ms) / 1000, ahead_ms > 0 ? "ahead" : "behind");
}

/* In the order in which they are shown; key: of runner/78-describe.sh. */
static const struct {
	const char *name, *key;
	char *(*get)(const struct node_probe *probe, const char *key);
	const char *absent; /* the value of a host that reports none */
} fact_table[] = {
	{"system", "system", fact_field, NOT_KNOWN},
	{"kernel", "kernel", fact_field, NOT_KNOWN},
	{"machine", NULL, fact_machine, NOT_KNOWN},
	{"CPU", "cpu", fact_field, NOT_KNOWN},
	{"CPUs", NULL, fact_cpus, NOT_KNOWN},
	{"memory", NULL, fact_memory, NOT_KNOWN},
	{"GPUs", NULL, fact_gpus, NONE},
	{"driver", "driver", fact_field, NONE},
	{"CUDA", "cuda", fact_field, NONE},
	{"python3", "python3", fact_field, NONE},
	{"uv", "uv", fact_field, NONE},
	{"git", "git", fact_field, NONE},
	{"docker", "docker", fact_field, NONE},
	{"podman", "podman", fact_field, NONE},
	{"apptainer", "apptainer", fact_field, NONE},
	{"missing tools", NULL, fact_missing, NONE},
	{"programs by", NULL, fact_launch, NOT_KNOWN},
	{"disk", "disk", fact_size, NOT_KNOWN},
	{"file system", "file-system", fact_field, NOT_KNOWN},
	{"shared memory", "shared-memory", fact_size, NONE},
	{"open files", "open-files", fact_field, NOT_KNOWN},
	{"locked memory", "locked-memory", fact_field, NOT_KNOWN},
	{"processes", "processes", fact_field, NOT_KNOWN},
	{"clock", NULL, fact_clock, NOT_KNOWN},
};

static void host_fact_done(struct host_fact *fact)
{
	vec_foreach (struct host_fact_value, value, &fact->values) {
		free(value->value);
		strv_done(&value->hosts);
	}
	vec_done(&fact->values);
}

void host_facts_done(struct host_facts *facts)
{
	if (!facts)
		return;
	vec_foreach (struct host_fact, fact, facts)
		host_fact_done(fact);
	vec_done(facts);
}

static void host_fact_add(struct host_fact *fact, const char *value, const char *host)
{
	struct host_fact_value *same = NULL;

	vec_foreach (struct host_fact_value, each, &fact->values)
		if (str_eq(each->value, value))
			same = each;
	if (!same) {
		same = vec_push(&fact->values);
		same->value = mem_strdup(value);
	}
	strv_add(&same->hosts, host);
}

/* The others stay in the order of the hosts. */
static void host_fact_put_frequent_first(struct host_fact *fact)
{
	struct host_fact_value most;
	size_t at = 0;

	for (size_t i = 1; i < fact->values.n; i++)
		if (fact->values.v[i].hosts.n > fact->values.v[at].hosts.n)
			at = i;
	if (at == 0)
		return;
	most = fact->values.v[at];
	memmove(fact->values.v + 1, fact->values.v, at * sizeof(most));
	fact->values.v[0] = most;
}

void host_facts_compare(const struct node_probe *probes, size_t n, struct host_facts *ret)
{
	for (size_t i = 0; i < ARRAY_LEN(fact_table); i++) {
		struct host_fact fact = {.name = fact_table[i].name};
		bool is_told = false;

		for (size_t j = 0; j < n; j++) {
			if (!probes[j].facts || err_is_set(&probes[j].error))
				continue;
			AUTO_FREE char *value = fact_table[i].get(&probes[j], fact_table[i].key);
			is_told = is_told || value;
			host_fact_add(&fact, value ? value : fact_table[i].absent, probes[j].host);
		}
		host_fact_put_frequent_first(&fact);
		if (is_told)
			*vec_push(ret) = fact;
		else
			host_fact_done(&fact);
	}
}
