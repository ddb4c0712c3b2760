/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/role_hosts.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"

enum { ROLE_TEXT_MAX = 16 << 10, ROLE_NAMED = 4 };

void role_wishes_done(struct role_wishes *wishes)
{
	vec_done(wishes);
}

/* The role that is hardest to place, of those that have no hosts yet. */
static size_t role_hosts_next(const struct role_wishes *roles, const struct node_choice *made)
{
	size_t best = roles->n;

	for (size_t i = 0; i < roles->n; i++) {
		const struct node_requirements *one = &roles->v[i].wanted, *other;

		if (made[i].is_ready)
			continue;
		other = best < roles->n ? &roles->v[best].wanted : NULL;
		if (!other || abs(one->gpus) > abs(other->gpus) ||
			(abs(one->gpus) == abs(other->gpus) &&
				one->memory_bytes > other->memory_bytes))
			best = i;
	}
	return best;
}

static void role_hosts_add_names(struct buf *out, const struct role_wish *role,
	const struct node_offer *offers, const struct node_choice *choice)
{
	size_t n = choice->hosts.n;

	buf_addf(out, "%s%s on ", out->len ? "; " : "", role->name);
	for (size_t i = 0; i < n && i < ROLE_NAMED; i++)
		buf_addf(out, "%s%s", i ? ", " : "", offers[choice->hosts.v[i]].host);
	if (n > ROLE_NAMED)
		buf_addf(out, " and %zu more", n - ROLE_NAMED);
}

/* Together, in the order of the ranks. */
static void role_hosts_join(const struct role_wishes *roles, const struct node_choice *made,
	const struct node_offer *offers, struct node_choice *ret)
{
	AUTO_BUF struct buf why = buf_with(ROLE_TEXT_MAX);

	for (size_t i = 0; i < roles->n; i++) {
		role_hosts_add_names(&why, &roles->v[i], offers, &made[i]);
		vec_foreach (size_t, at, &made[i].hosts)
			*vec_push(&ret->hosts) = *at;
	}
	ret->is_ready = true;
	ret->why = buf_take(&why);
}

/* The hosts that no role has yet, and which of all they are. */
struct role_left {
	struct node_offer *offers;
	size_t *indexes;
	size_t n;
};

static void role_hosts_remove(struct role_left *left, size_t at)
{
	left->n--;
	memmove(&left->offers[at], &left->offers[at + 1], (left->n - at) * sizeof(*left->offers));
	memmove(&left->indexes[at], &left->indexes[at + 1],
		(left->n - at) * sizeof(*left->indexes));
}

/* All begin at once: also a role of one host does not wait. */
static void role_hosts_place(
	const struct role_wish *role, struct role_left *left, struct node_choice *ret)
{
	node_choose(left->offers, left->n, &role->wanted, ret);
	for (size_t i = ret->hosts.n; ret->is_ready && i-- > 0;) {
		size_t at = ret->hosts.v[i];
		ret->hosts.v[i] = left->indexes[at];
		role_hosts_remove(left, at);
	}
}

static void role_hosts_fill(const struct node_offer *offers, size_t n, struct role_left *ret)
{
	*ret = (struct role_left){.offers = mem_alloc(n + 1, sizeof(*ret->offers)),
		.indexes = mem_alloc(n + 1, sizeof(*ret->indexes)),
		.n = n};
	for (size_t i = 0; i < n; i++) {
		ret->offers[i] = offers[i];
		ret->indexes[i] = i;
	}
}

void role_hosts_choose(const struct node_offer *offers, size_t n, const struct role_wishes *roles,
	struct node_choice *ret)
{
	AUTO_FREE struct node_choice *made = NULL;
	struct role_left left;
	size_t wanted = 0, at;

	if (roles->n == 1 && !roles->v[0].name) {
		node_choose(offers, n, &roles->v[0].wanted, ret);
		return;
	}
	*ret = (struct node_choice){0};
	made = mem_alloc(roles->n + 1, sizeof(*made));
	role_hosts_fill(offers, n, &left);
	for (size_t i = 0; i < roles->n; i++)
		wanted += roles->v[i].wanted.nodes;
	if (wanted > n)
		ret->why = mem_printf(
			"%zu hosts are wanted, and there %s %zu", wanted, n == 1 ? "is" : "are", n);
	while (!ret->why && (at = role_hosts_next(roles, made)) < roles->n) {
		role_hosts_place(&roles->v[at], &left, &made[at]);
		if (made[at].is_ready)
			continue;
		ret->why = mem_printf("role %s%s: %s", roles->v[at].name,
			made[at].hosts.n ? " would have to wait" : "", made[at].why);
	}
	if (!ret->why)
		role_hosts_join(roles, made, offers, ret);
	for (size_t i = 0; i < roles->n; i++)
		node_choice_done(&made[i]);
	free(left.offers);
	free(left.indexes);
}
