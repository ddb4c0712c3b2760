/* SPDX-License-Identifier: Apache-2.0 */
#include "app/data/data.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/data/bundle.h"
#include "app/data/place.h"
#include "base/loop/task.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "app/runs/refresh.h"
#include "core/record/runtime.h"
#include "core/store/store.h"

enum {
	DATA_KEY_SIZE = 17,
	DATA_TOKEN_BYTES = 8,
	DATA_TRIES = 5,
	DATA_RETRY_MS = 1000,
	DATA_TICK_MS = 200,
	DATA_REFRESH_MS = 10000,
	DATA_SAID_MAX = 64 << 10,
	DATA_SHOWN = 4,
	DATA_REMOVED_AT_ONCE = 256, /* versions, by one command */
	DATA_PIPE = 1 << 20,        /* a chunk is hashed while the one before it is taken out */
};

void data_pushed_done(struct data_pushed *pushed)
{
	free(pushed->target);
	free(pushed->path);
	free(pushed->sub_path);
	strv_done(&pushed->changed);
	*pushed = (struct data_pushed){0};
}

struct data_push {
	const struct data_options *options;
	struct data_place place;
	char *from;                           /* absolute, without links */
	char *cache, *stat_path;              /* directory; of the stat data of `from` */
	char host[64];                        /* this machine's name */
	char key[DATA_KEY_SIZE];              /* of transfers from there to the place */
	char token[2 * DATA_TOKEN_BYTES + 1]; /* of this transfer */
	int lock_fd;
	struct chunker chunker;
	struct version now;
	int64_t begun_wall_ms;
	/* Where the first way makes something else, or nothing: no file is put together from what
	 * the version before has, or linked to it, then nothing there is built upon. */
	enum { DATA_SHARES, DATA_WHOLE, DATA_ANEW } way;
	bool is_named; /* once more, since the version turned out to be there, but changed */
	struct data_pushed *ret;
};

static void data_push_done(struct data_push *push)
{
	if (push->lock_fd > 0)
		close(push->lock_fd);
	data_place_done(&push->place);
	version_done(&push->now);
	free(push->from);
	free(push->cache);
	free(push->stat_path);
}

/*
 * The directory here
 */

static int data_find_source(struct data_push *push, struct err *err)
{
	struct session *session = push->place.session;
	const struct tree_place *tree;
	AUTO_FREE char *path = NULL;
	struct stat st;

	if (push->options->from) {
		path = fs_join(session->env.cwd, push->options->from);
	} else {
		int r = session_place(session, &tree, err);
		if (r < 0)
			return r;
		path = fs_join(tree->root, push->place.paths.v[0]);
	}
	AUTO_FREE char *shown = str_escaped(path);
	if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode)) {
		err_set(err, E_RUN_DATA, "data: %s is not a directory on this machine", shown);
		if (push->options->from)
			return -1;
		AUTO_FREE char *data = str_escaped(push->place.paths.v[0]);
		return err_hint(err,
			"dlrun data push %s --from /srv/data   # data that lie elsewhere", data);
	}
	return fs_realpath(path, &push->from, err);
}

/* Two pushes of one directory to one place would each go on with what the other has sent. */
static int data_find_key(struct data_push *push, struct err *err)
{
	const struct dirs *dirs = &push->place.session->dirs;
	AUTO_FREE char *text = mem_printf("%s\n%s\n%s\n%s\n%s", push->host, dirs->cache, push->from,
		push->place.target->name, push->place.dirs.v[0]);
	uint8_t sha[SHA256_SIZE];
	char hex[SHA256_HEX_SIZE];

	digest_sha256(text, strlen(text), sha);
	hex_encode(sha, (DATA_KEY_SIZE - 1) / 2, push->key);
	digest_sha256(push->from, strlen(push->from), sha);
	hex_encode(sha, SHA256_SIZE, hex);
	push->cache = fs_join(dirs->cache, "data");
	push->stat_path = mem_printf("%s/%.32s.stat", push->cache, hex);
	int r = fs_mkdirs(push->cache, 0700, err);
	if (r < 0)
		return r;
	AUTO_FREE char *lock = mem_printf("%s/%s.lock", push->cache, push->key);
	r = fs_lock(lock, true, 0, &push->lock_fd, err);
	return r < 0 && err->id == E_IO_LOCK
		       ? err_set(err, E_IO_LOCK, "%s is being pushed there already", push->from)
		       : r;
}

