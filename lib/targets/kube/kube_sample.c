/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "core/record/observed.h"
#include "core/record/run.h"
#include "host/usage.h"
#include "kube/status/usage.h"
#include "targets/kube/pod_copy.h"
#include "targets/kube/pod_sample.h"
#include "targets/kube/target_kube.h"

/*
 * A sample of a pod
 */

enum { HZ_MAX = 10000, PAGE_MAX = 1 << 20, GPUS_MAX = 64, PERCENT = 100 };

#define MEMORY_MAX (INT64_MAX / 4)
#define MARK       "dlrun:"

/*
 * The command. What is not there says nothing.
 */

static const char script[] =
	"p() { echo " MARK "$1; cat \"$2\"; echo; }\n"
	"g=/sys/fs/cgroup\n"
	"u() {\n"
	"\tp uptime /proc/uptime\n"
	"\tif [ -r $g/memory.current ]; then p cpu2 $g/cpu.stat\n"
	"\telif [ -r $g/cpuacct/cpuacct.usage ]; then p cpu1 $g/cpuacct/cpuacct.usage\n"
	"\telse echo " MARK "processes; cat /proc/[0-9]*/stat; fi\n"
	"}\n"
	"{\n"
	"echo " MARK "hz; getconf CLK_TCK\n"
	"echo " MARK "page; getconf PAGESIZE\n"
	"u\n"
	"p memory $g/memory.current; p stat $g/memory.stat\n"
	"p memory $g/memory/memory.usage_in_bytes; p stat $g/memory/memory.stat\n"
	"t=; if command -v timeout >/dev/null; then t='timeout 5'; fi\n"
	"if command -v nvidia-smi >/dev/null; then\n"
	"\techo " MARK "nvidia\n"
	"\t$t nvidia-smi --query-gpu=utilization.gpu,memory.used,power.draw"
	" --format=csv,noheader,nounits\n"
	"fi\n"
	"for r in /dev/dri/renderD*; do\n"
	"\td=/sys/class/drm/${r##*/}/device\n"
	"\t[ -r $d/gpu_busy_percent ] || continue\n"
	"\techo " MARK "amd; cat $d/gpu_busy_percent; cat $d/mem_info_vram_used\n"
	"\tcat $d/hwmon/*/power1_average || cat $d/hwmon/*/power1_input\n"
	"done\n"
	"sleep 1\n"
	"u\n"
	"echo " MARK "end\n"
	"} 2>/dev/null </dev/null";

/*
 * Output of the command
 */

/* A look at times: of both in the output. Below 0: not known. */
struct poll {
	double uptime_s, cpu_s;
};

struct reading {
	struct pod_sample *sample;
	struct poll polls[2];
	int n_polls;
	int64_t hz, page;
	int64_t cache_bytes;     /* that the kernel would give back */
	int64_t processes_bytes; /* resident */
	double busy, power_w;
	int n_busy, n_power;
};

struct part {
	const char *text;
	size_t len;
};

/* The next line of part, without its end; false: there is none. */
static bool kube_sample_next_line(struct part *part, struct part *ret)
{
	const char *end;

	if (part->len == 0)
		return false;
	end = memchr(part->text, '\n', part->len);
	ret->text = part->text;
	ret->len = end ? (size_t)(end - part->text) : part->len;
	part->text += ret->len + (end != NULL);
	part->len -= ret->len + (end != NULL);
	return true;
}

static struct poll *poll_of(struct reading *reading)
{
	return reading->n_polls ? &reading->polls[reading->n_polls - 1] : NULL;
}

static void take_uptime(struct reading *reading, struct part part)
{
	if (reading->n_polls == 2)
		return;
	reading->polls[reading->n_polls++] =
		(struct poll){host_load_parse(part.text, part.len), -1};
}

static void take_hz(struct reading *reading, struct part part)
{
	int64_t hz = host_number(part.text, part.len);

	if (hz > 0 && hz <= HZ_MAX)
		reading->hz = hz;
}

static void take_page(struct reading *reading, struct part part)
{
	int64_t page = host_number(part.text, part.len);

	if (page > 0 && page <= PAGE_MAX)
		reading->page = page;
}

static void set_cpu(struct reading *reading, int64_t value, double unit)
{
	struct poll *poll = poll_of(reading);

	if (poll && value >= 0)
		poll->cpu_s = (double)value * unit;
}

