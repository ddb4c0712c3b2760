/* SPDX-License-Identifier: Apache-2.0 */
#include "app/init/init.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/init/init_parse.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "core/config/config.h"
#include "oci/model/ref.h"

enum { COMMENT_COLUMN = 40, COMMENT_MAX = 200, NAMES_SHOWN = 8, LINE_BYTES = 64 << 10 };

/*
 * Lines. Functions that make their parts return NULL for what YAML cannot hold: such a name is not
 * UTF-8. The caller frees.
 */

static char *text_scalar(const char *s)
{
	AUTO_BUF struct buf out = buf_with(LINE_BYTES);

	return init_yaml_scalar(&out, s) && !out.full ? buf_take(&out) : NULL;
}

static char *text_list(const struct strv *words)
{
	AUTO_BUF struct buf out = buf_with(LINE_BYTES);

	return init_yaml_list(&out, words) && !out.full ? buf_take(&out) : NULL;
}

/* As a part of a comment; "" for NULL. */
static char *text_shown(const char *s)
{
	AUTO_BUF struct buf out = buf_with(LINE_BYTES);

	init_yaml_comment(&out, s ? s : "", COMMENT_MAX);
	return buf_take(&out);
}

/* A line of the file: what it sets, or would, and why. A value of "" is a key with others below it;
 * of NULL: the line is left out. */
static void init_add_line(struct buf *out, bool active, const char *key, const char *value,
	const char *fmt, ...) ERR_PRINTF(5, 6);
static void init_add_line(
	struct buf *out, bool active, const char *key, const char *value, const char *fmt, ...)
{
	size_t begin = out->len;
	va_list args;

	if (!value)
		return;
	va_start(args, fmt);
	AUTO_FREE char *comment = mem_vprintf(fmt, args);
	va_end(args);
	buf_addf(out, "%s%s:%s%s", active ? "" : "# ", key, *value ? " " : "", value);
	size_t wide = out->len - begin;
	buf_addf(out, "%*s# %s\n", wide < COMMENT_COLUMN ? (int)(COMMENT_COLUMN - wide) : 2, "",
		comment);
}

/*
 * The keys
 */

static bool init_has_clusters(const struct init_answers *answers)
{
	return answers->clusters && answers->clusters->n > 0;
}

static void init_add_command(
	const struct init_project *project, const struct init_answers *answers, struct buf *out)
{
	const struct init_command *first = project->commands.n ? project->commands.v : NULL;
	AUTO_FREE char *from = text_shown(first ? first->from : NULL);
	AUTO_FREE char *value = answers->command ? text_scalar(answers->command)
				: first          ? text_list(&first->words)
						 : mem_strdup("[python3, train.py]");

	if (answers->command)
		init_add_line(
			out, true, "command", value, "a line for the shell; dlrun submit runs it");
	else if (first)
		init_add_line(out, true, "command", value, "dlrun submit runs it; from %s", from);
	else
		init_add_line(out, false, "command", value,
			"what `dlrun submit` runs when it is given no command");
}

/* Only uv's environment is known to be whole without anything of this shell. */
static void init_add_env(const struct init_project *project, struct buf *out)
{
	bool active = project->env == INIT_ENV_UV && project->env_tool && !project->env_active;
	bool is_poetry = project->env == INIT_ENV_POETRY;

	if (!project->lock)
		return;
	AUTO_FREE char *path = fs_join_normal(project->prefix, project->lock);
	AUTO_FREE char *key = text_scalar(path);
	AUTO_FREE char *value =
		!is_poetry ? mem_printf("{lock: %s}", project->lock)
		: key      ? mem_printf("{run: poetry install --no-interaction, key: [%s]}", key)
			   : NULL;
	init_add_line(out, active, is_poetry ? "setup" : "environment", value, "%s%s",
		active ? "made once for each " : "instead of this shell's: one for each ",
		project->lock);
}

char *init_image(const struct init_project *project)
{
	static const char library[] = "docker.io/library/", hub[] = "docker.io/";
	AUTO_REF struct ref ref = {0};
	const char *image = project->image ? project->image : "";
	const char *slash = strchr(image, '/');
	bool has_host = slash && memchr(image, '.', (size_t)(slash - image));

	has_host = has_host || (slash && memchr(image, ':', (size_t)(slash - image)));
	AUTO_FREE char *whole = mem_printf("%s%s", has_host ? "" : slash ? hub : library, image);
	if (ref_parse(whole, &ref, NULL) < 0 || ref.kind != REF_REGISTRY)
		return NULL;
	return TAKE(whole);
}

