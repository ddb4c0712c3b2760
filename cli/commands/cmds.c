/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands/cmds.h"

#include "base/util/mem.h"
#include "cli/term/cmd.h"

extern const struct cmd cmd___after, cmd___check, cmd___complete, cmd___deliver, cmd___manual,
	cmd___supervise, cmd_autoscale, cmd_bake, cmd_cancel, cmd_checkout, cmd_compare,
	cmd_completion, cmd_config, cmd_data, cmd_diff, cmd_doctor, cmd_exec, cmd_explain,
	cmd_fetch, cmd_forward, cmd_gc, cmd_help, cmd_init, cmd_logs, cmd_note, cmd_plot, cmd_proxy,
	cmd_ps, cmd_push, cmd_queue, cmd_restart, cmd_rm, cmd_show, cmd_ssh, cmd_submit, cmd_sweep,
	cmd_tag, cmd_targets, cmd_tensorboard, cmd_top, cmd_wait, cmd_warm, cmd_why;

static const struct cmd *const list[] = {
	&cmd___after,
	&cmd___check,
	&cmd___complete,
	&cmd___deliver,
	&cmd___manual,
	&cmd___supervise,
	&cmd_autoscale,
	&cmd_bake,
	&cmd_cancel,
	&cmd_checkout,
	&cmd_compare,
	&cmd_completion,
	&cmd_config,
	&cmd_data,
	&cmd_diff,
	&cmd_doctor,
	&cmd_exec,
	&cmd_explain,
	&cmd_fetch,
	&cmd_forward,
	&cmd_gc,
	&cmd_help,
	&cmd_init,
	&cmd_logs,
	&cmd_note,
	&cmd_plot,
	&cmd_proxy,
	&cmd_ps,
	&cmd_push,
	&cmd_queue,
	&cmd_restart,
	&cmd_rm,
	&cmd_show,
	&cmd_ssh,
	&cmd_submit,
	&cmd_sweep,
	&cmd_tag,
	&cmd_targets,
	&cmd_tensorboard,
	&cmd_top,
	&cmd_wait,
	&cmd_warm,
	&cmd_why,
};

void cmds_use(void)
{
	cmds = list;
	cmds_n = ARRAY_LEN(list);
}
