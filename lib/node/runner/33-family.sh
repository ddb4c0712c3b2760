# SPDX-License-Identifier: Apache-2.0
# The processes of an attempt: what its program has started, wherever that went and whatever it calls itself.

# DIR: $family, their pids.
family_of() {
	family_look "$1" "DLRUN_ATTEMPT_DIR=$1/files"
}

# The same with everything that works for the attempt before its program begins.
workers_of() {
	family_look "$1" "DLRUN_ATTEMPT_DIR=$1/files" "DLRUN_NODE_ATTEMPT=$1/"
}

# Lines KIND PIDS..., then those of proc(5)'s stat; PID:START where a pid may be another process's by now. Prints
# PID:START of all who are below `root` or `session` or in that session, are `seen`, or below one of those; but for
# `others` with all below them, unless they are `mine`.
FAMILY_AWK=$STAT_AWK'
function add(list, i, n, p) {
	n = split(list, p, " ")
	for (i = 2; i <= n; i++) {
		given[p[1], ++count[p[1]]] = p[i]
		if (index(p[i], ":") == 0) named[p[1], p[i]] = 1
	}
}
function lives(who, p) { return split(who, p, ":") == 2 && (p[1] in all) && start[p[1]] == p[2] }
function take(pid) {
	if (pid <= 1 || pid in ours || !(pid in all) || named["not", pid] ||
		named["watcher", pid] || named["watcher", parent[pid]]) return
	if (!named["mine", pid] && (named["others", pid] || session[pid] in house)) return
	ours[pid] = 1
	queue[++last] = pid
}
BEGIN { last = 0 }
is_stat == "" && $1 == "stat" { is_stat = 1; next }
is_stat == "" { add($0); next }
stat_line() && stat[1] !~ /[ZX]/ { all[pid] = 1; parent[pid] = stat[2]; session[pid] = stat[4]; start[pid] = stat[20] }
END {
	for (i = 1; i <= count["house"]; i++) if (given["house", i] in all) house[session[given["house", i]]] = 1
	for (pid in all) child[parent[pid], ++children[parent[pid]]] = pid
	for (i = 1; i <= count["mine"]; i++) take(given["mine", i])
	for (i = 1; i <= count["writer"]; i++) take(given["writer", i])
	for (i = 1; i <= count["seen"]; i++) if (lives(given["seen", i])) take(given["seen", i] + 0)
	for (i = 1; i <= count["session"]; i++) {
		who = given["session", i] + 0
		if (who <= 1 || given["session", i] !~ /^[0-9]+:[0-9]+$/) continue
		if (!(who in all) || lives(given["session", i])) {
			take(who)
			for (pid in all) if (session[pid] == who) take(pid)
		}
	}
	for (i = 1; i <= count["root"]; i++) if (lives(given["root", i])) {
		who = given["root", i] + 0
		for (j = 1; j <= children[who]; j++) take(child[who, j])
	}
	for (i = 1; i <= last; i++) for (j = 1; j <= children[queue[i]]; j++) take(child[queue[i], j])
	for (i = 1; i <= last; i++) print queue[i] ":" start[queue[i]]
}
'

# DIR TEXT [TEXT]: the environment with one of these is that of a member. What dlrun does itself has
# DLRUN_NODE_ATTEMPT there, and sessions of its own; another attempt that was started from this one's program has a
# DLRUN_ATTEMPT_DIR of its own.
family_look() {
	family_stats=$(cat /proc/[0-9]*/stat)
	family_named "$2" "${3-$2}"
	family_root= family_session= family_seen= family_house=$$
	if field_of "$1/state" supervisor; then
		family_root=$value family_house="$$ ${value%:*}"
	fi
	if judge_boot "$1" && field_of "$1/state" program; then
		family_session=$value
		[ ! -f "$1/.family" ] || read -r family_seen <"$1/.family"
	fi
	family_container=
	[ ! -f "$1/container" ] || container_root "$1"
	family_writers "$1/log"
	limits_members "$1"
	family= family_starts=$(printf 'mine %s\nothers %s\nnot %s\nwatcher %s\nhouse %s\nroot %s\nsession %s\nseen %s %s\nwriter %s\nstat\n%s\n' \
		"$family_mine" "$family_others" "$$ $PPID" "$family_not" "$family_house" "$family_root" \
		"$family_session" "$family_seen" "$family_container" "$family_writers $limits_pids" "$family_stats" | awk "$FAMILY_AWK")
	for family_pid in $family_starts; do
		family="$family ${family_pid%:*}"
	done
} 2>/dev/null
family_not=

# TEXT TEXT: $family_mine, pids of those who have one of them in their environment; $family_others, of those who have
# to do with any attempt. A grep that stops at NUL (busybox) finds nothing there: then this shell reads.
family_named() {
	family_mine= family_others=
	if printf 'a\0b' | grep -qF b; then
		family_files=$(grep -lsF -e DLRUN_ATTEMPT_DIR= -e DLRUN_NODE_ATTEMPT= /proc/[0-9]*/environ)
		for family_file in $family_files; do
			family_add others
		done
		for family_file in $(grep -lsF -e "$1" -e "$2" /dev/null $family_files); do
			family_add mine
		done
		return
	fi
	for family_file in /proc/[0-9]*/environ; do
		[ -O "$family_file" ] || continue
		family_is=
		while IFS= read -r family_line || [ "$family_line" ]; do
			case $family_line in
			*"$1"* | *"$2"*) family_is=mine ;;
			*DLRUN_ATTEMPT_DIR=* | *DLRUN_NODE_ATTEMPT=*) family_is=${family_is:-others} ;;
			esac
		done <"$family_file"
		[ -z "$family_is" ] || family_add "$family_is"
	done
}

# KIND
family_add() {
	family_file=${family_file#/proc/}
	eval "family_$1=\"\$family_$1 \${family_file%%/*}\""
}

# LOG: $family_writers, pids of those whose output it is.
family_writers() {
	family_writers=
	for family_file in /proc/[0-9]*/fd/1; do
		family_file=${family_file%/fd/1}
		! [ "$family_file/fd/1" -ef "$1" ] && ! [ "$family_file/fd/2" -ef "$1" ] || family_writers="$family_writers ${family_file#/proc/}"
	done
}