static void take_cpu2(struct reading *reading, struct part part)
{
	set_cpu(reading, host_line_number(part.text, part.len, "usage_usec"), 1e-6);
}

static void take_cpu1(struct reading *reading, struct part part)
{
	set_cpu(reading, host_number(part.text, part.len), 1e-9);
}

static void take_memory(struct reading *reading, struct part part)
{
	int64_t bytes = host_number(part.text, part.len);

	if (bytes >= 0)
		reading->sample->memory_bytes = bytes;
}

static void take_stat(struct reading *reading, struct part part)
{
	int64_t bytes = host_line_number(part.text, part.len, "total_inactive_file");

	if (bytes < 0)
		bytes = host_line_number(part.text, part.len, "inactive_file");
	if (bytes >= 0)
		reading->cache_bytes = bytes;
}

/* Word n, from 0, of blank-separated ones; empty: there is none. */
static struct part word_at(struct part line, size_t n)
{
	struct part word = {line.text, 0};

	for (size_t i = 0; i <= n; i++) {
		line.text = word.text + word.len;
		line.len -= word.len;
		while (line.len && *line.text == ' ') {
			line.text++;
			line.len--;
		}
		word = (struct part){line.text, 0};
		while (word.len < line.len && line.text[word.len] != ' ')
			word.len++;
	}
	return word;
}

/* Skips the name, which may hold anything: fields 3 and on of proc(5)'s stat are left. */
static bool behind_name(struct part *line)
{
	for (size_t at = line->len; at-- > 1;) {
		if (line->text[at - 1] != ')' || line->text[at] != ' ')
			continue;
		line->text += at;
		line->len -= at;
		return true;
	}
	return false;
}

static int64_t kube_sample_field(struct part line, size_t n)
{
	struct part word = word_at(line, n);

	return host_number(word.text, word.len);
}

/* Times of those that it has waited for are its own. */
static void take_process(struct reading *reading, struct part line, int64_t *ticks)
{
	enum { UTIME = 11, CSTIME = 14, RSS = 21 };
	int64_t pages;

	if (!behind_name(&line))
		return;
	for (size_t i = UTIME; i <= CSTIME; i++) {
		int64_t value = kube_sample_field(line, i);
		if (value > 0 && value < MEMORY_MAX - *ticks)
			*ticks += value;
	}
	pages = kube_sample_field(line, RSS);
	if (pages > 0 && pages < (MEMORY_MAX - reading->processes_bytes) / reading->page)
		reading->processes_bytes += pages * reading->page;
}

static void take_processes(struct reading *reading, struct part part)
{
	int64_t ticks = 0;
	struct part line;

	reading->processes_bytes = 0;
	while (kube_sample_next_line(&part, &line))
		take_process(reading, line, &ticks);
	set_cpu(reading, ticks, 1.0 / (double)reading->hz);
}

/*
 * GPUs
 */

static void kube_sample_add_busy(struct reading *reading, int64_t percent)
{
	if (percent < 0 || percent > PERCENT)
		return;
	reading->busy += (double)percent / PERCENT;
	reading->n_busy++;
}

static void add_gpu_memory(struct reading *reading, int64_t bytes)
{
	int64_t *sum = &reading->sample->gpu_memory_bytes;

	if (bytes >= 0 && bytes < MEMORY_MAX - (*sum < 0 ? 0 : *sum))
		*sum = (*sum < 0 ? 0 : *sum) + bytes;
}

static void kube_sample_add_power(struct reading *reading, double watts)
{
	if (watts < 0)
		return;
	reading->power_w += watts;
	reading->n_power++;
}

/* The text between the commas: its n-th, from 0. */
static struct part csv_at(struct part line, size_t n)
{
	for (size_t i = 0;; i++) {
		const char *comma = memchr(line.text, ',', line.len);
		size_t len = comma ? (size_t)(comma - line.text) : line.len;

		if (i == n)
			return (struct part){line.text, len};
		line.text += len + (comma != NULL);
		line.len -= len + (comma != NULL);
	}
}

