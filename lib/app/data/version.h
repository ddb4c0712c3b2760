/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of a version of data: directories, files by digest, links. Its name "d-" and 16 hex
 * digits follows from paths, contents, targets of links and which files may be executed, and from
 * nothing else. As text it lies beside the version (`d-HEX.list`, runner/73-store.sh) and in the
 * cache here:
 *
 *	dlrun-data 1 FILES BYTES TIME_MS HOST   a summary, for `data ls`
 *	d MODE PATH
 *	l TARGET PATH
 *	f MODE SIZE SHA256 PATH
 *	s SIZE MTIME_NS CTIME_NS INODE          of the file before it, in the cache only
 *	c SIZE HASH SIZE HASH …                 the chunks (chunker.h) of that file, in order
 *	end
 *
 * Paths are relative, sorted by bytes; bytes that are not printable, blanks and % are %XX. An
 * engine. Text from elsewhere is checked: E_DATA.
 */
#ifndef DLRUN_APP_DATA_VERSION_H
#define DLRUN_APP_DATA_VERSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/digest.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/vec.h"

enum {
	VERSION_ID_SIZE = 19,      /* with the NUL */
	VERSION_CHUNKED = 4 << 20, /* a file from this size on has chunks */
	VERSION_ENTRIES_MAX = 4000 * 1000,
	VERSION_TEXT_MAX = 1 << 30,
};

struct version_chunk {
	uint32_t len;
	uint64_t hash;
};

struct version_entry {
	char *path;   /* of the version's arena */
	char *target; /* of a link; or NULL */
	char kind;    /* 'd', 'f', 'l' */
	bool has_digest;
	bool has_stat; /* what follows: as the file was when it was read */
	unsigned mode; /* without the bits for writing */
	uint64_t size, inode;
	int64_t mtime_ns, ctime_ns;
	uint8_t sha[SHA256_SIZE];
	struct version_chunk *chunks; /* of the arena */
	size_t n_chunks;
};

/* Zero is an empty version. */
struct version {
	struct VEC_OF(struct version_entry) entries; /* sorted by path, each once */
	struct arena arena;
};
void version_done(struct version *version);
#define AUTO_VERSION AUTO(version_done)

/* By path, or NULL. */
const struct version_entry *version_find(const struct version *version, const char *path);
uint64_t version_bytes(const struct version *version);
size_t version_files(const struct version *version);
/* Of a version whose files all have digests. */
void version_id(const struct version *version, char out[static VERSION_ID_SIZE]);
/* "d-" and 16 hex digits. */
bool version_id_is(const char *text);

/* with_stat: for the cache; files without a digest are left out then. */
void version_print(const struct version *version, int64_t time_ms, const char *host, bool with_stat,
	struct buf *out);
/* *ret is empty before. */
int version_parse(const char *text, size_t len, struct version *ret, struct err *err);

struct version_summary {
	uint64_t n_files, bytes;
	int64_t time_ms;
	char host[64];
};
/* The first line of the text. */
int version_summary_parse(const char *line, struct version_summary *ret, struct err *err);

#endif