static void init_add_data(
	const struct init_project *project, const struct init_answers *answers, struct buf *out)
{
	AUTO_STRV struct strv paths = {0};
	uint64_t bytes = 0;
	bool at_least = false;
	char size[16];

	vec_foreach (const struct init_data, data, &project->data) {
		if (!str_is_utf8(data->path, strlen(data->path)))
			continue;
		strv_add(&paths, data->path);
		bytes += data->bytes;
		at_least |= data->at_least;
	}
	AUTO_FREE char *value = paths.n ? text_list(&paths) : NULL;
	init_add_line(out, !answers->no_data, "data", value,
		"ignored by git, %s%s: stays here, and runs find it", at_least ? "more than " : "",
		str_size(bytes, size));
}

/* Where it could also run: a comment. */
static void init_add_place(const struct strv *names, const char *kind, const char *how,
	const char *from, struct buf *out)
{
	AUTO_BUF struct buf others = buf_with(LINE_BYTES);

	if (names->n == 0)
		return;
	AUTO_FREE char *target = mem_printf("%s:%s", kind, names->v[0]);
	AUTO_FREE char *value = text_scalar(target);
	for (size_t i = 1; i < names->n && i <= NAMES_SHOWN; i++) {
		buf_adds(&others, i > 1 ? ", " : ", which also has ");
		init_yaml_comment(&others, names->v[i], COMMENT_MAX);
	}
	if (names->n > 1 + NAMES_SHOWN)
		buf_addf(&others, " and %zu more", names->n - 1 - NAMES_SHOWN);
	init_add_line(out, false, "target", value, "%s; from %s%s", how, from, others.data);
}

static void init_add_cluster(
	const struct init_cluster *cluster, const struct init_answers *answers, struct buf *out)
{
	const struct kube_poll *poll = &cluster->poll;
	const char *space = poll->cluster ? poll->cluster->access.kube_namespace : "NAMESPACE";
	const char *registry = answers->registry;
	/* A claim for each run is there only where something makes the storage for it. */
	bool may_claim = poll->default_class && poll->may_claim;
	AUTO_FREE char *class_name = text_shown(poll->default_class);
	AUTO_FREE char *head = mem_printf("  %s", cluster->name);
	const struct {
		const char *key, *value, *example, *comment;
	} members[] = {
		{"    kind", "kubernetes", NULL, "a Job for each run"},
		{"    context", cluster->context, "CONTEXT", "of the kubeconfig"},
		{"    namespace", cluster->kube_namespace, space,
			cluster->kube_namespace ? "where the Jobs are made"
						: "default: that of the context"},
		{"    registry", registry, "registry.example.com/me/dlrun",
			registry ? "images of runs are pushed there"
				 : "needed: images of runs are pushed there"},
		{"    image_pull_secret", NULL, "regcred",
			"if nodes need a login to pull from the registry"},
	};

	init_add_line(out, true, head, "", "dlrun targets");
	for (size_t i = 0; i < ARRAY_LEN(members); i++) {
		AUTO_FREE char *value = members[i].value ? text_scalar(members[i].value)
							 : mem_strdup(members[i].example);
		init_add_line(out, members[i].value != NULL, members[i].key, value, "%s",
			members[i].comment);
	}
	if (may_claim)
		init_add_line(out, true, "    results", "{claim: 20Gi}",
			"storage of each run, until dlrun rm; of StorageClass %s", class_name);
	else
		init_add_line(out, false, "    results", "{pvc: results}",
			"storage for results; without it a pod waits for fetch");
	init_add_line(out, false, "    queue", "gpu", "of Kueue, if the cluster has it");
}

