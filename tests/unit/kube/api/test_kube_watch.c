/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kube/api/watch.h"
#include "tests/unit/kubefix.h"

#define OBJECT(name, uid, rv)                                                                      \
	"{\"metadata\":{\"name\":\"" name "\",\"uid\":\"" uid "\",\"resourceVersion\":\"" rv       \
	"\",\"managedFields\":[1]},\"spec\":{}}"
#define EVENT(type, object) "{\"type\":\"" type "\",\"object\":" object "}\n"
#define BOOKMARK(rv)        EVENT("BOOKMARK", "{\"metadata\":{\"resourceVersion\":\"" rv "\"}}")
#define ERROR(code)                                                                                \
	EVENT("ERROR", "{\"kind\":\"Status\",\"code\":" #code ",\"message\":\"why\\u001b\"}")
#define LIST(rv, items)                                                                            \
	"{\"kind\":\"PodList\",\"metadata\":{\"resourceVersion\":\"" rv "\"},\"items\":[" items "]}"
#define A OBJECT("a", "1", "10")
#define B OBJECT("b", "2", "11")
#define ENDS(...)                                                                                  \
	{                                                                                          \
		200, __VA_ARGS__, .is_stream = true                                                \
	}
#define STAYS(...)                                                                                 \
	{                                                                                          \
		200, __VA_ARGS__, .is_stream = true, .is_silent = true                             \
	}
#define CUT(...)                                                                                   \
	{                                                                                          \
		200, __VA_ARGS__, .is_stream = true, .is_cut = true                                \
	}

struct seen {
	int64_t idle_ms;
	struct kube *kube;
	struct kube_watch *watch;
	struct buf text;     /* what came, in order */
	const char *until;   /* stop when it is at the end of text */
	const char *free_at; /* free the watch then */
	const char *name;    /* of the one object; or NULL */
	enum err_id id;
	int64_t since_ms;
};

static void note(struct seen *seen, const char *what, const struct json *object)
{
	const struct json *metadata = json_get(object, "metadata");

	buf_addf(&seen->text, "%s%s%s ", what, object ? ":" : "",
		object ? json_get_str(metadata, "name") : "");
	if (seen->until && str_ends(seen->text.data, seen->until))
		loop_stop(seen->kube->loop);
	if (seen->free_at && str_ends(seen->text.data, seen->free_at)) {
		kube_watch_free(TAKE(seen->watch));
		loop_stop(seen->kube->loop);
	}
}

static void on_put(void *ctx, const struct json *object)
{
	note(ctx, "put", object);
}

static void on_gone(void *ctx, const struct json *object)
{
	note(ctx, "gone", object);
}

static void on_synced(void *ctx)
{
	note(ctx, "synced", NULL);
}

static void on_trouble(void *ctx, const struct err *error, int64_t since_ms)
{
	struct seen *seen = ctx;

	assert_true(since_ms > 0 && since_ms <= clock_ms());
	if (error)
		seen->id = error->id;
	note(ctx, error ? "trouble" : "ok", NULL);
}

static int on_failed(void *ctx, struct err *error, struct err *err)
{
	struct seen *seen = ctx;

	seen->id = error->id;
	note(ctx, "failed", NULL);
	loop_stop(seen->kube->loop);
	return 0;
}

static int too_late(void *ctx, struct err *err)
{
	const struct seen *seen = ctx;

	fail_msg("after \"%s\" nothing more came", seen->text.data);
	return 0;
}

static void begin(
	struct kube *kube, const struct step *steps, size_t n, size_t max, struct seen *seen)
{
	static const char *const query[] = {"labelSelector", "x=y", NULL};

	kube_init(kube, steps, n);
	kube_connect(kube);
	seen->kube = kube;
	buf_init(&seen->text, 100000);
	const struct kube_watch_request request = {.path = "/api/v1/namespaces/j/pods",
		.query = query,
		.name = seen->name,
		.max_objects = max,
		.idle_ms = seen->idle_ms,
		.events = {.put = on_put,
			.gone = on_gone,
			.synced = on_synced,
			.trouble = on_trouble,
			.failed = on_failed,
			.ctx = seen}};
	seen->watch = kube_watch_start(kube->client, &request);
}

static void run(struct seen *seen)
{
	AUTO_ERR struct err err = {0};
	struct loop_timer *timer =
		loop_add_timer(seen->kube->loop, clock_ms() + 20000, too_late, seen);

	assert_int_equal(loop_run(seen->kube->loop, &err), 0);
	loop_remove_timer(seen->kube->loop, timer);
}

/* All that comes of these steps up to `until` is `expected`. */
static void watch(const struct step *steps, size_t n, const char *until, const char *expected)
{
	AUTO_KUBE struct kube kube;
	struct seen seen = {.until = until};

	begin(&kube, steps, n, 0, &seen);
	run(&seen);
	if (!str_eq(seen.text.data, expected))
		fail_msg("\"%s\" and not \"%s\"", seen.text.data, expected);
	kube_watch_free(seen.watch);
	buf_done(&seen.text);
}

#define WATCH(steps, until, expected) watch(steps, ARRAY_LEN(steps), until, expected)

static void test_events(void **state)
{
	static const struct step steps[] = {{200, LIST("5", A)},
		STAYS(EVENT("ADDED", B) EVENT("MODIFIED", A) "\n" BOOKMARK("12")
				EVENT("DELETED", A))};

	WATCH(steps, "gone:a ", "put:a synced put:b put:a gone:a ");
}

/* Each stream begins behind what the one before has told. */
static void test_continues(void **state)
{
	static const struct step steps[] = {{200, LIST("5", A)}, ENDS(EVENT("ADDED", B)),
		CUT(BOOKMARK("x/20") "{\"type\":\"ADD"),
		ENDS(EVENT("ADDED", OBJECT("c", "3", "30"))),
		STAYS(EVENT("ADDED", OBJECT("d", "4", "40")))};
	static const char *const versions[] = {NULL, "5", "11", "x%2F20", "30"};
	AUTO_KUBE struct kube kube;
	struct seen seen = {.until = "put:d "};

	begin(&kube, steps, ARRAY_LEN(steps), 0, &seen);
	run(&seen);
	assert_string_equal(seen.text.data, "put:a synced put:b put:c put:d ");
	assert_int_equal(kube.server->heads.n, 5);
	for (size_t i = 1; i < ARRAY_LEN(versions); i++) {
		AUTO_FREE char *line =
			mem_printf("GET /base/api/v1/namespaces/j/pods?labelSelector="
				   "x%%3Dy&watch=1&allowWatchBookmarks=true"
				   "&resourceVersion=%s&timeoutSeconds=50 ",
				versions[i]);
		assert_true(str_starts(kube.server->heads.v[i], line));
	}
	kube_watch_free(seen.watch);
	buf_done(&seen.text);
}

/* What was missed is told as what it means; another object of the same name is another one. */
static void test_lists_anew(void **state)
{
	static const struct step in_event[] = {{200, LIST("5", A "," B)}, ENDS(ERROR(410)),
		{200, LIST("50", OBJECT("a", "9", "40"))},
		STAYS(EVENT("DELETED", OBJECT("a", "9", "51")))};
	static const struct step as_status[] = {{200, LIST("5", A "," B)}, {410, ""},
		{200, LIST("50", OBJECT("a", "9", "40"))},
		STAYS(EVENT("DELETED", OBJECT("a", "9", "51")))};
	AUTO_KUBE struct kube kube;
	struct seen seen = {.until = "put:a synced gone:a "};

	for (int i = 0; i < 2; i++) {
		seen.id = E_NONE;
		begin(&kube, i ? as_status : in_event, 4, 0, &seen);
		run(&seen);
		/* In any order. */
		assert_non_null(strstr(seen.text.data, "put:a put:b synced gone:"));
		assert_non_null(strstr(seen.text.data, "gone:a "));
		assert_non_null(strstr(seen.text.data, "gone:b "));
		assert_true(str_ends(seen.text.data, "put:a synced gone:a "));
		assert_int_equal(seen.id, E_NONE);
		assert_int_equal(strlen(seen.text.data),
			strlen("put:a put:b synced gone:a gone:b put:a synced gone:a "));
		kube_watch_free(seen.watch);
		buf_done(&seen.text);
		kube_done(&kube);
	}
	begin(&kube, in_event, 1, 0, &seen);
	kube_watch_free(seen.watch);
	buf_done(&seen.text);
}

/* A cluster that always says so is not asked all the time. */
static void test_always_expired(void **state)
{
	static const struct step steps[] = {{200, LIST("5", "")}, {410, ""}, {200, LIST("5", "")},
		{410, ""}, {200, LIST("5", "")}, {410, ""}, {200, LIST("5", "")},
		STAYS(EVENT("ADDED", A))};
	int64_t begin_ms = clock_ms();

	WATCH(steps, "put:a ", "synced synced synced synced put:a ");
	assert_true(clock_ms() - begin_ms >= 200 + 400);
}

static void test_trouble(void **state)
{
	static const struct step steps[] = {{200, LIST("5", A)}, {404, "{}"}, {500, "x"},
		{200, LIST("6", A)}, STAYS(EVENT("ADDED", B))};
	static const struct step error[] = {{200, LIST("5", A)}, ENDS(ERROR(500)),
		{200, LIST("6", A)}, STAYS(EVENT("ADDED", B))};
	static const struct step garbage[] = {{200, LIST("5", A)},
		ENDS(EVENT("ADDED", B) "garbage\n" EVENT("ADDED", B)), {200, LIST("6", A)},
		STAYS(EVENT("ADDED", B))};

	WATCH(steps, "put:b ", "put:a synced trouble trouble ok put:a synced put:b ");
	WATCH(error, "put:b ", "put:a synced trouble ok put:a synced put:b ");
	WATCH(garbage, "ok gone:b put:a synced put:b ",
		"put:a synced put:b trouble ok gone:b put:a synced put:b ");
}

/* Who may list but not watch is told the same, later. */
static void test_polls(void **state)
{
	static const struct step steps[] = {
		{200, LIST("5", A)}, {403, "{}"}, {200, LIST("6", A "," B)}, {200, LIST("7", B)}};
	int64_t begin_ms = clock_ms();

	WATCH(steps, "gone:a put:b synced ",
		"put:a synced put:a put:b synced gone:a put:b synced ");
	assert_true(clock_ms() - begin_ms >= 4000);
}

/* Where lists are denied one object is read by itself: it comes, is gone, comes again. */
static void test_gets(void **state)
{
	static const struct step steps[] = {
		{403, "{}"}, {200, A}, {404, "{}"}, {500, "x"}, {200, OBJECT("a", "9", "20")}};
	AUTO_KUBE struct kube kube;
	struct seen seen = {.until = "ok put:a synced ", .name = "a"};

	begin(&kube, steps, ARRAY_LEN(steps), 0, &seen);
	run(&seen);
	assert_string_equal(seen.text.data, "put:a synced gone:a synced trouble ok put:a synced ");
	assert_true(str_starts(kube.server->heads.v[1], "GET /base/api/v1/namespaces/j/pods/a "));
	kube_watch_free(seen.watch);
	buf_done(&seen.text);
}

/* Two cuts one after the other are told, one is not. */
static void test_cut_twice(void **state)
{
	static const struct step steps[] = {{200, LIST("5", A)}, CUT(BOOKMARK("6")), {0},
		{200, LIST("7", A)}, STAYS(EVENT("ADDED", B))};

	WATCH(steps, "put:b ", "put:a synced trouble ok put:a synced put:b ");
}

/* Nobody is at the other end any more, and nothing says so. */
static void test_silent(void **state)
{
	static const struct step steps[] = {{200, LIST("5", A)}, STAYS(BOOKMARK("6")),
		{200, LIST("7", A)}, {-1}, {200, LIST("7", A)}, STAYS(EVENT("ADDED", B))};
	AUTO_KUBE struct kube kube;
	struct seen seen = {.until = "put:b ", .idle_ms = 3000};

	begin(&kube, steps, ARRAY_LEN(steps), 0, &seen);
	run(&seen);
	assert_string_equal(seen.text.data, "put:a synced trouble ok put:a synced "
					    "trouble ok put:a synced put:b ");
	assert_int_equal(seen.id, E_KUBE_UNREACHABLE);
	kube_watch_free(seen.watch);
	buf_done(&seen.text);
}

static void test_bad_objects(void **state)
{
	static const struct step steps[] = {{200, LIST("5", "1,{},{\"metadata\":{\"name\":2}}," A)},
		ENDS(EVENT("ADDED", "{\"metadata\":{\"name\":\"x\"}}")), {200, LIST("6", "")},
		STAYS(EVENT("ADDED", B))};

	WATCH(steps, "put:b ", "put:a synced trouble ok gone:a synced put:b ");
}

static void over(
	const struct step *steps, size_t n, size_t max, enum err_id id, const char *expected)
{
	AUTO_KUBE struct kube kube;
	struct seen seen = {0};

	begin(&kube, steps, n, max, &seen);
	run(&seen);
	assert_int_equal(seen.id, id);
	assert_string_equal(seen.text.data, expected);
	kube_watch_free(seen.watch);
	buf_done(&seen.text);
}

static void test_over(void **state)
{
	static const struct step denied[] = {{403, "{}"}};
	static const struct step login[] = {{401, "{}"}};
	static const struct step none[] = {{404, "{}"}};
	static const struct step many[] = {{200, LIST("5", A "," B)}};
	static const struct step more[] = {{200, LIST("5", A)}, STAYS(EVENT("ADDED", B))};

	over(denied, 1, 0, E_KUBE_DENIED, "failed ");
	over(login, 1, 0, E_KUBE_AUTH, "failed ");
	over(none, 1, 0, E_KUBE_NOT_FOUND, "failed ");
	over(many, 1, 1, E_DATA_LIMIT, "failed ");
	over(more, 2, 1, E_DATA_LIMIT, "put:a synced put:b failed ");
}

/* A line without an end. */
static void test_huge(void **state)
{
	AUTO_FREE char *huge = mem_alloc(1, KUBE_LINE_MAX + 2);
	const struct step steps[] = {{200, LIST("5", A)}, STAYS(huge)};

	memset(huge, 'x', KUBE_LINE_MAX + 1);
	over(steps, 2, 0, E_DATA_LIMIT, "put:a synced failed ");
}

/* Wherever it is freed, nothing comes any more. */
static void test_freed(void **state)
{
	static const struct step steps[] = {{200, LIST("5", A "," B)},
		ENDS(EVENT("ADDED", OBJECT("c", "3", "30")) EVENT("DELETED", B) EVENT("ADDED", B)),
		{0}, {200, LIST("6", "")}, STAYS("")};
	static const char *const at[] = {
		"put:a ", "put:b ", "synced ", "put:c ", "gone:b ", "trouble ", "ok ", "gone:c "};

	for (size_t i = 0; i < ARRAY_LEN(at); i++) {
		AUTO_KUBE struct kube kube;
		struct seen seen = {.free_at = at[i]};

		begin(&kube, steps, ARRAY_LEN(steps), 0, &seen);
		run(&seen);
		assert_null(seen.watch);
		assert_true(str_ends(seen.text.data, at[i]));
		buf_done(&seen.text);
	}
}

/* Many that come and go: what is gone is forgotten. */
static void test_churn(void **state)
{
	AUTO_KUBE struct kube kube;
	AUTO_BUF struct buf body;
	struct seen seen = {.until = "gone:last "};

	buf_init(&body, 10 << 20);
	for (int i = 0; i < 1000; i++)
		buf_addf(&body,
			"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"p\",\"uid\":\"%d\","
			"\"resourceVersion\":\"1\"}}}\n{\"type\":\"DELETED\",\"object\":{\"metadata\":"
			"{\"name\":\"%s\",\"uid\":\"%d\",\"resourceVersion\":\"2\"}}}\n",
			i, i == 999 ? "last" : "p", i);
	const struct step steps[] = {{200, LIST("5", A)}, STAYS(body.data)};
	/* Two at a time are all that may be. */
	begin(&kube, steps, 2, 2, &seen);
	run(&seen);
	kube_watch_free(seen.watch);
	buf_done(&seen.text);
}

/*
 * Lines
 */

static int join(void *ctx, const char *line, size_t len, struct err *err)
{
	struct buf *out = ctx;

	buf_add(out, line, len);
	buf_addc(out, '|');
	return len == 4 && memcmp(line, "stop", 4) == 0 ? 7 : 0;
}

static void test_lines(void **state)
{
	static const char text[] = "ab\n\ncd\n\nlast";

	for (size_t cut = 1; cut < sizeof(text); cut++) {
		AUTO_KUBE_LINES struct kube_lines lines;
		AUTO_BUF struct buf out;

		kube_lines_init(&lines);
		buf_init(&out, 100);
		for (size_t at = 0; at < sizeof(text) - 1; at += cut) {
			size_t left = sizeof(text) - 1 - at;
			assert_int_equal(kube_lines_add(&lines, text + at, left < cut ? left : cut,
						 join, &out, NULL),
				0);
		}
		assert_string_equal(out.data, "ab|cd|");
		assert_int_equal(kube_lines_add(&lines, "\nstop\nno\n", 9, join, &out, NULL), 7);
		assert_string_equal(out.data, "ab|cd|last|stop|");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_events),
		cmocka_unit_test(test_continues),
		cmocka_unit_test(test_lists_anew),
		cmocka_unit_test(test_always_expired),
		cmocka_unit_test(test_trouble),
		cmocka_unit_test(test_polls),
		cmocka_unit_test(test_gets),
		cmocka_unit_test(test_cut_twice),
		cmocka_unit_test(test_silent),
		cmocka_unit_test(test_bad_objects),
		cmocka_unit_test(test_over),
		cmocka_unit_test(test_huge),
		cmocka_unit_test(test_freed),
		cmocka_unit_test(test_churn),
		cmocka_unit_test(test_lines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
