/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/failure.h"

#include <ctype.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"
#include "base/util/vec.h"

enum {
	SIGNAL_CODE = 128,
	LAST_LINES = 40, /* where a line that is not of a traceback says why */
	SIGNS = 14,
	WORD_MAX = 100,
};

/*
 * Rules for lines of output
 */

/* Signs are in small letters, and one of them in the line is enough. {run} in a hint is the run,
 * {word} what follows the sign that was found (a module), as a word of a shell. */
struct rule {
	const char *signs[SIGNS];
	const char *name; /* in front of the line, where the line alone does not tell; or NULL */
	const char *host, *container, *cluster; /* hints; NULL: as the one before */
};

enum { RULE_GPU_MEMORY, RULE_SHM, RULE_DISK, RULE_MEMORY }; /* the others have no name */

/* In this order: the first that has a sign in the line counts. */
static const struct rule rules[] = {
	[RULE_GPU_MEMORY] = {.signs = {"cuda out of memory", "cuda error: out of memory",
				     "cuda_error_out_of_memory", "cudaerrormemoryallocation",
				     "torch.outofmemoryerror", "torch.cuda.outofmemoryerror",
				     "resource_exhausted", "resourceexhaustederror",
				     "hip out of memory", "mps backend out of memory",
				     "cublas_status_alloc_failed"},
		.name = "GPU memory ran out",
		.host = "use a smaller batch, gradient accumulation or lower precision; or a GPU "
			"that is free or larger: dlrun targets"},
	[RULE_SHM] = {.signs = {"insufficient shared memory", "unable to allocate shared memory",
			      "unable to write to file </torch", "creating shared memory",
			      "out of shared memory", "unable to open shared memory object"},
		.name = "shared memory (/dev/shm) is full",
		.host = "make /dev/shm larger, or use fewer workers in the data loader "
			"(num_workers)",
		.cluster = "set resources.shm in dlrun.yaml (resources: {shm: 8Gi}), or use fewer "
			   "workers in the data loader"},
	[RULE_DISK] = {.signs = {"no space left on device", "errno 28]", "enospc",
			       "disk quota exceeded", "errno 122]", "os error 28"},
		.name = "a disk is full",
		.host = "free space: dlrun gc, df -h",
		.cluster = "ask for more scratch space: resources: {disk: 100Gi} in dlrun.yaml"},
	[RULE_MEMORY] = {.signs = {"memoryerror", "bad_alloc", "cannot allocate memory",
				 "errno 12]", "unable to allocate", "defaultcpuallocator",
				 "is killed by signal: killed", "exitcode  : -9", "exitcode: -9",
				 "signal 9 (sigkill)", "out of memory: killed", "oom-kill",
				 "heap out of memory", "outofmemoryerror: java"},
		.name = "memory ran out",
		.host = "use smaller batches or fewer data loader workers; see what it used: dlrun "
			"show {run}",
		.cluster = "ask for more memory: dlrun submit --from {run} --memory 32Gi"},
	{.signs = {"nccl error", "ncclsystemerror", "ncclunhandledcudaerror", "ncclinternalerror",
		 "ncclremoteerror", "ncclinvalidusage", "watchdog caught collective operation",
		 "distbackenderror", "nccl communicator was aborted", "nccl warn"},
		.name = "NCCL failed",
		.host = "see what NCCL says: dlrun submit --from {run} -e NCCL_DEBUG=INFO"},
	{.signs = {"found no nvidia driver", "no cuda gpus are available",
		 "cuda driver version is insufficient", "no cuda-capable device",
		 "cuda_error_no_device", "not compiled with cuda", "cuda is not available",
		 "could not find cuda drivers", "attempting to deserialize object on a cuda device",
		 "libcuda.so.1: cannot open shared object"},
		.name = "the program found no usable GPU",
		.host = "ask for one: dlrun submit --from {run} --gpus 1   (nvidia-smi and the "
			"packages must be there)"},
	{.signs = {"no kernel image is available", "is not compatible with the current pytorch"},
		.name = "the packages do not support this GPU",
		.host = "install a build for this GPU, or choose another one: --gpu-type"},
	{.signs = {"cannot find module '"},
		.host = "add it to package.json and install it: setup: npm ci in dlrun.yaml"},
	{.signs = {"no module named '", "no module named "},
		.host = "pip install {word} in the environment that runs the program, or name it "
			"in setup: of dlrun.yaml",
		.container = "add {word} to the image, or install it with setup: in dlrun.yaml"},
	{.signs = {"version `glibc", "version `cxxabi", "cannot open shared object file",
		 "image not found", "undefined symbol"},
		.name = "a library is missing or does not fit",
		.host = "install it there, or load its module with before: in dlrun.yaml",
		.container = "use an image that has the library: dlrun submit --image BASE"},
	{.signs = {"too many open files", "errno 24]", "emfile"},
		.host = "raise the limit: before: ulimit -n 65536 in dlrun.yaml"},
	{.signs = {"address already in use", "eaddrinuse", "errno 98]"},
		.host = "another program has the port: use another one, or see who runs: dlrun ps"},
	{.signs = {"gatedrepoerror", "401 client error", "403 client error",
		 "api_key not configured", "api key must be", "invalid username or password",
		 "no api key"},
		.name = "a service wants a login",
		.host = "give the token as a secret: dlrun submit --secret HF_TOKEN --from {run}"},
	{.signs = {"name or service not known", "temporary failure in name resolution",
		 "network is unreachable", "nameresolutionerror", "getaddrinfo", "no route to host",
		 "max retries exceeded", "connection refused", "connectionrefusederror"},
		.name = "the network did not answer",
		.host = "try it from there: dlrun exec {run} -- getent hosts github.com",
		.cluster = "the cluster may have no way out: put what it loads into the image or a "
			   "volume (data:)"},
	{.signs = {"read-only file system", "errno 30]", "permission denied", "errno 13]",
		 "permissionerror", "eacces"},
		.host = "look at owner and mode: dlrun exec {run} -- ls -la",
		.cluster = "write to $DLRUN_OUTPUT_DIR or the working directory"},
	{.signs = {"exec format error"},
		.host = "build it for the machine's CPU, or start a script with its "
			"interpreter"},
	{.signs = {"command not found", ": not found"},
		.host = "install it there, or make PATH find it: before: in dlrun.yaml",
		.container = "use an image that has the program: dlrun submit --image BASE"},
	{.signs = {"filenotfounderror", "no such file or directory", "enoent", "os error 2)"},
		.host = "look at what is there: dlrun exec {run} -- ls -la",
		.cluster = "what the run was started with: dlrun submit --dry-run --list-files"},
};

