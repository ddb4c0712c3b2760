/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations shared by the parts of uploads.c, and private to them.
 */
#ifndef DLRUN_OCI_REGISTRY_UPLOADS_IMPL_H
#define DLRUN_OCI_REGISTRY_UPLOADS_IMPL_H

#include "oci/registry/uploads.h"

/* An upload session at the registry. */
struct upload_session {
	struct uploads *uploads;
	struct url url; /* of its next request */
	bool is_ready;
	bool is_deleted;            /* or will be: without an owner */
	uint64_t chunk_min;         /* OCI-Chunk-Min-Length, or 0 */
	struct upload_job *owner;   /* NULL: opened ahead */
	struct registry_call *call; /* opening or deleting it */
	struct err error;           /* it could not be opened */
};

enum upload_kind {
	UPLOAD_FILE,
	UPLOAD_BYTES,
	UPLOAD_BASE,  /* is to be mounted, or copied */
	UPLOAD_PROOF, /* is said to be there */
};

struct upload_waiter {
	uploads_has_fn *done;
	void *ctx;
};

/* State of one blob. */
struct upload_job {
	struct uploads *uploads;
	enum upload_kind kind;
	struct descriptor blob;
	char *data;     /* UPLOAD_BYTES */
	int fd;         /* UPLOAD_FILE, else -1 */
	bool is_queued; /* UPLOAD_BASE: others are mounted first */
	bool is_done;
	int tries;
	bool was_verified;              /* its own bytes are those of its digest */
	uint64_t offset;                /* bytes that the registry has, of a blob in pieces */
	bool was_looked_for;            /* a file, whether the registry has it without us */
	uint64_t got;                   /* bytes of a proof */
	struct upload_session *session; /* owned */
	struct registry_call *call;
	struct registry_call *ended; /* whose done is being called */
	struct registry_call *look;  /* beside call */
	struct loop_timer *timer;
	struct upload_copy *copy;      /* owned */
	bool has_turn, waits_for_turn; /* to be copied */
	struct VEC_OF(struct upload_waiter) waiters;
};

struct uploads {
	struct uploads_options options;
	struct VEC_OF(struct upload_job *) jobs;
	struct VEC_OF(struct upload_session *) sessions; /* opened ahead, and those to be deleted */
	bool is_closing;                                 /* sessions that open now are not needed */
	bool is_probing;  /* a small blob finds out whether one POST does */
	bool was_misled;  /* the registry lacks what it said to have: all is sent from now on */
	struct err error; /* the first failure */
	uploads_done_fn *done;
	void *done_ctx;
	uint64_t done_at; /* bytes of files on their way; 0: nothing is */
	uploads_done_fn *closed;
	void *closed_ctx;
	struct loop_timer *close_timer;
	struct uploads_progress progress;
};

/* The blob has arrived. */
int upload_arrived(struct upload_job *job, struct err *err);
/* The ends of a proof: it is not there; that is not known. */
int upload_unproved(struct upload_job *job, struct err *err);
int upload_unknown(struct upload_job *job, struct err *err);
/* All is lost; error is taken. */
int upload_failed(struct upload_job *job, struct err *error, struct err *err);
/* Once more in a moment, because of the response or error. */
int upload_again(struct upload_job *job, const struct http_response *response, struct err *error,
	struct err *err);
/* Whether trying again may help. */
bool upload_may_pass(const struct http_response *response);
/* A request of the job's: call is set. */
void upload_start(struct upload_job *job, struct registry_request *request, registry_done_fn *done);
void upload_start_at(struct upload_job *job, struct registry *registry,
	struct registry_request *request, registry_done_fn *done);
/* In done: the call is over, and may not be cancelled. */
static inline void upload_ended(struct upload_job *job)
{
	job->ended = job->call;
	job->call = NULL;
}
/* The registry to read the base from: requests to it are for the repository mount_from. */
static inline struct registry *upload_base_registry(const struct uploads *uploads)
{
	return uploads->options.base ? uploads->options.base : uploads->options.registry;
}
/* From the loop, where failures have somewhere to go. */
void upload_begin_soon(struct upload_job *job);

/* Have job->session, and then upload_send; from the ones that were opened ahead if there are. */
int upload_need_session(struct upload_job *job, struct err *err);
/* Not opened, and on no list. */
struct upload_session *upload_session_new(struct uploads *uploads, struct upload_job *owner);
/* From a response with a Location: 0 or the error. */
int upload_session_take(
	struct upload_session *session, const struct http_response *response, struct err *err);
/* Not used any more and not worth deleting: the registry has lost it, or it is used up. */
void upload_session_free(struct upload_session *session);
/* Delete it at the registry, and then free. */
void upload_session_delete(struct upload_session *session);

/* The PUT that ends an upload, with body or what is left of it; what: for messages. */
void upload_put(struct upload_job *job, const struct http_body *body, const char *what,
	registry_done_fn *done);
/* The response to the PUT that ends an upload. */
int upload_put_done(void *ctx, struct http_response *response, struct err *error, struct err *err);
int upload_base(struct upload_job *job, struct err *err);
/* Begin those for which there is a connection. */
void upload_base_next(struct uploads *uploads);
int upload_proof(struct upload_job *job, struct err *err);
/* Ask, beside its upload, whether the registry has the blob: upload_is_there. */
void upload_look(struct upload_job *job);
/* The registry has it: the upload is given up. */
int upload_is_there(struct upload_job *job, struct err *err);
/* A copy has arrived: begin the next. */
int upload_copy_next(struct uploads *uploads, struct err *err);
void upload_copy_free(struct upload_copy *copy);
/* With a session. */
int upload_copy_send(struct upload_job *job, struct err *err);

#endif