/* A list of the cache; false: there is none that is good. */
static bool data_read_list(const char *path, struct version *ret)
{
	AUTO_BUF struct buf text = {0};
	AUTO_ERR struct err ignored = {0};

	return fs_read(path, VERSION_TEXT_MAX, &text, NULL, &ignored) == 0 &&
	       version_parse(text.data, text.len, ret, &ignored) == 0;
}

static void data_write_list(const struct data_push *push, const char *path,
	const struct version *version, bool with_stat)
{
	AUTO_BUF struct buf text = buf_with(VERSION_TEXT_MAX);
	AUTO_ERR struct err error = {0};

	version_print(version, push->begun_wall_ms, push->host, with_stat, &text);
	if (buf_check(&text, "the list", &error) < 0 ||
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, &error) < 0)
		log_note("data: %s", error.message);
}

static void data_save_stat(struct data_push *push)
{
	scan_forget_fresh(&push->now, push->begun_wall_ms);
	data_write_list(push, push->stat_path, &push->now, true);
}

static int data_scan(struct data_push *push, struct err *err)
{
	AUTO_VERSION struct version known = {0};

	version_done(&push->now);
	push->now = (struct version){0};
	push->begun_wall_ms = clock_wall_ms();
	bool has_known = data_read_list(push->stat_path, &known);
	int r = scan_dir(
		push->from, has_known ? &known : NULL, &push->now, &push->ret->n_passed, err);
	if (r == 0 && !push->now.entries.n)
		return err_set(err, E_RUN_DATA, "data: %s is empty", push->from);
	push->ret->n_files = version_files(&push->now);
	push->ret->bytes = version_bytes(&push->now);
	return r;
}

/*
 * Versions there
 */

struct data_there {
	struct strv ids, lines; /* of each version its summary; the newest first */
	char current[VERSION_ID_SIZE], unchanged[VERSION_ID_SIZE];
	size_t len; /* of the text about versions */
};

static void data_there_done(struct data_there *there)
{
	strv_done(&there->ids);
	strv_done(&there->lines);
}

static void data_there_take(struct data_there *there, const char *line)
{
	const char *words = strchr(line, ' ');

	if (str_starts(line, "current ") && version_id_is(words + 1))
		snprintf(there->current, sizeof(there->current), "%s", words + 1);
	if (str_starts(line, "unchanged ") && version_id_is(words + 1))
		snprintf(there->unchanged, sizeof(there->unchanged), "%s", words + 1);
	if (!str_starts(line, "version "))
		return;
	AUTO_FREE char *id = mem_strndup(words + 1, strcspn(words + 1, " "));
	if (!version_id_is(id))
		return;
	strv_add(&there->ids, id);
	strv_add(&there->lines, words + 1 + strlen(id) + (words[1 + strlen(id)] == ' '));
}

static void data_there_parse(const struct buf *text, struct data_there *ret)
{
	while (ret->len < text->len) {
		const char *at = text->data + ret->len;
		const char *end = memchr(at, '\n', text->len - ret->len);
		if (!end || (!str_starts(at, "current ") && !str_starts(at, "version ") &&
				    !str_starts(at, "unchanged ")))
			break;
		AUTO_FREE char *line = mem_strndup(at, (size_t)(end - at));
		data_there_take(ret, line);
		ret->len += (size_t)(end - at) + 1;
	}
}

static void data_words(struct strv *ret, const char *verb, const char *word)
{
	strv_add(ret, verb);
	if (word)
		strv_add(ret, word);
}

