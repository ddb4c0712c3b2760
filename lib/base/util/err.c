/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/errlist.h"
#include "base/util/mem.h"

#define NAMED(id, code_, name_)     [id].name = name_, [id].code = ERR_##code_,
#define NOTIFIED(id, title_, text_) [id].title = title_, [id].text = text_,
static const struct err_info rows[E_COUNT] = {ERR_IDS(NAMED) ERR_TEXTS(NOTIFIED)};
#undef NAMED
#undef NOTIFIED

const struct err_info *err_info(enum err_id id)
{
	BUG_ON(id <= E_NONE || id >= E_COUNT);
	return &rows[id];
}

enum err_id err_find(const char *name)
{
	for (enum err_id id = E_NONE + 1; id < E_COUNT; id++)
		if (strcmp(rows[id].name, name) == 0)
			return id;
	return E_NONE;
}

int err_exit_status(enum err_code code)
{
	switch (code) {
	case ERR_NONE:
		return 0;
	case ERR_USAGE:
	case ERR_CONFIG:
		return 2;
	case ERR_NET:
		return 3;
	case ERR_AUTH:
		return 4;
	case ERR_NOTFOUND:
		return 5;
	case ERR_NOEXEC:
		return 126;
	case ERR_NOCMD:
		return 127;
	case ERR_CANCELED:
		return 130;
	default:
		return 1;
	}
}

/* Free the old strings last: the new message may have been made of them. */
static int take_message(struct err *err, enum err_id id, char *message)
{
	err_clear(err);
	err->id = id;
	err->code = err_info(id)->code;
	err->message = message;
	return -(int)err->code;
}

int err_set(struct err *err, enum err_id id, const char *fmt, ...)
{
	if (!err)
		return -(int)err_info(id)->code;
	va_list args;
	va_start(args, fmt);
	char *message = mem_vprintf(fmt, args);
	va_end(args);
	return take_message(err, id, message);
}

int err_set_errno(struct err *err, enum err_id id, int errnum, const char *fmt, ...)
{
	if (!err)
		return -(int)err_info(id)->code;
	va_list args;
	va_start(args, fmt);
	AUTO_FREE char *text = mem_vprintf(fmt, args);
	va_end(args);
	return take_message(err, id, mem_printf("%s: %s", text, strerror(errnum)));
}

/* Return value of the functions that add to an error. */
static int code_of(const struct err *err)
{
	return err_is_set(err) ? -(int)err->code : -(int)ERR_BUG;
}

int err_prefix(struct err *err, const char *fmt, ...)
{
	if (!err_is_set(err))
		return code_of(err);
	va_list args;
	va_start(args, fmt);
	AUTO_FREE char *text = mem_vprintf(fmt, args);
	va_end(args);
	char *message = mem_printf("%s: %s", text, err->message);
	REPLACE(err->message, message);
	return code_of(err);
}

int err_evidence(struct err *err, const char *fmt, ...)
{
	if (!err_is_set(err) || err->n_evidence == ERR_EVIDENCE_MAX)
		return code_of(err);
	va_list args;
	va_start(args, fmt);
	err->evidence[err->n_evidence++] = mem_vprintf(fmt, args);
	va_end(args);
	return code_of(err);
}

int err_hint(struct err *err, const char *fmt, ...)
{
	if (!err_is_set(err) || err->hint)
		return code_of(err);
	va_list args;
	va_start(args, fmt);
	err->hint = mem_vprintf(fmt, args);
	va_end(args);
	return code_of(err);
}

void err_clear(struct err *err)
{
	if (!err)
		return;
	free(err->message);
	for (size_t i = 0; i < err->n_evidence; i++)
		free(err->evidence[i]);
	free(err->hint);
	*err = (struct err){0};
}

void err_done(struct err *err)
{
	err_clear(err);
}

int err_copy(struct err *to, const struct err *from)
{
	if (to == from || !to)
		return code_of(from);
	err_clear(to);
	if (!err_is_set(from))
		return code_of(from);
	*to = (struct err){.id = from->id, .code = from->code, .n_evidence = from->n_evidence};
	to->message = mem_strdup(from->message);
	for (size_t i = 0; i < from->n_evidence; i++)
		to->evidence[i] = mem_strdup(from->evidence[i]);
	to->hint = from->hint ? mem_strdup(from->hint) : NULL;
	return code_of(from);
}

int err_move(struct err *to, struct err *from)
{
	int code = code_of(from);

	if (to == from)
		return code;
	err_clear(to);
	if (!from)
		return code;
	if (to)
		*to = *from;
	else
		err_clear(from);
	*from = (struct err){0};
	return code;
}

void err_bug(const char *file, int line, const char *what)
{
	fprintf(stderr, "dlrun: bug: %s:%d: %s\n", file, line, what);
	abort();
}
