/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the program of a pod is started: as it is, or from one POSIX script.
 */
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/job_impl.h"

enum { SCRIPT_MAX = 16 << 10 };

/* The output of the setup is shown if it fails. Its files are in the tree itself; a virtual
 * environment that was not there before is the program's. */
static const char setup_lines[] =
	"d=$1 s=$2 l=" KUBE_ATTEMPT_DIR "/setup.log had=\n"
	"shift 2\n"
	"for v in .venv venv; do [ ! -f \"$d/$v/pyvenv.cfg\" ] || had=\"$had$v \"; done\n"
	"(cd -- \"$d\" && exec /bin/sh -c \"$s\") >\"$l\" 2>&1 || {\n"
	"\tc=$?\n"
	"\techo 'dlrun: setup failed, its output:' >&2\n"
	"\tcat \"$l\" >&2\n"
	"\tprintf 'dlrun: setup failed with exit %s: %s\\n' \"$c\" \"$s\" >&2\n"
	"\tprintf '" KUBE_JOB_SETUP "' >/dev/termination-log\n"
	"\texit 125\n"
	"}\n"
	"for v in .venv venv; do\n"
	"\tcase \" $had\" in *\" $v \"*) continue ;; esac\n"
	"\t[ -f \"$d/$v/pyvenv.cfg\" ] || continue\n"
	"\texport VIRTUAL_ENV=\"$d/$v\" PATH=\"$d/$v/bin:$PATH\" UV_NO_SYNC=\"${UV_NO_SYNC-1}\"\n"
	"\tunset PYTHONHOME\n"
	"\tbreak\n"
	"done\n";

/* "$@" is a text for the shell and its arguments then. */
static const char bash_lines[] =
	"if command -v bash >/dev/null 2>&1; then b=bash; else b=/bin/sh; fi\n"
	"set -- \"$b\" -c \"$@\"\n";

/* Behind `before`, which may have made another PATH; as program.c has it. */
static const char exec_lines[] =
	"case $1 in */*) ;; *) command -v -- \"$1\" >/dev/null || {\n"
	"printf 'dlrun: %s: command not found\\n' \"$1\" >&2; exit 127; } ;; esac\n"
	"exec \"$@\"";

/*
 * Staying in front of the program. All of the container is one process group, so kill 0 reaches
 * what the program has started, as for a local run. n: a signal came, wait again. Commands in the
 * background ignore INT and QUIT, which only env of coreutils can undo.
 */
static const char stay_begin[] =
	"n= t= s=\n"
	"pass() { trap '' TERM; kill -s TERM 0; kill -s CONT 0; trap 'n=1; term' TERM%s; }\n"
	"trap 'n=1; term' TERM INT QUIT\n"; /* one of them is the image's STOPSIGNAL */
static const char stay_term[] = "term() { pass; }\n";
static const char stay_limit[] =
	"limit() { if [ \"$t\" ]; then kill -s KILL \"$p\"; else t=1; pass; fi; }\n"
	"trap 'n=1; limit' %s\n";
static const char stay_start[] = "if env --default-signal=INT,QUIT >/dev/null 2>&1; then\n"
				 "\tset -- env --default-signal=INT,QUIT \"$@\"\n"
				 "fi\n"
				 "\"$@\"%s &\n"
				 "p=$! c=0 w=\n";
static const char stay_wait[] = "while :; do\n"
				"\tn=\n"
				"\twait \"$p\"\n"
				"\tr=$?\n"
				"\t[ \"$r\" = 127 ] && [ \"$w\" ] || c=$r\n"
				"\tw=1\n"
				"\t[ \"$n\" ] || break\n"
				"done\n";
static const char stay_end[] = "if [ \"$t\" ]; then\n"
			       "\tprintf '" KUBE_JOB_TIMEOUT "' >/dev/termination-log\n"
			       "\tc=124\n"
			       "fi\n";

/* The results of the previous attempt were read with one of these, too. Files already in the
 * results are this Job's: a retry on the same storage. */
