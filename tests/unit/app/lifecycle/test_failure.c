/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "app/lifecycle/failure.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

#define TREE "/home/me/.local/state/dlrun/runs/a-22222/attempts/1/tree"

static const struct failure_facts here = {
	.run_id = "a-22222", .tree = TREE, .exit = {.known = true, .code = 1, .origin = "job"}};
static const struct failure_facts in_cluster = {.run_id = "a-22222",
	.workdir = "/dlrun/src",
	.in_container = true,
	.is_cluster = true,
	.exit = {.known = true, .code = 1, .origin = "job"}};

/* reason NULL: nothing is found. hint: a part of it; NULL: there is none. */
static void notifies_of(
	const struct failure_facts *facts, const char *output, const char *reason, const char *hint)
{
	AUTO_BUF struct buf said = {0}, next = {0};

	buf_init(&said, 1 << 20);
	buf_init(&next, 1 << 20);
	bool found = failure_find(facts, output, strlen(output), &said, &next);
	if (found != (reason != NULL) || (reason && !str_eq(said.data, reason)))
		fail_msg("%s\n-> %s\ninstead of %s", output, found ? said.data : "nothing", reason);
	if (found && (hint ? !next.len || !strstr(next.data, hint) : next.len > 0))
		fail_msg("%s\nhint: %s\ninstead of %s", output, next.data, hint);
}

static void notifies(const char *output, const char *reason, const char *hint)
{
	notifies_of(&here, output, reason, hint);
}

static void test_tracebacks(void **state)
{
	notifies("Traceback (most recent call last):\n"
		 "  File \"" TREE "/train.py\", line 12, in <module>\n    main()\n"
		 "  File \"" TREE "/lib/model.py\", line 40, in main\n    return f(x)\n"
		 "           ^^^^\n"
		 "  File \"/usr/lib/python3/dist-packages/torch/nn.py\", line 9, in f\n    g()\n"
		 "ValueError: bad shape [3, 4]\n",
		"ValueError: bad shape [3, 4] (lib/model.py:40)", NULL);
	/* Two processes at once, each with its own words in front. */
	notifies("[rank0]: Traceback (most recent call last):\n"
		 "[rank1]: Traceback (most recent call last):\n"
		 "[rank0]:   File \"" TREE "/a.py\", line 1, in <module>\n"
		 "[rank1]:   File \"" TREE "/b.py\", line 2, in <module>\n"
		 "[rank1]: KeyError: 'lr'\n",
		"KeyError: 'lr' (b.py:2)", NULL);
	/* torchrun: what the worker said, not that it failed. */
	notifies("Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n"
		 "    raise RuntimeError('no')\nRuntimeError: no\n"
		 "Traceback (most recent call last):\n"
		 "  File \"/venv/bin/torchrun\", line 8, in <module>\n    sys.exit(main())\n"
		 "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
		 "=====\ntrain.py FAILED\n  exitcode  : 1 (pid: 3)\n",
		"RuntimeError: no (train.py:3)", NULL);
	/* The cause tells more than what was made of it. */
	notifies(
		"Traceback (most recent call last):\n  File \"t.py\", line 1, in f\n    w()\n"
		"OSError: [Errno 28] No space left on device\n\n"
		"The above exception was the direct cause of the following exception:\n\n"
		"Traceback (most recent call last):\n  File \"t.py\", line 9, in <module>\n    f()\n"
		"datasets.exceptions.DatasetGenerationError: An error occurred\n",
		"a disk is full: OSError: [Errno 28] No space left on device (t.py:1)", "dlrun gc");
	/* The head of it is not there any more; a syntax error; a message on the next line. */
	notifies("  File \"" TREE
		 "/x.py\", line 7, in g\n    1/0\nZeroDivisionError: division by zero\n",
		"ZeroDivisionError: division by zero (x.py:7)", NULL);
	notifies("  File \"" TREE
		 "/x.py\", line 3\n    foo(\n       ^\nSyntaxError: '(' was never closed\n",
		"SyntaxError: '(' was never closed (x.py:3)", NULL);
	notifies("Traceback (most recent call last):\n  File \"x.py\", line 3, in f\n    g()\n"
		 "RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s): \"w\"\n",
		"RuntimeError: Error(s) in loading state_dict for Net: Missing key(s): \"w\" (x.py:3)",
		NULL);
	/* Exception groups, and a notebook run by papermill. */
	notifies("  + Exception Group Traceback (most recent call last):\n"
		 "  |   File \"t.py\", line 3, in <module>\n  |     raise g\n"
		 "  | ExceptionGroup: two of them (2 sub-exceptions)\n"
		 "  +-+---------------- 1 ----------------\n    | ValueError: a\n",
		"ExceptionGroup: two of them (2 sub-exceptions) (t.py:3)", NULL);
	notifies("Traceback (most recent call last):\n"
		 "  File \"/v/lib/python3.11/site-packages/papermill/execute.py\", line 251, in r\n"
		 "    raise error\npapermill.exceptions.PapermillExecutionError: \n"
		 "-----\nException encountered at \"In [1]\":\n-----\n"
		 "ZeroDivisionError                         Traceback (most recent call last)\n"
		 "Cell In[1], line 1\n----> 1 1/0\n\nZeroDivisionError: division by zero\n",
		"ZeroDivisionError: division by zero", NULL);
	/* Progress bars and colours. */
	notifies(
		"\r 10%|#   | 1/10\r 20%|##  | 2/10\n\033[31mTraceback (most recent call last):\033[0m\n"
		"  File \"x.py\", line 2, in f\n\033[1;31mKeyboardInterrupt\033[0m\n",
		"KeyboardInterrupt (x.py:2)", NULL);
	/* An old traceback that was survived is no reason for an end without a word. */
	notifies("all is well\n", NULL, NULL);
	notifies("", NULL, NULL);
}

