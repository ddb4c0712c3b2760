/* SPDX-License-Identifier: Apache-2.0 */
/* Text from elsewhere for people: an engine. */
#ifndef DLRUN_KUBE_API_WORDS_H
#define DLRUN_KUBE_API_WORDS_H

#include <stddef.h>

#include "base/util/err.h"

/* Text on a single line: runs of blanks and line breaks become one blank, the rest is as by
 * str_escape, cut behind max bytes with "…". The caller frees. */
char *kube_words(const char *text, size_t len, size_t max);

/* A hint that another program asks the cluster of a context (NULL, or that of a pod: no hint), with
 * a question behind it. */
void kube_hint_version(const char *context, const char *question, struct err *err);

#endif