void init_text(
	const struct init_project *project, const struct init_answers *answers, struct buf *out)
{
	bool limit = answers->limit_paths;
	AUTO_STRV struct strv prefix = {0};

	strv_add(&prefix, project->prefix);
	AUTO_FREE char *name = project->name_from ? text_scalar(project->name) : NULL;
	AUTO_FREE char *name_from = text_shown(project->name_from);
	AUTO_FREE char *paths = str_eq(project->prefix, ".") ? NULL : text_list(&prefix);
	/* Outputs are collected without this line, too, but a pod that is killed loses what is not
	 * in its storage by then. */
	AUTO_FREE char *outputs = project->outputs.n && init_has_clusters(answers)
					  ? text_list(&project->outputs)
					  : NULL;
	buf_adds(out, "# How this project runs. Every key: dlrun help dlrun.yaml\n");
	init_add_line(out, true, "name", name, "runs are called this and five characters; from %s",
		name_from);
	init_add_command(project, answers, out);
	init_add_line(out, limit, "paths", paths, "%s",
		limit ? "only this part of the repository goes into runs"
		      : "to send only this part of the repository");
	init_add_env(project, out);
	init_add_data(project, answers, out);
	init_add_line(out, true, "outputs", outputs,
		"written to the storage of results: while the program runs");
	AUTO_FREE char *image = init_image(project), *from = text_shown(project->image_from);
	AUTO_FREE char *value = project->image ? text_scalar(image ? image : project->image) : NULL;

	if (project->image)
		init_add_line(out, image && init_has_clusters(answers), "image", value,
			"%s: what the program runs in on a cluster", from);
	else if (init_has_clusters(answers))
		init_add_line(out, false, "image", "docker.io/library/python:3.12",
			"what the program runs in on a cluster");
	if (init_has_clusters(answers)) {
		AUTO_FREE char *first = text_scalar(answers->clusters->v[0].name);

		init_add_line(
			out, true, "target", first, "where runs go; dlrun submit -t local: here");
		init_add_line(
			out, true, "targets", "", "each key of a target: dlrun help dlrun.yaml");
		vec_foreach (const struct init_cluster, cluster, answers->clusters)
			init_add_cluster(cluster, answers, out);
	} else {
		init_add_place(&project->contexts, "kube", "dlrun init --target kube writes it",
			"the kubeconfig", out);
	}
	init_add_place(&project->hosts, "ssh", "an SSH host", "~/.ssh/config", out);
}

char *init_command_text(const struct init_command *command)
{
	struct buf out = buf_with(LINE_BYTES);

	str_shell_join(&out, command->words.v);
	return out.data;
}

/*
 * Putting it in place
 */

static int fail_exists(const char *path, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(path);

	err_set(err, E_INIT_EXISTS, "there is a " CONFIG_FILE " already: %s", shown);
	return err_hint(err, "dlrun init --print shows what would be written, --force replaces it");
}

int init_check_free(const char *dir, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, CONFIG_FILE);
	struct stat st;

	return lstat(path, &st) == 0 ? fail_exists(path, err) : 0;
}

/* A link fails when the name is taken, in one step; where there are no hard links the look and the
 * rename are two. */
static int put_new(const char *temp, const char *path, struct err *err)
{
	struct stat st;

	if (link(temp, path) == 0)
		return 0;
	if (errno == EEXIST || lstat(path, &st) == 0)
		return fail_exists(path, err);
	return rename(temp, path) < 0 ? fs_error(err, errno, "%s", path) : 0;
}

/* The old one gets its second name first, so that the rename that follows loses nothing. */
static int put_over(const char *temp, const char *path, bool *ret_kept, struct err *err)
{
	AUTO_FREE char *backup = mem_printf("%s~", path);
	AUTO_FREE char *second = mem_printf("%s.old", temp);
	struct stat st;
	int r = 0;

	*ret_kept = lstat(path, &st) == 0;
	if (*ret_kept && S_ISDIR(st.st_mode))
		return fs_error(err, EISDIR, "%s", path);
	if (*ret_kept && linkat(AT_FDCWD, path, AT_FDCWD, second, 0) < 0)
		r = rename(path, backup);
	else if (*ret_kept)
		r = rename(second, backup);
	if (r < 0)
		r = fs_error(err, errno, "%s", backup);
	/* Also when it was renamed: the rename of one of two names of a file to the other does
	 * nothing. */
	unlink(second);
	if (r < 0)
		return r;
	return rename(temp, path) < 0 ? fs_error(err, errno, "%s", path) : 0;
}

int init_put(const char *dir, const char *text, bool force, bool *ret_kept, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, CONFIG_FILE);
	AUTO_FREE char *temp = NULL;
	AUTO_CONFIG struct config *config = NULL;
	bool kept = false;
	uint64_t number;

	random_bytes(&number, sizeof(number));
	temp = mem_printf("%s/.dlrun-init-%016llx", dir, (unsigned long long)number);
	int r = force ? 0 : init_check_free(dir, err);
	if (r == 0)
		r = fs_replace(temp, text, strlen(text), 0644, FS_SYNC_NONE, err);
	if (r < 0)
		return r;
	/* As the next command would read it; a failure is a fault of init_text. */
	r = config_load(&(struct config_files){.project = temp}, &config, err);
	if (r < 0)
		err_prefix(err, "what would be written is not valid");
	else
		r = force ? put_over(temp, path, &kept, err) : put_new(temp, path, err);
	unlink(temp);
	if (r == 0)
		*ret_kept = kept;
	return r;
}
