# SPDX-License-Identifier: Apache-2.0
# Time and processes. What ends in _of sets a variable and makes no process.

# $now: wall clock in milliseconds.
now_of() {
	now=$(date +%s%3N)
	case $now in
	*[!0-9]* | ???????????????*) now=$(date +%s)000 ;;
	*) [ "${#now}" -ge 13 ] || now=$(date +%s)000 ;;
	esac
}

# $ticks: hundredths of a second that only go up.
ticks_of() {
	if read -r ticks ticks_idle </proc/uptime; then
		ticks=${ticks%.*}${ticks#*.}
	else
		ticks=$(date +%s)00
	fi 2>/dev/null
}

# Of each line of proc(5)'s stat: stat_line() when it is whole, then pid, and stat[1] is field 3 and so on. The kernel
# bounds a name (comm) by parentheses, in which there may be anything, also lines: the last ")" with all the numbers
# behind it ends it.
STAT_AWK='
function stat_line(at) {
	text = text == "" ? $0 : text "\n" $0
	at = match(text, /\) [A-Za-z] -?[0-9]/)
	while (at && match(substr(text, at + 1), /\) [A-Za-z] -?[0-9]/)) at += RSTART
	if (!at || split(substr(text, at + 2), stat, " ") < 22) return 0
	pid = text + 0
	text = ""
	return 1
}
'

# $start: field 22 of proc(5)'s stat; empty: no such process. A zombie counts as none. $parent.
proc_start_of() {
	start= parent= proc_text=
	{
		while IFS= read -r proc_line; do
			proc_text=$proc_text$proc_line
		done <"/proc/$1/stat"
	} 2>/dev/null || return 1
	proc_text=${proc_text##*") "}
	case $proc_text in
	'' | Z* | X*) return 1 ;;
	esac
	# Never a pattern: the rest is numbers.
	set -- $proc_text
	[ $# -ge 20 ] && parent=$2 start=${20}
}

# Whether it is that process, not another one with its pid.
is_alive() {
	case $1 in '' | *[!0-9]*) return 1 ;; esac
	proc_start_of "$1" && [ "$start" = "$2" ]
}

# $self: pid of the calling process, also in a ( ); $start.
self_of() {
	read -r self proc_line </proc/self/stat && proc_start_of "$self"
}
