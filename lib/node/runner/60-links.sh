# SPDX-License-Identifier: Apache-2.0
# Data and results in the tree of an attempt, with the results of lib/targets/local/runtime_mount.c. Paths are in
# the tree, normal, and maybe of any bytes.

world_link() {
	links_dir=$1 links_outputs='' links_data='' links_made=0 links_versions=
	set +u
	. "$1/job"
	j_outputs
	j_data
	set -u
	links_plan
	[ -z "$links_versions" ] || {
		printf '%s\n' "${links_versions# }" >"${1%/*}/versions"
		state_set "$1" data="${links_versions# }"
	}
	links_each_output
	links_each_data
}

link_output() {
	quoted_of "$1"
	links_outputs="$links_outputs $quoted"
}

# FROM is absolute, or below the home (~/...), or below ROOT (data/KEY: what was sent).
link_data() {
	links_from=$2
	case $2 in
	/*) ;;
	'~') links_from=${HOME-} ;;
	'~/'*) links_from=${HOME-}/${2#'~/'} ;;
	*) links_from=$d_root/$2 ;;
	esac
	links_version "$1"
	quoted_of "$1"
	links_data="$links_data $quoted"
	quoted_of "$links_from"
	links_data="$links_data $quoted"
}

# PATH: of a place with versions (73-store.sh) the run keeps the one that is current when it begins, in all of its
# attempts: $RUN/versions has them.
links_version() {
	word_of "$1"
	if [ -L "$links_from/.dlrun/current" ]; then
		links_target "$links_from/.dlrun/current"
		links_before=
		[ ! -f "${links_dir%/*}/versions" ] || read -r links_before <"${links_dir%/*}/versions"
		for links_other in $links_before; do
			[ "${links_other%@*}" != "$coded" ] || links_text=${links_other##*@}
		done
		links_from=$links_from/.dlrun/$links_text
	elif [ -d "$links_from/.dlrun" ]; then
		links_fail "data '$1': there is no version of it in $links_from: dlrun data push"
	fi
	case $links_from in
	*/.dlrun/d-*) links_versions="$links_versions $coded@${links_from##*/}" ;;
	esac
}

links_fail() {
	attempt_fail "$links_dir" StartFailed "$1"
}

# What excludes each other, and places that are not there, before anything is made.
links_plan() {
	eval "set -- $links_data"
	while [ $# -gt 0 ]; do
		links_check_data "$1" "$2"
		shift 2
	done
}

links_check_data() {
	links_path=$1 links_from=$2
	case $links_from in
	# Its time is that of its last use.
	"$d_root"/data/*) touch -c "$links_from" ;;
	esac
	[ -e "$links_from" ] || links_fail "data '$links_path' is not at $links_from"
	eval "set -- $links_outputs"
	for links_other; do
		[ "$links_other" != "$links_path" ] || links_fail "'$links_path' cannot be both data and an output"
		case $links_other in
		"$links_path"/*) links_fail "the output '$links_other' would lie in the data '$links_path'" ;;
		esac
	done
	eval "set -- $links_data"
	while [ $# -gt 0 ]; do
		[ "$1" != "$links_path" ] || [ "$2" = "$links_from" ] || links_fail "data '$links_path' has two places"
		shift 2
	done
}

# $links_below: the output that the path is inside of, the outermost; or nothing.
links_below_of() {
	links_path=$1 links_below=''
	eval "set -- $links_outputs"
	for links_other; do
		case $links_path in
		"$links_other"/*)
			case $links_below in
			'' | "$links_other"/*) links_below=$links_other ;;
			esac ;;
		esac
	done
}

# BASE PATH WHAT: the directory, made with its parents, without following links.
links_make_dirs() {
	links_at=$1 links_rest=$2/
	while [ -n "$links_rest" ]; do
		links_at=$links_at/${links_rest%%/*}
		links_rest=${links_rest#*/}
		[ ! -L "$links_at" ] || links_fail "$3: '${links_at#"$1"/}' is a symbolic link"
		[ -d "$links_at" ] || (umask "$d_umask" && mkdir "$links_at" 2>/dev/null) || [ -d "$links_at" ] ||
			links_fail "$3: '${links_at#"$1"/}' is a file, no directory"
	done
}