/* The content of a version. Lists do not change, so one that was seen stays here. */
static int data_get_base(
	struct data_push *push, const char *id, struct version *ret, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s/%s.list", push->cache, id);
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf text = buf_with(VERSION_TEXT_MAX);
	char found[VERSION_ID_SIZE];

	if (data_read_list(path, ret)) {
		version_id(ret, found);
		if (str_eq(found, id))
			return 0;
		version_done(ret);
		*ret = (struct version){0};
	}
	data_words(&words, "show", id);
	int r = data_place_do(&push->place, 0, &words, &text, err);
	if (r == 0)
		r = version_parse(text.data, text.len, ret, err);
	if (r < 0)
		return r;
	data_write_list(push, path, ret, false);
	return 0;
}

/* Find the paths (*ret: their number) of the version there that were changed, which nobody may do.
 * lost and part as of bundle_compare; part is that of the base. 1: that cannot be told, as of what
 * only root may read; then nothing is built upon the base. */
static int data_find_changes(struct data_push *push, const char *id, const struct version *version,
	struct map *lost, struct bundle_part *part, size_t *ret, struct err *err)
{
	AUTO(bundle_part_done) struct bundle_part changed = {0};
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf text = {0}, said = {0};

	buf_init(&text, VERSION_TEXT_MAX);
	buf_init(&said, DATA_SAID_MAX);
	data_words(&words, "changed", id);
	strv_add(&words, push->token);
	int status = data_place_run(&push->place, 0, &words, -1, &text, &said, err);
	if (status != DATA_OK && status != DATA_FAILED)
		return status < 0 ? status : data_place_fail(&push->place, 0, status, &said, err);
	if (status == DATA_FAILED || !bundle_part_parse(text.data, text.len, &changed)) {
		push->way = part ? DATA_ANEW : push->way;
		return 1;
	}
	*ret = text.len ? bundle_compare(version, &changed, lost, part) : 0;
	if (*ret)
		strv_addf(&push->ret->changed,
			"%s@%s was changed on %s: %zu of its paths are not what was pushed",
			push->place.paths.v[0], id, push->place.target->name, *ret);
	return 0;
}

/* A run of this machine's list that goes on reads one of the versions from `first` to before `end`:
 * it would lose files under way. Which one it reads is known only since its target was asked. */
static int data_check_unused(const struct data_place *place, size_t i,
	const struct data_there *there, size_t first, size_t end, struct err *err)
{
	const struct store_filter filter = {.unfinished_only = true, .target = place->target->name};
	AUTO_FREE char *path = str_escaped(place->paths.v[i]);
	AUTO(run_list_done) struct run_list runs = {0};
	struct store *store;

	int r = session_store(place->session, &store, err);
	if (r == 0)
		r = store_list(store, &filter, &runs, err);
	if (r == 0)
		r = runs_refresh(place->session, &runs, DATA_REFRESH_MS, err);
	for (size_t k = 0; r == 0 && k < runs.n; k++) {
		const struct json *data = json_get(runs.v[k]->doc, RUNTIME_DATA);
		const char *id = json_get_str(data, path);
		ptrdiff_t at = id ? strv_find(&there->ids, id) : -1;
		if (at < (ptrdiff_t)first || at >= (ptrdiff_t)end ||
			run_state_is_final(run_state(runs.v[k])))
			continue;
		const char *run = run_id(runs.v[k]);
		err_set(err, E_DATA_PLACE, "%s@%s is read by %s, which has not ended", path, id,
			run);
		return err_hint(err, "dlrun wait %s", run);
	}
	return r;
}

/*
 * A transfer
 */

struct data_sending {
	struct bundle *bundle;
	const struct data_options *options;
	struct loop *loop;
	struct loop_timer *timer;
	int fd, r;
	struct err error;
};

/* In the thread. */
static int data_produce(struct task *task UNUSED, void *ctx, struct err *err UNUSED)
{
	struct data_sending *sending = ctx;

	sending->r = bundle_write(sending->bundle, sending->fd, &sending->error);
	close(sending->fd);
	return 0;
}

static int data_produced(
	void *ctx UNUSED, int r UNUSED, struct err *error UNUSED, struct err *err UNUSED)
{
	return 0;
}

