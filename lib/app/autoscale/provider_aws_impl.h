/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the provider of AWS: verbs (provider_aws.c), of which `groups` asks all regions
 * (provider_aws_groups.c). */
#ifndef DLRUN_APP_AUTOSCALE_PROVIDER_AWS_IMPL_H
#define DLRUN_APP_AUTOSCALE_PROVIDER_AWS_IMPL_H

#include "app/autoscale/aws_report.h"
#include "app/autoscale/provider_impl.h"
#include "net/aws/aws.h"

enum {
	AWS_END_MS = 2000, /* before the deadline no further machine is ended */
	AWS_FACTS_MAX = 100 * 1000,
	AWS_TEMPLATE_MS = 5 * 60 * 1000, /* then they are read again: $Latest moves */
};

struct aws_region {
	char *name;
	struct aws_groups last; /* of the newest response */
	struct strv policies;   /* names of groups that have some */
	bool has_policies;      /* they have been asked for */
	int64_t seen_ms;        /* wall clock of it; 0: there was none */
	/* Why it is not known how it is now; why its machines are not known; or NULL. */
	char *silent, *note;
};
void aws_region_done(struct aws_region *region);

struct provider_aws {
	struct provider base;
	struct loop *loop;
	struct aws *client;
	struct aws_region *regions;
	size_t n_regions;
	struct aws_facts facts;
	int64_t facts_ms;   /* clock_ms() when templates and types were read first */
	struct strv tokens; /* of grows that have had their effect, newest last */
	struct strv later;  /* ids of groups that could not launch at once */
};

struct aws_verb;
typedef int aws_verb_fn(struct aws_verb *verb, struct err *err);
/* take_response is NULL with an error. */
typedef int aws_parts_fn(struct aws_verb *verb, struct json *take_response, enum aws_class class,
	struct err *error, struct err *err);
struct aws_verb {
	struct provider_aws *aws;
	struct provider_call *call;
	int64_t deadline_ms;
	char *cluster;
	struct err early;         /* the request was none */
	struct loop_timer *timer; /* which ends it with that */
	/* groups */
	struct aws_part *parts; /* one for each region */
	size_t n_open;
	aws_parts_fn *parts_done;
	/* one group */
	struct aws_region *region;
	char *name, *token;
	int64_t from, to; /* -1: not there */
	struct aws_call *request;
	struct aws_groups found;
	aws_verb_fn *go;              /* when it has been found */
	struct aws_failures failures; /* status */
	struct aws_started started;   /* grow */
	int n_launches;
	/* shrink: machines to end, the next one, what became of those before */
	struct strv ids;
	size_t at;
	int64_t n_ended;
	bool is_vague; /* of one that is not known */
	struct json *ends;
};
void aws_parts_start(struct aws_verb *verb, aws_parts_fn *done);
void aws_parts_free(struct aws_verb *verb);

#endif
