/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/launcher.h"

#include <stdlib.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { LINE_MAX_BYTES = 4 << 20 };

/* module: of Python, that is the launcher; NULL: a program of its own, for any other. flags: what
 * stands in front of the program. */
static const struct {
	const char *name, *module, *module_flag;
} launchers[] = {
	[LAUNCHER_NONE] = {"none", NULL, NULL},
	[LAUNCHER_TORCHRUN] = {"torchrun", "torch.distributed.run", "-m"},
	[LAUNCHER_MPIRUN] = {"mpirun", NULL, NULL},
	[LAUNCHER_ACCELERATE] = {"accelerate", "accelerate.commands.launch", "-m"},
	[LAUNCHER_DEEPSPEED] = {"deepspeed", "deepspeed.launcher.launch", "--module"},
};

/*
 * The name
 */

static enum launcher_kind launcher_find(const char *name)
{
	size_t kind = 0;

	while (kind < ARRAY_LEN(launchers) && !str_eq(name, launchers[kind].name))
		kind++;
	return (enum launcher_kind)kind;
}

int launcher_parse(const char *text, struct launcher *ret, struct err *err)
{
	AUTO_FREE char *name = mem_strndup(text, strcspn(text, ":"));
	const char *number = text[strlen(name)] ? text + strlen(name) + 1 : NULL;
	const char *names[ARRAY_LEN(launchers)];
	enum launcher_kind kind = launcher_find(name);
	int64_t processes = 0;

	if (kind < ARRAY_LEN(launchers) && (!number || kind != LAUNCHER_NONE)) {
		int r = number ? str_to_int(number, 1, LAUNCHER_PROCESSES_MAX,
					 "processes of the launcher", &processes, err)
			       : 0;
		if (r == 0)
			*ret = (struct launcher){kind, (int)processes};
		return r;
	}
	for (size_t i = 0; i < ARRAY_LEN(launchers); i++)
		names[i] = launchers[i].name;
	AUTO_FREE char *shown = str_shown(text);
	const char *near = str_suggest(name, names, ARRAY_LEN(names));
	err_set(err, E_USAGE,
		"'%s' is not a launcher: torchrun, mpirun, accelerate, deepspeed or none", shown);
	if (near)
		return err_hint(err, "did you mean %s?", near);
	return err_hint(err, "dlrun submit --launcher torchrun:2 -- python3 train.py");
}

char *launcher_text(const struct launcher *launcher)
{
	const char *name = launchers[launcher->kind].name;

	return launcher->processes ? mem_printf("%s:%d", name, launcher->processes)
				   : mem_strdup(name);
}

/*
 * Where Python is in a command
 */

/* Programs that run others in an environment: `uv run python train.py`. */
static const char *const runners[] = {
	"uv", "poetry", "pdm", "pixi", "rye", "pipenv", "hatch", "conda", "mamba", "micromamba"};

struct python {
	size_t n;        /* words up to the interpreter, that included */
	size_t program;  /* the word of the file, or of the module */
	bool is_implied; /* `uv run train.py`: no word is the interpreter */
	bool is_module;
};

static bool launcher_is_python(const char *word)
{
	const char *name = fs_basename(word);

	if (str_starts(name, "pypy"))
		return true;
	return str_starts(name, "python") && !name[strspn(name, "python0123456789.")];
}

static bool launcher_is_runner(const struct strv *command)
{
	for (size_t i = 0; command->n > 2 && i < ARRAY_LEN(runners); i++)
		if (str_eq(fs_basename(command->v[0]), runners[i]))
			return str_eq(command->v[1], "run");
	return false;
}

/* Options of runners whose value is the next word. */
static const char *const runner_values[] = {"-p", "--python", "--with", "--with-editable",
	"--with-requirements", "--extra", "--no-extra", "--group", "--no-group", "--only-group",
	"--package", "--no-install-package", "--env-file", "--project", "--directory", "--index",
	"--index-url", "--extra-index-url", "--find-links", "-n", "--name", "--prefix", "-e",
	"--environment", "--manifest-path", "--cwd"};

static bool launcher_has_value(const char *option)
{
	for (size_t i = 0; i < ARRAY_LEN(runner_values); i++)
		if (str_eq(option, runner_values[i]))
			return true;
	return false;
}

/* Find the interpreter, or the file that a runner starts without naming one; false: neither. */
static bool launcher_find_python(const struct strv *command, struct python *ret)
{
	size_t i = 2;

	*ret = (struct python){0};
	if (launcher_is_python(command->v[0])) {
		ret->n = ret->program = 1;
		return true;
	}
	if (!launcher_is_runner(command))
		return false;
	while (i < command->n && command->v[i][0] == '-' && !str_eq(command->v[i], "-m"))
		i += launcher_has_value(command->v[i]) ? 2 : 1;
	if (i >= command->n)
		return false;
	ret->is_implied = str_eq(command->v[i], "-m") || str_ends(command->v[i], ".py");
	ret->n = ret->program = ret->is_implied ? i : i + 1;
	return ret->is_implied || launcher_is_python(command->v[i]);
}

