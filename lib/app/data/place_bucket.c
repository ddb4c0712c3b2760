/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/data/place.h"
#include "app/data/scan.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "net/s3/s3.h"

/*
 * Versions in a bucket: plain objects PATH@d-HEX/NAME; PATH@d-HEX.list, which comes last and goes
 * first, makes them a version, and PATH@current names the one that runs get.
 *
 * A push counts on objects that a removal may be about to delete. So a push puts
 * PATH@d-HEX.push-KEY before it looks what is there, and a removal PATH@d-HEX.rm-TOKEN
 * (PATH@rm-TOKEN: of all) before it deletes the former, then the lists, then the rest. A push does
 * not begin beside a removal, and takes its list back where what it has put is gone at the end: the
 * removal either finds that, or the list.
 *
 * No two of them share a mark, and nobody can tell one that was cut from a slow one. So a removal
 * deletes those of older ones at its beginning, too: of several that see each other the newest goes
 * on. One whose mark is gone deletes no more than what it has begun. Servers tell times in seconds:
 * two of the same second may both go on, and no push begins until both have ended.
 */

enum {
	BUCKET_AT_ONCE = 64, /* round trips decide how long many small files take */
	BUCKET_LINE_MAX = 512,
	BUCKET_LARGE_AT_ONCE = 4, /* files in parts, of which several go at once, too */
	BUCKET_VERSIONS_MAX = 10 * 1000,
	BUCKET_NOTES_MAX = 8 << 20,
	BUCKET_SENT = 16 << 20, /* a part of what is sent beside what is copied */
	BUCKET_TOKEN_BYTES = 8,
	BUCKET_TAKE_BACK_MS = 10 * 1000,
	BUCKET_DELETED_AT_ONCE = 1024, /* until a removal looks for its mark again */
};
#define BUCKET_COPY_MAX  (UINT64_C(5) << 30)
#define BUCKET_PIECE_MAX (UINT64_C(1) << 30)
#define BUCKET_REMOVAL   "rm-" /* in front of a token */

struct place_bucket {
	struct http *http;
	struct s3 *s3;
};

static int bucket_open(struct data_place *place, struct err *err)
{
	const char *const *env = place->session->env.env;
	struct http_options options = http_options_of(place->target->loop, env);

	if (place->bucket)
		return 0;
	/* Keys are about to be here. */
	os_protect_memory();
	options.n_connections = BUCKET_AT_ONCE;
	place->bucket = mem_alloc(1, sizeof(*place->bucket));
	place->bucket->http = http_new(&options);
	return s3_open(options.loop, place->bucket->http, env, &place->bucket->s3, err);
}

void place_bucket_close(struct place_bucket *bucket)
{
	s3_free(bucket->s3);
	http_free(bucket->http);
	free(bucket);
}

bool data_place_is_bucket(const struct data_place *place, size_t i)
{
	return str_starts(place->dirs.v[i], "s3://");
}

/*
 * Calls, one or many at once
 */

struct bucket_slot {
	struct bucket_batch *batch;
	struct s3_call *call;
	size_t job;
	int fd;
	struct buf data; /* of a get */
	/* Of a put in parts. */
	char *key;
	bool has_notes, has_noted, is_whole;
};

/* Jobs 0 to n - 1, at_once (0: BUCKET_AT_ONCE) of them at the same time. start: 0 with slot->call
 * set, or 1: there is nothing to be done for it. */
struct bucket_batch {
	struct s3 *s3;
	struct s3_address address;
	size_t at_once, n, next, n_open;
	int (*start)(struct bucket_batch *batch, struct bucket_slot *slot, struct err *err);
	void (*ended)(struct bucket_batch *batch, struct bucket_slot *slot);
	/* Whether it goes on without the job, which failed; or NULL. */
	bool (*failed)(
		struct bucket_batch *batch, struct bucket_slot *slot, const struct err *error);
	void *ctx;
	size_t data_max;
	struct loop_wait wait;
	struct err error;
	struct bucket_slot slots[BUCKET_AT_ONCE];
};

static void bucket_slot_done(struct bucket_slot *slot)
{
	if (slot->fd > 0)
		close(slot->fd);
	buf_done(&slot->data);
	free(slot->key);
	*slot = (struct bucket_slot){.batch = slot->batch};
}

static void bucket_go_on(struct bucket_batch *batch)
{
	size_t n = batch->at_once ? batch->at_once : BUCKET_AT_ONCE;

	for (size_t i = 0; i < n; i++) {
		struct bucket_slot *slot = &batch->slots[i];
		while (!slot->call && batch->next < batch->n && !err_is_set(&batch->error)) {
			slot->batch = batch;
			slot->job = batch->next++;
			buf_init(&slot->data, batch->data_max);
			int r = batch->start(batch, slot, &batch->error);
			if (r != 0)
				bucket_slot_done(slot);
			else
				batch->n_open++;
		}
	}
	if (batch->n_open == 0)
		loop_wait_done(&batch->wait);
}

static int bucket_on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct bucket_slot *slot = ctx;

	buf_add(&slot->data, data, len);
	return buf_check(&slot->data, "what the bucket has of a version", err);
}

static int bucket_on_done(void *ctx, struct err *error, struct err *err UNUSED)
{
	struct bucket_slot *slot = ctx;
	struct bucket_batch *batch = slot->batch;

	slot->call = NULL;
	batch->n_open--;
	bool is_lost = err_is_set(error) && !(batch->failed && batch->failed(batch, slot, error));
	if (is_lost && !err_is_set(&batch->error))
		err_move(&batch->error, error);
	else if (!err_is_set(error) && batch->ended)
		batch->ended(batch, slot);
	bucket_slot_done(slot);
	bucket_go_on(batch);
	return 0;
}

