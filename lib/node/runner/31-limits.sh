# SPDX-License-Identifier: Apache-2.0
# What a program may use, by cgroups of its attempt's own (lib/base/os/os_linux.c has the same), and whom the kernel has
# killed for memory. A run never fails for want of a cgroup.

limits_proc=/proc/self

# $limits_v2 in the mount $limits_top, $limits_memory and $limits_cpu of version 1: where our groups are seen, or empty.
limits_find() {
	limits_v2= limits_top= limits_memory= limits_cpu=
	while IFS=: read -r limits_id limits_list limits_path; do
		case /$limits_path/ in
		*/../*) continue ;;
		esac
		if [ -z "$limits_list" ]; then
			limits_seen cgroup2 '' && limits_v2=$limits_dir limits_top=$limits_point
			continue
		fi
		case ,$limits_list, in
		*,memory,*) limits_seen cgroup memory && limits_memory=$limits_dir ;;
		esac
		case ,$limits_list, in
		*,cpu,*) limits_seen cgroup cpu && limits_cpu=$limits_dir ;;
		esac
	done <"$limits_proc/cgroup"
} 2>/dev/null

# TYPE CONTROLLER: $limits_dir and its mount, of $limits_path. The last mount covers the others.
limits_seen() {
	limits_dir= limits_point=
	while read -r limits_id limits_id limits_id limits_root limits_at limits_rest; do
		case "$limits_rest" in
		*"- $1 "*) ;;
		*) continue ;;
		esac
		[ -z "$2" ] || case ",${limits_rest##* }," in
		*,"$2",*) ;;
		*) continue ;;
		esac
		[ "$limits_root" != / ] || limits_root=
		case $limits_path/ in
		"$limits_root"/*) ;;
		*) continue ;;
		esac
		limits_dir=$limits_at${limits_path#"$limits_root"} limits_point=$limits_at
		limits_dir=${limits_dir%/}
	done <"$limits_proc/mountinfo"
	[ "$limits_dir" ]
}

# DIR: what groups below it can limit of what is wanted, $limits_have: 2 for memory and 1 for CPUs.
limits_below() {
	limits_have=0 limits_words=
	read -r limits_words <"$1/cgroup.subtree_control" || :
	case " $limits_words " in *" memory "*) limits_have=$((limits_have + limits_want / 2 * 2)) ;; esac
	case " $limits_words " in *" cpu "*) limits_have=$((limits_have + limits_want % 2)) ;; esac
}

# DIR: somebody has set a limit, which is not left.
limits_held() {
	for limits_word in memory.max memory.high cpu.max; do
		limits_words=max
		read -r limits_words <"$1/$limits_word"
		case $limits_words in
		max*) ;;
		*) return 0 ;;
		esac
	done
	return 1
}

# $limits_parent: our own group, or the nearest one above where what is wanted can be limited.
limits_choose() {
	limits_parent=$limits_v2 limits_dir=$limits_v2 limits_best=0
	[ "$limits_want" -gt 0 ] && [ -w "$limits_dir/cgroup.procs" ] || return 0
	# One with processes of its own cannot hand it down, but for the root.
	limits_below "$limits_dir"
	if [ "$limits_have" != "$limits_want" ]; then
		printf '+memory' >"$limits_dir/cgroup.subtree_control"
		printf '+cpu' >"$limits_dir/cgroup.subtree_control"
		limits_below "$limits_dir"
	fi
	limits_best=$limits_have
	while [ "$limits_best" != "$limits_want" ] && [ "$limits_dir" != "$limits_top" ] && ! limits_held "$limits_dir"; do
		limits_dir=${limits_dir%/*}
		[ -w "$limits_dir/cgroup.procs" ] || return 0
		limits_below "$limits_dir"
		[ "$limits_have" -le "$limits_best" ] || limits_best=$limits_have limits_parent=$limits_dir
	done
} 2>/dev/null

# PARENT: $limits_group in it, made; what processes that are gone have left there is removed.
limits_make() {
	limits_group=
	[ "$1" ] && [ -w "$1/cgroup.procs" ] || return 1
	for limits_word in "$1"/dlrun-*-*; do
		case ${limits_word##*-} in
		'' | *[!0-9]*) ;;
		*) [ -d "/proc/${limits_word##*-}" ] || rmdir "$limits_word" ;;
		esac
	done
	mkdir -p "$1/$limits_name" || return 1
	limits_group=$1/$limits_name
	limits_groups="$limits_groups $limits_group"
} 2>/dev/null

# FILE TEXT: whether it says afterwards that there is a limit. Not every shell tells that a write failed.
limits_put() {
	[ -e "$1" ] || return 1
	printf '%s' "$2" >"$1"
	limits_words=max
	read -r limits_words <"$1" || :
	case $limits_words in
	'' | max* | -* | 9223372036854*) return 1 ;;
	esac
} 2>/dev/null

# DIR of an attempt, by the process that becomes its program: $limits_groups, $limits_lacks and $limits_oom for its state.
limits_enter() {
	limits_groups= limits_lacks=${container_lacks-} limits_oom= limits_want=0
	limits_bytes=${j_memory_bytes:-0} limits_milli=${j_cpus_milli:-0}
	[ -r "$limits_proc/cgroup" ] || return 0
	limits_find
	limits_name=${1%/*}
	# Its supervisor's pid: the groups are looked at after the program's end.
	limits_name=dlrun-${limits_name##*/}-${1##*/}-$PPID
	# The container's are its tool's.
	[ -z "${j_runtime-}" ] || limits_bytes=0 limits_milli=0
	[ "$limits_bytes" = 0 ] || limits_set_memory
	[ "$limits_milli" = 0 ] || limits_set_cpus
	[ "$limits_want" = 0 ] || limits_set_v2
	for limits_word in $limits_groups; do
		printf '%s' $$ >"$limits_word/cgroup.procs"
	done
	[ -z "$limits_lacks" ] || limits_lacks="${limits_lacks# and }: not enforced, no writable cgroup there has that controller"
	limits_count
} 2>/dev/null