/* The launcher begins Python anew, with -u. */
static int launcher_skip_options(const struct launcher *launcher, const struct strv *command,
	struct python *python, struct err *err)
{
	const char *name = launchers[launcher->kind].name;
	size_t i = python->program;

	for (; i < command->n && command->v[i][0] == '-'; i++) {
		if (str_eq(command->v[i], "-u"))
			continue;
		if (str_eq(command->v[i], "-m")) {
			python->is_module = true;
			i++;
			break;
		}
		AUTO_FREE char *shown = str_shown(command->v[i]);
		err_set(err, E_USAGE, "%s starts a file or a module of Python, not python %s", name,
			shown);
		if (str_eq(command->v[i], "-c") || str_eq(command->v[i], "-"))
			return err_hint(err, "write the program into a file");
		return err_hint(err, "options of Python as variables: -e PYTHONOPTIMIZE=1");
	}
	python->program = i;
	if (i < command->n)
		return 0;
	return err_set(err, E_USAGE, "%s: the command names no file and no module of Python", name);
}

static bool launcher_is_one(const struct strv *command, const struct python *python)
{
	const char *word = command->v[python ? python->program : 0];

	if (!python)
		return launcher_find(fs_basename(word)) != LAUNCHER_NONE &&
		       launcher_find(fs_basename(word)) < ARRAY_LEN(launchers);
	return python->is_module && (str_starts(word, "torch.distributed.") ||
					    str_starts(word, "accelerate.commands.") ||
					    str_starts(word, "deepspeed.launcher."));
}

static int launcher_check_python(
	const struct launcher *launcher, const struct strv *command, struct err *err)
{
	const char *name = launchers[launcher->kind].name;
	AUTO_FREE char *shown = str_shown(command->v[0]);
	struct python python;

	if (launcher_find_python(command, &python)) {
		int r = launcher_skip_options(launcher, command, &python, err);
		if (r < 0 || !launcher_is_one(command, &python))
			return r;
		err_set(err, E_USAGE, "%s: the command has a launcher already: -m %s", name,
			command->v[python.program]);
		return err_hint(err, "--launcher none");
	}
	err_set(err, E_USAGE,
		"%s starts Python programs, and %s is not python: "
		"python3 FILE, python3 -m MODULE, uv run FILE",
		name, shown);
	return err_hint(err, "--launcher none");
}

int launcher_check(const struct launcher *launcher, const struct strv *command, bool shell,
	int nodes, struct err *err)
{
	const char *name = launchers[launcher->kind].name;

	if (launcher->kind == LAUNCHER_NONE)
		return 0;
	if (shell) {
		err_set(err, E_USAGE,
			"%s starts a program and its arguments, not a line for the shell", name);
		return err_hint(err, "--launcher none");
	}
	if (launcher_is_one(command, NULL)) {
		err_set(err, E_USAGE, "%s: the command has a launcher already: %s", name,
			fs_basename(command->v[0]));
		return err_hint(err, "--launcher none");
	}
	if (launchers[launcher->kind].module)
		return launcher_check_python(launcher, command, err);
	if (nodes <= 1)
		return 0;
	err_set(err, E_USAGE,
		"mpirun is for one node: between nodes it would log in by ssh, which dlrun does "
		"not prepare");
	return err_hint(err, "--launcher torchrun");
}

/*
 * The words
 */

struct values {
	const char *nodes, *rank, *processes, *total, *address, *port;
};

/* Texts of the line for the shell, at the program's place. Its variables begin with dl_: a name
 * that the user exports would be changed for the program. */
static const struct values in_place = {
	.nodes = "\"${NNODES:-1}\"",
	.rank = "\"${NODE_RANK:-0}\"",
	.processes = "\"$dl_n\"",
	.total = "\"$dl_t\"",
	.address = "\"$MASTER_ADDR\"",
	.port = "\"$MASTER_PORT\"",
};

static void launcher_add_flags(
	const struct launcher *launcher, const struct values *values, struct buf *out)
{
	switch (launcher->kind) {
	case LAUNCHER_TORCHRUN:
		/* By underscores they are those of old versions, too. */
		buf_addf(out,
			" --nnodes %s --node_rank %s --nproc_per_node %s --master_addr %s "
			"--master_port %s",
			values->nodes, values->rank, values->processes, values->address,
			values->port);
		break;
	case LAUNCHER_ACCELERATE:
		buf_addf(out,
			" --num_machines %s --machine_rank %s --num_processes %s --main_process_ip "
			"%s --main_process_port %s",
			values->nodes, values->rank, values->total, values->address, values->port);
		break;
	case LAUNCHER_DEEPSPEED:
		buf_addf(out, " --node_rank %s --master_addr %s --master_port %s", values->rank,
			values->address, values->port);
		break;
	case LAUNCHER_MPIRUN:
		buf_addf(out, " -n %s", values->processes);
		break;
	case LAUNCHER_NONE:
		break;
	}
}

