/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/loop/proc.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/launcher.h"
#include "tmpfix.h"

static void split(const char *line, struct strv *ret)
{
	AUTO_FREE char *text = mem_strdup(line);
	char *rest = text;

	for (char *word; (word = strsep(&rest, " "));)
		strv_add(ret, word);
}

static struct launcher launcher_of(const char *text)
{
	struct launcher launcher = {0};

	assert_int_equal(launcher_parse(text, &launcher, NULL), 0);
	return launcher;
}

static void test_names(void **state)
{
	static const struct {
		const char *text, *hint; /* hint: NULL where it is right */
	} cases[] = {
		{"none", NULL},
		{"torchrun", NULL},
		{"torchrun:4", NULL},
		{"mpirun:1024", NULL},
		{"accelerate", NULL},
		{"deepspeed:1", NULL},
		{"torchrum", "did you mean torchrun?"},
		{"none:2", "did you mean none?"},
		{"", "dlrun submit --launcher torchrun:2 -- python3 train.py"},
		{"torchrun:0", ""},
		{"torchrun:1025", ""},
		{"torchrun:x", ""},
		{"torchrun:", ""},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_ERR struct err err = {0};
		struct launcher launcher = {0};
		int r = launcher_parse(cases[i].text, &launcher, &err);

		assert_int_equal(r == 0, cases[i].hint == NULL);
		if (r < 0) {
			assert_int_equal(err.id, E_USAGE);
			if (*cases[i].hint)
				assert_string_equal(err.hint, cases[i].hint);
			continue;
		}
		AUTO_FREE char *text = launcher_text(&launcher);
		assert_string_equal(text, cases[i].text);
	}
}

/* problem: a part of the error; NULL: it is accepted, and line is what people read. */
static void test_commands(void **state)
{
	static const struct {
		const char *launcher, *command;
		int nodes, gpus;
		const char *line, *problem;
	} cases[] = {
		{"none", "train", 1, 0, NULL, NULL},
		{"torchrun", "python3 train.py --lr 1", 1, 0,
			"python3 -m torch.distributed.run --nnodes 1 --node_rank 0 --nproc_per_node 1 "
			"--master_addr $MASTER_ADDR --master_port $MASTER_PORT train.py --lr 1",
			NULL},
		{"torchrun", ".venv/bin/python -u -m pkg.train -m x", 2, 8,
			".venv/bin/python -m torch.distributed.run --nnodes 2 --node_rank $NODE_RANK "
			"--nproc_per_node 8 --master_addr $MASTER_ADDR --master_port $MASTER_PORT -m "
			"pkg.train -m x",
			NULL},
		{"torchrun", "python3.12 a.py", 1, -1,
			"python3.12 -m torch.distributed.run --nnodes 1 --node_rank 0 "
			"--nproc_per_node $DLRUN_GPUS_PER_NODE --master_addr $MASTER_ADDR "
			"--master_port $MASTER_PORT a.py",
			NULL},
		{"torchrun:2", "uv run --with torch --frozen python a.py", 1, -1,
			"uv run --with torch --frozen python -m torch.distributed.run --nnodes 1 "
			"--node_rank 0 --nproc_per_node 2 --master_addr $MASTER_ADDR --master_port "
			"$MASTER_PORT a.py",
			NULL},
		{"torchrun:2", "uv run -p python3.12 a.py b.py", 1, -1,
			"uv run -p python3.12 python -m torch.distributed.run --nnodes 1 --node_rank "
			"0 --nproc_per_node 2 --master_addr $MASTER_ADDR --master_port $MASTER_PORT "
			"a.py b.py",
			NULL},
		{"torchrun:2", "uv run -m pkg.train", 1, -1,
			"uv run python -m torch.distributed.run --nnodes 1 --node_rank 0 "
			"--nproc_per_node 2 --master_addr $MASTER_ADDR --master_port $MASTER_PORT -m "
			"pkg.train",
			NULL},
		{"accelerate", "poetry run python a.py", 2, -1,
			"poetry run python -m accelerate.commands.launch --num_machines 2 "
			"--machine_rank $NODE_RANK --num_processes $((2 * DLRUN_GPUS_PER_NODE)) "
			"--main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT a.py",
			NULL},
		{"deepspeed", "python -m pkg", 2, 4,
			"python -m deepspeed.launcher.launch --node_rank $NODE_RANK --master_addr "
			"$MASTER_ADDR --master_port $MASTER_PORT --module pkg",
			NULL},
		{"mpirun:3", "./solver -n 4", 1, 0, "mpirun -n 3 ./solver -n 4", NULL},
		{"mpirun", "./solver", 2, 0, NULL, "one node"},
		{"torchrun", "./solver", 1, 0, NULL, "./solver is not python"},
		{"torchrun", "pythonic a.py", 1, 0, NULL, "pythonic is not python"},
		{"torchrun", "uv run pytest a.py", 1, 0, NULL, "uv is not python"},
		{"torchrun", "uv run --with torch", 1, 0, NULL, "uv is not python"},
		{"torchrun", "python", 1, 0, NULL, "no file and no module"},
		{"torchrun", "python -u", 1, 0, NULL, "no file and no module"},
		{"torchrun", "python -m", 1, 0, NULL, "no file and no module"},
		{"torchrun", "python -c pass", 1, 0, NULL, "not python -c"},
		{"torchrun", "python -O a.py", 1, 0, NULL, "not python -O"},
		{"torchrun", "python -", 1, 0, NULL, "not python -"},
		{"torchrun", "torchrun a.py", 1, 0, NULL, "a launcher already: torchrun"},
		{"mpirun", "/usr/bin/mpirun a", 1, 0, NULL, "a launcher already: mpirun"},
		{"torchrun", "python -m torch.distributed.run a.py", 1, 0, NULL,
			"a launcher already: -m torch.distributed.run"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct launcher launcher = launcher_of(cases[i].launcher);
		AUTO_STRV struct strv command = {0};
		AUTO_ERR struct err err = {0};

		split(cases[i].command, &command);
		int r = launcher_check(&launcher, &command, false, cases[i].nodes, &err);
		assert_int_equal(r == 0, cases[i].problem == NULL);
		if (r < 0) {
			assert_int_equal(err.id, E_USAGE);
			if (!strstr(err.message, cases[i].problem))
				assert_string_equal(err.message, cases[i].problem);
			continue;
		}
		AUTO_FREE char *line =
			launcher_line(&launcher, &command, cases[i].nodes, cases[i].gpus);
		assert_int_equal(line == NULL, cases[i].line == NULL);
		if (line)
			assert_string_equal(line, cases[i].line);
	}
}

static void test_line_for_the_shell(void **state)
{
	struct launcher torchrun = launcher_of("torchrun"), none = launcher_of("none");
	AUTO_STRV struct strv command = {0}, words = {0};
	AUTO_ERR struct err err = {0};

	strv_add(&command, "python a.py | tee log");
	assert_true(launcher_check(&torchrun, &command, true, 1, &err) < 0);
	assert_string_equal(err.hint, "--launcher none");
	assert_int_equal(launcher_check(&none, &command, true, 1, NULL), 0);
	launcher_words(&none, &command, &words);
	assert_int_equal(words.n, 1);
	assert_string_equal(words.v[0], command.v[0]);
}

/* What nobody checked, from a record: its own words. */
static void test_words_of_no_python(void **state)
{
	static const char *const commands[] = {
		"solver -n 4", "python3 -u", "uv run", "python -c x"};
	struct launcher torchrun = launcher_of("torchrun");

	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		AUTO_STRV struct strv command = {0}, words = {0};
		split(commands[i], &command);
		launcher_words(&torchrun, &command, &words);
		AUTO_FREE char *line = strv_join(&words, " ");
		assert_string_equal(line, commands[i]);
	}
}