struct finding {
	const char *line; /* NULL: there is none */
	const struct rule *rule;
	const char *after; /* what follows the sign in the line */
};

static const struct rule *failure_find_rule(const char *line, const char **ret_after)
{
	for (size_t i = 0; i < ARRAY_LEN(rules); i++)
		for (size_t k = 0; k < SIGNS && rules[i].signs[k]; k++) {
			const char *at = strcasestr(line, rules[i].signs[k]);
			if (!at)
				continue;
			*ret_after = at + strlen(rules[i].signs[k]);
			return &rules[i];
		}
	return NULL;
}

static bool try_line(const char *line, struct finding *ret)
{
	ret->rule = failure_find_rule(line, &ret->after);
	if (ret->rule)
		ret->line = line;
	return ret->rule != NULL;
}

/* Lines that say why a program of any kind ended, without a rule of their own. */
static bool is_complaint(const char *line)
{
	static const char *const begins[] = {"panic: ", "terminate called",
		"fatal: ", "FATAL: ", "Fatal ",
		"fatal error: ", "Error: ", "ERROR: ", "error: ", "Exception in thread",
		"Traceback: "};

	for (size_t i = 0; i < ARRAY_LEN(begins); i++)
		if (str_starts(line, begins[i]))
			return true;
	return strstr(line, "' panicked at ") || strstr(line, ": error: ") ||
	       strstr(line, ": fatal error: ");
}

static void find_last(const struct strv *lines, struct finding *ret)
{
	size_t first = lines->n > LAST_LINES ? lines->n - LAST_LINES : 0;

	for (size_t i = lines->n; i-- > first;)
		if (try_line(lines->v[i], ret))
			return;
	for (size_t i = lines->n; i-- > first;)
		if (is_complaint(lines->v[i])) {
			ret->line = lines->v[i];
			return;
		}
}

