/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/observe.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "core/record/links.h"
#include "core/record/params.h"
#include "events/metrics.h"
#include "host/usage.h"

enum {
	POLL_MS = 2000,
	POLL_FIRST_MS = 250, /* doubled each time: a short run is seen, too */
	POLL_MAX_MS = 5 * 60 * 1000,
	/* A sample of 10 ms of processor time is followed by 2 s of rest: 0.5 %. One that waits,
	 * for a slow disk or a driver, keeps the supervisor from its other work. */
	REST_FOR_CPU = 200,
	REST_FOR_WAIT = 20,
	/* Limits on reading the log for links: the part of a sample, and how far it may lag behind
	 * before a part is left out. */
	LOG_POLL_BYTES = 1 << 20,
	LOG_LAG_BYTES = 64 << 20,
	LOG_CHUNK = 64 << 10,
	FINISH_POLLS = 16,
};

struct observer {
	struct usage *usage;
	struct metrics *metrics; /* NULL: no outputs */
	struct params *params;
	struct links links;
	int log_fd;         /* -1: none */
	off_t log_offset;   /* up to where links were searched */
	int64_t sampled_ms; /* wall clock; 0: not yet */
	int64_t pace_ms;    /* between two samples, at least */
};

struct observer *observer_new(const struct observer_spec *spec)
{
	struct observer *observer = mem_alloc(1, sizeof(*observer));
	const struct usage_spec usage = {
		.family = spec->family, .program = spec->program, .gpus = spec->gpus};

	observer->pace_ms = POLL_FIRST_MS;
	observer->usage = usage_new(&usage);
	if (spec->outputs) {
		observer->metrics = metrics_new(spec->outputs);
		observer->params = params_new(spec->outputs);
	}
	links_init(&observer->links);
	observer->log_fd = spec->log ? open(spec->log, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
	return observer;
}

/*
 * A sample
 */

/* Skip ahead if the log grows much faster than it is read: links in between are lost. */
static void skip_log(struct observer *observer)
{
	struct stat st;

	if (fstat(observer->log_fd, &st) < 0 || st.st_size - observer->log_offset < LOG_LAG_BYTES)
		return;
	links_end(&observer->links);
	observer->log_offset = st.st_size - LOG_POLL_BYTES;
}

static void observer_read_log(struct observer *observer)
{
	char chunk[LOG_CHUNK];
	ssize_t n = 0;

	if (observer->log_fd < 0 || links_full(&observer->links))
		return;
	skip_log(observer);
	for (size_t done = 0; done < LOG_POLL_BYTES; done += (size_t)n) {
		do
			n = pread(observer->log_fd, chunk, sizeof(chunk), observer->log_offset);
		while (n < 0 && errno == EINTR);
		if (n <= 0)
			return;
		links_add(&observer->links, chunk, (size_t)n);
		observer->log_offset += n;
	}
}

/* Returns whether there is more to see at once. */
static bool observer_read_outputs(struct observer *observer, bool all)
{
	if (!observer->metrics)
		return false;
	params_poll(observer->params, all);
	return metrics_poll(observer->metrics);
}

static int64_t processor_us(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

static int64_t rest_ms(struct observer *observer, int64_t cpu_us, int64_t wait_us)
{
	int64_t ms = cpu_us * REST_FOR_CPU / 1000;

	if (wait_us * REST_FOR_WAIT / 1000 > ms)
		ms = wait_us * REST_FOR_WAIT / 1000;
	if (ms < observer->pace_ms)
		ms = observer->pace_ms;
	observer->pace_ms = observer->pace_ms * 2 < POLL_MS ? observer->pace_ms * 2 : POLL_MS;
	return ms < POLL_MAX_MS ? ms : POLL_MAX_MS;
}

int64_t observer_sample(struct observer *observer)
{
	int64_t cpu_us = processor_us(), wall_us = clock_us();

	usage_sample(observer->usage);
	observer_read_outputs(observer, false);
	observer_read_log(observer);
	observer->sampled_ms = clock_wall_ms();
	return rest_ms(observer, processor_us() - cpu_us, clock_us() - wall_us);
}

void observer_finish(struct observer *observer, double cpu_s, int64_t memory_peak_bytes)
{
	usage_finish(observer->usage, cpu_s, memory_peak_bytes);
	for (int i = 0; i < FINISH_POLLS && observer_read_outputs(observer, i == 0); i++)
		;
	for (int i = 0; i < FINISH_POLLS; i++)
		observer_read_log(observer);
	links_end(&observer->links);
	observer->sampled_ms = clock_wall_ms();
}

/*
 * The result
 */

struct json *observer_json(const struct observer *observer)
{
	struct json *json = json_object(), *links = json_array();
	char time[CLOCK_TEXT_SIZE];

	json_set_str(json, "schema", OBSERVED_SCHEMA);
	json_set_str(json, "time",
		observer->sampled_ms ? (clock_format(observer->sampled_ms, time), time) : NULL);
	struct json *usage = json_sub(json, "usage");
	usage_set(observer->usage, usage, json_sub(json, "now"));
	json_set(json, "metrics",
		observer->metrics ? metrics_json(observer->metrics) : json_object());
	json_set(json, "params", observer->params ? params_json(observer->params) : json_object());
	json_add_strv(links, &observer->links.found);
	json_set(json, "links", links);
	return json;
}

void observer_free(struct observer *observer)
{
	if (!observer)
		return;
	usage_free(observer->usage);
	metrics_free(observer->metrics);
	params_free(observer->params);
	links_done(&observer->links);
	auto_fd(&observer->log_fd);
	free(observer);
}