static void test_memory_and_disks(void **state)
{
	notifies("Traceback (most recent call last):\n  File \"train.py\", line 5, in <module>\n"
		 "    x = y.cuda()\n"
		 "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.\n",
		"GPU memory ran out: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
		"20.00 GiB. (train.py:5)",
		"smaller batch");
	notifies("Traceback (most recent call last):\n  File \"train.py\", line 5, in f\n"
		 "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while "
		 "trying to allocate 12 bytes.\n",
		"GPU memory ran out: jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out "
		"of memory while trying to allocate 12 bytes. (train.py:5)",
		"smaller batch");
	notifies("Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\n"
		 "MemoryError\n",
		"memory ran out: MemoryError (t.py:1)", "dlrun show a-22222");
	notifies("terminate called after throwing an instance of 'std::bad_alloc'\n"
		 "  what():  std::bad_alloc\n",
		"memory ran out: what():  std::bad_alloc", "dlrun show");
	notifies("ERROR: Unexpected bus error encountered in worker. This might be caused by "
		 "insufficient shared memory (shm).\n"
		 "Traceback (most recent call last):\n  File \"train.py\", line 5, in f\n"
		 "RuntimeError: DataLoader worker (pid(s) 12) exited unexpectedly\n",
		"shared memory (/dev/shm) is full: RuntimeError: DataLoader worker (pid(s) 12) exited "
		"unexpectedly (train.py:5)",
		"num_workers");
	notifies_of(&in_cluster,
		"Traceback (most recent call last):\n  File \"/dlrun/src/train.py\", line 5, in f\n"
		"RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is "
		"possible that dataloader's workers are out of shared memory.\n",
		"shared memory (/dev/shm) is full: RuntimeError: DataLoader worker (pid 9) is killed "
		"by signal: Bus error. It is possible that dataloader's workers are out of shared "
		"memory. (train.py:5)",
		"resources.shm");
	notifies("dd: error writing 'x': No space left on device\n",
		"a disk is full: dd: error writing 'x': No space left on device", "dlrun gc");
	notifies_of(&in_cluster, "cp: write error: No space left on device\n",
		"a disk is full: cp: write error: No space left on device", "disk: 100Gi");
}

