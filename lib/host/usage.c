/* SPDX-License-Identifier: Apache-2.0 */
#include "host/usage.h"

#include <math.h>
#include <sys/resource.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/gpu_meter.h"
#include "host/sysfs.h"

enum { PACKAGES_MAX = 64 };

/* The longest interval over which a power reading is taken as constant; beyond that the machine
 * slept or stood still. */
static const double power_span_s = 600;

struct package {
	char *dir;
	double range_j;
	struct usage_counter energy;
};
struct package_list VEC_OF(struct package);

struct gpu_energy {
	struct usage_counter counter;
	double power_w, power_j; /* for those without a counter */
	bool known;
};

/* Below 0: not known. */
struct now {
	double cpu, gpu_busy, power_w;
	int64_t memory_bytes, gpu_memory_bytes;
};

struct usage {
	struct os_family family;
	pid_t program;
	uint64_t program_start;
	double reaped_before_s; /* processor time of children that are not the program's */
	int64_t looked_us;      /* 0: not yet */
	double cpu_s;           /* below 0: not known */
	int64_t memory_peak_bytes, gpu_memory_peak_bytes;
	double busy_sum;
	size_t busy_n;
	struct now now;
	struct gpu_meter *gpus;
	struct gpu_energy gpu_energy[GPU_MAX];
	struct package_list packages;
};

double usage_counter_add(struct usage_counter *counter, double value, double range)
{
	double gain = -1;

	if (value < 0)
		return -1;
	if (counter->known) {
		gain = value - counter->last;
		if (gain < 0 && range > 0)
			gain += range;
		if (gain > 0)
			counter->gained += gain;
	}
	counter->known = true;
	counter->last = value;
	return gain;
}

static double reaped_s(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_CHILDREN, &usage) < 0)
		return 0;
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* "package-0"; not the zones within them, nor "psys", which has them in it. */
static void find_packages(struct usage *usage, const char *sysfs)
{
	AUTO_FREE char *dir = fs_join(sysfs, "class/powercap");
	AUTO_STRV struct strv zones = {0};

	sysfs_list(dir, "intel-rapl:", &zones);
	for (size_t i = 0; i < zones.n && usage->packages.n < PACKAGES_MAX; i++) {
		AUTO_FREE char *name = sysfs_line(zones.v[i], "name");

		if (!name || !str_starts(name, "package-"))
			continue;
		*vec_push(&usage->packages) = (struct package){
			.dir = mem_strdup(zones.v[i]),
			.range_j = sysfs_number(zones.v[i], "max_energy_range_uj", 1e-6),
		};
	}
}

struct usage *usage_new(const struct usage_spec *spec)
{
	struct usage *usage = mem_alloc(1, sizeof(*usage));
	const struct gpu_meter_spec meter = {
		.gpus = spec->gpus, .nvml = spec->nvml, .sysfs = spec->sysfs};

	if (spec->family)
		usage->family = *spec->family;
	usage->program = spec->program;
	usage->program_start = os_process_start(spec->program);
	usage->reaped_before_s = reaped_s();
	usage->cpu_s = -1;
	usage->memory_peak_bytes = usage->gpu_memory_peak_bytes = -1;
	usage->now = (struct now){-1, -1, -1, -1, -1};
	usage->gpus = gpu_meter_new(&meter);
	find_packages(usage, spec->sysfs ? spec->sysfs : GPU_METER_SYSFS);
	return usage;
}

/*
 * Sampling
 */

static void add_peak(int64_t *peak, int64_t value)
{
	if (value > *peak)
		*peak = value;
}

/* elapsed_s: since the last sample; 0: this is the first. */
static void look_at_processes(struct usage *usage, double elapsed_s)
{
	struct os_use use;
	pid_t root = os_process_alive(usage->program, usage->program_start) ? usage->program : 0;
	double before_s = usage->cpu_s;

	usage->now.cpu = -1;
	usage->now.memory_bytes = -1;
	if (!os_family_use(&usage->family, root, &use))
		return;
	if (!use.cpu_is_whole)
		use.cpu_s += reaped_s() - usage->reaped_before_s;
	/* Times of processes that were never waited for are lost again. */
	usage->cpu_s = fmax(usage->cpu_s, use.cpu_s);
	if (elapsed_s > 0 && before_s >= 0)
		usage->now.cpu = (usage->cpu_s - before_s) / elapsed_s;
	usage->now.memory_bytes = use.memory_bytes;
	add_peak(&usage->memory_peak_bytes, use.memory_bytes);
}

static void add_power(struct usage *usage, double joules, double elapsed_s)
{
	if (joules >= 0 && elapsed_s > 0)
		usage->now.power_w = fmax(usage->now.power_w, 0) + joules / elapsed_s;
}

/* Returns the joules since the last sample, below 0: not known. */
static double add_gpu_energy(
	struct gpu_energy *energy, const struct gpu_reading *reading, double elapsed_s)
{
	double joules = usage_counter_add(&energy->counter, reading->energy_j, 0);