static int bucket_run(const struct data_place *place, struct bucket_batch *batch, struct err *err)
{
	batch->s3 = place->bucket->s3;
	batch->wait = (struct loop_wait){
		.loop = place->target->loop, .n_open = 1, .interrupted = place->interrupted};
	bucket_go_on(batch);
	int r = loop_wait_run(&batch->wait, err);
	for (size_t i = 0; i < BUCKET_AT_ONCE; i++) {
		s3_cancel(batch->slots[i].call);
		bucket_slot_done(&batch->slots[i]);
	}
	if (r == 0 && err_is_set(&batch->error))
		r = err_move(err, &batch->error);
	err_done(&batch->error);
	return r;
}

/* A call that stands alone. */
struct bucket_one {
	const char *key, *text; /* text: is put; or NULL */
	size_t len;
	struct buf *out;
	struct s3_objects *objects;
	bool is_flat;
};

static int bucket_start_one(
	struct bucket_batch *batch, struct bucket_slot *slot, struct err *err UNUSED)
{
	const struct bucket_one *one = batch->ctx;
	const char *bucket = batch->address.bucket;
	const struct s3_put put = {.bucket = bucket,
		.key = one->key,
		.data = one->text,
		.size = one->len,
		.done = bucket_on_done,
		.ctx = slot};
	const struct s3_get get = {.bucket = bucket,
		.key = one->key,
		.data = bucket_on_data,
		.done = bucket_on_done,
		.ctx = slot};

	if (one->objects && one->is_flat)
		slot->call = s3_list_flat(batch->s3, bucket, one->key, BUCKET_VERSIONS_MAX,
			one->objects, bucket_on_done, slot);
	else if (one->objects)
		slot->call = s3_list(batch->s3, bucket, one->key, VERSION_ENTRIES_MAX, one->objects,
			bucket_on_done, slot);
	else if (one->text)
		slot->call = s3_put(batch->s3, &put);
	else if (one->out)
		slot->call = s3_get(batch->s3, &get);
	else
		slot->call = s3_delete(batch->s3, bucket, one->key, bucket_on_done, slot);
	return 0;
}

static void bucket_ended_one(struct bucket_batch *batch, struct bucket_slot *slot)
{
	const struct bucket_one *one = batch->ctx;

	if (one->out)
		buf_add(one->out, slot->data.data, slot->data.len);
}

static int bucket_do(const struct data_place *place, const struct s3_address *address,
	struct bucket_one *one, struct err *err)
{
	struct bucket_batch batch = {.address = *address,
		.n = 1,
		.start = bucket_start_one,
		.ended = bucket_ended_one,
		.ctx = one,
		.data_max = one->out ? one->out->max : 0};
	int r = bucket_run(place, &batch, err);

	return r == 0 && one->out ? buf_check(one->out, "the list of a version", err) : r;
}

/*
 * Versions
 */

struct bucket_version {
	char id[VERSION_ID_SIZE];
	int64_t mtime_ms;
	char *line; /* or NULL */
};
struct bucket_versions {
	struct VEC_OF(struct bucket_version) list; /* the newest first */
	char current[VERSION_ID_SIZE];             /* its list may be gone */
	struct s3_objects marks;                   /* of pushes and removals; no ETags */
};

static void bucket_versions_done(struct bucket_versions *versions)
{
	vec_foreach (struct bucket_version, version, &versions->list)
		free(version->line);
	vec_done(&versions->list);
	s3_objects_done(&versions->marks);
}

static int bucket_by_time(const void *a, const void *b)
{
	const struct bucket_version *one = a, *other = b;

	if (one->mtime_ms != other->mtime_ms)
		return one->mtime_ms > other->mtime_ms ? -1 : 1;
	return strcmp(one->id, other->id);
}

static int bucket_start_line(
	struct bucket_batch *batch, struct bucket_slot *slot, struct err *err UNUSED)
{
	const struct bucket_versions *versions = batch->ctx;
	AUTO_FREE char *key =
		mem_printf("%s@%s.list", batch->address.key, versions->list.v[slot->job].id);
	const struct s3_get get = {.bucket = batch->address.bucket,
		.key = key,
		.max = BUCKET_LINE_MAX,
		.data = bucket_on_data,
		.done = bucket_on_done,
		.ctx = slot};

	slot->call = s3_get(batch->s3, &get);
	return 0;
}

static void bucket_ended_line(struct bucket_batch *batch, struct bucket_slot *slot)
{
	const struct bucket_versions *versions = batch->ctx;
	const char *text = slot->data.len ? slot->data.data : "";

	versions->list.v[slot->job].line = mem_strndup(text, strcspn(text, "\n"));
}

/* Behind "PATH@" or "PATH@d-HEX.": other objects may begin like one. */
static bool bucket_is_removal(const char *name)
{
	const char *token = name + strlen(BUCKET_REMOVAL);

	return str_starts(name, BUCKET_REMOVAL) && strlen(token) == 2 * BUCKET_TOKEN_BYTES &&
	       strspn(token, "0123456789abcdef") == 2 * BUCKET_TOKEN_BYTES;
}

static void bucket_take(
	struct bucket_versions *versions, const struct s3_object *object, const char *name)
{
	const char *dot = strchr(name, '.');
	AUTO_FREE char *id = mem_strndup(name, dot ? (size_t)(dot - name) : 0);

