/* SPDX-License-Identifier: Apache-2.0 */
#include "app/init/init.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/init/init_yaml.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "core/config/config.h"
#include "oci/model/ref.h"

enum { COMMENT_COLUMN = 40, COMMENT_MAX = 200, NAMES_SHOWN = 8, LINE_BYTES = 64 << 10 };

/*
 * Lines
 */

/* A line of the file: what it sets (or would), and why. */
struct line {
	struct buf value, comment;
	bool active, broken;
};

static void line_init(struct line *line, const char *key)
{
	*line = (struct line){.active = true};
	buf_init(&line->value, LINE_BYTES);
	buf_init(&line->comment, LINE_BYTES);
	if (key)
		buf_addf(&line->value, "%s: ", key);
}

static void line_done(struct line *line)
{
	buf_done(&line->value);
	buf_done(&line->comment);
}
#define AUTO_LINE AUTO(line_done)

static void add_scalar(struct line *line, const char *s)
{
	line->broken |= !init_yaml_scalar(&line->value, s);
}

static void add_list(struct line *line, const struct strv *words)
{
	line->broken |= !init_yaml_list(&line->value, words);
}

static void add_comment(struct line *line, const char *s)
{
	init_yaml_comment(&line->comment, s, COMMENT_MAX);
}

/* Leave out values that YAML cannot hold: such a name is not UTF-8. */
static void line_end(const struct line *line, struct buf *out)
{
	size_t begin = out->len;

	if (line->broken || line->value.full || line->comment.full)
		return;
	buf_addf(out, "%s%s", line->active ? "" : "# ", line->value.data);
	size_t wide = out->len - begin;
	buf_addf(out, "%*s# %s\n", wide < COMMENT_COLUMN ? (int)(COMMENT_COLUMN - wide) : 2, "",
		line->comment.data);
}

static bool has_key(const char *name)
{
	for (size_t i = 0; i < config_keys_n; i++)
		if (str_eq(config_keys[i].name, name))
			return true;
	return false;
}

/* "a, b and 3 more", from the first on. */
static void add_names(struct line *line, const struct strv *names, size_t first)
{
	size_t shown = names->n - first > NAMES_SHOWN ? NAMES_SHOWN : names->n - first;

	for (size_t i = 0; i < shown; i++) {
		buf_adds(&line->comment, i ? ", " : "");
		add_comment(line, names->v[first + i]);
	}
	if (names->n - first > shown)
		buf_addf(&line->comment, " and %zu more", names->n - first - shown);
}

/*
 * The keys
 */

static bool has_clusters(const struct init_answers *answers)
{
	return answers->clusters && answers->clusters->n > 0;
}

static void add_name(const struct init_project *project, struct buf *out)
{
	AUTO_LINE struct line line;

	line_init(&line, "name");
	if (!project->name_from)
		return;
	add_scalar(&line, project->name);
	buf_adds(&line.comment, "runs are called this and five characters; from ");
	add_comment(&line, project->name_from);
	line_end(&line, out);
}

static void add_no_command(struct buf *out)
{
	AUTO_LINE struct line line;

	line_init(&line, "command");
	line.active = false;
	buf_adds(&line.value, "[python3, train.py]");
	buf_adds(&line.comment, "what `dlrun submit` runs when it is given no command");
	line_end(&line, out);
}

static void add_command(
	const struct init_project *project, const struct init_answers *answers, struct buf *out)
{
	const struct init_command *first = project->commands.n ? project->commands.v : NULL;
	AUTO_LINE struct line line;

	line_init(&line, "command");
	if (answers->command) {
		add_scalar(&line, answers->command);
		buf_adds(&line.comment, "a line for the shell; dlrun submit runs it");
	} else if (first) {
		add_list(&line, &first->words);
		buf_adds(&line.comment, "dlrun submit runs it; from ");
		add_comment(&line, first->from);
	}
	if (first || answers->command)
		line_end(&line, out);
	else
		add_no_command(out);
}

