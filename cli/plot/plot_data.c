/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plot/plot_data.h"

#include <math.h>
#include <stdio.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/ui.h"

enum { PIECE = 64 << 10, PIECE_MAX = 1 << 20 };

const char *plot_number(double value, char out[static PLOT_NUMBER])
{
	enum { DIGITS_MIN = 15, DIGITS_MAX = 17 };

	if (isnan(value))
		return "NaN";
	if (isinf(value))
		return value < 0 ? "-Infinity" : "Infinity";
	for (int digits = DIGITS_MIN; digits <= DIGITS_MAX; digits++) {
		snprintf(out, PLOT_NUMBER, "%.*g", digits, value);
		if (strtod(out, NULL) == value)
			break;
	}
	return out;
}

/* Returns whether the stream takes more. */
static bool plot_data_flush(struct app *app, struct buf *out, size_t more_than)
{
	if (out->len > more_than) {
		ui_write(app, out->data, out->len);
		buf_reset(out);
	}
	return !app->out_lost && !app_interrupted;
}

/*
 * CSV
 */

static void add_csv_text(const char *text, struct buf *out)
{
	if (!strpbrk(text, ",\"\r\n")) {
		buf_adds(out, text);
		return;
	}
	buf_addc(out, '"');
	for (; *text; text++) {
		if (*text == '"')
			buf_addc(out, '"');
		buf_addc(out, *text);
	}
	buf_addc(out, '"');
}

static void add_csv_head(const struct plot_curve *curve, struct buf *out)
{
	add_csv_text(curve->source->name, out);
	buf_addc(out, ',');
	add_csv_text(curve->curve.dir, out);
	buf_addc(out, ',');
	add_csv_text(curve->curve.tag, out);
}

int plot_csv(struct app *app, const struct plot_curves *curves)
{
	AUTO_BUF struct buf out, head;
	char time[PLOT_NUMBER], value[PLOT_NUMBER];

	buf_init(&out, PIECE_MAX);
	buf_init(&head, PIECE_MAX);
	buf_adds(&out, "run,dir,tag,step,wall_time,value\n");
	vec_foreach (struct plot_curve, curve, curves) {
		buf_reset(&head);
		add_csv_head(curve, &head);
		for (size_t i = 0; i < curve->curve.n; i++) {
			const struct series_point *point = &curve->curve.points[i];

			buf_add(&out, head.data, head.len);
			buf_addf(&out, ",%lld,%s,%s\n", (long long)point->step,
				plot_number(point->wall_time_s, time),
				plot_number(point->value, value));
			if (!plot_data_flush(app, &out, PIECE))
				return 1;
		}
	}
	return !plot_data_flush(app, &out, 0);
}

/*
 * JSON
 */

static void add_json_number(double value, struct buf *out)
{
	char number[PLOT_NUMBER];

	buf_addf(out, isfinite(value) ? "%s" : "\"%s\"", plot_number(value, number));
}

enum member { MEMBER_STEP, MEMBER_TIME, MEMBER_VALUE };

static bool add_json_points(
	struct app *app, const struct series_curve *curve, enum member member, struct buf *out)
{
	static const char *const names[] = {"step", "wall_time", "value"};

	buf_addf(out, ",\"%s\":[", names[member]);
	for (size_t i = 0; i < curve->n; i++) {
		const struct series_point *point = &curve->points[i];

		if (i > 0)
			buf_addc(out, ',');
		if (member == MEMBER_STEP)
			buf_addf(out, "%lld", (long long)point->step);
		else
			add_json_number(
				member == MEMBER_TIME ? point->wall_time_s : point->value, out);
		if (!plot_data_flush(app, out, PIECE))
			return false;
	}
	buf_addc(out, ']');
	return true;
}

/* The members of one text or number each; the object is not closed. */
static void add_json_head(const struct plot_curve *curve, struct buf *out)
{
	const struct plot_source *source = curve->source;
	AUTO_JSON struct json *head = json_object(), *restarts = json_array();

	json_set_str(head, "run", source->run ? source->name : NULL);
	json_set_bytes(head, "path", source->dir, strlen(source->dir));
	json_set_bytes(head, "dir", curve->curve.dir, strlen(curve->curve.dir));
	json_set_str(head, "tag", curve->curve.tag);
	for (size_t i = 0; i < curve->curve.n_seams; i++)
		json_add_int(restarts, curve->curve.seams[i]);
	json_set(head, "restarts", TAKE(restarts));
	json_print(head, out);
	buf_truncate(out, out->len - 1);
}

int plot_json(struct app *app, const struct plot_curves *curves)
{
	AUTO_BUF struct buf out;
	const char *between = "";

	app->json_done = true;
	buf_init(&out, PIECE_MAX);
	buf_adds(&out, "{\"schema\":\"dlrun/plot/v1\",\"curves\":[");
	vec_foreach (struct plot_curve, curve, curves) {
		buf_adds(&out, between);
		between = ",";
		add_json_head(curve, &out);
		for (enum member member = MEMBER_STEP; member <= MEMBER_VALUE; member++)
			if (!add_json_points(app, &curve->curve, member, &out))
				return 1;
		buf_addc(&out, '}');
	}
	buf_adds(&out, "]}\n");
	return !plot_data_flush(app, &out, 0);
}
