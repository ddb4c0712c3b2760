# SPDX-License-Identifier: Apache-2.0
# The first words of a conversation.

hello_shell() {
	if [ "${BASH_VERSION-}" ]; then
		coded=bash
	elif [ "${KSH_VERSION-}" ]; then
		coded=ksh
	elif [ "${ZSH_VERSION-}" ]; then
		coded=zsh
	else
		{ read -r _ _ _ _ _ hello_path </proc/$$/maps || hello_path=sh; } 2>/dev/null
		word_of "${hello_path##*/}"
	fi
}

hello_machine() {
	{ read -r hello_system </proc/sys/kernel/ostype && read -r hello_machine </proc/sys/kernel/arch; } 2>/dev/null && return
	hello_system=$(uname -s)
	hello_machine=$(uname -m)
}

hello_memory() {
	hello_bytes=0
	read -r _ hello_kib _ </proc/meminfo && hello_bytes=$((hello_kib * 1024))
} 2>/dev/null

hello_cpus() {
	cpus=
	{ read -r hello_list </sys/devices/system/cpu/online; } 2>/dev/null && cpus_of "$hello_list"
	[ "$cpus" ] || cpus=$(getconf _NPROCESSORS_ONLN 2>/dev/null) || cpus=1
}

# KEY VALUE
fact() {
	word_of "$2"
	facts="$facts$1 $coded$nl"
}

hello_kept() {
	hello_n=0
	for hello_name in $(ls -t "$d_root/layers" 2>/dev/null); do
		case $hello_name in
		*[!0-9a-f]*) continue ;;
		esac
		[ $((hello_n += 1)) -le 256 ] || break
		facts="${facts}layer $hello_name$nl"
	done
	for hello_name in "$d_local"/spares/*; do
		[ ! -d "$hello_name" ] || facts="${facts}spare ${hello_name##*/}$nl"
	done
	submit_sweep
	hello_partial= hello_most=0
	for hello_name in "$d_local"/incoming/*.*; do
		[ -f "$hello_name" ] || continue
		hello_size=$(wc -c <"$hello_name") || continue
		hello_name=${hello_name##*/}
		if [ "${hello_name%.*}" != "$hello_partial" ]; then
			hello_partial_fact
			hello_partial=${hello_name%.*} hello_most=0
		fi
		[ "$hello_size" -le "$hello_most" ] || hello_most=$((hello_size))
	done 2>/dev/null
	hello_partial_fact
}

# Several conversations may have taken the same (24-submit.sh): the one that has most.
hello_partial_fact() {
	[ "$hello_most" = 0 ] || facts="${facts}partial $hello_partial $hello_most$nl"
}

hello() {
	now_of
	free_of "$d_local"
	d_free=$free
	launch_of
	hello_machine
	hello_memory
	hello_cpus
	hello_shell
	facts="shell $coded$nl"
	fact host "$d_host"
	{ read -r hello_id </etc/machine-id || hello_id=; } 2>/dev/null
	fact id "$hello_id"
	fact boot "$d_boot"
	fact root "$d_root"
	fact local "$d_local"
	fact home "${HOME-}"
	fact system "$hello_system"
	fact machine "$hello_machine"
	facts="${facts}uid $d_uid${nl}time $now${nl}cpus $cpus${nl}memory $hello_bytes${nl}launch $d_launch$nl"
	[ "$d_free" = "$FREE_UNKNOWN" ] || facts="${facts}free $d_free$nl"
	for hello_name in tar gzip flock setsid tail head sha256sum; do
		command -v "$hello_name" >/dev/null 2>&1 || facts="${facts}missing $hello_name$nl"
	done
	pool_id_of
	[ -z "$pool_id" ] || facts="${facts}pool $pool_id$nl"
	hello_kept
	printf '%s hello 1\n%s.\n' "$d_mark" "$facts"
}

# The next line of the request: $line; 1 at its end. Nothing happens for a client that has gone away.
next_line() {
	IFS= read -r line || exit 0
	[ "$line" != . ]
}

# A terminal would echo what is said, cut long lines and take bytes for signals.
d_tty=
serve_tty() {
	d_tty=$(stty -g) && stty -echo -icanon -isig -ixon -opost min 1 time 0
}

serve() {
	[ ! -t 0 ] || serve_tty
	node_of
	place_of
	hello
	pool_kick
	next_line || answer_fail usage 'no request'
	set -f
	set -- $line
	set +f
	[ $# -gt 0 ] || answer_fail usage 'no request'
	serve_verb=$1
	shift
	case $serve_verb in
	# These have lines of their own, and read up to the "." with next_line.
	submit | exec | shell | get | store) ;;
	state | list | log | tail | cancel | withdraw | go | forget | files | have | data | gpus | machine | describe | usage | gc)
		while next_line; do :; done
		;;
	*) answer_fail usage "the runner does not know $serve_verb" ;;
	esac
	"verb_$serve_verb" "$@"
	answer_done
}

# $1 a name of [a-z0-9-], at most 64 of them.
check_name() {
	case $1 in
	'' | -* | *[!a-z0-9-]*) answer_fail usage "invalid name: $1" ;;
	esac
	[ "${#1}" -le 64 ] || answer_fail usage "invalid name: $1"
}

# A number from 1, or from 0, that arithmetic can take.
check_number() {
	case $1 in
	'' | *[!0-9]* | 0?* | ???????????????????*) answer_fail usage "$1 is no number" ;;
	esac
}

# $dir: of attempt N of RUN, which is there.
attempt_dir_of() {
	check_name "${1-}"
	check_number "${2-}"
	dir=$d_local/runs/$1/$2
	[ -d "$dir" ] || answer_fail missing "attempt $2 of $1 is not on this node"
}