static const char carry_lines[] =
	"if command -v tar >/dev/null; then\n"
	"\t(cd " KUBE_OUTPUT_DIR " && tar -xpf " KUBE_CARRIED
	" --strip-components=1 \"rank-${JOB_COMPLETION_INDEX:-0}\")\n"
	"else\n"
	"\tpython3 -c 'import sys, tarfile\n"
	"top = \"rank-\" + sys.argv[1] + \"/\"\n"
	"t = tarfile.open(\"" KUBE_CARRIED "\", errors=\"surrogateescape\")\n"
	"for m in t:\n"
	"    if m.name.startswith(top):\n"
	"        m.name = m.name[len(top):]\n"
	"        t.extract(m, \"" KUBE_OUTPUT_DIR "\")' \"${JOB_COMPLETION_INDEX:-0}\"\n"
	"fi || {\n"
	"\techo 'dlrun: the files of the attempt before cannot be put back' >&2\n"
	"\texit 125\n"
	"}\n";

/* The files of the attempt are those of its shell. */
static const char collect_begin[] = "printf '%s' \"$1\" >" KUBE_COLLECTOR "\n"
				    "shift\n";
static const char collect_none[] =
	"if ! command -v find >/dev/null || ! command -v xargs >/dev/null; then\n"
	"\techo '[ $1 != final ] || echo results in the tree cannot be collected: the image has "
	"no find and xargs >&2' >" KUBE_COLLECTOR "\n"
	"fi\n";
static const char collect_live[] = "(trap '' TERM INT QUIT %s\n"
				   "w=3\n"
				   "while sleep $w; do\n"
				   "\tb=$(date +%%s)\n"
				   "\t/bin/sh " KUBE_COLLECTOR " live\n"
				   "\tw=$((10 + 20 * ($(date +%%s) - b)))\n"
				   "done) >/dev/null 2>&1 &\n";
static const char collect_end[] = "trap '' TERM INT QUIT ALRM USR2\n"
				  "/bin/sh " KUBE_COLLECTOR " final 2>&1 >/dev/null | {\n"
				  "\tn=0\n"
				  "\twhile IFS= read -r l; do\n"
				  "\t\t[ $((n += 1)) -gt 20 ] || printf 'dlrun: %s\\n' \"$l\" >&2\n"
				  "\tdone\n"
				  "}\n";
static const char collect_sum[] =
	"/bin/sh " KUBE_COLLECTOR " sum >>/dev/termination-log 2>/dev/null\n";

static long long seconds(int64_t ms)
{
	return ms <= 0 ? 0 : (long long)((ms + 999) / 1000);
}

static bool stays(const struct job *job)
{
	return job->run->shell || job->run->signal || job->keeps_limit || job->collects ||
	       job->lingers;
}

/* Arguments of this script: -c SCRIPT dlrun COLLECTOR PROGRAM…; without a shell only PROGRAM is
 * run. */
static const char python_lines[] = "import posix, sys\n"
				   "a = sys.argv[1:]\n"
				   "if posix.access('/bin/sh', 1):\n"
				   "    posix.execv('/bin/sh', ['sh'] + a)\n"
				   "import os\n"
				   "if len(a) > 4:\n"
				   "    os.execvp(a[4], a[4:])\n";

void job_shell_words(const struct job *job, struct strv *ret)
{
	if (!job->python) {
		strv_add(ret, "/bin/sh");
		return;
	}
	strv_add(ret, job->python);
	strv_add(ret, "-ESc");
	strv_add(ret, python_lines);
}

static bool is_python(const char *word)
{
	const char *slash = word ? strrchr(word, '/') : NULL, *name = slash ? slash + 1 : word;

	return name && str_starts(name, "python") && (!slash || *word == '/');
}

/* The interpreter that the program itself needs is certain to be there if the run can start at
 * all. */
void job_choose_collector(struct job *job, bool ends_with_pod)
{
	const struct kube_run *run = job->run;
	const char *first =
		run->command->n && run->image_entrypoint.n == 0 ? run->command->v[0] : NULL;

	if (run->has_no_shell)
		return;
	if (!run->has_shell && !job_has_script(job) &&
		(is_python(run->image_program) || is_python(first)))
		job->python = is_python(run->image_program) ? run->image_program : first;
	else if (run->lacks_shell && !run->has_shell && !job_has_script(job))
		return;
	job->collects = run->collects;
	job->lingers = ends_with_pod && run->linger_ms > 0;
	job->carries = run->carries;
}

