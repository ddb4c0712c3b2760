/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/opt.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config.h"

enum { MESSAGE_MAX = 4096 };

struct parser {
	const struct opt_request *request;
	char *const *next; /* of argv */
};

/* An option and the struct that it is bound to. */
struct match {
	const struct opt *opt;
	void *values;
};

static bool is_end(const struct opt *opt)
{
	return !opt || opt->type == OPT_END;
}

const struct opt *opt_find(const struct opt *opts, const char *name, size_t len)
{
	for (const struct opt *opt = opts; !is_end(opt); opt++)
		if (strlen(opt->name) == len && memcmp(opt->name, name, len) == 0)
			return opt;
	return NULL;
}

const struct opt *opt_find_letter(const struct opt *opts, char letter)
{
	for (const struct opt *opt = opts; !is_end(opt); opt++)
		if (opt->letter == letter)
			return opt;
	return NULL;
}

static void *opt_member(const struct opt *opt, void *values)
{
	return (char *)values + opt->offset;
}

/* Set values to not given: numbers become OPT_UNSET. opt_parse does it for opts, not for common. */
static void opt_values_init(const struct opt *opts, void *values)
{
	for (const struct opt *opt = opts; !is_end(opt); opt++)
		if (opt->type == OPT_INT || opt->type == OPT_SIZE || opt->type == OPT_DURATION)
			*(int64_t *)opt_member(opt, values) = OPT_UNSET;
}

void opt_values_done(const struct opt *opts, void *values)
{
	for (const struct opt *opt = opts; !is_end(opt); opt++)
		if (opt->type == OPT_LIST)
			strv_done(opt_member(opt, values));
}

char *opt_text(const struct opt *opt, const void *values)
{
	const void *at = (const char *)values + opt->offset;
	int64_t number;

	switch (opt->type) {
	case OPT_STRING:
	case OPT_CHOICE:
		return mem_strdup(*(const char *const *)at);
	case OPT_INT:
	case OPT_SIZE:
	case OPT_DURATION:
		number = *(const int64_t *)at;
		if (number == OPT_UNSET)
			return NULL;
		return mem_printf("%" PRId64 "%s", number, opt->type == OPT_DURATION ? "ms" : "");
	default:
		return NULL;
	}
}

bool opt_is_given(const struct opt *opt, const void *values)
{
	const void *at = (const char *)values + opt->offset;

	switch (opt->type) {
	case OPT_FLAG:
		return *(const bool *)at;
	case OPT_STRING:
	case OPT_CHOICE:
		return *(const char *const *)at != NULL;
	case OPT_LIST:
		return ((const struct strv *)at)->n > 0;
	default:
		return *(const int64_t *)at != OPT_UNSET;
	}
}

/*
 * Values
 */

static int set_choice(const struct opt *opt, const char *text, const char **ret, struct err *err)
{
	AUTO_FREE char *what = mem_printf("--%s", opt->name);

	if (str_choose(text, opt->choices, what, err) < 0)
		return err_hint(
			err, "%s %.*s", what, (int)strcspn(opt->choices, " "), opt->choices);
	*ret = text;
	return 0;
}

static int opt_set_size(const char *text, int64_t *ret, struct err *err)
{
	uint64_t size;
	int r = str_to_size(text, &size, err);

	if (r == 0)
		*ret = size > INT64_MAX ? INT64_MAX : (int64_t)size;
	return r;
}

static int opt_set_value(const struct match *match, char *text, struct err *err)
{
	const struct opt *opt = match->opt;
	void *at = opt_member(opt, match->values);
	AUTO_FREE char *what = mem_printf("--%s", opt->name);
	int r;

	switch (opt->type) {
	case OPT_STRING:
		*(const char **)at = text;
		return 0;
	case OPT_LIST:
		strv_add(at, text);
		return 0;
	case OPT_CHOICE:
		return set_choice(opt, text, at, err);
	case OPT_INT:
		return str_to_int(text, opt->min || opt->max ? opt->min : INT64_MIN + 1,
			opt->min || opt->max ? opt->max : INT64_MAX, what, at, err);
	case OPT_SIZE:
		r = opt_set_size(text, at, err);
		break;
	default:
		r = duration_parse(text, at, err);
		break;
	}
	if (r == 0)
		return 0;
	if (opt->type == OPT_DURATION && !text[strspn(text, "0123456789")])
		err_hint(err, "%s %sm", what, *text ? text : "5");
	return err_prefix(err, "%s", what);
}

/*
 * Errors
 */