/* Several processes of a node are begun by accelerate only as those of GPUs; the library in them
 * takes the CPU then. The flag would replace what the user's own configuration says of FSDP and the
 * like. */
static const char accelerate_lines[] =
	"dl_m=--cpu\n"
	"if [ \"$dl_t\" -gt 1 ]; then\n"
	"\tdl_m=--multi_gpu\n"
	"\t[ \"${DLRUN_GPUS_PER_NODE:-0}\" -gt 0 ] || export ACCELERATE_USE_CPU=true\n"
	"elif [ \"${DLRUN_GPUS_PER_NODE:-0}\" -gt 0 ]; then\n"
	"\tdl_m=\n"
	"fi\n"
	"dl_f=${XDG_CACHE_HOME:-${HOME-}/.cache}/huggingface\n"
	"dl_f=${HF_HOME:-$dl_f}/accelerate/default_config.yaml\n"
	"[ \"$dl_m\" != --multi_gpu ] || "
	"! grep -qE \"^distributed_type: *'?(DEEPSPEED|FSDP|MEGATRON_LM)\" \"$dl_f\" 2>/dev/null || "
	"dl_m=\n";

/* The program `deepspeed` takes the first GPUs of the machine, whichever were given: the module
 * that it starts on each node gets their names. */
static const char deepspeed_lines[] = "dl_v=${CUDA_VISIBLE_DEVICES-} dl_l= dl_i=0\n"
				      "while [ \"$dl_i\" -lt \"$dl_n\" ]; do\n"
				      "\tdl_d=${dl_v%%,*}\n"
				      "\tdl_l=$dl_l${dl_l:+,}\\\"${dl_d:-$dl_i}\\\"\n"
				      "\tcase $dl_v in *,*) dl_v=${dl_v#*,} ;; *) dl_v= ;; esac\n"
				      "\tdl_i=$((dl_i + 1))\n"
				      "done\n"
				      "dl_w= dl_i=0\n"
				      "while [ \"$dl_i\" -lt \"${NNODES:-1}\" ]; do\n"
				      "\tdl_w=$dl_w${dl_w:+,}\\\"node$dl_i\\\":[$dl_l]\n"
				      "\tdl_i=$((dl_i + 1))\n"
				      "done\n";
static const char deepspeed_encode[] = " -c 'import base64, sys; "
				       "print(base64.urlsafe_b64encode(sys.argv[1].encode())"
				       ".decode())' \"{$dl_w}\"";

/* A launcher beside the interpreter, as in an environment of conda, comes before one on PATH. Open
 * MPI refuses root and more processes than CPUs, and binds each of them to one CPU. */
static const char mpirun_lines[] =
	"dl_p=$(command -v -- \"$1\") || dl_p=$1\n"
	"dl_m=${dl_p%/*}/mpirun\n"
	"[ -x \"$dl_m\" ] || dl_m=mpirun\n"
	"command -v -- \"$dl_m\" >/dev/null || {\n"
	"printf 'dlrun: %s: command not found\\n' \"$dl_m\" >&2; exit 127; }\n"
	"export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
	"export OMPI_MCA_rmaps_base_oversubscribe=\"${OMPI_MCA_rmaps_base_oversubscribe-1}\"\n"
	"export OMPI_MCA_hwloc_base_binding_policy=\"${OMPI_MCA_hwloc_base_binding_policy-none}\"\n"
	"dl_p=${PRTE_MCA_rmaps_default_mapping_policy-:oversubscribe}\n"
	"export PRTE_MCA_rmaps_default_mapping_policy=\"$dl_p\"\n"
	"dl_p=${PRTE_MCA_hwloc_default_binding_policy-none}\n"
	"export PRTE_MCA_hwloc_default_binding_policy=\"$dl_p\"\n";

static void launcher_add_module(const struct launcher *launcher, const struct python *python,
	const struct values *values, const char *words, struct buf *out)
{
	buf_addf(out, "%s -m %s", words, launchers[launcher->kind].module);
	if (launcher->kind == LAUNCHER_ACCELERATE && values == &in_place)
		buf_adds(out, " $dl_m");
	if (launcher->kind == LAUNCHER_DEEPSPEED && values == &in_place)
		buf_adds(out, " --world_info \"$dl_w\"");
	launcher_add_flags(launcher, values, out);
	if (python->is_module)
		buf_addf(out, " %s", launchers[launcher->kind].module_flag);
}

