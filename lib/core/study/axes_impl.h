/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of core/study: one axis, its parts and the random numbers. Values are made when
 * they are needed, so that a long range costs nothing.
 */
#ifndef DLRUN_CORE_STUDY_AXES_IMPL_H
#define DLRUN_CORE_STUDY_AXES_IMPL_H

#include "core/study/axes.h"

enum axis_form { AXIS_TEXT, AXIS_RANGE, AXIS_LIN, AXIS_LOG, AXIS_UNIFORM, AXIS_LOGUNIFORM };

/* An item of a list. */
struct axis_part {
	enum axis_form form;
	char *from, *to;     /* the ends as they were typed; AXIS_TEXT: from is the value */
	uint64_t n;          /* values; 0: a number for each member */
	int64_t first, step; /* AXIS_RANGE */
	int width;           /* the same: with zeros in front */
	double low, high;    /* of the forms with fractions; low may be the larger one */
	int precision;       /* of numbers in between: the power of ten of their last digit;
			      * of log and loguniform, the number of digits */
};

struct axis {
	char *name;
	char *list; /* as it was typed */
	struct axis_parts VEC_OF(struct axis_part) parts;
	uint64_t n;  /* 0: a number for each member */
	char *where; /* of its source */
	bool is_yaml;
};

struct axes VEC_OF(struct axis);

/* The origin of an axis, for its errors. */
struct axis_source {
	enum err_id id;
	char *where; /* "--over lr=1,,2", "sweep.over.lr" */
	bool is_yaml;
	const char *name; /* one that is valid, for hints */
};
void axis_source_done(struct axis_source *source);
/* "WHERE: text" */
int axis_error(struct err *err, const struct axis_source *source, const char *fmt, ...)
	ERR_PRINTF(3, 4);
/* Add a hint with the list in the form of the source: for --over, for YAML. */
int axis_hint(
	struct err *err, const struct axis_source *source, const char *over, const char *yaml);

/* Whether a text may be a value. */
int axis_check_text(const char *text, const struct axis_source *source, struct err *err);
/* Fill the parts of an axis from its list. */
int axis_parse(struct axis *axis, const struct axis_source *source, struct err *err);
void axis_done(struct axis *axis);
/* The value at i, below n; where n is 0 that of member i. */
char *axis_value(const struct axis *axis, uint64_t i, uint64_t seed);
/* Append a text as an item of a list that stands for it. */
void axis_quote(struct buf *out, const char *text);

/* Names that mean something else in braces. */
#define AXIS_RESERVED "index", "study", "args", "overrides"
bool axis_name_is_reserved(const char *name);
/* Whether an axis may have that name. */
bool axis_name_is_valid(const char *name, size_t len);
/* A scalar as text; a list or an object as JSON without blanks. */
void axis_json_text(const struct json *json, struct buf *out);

/* The next number of the sequence. */
uint64_t axis_random_next(uint64_t *state);

#endif
