/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/manual.h"

#include <ctype.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/str.h"
#include "cli/term/ui.h"

enum { PARAGRAPH_MAX = 64 << 10, MARGIN = 4, STEP = 4 };

#define UNDERLINE "\033[4m"

struct page {
	struct buf *out;
	size_t columns;
	struct buf paragraph; /* gathered lines, marks still in them */
	size_t indent, hang;  /* of the paragraph, and of its second line */
	bool is_literal, after_blank;
};

/* Marks become colours. An underscore within a word is none. */
static void add_inline(const char *s, struct buf *out)
{
	bool bold = false, underline = false;
	char before = ' ';

	for (; *s; before = *s++) {
		bool inside = isalnum((unsigned char)before) && isalnum((unsigned char)s[1]);

		if (*s == '\\' && s[1]) {
			buf_addc(out, *++s);
		} else if (*s == '*') {
			bold = !bold;
			buf_adds(out, bold ? UI_BOLD : UI_OFF);
		} else if (*s == '_' && !inside) {
			underline = !underline;
			buf_adds(out, underline ? UNDERLINE : UI_OFF);
		} else {
			buf_addc(out, *s);
		}
	}
}

static void render_flush(struct page *page)
{
	AUTO_BUF struct buf wrapped = {0};
	size_t width = page->columns > page->indent + 20 ? page->columns : page->indent + 20;

	if (page->paragraph.len == 0)
		return;
	buf_init(&wrapped, PARAGRAPH_MAX);
	buf_addf(page->out, "%*s", (int)page->indent, "");
	ui_wrap(page->paragraph.data, width - page->hang, page->hang, &wrapped);
	add_inline(wrapped.data, page->out);
	buf_addc(page->out, '\n');
	buf_reset(&page->paragraph);
	page->after_blank = false;
}

static void blank(struct page *page)
{
	render_flush(page);
	if (!page->after_blank)
		buf_addc(page->out, '\n');
	page->after_blank = true;
}

static void add_heading(struct page *page, const char *text, size_t indent)
{
	blank(page);
	buf_addf(page->out, "%*s" UI_BOLD "%s" UI_OFF "\n", (int)indent, "", text);
	page->after_blank = true;
}

static void render_add_text(struct page *page, const char *text, size_t indent)
{
	bool item = str_starts(text, "- ");

	if (item || page->indent != indent)
		render_flush(page);
	page->indent = indent;
	if (page->paragraph.len == 0)
		page->hang = item ? indent + 2 : indent;
	else
		buf_addc(&page->paragraph, ' ');
	buf_adds(&page->paragraph, text);
}

static void render_add_line(struct page *page, const char *line)
{
	size_t tabs = strspn(line, "\t");
	size_t indent = MARGIN + tabs * STEP;
	const char *text = line + tabs;

	if (str_eq(text, "```")) {
		render_flush(page);
		page->is_literal = !page->is_literal;
	} else if (page->is_literal) {
		buf_addf(page->out, "%*s%s\n", (int)indent + STEP, "", text);
		page->after_blank = false;
	} else if (!*text) {
		blank(page);
	} else if (str_starts(line, "# ")) {
		add_heading(page, line + 2, 0);
	} else if (str_starts(line, "## ")) {
		add_heading(page, line + 3, MARGIN / 2);
	} else if (!str_starts(line, "; ")) {
		render_add_text(page, text, indent);
	}
}

void manual_render(const char *source, size_t columns, struct buf *out)
{
	struct page page = {.out = out, .columns = columns, .indent = MARGIN, .after_blank = true};

	/* The first line is the title: NAME(SECTION). */
	source += strcspn(source, "\n");
	source += *source == '\n';
	buf_init(&page.paragraph, PARAGRAPH_MAX);
	while (*source) {
		size_t len = strcspn(source, "\n");
		AUTO_FREE char *line = mem_strndup(source, len);

		render_add_line(&page, line);
		source += len + (source[len] == '\n');
	}
	render_flush(&page);
	buf_done(&page.paragraph);
}