static int data_tick(void *ctx, struct err *err UNUSED)
{
	struct data_sending *sending = ctx;

	if (sending->options->progress)
		sending->options->progress(sending->options->ctx,
			atomic_load_explicit(&sending->bundle->sent, memory_order_relaxed),
			sending->bundle->bytes);
	sending->timer = loop_add_timer(sending->loop, clock_ms() + DATA_TICK_MS, data_tick, ctx);
	return 0;
}

/* A data_status, or an error. */
static int data_send(
	struct data_push *push, struct bundle *bundle, struct buf *said, struct err *err)
{
	struct data_sending sending = {
		.bundle = bundle, .options = push->options, .loop = push->place.target->loop};
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf out = buf_with(DATA_SAID_MAX);
	struct task *task = NULL;
	int fds[2];

	strv_add(&words, "put");
	strv_add(&words, push->key);
	strv_add(&words, push->token);
	strv_add(&words, bundle->base_id);
	strv_addf(&words, "%zu", bundle_blocks(bundle));
	int r = fs_pipe(fds, 0, err);
	if (r < 0)
		return r;
	os_pipe_widen(fds[1], DATA_PIPE);
	sending.fd = fds[1];
	sending.timer =
		loop_add_timer(sending.loop, clock_ms() + DATA_TICK_MS, data_tick, &sending);
	task_start(sending.loop, data_produce, data_produced, &sending, &task);
	int status = data_place_run(&push->place, 0, &words, fds[0], &out, said, err);
	loop_remove_timer(sending.loop, sending.timer);
	close(fds[0]);
	task_free(task);
	/* A failure here is the cause of one there, but that nobody reads any more. */
	if (sending.r < 0 && (status == DATA_CUT || !err_is_set(err)) && !bundle->has_no_reader)
		status = err_move(err, &sending.error);
	err_done(&sending.error);
	return status;
}

static void data_count(struct data_push *push, const struct bundle *bundle)
{
	push->ret->n_sent += bundle->n_files;
	push->ret->bytes_sent += bundle->bytes;
	push->ret->n_hosts++;
	push->ret->was_there = false;
}

/* Whether it could succeed in another way: by chunks that are not what the list of their version
 * says, files in its directories that are not in the list, a place without hard links (some tars
 * end at the first, and then nobody knows that the stream was not cut). */
static bool data_has_other_way(const struct data_push *push, const struct bundle *bundle,
	int status, const struct buf *said)
{
	if (status == DATA_DIFFERS)
		return push->way < DATA_ANEW;
	return (status == DATA_FAILED || status == DATA_CUT) && push->way == DATA_SHARES &&
	       bundle->n_hard && said->data && strstr(said->data, "link");
}

/* To a bucket, whose versions are named before anything is sent. */
static int data_put_bucket(
	struct data_push *push, struct bundle *bundle, bool is_known, struct err *err)
{
	AUTO_FREE char *notes = mem_printf("%s/%s.uploads", push->cache, push->key);
	AUTO_FREE char *path = mem_printf("%s/%s.list", push->cache, bundle->id);
	AUTO_BUF struct buf list = buf_with(VERSION_TEXT_MAX);
	struct bucket_put put = {.dir = push->from,
		.now = &push->now,
		.base = str_eq(bundle->base_id, bundle->id) ? NULL : bundle->base,
		.id = bundle->id,
		.base_id = bundle->base_id,
		.key = push->key,
		.notes = notes,
		.is_known = is_known,
		.progress = push->options->progress,
		.ctx = push->options->ctx};

	version_print(&push->now, push->begun_wall_ms, push->host, false, &list);
	int r = buf_check(&list, "the list", err);
	put.list = list.data;
	if (r == 0)
		r = place_bucket_put(&push->place, 0, &put, err);
	if (r != 0)
		return r < 0 ? r : 0;
	data_write_list(push, path, &push->now, false);
	bundle->n_files = put.n_sent;
	bundle->bytes = put.bytes_sent;
	data_count(push, bundle);
	return 0;
}

static int data_hash_all(struct data_push *push, struct err *err)
{
	struct scan_wants wants = {0};

	vec_foreach (struct version_entry, entry, &push->now.entries)
		if (entry->kind == 'f' && !entry->has_digest)
			*vec_push(&wants) = entry;
	int r = scan_hash(push->from, &push->now, &wants, &push->chunker, err);
	vec_done(&wants);
	return r;
}

