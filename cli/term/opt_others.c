/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/opt_others.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { LINE_MAX_BYTES = 64 << 10 };

/* Conversions of the value. */
enum form {
	PLAIN,   /* it stays */
	SWITCH,  /* there is none */
	GPUS,    /* 2, A100:2, gpu:a100:2 */
	CPUS,    /* 4, 4+ */
	MEGA,    /* 16G; 16000 is of megabytes */
	CLOCK,   /* minutes, MM:SS, HH:MM:SS, D-HH:MM:SS; or with a unit */
	MINUTES, /* 90 */
	AMOUNTS, /* cpu=2,memory=4Gi,nvidia.com/gpu=1 */
	PAIRS,   /* A=1,B=2: the option once for each */
	PORT,    /* 8080:80, the program's is the last one */
	RESTART, /* of docker and kubectl */
	LINE,    /* a line of a shell: the command */
	TORCH,   /* an option of torchrun */
	ACCEL,   /* an option of accelerate */
	DROP,    /* said only */
	DROP_SWITCH,
};

struct foreign {
	const char *names; /* with their dashes */
	enum form form;
	const char *ours; /* with its dashes; DROP: what to do instead */
};

static const struct foreign table[] = {
	{"--gres --gpus-per-node --gpus-per-task --num-gpus --num_gpus --n-gpus --ngpus --gpu "
	 "--gpus --accelerators --entrypoint-num-gpus -G",
		GPUS, "-g"},
	{"--num-nodes --num_nodes --nnodes --num_machines --num-workers", PLAIN, "-N"},
	{"--cpus-per-task --cpus-per-node --num-cpus --num_cpus --entrypoint-num-cpus -c", CPUS,
		"--cpus"},
	{"--mem --entrypoint-memory -m", MEGA, "--memory"},
	{"--mem-per-cpu --mem-per-gpu", DROP, "--memory SIZE counts for the whole node"},
	{"--job-name --jobname --job_name --run-name --submission-id --job-id -J", PLAIN, "-n"},
	{"--time --walltime --time-limit --max-time", CLOCK, "--timeout"},
	{"--partition", PLAIN, "--queue"},
	{"--qos", PLAIN, "--priority"},
	{"--priority-class --priorityclass", PLAIN, "--priority"},
	{"--nodelist", PLAIN, "-t ssh:"},
	{"--cluster --context", PLAIN, "-t"},
	{"--constraint", PLAIN, "--gpu-type"},
	{"--comment", PLAIN, "--note"},
	{"--chdir --workdir --working-dir --working_dir -D -w", PLAIN, "-C"},
	{"--label --labels -l", PAIRS, "--tag"},
	{"--export --environment --envs", PAIRS, "-e"},
	{"--publish -p", PORT, "--port"},
	{"--restart", RESTART, "--retries"},
	{"--requeue", SWITCH, "--retries 1"},
	{"--limits --requests", AMOUNTS, ""},
	{"--wrap", LINE, ""},
	{"-it -ti --it --interactive --tty --stdin --attach --wait -i -W", SWITCH, "-f"},
	{"--detach-run --background --bg --no-wait --no-follow --parsable --async -itd -dit",
		SWITCH, "-d"},
	{"--test-only --dryrun", SWITCH, "--dry-run"},
	{"--docker-image --container-image", PLAIN, "--image"},
	{"--nproc_per_node --nproc-per-node --node_rank --node-rank --master_addr --master-addr "
	 "--master_port --master-port --rdzv_backend --rdzv-backend --rdzv_endpoint "
	 "--rdzv-endpoint --rdzv_id --rdzv-id --max_restarts --max-restarts",
		TORCH, ""},
	{"--num_processes --num-processes --mixed_precision --mixed-precision --config_file", ACCEL,
		""},
	{"--ntasks --ntasks-per-node --tasks-per-node --tasks", DROP,
		"one program is started on each node (-N); torchrun --nproc_per_node starts more"},
	{"--array", DROP, "a run is one program: submit once for each"},
	{"--dependency --after", DROP, "to start after a run: dlrun wait RUN && dlrun submit …"},
	{"--output --error --log-file --log-dir", DROP, "the output is kept: dlrun logs"},
	{"--env-file", DROP,
		"set -a; . ./.env; set +a, then -e NAME or --secret NAME takes it from this shell"},
	{"--volume --mount --volumes --file-mounts --storage", DROP,
		"data: in dlrun.yaml names data of the tree, volumes: those of a cluster"},
	{"--namespace", DROP, "the namespace is part of the target: -t kube:CONTEXT/NAMESPACE"},
	{"--account --exclude --mail-type --mail-user --reservation --licenses --network --net "
	 "--ipc --user --ulimit --runtime --pull --platform --cap-add --security-opt --hostname "
	 "--cloud --region --zone --infra --instance-type --disk-size --retry-until-up --address "
	 "--runtime-env-json --runtime-env --metadata-json --entrypoint --overrides "
	 "--image-pull-policy --serviceaccount --field-manager --device --add-host -A -x",
		DROP, "dlrun has no such option: dlrun help dlrun.yaml lists what can be set"},
	{"--shm-size", DROP, "resources: {shm: 8Gi} in dlrun.yaml"},
	{"--idle-minutes-to-autostop", DROP, "nothing keeps running that would have to be stopped"},
	{"--rm --down --exclusive --standalone --privileged --init --yes --use-spot --no-setup "
	 "--detach-setup --command --overcommit --no-requeue -y",
		DROP_SWITCH, "is not needed"},
};

