/*
 * Code into an image at its destination: what submit and push have in common.
 */
#ifndef DLRUN_RUN_PACK_H
#define DLRUN_RUN_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "oci/image.h"
#include "oci/layout.h"
#include "run/session.h"
#include "snap/snapshot.h"

struct pack {
	struct session *session;
	char *base_name; /* as the user wrote it: "scratch", "oci:DIR" */
	struct layout *base_layout;
	struct image_base *base; /* NULL: scratch */
	enum codec codec;
	int64_t mtime_s;
	bool full;
};

/* Read the base image and the settings; nothing is written. base: NULL: from the configuration. A
 * relative directory of a layout is seen from the file that names it, else from the caller's. */
int pack_init(
	struct pack *pack, struct session *session, const char *base, bool full, struct err *err);
void pack_done(struct pack *pack);
#define AUTO_PACK AUTO(pack_done)

/* Write the image of the snapshot into layout, which plans are kept for under dest (any text that
 * names it). Files that change meanwhile are read again, up to three times: the snapshot is that of
 * the image then. name: of the image there, or NULL. */
int pack_write(struct pack *pack, struct snapshot *snapshot, struct layout *layout,
	const char *dest, const char *name, struct image *ret, struct err *err);

/* The image member of dlrun/run/v1 and dlrun/push/v1. ref: "oci:DIR@sha256:…". */
struct json *pack_image_json(const struct image *image, const char *ref, const char *base);
/* The snapshot member, without git record. */
struct json *pack_snapshot_json(const struct snapshot *snapshot);

#endif