static void take_nvidia(struct reading *reading, struct part part)
{
	enum { MIB = 1 << 20 };
	struct part line;

	for (int i = 0; i < GPUS_MAX && kube_sample_next_line(&part, &line); i++) {
		struct part busy = csv_at(line, 0), memory = csv_at(line, 1),
			    power = csv_at(line, 2);
		int64_t mib = host_number(memory.text, memory.len);

		kube_sample_add_busy(reading, host_number(busy.text, busy.len));
		add_gpu_memory(reading, mib >= 0 && mib < MEMORY_MAX / MIB ? mib * MIB : -1);
		kube_sample_add_power(reading, host_load_parse(power.text, power.len));
	}
}

static void take_amd(struct reading *reading, struct part part)
{
	struct part line;

	if (reading->n_busy >= GPUS_MAX)
		return;
	if (kube_sample_next_line(&part, &line))
		kube_sample_add_busy(reading, host_number(line.text, line.len));
	if (kube_sample_next_line(&part, &line))
		add_gpu_memory(reading, host_number(line.text, line.len));
	if (kube_sample_next_line(&part, &line)) {
		int64_t microwatts = host_number(line.text, line.len);
		kube_sample_add_power(reading, microwatts < 0 ? -1 : (double)microwatts * 1e-6);
	}
}

/*
 * All of it
 */

