/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/gpu_guard.h"
#include "host/gpu_impl.h"

enum {
	NEW_MS = 10000, /* for the queue's lock, which is held for moments */
	TRY_MS = 200,
	HELD_MS = 60000, /* in all, until the queue is done without */
	LOOKS_MAX = 8,
	HOLDERS_MAX = 2, /* that a sentence names */
	NAMED_MAX = 8    /* GPUs that it does */
};

struct gpu_claim {
	struct gpu_dir dir; /* the shared one, or where we are alone */
	struct gpu_guard guard;
	char *notice;          /* why we are alone; NULL: we are not */
	int64_t held_since_ms; /* since then another process holds the queue; 0: none */
	pid_t pid;             /* a child that was forked only closes its copies */
	unsigned want;
	char *owner;
	struct strv only;
	struct buf text; /* of the ticket: the owner, and a line for each word of only */
	uint64_t number;
	int ticket; /* -1: none (any more) */
	int watch;
	unsigned position;
	char *why;
	bool is_granted;
	struct gpu_list granted;
	int fds[2 * GPU_MAX];
	size_t n_fds;
};

/*
 * A single check of the queue and the GPUs
 */

/* Bits stand for the GPUs of the list. */
struct look {
	const struct gpu_list *gpus;
	uint64_t eligible;      /* of the claim */
	uint64_t reserved;      /* an earlier ticket may take it */
	uint64_t busy;          /* the lock is held */
	char *holders[GPU_MAX]; /* of the busy ones, in words */
	unsigned ahead;         /* living tickets before ours */
	uint64_t blocker;       /* the last of them that may take all that we may; 0: none */
	int fds[GPU_MAX];       /* -1, or a lock that we hold for now */
	int guards[GPU_MAX];    /* the same, of the guard */
};

static uint64_t bit(size_t i)
{
	return UINT64_C(1) << i;
}

static unsigned count(uint64_t mask)
{
	return (unsigned)__builtin_popcountll(mask);
}

static void look_init(struct look *look, const struct gpu_claim *claim, const struct gpu_list *gpus)
{
	*look = (struct look){.gpus = gpus, .eligible = gpu_list_match(gpus, &claim->only)};
	for (size_t i = 0; i < GPU_MAX; i++)
		look->fds[i] = look->guards[i] = -1;
}

static void look_done(struct look *look)
{
	for (size_t i = 0; i < GPU_MAX; i++) {
		if (look->fds[i] >= 0)
			close(look->fds[i]);
		if (look->guards[i] >= 0)
			close(look->guards[i]);
		free(look->holders[i]);
	}
}
#define AUTO_LOOK AUTO(look_done)

static uint64_t of_vendor(const struct gpu_list *gpus, enum gpu_vendor vendor)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < gpus->n; i++)
		if (gpus->v[i].vendor == vendor)
			mask |= bit(i);
	return mask;
}

static uint64_t in_use(const struct gpu_list *gpus)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < gpus->n; i++)
		if (gpus->v[i].used)
			mask |= bit(i);
	return mask;
}

/* Choose want GPUs of mask, all of one vendor, the first ones; 0 where there are not so many. */
static uint64_t pick(const struct gpu_list *gpus, uint64_t mask, unsigned want)
{
	for (enum gpu_vendor vendor = GPU_NVIDIA; vendor <= GPU_AMD; vendor++) {
		uint64_t left = mask & of_vendor(gpus, vendor);

		if (count(left) < want)
			continue;
		while (count(left) > want)
			left &= ~bit(63 - (size_t)__builtin_clzll(left));
		return left;
	}
	return 0;
}

/* The most that a claim on mask can get. */
static unsigned capacity(const struct gpu_list *gpus, uint64_t mask)
{
	unsigned nvidia = count(mask & of_vendor(gpus, GPU_NVIDIA));
	unsigned amd = count(mask & of_vendor(gpus, GPU_AMD));

	return nvidia > amd ? nvidia : amd;
}

