/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/provider.h"
#include "base/util/mem.h"

int provider_aws_new(struct loop *loop UNUSED, struct http *http UNUSED,
	const char *const *regions UNUSED, const char *const *env UNUSED,
	struct provider **ret UNUSED, struct err *err)
{
	return err_set(err, E_SCALE_SETTINGS, "aws is not built in");
}
