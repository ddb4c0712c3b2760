/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "targets/kube/kube_open.h"
#include "tests/unit/kubetarget.h"

static bool on_request(struct fix_conn *conn)
{
	free(fix_body(conn));
	return print_json(conn, 200, "{}");
}

static struct kube_cluster *open_as(
	struct place *place, const char *context, const char *kube_namespace)
{
	struct kube_cluster *cluster = NULL;
	AUTO_ERR struct err err = {0};

	if (kube_open(&place->session, context, kube_namespace, &cluster, &err) < 0)
		fail_msg("%s", err.message);
	return cluster;
}

/* However context and namespace are said, a login is made once. */
static void test_once(void **state)
{
	AUTO_PLACE struct place place;

	place_init(&place, on_request);
	const struct kube_cluster *first = open_as(&place, NULL, NULL);
	assert_ptr_equal(open_as(&place, NULL, NULL), first);
	assert_ptr_equal(open_as(&place, "x", NULL), first);
	assert_ptr_equal(open_as(&place, NULL, "jobs"), first);
	assert_ptr_equal(open_as(&place, "x", "jobs"), first);
	assert_ptr_equal(target_kube_of(place.target)->cluster, first);
	const struct kube_cluster *other = open_as(&place, "x", "other");
	assert_ptr_not_equal(other, first);
	assert_ptr_equal(open_as(&place, NULL, "other"), other);
	assert_string_equal(other->access.kube_namespace, "other");
}

static void test_unknown(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_ERR struct err err = {0};
	struct kube_cluster *cluster = NULL;

	place_init(&place, on_request);
	assert_true(kube_open(&place.session, "y", NULL, &cluster, &err) < 0);
	assert_int_equal(err.id, E_KUBE_CONTEXT);
	assert_null(cluster);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_once),
		cmocka_unit_test(test_unknown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
