/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/record/observed.h"
#include "host/usage.h"
#include "targets/kube/pod_sample.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(double value, double max)
{
	BUG_ON(!isfinite(value) || value < -1 || value > max);
}

/* Whatever a pod says: numbers that are, and that what is kept takes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;
	AUTO_JSON struct json *kept = json_object();
	struct pod_sample sample;
	struct host_load load;

	pod_sample_parse(text, size, &sample);
	check(sample.cpu_s, 1e19);
	check(sample.cpu, 1e25);
	check(sample.gpu_busy, 1);
	check(sample.power_w, 1e20);
	BUG_ON(sample.memory_bytes < -1 || sample.gpu_memory_bytes < -1);
	for (int i = 0; i < 2; i++) {
		AUTO_JSON struct json *observe = pod_sample_json(&sample, 1000);
		AUTO_JSON struct json *other = pod_sample_json(&sample, 2000);
		observed_add_rank(observe, other);
		observed_keep(kept, observe);
	}
	double busy = json_get_num(json_get(kept, "usage"), "gpu_busy", -1);
	BUG_ON(busy > 1.000001 || (busy < 0) != (sample.gpu_busy < 0));
	check(host_load_parse(text, size), 1e16);
	host_memory_parse(text, size, &load);
	BUG_ON(load.memory_bytes < -1 || load.memory_free_bytes < -1);
	return 0;
}