/*
 * Tracebacks of Python. Each line may have something in front that tells which of many processes
 * wrote it ("[rank0]: "): what stands in front of a frame stands in front of the rest.
 */

struct frame {
	size_t before; /* length of what stands in front */
	const char *file;
	size_t file_len;
	long line;
	bool is_newest_first; /* as the faulthandler has them */
};

/* '  File "train.py", line 3, in main'. */
static bool frame_of(const char *line, struct frame *ret)
{
	static const char begin[] = "  File \"", between[] = "\", line ";
	const char *at = strstr(line, begin), *file, *end;
	char *rest;

	if (!at)
		return false;
	file = at + sizeof(begin) - 1;
	end = strstr(file, between);
	if (!end)
		return false;
	*ret = (struct frame){.before = (size_t)(at - line),
		.file = file,
		.file_len = (size_t)(end - file),
		.line = strtol(end + sizeof(between) - 1, &rest, 10)};
	ret->is_newest_first = str_starts(rest, " in ");
	return ret->line > 0;
}

static const char *below_dir(const char *dir, const char *path)
{
	size_t len = dir ? strlen(dir) : 0;

	return len && strncmp(path, dir, len) == 0 && path[len] == '/' ? path + len + 1 : NULL;
}

/* The part of path behind /RUN_ID/attempts/N/tree/, or NULL. */
static const char *below_attempt(const char *run_id, const char *path)
{
	AUTO_FREE char *middle = mem_printf("/%s/attempts/", run_id);
	const char *at = run_id ? strstr(path, middle) : NULL;

	if (!at)
		return NULL;
	at += strlen(middle);
	at += strspn(at, "0123456789");
	return str_starts(at, "/tree/") ? at + strlen("/tree/") : NULL;
}

/* The path in the tree of a frame of the user's own code; NULL: it is somebody else's. The caller
 * frees. */
static char *own_file(const struct failure_facts *facts, const struct frame *frame)
{
	AUTO_FREE char *path = mem_strndup(frame->file, frame->file_len);
	const char *in_tree = below_dir(facts->tree, path);

	if (!in_tree)
		in_tree = below_dir(facts->workdir, path);
	if (!in_tree)
		in_tree = below_attempt(facts->run_id, path);
	if (!in_tree && *path != '/' && *path != '<')
		in_tree = str_starts(path, "./") ? path + 2 : path;
	if (!in_tree || !*in_tree || strlen(in_tree) > FAILURE_FILE_MAX ||
		strstr(path, "site-packages/") || strstr(path, "dist-packages/") ||
		str_starts(in_tree, ".venv/"))
		return NULL;
	return mem_strdup(in_tree);
}

/* "pkg.Error: message" or "Error": a dotted name, alone or with a colon behind it. sure: it has a
 * name that exceptions have. */
static bool is_exception(const char *line, bool sure)
{
	static const char *const ends[] = {"Error", "Exception", "Interrupt", "Exit", "Failure",
		"Timeout", "Warning", "Expired"};
	size_t len = 0, last = 0;

	for (; isalnum((unsigned char)line[len]) || line[len] == '_' || line[len] == '.'; len++)
		if (line[len] == '.')
			last = len + 1;
	if (len == last || isdigit((unsigned char)line[0]) ||
		(line[len] && (line[len] != ':' || (line[len + 1] && line[len + 1] != ' '))))
		return false;
	if (!sure)
		return true;
	for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
		size_t n = strlen(ends[i]);
		if (len - last >= n && memcmp(line + len - n, ends[i], n) == 0)
			return true;
	}
	return false;
}

/* Exceptions that only report the failure of another program or process: its own output says
 * more. */
static bool is_wrapper(const char *line)
{
	static const char *const names[] = {"ChildFailedError", "CalledProcessError",
		"ProcessRaisedException", "ProcessExitedException", "PapermillExecutionError",
		"RemoteTraceback", "SystemExit"};
	size_t len = strcspn(line, ": ");

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		size_t n = strlen(names[i]);
		if (len >= n && memcmp(line + len - n, names[i], n) == 0)
			return true;
	}
	return false;
}

struct raised {
	char *text; /* of the exception; NULL: there is none, or a crash of the interpreter */
	char *file; /* where in the tree; or NULL */
	long line;
};
static void raised_done(struct raised *raised)
{
	free(raised->text);
	free(raised->file);
	*raised = (struct raised){0};
}