static void test_what_is_missing(void **state)
{
	static const char missing[] =
		"Traceback (most recent call last):\n  File \"train.py\", line 1, in <module>\n"
		"    import cv2\nModuleNotFoundError: No module named 'cv2'\n";

	notifies(missing, "ModuleNotFoundError: No module named 'cv2' (train.py:1)",
		"pip install opencv-python in");
	notifies_of(&in_cluster, missing, "ModuleNotFoundError: No module named 'cv2' (train.py:1)",
		"add opencv-python to the image");
	notifies("/usr/bin/python3: No module named torch.distributed\n",
		"/usr/bin/python3: No module named torch.distributed", "pip install torch in");
	notifies("Traceback (most recent call last):\n  File \"train.py\", line 1, in <module>\n"
		 "ModuleNotFoundError: No module named '$(touch x); rm -rf /'\n",
		"ModuleNotFoundError: No module named '$(touch x); rm -rf /' (train.py:1)",
		"pip install PACKAGE in");
	notifies("sh: 1: nvcc: not found\n", "sh: 1: nvcc: not found", "before:");
	notifies_of(&in_cluster, "run.sh: line 3: accelerate: command not found\n",
		"run.sh: line 3: accelerate: command not found", "dlrun submit --image");
	notifies("Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\n"
		 "FileNotFoundError: [Errno 2] No such file or directory: 'x'\n",
		"FileNotFoundError: [Errno 2] No such file or directory: 'x' (t.py:1)",
		"dlrun exec a-22222 -- ls -la");
	notifies("touch: cannot touch '/data/x': Permission denied\n",
		"touch: cannot touch '/data/x': Permission denied", "owner and mode");
	notifies("./a.out: error while loading shared libraries: libcudnn.so.8: cannot open shared "
		 "object file: No such file or directory\n",
		"a library is missing or does not fit: ./a.out: error while loading shared "
		"libraries: libcudnn.so.8: cannot open shared object file: No such file or directory",
		"before:");
	notifies("Error: Cannot find module 'express'\nRequire stack:\n- /x/a.js\n",
		"Error: Cannot find module 'express'", "npm ci");
	notifies("make: *** No rule to make target 'x'.  Stop.\n", NULL, NULL);
}

static void test_networks_and_gpus(void **state)
{
	notifies("[rank0]: Traceback (most recent call last):\n"
		 "[rank0]:   File \"" TREE "/ddp.py\", line 3, in <module>\n"
		 "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, "
		 "unhandled system error\n",
		"NCCL failed: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled "
		"system error (ddp.py:3)",
		"NCCL_DEBUG=INFO");
	notifies("Traceback (most recent call last):\n  File \"t.py\", line 2, in <module>\n"
		 "RuntimeError: Found no NVIDIA driver on your system.\n",
		"the program found no usable GPU: RuntimeError: Found no NVIDIA driver on your "
		"system. (t.py:2)",
		"--gpus 1");
	notifies("Traceback (most recent call last):\n  File \"t.py\", line 2, in <module>\n"
		 "OSError: [Errno 98] Address already in use\n",
		"OSError: [Errno 98] Address already in use (t.py:2)", "dlrun ps");
	notifies("Traceback (most recent call last):\n  File \"t.py\", line 2, in <module>\n"
		 "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name "
		 "resolution>\n",
		"the network did not answer: urllib.error.URLError: <urlopen error [Errno -3] "
		"Temporary failure in name resolution> (t.py:2)",
		"dlrun exec a-22222");
}

static void test_other_languages(void **state)
{
	notifies("thread 'main' panicked at src/main.rs:2:5:\nindex out of bounds\n",
		"thread 'main' panicked at src/main.rs:2:5:", NULL);
	notifies(
		"panic: runtime error: index out of range [5] with length 3\n\ngoroutine 1 [running]:\n",
		"panic: runtime error: index out of range [5] with length 3", NULL);
	notifies(
		"Exception in thread \"main\" java.lang.IllegalStateException: no\n\tat A.main(A.java:3)\n",
		"Exception in thread \"main\" java.lang.IllegalStateException: no", NULL);
	notifies(
		"ERROR: LoadError: UndefVarError: x not defined\nStacktrace:\n [1] top-level scope\n",
		"ERROR: LoadError: UndefVarError: x not defined", NULL);
	notifies("x.c:3:1: error: expected ';'\nmake: *** [x.o] Error 1\n",
		"x.c:3:1: error: expected ';'", NULL);
}

static struct failure_facts ended_by(int code, int sig)
{
	struct failure_facts facts = here;

	facts.exit.code = code;
	facts.exit.signal = sig;
	return facts;
}

