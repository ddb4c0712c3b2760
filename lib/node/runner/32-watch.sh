# SPDX-License-Identifier: Apache-2.0
# Beside the supervisor: when the log grew, what is used, and whether everybody lives. It ends with the attempt.

WATCH_USAGE=5

# DIR. Holds the lock as the supervisor does, and outlives it while the program lives.
watch() {
	watch_dir=$1 watch_n=$((WATCH_USAGE - 1)) watch_last=-1 watch_again= watch_began= watch_c=0 watch_pause=2 watch_collector=
	exec </dev/null >/dev/null
	while :; do
		sleep 1 9>&-
		[ -d "$watch_dir" ] && [ ! -e "$watch_dir/exit" ] || exit 0
		watch_log
		watch_cancel
		watch_program || watch_over
	done
}

# The size is only asked for when the log may have grown: its time says so, to a second at worst.
watch_log() {
	if [ ! "$watch_dir/log" -nt "$watch_dir/marks" ] && [ -z "$watch_again" ]; then
		return
	fi
	mark_log "$watch_dir" && watch_again=1 || watch_again=
}

# DIR: a mark for what has come since the last one; 1: nothing has.
mark_log() {
	mark_size=$(wc -c <"$1/log") || return 1
	mark_size=$((mark_size))
	[ "$mark_size" -ne "${mark_last:--1}" ] || return 1
	mark_last=$mark_size
	log_reserve "$1" "$mark_size"
	now_of
	printf '%s %s\n' "$now" "$mark_size" >>"$1/marks"
} 2>/dev/null

# Whoever asked for the end has begun with it. Unless that one was killed.
watch_cancel() {
	[ -e "$watch_dir/cancel" ] && [ ! -e "$watch_dir/.stuck" ] || return
	[ ! -e "$watch_dir/.stop" ] || flock -s -n 8 8<"$watch_dir/.stop" || return
	launch_away "$watch_dir" stop "$watch_dir" cancel
}

# 1: it lives no more, or was not begun and nobody will.
watch_program() {
	if [ -z "$watch_began" ]; then
		if ! field_of "$watch_dir/state" program; then
			field_of "$watch_dir/state" supervisor
			is_alive "${value%:*}" "${value#*:}"
			return
		fi
		watch_began=$value
		spare_begin "$watch_dir"
	fi
	[ $((watch_n += 1)) -lt "$WATCH_USAGE" ] || {
		watch_n=0
		(usage_sample "$watch_dir") 9>&-
		peers_look "$watch_dir"
	}
	watch_collect
	is_alive "${watch_began%:*}" "${watch_began#*:}"
}

# Event files and the like, first in a moment; where that takes seconds, hardly ever.
watch_collect() {
	if [ "$watch_collector" ] && kill -0 "$watch_collector" 2>/dev/null; then
		watch_pause=$((watch_pause + 100))
		return
	fi
	watch_collector=
	[ $((watch_c += 1)) -ge "$watch_pause" ] || return 0
	watch_c=0
	[ "$watch_pause" -ge 15 ] || watch_pause=$((watch_pause + 2))
	collect "$watch_dir" live 9>&- &
	watch_collector=$!
}

# A supervisor that lives will say how it ended.
watch_over() {
	field_of "$watch_dir/state" supervisor
	is_alive "${value%:*}" "${value#*:}" && return
	# What it had begun is being ended.
	[ ! -e "$watch_dir/.stop" ] || flock -s -n 8 8<"$watch_dir/.stop" || return
	mark_log "$watch_dir"
	[ ! -f "$watch_dir/container" ] || (. "$watch_dir/job" && container_remove "$watch_dir")
	judge_write "$watch_dir"
	exit 0
}