/* The row of the first len bytes of word, an option without its value. */
static const struct foreign *opt_others_find_row(const char *word, size_t len)
{
	AUTO_FREE char *name = mem_strndup(word, len);

	for (size_t i = 0; i < ARRAY_LEN(table); i++)
		if (str_is_word_of(name, table[i].names))
			return &table[i];
	return NULL;
}

static bool opt_others_is_number(const char *text)
{
	return *text && !text[strspn(text, "0123456789")];
}

bool opt_is_volume(char *const *word)
{
	const char *value = str_eq(word[0], "-v") && word[1] ? word[1] : "";
	const char *colon = strchr(value, ':');

	return colon && colon[1] == '/' && *value && strchr("/.~", *value) &&
	       access(value, F_OK) < 0;
}

int opt_refuse_volume(const char *volume, struct err *err)
{
	AUTO_FREE char *shown = str_shown(volume);

	return err_set(err, E_USAGE_OPTION, "-v makes dlrun verbose, it does not mount %s", shown);
}

/* A line while it is made. */
struct line {
	struct buf options, front; /* front: of the program's words */
	const char *launcher;      /* that front belongs to */
	size_t n_others;
	struct err *err;
};

static void opt_others_line_done(struct line *line)
{
	buf_done(&line->options);
	buf_done(&line->front);
}

static void opt_others_add_word(struct buf *out, const char *option, const char *value)
{
	buf_addf(out, " %s", option);
	if (!value)
		return;
	if (!str_ends(option, ":"))
		buf_addc(out, ' ');
	str_shell_quote(out, value);
}

/*
 * Values
 */

static void opt_others_add_gpus(struct buf *out, const char *value)
{
	const char *rest = str_starts(value, "gpu:") ? value + 4 : value;
	AUTO_FREE char *model = mem_strndup(rest, strcspn(rest, ":="));
	const char *n = rest + strlen(model) + (rest[strlen(model)] != '\0');
	AUTO_FREE char *count =
		mem_strndup(opt_others_is_number(model) ? model : n, strcspn(n, ",("));

	if (str_eq(value, "gpu"))
		model[0] = '\0';
	opt_others_add_word(out, "-g",
		opt_others_is_number(model)   ? model
		: opt_others_is_number(count) ? count
					      : "1");
	if (*model && !opt_others_is_number(model))
		opt_others_add_word(out, "--gpu-type", model);
}