static int check_count(const struct gpu_claim *claim, const struct look *look, struct err *err)
{
	unsigned most = capacity(look->gpus, look->eligible),
		 all = capacity(look->gpus, UINT64_MAX);
	AUTO_FREE char *what =
		mem_printf("requested %u GPU%s", claim->want, claim->want == 1 ? "" : "s");
	int r;

	if (most >= claim->want)
		return 0;
	if (all == 0)
		r = err_set(err, E_GPU_COUNT, "%s, this machine has none", what);
	else if (all < claim->want)
		r = err_set(err, E_GPU_COUNT, "%s, this machine has %u%s", what, all,
			all < look->gpus->n ? " of one vendor" : "");
	else
		r = err_set(err, E_GPU_COUNT, "%s, only %u of this machine's %u may be used", what,
			most, all);
	err_hint(err, "dlrun submit -g %u", most);
	return r;
}

/*
 * Earlier tickets
 */

/* The lines behind the first one. */
static void read_words(const char *text, struct strv *ret)
{
	const char *line = strchr(text, '\n');

	while (line && line[1]) {
		size_t len = strcspn(++line, "\n");

		strv_add_take(ret, mem_strndup(line, len));
		line = line[len] ? line + len : NULL;
	}
}

static void see_ticket(void *ctx, uint64_t number, const char *text)
{
	AUTO_STRV struct strv words = {0};
	struct look *look = ctx;

	if (text)
		read_words(text, &words);
	uint64_t mask = gpu_list_match(look->gpus, &words);
	look->ahead++;
	look->reserved |= mask;
	if ((mask & look->eligible) == look->eligible && number > look->blocker)
		look->blocker = number;
}

/* Check earlier tickets until what the result depends on is watched: the end of the ticket that may
 * take everything that we may, which need not wake the others behind us, or any event in the
 * directory. */
static int see_queue(const struct gpu_claim *claim, struct look *look, struct err *err)
{
	for (int i = 0; i < LOOKS_MAX; i++) {
		look->ahead = 0;
		look->reserved = look->blocker = 0;
		int r = gpu_ticket_each(&claim->dir, claim->number, see_ticket, look, err);
		if (r < 0)
			return r;
		AUTO_FREE char *path = look->blocker ? gpu_ticket_path(&claim->dir, look->blocker)
						     : mem_strdup(claim->dir.path);
		os_watch_add(claim->watch, path);
		/* The blocker may have died before the watch began. */
		if (!look->blocker || gpu_ticket_lives(&claim->dir, look->blocker))
			break;
	}
	return 0;
}

/*
 * Locks of GPUs
 */

static void lock_name(const char *id, char out[static GPU_ID_SIZE + 8])
{
	snprintf(out, GPU_ID_SIZE + 8, "gpu.%s", id);
	for (char *c = out; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr("-_.", *c))
			*c = '_';
}

static int see_locks(
	const struct gpu_claim *claim, int queue_fd, struct look *look, struct err *err)
{
	char name[GPU_ID_SIZE + 8];

	for (size_t i = 0; i < look->gpus->n; i++) {
		if (!(look->eligible & bit(i)))
			continue;
		lock_name(look->gpus->v[i].id, name);
		int r = gpu_dir_lock(&claim->dir, name, 0, &look->fds[i], err);
		if (r == 0)
			look->holders[i] = gpu_dir_holder(&claim->dir, name, queue_fd);
		else if (r > 0)
			r = gpu_guard_lock(&claim->guard, name, queue_fd, &look->guards[i],
				&look->holders[i], err);
		if (r < 0)
			return r;
		if (r == 0)
			look->busy |= bit(i);
	}
	return 0;
}

/*
 * Words
 */

/* "GPU 3 is ", "GPUs 0,1 are ". */
static void add_gpus(struct buf *out, const struct look *look, uint64_t mask)
{
	unsigned n = count(mask);

	if (out->len)
		buf_adds(out, "; ");
	if (n > NAMED_MAX)
		buf_addf(out, "%u GPUs are ", n);
	else
		buf_adds(out, n == 1 ? "GPU " : "GPUs ");
	for (size_t i = 0, shown = 0; n <= NAMED_MAX && i < look->gpus->n; i++)
		if (mask & bit(i))
			buf_addf(out, "%s%u", shown++ ? "," : "", look->gpus->v[i].index);
	if (n <= NAMED_MAX)
		buf_adds(out, n == 1 ? " is " : " are ");
}