	if (bucket_is_removal(name) ||
		(version_id_is(id) && (bucket_is_removal(dot + 1) || str_starts(dot, ".push-"))))
		*vec_push(&versions->marks) = (struct s3_object){
			.key = mem_strdup(object->key), .mtime_ms = object->mtime_ms};
	if (!version_id_is(id) || !str_eq(dot, ".list"))
		return;
	struct bucket_version *version = vec_push(&versions->list);
	*version = (struct bucket_version){.mtime_ms = object->mtime_ms};
	memcpy(version->id, id, sizeof(version->id));
}

static int bucket_find(const struct data_place *place, const struct s3_address *address,
	struct bucket_versions *ret, struct err *err)
{
	AUTO_S3_OBJECTS struct s3_objects objects = {0};
	AUTO_FREE char *prefix = mem_printf("%s@", address->key);
	AUTO_FREE char *current = mem_printf("%scurrent", prefix);
	struct bucket_one list = {.key = prefix, .objects = &objects, .is_flat = true};
	AUTO_BUF struct buf text = buf_with(BUCKET_LINE_MAX);
	AUTO_ERR struct err error = {0};
	bool has_current = false;

	int r = bucket_do(place, address, &list, err);
	for (size_t i = 0; r == 0 && i < objects.n; i++) {
		has_current |= str_eq(objects.v[i].key, current);
		bucket_take(ret, &objects.v[i], objects.v[i].key + strlen(prefix));
	}
	vec_sort(&ret->list, bucket_by_time);
	struct bucket_one get = {.key = current, .out = &text};
	/* A removal may have deleted it meanwhile. */
	if (r == 0 && has_current && bucket_do(place, address, &get, &error) < 0 &&
		error.id != E_S3_NOT_FOUND)
		r = err_move(err, &error);
	AUTO_FREE char *id = mem_strndup(text.data, strcspn(text.data, "\n"));
	if (r == 0 && version_id_is(id))
		memcpy(ret->current, id, sizeof(ret->current));
	return r;
}

static const struct s3_object *bucket_find_mark(
	const struct bucket_versions *versions, const char *mark)
{
	vec_foreach (struct s3_object, object, &versions->marks)
		if (str_eq(object->key, mark))
			return object;
	return NULL;
}

/* As the script prints them. */
static int bucket_list(const struct data_place *place, const struct s3_address *address,
	struct buf *out, struct err *err)
{
	AUTO(bucket_versions_done) struct bucket_versions versions = {0};
	struct bucket_batch batch = {.address = *address,
		.start = bucket_start_line,
		.ended = bucket_ended_line,
		.ctx = &versions,
		.data_max = 2 * BUCKET_LINE_MAX};

	int r = bucket_find(place, address, &versions, err);
	batch.n = versions.list.n;
	if (r == 0)
		r = bucket_run(place, &batch, err);
	if (r < 0)
		return r;
	vec_foreach (struct bucket_version, version, &versions.list)
		if (str_eq(version->id, versions.current))
			buf_addf(out, "current %s\n", version->id);
	vec_foreach (struct bucket_version, version, &versions.list)
		buf_addf(out, "version %s %s\n", version->id, version->line ? version->line : "");
	return 0;
}

static int bucket_use(const struct data_place *place, const struct s3_address *address,
	const char *id, struct err *err)
{
	AUTO_FREE char *key = mem_printf("%s@current", address->key);
	struct bucket_one put = {.key = key, .text = id, .len = strlen(id)};

	return bucket_do(place, address, &put, err);
}

/*
 * Removal
 */

struct bucket_removal {
	const char *id;  /* or NULL: what is left of pushes, too */
	struct strv ids; /* the versions */
	struct strv kept;
	char *mark;
};

static void bucket_removal_done(struct bucket_removal *removal)
{
	strv_done(&removal->ids);
	strv_done(&removal->kept);
	free(removal->mark);
}

struct bucket_emptying {
	const struct strv *kept;
	struct s3_objects objects;
	size_t n_deleted;
};

static int bucket_start_delete(
	struct bucket_batch *batch, struct bucket_slot *slot, struct err *err UNUSED)
{
	struct bucket_emptying *emptying = batch->ctx;
	const char *key = emptying->objects.v[slot->job].key;
	const char *name = key + strlen(batch->address.key) + 1;
	AUTO_FREE char *id = mem_strndup(name, strcspn(name, "/"));

	if (!version_id_is(id) || strv_find(emptying->kept, id) >= 0)
		return 1;
	emptying->n_deleted++;
	slot->call = s3_delete(batch->s3, batch->address.bucket, key, bucket_on_done, slot);
	return 0;
}

static int bucket_set_stopped(const struct s3_address *address, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(address->key);

	return err_set(err, E_DATA_PLACE,
		"another removal of s3://%s/%s has begun, and goes on with it", address->bucket,
		shown);
}

static int bucket_check_mark(const struct data_place *place, const struct s3_address *address,
	const char *mark, struct err *err)
{
	AUTO_S3_OBJECTS struct s3_objects objects = {0};
	struct bucket_one list = {.key = mark, .objects = &objects, .is_flat = true};
	int r = bucket_do(place, address, &list, err);

	return r < 0 || objects.n ? r : bucket_set_stopped(address, err);
}

