/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Responses of S3 and files of AWS's tools: a page that is accepted has objects with keys.
 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "net/s3/s3_login.h"
#include "net/s3/s3_profile.h"
#include "net/s3/s3_xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_S3_OBJECTS struct s3_objects objects = {0};
	AUTO(s3_keys_done) struct s3_keys keys = {0};
	AUTO_STRV struct strv settings = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *token = NULL;
	const char *text = (const char *)data;

	if (s3_xml_page(text, size, &objects, &token, &err) < 0)
		BUG_ON(err.id != E_S3_RESPONSE || token);
	for (size_t i = 0; i < objects.n; i++)
		BUG_ON(!objects.v[i].key);
	AUTO_FREE char *code = s3_xml_find(text, size, "Error/Code");
	BUG_ON(code && strlen(code) > S3_XML_TEXT_MAX);
	if (s3_login_parse_json(text, size, &keys, &err) == 0 ||
		s3_login_parse_sts(text, size, &keys, &err) == 0)
		BUG_ON(!keys.id || !keys.secret);
	s3_section_read(text, size, "profile lab", &settings);
	for (size_t i = 0; i < settings.n; i++)
		BUG_ON(!strchr(settings.v[i], '='));
	return 0;
}