static int missing_value(const struct parser *parser, const struct opt *opt, struct err *err)
{
	err_set(err, E_USAGE, "--%s needs a value", opt->name);
	return err_hint(err, "%s --%s %s", parser->request->command, opt->name, opt->arg);
}

static void opt_add_names(const struct opt *opts, struct strv *names)
{
	for (const struct opt *opt = opts; !is_end(opt); opt++)
		if (!opt->hidden)
			strv_addf(names, "--%s", opt->name);
}

static int unknown(const struct parser *parser, const char *word, struct err *err)
{
	const struct opt_request *request = parser->request;
	AUTO_FREE char *shown = str_shown(word);
	AUTO_STRV struct strv names = {0};
	const char *near = NULL;

	opt_add_names(request->opts, &names);
	opt_add_names(request->common, &names);
	/* A single letter is near to every other one. */
	if (str_starts(word, "--"))
		near = str_suggest(word, (const char *const *)names.v, names.n);
	err_set(err, E_USAGE_OPTION, "%s: unknown option %s", request->command, shown);
	if (near)
		return err_hint(err, "did you mean %s?", near);
	return err_hint(err, "%s -h", request->command);
}

static int ambiguous(const char *name, size_t len, const struct strv *found, struct err *err)
{
	AUTO_BUF struct buf list = buf_with(MESSAGE_MAX);

	for (size_t i = 0; i < found->n; i++)
		buf_addf(&list, "%s--%s",
			i == 0              ? ""
			: i + 1 == found->n ? " or "
					    : ", ",
			found->v[i]);
	err_set(err, E_USAGE_OPTION, "--%.*s could be %s", (int)len, name, list.data);
	return err_hint(err, "--%s", found->v[0]);
}

/*
 * Words that begin with '-'
 */

static void find_starting(const struct opt *opts, void *values, const char *name, size_t len,
	struct strv *found, struct match *ret)
{
	for (const struct opt *opt = opts; !is_end(opt); opt++) {
		if (opt->hidden || strncmp(opt->name, name, len) != 0)
			continue;
		strv_add(found, opt->name);
		*ret = (struct match){opt, values};
	}
}

static int find_long(const struct parser *parser, const char *word, size_t len, struct match *ret,
	struct err *err)
{
	const struct opt_request *request = parser->request;
	AUTO_STRV struct strv found = {0};
	const char *name = word + 2;

	*ret = (struct match){opt_find(request->opts, name, len), request->values};
	if (ret->opt)
		return 0;
	*ret = (struct match){opt_find(request->common, name, len), request->common_values};
	if (ret->opt)
		return 0;
	find_starting(request->opts, request->values, name, len, &found, ret);
	find_starting(request->common, request->common_values, name, len, &found, ret);
	if (found.n == 1)
		return 0;
	if (found.n && len)
		return ambiguous(name, len, &found, err);
	AUTO_FREE char *alone = mem_strndup(word, len + 2);
	return unknown(parser, alone, err);
}

static int parse_long(struct parser *parser, char *word, struct err *err)
{
	char *equals = strchr(word, '=');
	size_t len = equals ? (size_t)(equals - word) - 2 : strlen(word) - 2;
	struct match match;
	int r = find_long(parser, word, len, &match, err);

	if (r < 0)
		return r;
	if (match.opt->type == OPT_FLAG) {
		if (equals)
			return err_set(err, E_USAGE, "--%s takes no value", match.opt->name);
		*(bool *)opt_member(match.opt, match.values) = true;
		return 0;
	}
	if (equals || *match.opt->arg == '[')
		return opt_set_value(&match, equals ? equals + 1 : word + strlen(word), err);
	if (!*parser->next)
		return missing_value(parser, match.opt, err);
	return opt_set_value(&match, *parser->next++, err);
}

static int parse_letters(struct parser *parser, char *word, struct err *err)
{
	const struct opt_request *request = parser->request;

	for (char *letter = word + 1; *letter; letter++) {
		struct match match = {opt_find_letter(request->opts, *letter), request->values};

		if (!match.opt)
			match = (struct match){
				opt_find_letter(request->common, *letter), request->common_values};
		if (!match.opt) {
			size_t n = strlen(letter);
			size_t len = str_utf8_len(letter, n);
			AUTO_FREE char *one = mem_printf("-%.*s", (int)(len ? len : 1), letter);

			return unknown(parser, one, err);
		}
		if (match.opt->type == OPT_FLAG) {
			*(bool *)opt_member(match.opt, match.values) = true;
			continue;
		}
		if (letter[1])
			return opt_set_value(&match, letter + 1, err);
		if (!*parser->next)
			return missing_value(parser, match.opt, err);
		return opt_set_value(&match, *parser->next++, err);
	}
	return 0;
}

