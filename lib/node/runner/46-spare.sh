# SPDX-License-Identifier: Apache-2.0
# Trees made ahead: after a start the next one of the same layers is unpacked, so that it is there when it is
# wanted.

SPARES_MAX=4
PLAINS_MAX=2
SPARE_MARGIN=1073741824

# DIR: once for an attempt, when its program has begun.
spare_begin() {
	mkdir "$1/.spare" || return 0
	launch_away "$1" spare "$1"
} 2>/dev/null

# DIR
job_spare() {
	. "$1/plan"
	[ "$p_spare" ] && [ "$p_count" -gt 0 ] || exit 0
	spare_dir=$d_local/spares
	[ ! -d "$spare_dir/$p_spare" ] || exit 0
	. "$1/login"
	renice -n 19 -p $$ >/dev/null 2>&1
	! command -v ionice >/dev/null 2>&1 || ionice -c 3 -p $$ 2>/dev/null
	self_of
	spare_clean
	spare_fits "$1" || exit 0
	spare_new=$spare_dir/.new-$$-$start
	spare_n=0
	mkdir "$spare_new" && (umask "$d_umask" && mkdir "$spare_new/tree") || exit 0
	for spare_item in $p_tree; do
		[ $((spare_n += 1)) -le "$p_count" ] || break
		unpack "$d_root/layers/${spare_item%:*}" "${spare_item#*:}" "$spare_new/tree" "$p_strip" '' || {
			rm -rf "$spare_new"
			exit 0
		}
		touch "$d_root/layers/${spare_item%:*}"
	done
	[ -e "$spare_dir/$p_spare" ] || { touch "$spare_new/tree" && mv "$spare_new/tree" "$spare_dir/$p_spare"; }
	rm -rf "$spare_new"
	spare_limit
	spare_plains "$1"
}

# Their layers without the compression, for the next tree that is wanted before there is another spare: gunzip takes
# more time than the files do. Each is whole on the disk before it counts, for nothing tells that bytes are missing.
spare_plains() {
	mkdir -p "$d_local/plain"
	spare_n=0
	for spare_item in $p_tree; do
		[ $((spare_n += 1)) -le "$p_count" ] || break
		spare_new=$d_local/plain/.new-$$-$start spare_name=$d_local/plain/${spare_item%:*}
		[ "${spare_item#*:}" != none ] && [ ! -f "$spare_name" ] && spare_fits "$1" || continue
		unpack_by "$d_root/layers/${spare_item%:*}" "${spare_item#*:}" cat >"$spare_new" && sync "$spare_new" &&
			mv -f "$spare_new" "$spare_name" || rm -f "$spare_new"
	done 2>/dev/null
	spare_n=0
	for spare_name in $(ls -t "$d_local/plain"); do
		[ $((spare_n += 1)) -le "$PLAINS_MAX" ] || rm -f "$d_local/plain/$spare_name"
	done
}

# What somebody was making who lives no more.
spare_clean() {
	for spare_new in "$spare_dir"/.new-* "$d_local"/plain/.new-*; do
		[ -e "$spare_new" ] || continue
		spare_name=${spare_new##*/.new-}
		is_alive "${spare_name%-*}" "${spare_name#*-}" || rm -rf "$spare_new"
	done
	self_of
}

# Twice what it takes, and some: of a tree like it.
spare_fits() {
	spare_kib=$(du -sk "$1/tree" 2>/dev/null)
	spare_kib=${spare_kib%%"$tab"*}
	free_of "$d_local"
	[ "$free" != "$FREE_UNKNOWN" ] && [ "$free" -ge $((${spare_kib:-0} * 2048 + SPARE_MARGIN)) ]
}

# The oldest go; out of the way first, so that nobody takes half of one.
spare_limit() {
	spare_n=0
	for spare_name in $(ls -t "$spare_dir"); do
		[ $((spare_n += 1)) -gt "$SPARES_MAX" ] || continue
		mkdir "$spare_new" && mv "$spare_dir/$spare_name" "$spare_new/" && rm -rf "$spare_new"
	done 2>/dev/null
}