/* Slurm counts minutes where there is one number only. */
static void add_clock(struct buf *out, const char *option, const char *value)
{
	uint64_t part[4] = {0}, days = 0, seconds;
	const char *dash = strchr(value, '-');
	unsigned n = 0;

	if (value[strspn(value, "0123456789:-")]) {
		opt_others_add_word(out, option, value);
		return;
	}
	if (dash)
		sscanf(value, "%9" SCNu64, &days);
	for (const char *s = dash ? dash + 1 : value; *s && n < 3; s += *s == ':') {
		sscanf(s, "%9" SCNu64, &part[n++]);
		s += strcspn(s, ":");
	}
	if (dash || n == 3)
		seconds = days * 86400 + part[0] * 3600 + part[1] * 60 + part[2];
	else
		seconds = part[0] * 60 + part[1];
	AUTO_FREE char *text = seconds % 3600 == 0 ? mem_printf("%" PRIu64 "h", seconds / 3600)
			       : seconds % 60 == 0 ? mem_printf("%" PRIu64 "m", seconds / 60)
						   : mem_printf("%" PRIu64 "s", seconds);
	opt_others_add_word(out, option, text);
}

static void add_amount(struct buf *out, const char *name, const char *value)
{
	if (str_eq(name, "cpu"))
		opt_others_add_word(out, "--cpus", value);
	else if (str_eq(name, "memory"))
		opt_others_add_word(out, "--memory", value);
	else if (str_ends(name, "gpu"))
		opt_others_add_word(out, "-g", value);
}

/* "A=1,B=2" */
static void opt_others_add_pairs(struct buf *out, const struct foreign *row, const char *value)
{
	for (const char *s = value; *s; s += *s == ',') {
		AUTO_FREE char *pair = mem_strndup(s, strcspn(s, ","));
		char *equals = strchr(pair, '=');

		s += strlen(pair);
		if (row->form == PAIRS && *pair && !str_eq(pair, "ALL") && !str_eq(pair, "NONE"))
			opt_others_add_word(out, row->ours, pair);
		if (row->form != AMOUNTS || !equals)
			continue;
		*equals = '\0';
		add_amount(out, pair, equals + 1);
	}
}

/* "always", "on-failure:3"; Never and OnFailure of kubectl. */
static void add_restart(struct buf *out, const char *option, const char *value)
{
	const char *colon = strchr(value, ':');

	if (strcasecmp(value, "never") == 0 || str_eq(value, "no"))
		return;
	opt_others_add_word(
		out, option, colon && opt_others_is_number(colon + 1) ? colon + 1 : "3");
}

static void opt_others_add_front(
	struct line *line, const char *launcher, const char *word, const char *value)
{
	line->launcher = launcher;
	buf_addf(&line->front, " %s", word);
	if (value) {
		buf_addc(&line->front, '=');
		str_shell_quote(&line->front, value);
	}
}

static void opt_others_add_value(
	struct line *line, const struct foreign *row, const char *name, const char *value)
{
	struct buf *out = &line->options;

	line->n_others++;
	switch (row->form) {
	case GPUS:
		if (str_eq(value, "all"))
			err_evidence(line->err, "%s all: -g N says how many", name);
		else
			opt_others_add_gpus(out, value);
		break;
	case MEGA: {
		AUTO_FREE char *size =
			mem_printf("%s%s", value, opt_others_is_number(value) ? "Mi" : "");
		opt_others_add_word(out, row->ours, size);
		break;
	}
	case CLOCK:
		add_clock(out, row->ours, value);
		break;
	case AMOUNTS:
	case PAIRS:
		opt_others_add_pairs(out, row, value);
		break;
	case RESTART:
		add_restart(out, row->ours, value);
		break;
	case PORT:
		/* Slurm's -p is a partition. */
		if (strrchr(value, ':'))
			value = strrchr(value, ':') + 1;
		opt_others_add_word(
			out, opt_others_is_number(value) ? row->ours : "--queue", value);
		break;
	case LINE:
		buf_adds(&line->front, " sh -c ");
		str_shell_quote(&line->front, value);
		break;
	case TORCH:
		opt_others_add_front(line, "torchrun", name, value);
		break;
	case ACCEL:
		opt_others_add_front(line, "accelerate launch", name, value);
		break;
	case DROP:
		err_evidence(line->err, "%s: %s", name, row->ours);
		break;
	case DROP_SWITCH:
		err_evidence(line->err, "%s %s", name, row->ours);
		break;
	default:
		opt_others_add_word(out, row->ours, row->form == SWITCH ? NULL : value);
		break;
	}
}

