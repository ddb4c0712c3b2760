/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of the autoscaler of anybody: what is accepted is within its limits and can be applied;
 * an error names the file. */
#include <stdint.h>
#include <stdlib.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/settings.h"
#include "core/autoscale/snapshot.h"

static void check(bool holds)
{
	if (!holds)
		abort();
}

static void check_apply(const struct scale_settings *settings, bool is_spot)
{
	struct scale_group group = {
		.id = mem_strdup("gpu-a"), .is_spot = is_spot, .max = 10, .price = -1};

	scale_pairs_add(&group.labels, "node.kubernetes.io/instance-type", "p4d.24xlarge");
	settings_apply(settings, &group);
	check(group.max >= 0 && group.max <= 10 && group.price <= SCALE_PRICE_MAX);
	check(group.weight >= -SCALE_WEIGHT_MAX && group.weight <= SCALE_WEIGHT_MAX);
	scale_group_done(&group);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_SETTINGS struct scale_settings *settings = NULL;
	AUTO_ERR struct err err = {0};

	if (settings_parse((const char *)data, size, "f", &settings, &err) < 0) {
		check(!settings && (err.id == E_SCALE_SETTINGS || err.id == E_CONFIG_SYNTAX));
		check(str_starts(err.message, "f"));
		return 0;
	}
	const struct settings_providers *providers = settings_providers(settings);
	check(*settings_cluster(settings) && providers->n &&
		providers->n <= SETTINGS_PROVIDERS_MAX);
	vec_foreach (const struct settings_provider, provider, providers)
		check(provider->words.n && *provider->words.v[0]);
	check(settings_every_ms(settings) >= 1000 && settings_limits(settings)->removals > 0);
	check_apply(settings, false);
	check_apply(settings, true);
	return 0;
}
