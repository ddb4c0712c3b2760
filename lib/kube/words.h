/* Text from elsewhere for people: an engine. */
#ifndef DLRUN_KUBE_WORDS_H
#define DLRUN_KUBE_WORDS_H

#include <stddef.h>

/* One line: runs of blanks and line breaks are one blank, the rest is as str_escape has it, cut
 * behind max bytes with "…". The caller frees. */
char *kube_words(const char *text, size_t len, size_t max);

#endif