bool job_has_script(const struct job *job)
{
	const struct kube_run *run = job->run;

	return run->before || run->setup || job->carries || stays(job) ||
	       (job->counts && !run->has_no_shell);
}

/*
 * The script
 */

/* The signal by which the timer tells the shell. */
static const char *limit_signal(const struct kube_run *run)
{
	return str_eq(run->signal, "ALRM") ? "USR2" : "ALRM";
}

static bool signals_first(const struct kube_run *run)
{
	return run->signal && !str_eq(run->signal, "TERM");
}

/* The run's signal comes first, TERM when its time is over. This shell ignores it as soon as the
 * program has started: bash 5.2 forgets a child that ends while a trap interrupts its wait. */
static void add_term(const struct job *job, struct buf *script)
{
	const struct kube_run *run = job->run;

	if (!signals_first(run)) {
		buf_adds(script, stay_term);
		return;
	}
	buf_addf(script, "trap : %s\n", run->signal);
	buf_addf(script,
		"term() {\n"
		"\tif [ \"$s\" ]; then pass; return; fi\n"
		"\ts=1\n"
		"\tkill -s %s 0\n"
		"\t(trap '' TERM %s; sleep %lld && kill -s TERM $$) >/dev/null 2>&1 &\n"
		"}\n",
		run->signal, run->signal, seconds(run->signal_before_ms));
}

static void add_timer(const struct job *job, struct buf *script)
{
	const struct kube_run *run = job->run;
	long long limit = seconds(run->timeout_ms), before = seconds(run->signal_before_ms);
	const char *alarm = limit_signal(run);

	if (!job->keeps_limit)
		return;
	buf_addf(script, "(trap '' TERM %s\n", run->signal ? run->signal : "HUP");
	if (run->signal && before < limit) {
		buf_addf(script, "sleep %lld && kill -s %s %s &&\n", limit - before, run->signal,
			signals_first(run) ? "0" : "$$");
		limit = before;
	}
	buf_addf(script,
		"sleep %lld && kill -s %s $$ && sleep %lld && kill -s %s $$) >/dev/null 2>&1 &\n",
		limit, alarm, seconds(run->grace_ms), alarm);
}

/* The node ends what is left later: what there is then is to be collected. */
static void add_late(const struct job *job, struct buf *script)
{
	if (job->collects)
		buf_addf(script,
			"k=\nlate() {\n"
			"\t[ -z \"$k\" ] || return\n"
			"\tk=1\n"
			"\t(trap '' TERM INT QUIT %s; sleep %lld && kill -s KILL \"$p\") >/dev/null 2>&1 &\n"
			"}\n",
			job->run->signal ? job->run->signal : "", seconds(job->run->grace_ms));
}

static void add_stay(const struct job *job, struct buf *script)
{
	buf_addf(script, stay_begin, job->collects ? "; late" : "");
	add_late(job, script);
	add_term(job, script);
	if (job->keeps_limit)
		buf_addf(script, stay_limit, limit_signal(job->run));
	job_linger_begin(job, script);
	buf_addf(script, stay_start, job->lingers ? " 9>&-" : "");
	if (signals_first(job->run))
		buf_addf(script, "trap '' %s\n", job->run->signal);
	add_timer(job, script);
	if (job->collects)
		buf_addf(script, collect_live, job->run->signal ? job->run->signal : "");
	buf_adds(script, stay_wait);
	if (job->keeps_limit)
		buf_adds(script, stay_end);
	if (job->collects)
		buf_adds(script, collect_end);
	if (job->collects && job->keeps_results)
		buf_adds(script, collect_sum);
	job_linger_end(job, script);
	buf_adds(script, "exit \"$c\"");
}

static char *make_script(const struct job *job)
{
	const struct kube_run *run = job->run;
	AUTO_BUF struct buf script;

	buf_init(&script, SCRIPT_MAX);
	if (job->counts)
		buf_addf(&script, "export DLRUN_ATTEMPT=$((%d + ${" JOB_RETRIES ":-0}))\n",
			run->attempt);
	if (job->collects)
		buf_adds(&script, collect_begin);
	if (job->carries)
		buf_adds(&script, carry_lines);
	if (run->setup)
		buf_adds(&script, setup_lines);
	if (job->collects)
		buf_addf(&script, "%s/bin/sh " KUBE_COLLECTOR " begin%s\n", collect_none,
			run->setup ? " new" : "");
	if (run->before)
		buf_adds(&script, bash_lines);
	if (stays(job))
		add_stay(job, &script);
	else
		buf_adds(&script, run->before ? "exec \"$@\"" : exec_lines);
	return buf_take(&script);
}

