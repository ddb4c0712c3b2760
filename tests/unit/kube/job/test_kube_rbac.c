/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/rbac.h"

static char *print(const struct kube_rbac *rbac)
{
	AUTO_BUF struct buf out = {0};
	AUTO_ERR struct err err = {0};

	buf_init(&out, 1 << 20);
	if (kube_rbac_print(rbac, &out, &err) < 0)
		fail_msg("%s", err.message);
	return buf_take(&out);
}

static size_t count(const char *text, const char *part)
{
	size_t n = 0;

	for (; (text = strstr(text, part)); text += strlen(part))
		n++;
	return n;
}

static void test_smallest(void **state)
{
	AUTO_FREE char *text =
		print(&(struct kube_rbac){KUBE_TIER_SUBMIT, "team-a", "User", "me@x", false});

	assert_true(str_starts(text,
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n"
		"metadata:\n  name: dlrun-submit\n  namespace: team-a\nrules:\n"
		"- apiGroups:\n  - batch\n  resources:\n  - jobs\n  verbs:\n"
		"  - create\n  - delete\n  - get\n  - list\n  - patch\n  - watch\n"));
	assert_non_null(strstr(text, "---\napiVersion: rbac.authorization.k8s.io/v1\n"
				     "kind: RoleBinding\nmetadata:\n  name: dlrun-submit-me@x\n"
				     "  namespace: team-a\nroleRef:\n"
				     "  apiGroup: rbac.authorization.k8s.io\n  kind: Role\n"
				     "  name: dlrun-submit\nsubjects:\n"
				     "- apiGroup: rbac.authorization.k8s.io\n  kind: User\n"
				     "  name: me@x\n"));
	assert_null(strstr(text, "secrets"));
	assert_null(strstr(text, "pods/"));
	assert_null(strstr(text, "nodes"));
	assert_null(strstr(text, "*"));
	/* Of namespaces only its own. */
	assert_non_null(strstr(text, "  - namespaces\n  resourceNames:\n  - team-a\n"));
}

static void test_tiers(void **state)
{
	static const size_t documents[] = {2, 2, 2, 2};
	size_t before = 0;

	for (int tier = 0; tier < KUBE_TIERS; tier++) {
		AUTO_FREE char *text = print(&(struct kube_rbac){
			(enum kube_tier)tier, "me", "ServiceAccount", "ci", false});
		assert_int_equal(count(text, "kind: Role"), documents[tier] + 1);
		assert_true(count(text, "- apiGroups:") > before);
		before = count(text, "- apiGroups:");
		assert_int_equal(count(text, "- secrets\n"), tier == KUBE_TIER_SECRETS);
		assert_int_equal(count(text, "- pods/exec\n"), tier >= KUBE_TIER_EXEC);
		assert_int_equal(count(text, "- pods/log\n"), tier >= KUBE_TIER_LOGS);
		assert_non_null(strstr(
			text, "subjects:\n- kind: ServiceAccount\n  name: ci\n  namespace: me\n"));
		assert_non_null(kube_tier_lack((enum kube_tier)tier));
	}
}

static void test_nodes(void **state)
{
	AUTO_FREE char *text =
		print(&(struct kube_rbac){KUBE_TIER_SUBMIT, "me", "Group", "ml:all", true});

	assert_int_equal(count(text, "kind: ClusterRole\n"), 2);
	assert_int_equal(count(text, "kind: ClusterRoleBinding\n"), 1);
	assert_non_null(strstr(text, "- nodes\n  verbs:\n  - list\n"));
	/* Neither pods nor Jobs of others. */
	assert_int_equal(count(strstr(text, "kind: ClusterRole\n"), "- pods"), 0);
}

static void test_allows(void **state)
{
	assert_true(kube_rule_allows(KUBE_TIER_SUBMIT, "batch", "jobs", "create"));
	assert_false(kube_rule_allows(KUBE_TIER_SUBMIT, "batch", "jobs", "cre"));
	assert_false(kube_rule_allows(KUBE_TIER_SUBMIT, "batch", "jobs", "creates"));
	assert_false(kube_rule_allows(KUBE_TIER_SUBMIT, "batch", "jobs", ""));
	assert_false(kube_rule_allows(KUBE_TIER_SUBMIT, "", "pods", "create"));
	assert_false(kube_rule_allows(KUBE_TIER_LOGS, "", "pods", "delete"));
	assert_true(kube_rule_allows(KUBE_TIER_EXEC, "", "pods", "delete"));
	assert_true(kube_rule_allows(KUBE_TIER_EXEC, "", "pods", "create"));
	assert_true(kube_rule_allows(KUBE_TIER_SECRETS, "", "pods/log", "get"));
	assert_false(kube_rule_allows(KUBE_TIER_EXEC, "", "secrets", "get"));
}

static void test_refused(void **state)
{
	static const struct kube_rbac cases[] = {{KUBE_TIER_SUBMIT, "", "User", "me", false},
		{KUBE_TIER_SUBMIT, "a/b", "User", "me", false},
		{KUBE_TIER_SUBMIT, "a", "User", "", false},
		{KUBE_TIER_SUBMIT, "a", "User", NULL, false},
		{KUBE_TIER_SUBMIT, "a", "User", "a\nb", false}};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_BUF struct buf out = {0};
		AUTO_ERR struct err err = {0};
		buf_init(&out, 1 << 20);
		assert_true(kube_rbac_print(&cases[i], &out, &err) < 0);
		assert_int_equal(err.id, E_KUBE_NAME);
		assert_int_equal(out.len, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_smallest),
		cmocka_unit_test(test_tiers),
		cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_allows),
		cmocka_unit_test(test_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