static void kube_sample_take_part(struct reading *reading, struct part name, struct part part)
{
	static const struct {
		const char *name;
		void (*take)(struct reading *reading, struct part part);
	} rows[] = {
		{"amd", take_amd},
		{"cpu1", take_cpu1},
		{"cpu2", take_cpu2},
		{"hz", take_hz},
		{"memory", take_memory},
		{"nvidia", take_nvidia},
		{"page", take_page},
		{"processes", take_processes},
		{"stat", take_stat},
		{"uptime", take_uptime},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		if (strlen(rows[i].name) == name.len &&
			memcmp(rows[i].name, name.text, name.len) == 0)
			rows[i].take(reading, part);
}

static void sum_up(struct reading *reading)
{
	struct pod_sample *sample = reading->sample;
	const struct poll *first = &reading->polls[0], *last = &reading->polls[1];
	double seconds = last->uptime_s - first->uptime_s;

	if (poll_of(reading))
		sample->cpu_s = poll_of(reading)->cpu_s;
	if (reading->n_polls == 2 && seconds > 0 && first->uptime_s >= 0 && first->cpu_s >= 0 &&
		last->cpu_s >= first->cpu_s)
		sample->cpu = (last->cpu_s - first->cpu_s) / seconds;
	if (sample->memory_bytes < 0)
		sample->memory_bytes = reading->processes_bytes;
	else if (reading->cache_bytes >= 0 && reading->cache_bytes < sample->memory_bytes)
		sample->memory_bytes -= reading->cache_bytes;
	if (reading->n_busy)
		sample->gpu_busy = reading->busy / reading->n_busy;
	if (reading->n_power)
		sample->power_w = reading->power_w;
}

void pod_sample_parse(const char *text, size_t len, struct pod_sample *ret)
{
	struct reading reading = {.sample = ret,
		.polls = {{-1, -1}, {-1, -1}},
		.hz = 100,
		.page = 4096,
		.cache_bytes = -1,
		.processes_bytes = -1};

	*ret = (struct pod_sample){-1, -1, -1, -1, -1, -1};
	/* A part that no other one follows may be cut: it does not count. */
	struct part all = (struct part){text, len};
	struct part line, name = {NULL, 0};
	const char *begin = NULL;

	while (kube_sample_next_line(&all, &line)) {
		if (!(line.len > strlen(MARK) && memcmp(line.text, MARK, strlen(MARK)) == 0))
			continue;
		if (begin)
			kube_sample_take_part(
				&reading, name, (struct part){begin, (size_t)(line.text - begin)});
		name = (struct part){line.text + strlen(MARK), line.len - strlen(MARK)};
		begin = all.text;
	}
	sum_up(&reading);
}

static void kube_sample_set(struct json *object, const char *key, double value)
{
	if (value >= 0)
		json_set_num(object, key, value);
	else
		json_set(object, key, json_null());
}

struct json *pod_sample_json(const struct pod_sample *sample, int64_t wall_ms)
{
	struct json *json = json_object(), *now;

	run_set_time(json, "time", wall_ms);
	kube_sample_set(json_sub(json, "usage"), "cpu_s", sample->cpu_s);
	now = json_sub(json, "now");
	kube_sample_set(now, "cpu", sample->cpu);
	kube_sample_set(now, "memory_bytes", (double)sample->memory_bytes);
	kube_sample_set(now, "gpu_busy", sample->gpu_busy);
	kube_sample_set(now, "gpu_memory_bytes", (double)sample->gpu_memory_bytes);
	kube_sample_set(now, "power_w", sample->power_w);
	return json;
}

/*
 * Current resource usage of an attempt's pods: from a command beside each program or, where that is
 * impossible or reports nothing, from the metrics API. Samples are kept beside the attempt's
 * record.
 */

enum {
	POLL_MS = 10 * 1000,
	PODS_MAX = 10000,
	REQUESTED_MAX = 16, /* pods that a command is run in */
	KEPT_MAX = 64 << 10,
	METRICS_AGAIN_MS = 60 * 1000, /* of a cluster that has none, or does not show them */
};

struct polling;

/* A pod that is sampled. */
struct rank {
	struct polling *polling;
	char *pod;
	struct pod_output *output; /* NULL: it has ended, or none was begun */
	struct buf text;
};

struct polling {
	struct target_work work;
	struct target_kube *kube;
	struct target_call *call;
	struct kube_handle handle;
	struct json **ret;
	struct kube_call *find, *metrics_call;
	struct json *metrics;
	struct VEC_OF(struct rank) ranks;
	struct loop_timer *end;
	size_t n_open;
};

static void kube_sample_drop(struct target_work *work)
{
	struct polling *polling = (struct polling *)work;

	kube_cancel(polling->find);
	kube_cancel(polling->metrics_call);
	loop_remove_timer(polling->kube->target.loop, polling->end);
	vec_foreach (struct rank, rank, &polling->ranks) {
		pod_output_cancel(rank->output);
		buf_done(&rank->text);
		free(rank->pod);
	}
	vec_done(&polling->ranks);
	json_free(polling->metrics);
	free(polling);
}

/*
 * Results
 */

/* Of all pods; NULL: nothing is known of any. */
static struct json *sample_poll_of(const struct polling *polling)
{
	struct json *all = NULL;

	vec_foreach (const struct rank, rank, &polling->ranks) {
		struct pod_sample sample;

		pod_sample_parse(rank->text.data, rank->text.len, &sample);
		struct kube_usage usage;

		kube_usage_of_pod(polling->metrics, rank->pod, KUBE_CONTAINER, &usage);
		if (sample.cpu < 0)
			sample.cpu = usage.cpus;
		if (sample.memory_bytes < 0)
			sample.memory_bytes = usage.memory_bytes;
		if (!(sample.cpu_s >= 0 || sample.cpu >= 0 || sample.memory_bytes >= 0 ||
			    sample.gpu_busy >= 0 || sample.gpu_memory_bytes >= 0))
			continue;
		AUTO_JSON struct json *one = pod_sample_json(&sample, clock_wall_ms());
		if (all)
			observed_add_rank(all, one);
		else
			all = TAKE(one);
	}
	return all;
}

static char *kept_dir(const struct target_kube *kube, const struct kube_handle *handle)
{
	return dirs_attempt(&kube->session->dirs, handle->run_id, handle->attempt);
}

struct json *kube_observed(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_FREE char *dir = kept_dir(kube, handle);

	return observed_read(dir);
}

void kube_observed_keep(
	const struct target_kube *kube, const struct kube_handle *handle, const struct json *kept)
{
	AUTO_FREE char *dir = kept_dir(kube, handle);
	AUTO_FREE char *path = fs_join(dir, OBSERVED_FILE);
	AUTO_BUF struct buf text = buf_with(KEPT_MAX);

	json_print(kept, &text);
	if (buf_check(&text, path, NULL) == 0 && fs_mkdirs(dir, 0700, NULL) == 0)
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, NULL);
}

static void kube_sample_finish(struct polling *polling)
{
	AUTO_JSON struct json *poll = sample_poll_of(polling);
	AUTO_JSON struct json *kept = kube_observed(polling->kube, &polling->handle);

	if (poll) {
		if (!kept)
			kept = json_object();
		json_set_str(kept, "schema", OBSERVED_SCHEMA);
		observed_keep(kept, poll);
		kube_observed_keep(polling->kube, &polling->handle, kept);
	}
	*polling->ret = TAKE(kept);
	target_call_end_as(polling->call, NULL);
}

