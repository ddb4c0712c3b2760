/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/doctor/doctor_checks.h"
#include "app/gc/gc.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config_trust.h"
#include "core/image/survey.h"
#include "core/store/store.h"

/*
 * Checks of what dlrun has written or would read: configuration, records, leftovers, the working
 * tree.
 */

enum { LINE_BYTES = 64 << 10 };
#define KEEP_MS       (7LL * 24 * 60 * 60 * 1000)
#define LEFTOVER_MANY (UINT64_C(1) << 30)

/*
 * config
 */

int doctor_config(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_STRV struct strv files = {0};
	AUTO_BUF struct buf found = {0};
	AUTO_ERR struct err fault = {0};
	struct config *config;

	(void)err;
	if (session_config(doctor->session, &config, &fault) < 0) {
		doctor_found(row, "not valid");
		doctor_blame(row, DOCTOR_PROBLEM, fault.hint ? fault.hint : "dlrun help dlrun.yaml",
			"%s", fault.message);
		return 0;
	}
	buf_init(&found, LINE_BYTES);
	for (size_t i = 0; i < config_keys_n; i++) {
		const struct config_origin *origin = config_origin(config, config_keys[i].name);
		if (origin->source == CONFIG_FROM_DEFAULT || !origin->file ||
			strv_find(&files, origin->file) >= 0)
			continue;
		buf_addf(&found, "%s%s", files.n ? ", " : "", origin->file);
		strv_add(&files, origin->file);
	}
	doctor_found(row, "%s", files.n ? found.data : "none yet (dlrun init writes one)");
	AUTO_FREE char *text = config_not_counting(config);
	if (text)
		doctor_blame(row, DOCTOR_WARNING, "dlrun config trust", "%s", text);
	return 0;
}

/*
 * records
 */

static bool has_records(const struct doctor *doctor)
{
	AUTO_FREE char *path = fs_join(doctor->session->dirs.state, "runs.db");

	return access(path, F_OK) == 0;
}

static int read_records(const struct doctor *doctor, size_t *ret_n, struct err *err)
{
	struct store *store;

	int r = session_store(doctor->session, &store, err);
	if (r == 0)
		r = store_check(store, err);
	return r < 0 ? r : store_count(store, ret_n, err);
}

int doctor_records(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_ERR struct err fault = {0};
	AUTO_BUF struct buf fix;
	size_t n = 0;

	(void)err;
	buf_init(&fix, LINE_BYTES);
	if (!has_records(doctor)) {
		doctor_found(row, "none yet");
		return 0;
	}
	if (read_records(doctor, &n, &fault) == 0) {
		doctor_found(row, "%zu %s", n, n == 1 ? "run" : "runs");
		return 0;
	}
	AUTO_FREE char *path = fs_join(doctor->session->dirs.state, "runs.db");
	AUTO_FREE char *aside = mem_printf("%s.damaged", path);
	buf_adds(&fix, "mv ");
	str_shell_quote(&fix, path);
	buf_addc(&fix, ' ');
	str_shell_quote(&fix, aside);
	doctor_found(row, "not readable");
	/* Only a damaged store may be put aside: other errors have other remedies. */
	doctor_blame(row, DOCTOR_PROBLEM, fault.id == E_STORE ? fix.data : fault.hint, "%s",
		fault.message);
	return 0;
}

/*
 * leftovers
 */

int doctor_leftovers(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	struct gc_report report = {0};
	char size[16];

	if (!has_records(doctor)) {
		doctor_found(row, "none");
		return 0;
	}
	int r = gc_local(doctor->session, KEEP_MS, true, &report, err);
	if (r < 0)
		return r;
	str_size(report.bytes, size);
	doctor_found(row, "%s in %zu trees, %zu blobs, %zu other files", size, report.trees,
		report.blobs, report.files);
	if (report.bytes > LEFTOVER_MANY)
		doctor_blame(row, DOCTOR_WARNING, "dlrun gc", "%s belong to no run any more", size);
	return 0;
}

/*
 * tree
 */

/* A user in the home directory has no working tree in mind; another row reports on the
 * configuration. */
static bool is_elsewhere(const struct err *fault)
{
	return fault->id == E_SNAPSHOT_ROOT || fault->id == E_CONFIG || fault->id == E_CONFIG_KEY ||
	       fault->id == E_CONFIG_SYNTAX;
}

static void blame_tree(struct doctor_row *row, const struct err *fault)
{
	bool empty = fault->id == E_SNAPSHOT_EMPTY;

	if (is_elsewhere(fault)) {
		doctor_found(row, "not looked at: %s", fault->message);
		return;
	}
	doctor_found(row, empty ? "nothing to send" : "it would be refused");
	doctor_blame(
		row, empty ? DOCTOR_WARNING : DOCTOR_PROBLEM, fault->hint, "%s", fault->message);
}

int doctor_tree(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_SURVEY struct survey *survey = NULL;
	AUTO_ERR struct err fault = {0};
	int64_t begin_ms = clock_ms();
	char size[16], took[32];

	(void)err;
	if (survey_take(doctor->session, false, &survey, &fault) < 0) {
		blame_tree(row, &fault);
		return 0;
	}
	doctor_found(row, "%zu %s, %s, %zu excluded, seen in %s: %s%s%s", survey->paths.n,
		survey->paths.n == 1 ? "file" : "files", str_size(survey->paths.bytes, size),
		survey->paths.n_left_out, duration_text(clock_ms() - begin_ms, took),
		survey->place->root, survey->why ? "; " : "", survey->why ? survey->why : "");
	return 0;
}
