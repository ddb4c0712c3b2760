/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "oci/image/image.h"
#include "oci/model/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TEXT_MAX = 64 << 20 };

static void check_descriptor(const struct descriptor *d)
{
	uint8_t sha256[SHA256_SIZE];

	BUG_ON(!digest_parse(d->digest, sha256));
	BUG_ON(!*d->media_type || !memchr(d->media_type, 0, sizeof(d->media_type)));
	BUG_ON(d->size > INT64_MAX);
}

/* A configuration over the base can be read again, and has one diff_id for each layer. */
static void check_config(struct json *config, const struct manifest *manifest, size_t n_own)
{
	static const struct image_layer own[] = {{.role = IMAGE_ROLE_FULL,
		.diff_id =
			"sha256:0000000000000000000000000000000000000000000000000000000000000000"}};
	const char *ids[MANIFEST_LAYERS_MAX + 1];
	AUTO_JSON struct json *made = NULL;
	AUTO_JSON struct json *again = NULL;
	AUTO_BUF struct buf text;

	oci_config_strip(config, manifest->n_layers, n_own);
	size_t n = manifest->n_layers - n_own;
	BUG_ON(oci_config_diff_ids(config, n, "it", ids, NULL) < 0);
	struct oci_config_spec spec = {.base = config,
		.n_base_layers = n,
		.platform = "linux/amd64",
		.workdir = "/w",
		.snapshot_id = "id",
		.layers = own,
		.n_layers = 1};
	BUG_ON(oci_config_make(&spec, &made, NULL) < 0);
	buf_init(&text, TEXT_MAX);
	json_print(made, &text);
	BUG_ON(text.full || json_parse(text.data, text.len, TEXT_MAX, "it", &again, NULL) < 0);
	BUG_ON(oci_config_diff_ids(again, n + 1, "it", ids, NULL) < 0);
	BUG_ON(strcmp(ids[n], own[0].diff_id) != 0);
	BUG_ON(strcmp(oci_config_workdir(again), "/w") != 0);
}

static void check_image(const char *text, size_t len, const char *config_text, size_t config_len)
{
	AUTO_MANIFEST struct manifest manifest = {0};
	AUTO_JSON struct json *config = NULL;
	const char *ids[MANIFEST_LAYERS_MAX];
	enum image_role roles[MANIFEST_LAYERS_MAX];
	size_t n_own = 0;

	if (manifest_parse(text, len, "it", &manifest, NULL) < 0)
		return;
	check_descriptor(&manifest.config);
	for (size_t i = 0; i < manifest.n_layers; i++)
		check_descriptor(&manifest.layers[i]);
	if (image_roles(&manifest, "it", roles, &n_own, NULL) < 0)
		return;
	BUG_ON(n_own > IMAGE_OWN_LAYERS_MAX || n_own > manifest.n_layers);
	if (json_parse(config_text, config_len, IMAGE_CONFIG_MAX, "it", &config, NULL) == 0 &&
		oci_config_diff_ids(config, manifest.n_layers, "it", ids, NULL) == 0)
		check_config(config, &manifest, n_own);
}

/* A manifest or index, and behind a NUL a configuration. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_ERR struct err err = {0};
	struct descriptor picked;
	const char *text = (const char *)data;
	const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
	size_t len = nul ? (size_t)(nul - data) : size;

	if (index_pick(text, len, "it", "linux/amd64", &picked, &err) == 0)
		check_descriptor(&picked);
	else
		BUG_ON(!err.message);
	check_image(text, len, nul ? text + len + 1 : "", nul ? size - len - 1 : 0);
	return 0;
}
