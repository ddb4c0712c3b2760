/* SPDX-License-Identifier: Apache-2.0 */
/* Words of a snapshot that are read and written: NULL-ended, in the order of their enumerators. */
#ifndef DLRUN_CORE_AUTOSCALE_SNAPSHOT_WORDS_H
#define DLRUN_CORE_AUTOSCALE_SNAPSHOT_WORDS_H

static const char *const snapshot_effects[] = {"NoSchedule", "PreferNoSchedule", "NoExecute", 0};
static const char *const snapshot_ops[] = {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", 0};
static const char *const snapshot_sames[] = {"", "zone", "group", 0};
static const char *const snapshot_cordons[] = {"", "others", "us", 0};
static const char *const snapshot_states[] = {"pending", "running", "stopping", 0};

#endif