/*
 * The words as a shell executes them, by an interpreter that prints its arguments
 */

static void make_program(const char *dir, const char *name, const char *text)
{
	AUTO_FREE char *path = mem_printf("%s/%s", dir, name);
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
	assert_int_equal(chmod(path, 0755), 0);
}

static void assert_starts_as(const char *dir, const char *launcher, const char *command,
	const char *env, const char *expected)
{
	struct launcher parsed = launcher_of(launcher);
	AUTO_STRV struct strv typed = {0}, words = {0}, argv = {0};
	AUTO_BUF struct buf out;
	int status;

	split(command, &typed);
	launcher_words(&parsed, &typed, &words);
	strv_add(&argv, "env");
	strv_add(&argv, "-i");
	strv_addf(&argv, "PATH=%s:/usr/bin:/bin", dir);
	split(env, &argv);
	for (size_t i = 0; i < words.n; i++)
		strv_add(&argv, words.v[i]);
	buf_init(&out, 1 << 20);
	assert_int_equal(
		proc_capture((const char *const *)argv.v, dir, 60000, &out, &status, NULL), 0);
	assert_string_equal(out.data, expected);
}

static void test_start(void **state)
{
	static const char print[] = "#!/bin/sh\n"
				    "[ \"$1\" != -c ] || { printf %s \"$3\" | tr -d '\"'; exit; }\n"
				    "for w in \"${0##*/}\" \"$@\"; do printf '<%s>' \"$w\"; done\n";
	static const char gang[] = "NNODES=2 NODE_RANK=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500";
	static const char one[] = "NNODES=1 NODE_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=4000 "
				  "DLRUN_GPUS_PER_NODE=0";
	const char *dir = tmp;
	AUTO_FREE char *gpus =
		mem_printf("%s DLRUN_GPUS_PER_NODE=2 CUDA_VISIBLE_DEVICES=GPU-a,GPU-b", gang);

	make_program(dir, "python3", print);
	make_program(dir, "uv", print);
	make_program(dir, "mpirun", print);
	assert_starts_as(dir, "none", "python3 a.py", one, "<python3><a.py>");
	assert_starts_as(dir, "torchrun", "python3 -u a.py x", one,
		"<python3><-m><torch.distributed.run><--nnodes><1><--node_rank><0>"
		"<--nproc_per_node><1><--master_addr><127.0.0.1><--master_port><4000><a.py><x>");
	assert_starts_as(dir, "torchrun", "./python3 -m pkg $HOME", gpus,
		"<python3><-m><torch.distributed.run><--nnodes><2><--node_rank><1>"
		"<--nproc_per_node><2><--master_addr><10.0.0.1><--master_port><29500><-m><pkg>"
		"<$HOME>");
	assert_starts_as(dir, "torchrun:4", "uv run --with torch a.py", gang,
		"<uv><run><--with><torch><python><-m><torch.distributed.run><--nnodes><2>"
		"<--node_rank><1><--nproc_per_node><4><--master_addr><10.0.0.1><--master_port>"
		"<29500><a.py>");
	assert_starts_as(dir, "torchrun:4",
		"uv run --with a --with b --with c --with d --with e python a.py", gang,
		"<uv><run><--with><a><--with><b><--with><c><--with><d><--with><e><python><-m>"
		"<torch.distributed.run><--nnodes><2><--node_rank><1><--nproc_per_node><4>"
		"<--master_addr><10.0.0.1><--master_port><29500><a.py>");
	/* The user's variables are the program's. */
	make_program(dir, "python3.1", "#!/bin/sh\necho \"$n $t $p1 $m $f $w\"\n");
	static const char own[] = "n=1e3 t=x p1=y m=z f=a w=b CUDA_VISIBLE_DEVICES=0";
	assert_starts_as(dir, "torchrun:4", "python3.1 a.py", own, "1e3 x y z a b\n");
	assert_starts_as(dir, "accelerate:4", "python3.1 a.py", own, "1e3 x y z a b\n");
	assert_starts_as(dir, "accelerate", "python3 a.py", gpus,
		"<python3><-m><accelerate.commands.launch><--multi_gpu><--num_machines><2>"
		"<--machine_rank><1><--num_processes><4><--main_process_ip><10.0.0.1>"
		"<--main_process_port><29500><a.py>");
	assert_starts_as(dir, "accelerate", "python3 a.py", one,
		"<python3><-m><accelerate.commands.launch><--cpu><--num_machines><1>"
		"<--machine_rank><0><--num_processes><1><--main_process_ip><127.0.0.1>"
		"<--main_process_port><4000><a.py>");
	AUTO_FREE char *config = mem_printf("%s/accelerate", dir);
	assert_int_equal(mkdir(config, 0700), 0);
	make_program(config, "default_config.yaml", "distributed_type: FSDP\n");
	AUTO_FREE char *with_config = mem_printf("%s HF_HOME=%s", gpus, dir);
	assert_starts_as(dir, "accelerate", "python3 a.py", with_config,
		"<python3><-m><accelerate.commands.launch><--num_machines><2><--machine_rank><1>"
		"<--num_processes><4><--main_process_ip><10.0.0.1><--main_process_port><29500>"
		"<a.py>");
	assert_starts_as(dir, "deepspeed", "python3 a.py", gpus,
		"<python3><-m><deepspeed.launcher.launch><--world_info>"
		"<{node0:[GPU-a,GPU-b],node1:[GPU-a,GPU-b]}><--node_rank><1><--master_addr>"
		"<10.0.0.1><--master_port><29500><a.py>");
	assert_starts_as(dir, "deepspeed:3", "python3 a.py", one,
		"<python3><-m><deepspeed.launcher.launch><--world_info><{node0:[0,1,2]}>"
		"<--node_rank><0><--master_addr><127.0.0.1><--master_port><4000><a.py>");
	assert_starts_as(dir, "mpirun", "./python3 a.py", gpus, "<mpirun><-n><2><./python3><a.py>");
	assert_starts_as(dir, "mpirun:3", "true x", one, "<mpirun><-n><3><true><x>");
}

