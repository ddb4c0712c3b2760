/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Responses of EC2 and Auto Scaling: what is accepted is complete, what is refused leaves nothing.
 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/str.h"
#include "net/aws/aws_xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_groups(const char *text, size_t size)
{
	AUTO(aws_groups_done) struct aws_groups groups = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *next = NULL;
	int r = aws_read_groups(&groups, text, size, &next, &err);

	BUG_ON(r < 0 && (groups.n || next || err.id != E_SCALE_PROVIDER));
	vec_foreach (const struct aws_group, group, &groups) {
		BUG_ON(!group->name || group->min < 0 || group->max > AWS_SIZE_MAX);
		vec_foreach (const struct aws_instance, instance, &group->instances)
			BUG_ON(!instance->id || !instance->state || !str_is_plain(instance->id));
	}
}

static void read_descriptions(const char *text, size_t size)
{
	AUTO(aws_failures_done) struct aws_failures failures = {0};
	AUTO(aws_template_done) struct aws_template template = {0};
	AUTO(aws_types_done) struct aws_types types = {0};
	AUTO(aws_launches_done) struct aws_launches launches = {0};
	AUTO(aws_started_done) struct aws_started started = {0};
	AUTO_STRV struct strv policies = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *next = NULL;

	aws_read_activities(&failures, text, size, &next, &err);
	vec_foreach (const struct aws_failure, failure, &failures.list)
		BUG_ON(!str_is_plain(failure->text) || strlen(failure->text) > AWS_MESSAGE_MAX);
	REPLACE(next, NULL);
	aws_read_template(&template, text, size, &next, &err);
	REPLACE(next, NULL);
	aws_read_types(&types, text, size, &next, &err);
	vec_foreach (const struct aws_type, type, &types)
		BUG_ON(!type->name || type->cpus < 0 || type->gpus < 0 || type->memory_mib < 0);
	REPLACE(next, NULL);
	aws_read_launches(&launches, text, size, &next, &err);
	vec_foreach (const struct aws_launch, launch, &launches)
		BUG_ON(!launch->id || launch->at_ms < 0);
	REPLACE(next, NULL);
	aws_read_started(&started, text, size, &next, &err);
	vec_foreach (const struct aws_failure, failure, &started.failures.list)
		BUG_ON(!str_is_plain(failure->text) || strlen(failure->text) > AWS_MESSAGE_MAX);
	REPLACE(next, NULL);
	aws_read_policies(&policies, text, size, &next, &err);
	for (size_t i = 0; i < policies.n; i++)
		BUG_ON(!str_is_plain(policies.v[i]));
	REPLACE(next, NULL);
	aws_read_nothing(NULL, text, size, &next, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;
	AUTO_FREE char *code = NULL;
	AUTO_FREE char *message = NULL;

	read_groups(text, size);
	read_descriptions(text, size);
	aws_read_error(text, size, &code, &message);
	BUG_ON(message && strlen(message) > AWS_MESSAGE_MAX);
	if (code)
		aws_classify(code);
	return 0;
}