limits_set_memory() {
	if [ -z "$limits_memory" ]; then
		limits_want=2
	elif limits_make "$limits_memory" && limits_put "$limits_group/memory.limit_in_bytes" "$limits_bytes"; then
		limits_put "$limits_group/memory.memsw.limit_in_bytes" "$limits_bytes"
	else
		limits_lacks=' and --memory'
	fi
}

limits_set_cpus() {
	[ "$limits_milli" -ge 10 ] || limits_milli=10
	if [ -z "$limits_cpu" ]; then
		limits_want=$((limits_want + 1))
	elif ! limits_make "$limits_cpu" || ! limits_put "$limits_group/cpu.cfs_period_us" 100000 ||
		! limits_put "$limits_group/cpu.cfs_quota_us" $((limits_milli * 100)); then
		limits_lacks="$limits_lacks and --cpus"
	fi
}

limits_set_v2() {
	limits_choose
	limits_make "$limits_parent"
	case $limits_want in
	[23])
		limits_put "$limits_group/memory.max" "$limits_bytes" || limits_lacks=" and --memory$limits_lacks"
		printf 0 >"$limits_group/memory.swap.max"
		;;
	esac
	case $limits_want in
	[13]) limits_put "$limits_group/cpu.max" "$((limits_milli * 100)) 100000" || limits_lacks="$limits_lacks and --cpus" ;;
	esac
}

# DIR: $limits_kills, how many processes the kernel has killed for memory there; empty: not known.
limits_kills_of() {
	limits_kills=
	for limits_file in "$1/memory.events" "$1/memory.oom_control"; do
		[ -r "$limits_file" ] || continue
		while read -r limits_id limits_words; do
			[ "$limits_id" != oom_kill ] || limits_kills=$limits_words
		done <"$limits_file"
	done
	case $limits_kills in
	*[!0-9]*) limits_kills= ;;
	esac
	[ "$limits_kills" ]
} 2>/dev/null

# Where that is counted, and how many there are by now: COUNT own DIR, or COUNT shared DIR.
limits_count() {
	for limits_dir in $limits_groups; do
		! limits_kills_of "$limits_dir" || limits_oom="$limits_kills own $limits_dir"
	done
	[ -z "$limits_oom" ] || return 0
	limits_dir=$limits_memory
	if [ -z "$limits_dir" ]; then
		limits_dir=$limits_v2
		until [ -z "$limits_dir" ] || [ "$limits_dir" = "$limits_top" ] || limits_kills_of "$limits_dir"; do
			limits_dir=${limits_dir%/*}
		done
	fi
	! limits_kills_of "$limits_dir" || limits_oom="$limits_kills shared $limits_dir"
}

# DIR, when its end is known in $end_text: said beside it, for a program may go on without one of its processes.
limits_judge() {
	field_of "$1/state" oom && [ "$value" ] || return 0
	set -- ${value%%"/"*} "/${value#*/}" "$1"
	limits_kills_of "$3" && [ "$limits_kills" -gt "$1" ] || return 0
	if [ "$2" = shared ]; then
		[ "$end_state" = succeeded ] ||
			end_text="$end_text; meanwhile the kernel killed a process for memory in the cgroup that it shares with others"
		return
	fi
	limits_word="limit ${j_memory-}"
	field_of "$4/state" limits
	case ${j_memory-}:$value in
	:* | *--memory*) limits_word='no limit of its own' ;;
	esac
	if [ "$end_origin" = job ] && [ "$end_code" = 137 ]; then
		end_reason=OutOfMemory end_text="the kernel killed it for memory ($limits_word)"
	else
		end_text="the kernel killed one of its processes for memory ($limits_word), then ${end_text:-the program exited with 0}"
	fi
}

# DIR: $limits_pids, of those in its groups; also of those that nothing else tells.
limits_members() {
	limits_pids=
	field_of "$1/state" groups || return 0
	for limits_word in $value; do
		while read -r limits_id; do
			limits_pids="$limits_pids $limits_id"
		done <"$limits_word/cgroup.procs"
	done
} 2>/dev/null

# DIR: nothing of them is left.
limits_remove() {
	field_of "$1/state" groups || return 0
	for limits_word in $value; do
		case ${limits_word##*/} in
		dlrun-*) rmdir "$limits_word" ;;
		esac
	done
} 2>/dev/null
