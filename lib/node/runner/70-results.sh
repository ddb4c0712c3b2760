# SPDX-License-Identifier: Apache-2.0
# Results: what lies below $DLRUN_OUTPUT_DIR. No link is followed.

RESULTS_MAX=1000000

# $results: the directory of RUN's results, or of RUN/N the tree.
results_of() {
	results_run=${1%/*}
	check_name "$results_run"
	[ -d "$d_local/runs/$results_run" ] || answer_fail missing "$results_run is not on this node"
	case $1 in
	*/*)
		check_number "${1##*/}"
		results=$d_local/runs/$1/tree
		[ -d "$results" ] && [ ! -L "$results" ] || answer_fail missing "the tree of $1 is not on this node any more"
		;;
	*)
		results=$d_local/runs/$1/outputs
		[ -d "$results" ] && [ ! -L "$results" ] || answer_fail missing "$1 has no results"
		;;
	esac
}

# PATH: 0 when it is below the present directory, and no link leads there.
results_inside() {
	results_at=. results_rest=$1/
	case /$1/ in
	*//* | */./* | */../*) return 1 ;;
	esac
	while [ -n "$results_rest" ]; do
		[ ! -L "$results_at" ] || return 1
		results_at=$results_at/${results_rest%%/*}
		results_rest=${results_rest#*/}
	done
	[ -e "$results_at" ] || [ -L "$results_at" ]
}

# Records of stat, each of lines up to the next that begins with `mark`, which nobody could put into a name.
results_awk='
BEGIN {
	for (i = 1; i < 256; i++) code[sprintf("%c", i)] = sprintf("\\0%03o", i)
	safe = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/:=,@%+~-"
	for (i = 1; i <= length(safe); i++) code[substr(safe, i, 1)] = substr(safe, i, 1)
	begin = mark " "
}
function word(s, i, n, out) {
	if (s == "") return "\\0"
	if (s !~ /[^A-Za-z0-9._\/:=,@%+~-]/) return s
	n = length(s)
	for (i = 1; i <= n; i++) out = out code[substr(s, i, 1)]
	return out
}
function octal(digits, value, i, out) {
	digits = substr(digits, length(digits) - 2)
	for (i = 1; i <= 3; i++) value = value * 16 + index("0123456789abcdef", substr(digits, i, 1)) - 1
	for (i = 0; i < 4; i++) { out = value % 8 out; value = int(value / 8) }
	return out
}
function flush(p, k, ms) {
	if (record == "") return
	split(record, p, " ")
	k = length(p[1]) == 4 ? substr(p[1], 1, 1) : ""
	name = substr(record, length(p[1] p[2] p[3] p[4] p[5] p[6]) + 7)
	if (substr(name, 1, 2) == "./") name = substr(name, 3)
	if (name == "." || k !~ /^[48a]$/) return
	if (k == "4") { print "d", octal(p[1]), word(name) }
	else if (k == "8") {
		ms = "000"
		if (index(p[5], ".")) ms = substr(substr(p[5], index(p[5], ".") + 1) "000", 1, 3)
		print "f", p[2], (p[3] < 0 ? 0 : p[3] ms), octal(p[1]), word(name)
	}
	if (++count > max) { over = 1; exit 3 }
}
substr($0, 1, length(begin)) == begin { flush(); record = substr($0, length(begin) + 1); next }
{ record = record "\n" $0 }
END { if (!over) flush() }
'

# RUN: what the tree of its newest attempt has by now, or what could not be taken from it at its end.
results_collect() {
	case $1 in
	*/*) return ;;
	esac
	newest_of "$1"
	[ "$newest" -gt 0 ] || return 0
	if [ -e "$d_local/runs/$1/$newest/exit" ]; then
		collect_again "$d_local/runs/$1/$newest"
	else
		collect "$d_local/runs/$1/$newest"
	fi || :
}

# RUN PATH PATTERN...: $results_like, an expression of find.
results_like_of() {
	shift 2
	for results_pattern; do
		unword_of "$results_pattern"
		case $plain in
		*/*) results_test=-path ;;
		*) results_test=-name ;;
		esac
		quoted_of "$plain"
		results_like="$results_like${results_like:+ -o }$results_test $quoted"
	done
}

