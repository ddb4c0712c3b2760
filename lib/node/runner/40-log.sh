# SPDX-License-Identifier: Apache-2.0
# The program's output.

FOLLOW_LOOK=0.05

verb_log() {
	answer_raw
	attempt_dir_of "$@"
	check_number "${3-}"
	check_number "${4-}"
	log_from=$3 log_marks=$4
	[ -f "$dir/log" ] || answer_fail log "the output of $1 is gone: $dir/log is not there any more"
	judge_of "$dir"
	if [ "${5-}" = follow ] && [ ! -e "$dir/exit" ]; then
		log_follow
	else
		log_once
	fi
	judge_of "$dir"
	[ ! -e "$dir/exit" ] || attempt_line "$1" "$2" >&2
	printf 'end %s %s\n' "$log_size" "$state" >&2
}

# $log_size: as it is.
log_size_of() {
	log_size=$(($(wc -c <"$dir/log")))
}

log_once() {
	log_size_of
	log_guard
	[ ! -f "$dir/marks" ] || tail -c "+$((log_marks + 1))" "$dir/marks" | sed 's/^/m /' >&2
	[ "$log_size" -le "$log_from" ] || tail -c "+$((log_from + 1))" "$dir/log" | head -c $((log_size - log_from))
	kill "$log_i" 2>/dev/null
}

# $log_i: waits for the end of stdin; then nobody may take what is written from here on.
log_guard() {
	proc_start_of "$$"
	log_start=$start
	exec 3<&0
	(
		while read -r log_line; do :; done <&3
		log_abandon 3<&- &
	) >/dev/null 2>&1 &
	log_i=$!
	exec 3<&-
}

log_follow() {
	[ -e "$dir/marks" ] || true >>"$dir/marks"
	proc_start_of "$$"
	log_start=$start
	if tail --pid=1 -s 0.1 -c 0 /dev/null && sed -u p </dev/null; then
		log_by_kernel
	else
		log_by_looking
	fi
	log_size_of
} 4>&2 2>/dev/null

# Bytes come by the kernel's watch of the file, the end by the supervisor's lock.
#	e  waits for the lock
#	i  waits for the end of stdin; the tails look once more when it is no more, and end
log_by_kernel() {
	exec 3<&0
	lock_by exec -s 8 8<"$dir/lock" 3<&- 4>&- >/dev/null &
	log_e=$!
	(
		while read -r log_line; do :; done <&3
		kill "$log_e"
		log_abandon 3<&- &
	) 4>&- >/dev/null &
	log_i=$!
	log_t=
	log_size_of
	if [ "$log_from" -le "$log_size" ]; then
		tail --pid="$log_i" -s "$FOLLOW_LOOK" -c "+$((log_from + 1))" -f "$dir/log" 3<&- 4>&- &
		log_t=$!
	fi
	tail --pid="$log_i" -s "$FOLLOW_LOOK" -c "+$((log_marks + 1))" -f "$dir/marks" 3<&- 4>&- | sed -u 's/^/m /' >&4 3<&- &
	log_m=$!
	exec 3<&-
	wait "$log_e"
	while kill -0 "$log_i" && log_lives; do
		log_pause
	done
	kill "$log_i"
	wait "$log_i"
	[ -z "$log_t" ] || wait "$log_t"
	wait "$log_m"
}

# The lock is free; the program may live on without its supervisor.
log_lives() {
	judge_of "$dir"
	[ ! -e "$dir/exit" ]
}

log_pause() {
	sleep 0.2 </dev/null >/dev/null 3<&- 4>&- || sleep 1 </dev/null >/dev/null 3<&- 4>&-
}

# The client has gone. Whoever writes would wait forever where nobody takes the bytes and nobody closes the pipe:
# containerd, of a pod's exec. Ends them when nothing has moved for 10 s.
log_abandon() {
	log_n=0 log_seen=
	while [ $((log_n += 1)) -le 50 ]; do
		log_pause
		is_alive "$$" "$log_start" || return 0
		[ $((log_n % 5)) = 0 ] || continue
		log_written_of
		[ "$log_written" = "$log_seen" ] || log_n=0
		log_seen=$log_written
	done
	kill -KILL "$$" $log_stuck
}

# $log_stuck: our children; $log_written: bytes that they have written, in words.
log_written_of() {
	log_stuck= log_written=
	for log_line in /proc/[0-9]*; do
		proc_start_of "${log_line#/proc/}" && [ "$parent" = "$$" ] || continue
		log_stuck="$log_stuck ${log_line#/proc/}"
		while read -r log_key log_value; do
			[ "$log_key" != wchar: ] || log_written="$log_written $log_value"
		done <"$log_line/io"
	done
} 2>/dev/null

# With tools that tell of nothing.
log_by_looking() {
	exec 3<&0
	(
		while read -r log_line; do :; done <&3
		log_abandon 3<&- &
	) 4>&- >/dev/null &
	log_i=$!
	exec 3<&-
	log_ended=
	while :; do
		log_send
		[ -z "$log_ended" ] || break
		log_pause
		kill -0 "$log_i" && log_lives || log_ended=1
	done
	kill "$log_i"
	wait "$log_i"
}

log_send() {
	log_size_of
	if [ "$log_size" -gt "$log_from" ]; then
		tail -c "+$((log_from + 1))" "$dir/log" | head -c $((log_size - log_from))
		log_from=$log_size
	fi
	log_size=$(($(wc -c <"$dir/marks")))
	if [ "$log_size" -gt "$log_marks" ]; then
		tail -c "+$((log_marks + 1))" "$dir/marks" | head -c $((log_size - log_marks)) | sed 's/^/m /' >&4
		log_marks=$log_size
	fi
}

# The bytes behind which the last LINES begin. A log that grows meanwhile is asked again.
verb_tail() {
	attempt_dir_of "$@"
	check_number "${3-}"
	tail_offset=0 tail_tries=0
	while [ -f "$dir/log" ]; do
		log_size_of
		if [ $((tail_tries += 1)) -le 5 ]; then
			tail_offset=$((log_size - $(tail -n "$3" "$dir/log" | wc -c)))
			tail_size=$log_size
			log_size_of
			[ "$log_size" != "$tail_size" ] || break
		else
			tail_offset=$((log_size - $(head -c "$log_size" "$dir/log" | tail -n "$3" | wc -c)))
			break
		fi
	done
	printf 'offset %s\n' "$tail_offset"
}
