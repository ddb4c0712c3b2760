/* SPDX-License-Identifier: Apache-2.0 */
/* The Lease after work that kept it from being renewed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/autoscale/lease.h"
#include "tests/unit/kubefix.h"

#define LEASE(version, holder)                                                                           \
	"{\"kind\":\"Lease\",\"metadata\":{\"name\":\"dlrun-autoscale\",\"resourceVersion\":\"" #version \
	"\"},\"spec\":{\"holderIdentity\":\"" holder "\",\"leaseTransitions\":3}}"
#define STATUS(code, reason)                                                                       \
	"{\"kind\":\"Status\",\"status\":\"Failure\",\"reason\":\"" reason                         \
	"\",\"message\":\"m\",\"code\":" #code "}"
#define MISSING                                                                                    \
	{                                                                                          \
		404, STATUS(404, "NotFound"), NULL, false, false, false, false                     \
	}
#define CONFLICT                                                                                   \
	{                                                                                          \
		409, STATUS(409, "Conflict"), NULL, false, false, false, false                     \
	}
#define HAS(version, holder)                                                                       \
	{                                                                                          \
		200, LEASE(version, holder), NULL, false, false, false, false                      \
	}

static void on_note(void *ctx UNUSED, const char *text)
{
	fail_msg("%s", text);
}

/* It is acquired, then renewed at once; 0 or -code of that. */
static int renew(const struct step *steps, size_t n, bool *ret_is_same_term)
{
	AUTO_KUBE struct kube kube;
	AUTO_ERR struct err err = {0};

	kube_init(&kube, steps, n);
	kube_connect(&kube);
	struct lease *lease = lease_new(kube.client, "me");
	assert_int_equal(lease_wait(lease, 0, NULL, on_note, NULL, &err), 0);
	int64_t term = lease_term(lease);
	int n_before = atomic_load(&script.at);
	int r = lease_renew(lease, clock_ms() - LEASE_RENEW_MS, NULL, &err);
	assert_true(atomic_load(&script.at) > n_before);
	assert_true(r < 0 || lease_is_held(lease));
	assert_true(r == 0 || err.id == E_SCALE_LEASE);
	*ret_is_same_term = lease_term(lease) == term;
	lease_free(lease);
	return r;
}

static void test_nobody_else_wanted_it(void **state UNUSED)
{
	const struct step steps[] = {MISSING, HAS(1, "me"), HAS(2, "me")};
	bool is_same;

	assert_int_equal(renew(steps, ARRAY_LEN(steps), &is_same), 0);
	assert_true(is_same);
}

static void test_somebody_edited_it(void **state UNUSED)
{
	const struct step steps[] = {MISSING, HAS(1, "me"), CONFLICT, HAS(5, "me"), HAS(6, "me")};
	bool is_same;

	assert_int_equal(renew(steps, ARRAY_LEN(steps), &is_same), 0);
	assert_true(is_same);
}

static void test_another_one_has_it(void **state UNUSED)
{
	const struct step steps[] = {MISSING, HAS(1, "me"), CONFLICT, HAS(5, "other")};
	bool is_same;

	assert_true(renew(steps, ARRAY_LEN(steps), &is_same) < 0);
}

/* It is held again, and yet what was planned before is not to be done. */
static void test_another_one_had_it(void **state UNUSED)
{
	const struct step steps[] = {MISSING, HAS(1, "me"), CONFLICT, HAS(5, ""), HAS(6, "me")};
	bool is_same;

	assert_true(renew(steps, ARRAY_LEN(steps), &is_same) < 0);
	assert_false(is_same);
}

static void test_somebody_deleted_it(void **state UNUSED)
{
	const struct step steps[] = {MISSING, HAS(1, "me"), CONFLICT, MISSING, HAS(7, "me")};
	bool is_same;

	assert_true(renew(steps, ARRAY_LEN(steps), &is_same) < 0);
	assert_false(is_same);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nobody_else_wanted_it),
		cmocka_unit_test(test_somebody_edited_it),
		cmocka_unit_test(test_another_one_has_it),
		cmocka_unit_test(test_another_one_had_it),
		cmocka_unit_test(test_somebody_deleted_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