struct traceback {
	bool is_open;  /* frames were seen, and no exception yet */
	bool is_next;  /* nothing else came between */
	bool is_crash; /* the faulthandler's: no exception follows */
	size_t before;
	const char *of; /* the line with what stands in front */
	struct raised raised;
};

static void take_frame(const struct failure_facts *facts, const char *line,
	const struct frame *frame, struct traceback *open)
{
	AUTO_FREE char *file = NULL;

	if (!open->is_open || open->before != frame->before ||
		memcmp(open->of, line, frame->before) != 0) {
		raised_done(&open->raised);
		*open = (struct traceback){.is_open = true, .before = frame->before, .of = line};
	}
	open->is_next = true;
	open->is_crash = frame->is_newest_first;
	file = own_file(facts, frame);
	if (!file || (frame->is_newest_first && open->raised.file))
		return;
	REPLACE(open->raised.file, TAKE(file));
	open->raised.line = frame->line;
}

/* A message that only begins on its line. */
static char *with_next(const char *text, const char *next)
{
	size_t len = strlen(text);

	while (len && text[len - 1] == ' ')
		len--;
	if (!len || text[len - 1] != ':' || !next || !next[strspn(next, " ")])
		return mem_strdup(text);
	return mem_printf("%.*s %s", (int)len, text, next + strspn(next, " "));
}

/* true: the line ends the traceback. */
static bool failure_take_line(const char *line, const char *next, struct traceback *open)
{
	const char *text;

	if (!open->is_open || strncmp(line, open->of, open->before) != 0)
		return false;
	text = line + open->before;
	if (!*text || strchr(" |+", *text))
		return false;
	if (is_exception(text, !open->is_next)) {
		open->raised.text = with_next(text, next);
		open->is_open = false;
		return true;
	}
	open->is_next = false;
	return false;
}

/* The latest exception wins, unless it is a wrapper, or a rule matches only the one that it came
 * of. */
static bool is_better(const struct raised *raised, const struct raised *before, bool in_chain)
{
	const char *after;

	if (!before->text)
		return true;
	if (is_wrapper(raised->text))
		return false;
	return !in_chain || !failure_find_rule(before->text, &after) ||
	       failure_find_rule(raised->text, &after);
}

static void find_framed(
	const struct failure_facts *facts, const struct strv *lines, struct raised *ret)
{
	struct traceback open = {0};
	bool in_chain = false;

	for (size_t i = 0; i < lines->n; i++) {
		const char *line = lines->v[i], *next = i + 1 < lines->n ? lines->v[i + 1] : NULL;
		struct frame frame;

		in_chain |= strstr(line, "direct cause of the following exception") ||
			    strstr(line, "another exception occurred:");
		if (frame_of(line, &frame)) {
			take_frame(facts, line, &frame, &open);
			continue;
		}
		if (!failure_take_line(line, next, &open))
			continue;
		if (is_better(&open.raised, ret, in_chain)) {
			raised_done(ret);
			*ret = open.raised;
			open.raised = (struct raised){0};
		}
		raised_done(&open.raised);
		in_chain = false;
	}
	if (open.is_open && open.is_crash) {
		raised_done(ret);
		*ret = open.raised;
	} else {
		raised_done(&open.raised);
	}
}

/* As notebooks and other printers of tracebacks show it, without frames of that form. */
static void find_unframed(const struct strv *lines, struct raised *ret)
{
	for (size_t i = lines->n; i-- > 0;) {
		const char *line = lines->v[i];
		if (!is_exception(line, true) || !strchr(line, ' ') || is_wrapper(line))
			continue;
		raised_done(ret);
		ret->text = mem_strdup(line);
		return;
	}
}

/*
 * Signals
 */

struct signal_word {
	int sig;
	const char *text;
	const char *host, *cluster; /* hints */
};