/* Times may differ: a holder takes its locks one after the other. */
static bool is_same_holder(const char *a, const char *b)
{
	static const char since[] = " since ";
	const char *end = strstr(a, since);
	size_t len = end ? (size_t)(end - a) : strlen(a);

	return strncmp(a, b, len) == 0 && (end ? str_starts(b + len, since) : !b[len]);
}

/* A part for each holder. */
static void add_busy(struct buf *out, const struct look *look)
{
	uint64_t left = look->busy;

	for (unsigned n = 0; left; n++) {
		const char *holder = look->holders[__builtin_ctzll(left)];
		uint64_t mask = 0;

		for (size_t i = 0; i < look->gpus->n; i++)
			if ((left & bit(i)) &&
				(n == HOLDERS_MAX || is_same_holder(look->holders[i], holder)))
				mask |= bit(i);
		add_gpus(out, look, mask);
		buf_addf(out, "in use by %s", n == HOLDERS_MAX ? "other runs" : holder);
		left &= ~mask;
	}
}

static void explain(struct gpu_claim *claim, const struct look *look)
{
	uint64_t used = look->eligible & ~look->busy & in_use(look->gpus);
	struct buf text;

	buf_init(&text, 1024);
	add_busy(&text, look);
	if (used) {
		add_gpus(&text, look, used);
		buf_adds(&text, "used by a program outside of dlrun");
	}
	if (look->ahead)
		buf_addf(&text, "%s%u run%s before it", text.len ? "; " : "", look->ahead,
			look->ahead == 1 ? " is" : "s are");
	if (text.len == 0)
		buf_adds(&text, "the GPUs are free");
	if (claim->notice)
		buf_addf(&text, "; %s", claim->notice);
	free(claim->why);
	claim->why = buf_take(&text);
	buf_done(&text);
	claim->position = look->ahead + 1;
}

static void explain_as(struct gpu_claim *claim, const char *why)
{
	free(claim->why);
	claim->why = mem_strdup(why);
}

/*
 * The claim
 */

/* A word that cannot stand in a line names no GPU either. */
static const char *as_line(const char *s)
{
	return s && !strpbrk(s, "\r\n") ? s : "?";
}

static int write_text(struct gpu_claim *claim, const struct gpu_claim_spec *spec, struct err *err)
{
	claim->owner = mem_strdup(as_line(spec->owner));
	buf_init(&claim->text, GPU_TICKET_TEXT_MAX);
	buf_addf(&claim->text, "%.100s\n", claim->owner);
	for (size_t i = 0; spec->only && i < spec->only->n; i++) {
		strv_add(&claim->only, spec->only->v[i]);
		buf_addf(&claim->text, "%s\n", as_line(spec->only->v[i]));
	}
	return buf_check(&claim->text, "the list of GPUs that may be used", err);
}

/* The queue is locked. */
static int take_ticket(struct gpu_claim *claim, struct err *err)
{
	int r = gpu_ticket_new(&claim->dir, &claim->text, &claim->number, &claim->ticket, err);

	if (r < 0 || claim->watch >= 0)
		return r;
	AUTO_FREE char *path = gpu_ticket_path(&claim->dir, claim->number);
	claim->watch = os_watch_open(path);
	return 0;
}

static int fail_queue(const struct gpu_claim *claim, struct err *err)
{
	return err_set(err, E_GPU_LOCK, "another process holds %s/" GPU_DIR_QUEUE " for too long",
		claim->dir.path);
}

static int join_queue(struct gpu_claim *claim, struct err *err)
{
	AUTO_FD int queue = -1;
	int r = gpu_dir_lock(&claim->dir, GPU_DIR_QUEUE, NEW_MS, &queue, err);

	if (r == 0)
		return fail_queue(claim, err);
	return r < 0 ? r : take_ticket(claim, err);
}

static void leave_queue(struct gpu_claim *claim)
{
	if (claim->ticket < 0)
		return;
	gpu_ticket_remove(&claim->dir, claim->number);
	close(TAKE_FD(claim->ticket));
}

