/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of warming: SSH hosts. Each gets an attempt of its own whose program is `true` and asks
 * for no GPUs: data, layers, setup and container image come there by the way of a run, under the
 * same keys, and two that want the same setup make it once. It has an id as that of an environment
 * (setup_key.h) and no record, so no list of runs has it, and is removed there at the end. Where
 * this process was killed it goes on by itself, and the host's gc removes it.
 */
#ifndef DLRUN_APP_ENVIRONMENT_WARM_IMPL_H
#define DLRUN_APP_ENVIRONMENT_WARM_IMPL_H

#include "app/environment/warm.h"

/* Of a submit that was checked. n_hosts: 0: all that could take the run. A host that fails is cold,
 * and the others go on. As warm_nodes. Blocks. */
int warm_hosts(struct submit *submit, int n_hosts, struct warm_result *ret, struct err *err);

#endif