/* "-v /data:/data" of containers, at word: -v is a flag here, the volume would be the program. */
static bool opt_is_volume(char *const *word)
{
	const char *value = str_eq(word[0], "-v") && word[1] ? word[1] : "";
	const char *colon = strchr(value, ':');

	return colon && colon[1] == '/' && *value && strchr("/.~", *value) &&
	       access(value, F_OK) < 0;
}

static int opt_refuse_volume(const char *volume, struct err *err)
{
	AUTO_FREE char *shown = str_shown(volume);

	return err_set(err, E_USAGE_OPTION, "-v makes dlrun verbose, it does not mount %s", shown);
}

static void opt_hint_others(
	const struct opt_request *request, char *const *argv, const char *word, struct err *err);

/* A word that begins with '-', or what is taken for one. */
static int parse_option(struct parser *parser, char *const *argv, char *const *at, struct err *err)
{
	int r = (*at)[0] != '-'   ? opt_refuse_volume(*at, err)
		: (*at)[1] == '-' ? parse_long(parser, *at, err)
				  : parse_letters(parser, *at, err);

	if (r < 0 && parser->request->stop_at_word)
		opt_hint_others(parser->request, argv, *at, err);
	return r;
}

int opt_parse(const struct opt_request *request, char *const *argv, struct strv *ret_words,
	struct err *err)
{
	struct parser parser = {.request = request, .next = argv};
	size_t unused = 0, *ahead = request->ret_ahead ? request->ret_ahead : &unused;
	AUTO_ERR struct err ignored = {0};
	bool ended = false;
	int result = 0;

	strv_done(ret_words);
	*ahead = SIZE_MAX;
	opt_values_init(request->opts, request->values);
	while (*parser.next) {
		char *const *at = parser.next++;
		char *word = *at;
		bool is_volume = request->stop_at_word && at > argv && opt_is_volume(at - 1);

		if (ended || ((word[0] != '-' || !word[1]) && !is_volume)) {
			strv_add(ret_words, word);
			ended = ended || request->stop_at_word;
		} else if (str_eq(word, "--")) {
			ended = true;
			*ahead = ret_words->n;
		} else {
			struct err *error = result || !err ? &ignored : err;
			int r = parse_option(&parser, argv, at, error);
			result = result ? result : r;
		}
	}
	return result;
}

/*
 * A command once more
 */

/* The option that argv[0], which begins with '-', stands for, or NULL; of a cluster of letters the
 * one that takes a value, with *ret_flags letters in front of it, else the last. *ret_words: how
 * many words it takes with its value. */
static const struct opt *opt_at(
	const struct opt_request *request, char *const *argv, size_t *ret_words, size_t *ret_flags)
{
	const struct parser parser = {.request = request};
	const char *word = *argv, *at = word + strcspn(word, "=") - 1;
	struct match match = {0};

	*ret_words = 1;
	*ret_flags = 0;
	if (word[1] == '-' && find_long(&parser, word, (size_t)(at - word) - 1, &match, NULL) < 0)
		return NULL;
	for (const char *letter = word + 1; !match.opt && *letter; letter++) {
		at = letter;
		match.opt = opt_find_letter(request->opts, *at);
		if (!match.opt)
			match.opt = opt_find_letter(request->common, *at);
		if (!match.opt)
			return NULL;
		*ret_flags = (size_t)(at - word) - 1;
		if (match.opt->type == OPT_FLAG && at[1])
			match.opt = NULL;
	}
	*ret_words += match.opt && match.opt->type != OPT_FLAG && !at[1] && argv[1];
	return match.opt;
}

static bool is_replaced(
	const struct opt_request *request, const struct opt *opt, char *const *instead)
{
	size_t n = 1, n_flags;

	if (!opt || opt->type == OPT_LIST)
		return false;
	for (; *instead; instead += n) {
		n = 1;
		if (**instead == '-' && opt_at(request, instead, &n, &n_flags) == opt)
			return true;
	}
	return false;
}

/* NAME=VALUE, also as --env=NAME=VALUE and -eNAME=VALUE: what stands before any "=" may be the
 * name. */
static bool is_secret(const char *word)
{
	size_t len;

	if (word[0] == '-' && word[1] && word[1] != '-')
		word += 2;
	for (; word[len = strcspn(word, "=")]; word += len + 1) {
		AUTO_FREE char *name = mem_strndup(word, len);
		if (config_name_is_secret(name))
			return true;
	}
	return false;
}