static const struct signal_word signal_words[] = {
	{SIGKILL,
		"somebody else did it, often the kernel when memory runs out; nothing in the output "
		"shows that",
		"look at the kernel's log there: dmesg | grep -i -e oom -e killed",
		"ask for more memory: dlrun submit --from {run} --memory 32Gi"},
	{SIGSEGV, "segmentation fault in native code",
		"see where: dlrun submit --from {run} -e PYTHONFAULTHANDLER=1", NULL},
	{SIGBUS, "bus error; most often shared memory (/dev/shm) or a disk is full",
		"look at df -h /dev/shm, or use fewer workers in the data loader",
		"set resources.shm in dlrun.yaml (resources: {shm: 8Gi}), or use fewer workers in "
		"the data loader"},
	{SIGILL, "illegal instruction: built for another CPU",
		"install a build for the CPU there (dlrun exec {run} -- lscpu)", NULL},
	{SIGABRT, "aborted by a check in native code",
		"see where: dlrun submit --from {run} -e PYTHONFAULTHANDLER=1", NULL},
	{SIGFPE, "arithmetic error in native code (a division by zero)",
		"see where: dlrun submit --from {run} -e PYTHONFAULTHANDLER=1", NULL},
};

/* The signal that ended the program, even if a shell in front turned it into its own exit code. */
static const struct signal_word *failure_signal_of(const struct run_exit *exit)
{
	int sig = exit->signal ? exit->signal : exit->code - SIGNAL_CODE;

	for (size_t i = 0; i < ARRAY_LEN(signal_words); i++)
		if (signal_words[i].sig == sig)
			return &signal_words[i];
	return NULL;
}

/*
 * The sentence
 */

/* Add foreign text on one line, cut at a character. */
static void add_clean(const char *text, size_t max, struct buf *out)
{
	AUTO_BUF struct buf clean = buf_with((size_t)FAILURE_TAIL * 8);
	size_t n = 0, len;

	term_clean(text, strlen(text), true, &clean);
	while (clean.len && clean.data[clean.len - 1] == ' ')
		buf_truncate(&clean, clean.len - 1);
	while (n < clean.len && (len = str_utf8_len(clean.data + n, clean.len - n)) &&
		n + len <= max)
		n += len;
	buf_add(out, clean.data ? clean.data : "", n);
	if (n < clean.len)
		buf_adds(out, "…");
}

/* The word behind a sign, as a shell takes it: a module's first name. */
static void failure_add_word(const char *after, struct buf *out)
{
	char word[WORD_MAX + 1];
	size_t n = 0;

	for (after += strspn(after, " '\"`"); n < WORD_MAX; n++) {
		if (!isalnum((unsigned char)after[n]) && !strchr("_-", after[n]))
			break;
		word[n] = after[n];
		if (!after[n])
			break;
	}
	word[n] = '\0';
	/* Modules that have another name in the registry of packages. */
	static const char *const names[][2] = {{"cv2", "opencv-python"}, {"PIL", "pillow"},
		{"sklearn", "scikit-learn"}, {"skimage", "scikit-image"}, {"yaml", "pyyaml"},
		{"bs4", "beautifulsoup4"}, {"dotenv", "python-dotenv"}, {"wandb_gql", "wandb"},
		{"pytorch_lightning", "pytorch-lightning"}, {"hydra", "hydra-core"},
		{"google", "protobuf"}, {"attr", "attrs"}, {"dateutil", "python-dateutil"},
		{"flash_attn", "flash-attn"}, {"git", "gitpython"}, {"faiss", "faiss-cpu"}};
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_eq(word, names[i][0])) {
			buf_adds(out, names[i][1]);
			return;
		}
	str_shell_quote(out, *word && *word != '-' ? word : "PACKAGE");
}

static void failure_add_hint(
	const struct failure_facts *facts, const char *text, const char *after, struct buf *out)
{
	static const char run[] = "{run}", word[] = "{word}";

	for (; *text; text++) {
		if (str_starts(text, run)) {
			buf_adds(out, facts->run_id ? facts->run_id : "@");
			text += sizeof(run) - 2;
		} else if (str_starts(text, word)) {
			failure_add_word(facts->is_private ? "" : after, out);
			text += sizeof(word) - 2;
		} else {
			buf_addc(out, *text);
		}
	}
}

static void print_rule(
	const struct failure_facts *facts, const struct finding *finding, struct buf *hint)
{
	const struct rule *rule = finding->rule;
	const char *text = rule->host;

	if (facts->in_container && rule->container)
		text = rule->container;
	if (facts->is_cluster && rule->cluster)
		text = rule->cluster;
	failure_add_hint(facts, text, finding->after, hint);
}

