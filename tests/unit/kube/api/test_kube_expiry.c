/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "kube/api/credential.h"

/* notAfter as UTCTime. */
static const char near[] = "-----BEGIN CERTIFICATE-----\n"
			   "MIIBbzCCARWgAwIBAgIUFCI0MMpMYcKYlMR+QUyjxuTWNPUwCgYIKoZIzj0EAwIw\n"
			   "DTELMAkGA1UEAwwCbWUwHhcNMjYxMTIxMDkxNzQzWhcNMzYxMTE4MDkxNzQzWjAN\n"
			   "MQswCQYDVQQDDAJtZTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABKTpq73dqUJE\n"
			   "Da5/5DioPi5LeiZ+iMaD+16kK030foEq/9iRZwBmyas7yYHK6sMb4LLtHnzDLHl4\n"
			   "3UU5W0g7WWGjUzBRMB0GA1UdDgQWBBSsfiAmvl+nmDSG3yvlO4ovdcbhmzAfBgNV\n"
			   "HSMEGDAWgBSsfiAmvl+nmDSG3yvlO4ovdcbhmzAPBgNVHRMBAf8EBTADAQH/MAoG\n"
			   "CCqGSM49BAMCA0gAMEUCIEEgxni/dmckRgtp9NJBndEmBzzFlKL88JMyW33tGAIL\n"
			   "AiEA/U9nN7/p7VHGiIdei94TmXWs6xgvELrXNay0WEDMugo=\n"
			   "-----END CERTIFICATE-----\n";

/* notAfter as GeneralizedTime. */
static const char far[] = "-----BEGIN CERTIFICATE-----\n"
			  "MIIBcTCCARegAwIBAgIUdjrIjuGOzTkK1kH8+fBciXua2vAwCgYIKoZIzj0EAwIw\n"
			  "DTELMAkGA1UEAwwCbWUwIBcNMjYxMTIxMDkxNzQzWhgPMjA4MTA4MjQwOTE3NDNa\n"
			  "MA0xCzAJBgNVBAMMAm1lMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEgZVVo5Bu\n"
			  "Q4aRWIMeFhnQax7p8tnnJRj/HPQdMagSmj0C4in+oB7fzWCEaVcJ/7z3z0Bwwu9u\n"
			  "G9XF9Dw0tlyxNKNTMFEwHQYDVR0OBBYEFF+1iZVk5luo2yrPKIFSSQht/nukMB8G\n"
			  "A1UdIwQYMBaAFF+1iZVk5luo2yrPKIFSSQht/nukMA8GA1UdEwEB/wQFMAMBAf8w\n"
			  "CgYIKoZIzj0EAwIDSAAwRQIhAOo2YkZuPbiPEG6A0RC6bwpADKaW9YzSg8CtJHMS\n"
			  "nxJBAiByI1ufttdtRu/9WV1knBCZp3/21MXk5OTgyVxKKo+JFA==\n"
			  "-----END CERTIFICATE-----\n";

static void test_certificate(void **state)
{
	AUTO_FREE char *chain = mem_printf("Bag Attributes\n%s%s", near, far);

	assert_int_equal(kube_expiry_certificate(near), 2110612663000);
	assert_int_equal(kube_expiry_certificate(far), 3523252663000);
	assert_int_equal(kube_expiry_certificate(chain), 2110612663000);
}

static void test_no_certificate(void **state)
{
	static const char *const texts[] = {"", "-----BEGIN CERTIFICATE-----",
		"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
		"-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----",
		"-----BEGIN CERTIFICATE-----\nMIMA\n-----END CERTIFICATE-----",
		"-----BEGIN CERTIFICATE-----\nMIT/////\n-----END CERTIFICATE-----",
		"-----BEGIN PRIVATE KEY-----\nMAAA\n-----END PRIVATE KEY-----"};

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
		assert_int_equal(kube_expiry_certificate(texts[i]), 0);
}

/* Each cut and each changed character: nothing is read that is not there. */
static void test_damaged_certificates(void **state)
{
	AUTO_FREE char *text = mem_strdup(near);
	static const char end[] = "\n-----END CERTIFICATE-----\n";

	for (size_t i = strlen("-----BEGIN CERTIFICATE-----\n"); text[i] != '-'; i++) {
		char was = text[i];
		text[i] = was == 'f' ? '/' : 'f';
		(void)kube_expiry_certificate(text);
		text[i] = '\0';
		AUTO_FREE char *cut = mem_printf("%s%s", text, end);
		(void)kube_expiry_certificate(cut);
		text[i] = was;
	}
	assert_string_equal(text, near);
}

static void test_token(void **state)
{
	/* {"alg":"none"} {"exp":1900000000,"sub":"~~?"} */
	assert_int_equal(
		kube_expiry_token(
			"eyJhbGciOiJub25lIn0.eyJleHAiOjE5MDAwMDAwMDAsInN1YiI6In5-Pz4-In0.c2ln"),
		1900000000000);
	assert_int_equal(kube_expiry_token("eyJhbGciOiJub25lIn0.eyJzdWIiOiJtZSJ9.c2ln"), 0);
	assert_int_equal(kube_expiry_token("eyJhbGciOiJub25lIn0.eyJleHAiOjFlMzAwfQ.c2ln"), 0);
}

static void test_no_token(void **state)
{
	static const char *const texts[] = {
		"", ".", "..", "a.b", "a.!.c", "a.bnVsbA.c", "a.W10.c", "opaque-token", "a.e30.c"};

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
		assert_int_equal(kube_expiry_token(texts[i]), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_certificate),
		cmocka_unit_test(test_no_certificate),
		cmocka_unit_test(test_damaged_certificates),
		cmocka_unit_test(test_token),
		cmocka_unit_test(test_no_token),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
