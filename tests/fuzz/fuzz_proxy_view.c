/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "app/proxy/proxy_view.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A view is understood again as it is written, and can stand in an attribute. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *query = mem_strndup((const char *)data, size);
	AUTO_FREE char *target = mem_printf("/?%s", query);
	AUTO_PROXY_VIEW struct proxy_view view, again;
	AUTO_BUF struct buf out, twice;

	buf_init(&out, 1 << 20);
	buf_init(&twice, 1 << 20);
	proxy_view_parse(target, &view);
	proxy_view_add(&view, &out);
	BUG_ON(out.full || out.data[strcspn(out.data, "\"'<> \n#")]);
	BUG_ON(view.runs.n > PROXY_VIEW_RUNS_MAX || view.columns.n > PROXY_VIEW_COLUMNS_MAX);
	proxy_view_parse(out.data, &again);
	proxy_view_add(&again, &twice);
	BUG_ON(!str_eq(out.data, twice.data));
	return 0;
}