static void add_paths(
	const struct init_project *project, const struct init_answers *answers, struct buf *out)
{
	AUTO_STRV struct strv paths = {0};
	AUTO_LINE struct line line;

	line_init(&line, "paths");
	if (str_eq(project->prefix, "."))
		return;
	strv_add(&paths, project->prefix);
	add_list(&line, &paths);
	line.active = answers->limit_paths;
	buf_adds(&line.comment, answers->limit_paths
					? "only this part of the repository goes into runs"
					: "to send only this part of the repository");
	line_end(&line, out);
}

/* Command that fills the environment; NULL: none that may run unseen. */
static const char *setup_command(const struct init_project *project)
{
	static const char *const commands[] = {
		[INIT_ENV_UV] = "uv sync --frozen",
		[INIT_ENV_POETRY] = "poetry install --no-interaction",
		[INIT_ENV_PIP] = "python3 -m venv .venv && .venv/bin/pip install -r "
				 "requirements.txt",
	};

	if (project->env == INIT_ENV_NONE || project->env == INIT_ENV_CONDA ||
		project->env_files.n == 0)
		return NULL;
	return commands[project->env];
}

/* Only uv's is known to stay below the tree and to need nothing of this shell. */
static void add_setup(const struct init_project *project, struct buf *out)
{
	const char *command = setup_command(project);
	AUTO_LINE struct line line;

	line_init(&line, "setup");
	if (!command)
		return;
	line.active = project->env == INIT_ENV_UV && project->env_tool && !project->env_active &&
		      has_key("setup.run") && str_ends(project->env_files.v[0], "uv.lock");
	buf_adds(&line.value, "{run: ");
	add_scalar(&line, command);
	buf_adds(&line.value, ", key: ");
	add_list(&line, &project->env_files);
	buf_addc(&line.value, '}');
	buf_adds(&line.comment, line.active ? "the environment, made once for each "
					    : "instead of this shell's environment: one for each ");
	add_comment(&line, project->env_files.v[0]);
	line_end(&line, out);
}

