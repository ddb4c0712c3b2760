/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of other tools: Slurm, SkyPilot, docker run, kubectl run, ray job, torchrun, accelerate,
 * in front of the program. One table says what each of them is here.
 */
#ifndef DLRUN_CLI_TERM_OPT_OTHERS_H
#define DLRUN_CLI_TERM_OPT_OTHERS_H

#include "cli/term/opt.h"

/* "-v /data:/data" of containers, at word: -v is a flag here, the volume would be the program. */
bool opt_is_volume(char *const *word);
int opt_refuse_volume(const char *volume, struct err *err);

/* err is about the option word of argv. If other tools have it, its hint becomes the whole command
 * line with all such options as ours; what has no option here is told as evidence. */
void opt_hint_others(
	const struct opt_request *request, char *const *argv, const char *word, struct err *err);

#endif
