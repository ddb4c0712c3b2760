/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context of a dlrun command: its directories, configuration, working tree, store of runs and
 * loop, each opened on first use, because `dlrun --version` needs none of them.
 */
#ifndef DLRUN_CORE_CONTEXT_SESSION_H
#define DLRUN_CORE_CONTEXT_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "core/config/config.h"
#include "core/record/dirs.h"
#include "net/stream/channel.h"
#include "oci/layout/layout.h"
#include "snap/tree/snapshot.h"

struct registry_tunnel;
struct registry_tunnel_options;

/* Input from the process: only cli/ reads it. */
struct session_env {
	struct dirs_env dirs;
	const char *cwd;       /* absolute */
	const char *shell_dir; /* before -C: where hints are pasted; NULL: cwd */
	const char *git_dir, *git_work_tree;
	const char *user; /* login name */
	const char *source_date_epoch;
	const char *const *env;  /* the whole environment */
	bool inside_run;         /* DLRUN_RUN_ID is set */
	bool must_count;         /* a project's file that needs confirming is an error */
	bool has_terminal;       /* stdin is one: programs that log in may ask there */
	const char *self;        /* path of this program, for the supervisor */
	const char *site_config; /* NULL: /etc/dlrun/config.yaml */
	/* Print what dlrun waits for, where the user may have to do something: one
	 * sentence; or NULL. */
	void (*print)(void *ctx, const char *text);
	void *print_ctx;
	/* Accept hosts that ssh does not know yet. */
	bool accept_new_host;
	/* ssh_options.prompt, with print_ctx; NULL: there is no user to ask. */
	int (*prompt)(
		void *ctx, const char *question, bool secret, struct buf *answer, struct err *err);
	/* Opens a channel to a host in place of ssh; NULL: ssh is used. */
	int (*open_host)(void *ctx, struct loop *loop, const char *host, struct channel_opener *ret,
		struct err *err);
	void *open_host_ctx;
	/* Opens a tunnel to a registry in a cluster, for registry_open.h: it leads over a
	 * target. */
	int (*open_tunnel)(const struct registry_tunnel_options *options,
		struct registry_tunnel **ret, struct err *err);
};

struct store;
struct kube_clusters;
struct node_hosts_open;

struct session;
/* Frees what a layer above keeps in the session. */
typedef void session_end_fn(struct session *session);

struct session {
	struct session_env env;
	struct dirs dirs;
	struct config *config;
	struct tree_place *place;
	char *trust, *user_config; /* what is confirmed; the user's file */
	char *foreign;             /* a dlrun.yaml above that belongs to another user; or NULL */
	struct store *store;
	struct layout *layout;
	struct loop *loop;
	struct kube_clusters *clusters; /* kube_open.h */
	struct node_hosts_open *nodes;  /* node_open.h */
	struct session_ends VEC_OF(session_end_fn *) ends;
	/* Of the newest submit_run, until its submit_finish. */
	struct snapshot *submitted;
	int submitted_fd; /* its submit.lock; 0: none */
	bool ends_runs;   /* of a command that ends runs: it starts no sender of held ones */
};

/* Keeps pointers of env; makes nothing on disk. */
int session_init(struct session *session, const struct session_env *env, struct err *err);
void session_done(struct session *session);
/* Called by session_done, the newest first, while there is a loop. */
void session_at_end(struct session *session, session_end_fn *end);
/* Forget what is kept of the newest submit_run. */
void session_end_submit(struct session *session);

/* Each of the following opens once and returns the same object from then on. */
int session_place(struct session *session, const struct tree_place **ret, struct err *err);
/* Outside of any working tree (/, $HOME) only the user's and the site's files count. Settings of
 * the project that are ignored (config_trust.h) are reported; E_CONFIG_TRUST with
 * env.must_count. */
int session_config(struct session *session, struct config **ret, struct err *err);
/* The configuration for review, to be confirmed in *ret_dir: the project's file is read whoever
 * owns it. */
int session_review(struct session *session, struct config **ret, char **ret_dir, struct err *err);
int session_store(struct session *session, struct store **ret, struct err *err);
/* The local image layout, made when it is missing. */
int session_layout(struct session *session, struct layout **ret, struct err *err);
struct loop *session_loop(struct session *session);
/* Lock that keeps gc apart from submits: shared from before the directory of a run is made until
 * its row names the image; exclusive while things that no row names are removed. Waits timeout_ms
 * (as fs_lock); *ret_fd is closed by the caller. */
int session_lock(
	struct session *session, bool exclusive, int64_t timeout_ms, int *ret_fd, struct err *err);

#endif
