/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Axes of a sweep: the values that are tried, the cases that they make (one for each member of the
 * study) and the places of a command that the values go to. Nothing here reads or writes files, and
 * no function blocks. Strings that are returned belong to the caller.
 *
 * AN AXIS is NAME=LIST. A name begins with a letter or "_", followed by letters, digits, "_", ".",
 * "-" and "/". A list has items separated by commas; blanks around an item do not count. Items:
 *
 *	adam         a text
 *	"a,b" 'a,b'  a text with commas, blanks at its ends or nothing; in "…" there are \" and \\
 *	a\,b         the same: \ stands before , \ " ' [ ] { } ( ) and is itself elsewhere
 *	[1,2] {a:1}  a text that keeps its commas, up to the closing bracket (Hydra's lists)
 *	1..5 5..1    whole numbers with both ends; 1..9:2 each second one; 01..10 keeps the zeros
 *	lin:0..1:5   5 numbers with equal distances, both ends among them
 *	log:1..16:5  5 numbers with equal ratios, both ends among them
 *	uniform:0..1:8, loguniform:1e-5..1e-1:8    8 random numbers between the ends
 *
 * lin, log, uniform and loguniform without a count stand alone and need a sample: each member gets
 * a random number of its own then, of log and loguniform one whose logarithm is uniform. The ends
 * stay as they were typed. A number between them is rounded to 6 significant digits (of lin and
 * uniform: of the distance), or as many as tell it from its neighbours, 12 at most; a short one
 * stays exact (0.0078125). So the digits in which processors and math libraries differ are gone.
 *
 * A GRID has all combinations in the order of nested loops: the last axis varies fastest. A zip
 * takes the first value of all axes, then the second, …
 *
 * A SAMPLE of N takes N different combinations in random order. With an axis without a count N may
 * be larger: all combinations come once in random order, then all again in another one. A sample of
 * more begins with the sample of less, and the numbers of one axis do not depend on the others. The
 * generator is splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
 * 2014); mix is its output function and G its increment. Combinations: its sequence from the seed
 * in a shuffle after Fisher and Yates, where a number below n is x mod n with the last 2^64 mod n
 * of all x rejected. A number of an axis: mix(mix(mix(seed + G) ^ FNV-1a(name)) + G * (i + 1)), of
 * which the upper 53 bits are a fraction; i is the position in the list, or the member.
 *
 * TEMPLATES. In a word of the command, the value of a variable and the name of the members
 *
 *	{lr}             is the value of the axis lr
 *	{index} {study}  are the member's index and the id of its study
 *	{{lr}}           is {lr}; one brace of each side goes, so {{{lr}}} is {{lr}}
 *	${lr}            stays: it is for a shell or for Hydra
 *	{} {a: 1} {print $1} {x:.2f} { lr }    stay, as all that is no name in braces
 *
 * A name in braces that is no axis is an error in a plain word (--lr={lrr}), and {{lrr}} is {lrr}
 * there. A plain word has only letters, digits, braces and _ - . / : = , + @ % ^ ~ in it. Any other
 * word could be code (a shell line, Python with f-strings, a template of Jinja): such a name stays
 * there as it is. cases_check() finds an axis that is misspelt everywhere, because nothing uses it.
 *
 * A word that is {args} becomes a word --NAME=VALUE for each axis that no other word of the command
 * has, {overrides} becomes NAME=VALUE; without such axes it becomes none. Variables and the name do
 * not count: WANDB_NAME=lr-{lr} must not take --lr from a program without a sound. Within a longer
 * word they are all of them, quoted for a shell, with blanks between: sh -c "python a.py {args}".
 * In a command that is one line for sh -c each value is quoted for the shell, too.
 */
#ifndef DLRUN_CORE_STUDY_AXES_H
#define DLRUN_CORE_STUDY_AXES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum {
	AXES_MAX = 64,             /* of one study */
	AXES_NAME_MAX = 100,       /* bytes */
	AXES_VALUE_MAX = 1000,     /* bytes */
	CASES_MAX = 10 * 1000,     /* members of a study, and items of a list */
	CASES_FILE_MAX = 16 << 20, /* bytes of a file of cases */
	CASES_WORD_MAX = 128 << 10 /* bytes of a word of a command, which is the limit of Linux */
};