/* 1: once more, in another way. */
static int data_put(struct data_push *push, struct bundle *bundle, struct err *err)
{
	AUTO_BUF struct buf said = buf_with(DATA_SAID_MAX);
	AUTO_FREE char *path = NULL;

	if (data_place_is_bucket(&push->place, 0))
		return data_put_bucket(push, bundle, false, err);
	bundle->whole = push->way != DATA_SHARES;
	int r = bundle_plan(bundle, err);
	if (r < 0)
		return r;
	int status = data_send(push, bundle, &said, err);
	if (data_has_other_way(push, bundle, status, &said)) {
		push->way++;
		return 1;
	}
	if (status == DATA_REPLACES && !push->is_named) {
		push->is_named = true;
		return 1;
	}
	if (status != DATA_OK)
		return status < 0 ? status : data_place_fail(&push->place, 0, status, &said, err);
	path = mem_printf("%s/%s.list", push->cache, bundle->id);
	data_write_list(push, path, bundle->now, false);
	data_count(push, bundle);
	return 0;
}

/* A verb of the script with one word. */
static int data_tell(struct data_push *push, const char *verb, const char *word, struct err *err)
{
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf out = buf_with(DATA_SAID_MAX);

	data_words(&words, verb, word);
	return data_place_do(&push->place, 0, &words, &out, err);
}

/* The version that the transfer that was cut began with, else the newest; one that is gone cannot
 * be gone on with. */
static int data_choose_base(struct data_push *push, const struct data_there *there, bool is_good,
	struct bundle_part *part, const char **ret, struct err *err)
{
	bool is_anew = push->way == DATA_ANEW;

	*ret = there->ids.n && !is_anew ? there->ids.v[0] : "-";
	if (is_good && !*part->base)
		return 0;
	if (is_good && (str_eq(part->base, "-") ||
			       (strv_find(&there->ids, part->base) >= 0 && !is_anew))) {
		*ret = part->base;
		return 0;
	}
	bundle_part_done(part);
	*part = (struct bundle_part){0};
	return data_tell(push, "drop", push->key, err);
}

/* The version that is wanted is there: use it, or make it again where it was changed. n_changed:
 * -1: not known. 1: once more. */
static int data_take(struct data_push *push, const struct data_there *there, struct bundle *bundle,
	ptrdiff_t n_changed, struct err *err)
{
	ptrdiff_t at = strv_find(&there->ids, bundle->id);
	AUTO(map_done) struct map lost = {0};
	size_t n = (size_t)n_changed;
	int r = 0;

	if (data_place_is_bucket(&push->place, 0)) {
		r = data_put_bucket(push, bundle, true, err);
		n = 0;
	} else if (n_changed < 0) {
		r = data_find_changes(push, bundle->id, bundle->now, &lost, NULL, &n, err);
	}
	if (r < 0)
		return r;
	/* An unfinished push of something else may have left what only takes room. */
	if (r == 0 && !n && *bundle->part->base)
		r = data_tell(push, "drop", push->key, err);
	/* The version may have been removed while files were read here, even the current one. */
	bool is_seen = data_place_is_bucket(&push->place, 0) && str_eq(there->current, bundle->id);
	if (r == 0 && !n)
		return is_seen ? 0 : data_tell(push, "use", bundle->id, err);
	r = data_check_unused(&push->place, 0, there, (size_t)at, (size_t)at + 1, err);
	bundle->may_replace = true;
	return r < 0 ? r : data_put(push, bundle, err);
}

