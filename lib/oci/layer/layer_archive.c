/* SPDX-License-Identifier: Apache-2.0 */
#define LAYER_ARCHIVE_LOADER
#include "oci/layer/layer_archive.h"

#include "base/loop/library.h"
#include "base/util/vec.h"

struct layer_archive layer_archive;

static const struct library_symbol symbols[] = {
#define SYMBOL(name) {offsetof(struct layer_archive, name), "archive_" #name},
	LAYER_ARCHIVE(SYMBOL)
#undef SYMBOL
};

static enum library_state state;

LIBRARY_NOTE("layers", "Reads layers of images", "recommended", LIBRARY_FILE("archive", "13"));

static const struct library library = {
	.file = LIBRARY_FILE("archive", "13"),
	.what = "libarchive, which reads layers of images,",
	.package = "libarchive13",
	.symbols = symbols,
	.n_symbols = ARRAY_LEN(symbols),
	.table = &layer_archive,
	.table_size = sizeof(layer_archive),
	.state = &state,
};

int layer_archive_load(struct err *err)
{
	return library_load(&library, err);
}