/*
 * The words
 */

/* A line for the shell behind an ENTRYPOINT is that one's argument. */
static bool is_own_line(const struct kube_run *run)
{
	return run->shell && (run->drop_entrypoint || run->image_entrypoint.n == 0);
}

/* An empty trap keeps a shell in front of the line alive, and is not inherited. */
static char *before_text(const struct kube_run *run)
{
	const char *last = is_own_line(run) ? run->command->v[0] : exec_lines;
	AUTO_FREE char *trap = run->signal ? mem_printf("trap : %s\n", run->signal) : NULL;

	return mem_printf("%s%s\n%s", trap ? trap : "", run->before, last);
}

static void add_command(const struct kube_run *run, struct strv *ret)
{
	if (!run->shell) {
		for (size_t i = 0; i < run->command->n; i++)
			strv_add(ret, run->command->v[i]);
		return;
	}
	strv_add(ret, "/bin/sh");
	strv_add(ret, "-c");
	if (run->signal)
		strv_addf(ret, "trap : %s\n%s", run->signal, run->command->v[0]);
	else
		strv_add(ret, run->command->v[0]);
}

static void add_words(const struct kube_run *run, struct strv *ret)
{
	for (size_t i = 0; !run->drop_entrypoint && i < run->image_entrypoint.n; i++)
		strv_add(ret, run->image_entrypoint.v[i]);
	add_command(run, ret);
}

/* "$@" of the script. */
static void script_args(const struct job *job, struct strv *ret)
{
	const struct kube_run *run = job->run;

	if (job->collects)
		strv_add_take(ret, job_collector(job));
	if (run->setup) {
		bool at_root = str_empty(run->setup_cwd) || str_eq(run->setup_cwd, ".");
		strv_addf(ret, "%s%s%s", run->workdir, at_root ? "" : "/",
			at_root ? "" : run->setup_cwd);
		strv_add(ret, run->setup);
	}
	if (run->before) {
		strv_add_take(ret, before_text(run));
		strv_add(ret, "dlrun");
	}
	if (!run->before || !is_own_line(run))
		add_words(run, ret);
}

int job_set_words(
	struct json *container, const char *key, const struct strv *words, struct err *err)
{
	struct json *list = json_array();

	json_set(container, key, list);
	for (size_t i = 0; i < words->n; i++) {
		int r = job_check_text(words->v[i], "the word", err);
		if (r < 0)
			return r;
		AUTO_FREE char *escaped = kube_escaped(words->v[i]);
		json_add_str(list, escaped);
	}
	return 0;
}

static int check_shell(const struct job *job, struct err *err)
{
	const struct kube_run *run = job->run;
	const char *what = run->setup    ? "setup"
			   : run->before ? "before"
			   : run->signal ? "--signal"
					 : "a command for the shell";

	if (!run->has_no_shell || !job_has_script(job))
		return 0;
	err_set(err, E_KUBE_SHELL, "%s needs a shell, and the image has none", what);
	return err_hint(err, "dlrun submit --image docker.io/library/python:3.12 …");
}

int job_start(const struct job *job, struct json *container, struct err *err)
{
	const struct kube_run *run = job->run;
	AUTO_STRV struct strv command = {0}, args = {0};

	int r = check_shell(job, err);
	if (r < 0)
		return r;
	if (job_has_script(job)) {
		job_shell_words(job, &command);
		strv_add(&command, "-c");
		strv_add_take(&command, make_script(job));
		strv_add(&command, "dlrun");
		script_args(job, &args);
	} else {
		add_command(run, run->drop_entrypoint ? &command : &args);
	}
	if (command.n)
		r = job_set_words(container, "command", &command, err);
	if (r == 0 && args.n)
		r = job_set_words(container, "args", &args, err);
	return r;
}