/* Objects of versions behind the prefix; returns 1 if there were any. */
static int bucket_empty(const struct data_place *place, const struct s3_address *address,
	const char *prefix, const struct bucket_removal *removal, struct err *err)
{
	for (size_t n_deleted = 0;;) {
		AUTO_ERR struct err error = {0};
		struct bucket_emptying emptying = {.kept = &removal->kept};
		struct bucket_one list = {.key = prefix, .objects = &emptying.objects};
		struct bucket_batch batch = {
			.address = *address, .start = bucket_start_delete, .ctx = &emptying};

		int listed = bucket_do(place, address, &list, &error), r = 0;
		size_t n = listed == 0 || error.id == E_DATA_LIMIT ? emptying.objects.n : 0;
		while (r == 0 && batch.n < n) {
			r = bucket_check_mark(place, address, removal->mark, err);
			batch.n = n - batch.n < BUCKET_DELETED_AT_ONCE
					  ? n
					  : batch.n + BUCKET_DELETED_AT_ONCE;
			if (r == 0)
				r = bucket_run(place, &batch, err);
		}
		s3_objects_done(&emptying.objects);
		n_deleted += emptying.n_deleted;
		if (r < 0 || listed == 0)
			return r < 0 ? r : n_deleted > 0;
		/* More than can be listed at once: the others come when these are gone. */
		if (error.id != E_DATA_LIMIT || !emptying.n_deleted)
			return err_move(err, &error);
	}
}

static int bucket_delete(const struct data_place *place, const struct s3_address *address,
	const char *key, struct err *err)
{
	struct bucket_one remove = {.key = key};

	return bucket_do(place, address, &remove, err);
}

static int bucket_remove_list(const struct data_place *place, const struct s3_address *address,
	const char *id, struct err *err)
{
	AUTO_FREE char *key = mem_printf("%s@%s.list", address->key, id);

	return bucket_delete(place, address, key, err);
}

/* Another version becomes current where one of these is: the newest of the others. */
static int bucket_use_next(const struct data_place *place, const struct s3_address *address,
	const struct bucket_versions *versions, const struct strv *ids, struct err *err)
{
	AUTO_FREE char *current = mem_printf("%s@current", address->key);
	const char *next = NULL;

	for (size_t i = versions->list.n; i-- > 0;)
		if (strv_find(ids, versions->list.v[i].id) < 0)
			next = versions->list.v[i].id;
	if (!next)
		return bucket_delete(place, address, current, err);
	return strv_find(ids, versions->current) < 0 ? 0 : bucket_use(place, address, next, err);
}

static bool bucket_is_newer(const struct s3_object *one, const struct s3_object *other)
{
	return one->mtime_ms != other->mtime_ms ? one->mtime_ms > other->mtime_ms
						: strcmp(one->key, other->key) > 0;
}

/* Of the version, or of all (id: NULL): pushes and older removals under way lose what they look
 * for. Returns how many there were. */
static int bucket_stop_others(const struct data_place *place, const struct s3_address *address,
	const char *id, const char *mark, struct err *err)
{
	AUTO(bucket_versions_done) struct bucket_versions versions = {0};
	AUTO_FREE char *theirs = mem_printf("%s@%s%s", address->key, id ? id : "", id ? "." : "");
	int n = 0;

	int r = bucket_find(place, address, &versions, err);
	const struct s3_object *own = bucket_find_mark(&versions, mark);
	if (r < 0 || !own)
		return r < 0 ? r : bucket_set_stopped(address, err);
	vec_foreach (struct s3_object, other, &versions.marks) {
		bool is_push = strstr(other->key + strlen(address->key) + 1, ".push-");
		if (r < 0 || !str_starts(other->key, theirs) ||
			(!is_push && !bucket_is_newer(own, other)))
			continue;
		r = bucket_delete(place, address, other->key, err);
		n++;
	}
	return r < 0 ? r : n;
}

/* The versions are none then. Returns how many there were, with pushes and removals under way.
 * *ret_begun: a list may be gone. */
static int bucket_unmake(const struct data_place *place, const struct s3_address *address,
	struct bucket_removal *removal, bool *ret_begun, struct err *err)
{
	AUTO(bucket_versions_done) struct bucket_versions versions = {0};
	int n = bucket_stop_others(place, address, removal->id, removal->mark, err);

	/* A push that has ended in between has a list now, and keeps what it has said. */
	int r = n < 0 ? n : bucket_find(place, address, &versions, err);
	if (r == 0)
		r = bucket_use_next(place, address, &versions, &removal->ids, err);
	vec_foreach (struct bucket_version, version, &versions.list) {
		if (strv_find(&removal->ids, version->id) < 0) {
			strv_add(&removal->kept, version->id);
			continue;
		}
		if (r < 0)
			continue;
		r = bucket_remove_list(place, address, version->id, err);
		*ret_begun |= r == 0 || err->id != E_S3_DENIED;
		n++;
	}
	return r < 0 ? r : n;
}

static int bucket_on_limit(void *ctx, struct err *err UNUSED)
{
	*(volatile int *)ctx = 1;
	return 0;
}

/* The mark of a removal that has not begun would keep everybody from pushing. Nor does it stay
 * behind an interrupt. */
static void bucket_take_back(
	const struct data_place *place, const struct s3_address *address, const char *mark)
{
	struct data_place calm = *place;
	struct loop *loop = place->target->loop;
	volatile int is_over = 0;
	AUTO_ERR struct err ignored = {0};

	calm.interrupted = &is_over;
	struct loop_timer *timer = loop_add_timer(loop, clock_ms() + BUCKET_TAKE_BACK_MS,
		bucket_on_limit, (void *)(uintptr_t)&is_over);
	bucket_delete(&calm, address, mark, &ignored);
	if (!is_over)
		loop_remove_timer(loop, timer);
}