/* 1: once more. */
static int data_push_once(struct data_push *push, struct err *err)
{
	AUTO(data_there_done) struct data_there there = {0};
	AUTO(bundle_part_done) struct bundle_part part = {0};
	AUTO_VERSION struct version base = {0};
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf text = buf_with(VERSION_TEXT_MAX);
	uint8_t random[DATA_TOKEN_BYTES];
	size_t n_changed = 0;

	random_bytes(random, sizeof(random));
	hex_encode(random, sizeof(random), push->token);
	AUTO_FREE char *part_name = mem_printf("part-%s-%s", push->key, push->token);
	data_words(&words, "begin", push->key);
	strv_add(&words, push->token);
	int r = data_place_do(&push->place, 0, &words, &text, err);
	if (r == 0)
		r = data_scan(push, err);
	if (r < 0)
		return r;
	data_there_parse(&text, &there);
	bool is_good = bundle_part_parse(text.data + there.len, text.len - there.len, &part);
	AUTO(bundle_done)
	struct bundle bundle = {.dir = push->from,
		.now = &push->now,
		.part_name = part_name,
		.host = push->host,
		.chunker = &push->chunker,
		.part = &part};
	r = data_choose_base(push, &there, is_good, &part, &bundle.base_id, err);
	if (r == 0 && !str_eq(bundle.base_id, "-")) {
		r = data_get_base(push, bundle.base_id, &base, err);
		bundle.base = &base;
		if (r == 0 && !str_eq(there.unchanged, bundle.base_id))
			r = data_find_changes(
				push, bundle.base_id, &base, &bundle.lost, &part, &n_changed, err);
	}
	if (r == 0)
		r = data_place_is_bucket(&push->place, 0) ? data_hash_all(push, err)
							  : bundle_hash(&bundle, err);
	if (r == 0 && bundle_is_known(&bundle) && strv_find(&there.ids, bundle.id) >= 0)
		r = data_take(push, &there, &bundle,
			str_eq(bundle.base_id, bundle.id) ? (ptrdiff_t)n_changed : -1, err);
	else if (r == 0)
		r = data_put(push, &bundle, err);
	data_save_stat(push);
	if (r == 0)
		memcpy(push->ret->id, bundle.id, sizeof(bundle.id));
	return r;
}

/* A connection that is cut is opened again. A version that was removed meanwhile (E_DATA_VERSION)
 * is not counted on the next time. */
static int data_push_host(struct data_push *push, struct err *err)
{
	push->way = DATA_SHARES;
	push->is_named = false;
	for (int tries = 1;; tries++) {
		AUTO_ERR struct err error = {0};
		int r = data_push_once(push, &error);
		if (r == 0)
			return 0;
		bool is_passing = (error.code == ERR_NET && error.id != E_HTTP_TLS) ||
				  error.id == E_DATA_VERSION;
		if (r < 0 && (!is_passing || tries == DATA_TRIES))
			return err_move(err, &error);
		if (push->options->note) {
			AUTO_FREE char *text = mem_printf("%s; %s",
				r < 0 ? error.message : "what the place has cannot be used for it",
				r < 0 ? "trying again" : "more is sent");
			push->options->note(push->options->ctx, text);
		}
		r = loop_pause(push->place.target->loop, r < 0 ? DATA_RETRY_MS * tries : 0,
			push->options->interrupted, err);
		if (r < 0)
			return r;
	}
}

int data_push(struct session *session, const struct data_options *options, struct data_pushed *ret,
	struct err *err)
{
	AUTO(data_push_done) struct data_push push = {.options = options, .ret = ret};

	if (gethostname(push.host, sizeof(push.host) - 1) < 0 || !*push.host)
		snprintf(push.host, sizeof(push.host), "unknown");
	chunker_init(&push.chunker);
	int r = data_place_open(session, options->target, options->path, options->note,
		options->ctx, options->interrupted, &push.place, err);
	if (r == 0)
		r = data_find_source(&push, err);
	if (r == 0)
		r = data_find_key(&push, err);
	if (r < 0)
		return r;
	ret->target = mem_strdup(push.place.target->name);
	ret->path = mem_strdup(push.place.paths.v[0]);
	ret->sub_path = TAKE(push.place.sub_path);
	ret->was_there = true;
	for (; r == 0 && push.place.host < data_place_hosts(&push.place); push.place.host++)
		r = data_push_host(&push, err);
	return r;
}

struct json *data_pushed_json(const struct data_pushed *pushed)
{
	struct json *json = json_object();

