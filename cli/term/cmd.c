/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/cmd.h"

#include <stddef.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"

const struct cmd *const *cmds;
size_t cmds_n;

const struct cmd *cmd_find(const char *name)
{
	for (size_t i = 0; i < cmds_n; i++)
		if (str_eq(cmds[i]->name, name))
			return cmds[i];
	return NULL;
}

/* Of docker, kubectl, git, Slurm and other queues, SkyPilot. */
static const struct {
	const char *words, *ours;
} others[] = {
	{"run start launch sbatch qsub bsub train apply create deploy up", "submit"},
	{"srun qrsh", "submit -f"},
	{"array multirun grid search hyperopt tune agent", "sweep"},
	{"list ls jobs job runs squeue qstat status stat get pods", "ps"},
	{"history sacct past", "ps -a"},
	{"watch monitor", "ps --watch"},
	{"stop kill scancel qdel bkill terminate abort down stop-all cancel-all", "cancel"},
	{"delete del remove rmi erase", "rm"},
	{"clean cleanup prune", "gc"},
	{"attach follow tail log-f stream", "logs -f"},
	{"log output cat", "logs"},
	{"describe inspect info details scontrol", "show"},
	{"events reason", "why"},
	{"cp copy scp rsync pull download get-files results artifacts sync-down", "fetch"},
	{"version", "--version"},
	{"tb board", "tensorboard"},
	{"exec-it it", "exec -it"},
	{"port-forward portforward port expose tunnel", "forward"},
	{"ui dashboard web serve", "proxy"},
	{"sinfo nodes node clusters cluster hosts partitions contexts", "targets"},
	{"gpus gpu gpustat nvidia-smi nvtop htop stats", "top"},
	{"salloc shell sh bash enter connect login-node console", "ssh"},
	{"build image images bake upload publish", "push"},
	{"resume retry rerun requeue redo again", "restart"},
	{"new setup bootstrap configure", "init"},
	{"set settings", "config"},
	{"check login verify test diagnose", "doctor"},
	{"graph curves metrics visualize", "plot"},
	{"clone restore switch code", "checkout"},
	{"autoscaler scale", "autoscale"},
	{"dataset datasets volume volumes", "data"},
	{"join", "wait"},
	{"man usage", "help"},
	{"completions", "completion"},
	{"prefetch prepull preload warmup", "warm"},
};

const char *cmd_of_others(const char *word)
{
	size_t len = strlen(word);

	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		for (const char *s = others[i].words; *s; s += strspn(s, " ")) {
			size_t n = strcspn(s, " ");
			if (n == len && memcmp(s, word, n) == 0)
				return others[i].ours;
			s += n;
		}
	return NULL;
}
