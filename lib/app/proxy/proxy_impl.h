/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations shared by the parts of `dlrun proxy` (app/proxy/proxy.h). */
#ifndef DLRUN_APP_PROXY_PROXY_IMPL_H
#define DLRUN_APP_PROXY_PROXY_IMPL_H

#include "app/forward/forwarder.h"
#include "app/proxy/proxy.h"
#include "app/proxy/proxy_index.h"
#include "app/proxy/proxy_media.h"
#include "app/proxy/proxy_name.h"
#include "app/transfer/outputs.h"
#include "base/loop/loop.h"
#include "core/record/run.h"
#include "net/httpd/httpd.h"

struct curves;
struct place;
struct place_refresh;
struct refresh;

struct proxy {
	struct session *session;
	const struct proxy_options *options;
	struct loop *loop;
	struct httpd *httpd;
	struct proxy_here here;
	struct place *places;
	size_t n_places;
	struct request *waiting; /* until their runs, or the list, have been refreshed */
	struct loop_timer *turn;
	struct run_list listed;  /* the first page */
	struct refresh *listing; /* of listed, which is not read meanwhile; NULL: none */
	bool listed_cut;
	int64_t listed_ms;       /* clock_ms(); 0: never */
	struct request *working; /* those that wait for a target, for the end */
	struct curves *curves;   /* of runs that were chosen not long ago */
};

/* A port of a rank that requests were relayed to: what routes of httpd lead to. */
struct place_port {
	struct place *place;
	int rank;
	uint16_t port;
	struct err error; /* why the last connection ended, if that was not orderly */
	struct place_port *next;
};

/* A run that is held open. */
struct place {
	struct proxy *proxy;
	struct place *next;
	char id[RUN_ID_SIZE];
	struct forwarder *forwarder;
	size_t users;         /* requests, routes, a refresh: it stays while there are any */
	int64_t used_ms;      /* clock_ms() */
	int64_t refreshed_ms; /* when its state was last known; 0: never */
	struct place_refresh *refresh; /* by which its target is asked now; or NULL */
	int64_t ended_ms;              /* it was seen to have ended; 0: not */
	bool is_removed;               /* there is no such run any more */
	struct place_port *ports;
	struct outputs_files files; /* as of files_ms; 0: not known */
	int64_t files_ms;
};

/* A request from a browser, while dlrun itself handles it. */
struct request {
	struct proxy *proxy;
	struct httpd_exchange *exchange;
	struct proxy_name name;
	char *target;     /* path and query */
	const char *file; /* in target: from "/" on, of a file of a run; or NULL */
	char *range, *if_none_match, *if_range;
	bool is_read, is_head, is_connect; /* is_read: GET or HEAD */
	struct place *place;               /* NULL: the first page */
	void (*go)(struct request *request);
	struct request *next, **at; /* in proxy->waiting or working */
	/* Work for it that goes on, or NULL: given up when the other side leaves. */
	void *work;
	void (*stop)(void *work);
	int n_done; /* of such works, for the first page */
};

/*
 * Requests (proxy.c)
 */
void request_free(struct request *request);
/* Send a response and end the request. */
void request_respond(struct request *request, int status, const struct strv *headers,
	const void *data, size_t len);
void request_refuse(struct request *request, int status, const char *what, const char *hint);
void request_fail(struct request *request, const struct err *err);
/* A page of ours, which shows what comes from that origin, or (NULL) none; only one that is live
 * has a script and forms. */
void request_page(struct request *request, const struct buf *page, const char *files, bool is_live);
/* Attach work to the request, until one of those or request_free. */
void request_work(struct request *request, void *work, void (*stop)(void *work));

/* Whether requests wait for the place to be refreshed; NULL: for the list of runs. */
bool requests_wait_for(const struct proxy *proxy, const struct place *place);
/* Let those requests go on, because it has been refreshed. */
void requests_go_on(struct proxy *proxy, const struct place *place);

/*
 * Runs that are held open (proxy_place.c)
 */
/* Get the place of that name, made when it is not there; E_RUN_NOT_FOUND, ERR_LIMIT. */
int place_get(struct proxy *proxy, const char *run, struct place **ret, struct err *err);
/* The place of that id, or NULL. */
struct place *place_find(const struct proxy *proxy, const char *id);
const struct run *place_run(const struct place *place);
/* Whether its state was refreshed not long ago. */
bool place_is_fresh(const struct place *place);
/* Begin to refresh the states of those that requests wait for, and of those in use that are due. */
int places_refresh(struct proxy *proxy, struct err *err);
/* End forwards to runs that have ended, and release places that have not been used for long (all:
 * at the end). */
void places_tidy(struct proxy *proxy, bool all);
/* Whether reading the files of the run starts a pod there. */
bool place_is_far(const struct place *place);
/* Relay the request to the port that its name tells, or respond why not. Ends the request. */
void place_relay(struct request *request);

/*
 * Files of runs (proxy_files.c)
 */
/* Whether place->files is what the run has written as of not long ago. */
bool place_files_are_fresh(const struct place *place);
/* Take the list, which is empty afterwards. */
void place_set_files(struct place *place, struct outputs_files *files);
/* Begin to list the files of runs that are not far away, for the request; it takes a few seconds at
 * most. The runs are not used later. done does not stop it. */
struct files_reading *files_read(struct request *request, const struct proxy_runs *runs,
	void (*done)(struct request *request));
/* Give up, or release what is done: a struct files_reading. */
void files_stop(void *reading);
/* The files of the runs, as far as they have been listed; valid until the next turn of the loop. */
void files_known(
	const struct proxy *proxy, const struct proxy_runs *runs, struct proxy_media_list *ret);

/*
 * Curves of chosen runs, as far as their event files are on this machine (proxy_curves.c)
 */
/* Begin to read what is new of them, for the request; the runs are not used later. done does not
 * stop it. */
struct curves_reading *curves_read(struct request *request, const struct proxy_runs *runs,
	void (*done)(struct request *request));
/* Give up, or release what is done: a struct curves_reading. */
void curves_stop(void *reading);
struct curves_drawn {
	struct VEC_OF(struct chart) charts; /* valid until the next read */
	struct strv notes;
};
/* A chart for each of the metrics that has curves. */
void curves_draw(const struct proxy *proxy, const struct proxy_runs *runs,
	const struct strv *metrics, struct curves_drawn *ret);
void curves_drawn_done(struct curves_drawn *drawn);
/* Release those that nobody has used for long (all: at the end). */
void curves_tidy(struct proxy *proxy, bool all);

/*
 * Pages and files of a run
 */
/* The page of one run; one of its files (proxy_show.c). */
void show_run(struct request *request);
/* The same of its record alone, because its target cannot be used here; ends the request. */
void show_record(struct request *request, const struct err *error);
/* A file of the run, which request->file or the target names. */
void send_file(struct request *request);

#endif
