# SPDX-License-Identifier: Apache-2.0
# Files below DIR of a container: sh -c THIS dlrun VERB DIR ARGUMENT...
# Ends with 44 where there is no DIR, and with 45 where a tool is missing. Options are those that GNU, busybox and
# toybox have in common. N: so many bytes of stdin are read, since old servers cannot pass on its end.
files_verb=$1
cd -- "$2" || exit 44
shift 2

files_need() {
	for files_tool; do
		command -v "$files_tool" >/dev/null 2>&1 || exit 45
	done
}

# MARK ONLY LIKE [FIRST LINGERS ANNOUNCED COLLECTOR]: a listing (core/target/listing.h) of all; with ONLY of that file;
# with LIKE, lines, of the files that match one of these patterns. FIRST: wait until LINGERS is there, or let COLLECTOR
# complete the results with what the program has left in its tree so far (live, all, announce: the pod is about to go).
files_list() {
	files_mark=$1 files_only=$2 files_like=$3 files_first=${4-}
	case $files_first in
	wait)
		until [ -e "$5" ]; do sleep 0.1 2>/dev/null || sleep 1; done
		files_first=
		;;
	announce)
		: >"$6"
		files_first=all
		;;
	esac
	if [ "$files_first" ] && [ -f "$7" ]; then
		/bin/sh "$7" "$files_first" >/dev/null 2>&1
	fi
	files_now=$(date +%s 2>/dev/null) || files_now=0
	find . -prune -exec stat -c '%f %s %Y %y %n' {} + >/dev/null 2>&1 || exit 45
	if [ "$files_only" ]; then
		set -- "./$files_only" -prune -type f
		[ -f "./$files_only" ] || set -- . -prune -type p
	elif [ "$files_like" ]; then
		set -f
		set --
		IFS='
'
		for files_pattern in $files_like; do
			case $files_pattern in */*) files_test=-path ;; *) files_test=-name ;; esac
			set -- "$@" -o "$files_test" "$files_pattern"
		done
		unset IFS
		shift
		set -- . -type f '(' "$@" ')'
	else
		set -- .
	fi
	echo "$files_mark begin $files_now"
	find "$@" -exec stat -c "$files_mark %f %s %Y %y %n" {} +
	echo "$files_mark end"
}

# N MANY: a tar of the files whose paths ("./a", each with a NUL behind it) are on stdin, an archive for each MANY of them.
files_tar() {
	files_need tar xargs head
	# GNU tar alone takes escapes in names for what they stand for, and alone knows this option.
	files_plain=--no-unquote
	tar "$files_plain" --version >/dev/null 2>&1 || files_plain=
	head -c "$1" | xargs -0 -n "$2" tar $files_plain -cf -
}

# N: parts of files (pod_copy.h) that stdin names: "OFFSET LENGTH ./PATH" and a NUL for each. busybox's tail cannot skip
# 4 GiB, so dd does most of it. It reads no further than it must, and the first head takes all of that: dd fails then
# only where the file cannot be read.
files_parts() {
	files_need xargs head tail dd
	head -c "$1" | xargs -0 -n 100 sh -c 'exec 4>&1
	for r; do
		o=${r%% *} r=${r#* }
		l=${r%% *} p=${r#* }
		if [ ! -f "$p" ] || [ -L "$p" ] || [ ! -r "$p" ]; then
			echo gone
			continue
		fi
		echo "part $o $l"
		n=$(((o % 65536 + l + 65535) / 65536))
		e=$({
			{
				{ dd if="$p" bs=65536 skip="$((o / 65536))" count="$n" || echo x >&3; } |
					tail -c "+$((o % 65536 + 1))" | { head -c "$l" && cat >/dev/null; }
				cat /dev/zero
			} 2>/dev/null | head -c "$l" >&4
		} 3>&1)
		s=$(stat -c %s "$p" 2>/dev/null || wc -c <"$p") 2>/dev/null || s=0
		if [ "$e" ]; then echo unread; else echo "size $((s))"; fi
	done' dlrun
}

"files_$files_verb" "$@"