/* Returns what bucket_unmake does. A login that may not delete leaves no mark. */
static int bucket_mark(const struct data_place *place, const struct s3_address *address,
	struct bucket_removal *removal, struct err *err)
{
	AUTO_FREE char *none = mem_printf("%s-", removal->mark); /* no object has this key */
	struct bucket_one begin = {.key = removal->mark, .text = "", .len = 0};
	bool has_begun = false;

	int n = bucket_delete(place, address, none, err);
	if (n < 0)
		return n;
	n = bucket_do(place, address, &begin, err);
	if (n == 0)
		n = bucket_unmake(place, address, removal, &has_begun, err);
	if (n < 0 && !has_begun)
		bucket_take_back(place, address, removal->mark);
	return n;
}

/* words as for the script: rm ID, or rm all ID... */
static int bucket_remove(const struct data_place *place, const struct s3_address *address,
	const struct strv *words, struct err *err)
{
	AUTO(bucket_removal_done) struct bucket_removal removal = {0};
	bool is_all = str_eq(words->v[1], "all");
	uint8_t bytes[BUCKET_TOKEN_BYTES];
	char token[2 * BUCKET_TOKEN_BYTES + 1];

	for (size_t i = is_all ? 2 : 1; i < words->n; i++)
		strv_add(&removal.ids, words->v[i]);
	const char *id = removal.id = is_all ? NULL : words->v[1];
	random_bytes(bytes, sizeof(bytes));
	hex_encode(bytes, sizeof(bytes), token);
	AUTO_FREE char *prefix =
		id ? mem_printf("%s@%s/", address->key, id) : mem_printf("%s@d-", address->key);
	removal.mark = mem_printf(
		"%s@%s%s" BUCKET_REMOVAL "%s", address->key, id ? id : "", id ? "." : "", token);
	int n = bucket_mark(place, address, &removal, err);
	int r = n < 0 ? n : bucket_empty(place, address, prefix, &removal, err);
	bool is_none = id && !n && !r;
	if (r >= 0)
		r = bucket_check_mark(place, address, removal.mark, err);
	if (r == 0)
		r = bucket_delete(place, address, removal.mark, err);
	return r < 0 ? r : is_none ? DATA_NO_VERSION : 0;
}

int place_bucket_run(struct data_place *place, size_t i, const struct strv *words, struct buf *out,
	struct err *err)
{
	AUTO_S3_ADDRESS struct s3_address address = {0};
	const char *verb = words->v[0], *word = words->n > 1 ? words->v[1] : NULL;

	int r = bucket_open(place, err);
	if (r == 0)
		r = s3_address_parse(place->dirs.v[i], &address, err);
	if (r < 0)
		return r;
	if (str_eq(verb, "begin") || str_eq(verb, "list"))
		return bucket_list(place, &address, out, err);
	if (str_eq(verb, "use"))
		return bucket_use(place, &address, word, err);
	if (str_eq(verb, "rm"))
		return bucket_remove(place, &address, words, err);
	if (!str_eq(verb, "show"))
		return 0;
	AUTO_FREE char *key = mem_printf("%s@%s.list", address.key, word);
	struct bucket_one get = {.key = key, .out = out};
	return bucket_do(place, &address, &get, err);
}

/*
 * A new version
 */

struct bucket_file {
	const struct version_entry *entry;
	const char *from; /* relative key of an object of base that has the same content; or NULL */
	struct VEC_OF(struct s3_piece) pieces;
	uint64_t sent;
};

struct bucket_files VEC_OF(struct bucket_file);
struct bucket_push {
	struct data_place *place;
	size_t i; /* of its paths */
	struct bucket_put *put;
	const struct s3_address *address;
	char *base_prefix; /* "PATH@d-HEX/" */
	struct arena arena;
	struct bucket_files small, large, *now; /* now: what is being sent */
	uint64_t total, done;
};

static void bucket_plan_forget(struct bucket_push *push)
{
	vec_foreach (struct bucket_file, file, &push->large)
		vec_done(&file->pieces);
	vec_done(&push->small);
	vec_done(&push->large);
}

static void bucket_push_done(struct bucket_push *push)
{
	bucket_plan_forget(push);
	arena_done(&push->arena);
	free(push->base_prefix);
}

static char *bucket_base_key(struct bucket_push *push, const struct version_entry *entry)
{
	AUTO_FREE char *key = mem_printf("%s%s", push->base_prefix, entry->path);

	return arena_strdup(&push->arena, key);
}

static void bucket_add_piece(
	struct bucket_file *file, const char *from, uint64_t offset, uint64_t len)
{
	struct s3_piece *last = file->pieces.n ? &file->pieces.v[file->pieces.n - 1] : NULL;

	if (!len)
		return;
	if (last && last->from == from && (!from || last->offset + last->len == offset))
		last->len += len;
	else
		*vec_push(&file->pieces) = (struct s3_piece){from, offset, len};
}

/* Nothing of an object that is put in parts is below S3_PIECE_MIN but its end: small pieces that
 * could be copied are sent, and a sent one takes of the copied one behind it what it lacks. */
static void bucket_round(struct bucket_file *file)
{
	struct bucket_file rounded = {0};

	for (size_t i = 0; i < file->pieces.n; i++) {
		struct s3_piece *piece = &file->pieces.v[i];
		struct s3_piece *last =
			rounded.pieces.n ? &rounded.pieces.v[rounded.pieces.n - 1] : NULL;
		if (last && !last->from && piece->from && last->len < S3_PIECE_MIN) {
			uint64_t lack = S3_PIECE_MIN - last->len;
			uint64_t taken = lack < piece->len ? lack : piece->len;
			last->len += taken;
			piece->offset += taken;
			piece->len -= taken;
		}
		bool is_copied = piece->from && piece->len >= S3_PIECE_MIN;
		bucket_add_piece(&rounded, is_copied ? piece->from : NULL,
			is_copied ? piece->offset : 0, piece->len);
	}
	vec_done(&file->pieces);
	file->pieces = rounded.pieces;
}