static void test_missing_program(void **state)
{
	static const struct {
		const char *launcher, *command, *says;
	} cases[] = {
		{"torchrun", "python3.99 a.py", "dlrun: python3.99: command not found\n"},
		{"mpirun", "true", "dlrun: mpirun: command not found\n"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct launcher launcher = launcher_of(cases[i].launcher);
		AUTO_STRV struct strv command = {0}, words = {0}, argv = {0};
		AUTO_BUF struct buf out;
		int status;

		split(cases[i].command, &command);
		launcher_words(&launcher, &command, &words);
		split("env -i PATH=/nowhere /bin/sh -c", &argv);
		strv_add(&argv, "exec \"$@\" 2>&1");
		strv_add(&argv, "sh");
		for (size_t k = 0; k < words.n; k++)
			strv_add(&argv, words.v[k]);
		buf_init(&out, 1 << 20);
		assert_int_equal(
			proc_capture((const char *const *)argv.v, "/", 60000, &out, &status, NULL),
			0);
		assert_string_equal(out.data, cases[i].says);
		assert_int_equal(WEXITSTATUS(status), 127);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_commands),
		cmocka_unit_test(test_line_for_the_shell),
		cmocka_unit_test(test_words_of_no_python),
		cmocka_unit_test(test_start),
		cmocka_unit_test(test_missing_program),
	};

	return cmocka_run_group_tests(tests, make_tmp, remove_tmp);
}
