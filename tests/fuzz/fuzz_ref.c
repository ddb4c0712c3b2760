/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/model/ref.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void compose(const struct ref *ref, struct buf *out)
{
	if (ref->kind == REF_SCRATCH)
		buf_adds(out, "scratch");
	if (ref->kind == REF_LAYOUT)
		buf_addf(out, "oci:%s%s", ref->dir, ref->tag || ref->digest ? "" : "/");
	if (ref->kind == REF_LAYOUT && (ref->tag || ref->digest))
		buf_adds(out, "/");
	if (ref->kind == REF_REGISTRY)
		buf_addf(out, "%s/%s", ref->host, ref->repo);
	if (ref->tag)
		buf_addf(out, ":%s", ref->tag);
	if (ref->digest)
		buf_addf(out, "@%s", ref->digest);
}

static void check_parts(const struct ref *ref)
{
	BUG_ON(ref->tag && !ref_is_tag(ref->tag));
	BUG_ON((ref->kind == REF_LAYOUT) != (ref->dir != NULL));
	BUG_ON((ref->kind == REF_REGISTRY) != (ref->host && ref->repo));
	BUG_ON(ref->kind == REF_SCRATCH && (ref->tag || ref->digest));
	BUG_ON(ref->kind == REF_LAYOUT && (!*ref->dir || (ref->tag && ref->digest)));
	BUG_ON(ref->repo && (strlen(ref->repo) > REF_REPO_MAX || strpbrk(ref->repo, ":@ ")));
}

/* What a reference was taken for is what it says when it is written again. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	AUTO_REF struct ref ref = {0};
	AUTO_REF struct ref again = {0};
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out;

	buf_init(&out, size + 1024);
	if (ref_parse(text, &ref, &err) < 0) {
		BUG_ON(err.id != E_IMAGE_REF || !err.message);
		return 0;
	}
	check_parts(&ref);
	compose(&ref, &out);
	BUG_ON(ref_parse(out.data, &again, NULL) < 0);
	BUG_ON(again.kind != ref.kind || !str_eq(again.dir, ref.dir) ||
		!str_eq(again.host, ref.host) || !str_eq(again.repo, ref.repo) ||
		!str_eq(again.tag, ref.tag) || !str_eq(again.digest, ref.digest));
	return 0;
}