	json_set_str(json, "schema", "dlrun/data-push/v1");
	json_set_str(json, "target", pushed->target);
	json_set_str(json, "path", pushed->path);
	json_set_str(json, "version", pushed->id);
	json_set_bool(json, "was_there", pushed->was_there);
	json_set_int(json, "files", (int64_t)pushed->n_files);
	json_set_int(json, "bytes", (int64_t)pushed->bytes);
	json_set_int(json, "files_sent", (int64_t)pushed->n_sent);
	json_set_int(json, "bytes_sent", (int64_t)pushed->bytes_sent);
	return json;
}

/*
 * Lists
 */

void data_versions_done(struct data_versions *versions)
{
	vec_foreach (struct data_version, version, &versions->list) {
		free(version->path);
		free(version->host);
	}
	vec_done(&versions->list);
	free(versions->target);
	*versions = (struct data_versions){0};
}

static int data_get_there(
	struct data_place *place, size_t i, struct data_there *ret, struct err *err)
{
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf text = buf_with(VERSION_TEXT_MAX);

	data_words(&words, "list", NULL);
	int r = data_place_do(place, i, &words, &text, err);
	if (r == 0)
		data_there_parse(&text, ret);
	return r;
}

static void data_add_version(struct data_place *place, size_t i, const struct data_there *there,
	size_t k, struct data_versions *ret)
{
	struct data_version version = {
		.is_current = str_eq(there->current, there->ids.v[k]),
		.path = mem_strdup(place->paths.v[i]),
	};

	if (data_place_hosts(place) > 1)
		version.host = mem_strdup(place->target->hosts->v[place->host]);
	snprintf(version.id, sizeof(version.id), "%s", there->ids.v[k]);
	version_summary_parse(there->lines.v[k], &version.summary, NULL);
	*vec_push(&ret->list) = version;
}

/* Calls fn for each path of each host. E_DATA_VERSION only if all return that: hosts may share the
 * place. */
static int data_each(struct session *session, const struct data_options *options, const char *id,
	int (*fn)(struct data_place *place, size_t i, const char *id, struct data_versions *ret,
		struct err *err),
	struct data_versions *ret, struct err *err)
{
	AUTO(data_place_done) struct data_place place = {0};
	AUTO_ERR struct err missing = {0};
	size_t n_done = 0;

	int r = data_place_open(session, options->target, options->path, options->note,
		options->ctx, options->interrupted, &place, err);
	if (r < 0)
		return r;
	ret->target = mem_strdup(place.target->name);
	for (size_t i = 0; i < place.paths.n; i++)
		for (place.host = 0; r == 0 && place.host < data_place_hosts(&place);
			place.host++) {
			AUTO_ERR struct err error = {0};
			r = fn(&place, i, id, ret, &error);
			n_done += r == 0;
			if (r < 0 && error.id != E_DATA_VERSION) {
				r = err_move(err, &error);
			} else if (r < 0) {
				err_done(&missing);
				err_move(&missing, &error);
				r = 0;
			}
		}
	return r == 0 && !n_done && err_is_set(&missing) ? err_move(err, &missing) : r;
}

static int data_list_one(struct data_place *place, size_t i, const char *id UNUSED,
	struct data_versions *ret, struct err *err)
{
	AUTO(data_there_done) struct data_there there = {0};

	int r = data_get_there(place, i, &there, err);
	for (size_t k = 0; r == 0 && k < there.ids.n; k++)
		data_add_version(place, i, &there, k, ret);
	return r;
}

int data_list(struct session *session, const struct data_options *options,
	struct data_versions *ret, struct err *err)
{
	return data_each(session, options, NULL, data_list_one, ret, err);
}

struct json *data_versions_json(const struct data_versions *versions)
{
	struct json *json = json_object(), *list = json_array();