static void add_before(const struct init_project *project, struct buf *out)
{
	AUTO_LINE struct line line;

	line_init(&line, "before");
	if (project->env != INIT_ENV_CONDA || !project->conda_name)
		return;
	line.active = false;
	AUTO_BUF struct buf text;
	buf_init(&text, LINE_BYTES);
	buf_adds(&text, "eval \"$(conda shell.bash hook)\" && conda activate ");
	str_shell_quote(&text, project->conda_name);
	add_scalar(&line, text.data);
	buf_adds(&line.comment, "instead of this shell's environment; from ");
	add_comment(&line, project->env_files.v[0]);
	line_end(&line, out);
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

/* Name the image as missing: a cluster needs one, and the project does not tell which. */
static void add_no_image(struct buf *out)
{
	AUTO_LINE struct line line;

	line_init(&line, "image");
	line.active = false;
	buf_adds(&line.value, "docker.io/library/python:3.12");
	buf_adds(&line.comment, "what the program runs in on a cluster");
	line_end(&line, out);
}

static void add_image(
	const struct init_project *project, const struct init_answers *answers, struct buf *out)
{
	AUTO_FREE char *image = init_image(project);
	AUTO_LINE struct line line;

	line_init(&line, "image");
	if (!project->image) {
		if (has_clusters(answers))
			add_no_image(out);
		return;
	}
	line.active = image && has_clusters(answers);
	add_scalar(&line, image ? image : project->image);
	add_comment(&line, project->image_from);
	buf_adds(&line.comment, ": what the program runs in on a cluster");
	line_end(&line, out);
}

static void add_data(
	const struct init_project *project, const struct init_answers *answers, struct buf *out)
{
	AUTO_STRV struct strv paths = {0};
	AUTO_LINE struct line line;
	uint64_t bytes = 0;
	bool at_least = false;
	char size[16];

	line_init(&line, "data");
	vec_foreach (const struct init_data, data, &project->data) {
		if (!str_is_utf8(data->path, strlen(data->path)))
			continue;
		strv_add(&paths, data->path);
		bytes += data->bytes;
		at_least |= data->at_least;
	}
	if (paths.n == 0)
		return;
	line.active = !answers->no_data && has_key("data");
	add_list(&line, &paths);
	buf_addf(&line.comment, "ignored by git, %s%s: stays here, and runs find it",
		at_least ? "more than " : "", str_size(bytes, size));
	line_end(&line, out);
}

/* Outputs are collected without this line, too, but a pod that is killed loses what is not in its
 * storage by then. */
static void add_outputs(
	const struct init_project *project, const struct init_answers *answers, struct buf *out)
{
	AUTO_LINE struct line line;

	line_init(&line, "outputs");
	if (project->outputs.n == 0 || !has_clusters(answers))
		return;
	add_list(&line, &project->outputs);
	buf_adds(&line.comment, "written to the storage of results: while the program runs");
	line_end(&line, out);
}

/* Where it could also run: a comment. */
static void add_place(const struct strv *names, const char *kind, const char *how, const char *from,
	struct buf *out)
{
	AUTO_LINE struct line line;

	line_init(&line, "target");
	if (names->n == 0)
		return;
	line.active = false;
	AUTO_FREE char *target = mem_printf("%s:%s", kind, names->v[0]);
	add_scalar(&line, target);
	buf_addf(&line.comment, "%s; from %s", how, from);
	if (names->n > 1) {
		buf_adds(&line.comment, ", which also has ");
		add_names(&line, names, 1);
	}
	line_end(&line, out);
}

/*
 * Clusters
 */

/* A line of a target; value NULL: what follows key is a comment with the example. */
static void add_member(const char *key, const char *value, const char *example, const char *comment,
	struct buf *out)
{
	AUTO_FREE char *indented = mem_printf("    %s", key);
	AUTO_LINE struct line line;

	line_init(&line, indented);
	line.active = value != NULL;
	if (value)
		add_scalar(&line, value);
	else
		buf_adds(&line.value, example);
	buf_adds(&line.comment, comment);
	line_end(&line, out);
}

static void add_head(const char *key, const char *comment, struct buf *out)
{
	AUTO_LINE struct line line;

	line_init(&line, NULL);
	buf_addf(&line.value, "%s:", key);
	buf_adds(&line.comment, comment);
	line_end(&line, out);
}

static const char *context_namespace(const struct init_cluster *cluster)
{
	const struct kube_cluster *found = cluster->look.cluster;

	return found ? found->access.kube_namespace : "NAMESPACE";
}

/* A claim for each run is there only where something makes the storage for it. */
static void add_results(const struct kube_look *look, struct buf *out)
{
	AUTO_LINE struct line line;

	line_init(&line, "    results");
	line.active = look->default_class && look->may_claim;
	buf_adds(&line.value, line.active ? "{claim: 20Gi}" : "{pvc: results}");
	if (line.active) {
		buf_adds(&line.comment, "storage of each run, until dlrun rm; of StorageClass ");
		init_yaml_comment(&line.comment, look->default_class, COMMENT_MAX);
	} else {
		buf_adds(&line.comment, "storage for results; without it a pod waits for fetch");
	}
	line_end(&line, out);
}

static void add_cluster(
	const struct init_cluster *cluster, const struct init_answers *answers, struct buf *out)
{
	AUTO_FREE char *key = mem_printf("  %s", cluster->name);

	add_head(key, "dlrun targets", out);
	add_member("kind", "kubernetes", NULL, "a Job for each run", out);
	add_member("context", cluster->context, "CONTEXT", "of the kubeconfig", out);
	add_member("namespace", cluster->kube_namespace, context_namespace(cluster),
		cluster->kube_namespace ? "where the Jobs are made"
					: "default: that of the context",
		out);
	add_member("registry", answers->registry, "registry.example.com/me/dlrun",
		answers->registry ? "images of runs are pushed there"
				  : "needed: images of runs are pushed there",
		out);
	add_member("image_pull_secret", NULL, "regcred",
		"if nodes need a login to pull from the registry", out);
	add_results(&cluster->look, out);
	add_member("queue", NULL, "gpu", "of Kueue, if the cluster has it", out);
}

static void add_clusters(const struct init_answers *answers, struct buf *out)
{
	AUTO_LINE struct line line;

	line_init(&line, "target");
	add_scalar(&line, answers->clusters->v[0].name);
	buf_adds(&line.comment, "where runs go; dlrun submit -t local: here");
	line_end(&line, out);
	add_head("targets", "each key of a target: dlrun help dlrun.yaml", out);
	vec_foreach (const struct init_cluster, cluster, answers->clusters)
		add_cluster(cluster, answers, out);
}

void init_text(
	const struct init_project *project, const struct init_answers *answers, struct buf *out)
{
	buf_adds(out, "# How this project runs. Every key: dlrun help dlrun.yaml\n");
	add_name(project, out);
	add_command(project, answers, out);
	add_paths(project, answers, out);
	add_setup(project, out);
	add_before(project, out);
	add_data(project, answers, out);
	add_outputs(project, answers, out);
	add_image(project, answers, out);
	if (has_clusters(answers))
		add_clusters(answers, out);
	else
		add_place(&project->contexts, "kube", "dlrun init --target kube writes it",
			"the kubeconfig", out);
	add_place(&project->hosts, "ssh", "an SSH host", "~/.ssh/config", out);
}

char *init_command_text(const struct init_command *command)
{
	struct buf out;

	buf_init(&out, LINE_BYTES);
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

/* As the next command would; a failure is a fault of init_text. */
static int check_text(const char *temp, struct err *err)
{
	AUTO_CONFIG struct config *config = NULL;
	struct config_files files = {.project = temp};

	int r = config_load(&files, &config, err);
	return r < 0 ? err_prefix(err, "what would be written is not valid") : 0;
}

/* A link fails when the name is taken, in one step; where there are no hard links the look and the
 * rename are two. */
static int place_new(const char *temp, const char *path, struct err *err)
{
	struct stat st;

	if (link(temp, path) == 0)
		return 0;
	if (errno == EEXIST)
		return fail_exists(path, err);
	if (lstat(path, &st) == 0)
		return fail_exists(path, err);
	return rename(temp, path) < 0 ? fs_error(err, errno, "%s", path) : 0;
}

/* The old one gets its second name first, so that the rename that follows loses nothing. */
static int keep_old(const char *path, const char *temp, struct err *err)
{
	AUTO_FREE char *backup = mem_printf("%s~", path);
	AUTO_FREE char *second = mem_printf("%s.old", temp);
	struct stat st;

	if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return fs_error(err, EISDIR, "%s", path);
	if (linkat(AT_FDCWD, path, AT_FDCWD, second, 0) < 0)
		return rename(path, backup) < 0 ? fs_error(err, errno, "%s", backup) : 0;
	if (rename(second, backup) == 0) {
		/* Two names of one file already: the rename has done nothing. */
		unlink(second);
		return 0;
	}
	int r = fs_error(err, errno, "%s", backup);
	unlink(second);
	return r;
}

static int place_over(const char *temp, const char *path, bool *ret_kept, struct err *err)
{
	struct stat st;
	int r = 0;

	*ret_kept = lstat(path, &st) == 0;
	if (*ret_kept)
		r = keep_old(path, temp, err);
	if (r < 0)
		return r;
	return rename(temp, path) < 0 ? fs_error(err, errno, "%s", path) : 0;
}

static char *temp_name(const char *dir)
{
	uint64_t number;

	random_bytes(&number, sizeof(number));
	return mem_printf("%s/.dlrun-init-%016llx", dir, (unsigned long long)number);
}

int init_put(const char *dir, const char *text, bool force, bool *ret_kept, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, CONFIG_FILE);
	AUTO_FREE char *temp = temp_name(dir);
	bool kept = false;

	int r = force ? 0 : init_check_free(dir, err);
	if (r == 0)
		r = fs_replace(temp, text, strlen(text), 0644, FS_SYNC_NONE, err);
	if (r < 0)
		return r;
	r = check_text(temp, err);
	if (r == 0)
		r = force ? place_over(temp, path, &kept, err) : place_new(temp, path, err);
	unlink(temp);
	if (r == 0)
		*ret_kept = kept;
	return r;
}
