# SPDX-License-Identifier: Apache-2.0
# An environment in a container that is there for it: sh -c THIS dlrun VERB SCRATCH TREE ARGUMENT...
# SCRATCH: a directory on a volume of its own. Ends with 3 where another has taken it, 4 where the part that came is of
# another pod, 45 where a tool is missing, 46 where the setup has written to a home that is no part of the image, 125
# where the setup has failed.
# Options are those that GNU, busybox and toybox have in common; one file system: what is mounted is no part of it.
bake_verb=$1 bake_dir=$2/bake bake_tree=$3
shift 3
LC_ALL=C
export LC_ALL
bake_newline='
'

# TEST...: what is there, but for what is made again by itself: caches, byte code, logs.
bake_find() {
	find / -xdev '(' -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/tmp -o \
		-path /var/cache -o -path /var/log -o -name .cache -o -name __pycache__ -o -name .git ')' -prune -o \
		-name '*
*' -prune -o "$@" -print 2>/dev/null
}

# FILE: all names, those of directories with a slash behind them.
bake_list() {
	{
		bake_find -type d | sed 's,$,/,'
		bake_find '(' -type f -o -type l ')'
	} | grep -v '\.pyc$' | sort -u >"$1"
}

# Without what lies below another line.
bake_tops() {
	bake_top=
	while IFS= read -r bake_line; do
		[ -z "$bake_top" ] || case $bake_line in "$bake_top"*) continue ;; esac
		case $bake_line in */) bake_top=$bake_line ;; esac
		printf '%s\n' "$bake_line"
	done
}

# CWD LINE NAME...: run the setup, tell what it has changed, and wait until that was taken. NAME: a variable with a
# secret.
bake_make() {
	for bake_tool in find sed sort uniq grep tar tail xargs tr; do
		command -v "$bake_tool" >/dev/null 2>&1 || { echo "dlrun: the image has no $bake_tool" >&2; exit 45; }
	done
	mkdir -p "$bake_dir" && : >"$bake_dir/mark" || exit 45
	# By the time of the last change of any kind; busybox knows that of the content, in seconds.
	bake_newer=-cnewer
	find "$bake_dir" -cnewer "$bake_dir/mark" >/dev/null 2>&1 || {
		bake_newer=-newer
		sleep 1
	}
	bake_list "$bake_dir/before"
	# The same modes everywhere.
	(umask 022 && cd -- "$1" && exec /bin/sh -c "$2") || {
		bake_code=$?
		printf 'dlrun: setup failed with exit %s: %s\n' "$bake_code" "${2%%"$bake_newline"*}" >&2
		printf 'dlrun: setup failed' >/dev/termination-log
		exit 125
	}
	case ${HOME-} in
	/dlrun/home*)
		[ -z "$(find "$HOME" -name .cache -prune -o -type f -print 2>/dev/null | head -n 1)" ] || exit 46
		;;
	esac
	bake_list "$bake_dir/after"
	cat "$bake_dir/before" "$bake_dir/before" "$bake_dir/after" | sort | uniq -u >"$bake_dir/new"
	cat "$bake_dir/before" "$bake_dir/after" "$bake_dir/after" | sort | uniq -u | bake_out | bake_tops | sed 's,/$,,' >"$bake_dir/gone"
	bake_in <"$bake_dir/new" | bake_tops | sed 's,/$,,' >"$bake_dir/tops"
	{
		grep -v '/$' "$bake_dir/new"
		bake_find '(' -type f -o -type l ')' "$bake_newer" "$bake_dir/mark" | grep -v '\.pyc$' | bake_out
	} | sort -u >"$bake_dir/files"
	shift 2
	for bake_name; do bake_find_secret "$bake_name"; done >"$bake_dir/secrets"
	: >"$bake_dir/made"
	bake_stay
}