	json_set_str(json, "schema", "dlrun/data/v1");
	json_set_str(json, "target", versions->target);
	vec_foreach (struct data_version, version, &versions->list) {
		struct json *row = json_object();
		char time[CLOCK_TEXT_SIZE];
		clock_format(version->summary.time_ms, time);
		json_set_str(row, "path", version->path);
		if (version->host)
			json_set_str(row, "host", version->host);
		json_set_str(row, "version", version->id);
		json_set_bool(row, "current", version->is_current);
		json_set_int(row, "files", (int64_t)version->summary.n_files);
		json_set_int(row, "bytes", (int64_t)version->summary.bytes);
		json_set_str(row, "pushed_at", time);
		json_set_str(row, "pushed_from", version->summary.host);
		json_add(list, row);
	}
	json_set(json, "versions", list);
	return json;
}

/*
 * Removal
 */

static int data_find_version(const struct data_place *place, size_t i,
	const struct data_there *there, const char *id, size_t *ret, struct err *err)
{
	size_t n = 0;

	for (size_t k = 0; k < there->ids.n; k++) {
		if (!*id || !str_starts(there->ids.v[k], id))
			continue;
		*ret = k;
		n++;
	}
	if (n == 1)
		return 0;
	AUTO_FREE char *shown = str_shown(id);
	err_set(err, E_DATA_VERSION,
		n ? "%s has several versions of %s that begin with '%s'"
		  : "%s has no version of %s that begins with '%s'",
		place->target->name, place->paths.v[i], shown);
	for (size_t k = 0; k < there->ids.n && k < DATA_SHOWN; k++)
		err_evidence(err, "%s@%s%s", place->paths.v[i], there->ids.v[k],
			str_eq(there->current, there->ids.v[k]) ? ", the current one" : "");
	return err_hint(err, "dlrun data ls -t %s", place->target->name);
}

/* err is E_DATA_VERSION: there is no such version, but a bucket may have the rest of one, by a push
 * or a removal that was cut. */
static int data_remove_rest(struct data_place *place, size_t i, const char *id, struct err *err)
{
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf out = {0};
	AUTO_ERR struct err error = {0};

	if (!data_place_is_bucket(place, i) || !version_id_is(id))
		return -(int)err->code;
	data_words(&words, "rm", id);
	int r = data_place_do(place, i, &words, &out, &error);
	if (r < 0 && error.id == E_DATA_VERSION)
		return r;
	err_clear(err);
	return r < 0 ? err_move(err, &error) : 0;
}

/* The versions from first to end; all: "all" or NULL, as the script has it. Its words have a limit;
 * in a bucket each time lists all objects. */
static int data_remove_range(struct data_place *place, size_t i, const struct data_there *there,
	const char *all, size_t first, size_t end, struct data_versions *ret, struct err *err)
{
	size_t at_once = data_place_is_bucket(place, i) ? SIZE_MAX : DATA_REMOVED_AT_ONCE;
	AUTO_BUF struct buf out = buf_with(DATA_SAID_MAX);
	int r = 0;

	do {
		AUTO_STRV struct strv words = {0};
		size_t last = end - first < at_once ? end : first + at_once;

		data_words(&words, "rm", all);
		for (size_t k = first; k < last; k++)
			strv_add(&words, there->ids.v[k]);
		r = data_place_do(place, i, &words, &out, err);
		for (; r == 0 && first < last; first++)
			data_add_version(place, i, there, first, ret);
	} while (r == 0 && first < end);
	ret->has_rest |= out.len > 0;
	return r;
}

/* E_DATA_VERSION: it is not there, or is not one. */
static int data_remove_one(struct data_place *place, size_t i, const char *id,
	struct data_versions *ret, struct err *err)
{
	AUTO(data_there_done) struct data_there there = {0};
	size_t at = 0;

	int r = data_get_there(place, i, &there, err);
	if (r == 0 && id)
		r = data_find_version(place, i, &there, id, &at, err);
	if (r < 0)
		return err->id == E_DATA_VERSION ? data_remove_rest(place, i, id, err) : r;
	size_t first = id ? at : 0, end = id ? at + 1 : there.ids.n;
	r = data_check_unused(place, i, &there, first, end, err);
	return r < 0 ? r
		     : data_remove_range(place, i, &there, id ? NULL : "all", first, end, ret, err);
}

int data_remove(struct session *session, const struct data_options *options, const char *id,
	struct data_versions *ret, struct err *err)
{
	return data_each(session, options, id, data_remove_one, ret, err);
}