static char *launcher_script(const struct launcher *launcher, const struct python *python)
{
	AUTO_BUF struct buf out = buf_with(LINE_MAX_BYTES), words = buf_with(LINE_MAX_BYTES);

	if (launcher->processes)
		buf_addf(&out, "dl_n=%d\n", launcher->processes);
	else
		buf_adds(&out, "dl_n=${DLRUN_GPUS_PER_NODE:-0}\n[ \"$dl_n\" -gt 0 ] || dl_n=1\n");
	buf_adds(&out, "dl_t=$((${NNODES:-1} * dl_n))\n");
	if (launcher->kind == LAUNCHER_MPIRUN) {
		buf_addf(&out, "%sexec \"$dl_m\"", mpirun_lines);
		launcher_add_flags(launcher, &in_place, &out);
	} else {
		/* The words up to the interpreter: dl_p1, dl_p2, … of the script. */
		size_t n = python->n + python->is_implied;
		for (size_t i = 1; i <= n; i++) {
			buf_addf(&out, "dl_p%zu=${%zu}\n", i, i);
			buf_addf(&words, "%s\"$dl_p%zu\"", i > 1 ? " " : "", i);
		}
		buf_addf(&out, "shift %zu\n", n);
		buf_adds(&out,
			"command -v -- \"$dl_p1\" >/dev/null || {\n"
			"printf 'dlrun: %s: command not found\\n' \"$dl_p1\" >&2; exit 127; }\n");
		if (launcher->kind == LAUNCHER_ACCELERATE)
			buf_adds(&out, accelerate_lines);
		if (launcher->kind == LAUNCHER_DEEPSPEED)
			buf_addf(&out, "%sdl_w=$(%s%s) || exit\n", deepspeed_lines, words.data,
				deepspeed_encode);
		buf_adds(&out, "exec ");
		launcher_add_module(launcher, python, &in_place, words.data, &out);
	}
	buf_adds(&out, " \"$@\"");
	return buf_take(&out);
}

void launcher_words(const struct launcher *launcher, const struct strv *command, struct strv *ret)
{
	struct python python = {0};
	bool is_python = launchers[launcher->kind].module &&
			 launcher_find_python(command, &python) &&
			 launcher_skip_options(launcher, command, &python, NULL) == 0;

	if (!is_python)
		python = (struct python){0};
	if (is_python || launcher->kind == LAUNCHER_MPIRUN) {
		strv_add(ret, "/bin/sh");
		strv_add(ret, "-c");
		strv_add_take(ret, launcher_script(launcher, &python));
		strv_add(ret, "dlrun");
	}
	for (size_t i = 0; i < python.n; i++)
		strv_add(ret, command->v[i]);
	if (python.is_implied)
		strv_add(ret, "python");
	for (size_t i = python.program; i < command->n; i++)
		strv_add(ret, command->v[i]);
}

/*
 * The line for people
 */

static void launcher_add_words(const struct strv *command, size_t from, size_t to, struct buf *out)
{
	for (size_t i = from; i < to; i++) {
		if (out->len)
			buf_addc(out, ' ');
		str_shell_quote(out, command->v[i]);
	}
}

char *launcher_line(
	const struct launcher *launcher, const struct strv *command, int nodes, int gpus)
{
	int n = launcher->processes ? launcher->processes : gpus > 0 ? gpus : gpus == 0 ? 1 : 0;
	AUTO_FREE char *count = mem_printf("%d", nodes), *total = NULL, *processes = NULL;
	struct values values = {.nodes = count,
		.rank = nodes > 1 ? "$NODE_RANK" : "0",
		.address = "$MASTER_ADDR",
		.port = "$MASTER_PORT"};
	AUTO_BUF struct buf out = buf_with(LINE_MAX_BYTES), words = buf_with(LINE_MAX_BYTES);
	struct python python = {0};

	if (launcher->kind == LAUNCHER_NONE)
		return NULL;
	values.processes = processes = n ? mem_printf("%d", n) : mem_strdup("$DLRUN_GPUS_PER_NODE");
	values.total = total = n           ? mem_printf("%d", nodes * n)
			       : nodes > 1 ? mem_printf("$((%d * DLRUN_GPUS_PER_NODE))", nodes)
					   : mem_strdup("$DLRUN_GPUS_PER_NODE");
	if (launcher->kind == LAUNCHER_MPIRUN) {
		buf_adds(&out, "mpirun");
		launcher_add_flags(launcher, &values, &out);
	} else if (launcher_find_python(command, &python) &&
		   launcher_skip_options(launcher, command, &python, NULL) == 0) {
		launcher_add_words(command, 0, python.n, &words);
		if (python.is_implied)
			buf_adds(&words, " python");
		launcher_add_module(launcher, &python, &values, words.data, &out);
	}
	launcher_add_words(command, python.program, command->n, &out);
	return buf_take(&out);
}