verb_files() {
	results_of "${1-}"
	results_like=
	if [ $# -lt 3 ]; then
		results_collect "$1"
	else
		results_like_of "$@"
	fi
	cd "$results" || answer_fail io "$results cannot be read"
	results_from=.
	if [ "${2:-.}" != . ]; then
		unword_of "$2"
		results_inside "$plain" || return 0
		results_from=./$plain
	fi
	results_mark=$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')
	# %y has blanks: day, time with a fraction, zone.
	if [ "$results_like" ]; then
		eval "set -- $results_like"
		find "$results_from" -type f '(' "$@" ')' -exec stat -c "$results_mark %f %s %Y %y %n" {} + 2>/dev/null
	else
		find "$results_from" ! -type l -exec stat -c "$results_mark %f %s %Y %y %n" {} + 2>/dev/null
	fi | awk -v mark="$results_mark" -v max="$RESULTS_MAX" "$results_awk" ||
		answer_fail usage "$results_run has more than $RESULTS_MAX results"
	[ "$results_like" ] || results_links
}

results_links() {
	find "$results_from" -type l -exec sh -c 'for l; do
		t=$(readlink -n "$l" && echo .) || continue
		printf "%s\n" "$0 $l"
		printf "%s\n" "$0 ${t%.}"
	done' "$results_mark" {} + 2>/dev/null | awk -v mark="$results_mark" -v max="$RESULTS_MAX" "${results_awk%%function flush*}"'
	function flush() {
		if (!begun) return
		if (!is_target) { name = record; is_target = 1; return }
		is_target = 0
		print "l", word(record), word(substr(name, 3))
	}
	substr($0, 1, length(begin)) == begin { flush(); record = substr($0, length(begin) + 1); begun = 1; next }
	{ record = record "\n" $0 }
	END { flush() }'
}

# Lines `want OFFSET LENGTH PATH`. The bytes of each come from one descriptor, whose place tells how many there were:
# where a file was cut meanwhile zeros fill it up to its size, and `short BYTES` says so behind it.
verb_get() {
	results_run=${1-}
	results_wants=''
	results_list=$(mktemp "$d_local/incoming/.get-XXXXXX") || answer_fail io "$d_local cannot be written to"
	while next_line; do
		printf '%s\n' "$line"
	done >"$results_list"
	exec 3<"$results_list"
	rm -f "$results_list"
	answer_raw
	results_of "$results_run"
	cd "$results" || answer_fail io "$results cannot be read"
	while read -r results_verb results_offset results_length results_path <&3; do
		[ "$results_verb" = want ] || answer_fail usage "get does not know $results_verb"
		check_number "$results_offset"
		check_number "$results_length"
		unword_of "$results_path"
		results_send "$results_offset" "$plain" "$results_length"
	done
}

# OFFSET PATH LENGTH
results_send() {
	if ! results_inside "$2" || [ ! -f "./$2" ] || [ -L "./$2" ] || ! command exec 4<"./$2"; then
		echo 'size 0' >&2
		return
	fi
	results_size=$(stat -L -c %s /proc/self/fd/4 3<&-) || results_size=0
	if [ "$results_size" -le "$1" ] || ! results_skip "$1"; then
		echo 'size 0' >&2
	else
		results_left=$((results_size - $1))
		[ "$results_left" -le "$3" ] || results_left=$3
		echo "size $results_left" >&2
		head -c "$results_left" <&4
		results_pad "$1" $(($1 + results_left))
	fi
	exec 4<&-
}

# OFFSET
results_skip() {
	[ "$1" -eq 0 ] || dd bs="$1" skip=1 count=0 <&4 >/dev/null 2>&1
}

# OFFSET END: what is missing between them.
results_pad() {
	results_place=0
	while read -r results_key results_value; do
		[ "$results_key" != pos: ] || results_place=$results_value
	done </proc/self/fdinfo/4
	[ "$results_place" -lt "$2" ] || return 0
	[ "$results_place" -gt "$1" ] || results_place=$1
	head -c $(($2 - results_place)) /dev/zero
	echo "short $((results_place - $1))" >&2
}
