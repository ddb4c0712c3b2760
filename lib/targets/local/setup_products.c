/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "targets/local/setup.h"
#include "targets/local/setup_parts.h"

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

static bool is_left_out(const char *name)
{
	return str_eq(name, ".") || str_eq(name, "..") || str_eq(name, "__pycache__") ||
	       str_ends(name, ".pyc");
}

static int find_below(struct search *search, int made_fd, int tree_fd, const char *path,
	unsigned depth, struct err *err);

static int open_dir(int fd, const char *name)
{
	return openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int look_at(struct search *search, int made_fd, int tree_fd, const char *name,
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
	int made_child = open_dir(made_fd, name), tree_child = open_dir(tree_fd, name);
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
		if (!is_left_out(entry->d_name))
			r = look_at(search, made_fd, tree_fd, entry->d_name, path, depth, err);
	return r;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int setup_products_find(const char *made, const char *tree, struct strv *ret, struct err *err)
{
	AUTO_FD int made_fd = open(made, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	AUTO_FD int tree_fd = open(tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (made_fd < 0 || tree_fd < 0)
		return fs_error(err, errno, "%s", made_fd < 0 ? made : tree);
	int r = find_below(&(struct search){ret, made}, made_fd, tree_fd, "", 0, err);
	vec_sort(ret, by_text);
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

int setup_products_link(
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

static bool is_venv_in(const char *product, const char *made, const char *cwd)
{
	const char *slash = strrchr(product, '/');
	size_t len = slash ? (size_t)(slash - product) : 0;
	AUTO_FREE char *cfg = mem_printf("%s/%s/pyvenv.cfg", made, product);
	struct stat st;

	if (str_eq(cwd, ".") ? slash != NULL
			     : strlen(cwd) != len || strncmp(product, cwd, len) != 0)
		return false;
	return stat(cfg, &st) == 0 && S_ISREG(st.st_mode);
}

const char *setup_venv_find(const struct strv *products, const char *made, const char *cwd)
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

int setup_done_write(const char *dir, const struct strv *products, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, DONE_NAME);
	AUTO_JSON struct json *json = json_object();
	char boot[OS_ID_SIZE] = "", machine[OS_ID_SIZE] = "";
	AUTO_BUF struct buf text = {0};

	os_boot_id(boot);
	os_machine_id(machine);
	json_set_str(json, "schema", SCHEMA);
	words_set(json, "products", products);
	json_set_str(json, "boot_id", boot);
	json_set_str(json, "machine_id", machine);
	buf_init(&text, DONE_MAX);
	json_print(json, &text);
	int r = buf_check(&text, "the list of what the setup has made", err);
	return r < 0 ? r : fs_replace(path, text.data, text.len, 0600, FS_SYNC_FULL, err);
}

static bool is_valid_path(const char *path)
{
	AUTO_FREE char *normal = NULL;

	return world_path(path, "a product", &normal, NULL) == 0 && str_eq(path, normal);
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

bool setup_done_read(const char *dir, struct strv *ret_products)
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
	for (size_t i = 0; i < products.n; i++)
		if (!is_valid_path(products.v[i]))
			return false;
	strv_done(ret_products);
	*ret_products = products;
	products = (struct strv){0};
	return true;
}

void setup_stamp(const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, STAMP_NAME);
	AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

	if (fd >= 0)
		futimens(fd, NULL);
}