static void kube_sample_end_one(struct polling *polling)
{
	if (--polling->n_open == 0)
		kube_sample_finish(polling);
}

/* Timeout: finish with the samples received so far. */
static int kube_sample_on_end(void *ctx, struct err *err UNUSED)
{
	struct polling *polling = ctx;

	polling->end = NULL;
	kube_sample_finish(polling);
	return 0;
}

/*
 * Requests
 */

static int kube_sample_on_data(void *ctx, const char *data, size_t len, struct err *err)
{
	struct rank *rank = ctx;

	buf_add(&rank->text, data, len);
	return buf_check(&rank->text, "what a look beside the program says", err);
}

static void kube_sample_on_said(
	void *ctx, int status UNUSED, struct err *error, const char *said UNUSED)
{
	struct rank *rank = ctx;

	rank->output = NULL;
	/* If exec is denied or there is no shell, this command does not try it again. */
	if (error->id == E_KUBE_DENIED || err_cannot_exec(error))
		rank->polling->kube->no_exec = true;
	kube_sample_end_one(rank->polling);
}

static int kube_sample_on_pods(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct polling *polling = ctx;
	struct kube_names names = {0};
	AUTO_STRV struct strv words = {0};

	polling->find = NULL;
	strv_add(&words, "sh");
	strv_add(&words, "-c");
	strv_add(&words, script);
	kube_running_pods(response->object, &names);
	vec_reserve(&polling->ranks, names.n); /* their addresses stay */
	vec_foreach (const char *, name, &names) {
		struct rank *rank = vec_push(&polling->ranks);

		*rank = (struct rank){.polling = polling, .pod = mem_strdup(*name)};
		buf_init(&rank->text, POD_SAMPLE_MAX);
		if (polling->ranks.n <= REQUESTED_MAX && !polling->kube->no_exec) {
			const struct pod_output_request request = {
				.loop = polling->kube->target.loop,
				.client = polling->kube->cluster->client,
				.kube_namespace = polling->handle.kube_namespace,
				.pod = rank->pod,
				.container = KUBE_CONTAINER,
				.command = &words,
				.stdin_fd = -1,
				.data = kube_sample_on_data,
				.done = kube_sample_on_said,
				.ctx = rank,
			};

			if (pod_output_start(&request, &rank->output, NULL) == 0)
				polling->n_open++;
		}
	}
	vec_done(&names);
	kube_sample_end_one(polling);
	return 0;
}

static int kube_sample_on_metrics(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct polling *polling = ctx;

	polling->metrics_call = NULL;
	if (err_is_set(&response->error))
		polling->kube->no_metrics_ms = clock_ms();
	else
		polling->metrics = TAKE(response->object);
	kube_sample_end_one(polling);
	return 0;
}

static struct kube_call *kube_sample_list(
	struct polling *polling, const char *group, kube_done_fn *done)
{
	AUTO_FREE char *inside = kube_path("/namespaces/%s/pods", polling->handle.kube_namespace);
	AUTO_FREE char *path = mem_printf("%s%s", group, inside);
	AUTO_FREE char *label = kube_handle_pods(&polling->handle);
	const char *const query[] = {"labelSelector", label, NULL};

	polling->n_open++;
	return kube_list(polling->kube->cluster->client, path, query, PODS_MAX,
		polling->call->deadline_ms, done, polling);
}

int kube_sample(struct target *target, const char *handle, struct json **ret,
	struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct polling *polling = mem_alloc(1, sizeof(*polling));

	*polling = (struct polling){
		.work = {kube_sample_drop}, .kube = kube, .call = call, .ret = ret};
	int r = kube_handle_parse(kube, handle, &polling->handle, err);
	if (r < 0) {
		free(polling);
		return r;
	}
	if (!call->deadline_ms)
		call->deadline_ms = clock_ms() + POLL_MS;
	target_call_begin(call, &polling->work);
	polling->end = loop_add_timer(target->loop, call->deadline_ms, kube_sample_on_end, polling);
	polling->find = kube_sample_list(polling, "/api/v1", kube_sample_on_pods);
	if (!kube->no_metrics_ms || clock_ms() - kube->no_metrics_ms > METRICS_AGAIN_MS)
		polling->metrics_call =
			kube_sample_list(polling, KUBE_METRICS_GROUP, kube_sample_on_metrics);
	return 0;
}