static void test_signals(void **state)
{
	static const char old[] =
		"Traceback (most recent call last):\n  File \"t.py\", line 1, in f\n"
		"ValueError: retried\n";
	struct failure_facts killed = ended_by(137, SIGKILL), crashed = ended_by(139, 0),
			     bus = ended_by(135, SIGBUS), aborted = ended_by(134, SIGABRT),
			     stopped = ended_by(143, SIGTERM);

	notifies_of(&killed, "epoch 3\n",
		"somebody else did it, often the kernel when memory runs out; nothing in the output "
		"shows that",
		"dmesg");
	/* What was survived before is not the reason. */
	notifies_of(&killed, old,
		"somebody else did it, often the kernel when memory runs out; nothing in the output "
		"shows that",
		"dmesg");
	notifies_of(&killed, "Out of memory: Killed process 12 (python)\n",
		"memory ran out: Out of memory: Killed process 12 (python)", "dlrun show");
	notifies_of(&crashed,
		"Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call "
		"first):\n  File \"/usr/lib/python3.11/ctypes/__init__.py\", line 5 in f\n"
		"  File \"" TREE "/t.py\", line 4 in g\n  File \"" TREE "/t.py\", line 9 in "
		"<module>\n",
		"segmentation fault in native code (t.py:4)", "PYTHONFAULTHANDLER=1");
	notifies_of(&bus, "epoch 1\n",
		"bus error; most often shared memory (/dev/shm) or a disk is full", "/dev/shm");
	notifies_of(&aborted, "terminate called after throwing an instance of 'c10::Error'\n",
		"terminate called after throwing an instance of 'c10::Error'", NULL);
	notifies_of(&stopped, "epoch 1\n", NULL, NULL);
}

/* What may be a secret is not repeated, what was found is. */
static void test_output_of_a_run_with_secrets(void **state)
{
	static const char missing[] =
		"Traceback (most recent call last):\n  File \"t.py\", line 1, in f\n"
		"ModuleNotFoundError: No module named 'hunter2'\n";
	struct failure_facts facts = here, crashed = ended_by(139, 0);

	facts.is_private = crashed.is_private = true;
	notifies_of(&facts, missing, "ModuleNotFoundError (t.py:1)", "pip install PACKAGE in");
	notifies_of(&facts, "Error: no such key: hunter2\n", "Error", NULL);
	notifies_of(&facts, "cat: hunter2: No such file or directory\n", NULL, NULL);
	notifies_of(&facts, "dd: hunter2: No space left on device\n", "a disk is full", "dlrun gc");
	notifies_of(
		&crashed, "hunter2\n", "segmentation fault in native code", "PYTHONFAULTHANDLER");
}

static void test_hostile_output(void **state)
{
	AUTO_FREE char *wide = mem_alloc(200000, 1);
	AUTO_BUF struct buf reason = {0}, hint = {0};

	notifies("Traceback (most recent call last):\n  File \"x.py\", line 1, in f\n"
		 "ValueError: \x01\x1b]0;title\x7f \xff\xfe\n",
		"ValueError:   ]0;title^? \\xff\\xfe (x.py:1)", NULL);
	memset(wide, 'x', 199999);
	memcpy(wide, "Error: ", 7);
	memcpy(wide + 199999 - 50, "\nValueError: ", 13);
	buf_init(&reason, 1 << 20);
	buf_init(&hint, 1 << 20);
	assert_true(failure_find(&here, wide, 199999, &reason, &hint));
	assert_true(reason.len < FAILURE_LINE_MAX + 8);
	/* Numbers and names that no file has. */
	notifies("  File \"x.py\", line 99999999999999999999999, in f\nValueError: a\n",
		"ValueError: a (x.py:9223372036854775807)", NULL);
	notifies("  File \"<string>\", line 1, in f\nValueError: a\n", "ValueError: a", NULL);
	notifies("  File \"/etc/passwd\", line 1, in f\nValueError: a\n", "ValueError: a", NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tracebacks),
		cmocka_unit_test(test_memory_and_disks),
		cmocka_unit_test(test_what_is_missing),
		cmocka_unit_test(test_networks_and_gpus),
		cmocka_unit_test(test_other_languages),
		cmocka_unit_test(test_signals),
		cmocka_unit_test(test_output_of_a_run_with_secrets),
		cmocka_unit_test(test_hostile_output),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