/* Into parts of a size that can be repeated. */
static void bucket_split(struct bucket_file *file)
{
	struct bucket_file split = {0};

	file->sent = 0;
	for (size_t i = 0; i < file->pieces.n; i++) {
		const struct s3_piece *piece = &file->pieces.v[i];
		uint64_t least = file->entry->size / (S3_PARTS_MAX / 2) + 1;
		uint64_t most = piece->from           ? BUCKET_PIECE_MAX
				: least < BUCKET_SENT ? BUCKET_SENT
						      : least;
		uint64_t n = (piece->len + most - 1) / most, each = (piece->len + n - 1) / n;
		for (uint64_t at = 0; at < piece->len; at += each)
			*vec_push(&split.pieces) = (struct s3_piece){piece->from,
				piece->offset + (piece->from ? at : 0),
				piece->len - at < each ? piece->len - at : each};
		file->sent += piece->from ? 0 : piece->len;
	}
	vec_done(&file->pieces);
	file->pieces = split.pieces;
}

/* The chunks that the file of base has, too. */
static void bucket_match(
	struct bucket_push *push, struct bucket_file *file, const struct version_entry *before)
{
	const char *from = bucket_base_key(push, before);
	uint64_t *offsets = arena_alloc(&push->arena, before->n_chunks * sizeof(*offsets));
	struct map known = {0};
	uint64_t at = 0;

	for (size_t i = 0; i < before->n_chunks; i++) {
		AUTO_FREE char *key = mem_printf("%llx %u",
			(unsigned long long)before->chunks[i].hash, before->chunks[i].len);
		offsets[i] = at;
		at += before->chunks[i].len;
		map_put(&known, key, &offsets[i]);
	}
	for (size_t i = 0; i < file->entry->n_chunks; i++) {
		const struct version_chunk *chunk = &file->entry->chunks[i];
		AUTO_FREE char *key =
			mem_printf("%llx %u", (unsigned long long)chunk->hash, chunk->len);
		const uint64_t *offset = map_get(&known, key);
		bucket_add_piece(file, offset ? from : NULL, offset ? *offset : 0, chunk->len);
	}
	map_done(&known);
	bucket_round(file);
	bucket_split(file);
	/* Then one upload with nothing copied is as good. */
	if (file->sent > file->entry->size / 4 * 3 || file->pieces.n > S3_PARTS_MAX) {
		vec_done(&file->pieces);
		file->sent = file->entry->size;
	}
}

static void bucket_plan_file(
	struct bucket_push *push, const struct map *contents, const struct version_entry *entry)
{
	struct bucket_file file = {.entry = entry, .sent = entry->size};
	const struct version *base = push->put->base;
	const struct version_entry *before = base ? version_find(base, entry->path) : NULL;
	char hex[SHA256_HEX_SIZE];

	hex_encode(entry->sha, SHA256_SIZE, hex);
	const struct version_entry *same = map_get(contents, hex);
	if (same && same->size == entry->size) {
		file.from = bucket_base_key(push, same);
		file.sent = 0;
		if (entry->size > BUCKET_COPY_MAX) {
			bucket_add_piece(&file, file.from, 0, entry->size);
			bucket_split(&file);
		}
	} else if (before && before->n_chunks && entry->size > S3_SINGLE_MAX) {
		bucket_match(push, &file, before);
	}
	push->put->n_sent += !file.from;
	push->total += file.sent;
	bool is_large = file.pieces.n || (file.sent > S3_SINGLE_MAX);
	if (is_large)
		*vec_push(&push->large) = file;
	else
		*vec_push(&push->small) = file;
}

static int bucket_check_name(
	const struct bucket_push *push, const struct version_entry *entry, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(entry->path);

	if (strlen(push->address->key) + strlen(entry->path) + VERSION_ID_SIZE + 2 > S3_KEY_MAX)
		return err_set(err, E_RUN_DATA, "the name of %s is too long for S3", shown);
	return str_is_utf8(entry->path, strlen(entry->path))
		       ? 0
		       : err_set(err, E_RUN_DATA, "the name of %s is not UTF-8, as S3 wants it",
				 shown);
}

/* Objects of a push that was cut are there: an object is whole or not there, and its key has the
 * version's digest in it. */
static int bucket_plan(struct bucket_push *push, const char *prefix, struct err *err)
{
	AUTO_S3_OBJECTS struct s3_objects objects = {0};
	struct bucket_one list = {.key = prefix, .objects = &objects};
	const struct version *base = push->put->base;
	struct map there = {0}, contents = {0};

	int r = bucket_do(push->place, push->address, &list, err);
	for (size_t i = 0; r == 0 && i < objects.n; i++)
		map_put(&there, objects.v[i].key + strlen(prefix), &objects.v[i]);
	for (size_t i = 0; base && i < base->entries.n; i++) {
		char hex[SHA256_HEX_SIZE];
		hex_encode(base->entries.v[i].sha, SHA256_SIZE, hex);
		if (base->entries.v[i].kind == 'f')
			map_put(&contents, hex, &base->entries.v[i]);
	}
	for (size_t i = 0; r == 0 && i < push->put->now->entries.n; i++) {
		const struct version_entry *entry = &push->put->now->entries.v[i];
		if (entry->kind != 'f')
			continue;
		const struct s3_object *object = map_get(&there, entry->path);
		r = bucket_check_name(push, entry, err);
		if (r == 0 && !(object && object->size == entry->size))
			bucket_plan_file(push, &contents, entry);
	}
	map_done(&there);
	map_done(&contents);
	return r;
}

