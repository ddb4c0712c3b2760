/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Responses of S3 and STS, which are XML: an engine for what they use of it (elements, text,
 * entities; no DOCTYPE), with limits.
 */
#ifndef DLRUN_NET_S3_S3_XML_H
#define DLRUN_NET_S3_S3_XML_H

#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum { S3_XML_DEPTH_MAX = 16, S3_XML_TEXT_MAX = 64 << 10 };

struct s3_xml {
	const char *at, *end;
	struct buf path; /* "ListBucketResult/Contents/Key", the names without their prefix */
	struct buf text;
	size_t depth, pop; /* pop: how long the path is after the element that was reported */
};
void s3_xml_init(struct s3_xml *xml, const char *text, size_t len);
void s3_xml_done(struct s3_xml *xml);
#define AUTO_S3_XML AUTO(s3_xml_done)
/* 1: an element has ended, xml->path is its path and xml->text the text directly in it; 0: the
 * document has ended; E_S3_RESPONSE: it is none. */
int s3_xml_next(struct s3_xml *xml, struct err *err);

/* The text of the first element of that path, or NULL: there is none, or this is no XML. The caller
 * frees. "*" in front stands for the document's element: servers name those of successes
 * differently. */
char *s3_xml_find(const char *text, size_t len, const char *path);

/* An object of a bucket. Strings are owned. */
struct s3_object {
	char *key;
	char *etag; /* as the server writes it */
	uint64_t size;
	int64_t mtime_ms; /* wall clock; -1: not known */
};
struct s3_objects VEC_OF(struct s3_object);
void s3_object_done(struct s3_object *object);
void s3_objects_done(struct s3_objects *objects);
#define AUTO_S3_OBJECTS AUTO(s3_objects_done)

/* A page of ListObjectsV2: its objects are added, *ret_token is what the next page begins with, or
 * NULL (the caller frees). E_S3_RESPONSE, also where it is cut and names no next page. */
int s3_xml_page(const char *text, size_t len, struct s3_objects *objects, char **ret_token,
	struct err *err);

#endif