/*
 * The line
 */

static bool takes_none(const struct foreign *row)
{
	return row->form == SWITCH || row->form == DROP_SWITCH;
}

static bool is_exact(const struct opt *opt, const char *word, size_t len)
{
	return word[1] != '-' || strlen(opt->name) == len - 2;
}

static size_t add_ours(struct line *line, char *const *at, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		buf_addc(&line->options, ' ');
		str_shell_quote(&line->options, at[i]);
	}
	return n;
}

static size_t add_theirs(struct line *line, const struct foreign *row, char *const *at, size_t len)
{
	bool is_joined = (*at)[len] != '\0';
	const char *value = is_joined ? *at + len + ((*at)[len] == '=') : NULL;
	AUTO_FREE char *name = mem_strndup(*at, len);

	if (takes_none(row) || is_joined) {
		opt_others_add_value(line, row, name, value);
		return 1;
	}
	if (!at[1] || at[1][0] == '-')
		return 0;
	opt_others_add_value(line, row, name, at[1]);
	return 2;
}

/* Add one word, and the next one if that is its value. Returns how many; 0: the option is
 * unknown. */
static size_t opt_others_add_option(
	struct line *line, const struct opt_request *request, char *const *at, bool is_wrong)
{
	const char *word = *at;
	size_t len = strcspn(word, "="), n, n_flags;
	const struct foreign *row = opt_others_find_row(word, len);
	const struct opt *ours = opt_at(request, at, &n, &n_flags);

	if (!row && word[1] != '-')
		row = opt_others_find_row(word, len = 2);
	if (ours && (is_exact(ours, word, len) ? !is_wrong || !row : !row))
		return add_ours(line, at, n);
	return row ? add_theirs(line, row, at, len) : 0;
}

static size_t opt_others_add_volume(struct line *line)
{
	const struct foreign *row = opt_others_find_row("--volume", strlen("--volume"));

	opt_others_add_value(line, row, "-v", "");
	return 2;
}

static char *finish_line(const struct line *line, const char *command, char *const *rest)
{
	AUTO_BUF struct buf all;

	buf_init(&all, LINE_MAX_BYTES);
	buf_addf(&all, "%s%s", command, line->options.data);
	if (*rest || line->front.len)
		buf_adds(&all, " --");
	/* The launcher starts the interpreter itself. */
	if (line->launcher) {
		buf_addf(&all, " %s", line->launcher);
		while (*rest && (str_eq(*rest, line->launcher) || str_starts(*rest, "python") ||
					str_eq(*rest, "accelerate") || str_eq(*rest, "launch")))
			rest++;
	}
	buf_adds(&all, line->front.data);
	for (; *rest; rest++) {
		buf_addc(&all, ' ');
		str_shell_quote(&all, *rest);
	}
	return buf_check(&all, "", NULL) == 0 ? buf_take(&all) : NULL;
}

/* NULL: an option is unknown. The caller frees. */
static char *line_as_ours(
	struct line *line, const struct opt_request *request, char *const *argv, const char *word)
{
	char *const *at = argv;

	while (*at && **at == '-' && (*at)[1] && !str_eq(*at, "--")) {
		size_t n = opt_is_volume(at)
				   ? opt_others_add_volume(line)
				   : opt_others_add_option(line, request, at, *at == word);
		if (n == 0)
			return NULL;
		at += n;
	}
	return finish_line(line, request->command, *at && str_eq(*at, "--") ? at + 1 : at);
}

void opt_hint_others(
	const struct opt_request *request, char *const *argv, const char *word, struct err *err)
{
	AUTO_ERR struct err told = {0};
	AUTO(opt_others_line_done) struct line line = {.err = &told};

	if (!err_is_set(err) || opt_has_secret(argv))
		return;
	err_set(&told, err->id, "%s", err->message);
	buf_init(&line.options, LINE_MAX_BYTES);
	buf_init(&line.front, LINE_MAX_BYTES);
	AUTO_FREE char *hint = line_as_ours(&line, request, argv, word);
	if (!hint || line.n_others == 0)
		return;
	err_hint(&told, "did you mean %s?", hint);
	err_move(err, &told);
}