links_make_parent() {
	case $2 in
	*/*) links_make_dirs "$1" "${2%/*}" "$3" ;;
	esac
}

links_make() {
	ln -s "$1" "$2" || links_fail "$3: a link cannot be made"
}

# The text of a link, with newlines at its end.
links_target() {
	links_text=$(readlink -n "$1" && echo .)
	links_text=${links_text%.}
	links_text=${links_text%"$nl"}
}

links_each_output() {
	eval "set -- $links_outputs"
	for links_output; do
		links_one_output "$links_output"
	done
}

links_one_output() {
	links_what="output '$1'" links_to=${links_dir%/*}/outputs/$1 links_here=$links_dir/tree/$1
	links_make_dirs "${links_dir%/*}/outputs" "$1" "$links_what"
	links_below_of "$1"
	[ -z "$links_below" ] || return 0
	links_make_parent "$links_dir/tree" "$1" "$links_what"
	if [ -L "$links_here" ]; then
		links_target "$links_here"
		[ "$links_text" = "$links_to" ] || links_fail "$links_what: '$1' is a symbolic link"
		return 0
	fi
	if [ -d "$links_here" ]; then
		links_move "$links_here" "$links_to"
		rm -rf "$links_here"
	elif [ -e "$links_here" ]; then
		links_fail "$links_what: '$1' is a file, no directory"
	fi
	links_make "$links_to" "$links_here" "$links_what"
}

# FROM TO: what TO has stays. Both are on one disk.
links_move() {
	for links_entry in "$1"/* "$1"/.[!.]* "$1"/..?*; do
		[ -e "$links_entry" ] || [ -L "$links_entry" ] || continue
		links_new=$2/${links_entry##*/}
		if [ -d "$links_new" ] && [ -d "$links_entry" ] && [ ! -L "$links_new" ] && [ ! -L "$links_entry" ]; then
			links_move "$links_entry" "$links_new"
		elif [ ! -e "$links_new" ] && [ ! -L "$links_new" ]; then
			mv "$links_entry" "$links_new" || links_fail "$links_what: it cannot be filled"
		fi
	done
}

# From within: a directory with a place of its own inside is then merged.
links_each_data() {
	links_depth=64
	while [ "$links_depth" -ge 0 ]; do
		eval "set -- $links_data"
		while [ $# -gt 0 ]; do
			links_slashes=$(printf %s "$1" | tr -cd /)
			[ "${#links_slashes}" -ne "$links_depth" ] || links_one_data "$1" "$2"
			shift 2
		done
		links_depth=$((links_depth - 1))
	done
}

links_one_data() {
	links_what="data '$1'" links_base=$links_dir/tree links_from=$2
	links_below_of "$1"
	[ -z "$links_below" ] || links_base=${links_dir%/*}/outputs
	links_make_parent "$links_base" "$1" "$links_what"
	links_here=$links_base/$1
	if [ -L "$links_here" ]; then
		links_target "$links_here"
		[ "$links_text" != "$2" ] || return 0
		rm -f "$links_here"
	fi
	if [ -d "$links_here" ]; then
		[ -d "$2" ] || links_fail "$links_what: one of the snapshot and $2 is a file, the other a directory"
		links_merge "$2" "$links_here" 0
	elif [ -e "$links_here" ]; then
		[ -f "$2" ] || links_fail "$links_what: one of the snapshot and $2 is a file, the other a directory"
	else
		links_make "$2" "$links_here" "$links_what"
	fi
}

# FROM TO DEPTH: what TO has stays, a directory of both is gone into, all else becomes a link.
links_merge() {
	[ "$3" -le 64 ] || links_fail "$links_from has more than 64 levels"
	for links_entry in "$1"/* "$1"/.[!.]* "$1"/..?*; do
		[ -e "$links_entry" ] || [ -L "$links_entry" ] || continue
		links_new=$2/${links_entry##*/}
		if [ -e "$links_new" ] || [ -L "$links_new" ]; then
			if [ -d "$links_new" ] && [ ! -L "$links_new" ] && [ -d "$links_entry" ]; then
				links_merge "$links_entry" "$links_new" $(($3 + 1))
			fi
			continue
		fi
		[ $((links_made += 1)) -le 20000 ] ||
			links_fail "$links_what has more than 20000 names beside files of the snapshot"
		links_make "$links_entry" "$links_new" "$links_what"
	done
}