/* Whether argv has a value that is not to be shown: by its name, or as one of --secret. */
static bool opt_has_secret(char *const *argv)
{
	for (bool is_value = false; *argv; argv++) {
		const char *value = strchr(*argv, '=');

		/* --secret NAME=VALUE is refused, but it was typed. */
		if (is_secret(*argv) || (is_value && value && value[1] != '@'))
			return true;
		is_value = str_eq(*argv, "--secret");
		if (str_starts(*argv, "--secret=") && strchr(value + 1, '='))
			return true;
	}
	return false;
}

static void opt_add_word(struct buf *out, const char *word)
{
	buf_addc(out, ' ');
	str_shell_quote(out, word);
}

bool opt_retype(
	const struct opt_request *request, char *const *argv, const char *instead, struct buf *out)
{
	AUTO_FREE char *typed = mem_strdup(instead);
	AUTO_STRV struct strv options = {0};
	char *rest = typed;
	bool ended = false;

	for (char *word; (word = strsep(&rest, " "));)
		strv_add(&options, word);
	buf_addf(out, " %s", instead);
	if (opt_has_secret(argv))
		return false;
	while (*argv) {
		size_t n = 1, n_flags = 0;
		bool is_option = !ended && argv[0][0] == '-' && argv[0][1];
		const struct opt *opt = NULL;

		if (is_option && !str_eq(*argv, "--"))
			opt = opt_at(request, argv, &n, &n_flags);
		else
			ended = ended || is_option || request->stop_at_word;
		bool is_excluded = is_replaced(request, opt, options.v);
		if (is_excluded && n_flags)
			buf_addf(out, " %.*s", (int)n_flags + 1, *argv);
		for (; n > 0; n--, argv++) {
			if (!is_excluded)
				opt_add_word(out, *argv);
		}
	}
	return !out->full;
}

enum { LINE_MAX_BYTES = 64 << 10 };

/*
 * Options of other tools: Slurm, SkyPilot, docker run, kubectl run, ray job, torchrun, accelerate,
 * in front of the program. One table says what each of them is here.
 */

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
	DROP,    /* reported only */
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
	{"--dependency", DROP, "to begin after a run: --after RUN, or --after RUN:any"},
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

/* A line while it is made. */
struct line {
	struct buf options, prefix; /* prefix: before the words of the program */
	const char *launcher;       /* that prefix belongs to */
	size_t n_others;
	struct err *err;
};

static void opt_others_line_done(struct line *line)
{
	buf_done(&line->options);
	buf_done(&line->prefix);
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

static void opt_others_add_prefix(
	struct line *line, const char *launcher, const char *word, const char *value)
{
	line->launcher = launcher;
	buf_addf(&line->prefix, " %s", word);
	if (value) {
		buf_addc(&line->prefix, '=');
		str_shell_quote(&line->prefix, value);
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
		buf_adds(&line->prefix, " sh -c ");
		str_shell_quote(&line->prefix, value);
		break;
	case TORCH:
		opt_others_add_prefix(line, "torchrun", name, value);
		break;
	case ACCEL:
		opt_others_add_prefix(line, "accelerate launch", name, value);
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
	AUTO_BUF struct buf all = buf_with(LINE_MAX_BYTES);

	buf_addf(&all, "%s%s", command, line->options.data);
	if (*rest || line->prefix.len)
		buf_adds(&all, " --");
	/* The launcher starts the interpreter itself. */
	if (line->launcher) {
		buf_addf(&all, " %s", line->launcher);
		while (*rest && (str_eq(*rest, line->launcher) || str_starts(*rest, "python") ||
					str_eq(*rest, "accelerate") || str_eq(*rest, "launch")))
			rest++;
	}
	buf_adds(&all, line->prefix.data);
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

/* err is about the option word of argv. If other tools have it, its hint becomes the whole command
 * line with all such options as ours; what has no option here is listed as evidence. */
static void opt_hint_others(
	const struct opt_request *request, char *const *argv, const char *word, struct err *err)
{
	AUTO_ERR struct err hinted = {0};
	AUTO(opt_others_line_done) struct line line = {.err = &hinted};

	if (!err_is_set(err) || opt_has_secret(argv))
		return;
	err_set(&hinted, err->id, "%s", err->message);
	buf_init(&line.options, LINE_MAX_BYTES);
	buf_init(&line.prefix, LINE_MAX_BYTES);
	AUTO_FREE char *hint = line_as_ours(&line, request, argv, word);
	if (!hint || line.n_others == 0)
		return;
	err_hint(&hinted, "did you mean %s?", hint);
	err_move(err, &hinted);
}
