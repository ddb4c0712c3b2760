/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Setups: commands that are run once for each content of their key files, before the programs that
 * need them: "uv sync --frozen" once per uv.lock. The directory of a setup is SETUPS/KEY, where KEY
 * is the hex SHA-256 of the line, the directory in the tree where it is run, for each key path its
 * name, content (of a directory: all files below) and whether it is executable, and the machine's
 * platform (system, processor). The interpreter that PATH finds is not part of it: name a file that
 * tells its version (.python-version) as a key.
 *
 *	lock    exclusive while the setup is made, shared while a run that uses it lives
 *	tree/   a copy of the tree of the run that made it, without outputs; the line is run there
 *	log     its output, of the last try; locked by what runs there, so that a setup whose
 *	        supervisor was killed is waited for
 *	done    the products (dlrun/setup/v1); written last, synced. Without it all is made anew;
 *	        as well after a restart of the machine, unless it was used again when the rest
 *	        had had two minutes to reach the disk
 *	stamp   its mtime is the last use
 *
 * Products are the names that are in tree/ and not in the run's tree when the line has ended with
 * 0, wherever they are (.venv, node_modules, web/node_modules, src/x.egg-info, src/x/_ext.so); a
 * new directory is one product. Byte code (__pycache__, *.pyc) is none: files of a run have no
 * times that would tell it is old. Each run's tree gets symbolic links to them where it has nothing
 * of that name. Runs share the products, and what they write into them.
 */
#ifndef DLRUN_TARGETS_LOCAL_SETUP_H
#define DLRUN_TARGETS_LOCAL_SETUP_H

#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/attempt/attempt.h"

enum { SETUP_PRODUCTS_MAX = 65536 };

struct setup;

/* tree: the run's, absolute, with its data and outputs mounted, and new: no setup was linked into
 * it before. *ret is NULL when the job has no setup. Reads the key files: E_RUN_SETUP when one is
 * not in the tree, E_DATA_LIMIT when they are too many or too large. */
int setup_begin(
	const struct attempt_job *job, const char *tree, struct setup **ret, struct err *err);

enum setup_state {
	SETUP_READY, /* done, its products are linked into the run's tree; it stays so */
	SETUP_RUN,   /* this process has the lock: run setup_order, then call setup_end */
	SETUP_BUSY,  /* poll again in setup_wait_ms; setup_why says why */
};
/* Blocks for a tenth of a second, so that a copy of the tree takes many polls; longer where it
 * removes what a failed try has left. */
int setup_poll(struct setup *setup, enum setup_state *ret, struct err *err);
int64_t setup_wait_ms(const struct setup *setup);
/* "another run does the same setup"; of the last poll, valid until the next one. */
const char *setup_why(const struct setup *setup);

/* After SETUP_RUN. Strings are the setup's. */
struct setup_order {
	const char *line; /* for sh -c */
	const char *cwd;  /* absolute */
	const char *log;  /* path of the file behind output_fd, empty now */
	int output_fd;    /* for stdout and stderr, by dup2: its lock tells that something runs */
};
void setup_order(const struct setup *setup, struct setup_order *ret);
/* wait_status: as of wait(2), of the line; everything that it left behind has ended. 0: the setup
 * is as after SETUP_READY. Another status: E_RUN_SETUP with the last lines of the log as evidence;
 * the lock is given back. E_RUN_SETUP as well, also of setup_poll, when a package of the tree is
 * installed as editable in a way that no run can redirect to its own copy. */
int setup_end(struct setup *setup, int wait_status, struct err *err);

/* After SETUP_READY. *ret: env_before (K=V), and where a product is a virtual environment of Python
 * or one of conda (in the setup's directory of the tree; .venv before others) with it active:
 * VIRTUAL_ENV, and UV_NO_SYNC=1 unless that is set, or CONDA_PREFIX; its bin first in PATH,
 * PYTHONHOME unset. What it has installed from
 * tree/ as editable comes from the run's own tree: such paths go first in PYTHONPATH. */
void setup_env(const struct setup *setup, const struct strv *env_before, struct strv *ret);

/* Gives back the lock. */
void setup_free(struct setup *setup);
AUTO_POINTER(struct setup, setup_free)
#define AUTO_SETUP AUTO(setup_free_auto)

#endif
