/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/taken.h"

#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"

char *taken_path(const struct dirs *dirs, const char *run_id, int attempt)
{
	AUTO_FREE char *dir = dirs_attempt(dirs, run_id, attempt);

	return fs_join(dir, "taken");
}

bool taken_is_done(const struct dirs *dirs, const char *run_id, int attempt)
{
	AUTO_FREE char *path = taken_path(dirs, run_id, attempt);

	return access(path, F_OK) == 0;
}

int taken_read(const struct dirs *dirs, const char *run_id, int attempt, struct buf *ret)
{
	AUTO_FREE char *path = taken_path(dirs, run_id, attempt);

	buf_init(ret, TAKEN_MAX);
	return fs_read(path, TAKEN_MAX, ret, NULL, NULL) == 0 && ret->len > 0;
}

int64_t taken_wait_ms(const struct run *run)
{
	const char *text = json_get_str(run->doc, TAKEN_UNTIL);
	int64_t until_ms = 0, now_ms = clock_wall_ms();

	if (!text || !run_state_is_final(run_state(run)) || clock_parse(text, &until_ms, NULL) < 0)
		return 0;
	return until_ms > now_ms ? until_ms - now_ms : 0;
}

char *taken_text(const struct run *run)
{
	const char *lost = json_get_str(run->doc, TAKEN_LOST);
	int64_t wait_ms = taken_wait_ms(run);
	char time[32];

	if (lost)
		return mem_printf("its results are lost: %s before they were fetched", lost);
	if (!wait_ms)
		return mem_strdup("");
	return mem_printf("its results wait in the cluster for %s", duration_text(wait_ms, time));
}

void taken_add(struct buf *list, enum taken_kind kind, const char *prefix, const char *path)
{
	buf_addf(list, "%c%zu %s%s", kind, strlen(prefix), prefix, path);
	buf_addc(list, '\0');
}