static void bucket_report(struct bucket_push *push, uint64_t sent)
{
	push->done += sent;
	if (push->put->progress)
		push->put->progress(push->put->ctx, push->done, push->total);
}

static const struct bucket_file *bucket_of_slot(const struct bucket_slot *slot)
{
	const struct bucket_push *push = slot->batch->ctx;

	return &push->now->v[slot->job];
}

static int bucket_check(void *ctx, const char *sha256, struct err *err)
{
	const struct bucket_slot *slot = ctx;
	const struct bucket_push *push = slot->batch->ctx;
	const struct version_entry *entry = bucket_of_slot(slot)->entry;
	AUTO_FREE char *full = fs_join(push->put->dir, entry->path);

	return scan_check(slot->fd, full, entry, sha256, err);
}

/* The file with what has arrived of a large one. The caller frees. */
static char *bucket_notes_path(const struct bucket_slot *slot)
{
	const struct bucket_push *push = slot->batch->ctx;
	uint8_t sha[SHA256_SIZE];
	char hex[SHA256_HEX_SIZE];

	digest_sha256(slot->key, strlen(slot->key), sha);
	hex_encode(sha, sizeof(sha), hex);
	return mem_printf("%s/%.16s", push->put->notes, hex);
}

static void bucket_on_noted(void *ctx, const char *resume)
{
	struct bucket_slot *slot = ctx;
	AUTO_FREE char *text = mem_printf("%s\n%s", slot->key, resume);
	AUTO_FREE char *path = bucket_notes_path(slot);

	slot->has_noted = true;
	fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, NULL);
}

static int bucket_start_file(struct bucket_batch *batch, struct bucket_slot *slot, struct err *err)
{
	struct bucket_push *push = batch->ctx;
	const struct bucket_file *file = bucket_of_slot(slot);
	AUTO_FREE char *full = fs_join(push->put->dir, file->entry->path);
	AUTO_BUF struct buf notes = {0};

	slot->key = mem_printf("%s@%s/%s", push->address->key, push->put->id, file->entry->path);
	if (file->from && !file->pieces.n) {
		slot->call = s3_copy(batch->s3, batch->address.bucket, slot->key, file->from,
			bucket_on_done, slot);
		return 0;
	}
	int r = scan_open(full, file->entry, &slot->fd, err);
	if (r < 0)
		return r;
	AUTO_FREE char *path = bucket_notes_path(slot);
	size_t len = strlen(slot->key);
	slot->has_notes = push->now == &push->large &&
			  fs_read(path, BUCKET_NOTES_MAX, &notes, NULL, NULL) == 0 &&
			  str_starts(notes.data, slot->key) && notes.data[len] == '\n';
	const struct s3_put put = {.bucket = batch->address.bucket,
		.key = slot->key,
		.fd = slot->fd,
		.size = file->entry->size,
		.resume = slot->has_notes ? notes.data + len + 1 : NULL,
		.noted = bucket_on_noted,
		.pieces = file->pieces.v,
		.n_pieces = file->pieces.n,
		.ret_is_whole = &slot->is_whole,
		.check = bucket_check,
		.done = bucket_on_done,
		.ctx = slot};
	slot->call = s3_put(batch->s3, &put);
	return 0;
}

static void bucket_ended_file(struct bucket_batch *batch, struct bucket_slot *slot)
{
	struct bucket_push *push = batch->ctx;
	struct bucket_file *file = &push->now->v[slot->job];

	if (slot->is_whole) {
		push->put->n_sent += file->from != NULL;
		push->total += file->entry->size - file->sent;
		file->sent = file->entry->size;
	}
	bucket_report(push, file->sent);
}

/* The base has lost the object: the file is sent. And some servers fail where an upload that is to
 * be continued is not there any more: then it begins anew. */
static bool bucket_failed_file(
	struct bucket_batch *batch, struct bucket_slot *slot, const struct err *error)
{
	struct bucket_push *push = batch->ctx;
	struct bucket_file *file = &push->now->v[slot->job], again = *file;

	if (slot->has_notes && !slot->has_noted && error->id == E_S3_BUSY) {
		AUTO_FREE char *path = bucket_notes_path(slot);
		if (unlink(path) < 0)
			return false;
		memset(&file->pieces, 0, sizeof(file->pieces));
	} else if (file->from && error->id == E_S3_NOT_FOUND) {
		again = (struct bucket_file){.entry = file->entry, .sent = file->entry->size};
		push->put->n_sent++;
		push->total += again.sent;
	} else {
		return false;
	}
	*vec_push(again.pieces.n || again.sent > S3_SINGLE_MAX ? &push->large : &push->small) =
		again;
	batch->n = push->now->n;
	return true;
}

static int bucket_send(struct bucket_push *push, struct bucket_files *files, struct err *err)
{
	struct bucket_batch batch = {.address = *push->address,
		.n = files->n,
		.at_once = files == &push->large ? BUCKET_LARGE_AT_ONCE : 0,
		.start = bucket_start_file,
		.ended = bucket_ended_file,
		.failed = bucket_failed_file,
		.ctx = push};

	push->now = files;
	return bucket_run(push->place, &batch, err);
}

