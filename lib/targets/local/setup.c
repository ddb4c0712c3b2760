/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/setup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/record/setup_key.h"
#include "core/target/copy.h"
#include "host/editable.h"

/*
 * The products of a setup
 */

enum {
	DEPTH_MAX = 64,
	DONE_MAX = 16 << 20,
	ON_DISK_MS = 120 * 1000, /* by then the system has written what a program wrote */
};

#define DONE_NAME  "done"
#define STAMP_NAME "stamp"
#define SCHEMA     "dlrun/setup/v1"

/*
 * Finding
 */

struct search {
	struct strv *ret;
	const char *made;
};

static bool setup_is_excluded(const char *name)
{
	return str_eq(name, ".") || str_eq(name, "..") || str_eq(name, "__pycache__") ||
	       str_ends(name, ".pyc");
}

static int find_below(struct search *search, int made_fd, int tree_fd, const char *path,
	unsigned depth, struct err *err);

static int open_beside(int fd, const char *name)
{
	return openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int setup_find_entry(struct search *search, int made_fd, int tree_fd, const char *name,
	const char *path, unsigned depth, struct err *err)
{
	AUTO_FREE char *full = *path ? fs_join(path, name) : mem_strdup(name);
	struct stat st;

	if (fstatat(tree_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		if (search->ret->n >= SETUP_PRODUCTS_MAX)
			return err_set(err, E_DATA_LIMIT,
				"the setup has made more than %d new names beside the files of the "
				"snapshot",
				SETUP_PRODUCTS_MAX);
		strv_add_take(search->ret, TAKE(full));
		return 0;
	}
	if (!S_ISDIR(st.st_mode))
		return 0;
	int made_child = open_beside(made_fd, name), tree_child = open_beside(tree_fd, name);
	AUTO_FD int made_auto = made_child, tree_auto = tree_child;
	if (made_auto < 0 || tree_auto < 0)
		return 0;
	return find_below(search, made_auto, tree_auto, full, depth + 1, err);
}

static int find_below(struct search *search, int made_fd, int tree_fd, const char *path,
	unsigned depth, struct err *err)
{
	int copy = fcntl(made_fd, F_DUPFD_CLOEXEC, 0);
	AUTO_DIR DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;
	int r = 0;

	if (!dir)
		return fs_error(err, errno, "%s/%s", search->made, path);
	while (r == 0 && depth < DEPTH_MAX && (entry = readdir(dir)))
		if (!setup_is_excluded(entry->d_name))
			r = setup_find_entry(
				search, made_fd, tree_fd, entry->d_name, path, depth, err);
	return r;
}

/* The names below made that are not below tree, sorted; a new directory is one name. */
static int setup_products_find(
	const char *made, const char *tree, struct strv *ret, struct err *err)
{
	AUTO_FD int made_fd = open(made, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	AUTO_FD int tree_fd = open(tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (made_fd < 0 || tree_fd < 0)
		return fs_error(err, errno, "%s", made_fd < 0 ? made : tree);
	int r = find_below(&(struct search){ret, made}, made_fd, tree_fd, "", 0, err);
	strv_sort(ret);
	return r;
}

/*
 * Linking
 */

static int link_product(int tree_fd, const char *made, const char *product, struct err *err)
{
	AUTO_FREE char *parent = fs_dirname(product);
	AUTO_FREE char *target = fs_join(made, product);
	AUTO_FD int fd = fs_open_beneath(tree_fd, parent, O_RDONLY | O_DIRECTORY, 0);

	/* Another snapshot has no such directory, or something else there. */
	if (fd < 0)
		return 0;
	if (symlinkat(target, fd, fs_basename(product)) < 0 && errno != EEXIST)
		return fs_error(err, errno, "linking %s", target);
	return 0;
}

/* Links to them into tree, where it has the directory and nothing of that name. */
static int setup_products_link(
	const struct strv *products, const char *made, const char *tree, struct err *err)
{
	AUTO_FD int tree_fd = open(tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = 0;

	if (tree_fd < 0)
		return fs_error(err, errno, "%s", tree);
	for (size_t i = 0; r == 0 && i < products->n; i++)
		r = link_product(tree_fd, made, products->v[i], err);
	return r;
}

static bool setup_is_conda(const char *made, const char *product)
{
	AUTO_FREE char *meta = mem_printf("%s/%s/conda-meta", made, product);
	struct stat st;

	return stat(meta, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool is_venv_in(const char *product, const char *made, const char *cwd)
{
	const char *slash = strrchr(product, '/');
	size_t len = slash ? (size_t)(slash - product) : 0;
	AUTO_FREE char *cfg = mem_printf("%s/%s/pyvenv.cfg", made, product);
	struct stat st;

	if (str_eq(cwd, ".") ? slash != NULL
			     : strlen(cwd) != len || strncmp(product, cwd, len) != 0)
		return false;
	return (stat(cfg, &st) == 0 && S_ISREG(st.st_mode)) || setup_is_conda(made, product);
}

/* The product that is an environment of Python in the directory cwd of made, or NULL. */
static const char *setup_venv_find(const struct strv *products, const char *made, const char *cwd)
{
	const char *found = NULL;

	/* Sorted: .venv is among the first, and wins anyway. */
	for (size_t i = 0; i < products->n; i++) {
		const char *product = products->v[i];
		if (!is_venv_in(product, made, cwd))
			continue;
		if (str_eq(product, ".venv") || str_ends(product, "/.venv"))
			return product;
		if (!found)
			found = product;
	}
	return found;
}

/*
 * done
 */

static int setup_done_write(const char *dir, const struct strv *products, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, DONE_NAME);
	AUTO_JSON struct json *json = json_object();
	char boot[OS_ID_SIZE] = "", machine[OS_ID_SIZE] = "";
	AUTO_BUF struct buf text = buf_with(DONE_MAX);

	os_boot_id(boot);
	os_machine_id(machine);
	json_set_str(json, "schema", SCHEMA);
	words_set(json, "products", products);
	json_set_str(json, "boot_id", boot);
	json_set_str(json, "machine_id", machine);
	json_print(json, &text);
	int r = buf_check(&text, "the list of what the setup has made", err);
	return r < 0 ? r : fs_replace(path, text.data, text.len, 0600, FS_SYNC_FULL, err);
}

static int64_t mtime_ms(const char *dir, const char *name)
{
	AUTO_FREE char *path = fs_join(dir, name);
	struct stat st;

	return stat(path, &st) == 0
		       ? (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000
		       : 0;
}

/* After a power cut, rely on the setup only if it was used again when all of it was on disk. */
static bool is_on_disk(const char *dir, const struct json *done)
{
	const char *boot = json_get_str(done, "boot_id"),
		   *machine = json_get_str(done, "machine_id");
	char our_boot[OS_ID_SIZE] = "", our_machine[OS_ID_SIZE] = "";

	if (!os_boot_id(our_boot) || !os_machine_id(our_machine))
		return true;
	if (!str_eq(machine, our_machine) || str_eq(boot, our_boot))
		return true;
	return mtime_ms(dir, STAMP_NAME) > mtime_ms(dir, DONE_NAME) + ON_DISK_MS;
}

/* false: there is none, or it cannot be relied on: the machine stopped before its disk had what the
 * setup made. */
static bool setup_done_read(const char *dir, struct strv *ret_products)
{
	AUTO_FREE char *path = fs_join(dir, DONE_NAME), *made = fs_join(dir, "tree");
	AUTO_JSON struct json *json = NULL;
	AUTO_STRV struct strv products = {0};
	AUTO_BUF struct buf text = {0};

	if (fs_read(path, DONE_MAX, &text, NULL, NULL) < 0 ||
		json_parse(text.data, text.len, DONE_MAX, path, &json, NULL) < 0 ||
		!str_eq(json_get_str(json, "schema"), SCHEMA) ||
		words_get(json, "products", &products, NULL) < 0 ||
		products.n > SETUP_PRODUCTS_MAX || access(made, X_OK) < 0 || !is_on_disk(dir, json))
		return false;
	for (size_t i = 0; i < products.n; i++) {
		AUTO_FREE char *normal = NULL;
		if (runtime_path(products.v[i], "a product", &normal, NULL) < 0 ||
			!str_eq(products.v[i], normal))
			return false;
	}
	strv_done(ret_products);
	*ret_products = products;
	products = (struct strv){0};
	return true;
}

/* Record a use of the setup now. */
static void setup_stamp(const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, STAMP_NAME);
	AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

	if (fd >= 0)
		futimens(fd, NULL);
}

enum {
	LOCK_WAIT_MS = 20,   /* others only check for a moment */
	OWN_WAIT_MS = 10000, /* the same, where it is certain that no process keeps it */
	COPY_BUDGET_MS = 50,
	AGAIN_MS = 10,
	LOST_MAX = 8,
	BUSY_MS = 250,
	TAIL_LINES = 3,
	TAIL_BYTES = 4096,
};

enum phase { PHASE_LOOKUP, PHASE_COPY, PHASE_RUN, PHASE_READY };

struct setup {
	char *line, *cwd; /* cwd: in the tree */
	struct strv outputs;
	char *tree;             /* the run's */
	char *dir, *made, *log; /* SETUPS/KEY, its tree, its log */
	char *made_cwd;
	enum phase phase;
	int lock_fd, log_fd;
	int from_fd, to_fd;
	struct copy *copy;
	struct strv products;
	char *venv;               /* in the run's tree; NULL: none */
	bool is_conda;            /* of conda's making */
	struct strv python_paths; /* absolute */
	const char *why;
	int64_t wait_ms;
	unsigned n_lost; /* how often the lock was gone before it was ours */
};

/*
 * Begin and end
 */

int setup_begin(
	const struct attempt_job *job, const char *tree, struct setup **ret, struct err *err)
{
	const struct runtime_setup *todo = &job->spec.runtime.setup;
	char key[SHA256_HEX_SIZE];

	*ret = NULL;
	if (!todo->run)
		return 0;
	if (!job->setups)
		return err_set(err, E_RUN_SETUP, "this target has no place for setups");
	int r = setup_key(todo, NULL, tree, NULL, NULL, key, err);
	if (r < 0)
		return r;
	struct setup *setup = mem_alloc(1, sizeof(*setup));
	*setup = (struct setup){.lock_fd = -1, .log_fd = -1, .from_fd = -1, .to_fd = -1};
	setup->line = mem_strdup(todo->run);
	setup->cwd = mem_strdup(todo->cwd ? todo->cwd : ".");
	strv_copy(&setup->outputs, &job->spec.runtime.outputs);
	setup->tree = mem_strdup(tree);
	setup->dir = fs_join(job->setups, key);
	setup->made = fs_join(setup->dir, "tree");
	setup->log = fs_join(setup->dir, "log");
	setup->made_cwd = fs_join(setup->made, setup->cwd);
	*ret = setup;
	return 0;
}

static void setup_close_fd(int *fd)
{
	auto_fd(fd);
	*fd = -1;
}

static void drop_copy(struct setup *setup)
{
	copy_free(setup->copy);
	setup->copy = NULL;
	setup_close_fd(&setup->from_fd);
	setup_close_fd(&setup->to_fd);
}

/* Release the locks, so that another process may make the setup. */
static void let_go(struct setup *setup)
{
	drop_copy(setup);
	setup_close_fd(&setup->log_fd);
	setup_close_fd(&setup->lock_fd);
	setup->phase = PHASE_LOOKUP;
}

void setup_free(struct setup *setup)
{
	if (!setup)
		return;
	if (setup->phase == PHASE_READY)
		setup_stamp(setup->dir);
	let_go(setup);
	free(setup->line);
	free(setup->cwd);
	strv_done(&setup->outputs);
	free(setup->tree);
	free(setup->dir);
	free(setup->made);
	free(setup->log);
	free(setup->made_cwd);
	strv_done(&setup->products);
	free(setup->venv);
	strv_done(&setup->python_paths);
	free(setup);
}

/*
 * Ready
 */

/* Redirect what the environment has installed from made to the run's own copy. */
static int find_python(struct setup *setup, const char *venv, struct err *err)
{
	static const char *const no_env[] = {NULL};
	AUTO_FREE char *prefix = fs_join(setup->made, venv);
	AUTO_EDITABLE struct editable found = {0};
	struct strv none = {0};

	REPLACE(setup->venv, fs_join(setup->tree, venv));
	setup->is_conda = setup_is_conda(setup->made, venv);
	editable_find(&(struct editable_query){.command = &none,
			      .env = no_env,
			      .cwd = setup->made,
			      .root = setup->made,
			      .prefix = prefix},
		&found);
	for (size_t i = 0; i < found.paths.n; i++)
		strv_add_take(&setup->python_paths, fs_join(setup->tree, found.paths.v[i]));
	/* A link by another name would have to be made in each run. */
	for (size_t i = 0; i < found.aliases.n; i++)
		strv_add_take(&found.fixed,
			mem_strndup(found.aliases.v[i], strcspn(found.aliases.v[i], "=")));
	if (found.fixed.n == 0)
		return 0;
	AUTO_FREE char *shown = str_shown(found.fixed.v[0]);
	err_set(err, E_RUN_SETUP,
		"the setup installs %s with -e by an import hook: every run would import the code of "
		"the run that made the setup",
		shown);
	return err_hint(err, "install it without -e, and name its sources in setup.key");
}

static int become_ready(struct setup *setup, struct err *err)
{
	const char *venv;

	setup_stamp(setup->dir);
	int r = setup_products_link(&setup->products, setup->made, setup->tree, err);
	if (r < 0)
		return r;
	venv = setup_venv_find(&setup->products, setup->made, setup->cwd);
	r = venv ? find_python(setup, venv, err) : 0;
	if (r < 0)
		return r;
	setup->phase = PHASE_READY;
	return 0;
}

/*
 * Polling
 */

static int busy(struct setup *setup, const char *why, int64_t wait_ms)
{
	setup->why = why;
	setup->wait_ms = wait_ms;
	return 0;
}

/* 1: locked; 0: another process has the lock. gc may remove the directory meanwhile: the next poll
 * makes it again. */
static int setup_take_lock(struct setup *setup, bool exclusive, int64_t wait_ms, struct err *err)
{
	AUTO_FREE char *path = fs_join(setup->dir, "lock");
	AUTO_ERR struct err error = {0};

	int r = fs_lock(path, exclusive, wait_ms, &setup->lock_fd, &error);
	if (r < 0 && error.id != E_IO_LOCK && setup->n_lost++ < LOST_MAX)
		return busy(setup, "its directory was removed", AGAIN_MS);
	if (r < 0 && error.id == E_IO_LOCK)
		return busy(setup, "another run does the same setup", BUSY_MS);
	return r < 0 ? err_move(err, &error) : 1;
}

static bool skip_output(const void *ctx, const char *path)
{
	const struct setup *setup = ctx;

	return strv_find(&setup->outputs, path) >= 0;
}

static int setup_open_dir(const char *path, int *ret_fd, struct err *err)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return fs_error(err, errno, "%s", path);
	*ret_fd = fd;
	return 0;
}

static int begin_copy(struct setup *setup, struct err *err)
{
	AUTO_FREE char *done = fs_join(setup->dir, "done");

	if (unlink(done) < 0 && errno != ENOENT)
		return fs_error(err, errno, "removing %s", done);
	int r = fs_remove_tree(AT_FDCWD, setup->made, err);
	if (r == 0 && ftruncate(setup->log_fd, 0) < 0)
		r = fs_error(err, errno, "%s", setup->log);
	if (r == 0)
		r = fs_mkdirs(setup->made, 0755, err);
	if (r == 0)
		r = setup_open_dir(setup->tree, &setup->from_fd, err);
	if (r == 0)
		r = setup_open_dir(setup->made, &setup->to_fd, err);
	if (r < 0)
		return r;
	setup->copy = copy_new(setup->from_fd, setup->to_fd, setup->made, skip_output, setup);
	setup->phase = PHASE_COPY;
	return busy(setup, "the tree is copied for its setup", 0);
}

/* Take on the setup, which is not done and which no other process is making. */
static int take_over(struct setup *setup, struct err *err)
{
	AUTO_ERR struct err held = {0};

	int r = fs_lock(setup->log, true, LOCK_WAIT_MS, &setup->log_fd, &held);
	if (r < 0 && held.id == E_IO_LOCK) {
		let_go(setup);
		return busy(setup, "a setup whose supervisor was killed still runs", 2 * BUSY_MS);
	}
	r = r < 0 ? err_move(err, &held) : begin_copy(setup, err);
	if (r < 0)
		let_go(setup);
	return r;
}

static int setup_lookup(struct setup *setup, struct err *err)
{
	int r = fs_mkdirs(setup->dir, 0700, err);

	if (r < 0)
		return r;
	if (setup_done_read(setup->dir, &setup->products)) {
		r = setup_take_lock(setup, false, LOCK_WAIT_MS, err);
		if (r <= 0)
			return r;
		if (setup_done_read(setup->dir, &setup->products)) {
			r = become_ready(setup, err);
			if (r < 0)
				let_go(setup);
			return r;
		}
		let_go(setup);
	}
	r = setup_take_lock(setup, true, LOCK_WAIT_MS, err);
	if (r <= 0)
		return r;
	if (!setup_done_read(setup->dir, &setup->products))
		return take_over(setup, err);
	let_go(setup);
	return busy(setup, "another run has just done the same setup", AGAIN_MS);
}

static int go_on_copying(struct setup *setup, struct err *err)
{
	int r = copy_step(setup->copy, COPY_BUDGET_MS, err);

	if (r > 0)
		return busy(setup, "the tree is copied for its setup", 0);
	drop_copy(setup);
	if (r == 0)
		r = fs_mkdirs(setup->made_cwd, 0755, err);
	if (r == 0)
		setup->phase = PHASE_RUN;
	else
		let_go(setup);
	return r;
}

int setup_poll(struct setup *setup, enum setup_state *ret, struct err *err)
{
	int r = 0;

	setup->why = "";
	setup->wait_ms = 0;
	if (setup->phase == PHASE_LOOKUP)
		r = setup_lookup(setup, err);
	else if (setup->phase == PHASE_COPY)
		r = go_on_copying(setup, err);
	if (r < 0)
		return r;
	*ret = setup->phase == PHASE_READY ? SETUP_READY
	       : setup->phase == PHASE_RUN ? SETUP_RUN
					   : SETUP_BUSY;
	return 0;
}

int64_t setup_wait_ms(const struct setup *setup)
{
	return setup->wait_ms;
}

const char *setup_why(const struct setup *setup)
{
	return setup->why ? setup->why : "";
}

/*
 * The line
 */

void setup_order(const struct setup *setup, struct setup_order *ret)
{
	*ret = (struct setup_order){.line = setup->line,
		.cwd = setup->made_cwd,
		.log = setup->log,
		.output_fd = setup->log_fd};
}

static void setup_read_tail(const struct setup *setup, struct buf *ret)
{
	off_t size = lseek(setup->log_fd, 0, SEEK_END);
	off_t at = size > TAIL_BYTES ? size - TAIL_BYTES : 0;
	ssize_t n = pread(setup->log_fd, buf_reserve(ret, TAIL_BYTES), TAIL_BYTES, at);

	if (n > 0)
		buf_added(ret, (size_t)n);
}

static void add_tail(const struct setup *setup, struct err *err)
{
	AUTO_BUF struct buf text = buf_with(TAIL_BYTES);
	AUTO_STRV struct strv lines = {0};

	setup_read_tail(setup, &text);
	for (const char *at = text.data; *at; at += strspn(at, "\r\n")) {
		size_t len = strcspn(at, "\r\n");
		if (len)
			strv_add_take(&lines, mem_strndup(at, len));
		at += len;
	}
	for (size_t i = lines.n > TAIL_LINES ? lines.n - TAIL_LINES : 0; i < lines.n; i++) {
		AUTO_FREE char *shown = str_escaped(lines.v[i]);
		err_evidence(err, "%s", shown);
	}
}

static int not_done(struct setup *setup, int status, struct err *err)
{
	AUTO_FREE char *line = str_shown(setup->line);
	char name[8];

	if (WIFSIGNALED(status))
		err_set(err, E_RUN_SETUP, "the setup was killed by SIG%s: %s",
			proc_signal_name(WTERMSIG(status), name), line);
	else
		err_set(err, E_RUN_SETUP, "the setup exited with %d: %s", WEXITSTATUS(status),
			line);
	if (err)
		add_tail(setup, err);
	let_go(setup);
	return err_hint(err, "less %s", setup->log);
}

static int take_products(struct setup *setup, struct err *err)
{
	strv_done(&setup->products);
	int r = setup_products_find(setup->made, setup->tree, &setup->products, err);
	if (r == 0)
		r = setup_done_write(setup->dir, &setup->products, err);
	if (r < 0)
		return r;
	/* A process that gets the lock in between finds the setup done. */
	setup_close_fd(&setup->log_fd);
	setup_close_fd(&setup->lock_fd);
	setup_stamp(setup->dir);
	r = setup_take_lock(setup, false, OWN_WAIT_MS, err);
	if (r == 0)
		r = err_set(err, E_IO_LOCK, "the setup in %s was taken away", setup->dir);
	return r < 0 ? r : become_ready(setup, err);
}

int setup_end(struct setup *setup, int wait_status, struct err *err)
{
	BUG_ON(setup->phase != PHASE_RUN);
	if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0)
		return not_done(setup, wait_status, err);
	int r = take_products(setup, err);
	if (r < 0)
		let_go(setup);
	return r;
}

/*
 * The environment
 */

static void put_first(struct strv *env, const char *name, const char *value)
{
	const char *old = env->n ? env_get((const char *const *)env->v, name) : NULL;
	AUTO_FREE char *pair =
		mem_printf("%s=%s%s%s", name, value, str_empty(old) ? "" : ":", old ? old : "");

	env_set(env, pair, false);
}

void setup_env(const struct setup *setup, const struct strv *env_before, struct strv *ret)
{
	strv_copy(ret, env_before);
	for (size_t i = setup->python_paths.n; i > 0; i--)
		put_first(ret, "PYTHONPATH", setup->python_paths.v[i - 1]);
	if (!setup->venv)
		return;
	AUTO_FREE char *bin = fs_join(setup->venv, "bin");
	AUTO_FREE char *prefix =
		mem_printf("%s=%s", setup->is_conda ? "CONDA_PREFIX" : "VIRTUAL_ENV", setup->venv);
	put_first(ret, "PATH", bin);
	env_set(ret, prefix, false);
	env_unset(ret, setup->is_conda ? "VIRTUAL_ENV" : "CONDA_PREFIX");
	env_unset(ret, "PYTHONHOME");
	if (!setup->is_conda)
		env_set(ret, "UV_NO_SYNC=1", true);
}