static void failure_print_line(
	const struct failure_facts *facts, const struct finding *finding, struct buf *reason)
{
	const char *name = finding->rule ? finding->rule->name : NULL;
	const char *line = finding->line + strspn(finding->line, " ");
	AUTO_FREE char *type = facts->is_private ? mem_strndup(line, strcspn(line, ": ")) : NULL;

	if (type)
		line = is_exception(line, true) ? type : "";
	buf_addf(reason, "%s%s", name ? name : "", name && *line ? ": " : "");
	add_clean(line, FAILURE_LINE_MAX, reason);
}

static void failure_add_place(const struct raised *raised, struct buf *out)
{
	if (!raised->file)
		return;
	buf_adds(out, " (");
	add_clean(raised->file, FAILURE_FILE_MAX, out);
	buf_addf(out, ":%ld)", raised->line);
}

/* Workers of a data loader tell in another line what became of them. */
static void find_worker_end(const struct strv *lines, struct finding *ret)
{
	for (size_t i = lines->n; i-- > 0;) {
		struct finding finding = {0};

		if (try_line(lines->v[i], &finding) && finding.rule <= &rules[RULE_MEMORY]) {
			ret->rule = finding.rule;
			ret->after = finding.after;
			return;
		}
	}
}

static void print_raised(const struct failure_facts *facts, const struct strv *lines,
	const struct raised *raised, struct buf *reason, struct buf *hint)
{
	struct finding finding = {.line = raised->text};

	if (!try_line(raised->text, &finding) && strstr(raised->text, "DataLoader worker"))
		find_worker_end(lines, &finding);
	failure_print_line(facts, &finding, reason);
	if (reason->len)
		failure_add_place(raised, reason);
	if (finding.rule && reason->len)
		print_rule(facts, &finding, hint);
}

static void print_signal(const struct failure_facts *facts, const struct signal_word *word,
	const struct raised *raised, struct buf *reason, struct buf *hint)
{
	buf_adds(reason, word->text);
	if (!raised->text)
		failure_add_place(raised, reason);
	failure_add_hint(
		facts, facts->is_cluster && word->cluster ? word->cluster : word->host, "", hint);
}

/* The last words of a process that was killed from outside may be about something else. */
static bool says_more_than_signal(const struct signal_word *word, const struct finding *finding)
{
	if (word->sig == SIGKILL)
		return finding->rule == &rules[RULE_MEMORY];
	return finding->rule || (finding->line && word->sig == SIGABRT);
}

/* Progress bars begin their line anew. */
static void failure_split(const char *output, size_t len, struct strv *ret)
{
	size_t first = len > FAILURE_TAIL ? len - FAILURE_TAIL : 0;

	for (size_t start = first; start < len;) {
		size_t end = start;
		while (end < len && output[end] != '\n' && output[end] != '\r')
			end++;
		strv_add_take(ret, term_plain(output + start, end - start));
		start = end + 1;
	}
}

bool failure_find(const struct failure_facts *facts, const char *output, size_t len,
	struct buf *reason, struct buf *hint)
{
	const struct signal_word *word = failure_signal_of(&facts->exit);
	AUTO_STRV struct strv lines = {0};
	AUTO(raised_done) struct raised raised = {0};
	struct finding finding = {0};

	failure_split(output, len, &lines);
	find_framed(facts, &lines, &raised);
	if (raised.text ? is_wrapper(raised.text) : !raised.file)
		find_unframed(&lines, &raised);
	if (raised.text && (!word || word->sig == SIGABRT)) {
		print_raised(facts, &lines, &raised, reason, hint);
		return reason->len > 0;
	}
	find_last(&lines, &finding);
	/* OutOfMemory already tells that the kernel killed the program. */
	if (word && !says_more_than_signal(word, &finding) &&
		str_eq(facts->exit.reason, "OutOfMemory"))
		return false;
	if (word && !says_more_than_signal(word, &finding)) {
		print_signal(facts, word, &raised, reason, hint);
		return true;
	}
	if (!finding.line)
		return false;
	failure_print_line(facts, &finding, reason);
	if (finding.rule && reason->len)
		print_rule(facts, &finding, hint);
	return reason->len > 0;
}