/*
 * Axes
 */

struct axes;
struct axes *axes_new(void);
void axes_free(struct axes *axes);
AUTO_POINTER(struct axes, axes_free)
#define AUTO_AXES AUTO(axes_free_auto)

/* Add --over NAME=LIST. E_USAGE with the axis as it was typed, and a hint with the form. Nothing is
 * added then. */
int axes_add(struct axes *axes, const char *text, struct err *err);
/* Add a member of sweep.over of dlrun.yaml: a single value is a LIST, the items of a list are
 * values as they stand, a map is {log: [1e-4, 1e-1], n: 12}, or with lin, uniform, loguniform.
 * E_CONFIG. */
int axes_add_json(struct axes *axes, const char *name, const struct json *json, struct err *err);
size_t axes_count(const struct axes *axes);
/* An object of names to lists, which axes_add_json() reads again. */
struct json *axes_to_json(const struct axes *axes);
/* For people: "3 lr × 5 seed"; an axis without a count is its name alone. */
char *axes_describe(const struct axes *axes);

/*
 * Cases
 */

/* Values of the axes, one row for each member, in the order of the study's index. */
struct cases {
	struct strv keys;
	struct strv values; /* n × keys.n, row by row */
	size_t n;
};
void cases_done(struct cases *cases);
#define AUTO_CASES AUTO(cases_done)
const char *cases_get(const struct cases *cases, size_t row, size_t key);

struct cases_options {
	bool zip;
	size_t sample; /* 0: all combinations */
	uint64_t seed;
};

/* E_USAGE: no axis, more than CASES_MAX members, axes of several lengths in a zip, a sample of more
 * combinations than there are, an axis without a count and without a sample, the same value twice
 * in an axis of a grid. *ret is set on success only. */
int cases_make(const struct axes *axes, const struct cases_options *options, struct cases *ret,
	struct err *err);

/*
 * A file of cases, whose name is for messages: JSON lines where it begins with "{", else CSV.
 *
 * CSV (RFC 4180): the first record has the names. Records end by LF or CRLF, a byte order mark and
 * empty lines are skipped, blanks around a field without quotes do not count. An empty field is
 * an error unless it has quotes.
 * JSON lines: one object in each line, all with the keys of the first one. Strings as they are,
 * numbers as they are written, true, false and null as words, lists and objects as JSON without
 * blanks.
 *
 * The same case may stand twice. E_DATA "NAME:LINE: …"; E_DATA_LIMIT.
 */
int cases_read(const char *text, size_t len, const char *name, struct cases *ret, struct err *err);

/*
 * Templates
 */

struct cases_template {
	const struct strv *command;
	bool shell;             /* command is one line for sh -c */
	const struct strv *env; /* K=V, where V is expanded; what has no "=" stays. NULL: none */
	const char *name;       /* of members, or NULL */
};

/* A member of the study. */
struct cases_member {
	size_t index;      /* the row */
	const char *study; /* the id */
};

/* The axes that neither command nor variables nor the name have. */
void cases_unused(
	const struct cases *cases, const struct cases_template *template, struct strv *ret);
/* Names in braces that are no axis and stay as they are, because the word could be code. Each of
 * them once: for a note to the user. */
void cases_unknown(
	const struct cases *cases, const struct cases_template *template, struct strv *ret);
/* E_USAGE unless every word can be expanded and every axis goes somewhere. */
int cases_check(const struct cases *cases, const struct cases_template *template, struct err *err);
/* Expand a word: the value of a variable, a name. E_USAGE for a name in braces that is no axis;
 * E_DATA_LIMIT. {args} and {overrides} are names like others here. */
int cases_expand(const struct cases *cases, const struct cases_member *member, const char *text,
	char **ret, struct err *err);
/* The command, with {args} and {overrides}; the variables. */
int cases_expand_command(const struct cases *cases, const struct cases_member *member,
	const struct cases_template *template, struct strv *ret, struct err *err);
int cases_expand_env(const struct cases *cases, const struct cases_member *member,
	const struct cases_template *template, struct strv *ret, struct err *err);

#endif