	if (reading->energy_j < 0 && reading->power_w >= 0) {
		if (energy->known && elapsed_s < power_span_s)
			joules = (energy->power_w + reading->power_w) / 2 * elapsed_s;
		if (joules > 0)
			energy->power_j += joules;
		energy->power_w = reading->power_w;
	}
	energy->known = reading->energy_j >= 0 || reading->power_w >= 0;
	return joules;
}

static void look_at_gpus(struct usage *usage, double elapsed_s)
{
	struct gpu_reading reading;
	double busy = 0;
	size_t n_busy = 0;

	usage->now.gpu_busy = -1;
	usage->now.gpu_memory_bytes = -1;
	for (size_t i = 0; i < gpu_meter_count(usage->gpus); i++) {
		gpu_meter_read(usage->gpus, i, &reading);
		if (reading.busy >= 0) {
			busy += reading.busy;
			n_busy++;
		}
		if (reading.memory_bytes >= 0)
			usage->now.gpu_memory_bytes =
				(usage->now.gpu_memory_bytes < 0 ? 0
								 : usage->now.gpu_memory_bytes) +
				reading.memory_bytes;
		add_power(usage, add_gpu_energy(&usage->gpu_energy[i], &reading, elapsed_s),
			elapsed_s);
	}
	add_peak(&usage->gpu_memory_peak_bytes, usage->now.gpu_memory_bytes);
	usage->busy_sum += busy;
	usage->busy_n += n_busy;
	if (n_busy)
		usage->now.gpu_busy = busy / (double)n_busy;
}

static void look_at_packages(struct usage *usage, double elapsed_s)
{
	vec_foreach (struct package, package, &usage->packages) {
		double value = sysfs_number(package->dir, "energy_uj", 1e-6);

		add_power(usage, usage_counter_add(&package->energy, value, package->range_j),
			elapsed_s);
	}
}

void usage_look(struct usage *usage)
{
	int64_t now_us = clock_us();
	double elapsed_s = usage->looked_us ? (double)(now_us - usage->looked_us) / 1e6 : 0;

	usage->looked_us = now_us;
	usage->now.power_w = -1;
	look_at_processes(usage, elapsed_s);
	look_at_gpus(usage, elapsed_s);
	look_at_packages(usage, elapsed_s);
}

void usage_finish(struct usage *usage, double cpu_s, int64_t memory_peak_bytes)
{
	usage_look(usage);
	usage->now = (struct now){-1, -1, -1, -1, -1};
	usage->cpu_s = fmax(usage->cpu_s, cpu_s);
	add_peak(&usage->memory_peak_bytes, memory_peak_bytes > 0 ? memory_peak_bytes : -1);
}

/*
 * The result
 */

static double rounded(double value, double steps)
{
	return round(value * steps) / steps;
}

/* null where it is below 0. */
static void set_num(struct json *object, const char *key, double value, double steps)
{
	if (value < 0)
		json_set(object, key, json_null());
	else
		json_set_num(object, key, rounded(value, steps));
}

static void set_bytes(struct json *object, const char *key, int64_t value)
{
	if (value < 0)
		json_set(object, key, json_null());
	else
		json_set_int(object, key, value);
}

static double energy_j(const struct usage *usage)
{
	double sum = 0;
	bool known = false;

	for (size_t i = 0; i < gpu_meter_count(usage->gpus); i++) {
		const struct gpu_energy *energy = &usage->gpu_energy[i];

		known |= energy->known || energy->counter.known;
		sum += energy->counter.gained + energy->power_j;
	}
	vec_foreach (struct package, package, &usage->packages) {
		known |= package->energy.known;
		sum += package->energy.gained;
	}
	return known ? sum : -1;
}

void usage_set(const struct usage *usage, struct json *total, struct json *now)
{
	set_num(total, "cpu_s", usage->cpu_s, 1000);
	set_bytes(total, "memory_peak_bytes", usage->memory_peak_bytes);
	set_num(total, "gpu_busy", usage->busy_n ? usage->busy_sum / (double)usage->busy_n : -1,
		1000);
	set_bytes(total, "gpu_memory_peak_bytes", usage->gpu_memory_peak_bytes);
	set_num(total, "energy_j", energy_j(usage), 10);
	set_num(now, "cpu", usage->now.cpu, 100);
	set_bytes(now, "memory_bytes", usage->now.memory_bytes);
	set_num(now, "gpu_busy", usage->now.gpu_busy, 1000);
	set_bytes(now, "gpu_memory_bytes", usage->now.gpu_memory_bytes);
	set_num(now, "power_w", usage->now.power_w, 10);
}

void usage_free(struct usage *usage)
{
	if (!usage)
		return;
	gpu_meter_free(usage->gpus);
	vec_foreach (struct package, package, &usage->packages)
		free(package->dir);
	vec_done(&usage->packages);
	free(usage);
}