# NAME: "NAME PATH" for each file with the value of that variable, by its longest line. Only here it is known for sure:
# the one who takes it may be another, with a value of their own.
bake_find_secret() {
	eval "bake_rest=\${$1-}"
	bake_long=
	while [ "$bake_rest" ]; do
		bake_line=${bake_rest%%"$bake_newline"*}
		bake_rest=${bake_rest#"$bake_line"}
		bake_rest=${bake_rest#"$bake_newline"}
		[ ${#bake_line} -le ${#bake_long} ] || bake_long=$bake_line
	done
	[ ${#bake_long} -ge 6 ] || return 0
	(umask 077 && printf '%s\n' "$bake_long" >"$bake_dir/value")
	while IFS= read -r bake_line; do
		[ -h "$bake_line" ] || printf '.%s\0' "$bake_line"
	done <"$bake_dir/files" | (cd / && xargs -0 -n 500 grep -F -l -s -f "$bake_dir/value") | sed "s,^,$1 ,"
	rm -f "$bake_dir/value"
}

# For ten minutes in which nobody takes it.
bake_stay() {
	bake_left=120 bake_before=
	while [ "$bake_left" -gt 0 ]; do
		sleep 5
		bake_now=$(bake_sent)
		bake_is_taken && [ "$bake_now" != "$bake_before" ] || bake_left=$((bake_left - 1))
		bake_before=$bake_now
	done
}

bake_is_taken() {
	[ ! -e "$bake_dir/taken/until" ] && bake_pid=$(cat "$bake_dir/taken/pid" 2>/dev/null) && kill -0 "$bake_pid" 2>/dev/null
}

bake_out() {
	while IFS= read -r bake_line; do
		case $bake_line in "$bake_tree"/*) ;; *) printf '%s\n' "$bake_line" ;; esac
	done
}

bake_in() {
	while IFS= read -r bake_line; do
		case $bake_line in "$bake_tree"/*) printf '%s\n' "$bake_line" ;; esac
	done
}

# A tar of the lists "tops", "gone" and "secrets", one of the files for each 500 of them, and one of the directory "whole".
bake_send() {
	bake_plain=--no-unquote
	tar "$bake_plain" --version >/dev/null 2>&1 || bake_plain=
	mkdir -p "$bake_dir/whole" && tar -cf - -C "$bake_dir" tops gone secrets || return
	[ ! -s "$bake_dir/files" ] ||
		(cd / && sed 's,^/,./,' "$bake_dir/files" | tr '\n' '\0' | xargs -0 -n 500 tar $bake_plain -cf -) || return
	tar -cf - -C "$bake_dir" whole
}

# AT TOKEN: send it without the first AT bytes, which the client with that token has. The client that took it has a
# minute, and more for much, until another may take it.
bake_take() {
	bake_end "$2"
	until [ -e "$bake_dir/made" ]; do sleep 0.2 2>/dev/null || sleep 1; done
	if [ "$(cat "$bake_dir/taken/token" 2>/dev/null)" != "$2" ]; then
		[ "$1" -eq 0 ] || exit 4
		if ! mkdir "$bake_dir/taken" 2>/dev/null; then
			bake_pid=$(cat "$bake_dir/taken/pid" 2>/dev/null)
			bake_until=$(cat "$bake_dir/taken/until" 2>/dev/null)
			if [ "$bake_until" ]; then
				[ "$(date +%s)" -gt "$bake_until" ] || exit 3
			else
				[ -z "$bake_pid" ] || ! kill -0 "$bake_pid" 2>/dev/null || ! bake_flows || exit 3
			fi
		fi
	fi
	bake_failed=$bake_dir/failed.$$
	echo $$ >"$bake_dir/taken/pid"
	echo "$2" >"$bake_dir/taken/token"
	rm -f "$bake_dir/taken/until" "$bake_failed"
	{ bake_send || : >"$bake_failed"; } | tail -c "+$(($1 + 1))" || exit 1
	[ ! -e "$bake_failed" ] || exit 1
	echo $(($(date +%s) + 60 + $(wc -l <"$bake_dir/files") / 100)) >"$bake_dir/taken/until"
}

# TOKEN: end those of a caller whose connection was cut, with their senders.
bake_end() {
	for bake_process in /proc/[0-9]*; do
		[ "$bake_process" != /proc/$$ ] && bake_has "$bake_process" -e "$1" >/dev/null && kill "${bake_process#/proc/}" 2>/dev/null
	done
}

# 0 where what another sends arrives: of one that was killed nobody reads it, and its sender waits for ever.
bake_flows() {
	bake_before=$(bake_sent)
	bake_left=10
	while [ "$bake_left" -gt 0 ]; do
		sleep 1
		[ "$(bake_sent)" = "$bake_before" ] || return 0
		bake_left=$((bake_left - 1))
	done
	return 1
}

bake_sent() {
	for bake_process in /proc/[0-9]*; do
		[ "$(bake_has "$bake_process" -e tail)" != tail ] || cat "$bake_process/io"
	done 2>/dev/null
}

# PROCESS PATTERN...: which of its words they are.
bake_has() {
	bake_process=$1
	shift
	tr '\0' '\n' 2>/dev/null <"$bake_process/cmdline" | grep -x "$@"
}

# TOKEN: end its own, and 0 where one without it waits to take it.
bake_wanted() {
	bake_end "$1"
	for bake_pid in /proc/[0-9]*; do
		[ "$(bake_has "$bake_pid" -e take -e "$1")" != take ] || return 0
	done
	return 1
}

"bake_$bake_verb" "$@"
