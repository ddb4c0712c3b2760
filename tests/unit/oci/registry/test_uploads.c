/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "oci/registry/uploads.h"
#include "tests/unit/registryfix.h"
#include "tests/unit/until.h"

enum { N_FILES = 4, FILE_BYTES = 1000 };

/* So many uploads are accepted; those that come after wait for more. */
static atomic_int n_open, n_taken;
/* Requests for a byte of a blob, and the responses to them and to HEAD. */
static atomic_int n_looks;
static const char *look_response, *head_response;

static bool response_gate(struct fix_conn *conn)
{
	static const char begun[] =
		"HTTP/1.1 202 X\r\nContent-Length: 0\r\nLocation: /v2/me/x/up\r\n\r\n";
	AUTO_FREE char *body = fix_body(conn);

	if (!body)
		return false;
	if (str_eq(conn->method, "POST") && !strstr(conn->path, "digest="))
		return fix_print(conn, begun);
	if (str_eq(conn->method, "GET") && strstr(conn->path, "/blobs/sha256:")) {
		atomic_fetch_add(&n_looks, 1);
		return fix_print(conn, look_response);
	}
	if (str_eq(conn->method, "HEAD"))
		return fix_print(conn, head_response);
	if (!str_eq(conn->method, "PUT") && !str_eq(conn->method, "POST"))
		return fix_print(conn, "HTTP/1.1 204 X\r\n\r\n");
	int mine = atomic_fetch_add(&n_taken, 1);
	while (mine >= atomic_load(&n_open))
		usleep(1000);
	return fix_print(conn, "HTTP/1.1 201 X\r\nContent-Length: 0\r\n\r\n");
}

struct waiting {
	struct runtime runtime;
	struct uploads *uploads;
	struct registry_cache cache;
	int fds[N_FILES];
	bool is_running, is_over;
};

static int waiting_done(void *ctx, struct err *error, struct err *err)
{
	struct waiting *waiting = ctx;

	assert_true(!error || !err_is_set(error));
	waiting->is_over = true;
	if (waiting->is_running)
		loop_stop(waiting->runtime.loop);
	return 0;
}

static void add_file(struct waiting *waiting, int i, size_t size)
{
	AUTO_FREE char *path = mem_printf("%s/file%d", tmp, i);
	AUTO_FREE char *content = mem_alloc(1, size);
	struct descriptor blob = {.size = size};
	uint8_t sha256[SHA256_SIZE];

	memset(content, 'a' + i, size);
	digest_sha256(content, size, sha256);
	digest_text(sha256, blob.digest);
	assert_int_equal(fs_replace(path, content, size, 0600, FS_SYNC_NONE, NULL), 0);
	waiting->fds[i] = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(waiting->fds[i] >= 0);
	uploads_add_file(waiting->uploads, &blob, waiting->fds[i]);
}

static void wait_until(struct waiting *waiting, uint64_t most)
{
	AUTO_ERR struct err err = {0};

	waiting->is_over = false;
	assert_int_equal(uploads_wait(waiting->uploads, most, waiting_done, waiting, &err), 0);
	waiting->is_running = true;
	if (!waiting->is_over)
		runtime_run(&waiting->runtime);
	waiting->is_running = false;
	assert_true(waiting->is_over);
}

/* A number that is open may be that of a connection by now. */
static size_t count_closed(const struct waiting *waiting)
{
	size_t n = 0;

	for (int i = 0; i < N_FILES; i++) {
		AUTO_FREE char *path = mem_printf("%s/file%d", tmp, i);
		struct stat file, at;
		assert_int_equal(stat(path, &file), 0);
		n += fstat(waiting->fds[i], &at) < 0 || at.st_ino != file.st_ino ||
		     at.st_dev != file.st_dev;
	}
	return n;
}

static void waiting_init(struct waiting *waiting)
{
	*waiting = (struct waiting){0};
	atomic_store(&n_open, 0);
	atomic_store(&n_taken, 0);
	atomic_store(&n_looks, 0);
	runtime_init(&waiting->runtime, response_gate);
	waiting->uploads = uploads_new(&(struct uploads_options){.loop = waiting->runtime.loop,
		.registry = waiting->runtime.registry,
		.cache = &waiting->cache});
}