/* Changes that others make to the shared directory may cost the order of the queue, but no run. */
static int go_alone(struct gpu_claim *claim, const struct err *why, struct err *err)
{
	claim->notice = mem_printf("GPUs of this machine are not queued for in order: %s%s%s",
		why->message, why->n_evidence ? ": " : "", why->n_evidence ? why->evidence[0] : "");
	leave_queue(claim);
	gpu_dir_done(&claim->dir);
	claim->held_since_ms = 0;
	int r = gpu_guard_queue(&claim->guard, &claim->dir, err);
	return r < 0 ? r : join_queue(claim, err);
}

static int begin(struct gpu_claim *claim, const char *dir, struct err *err)
{
	AUTO_ERR struct err why = {0};
	int r = gpu_guard_open(dir, &claim->guard, err);

	if (r < 0)
		return r;
	r = gpu_dir_open(dir, &claim->dir, &why);
	if (r == 0)
		r = join_queue(claim, &why);
	if (r < 0 && why.id != E_GPU_LOCK)
		return err_move(err, &why);
	return r < 0 ? go_alone(claim, &why, err) : 0;
}

int gpu_claim_new(const struct gpu_claim_spec *spec, struct gpu_claim **ret, struct err *err)
{
	if (spec->want == 0 || spec->want > GPU_MAX)
		return err_set(err, E_GPU_COUNT, "requested %u GPUs, the limit is 1 to %d",
			spec->want, GPU_MAX);
	AUTO_GPU_CLAIM struct gpu_claim *claim = mem_alloc(1, sizeof(*claim));
	claim->dir = claim->guard.own = (struct gpu_dir){.fd = -1};
	claim->pid = getpid();
	claim->want = spec->want;
	claim->ticket = claim->watch = -1;
	claim->position = 1;
	explain_as(claim, "it has just come");
	int r = write_text(claim, spec, err);
	if (r == 0)
		r = begin(claim, spec->dir, err);
	if (r == 0)
		*ret = TAKE(claim);
	return r;
}

/* A cleanup may have removed the ticket; the new one is last in the queue. */
static int renew_ticket(struct gpu_claim *claim, struct err *err)
{
	struct stat st;

	if (fstat(claim->ticket, &st) == 0 && st.st_nlink > 0)
		return 0;
	close(TAKE_FD(claim->ticket));
	return take_ticket(claim, err);
}

static void grant(struct gpu_claim *claim, struct look *look, uint64_t chosen)
{
	char name[GPU_ID_SIZE + 8];

	for (size_t i = 0; i < look->gpus->n; i++) {
		if (!(chosen & bit(i)))
			continue;
		lock_name(look->gpus->v[i].id, name);
		gpu_dir_sign(&claim->dir, name, look->fds[i], claim->owner);
		claim->granted.v[claim->granted.n++] = look->gpus->v[i];
		gpu_dir_sign(&claim->guard.own, name, look->guards[i], claim->owner);
		claim->fds[claim->n_fds++] = TAKE_FD(look->fds[i]);
		claim->fds[claim->n_fds++] = TAKE_FD(look->guards[i]);
	}
	claim->is_granted = true;
	claim->position = 1;
	explain_as(claim, "it has its GPUs");
	leave_queue(claim);
}

/* Check the queue and the locks, and take the GPUs; the queue is locked. */
static int look_and_take(
	struct gpu_claim *claim, int queue_fd, bool is_taking, struct look *look, struct err *err)
{
	int r = renew_ticket(claim, err);

	if (r == 0)
		r = see_queue(claim, look, err);
	if (r == 0)
		r = see_locks(claim, queue_fd, look, err);
	if (r < 0)
		return r;
	uint64_t open = look->eligible & ~look->reserved & ~look->busy;
	if (is_taking)
		open &= ~in_use(look->gpus);
	uint64_t chosen = pick(look->gpus, open, claim->want);
	explain(claim, look);
	if (chosen && is_taking)
		grant(claim, look, chosen);
	return chosen != 0;
}