static int bucket_send_all(struct bucket_push *push, struct err *err)
{
	int r = bucket_send(push, &push->small, err);

	/* Some may be large ones only now (bucket_failed_file). */
	if (r == 0 && push->large.n)
		r = fs_mkdirs(push->put->notes, 0700, err);
	if (r == 0)
		r = bucket_send(push, &push->large, err);
	if (r == 0)
		fs_remove_tree(AT_FDCWD, push->put->notes, NULL);
	return r;
}

/* In front of bucket_plan. */
static int bucket_begin(const struct bucket_push *push, const char *mark, struct err *err)
{
	AUTO(bucket_versions_done) struct bucket_versions versions = {0};
	const struct data_place *place = push->place;
	AUTO_FREE char *one = mem_printf("%s." BUCKET_REMOVAL, push->put->id);
	struct bucket_one begin = {.key = mark, .text = "", .len = 0};

	int r = bucket_do(place, push->address, &begin, err);
	if (r == 0)
		r = bucket_find(place, push->address, &versions, err);
	vec_foreach (struct s3_object, object, &versions.marks) {
		const char *name = object->key + strlen(push->address->key) + 1;
		bool is_all = str_starts(name, BUCKET_REMOVAL);
		if (r < 0 || !(is_all || str_starts(name, one)))
			continue;
		const char *path = place->paths.v[push->i], *at = is_all ? "" : "@";
		const char *id = is_all ? "" : push->put->id;
		r = err_set(err, E_DATA_PLACE,
			"%s%s%s is being removed, or a removal of it was cut", path, at, id);
		err_hint(err, "dlrun data rm %s%s%s -t %s", path, at, id, place->target->name);
	}
	return r;
}

/* versions: as they are now. E_DATA_PLACE: a removal has begun since bucket_begin. */
static int bucket_look_for_mark(const struct bucket_push *push, const char *mark,
	struct bucket_versions *versions, struct err *err)
{
	const struct data_place *place = push->place;

	int r = bucket_find(place, push->address, versions, err);
	if (r < 0 || bucket_find_mark(versions, mark))
		return r;
	return err_set(err, E_DATA_PLACE, "%s@%s was removed while it was pushed",
		place->paths.v[push->i], push->put->id);
}

/* The list makes it a version. Another push may have made the same one behind a removal: so there
 * is none of a push whose mark is gone, also for a moment. */
static int bucket_make(const struct bucket_push *push, const char *mark, struct err *err)
{
	AUTO(bucket_versions_done) struct bucket_versions versions = {0};
	AUTO_FREE char *list = mem_printf("%s@%s.list", push->address->key, push->put->id);
	const char *text = push->put->list;
	struct bucket_one whole = {.key = list, .text = text, .len = strlen(text)};

	int r = bucket_look_for_mark(push, mark, &versions, err);
	if (r == 0)
		r = bucket_do(push->place, push->address, &whole, err);
	return r < 0 ? r : bucket_use(push->place, push->address, push->put->id, err);
}

/* Behind the list: the version stays, unless a removal has begun. */
static int bucket_end(const struct bucket_push *push, const char *mark, struct err *err)
{
	AUTO(bucket_versions_done) struct bucket_versions versions = {0};
	const struct data_place *place = push->place;
	const char *id = push->put->id;
	AUTO_STRV struct strv own = {0};
	AUTO_ERR struct err error = {0};

	if (bucket_look_for_mark(push, mark, &versions, &error) == 0) {
		int r = bucket_delete(place, push->address, mark, &error);
		/* A login that may not delete leaves the mark: it keeps nobody from anything. */
		return r < 0 && error.id != E_S3_DENIED ? err_move(err, &error) : 0;
	}
	if (error.id != E_DATA_PLACE)
		return err_move(err, &error);
	strv_add(&own, id);
	int r = bucket_use_next(place, push->address, &versions, &own, err);
	if (r == 0)
		r = bucket_remove_list(place, push->address, id, err);
	return r < 0 ? r : err_move(err, &error);
}

/* 1: all of it is there, and was a version behind that. */
static int bucket_look(
	struct bucket_push *push, const char *prefix, const char *mark, struct err *err)
{
	AUTO(bucket_versions_done) struct bucket_versions versions = {0};
	int r = 0;

	if (push->put->is_known) {
		r = bucket_plan(push, prefix, err);
		if (r == 0 && !push->small.n && !push->large.n)
			r = bucket_find(push->place, push->address, &versions, err);
		vec_foreach (struct bucket_version, version, &versions.list)
			if (str_eq(version->id, push->put->id))
				return r < 0 ? r : 1;
		if (r < 0)
			return r;
		bucket_plan_forget(push);
		push->total = push->put->n_sent = 0;
	}
	r = bucket_begin(push, mark, err);
	return r < 0 ? r : bucket_plan(push, prefix, err);
}

int place_bucket_put(struct data_place *place, size_t i, struct bucket_put *put, struct err *err)
{
	AUTO_S3_ADDRESS struct s3_address address = {0};
	AUTO(bucket_push_done)
	struct bucket_push push = {.place = place, .i = i, .put = put, .address = &address};

	int r = s3_address_parse(place->dirs.v[i], &address, err);
	if (r < 0)
		return r;
	AUTO_FREE char *prefix = mem_printf("%s@%s/", address.key, put->id);
	AUTO_FREE char *mark = mem_printf("%s@%s.push-%s", address.key, put->id, put->key);
	push.base_prefix = mem_printf("%s@%s/", address.key, put->base_id);
	r = bucket_look(&push, prefix, mark, err);
	if (r != 0)
		return r;
	r = bucket_send_all(&push, err);
	if (r == 0)
		r = bucket_make(&push, mark, err);
	put->bytes_sent = push.done;
	return r < 0 ? r : bucket_end(&push, mark, err);
}