static void waiting_end(struct waiting *waiting)
{
	atomic_store(&n_open, N_FILES);
	uploads_free(waiting->uploads);
	registry_cache_done(&waiting->cache);
	runtime_done(&waiting->runtime);
}

/* One file may always wait, of any size; of others so many bytes; and what has arrived takes none. */
static void test_bound(void **state)
{
	struct waiting waiting;

	waiting_init(&waiting);
	add_file(&waiting, 0, FILE_BYTES);
	wait_until(&waiting, 1);
	for (int i = 1; i < N_FILES; i++)
		add_file(&waiting, i, FILE_BYTES);
	wait_until(&waiting, FILE_BYTES * (N_FILES - 1));
	assert_int_equal(uploads_progress(waiting.uploads).blobs_done, 0);
	/* Two arrive, and two are on their way. */
	atomic_store(&n_open, N_FILES - 2);
	wait_until(&waiting, FILE_BYTES);
	assert_int_equal(uploads_progress(waiting.uploads).blobs_done, N_FILES - 2);
	assert_int_equal(count_closed(&waiting), N_FILES - 2);
	atomic_store(&n_open, N_FILES);
	wait_until(&waiting, 0);
	assert_int_equal(uploads_progress(waiting.uploads).blobs_done, N_FILES);
	assert_int_equal(count_closed(&waiting), N_FILES);
	assert_int_equal(atomic_load(&n_looks), 0);
	waiting_end(&waiting);
}

#define A_BYTE          "HTTP/1.1 206 X\r\nContent-Length: 1\r\n\r\nx"
#define NOTHING(status) "HTTP/1.1 " status " X\r\nContent-Length: 0\r\n\r\n"

/* No upload is accepted: it is there without. */
static void test_is_there(void **state)
{
	struct waiting waiting;

	look_response = A_BYTE;
	head_response = "HTTP/1.1 200 X\r\nContent-Length: 1048576\r\n\r\n";
	waiting_init(&waiting);
	add_file(&waiting, 0, UPLOAD_LOOK_MIN);
	wait_until(&waiting, 0);
	struct uploads_progress progress = uploads_progress(waiting.uploads);
	assert_int_equal(atomic_load(&n_looks), 1);
	assert_int_equal(progress.files_there, 1);
	assert_int_equal(progress.bytes_there, UPLOAD_LOOK_MIN);
	assert_int_equal(progress.blobs_total + progress.blobs_done, 0);
	assert_int_equal(progress.bytes_total + progress.bytes_done, 0);
	waiting_end(&waiting);
}

/* A registry that does not say so, or has lost the bytes, gets it. */
static void test_is_not_there(void **state)
{
	static const struct {
		const char *look, *head;
	} responses[] = {
		{NOTHING("404"), NULL},
		{NOTHING("403"), NULL},
		{NOTHING("200"), NULL},
		{"HTTP/1.1 206 X\r\nContent-Length: 1\r\nConnection: close\r\n\r\n", NULL},
		{A_BYTE, NOTHING("404")},
		{A_BYTE, "HTTP/1.1 200 X\r\nContent-Length: 12\r\n\r\n"},
	};

	for (size_t i = 0; i < sizeof(responses) / sizeof(*responses); i++) {
		struct waiting waiting;
		look_response = responses[i].look;
		head_response = responses[i].head;
		waiting_init(&waiting);
		add_file(&waiting, 0, UPLOAD_LOOK_MIN);
		UNTIL_BY(assert_int_equal(loop_pause(waiting.runtime.loop, TURN_MS, NULL, NULL), 0),
			atomic_load(&n_looks) > 0);
		atomic_store(&n_open, N_FILES);
		wait_until(&waiting, 0);
		struct uploads_progress progress = uploads_progress(waiting.uploads);
		assert_int_equal(progress.files_there, 0);
		assert_int_equal(progress.blobs_done, 1);
		assert_int_equal(progress.bytes_done, UPLOAD_LOOK_MIN);
		waiting_end(&waiting);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_bound),
		cmocka_unit_test(test_is_there), cmocka_unit_test(test_is_not_there)};

	return cmocka_run_group_tests(tests, make_tmp, remove_tmp);
}