/* The queue could not be locked: 0, but an error when that has lasted long. */
static int wait_for_queue(struct gpu_claim *claim, struct err *err)
{
	int64_t now_ms = clock_ms();

	if (!claim->held_since_ms)
		claim->held_since_ms = now_ms;
	explain_as(claim, "another process holds the queue for GPUs");
	return now_ms - claim->held_since_ms < HELD_MS ? 0 : fail_queue(claim, err);
}

static int look_once(
	struct gpu_claim *claim, const struct gpu_list *gpus, bool is_taking, struct err *err)
{
	AUTO_FD int queue = -1; /* freed last */
	AUTO_LOOK struct look look;

	look_init(&look, claim, gpus);
	if (claim->is_granted)
		return 1;
	int r = check_count(claim, &look, err);
	if (r < 0)
		return r;
	os_watch_drain(claim->watch);
	r = gpu_dir_lock(&claim->dir, GPU_DIR_QUEUE, TRY_MS, &queue, err);
	if (r == 0)
		return wait_for_queue(claim, err);
	claim->held_since_ms = 0;
	return r < 0 ? r : look_and_take(claim, queue, is_taking, &look, err);
}

static int try_once(
	struct gpu_claim *claim, const struct gpu_list *gpus, bool is_taking, struct err *err)
{
	AUTO_ERR struct err why = {0};
	int r = look_once(claim, gpus, is_taking, &why);

	if (r >= 0)
		return r;
	if (why.id != E_GPU_LOCK || claim->notice)
		return err_move(err, &why);
	r = go_alone(claim, &why, err);
	return r < 0 ? r : look_once(claim, gpus, is_taking, err);
}

int gpu_claim_try(struct gpu_claim *claim, const struct gpu_list *gpus, struct err *err)
{
	return try_once(claim, gpus, true, err);
}

int gpu_claim_ready(struct gpu_claim *claim, const struct gpu_list *gpus, struct err *err)
{
	return try_once(claim, gpus, false, err);
}

unsigned gpu_claim_position(const struct gpu_claim *claim)
{
	return claim->position;
}

const char *gpu_claim_notice(const struct gpu_claim *claim)
{
	return claim->notice;
}

const char *gpu_claim_why(const struct gpu_claim *claim)
{
	return claim->why;
}

int gpu_claim_watch_fd(const struct gpu_claim *claim)
{
	return claim->watch;
}

const struct gpu_list *gpu_claim_granted(const struct gpu_claim *claim)
{
	return &claim->granted;
}

const int *gpu_claim_fds(const struct gpu_claim *claim, size_t *ret_n)
{
	*ret_n = claim->n_fds;
	return claim->fds;
}

void gpu_claim_env(const struct gpu_claim *claim, struct strv *ret)
{
	const struct gpu_list *list = &claim->granted;
	struct buf value;

	if (list->n == 0)
		return;
	buf_init(&value, GPU_MAX * 16);
	for (size_t i = 0; i < list->n; i++)
		buf_addf(&value, "%s%u", i ? "," : "", list->v[i].index);
	if (list->v[0].vendor == GPU_AMD) {
		strv_addf(ret, "ROCR_VISIBLE_DEVICES=%s", value.data);
	} else {
		/* By default CUDA counts the fastest GPU first. */
		strv_add(ret, "CUDA_DEVICE_ORDER=PCI_BUS_ID");
		strv_addf(ret, "CUDA_VISIBLE_DEVICES=%s", value.data);
	}
	buf_done(&value);
}

void gpu_claim_free(struct gpu_claim *claim)
{
	if (!claim)
		return;
	bool is_owner = claim->pid == getpid();
	if (is_owner)
		leave_queue(claim);
	else if (claim->ticket >= 0)
		close(claim->ticket);
	/* Closed, not unlocked: a program that still runs keeps them. */
	for (size_t i = 0; i < claim->n_fds; i++)
		close(claim->fds[i]);
	if (is_owner && claim->n_fds > 0)
		gpu_dir_wake(&claim->dir);
	/* Last, because the kernel takes its time to end a watch. */
	if (claim->watch >= 0)
		close(claim->watch);
	gpu_dir_done(&claim->dir);
	gpu_guard_done(&claim->guard);
	free(claim->notice);
	strv_done(&claim->only);
	buf_done(&claim->text);
	free(claim->owner);
	free(claim->why);
	free(claim);
}
