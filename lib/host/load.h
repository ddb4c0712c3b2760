/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load of a Linux machine, from the text of files of /proc (proc(5)). Engines: bytes in,
 * numbers out; any bytes are accepted.
 */
#ifndef DLRUN_HOST_LOAD_H
#define DLRUN_HOST_LOAD_H

#include <stddef.h>
#include <stdint.h>

/* Below 0: not known. */
struct host_load {
	double load;                             /* of one minute */
	int64_t memory_bytes, memory_free_bytes; /* free: what programs could get */
};
/* proc: NULL: "/proc". */
void host_load_read(const char *proc, struct host_load *ret);

/* The text of loadavg; below 0: it is none. */
double host_load_parse(const char *text, size_t len);
/* The text of meminfo. */
void host_memory_parse(const char *text, size_t len, struct host_load *ret);

/* A whole decimal number that len bytes begin with, behind blanks; -1: there is none, or it is
 * over 2^62. */
int64_t host_number(const char *text, size_t len);
/* The number behind "key" and blanks in lines "key value…"; -1: there is none. */
int64_t host_line_number(const char *text, size_t len, const char *key);

#endif
