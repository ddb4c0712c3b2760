# SPDX-License-Identifier: Apache-2.0
# Ending what runs: on request, by the time limit, and what is left behind.

LEFT_GRACE=200
KILL_PATIENCE=3000

# DIR HOW HUNDREDTHS [GROUP [SIGNAL]]: SIGNAL (TERM), then KILL until nobody is left. HOW: family or workers. GROUP: the
# program's. 1 and $end_stuck: who cannot be ended, and why. (kill -s and -- are not known everywhere.)
end_family() {
	end_grace=$3 end_stuck=
	"$2_of" "$1"
	[ "$family" ] || return 0
	ticks_of
	end_since=$ticks end_kill= end_pause=0.02
	end_signal "$1" "${4-}" "${5:-TERM}"
	kill -CONT $family
	while :; do
		sleep "$end_pause" || sleep 1
		"$2_of" "$1"
		[ "$family" ] || return 0
		ticks_of
		[ $((ticks - end_since)) -ge "$end_grace" ] || continue
		[ "$end_kill" ] || note "$1" SIGKILL
		end_kill=1 end_pause=0.1
		kill -KILL $family
		! end_is_stuck "$1" || return 1
	done
} 2>/dev/null

# DIR GROUP SIGNAL: to $family. A handler of TERM may be called twice; another signal comes once, since the second
# KeyboardInterrupt would end what the first one began.
end_signal() {
	if [ "$3" = TERM ]; then
		[ -z "$2" ] || kill -TERM "-$2"
		kill -TERM $family
	elif [ -f "$1/container" ]; then
		container_signal "$1" "$3"
	else
		kill "-$3" $family
	fi
}

# DIR: whether those of $family will not end.
end_is_stuck() {
	for end_pid in $family; do
		kill -0 "$end_pid" || continue
		[ $((ticks - end_since)) -ge $((end_grace + KILL_PATIENCE)) ] || return 1
		end_stuck=' does not end by SIGKILL: it waits for a device or a file system'
		break
	done
	read -r end_name <"/proc/$end_pid/comm" || return 1
	[ "$end_stuck" ] || end_stuck=" cannot be signalled: it belongs to $(stat -c %U "/proc/$end_pid")"
	end_stuck="process $end_pid ($end_name)$end_stuck"
	note "$1" "$end_stuck"
}

# $watcher: its pid, or empty.
watcher_of() {
	watcher=
	field_of "$1/state" watcher && is_alive "${value%:*}" "${value#*:}" && watcher=${value%:*}
}

# RUN N [HOW]: peer (another rank has ended), drop (only one that was not told to begin).
verb_cancel() {
	[ "${3-}" != drop ] || cancel_absent "$@"
	check_name "${1-}"
	check_number "${2-}"
	! pool_end "$1" "$2" cancelled 143 Cancelled 'it was cancelled before it had begun' || return 0
	attempt_dir_of "$@"
	case ${3-} in
	'') ;;
	peer | role | drop)
		cancel_for "$3"
		return
		;;
	*) answer_fail usage "an end by $3" ;;
	esac
	# One that failed already may have a next one: whoever goes on to that looks here afterwards.
	while [ -d "$dir" ]; do
		[ -e "$dir/exit" ] || true >"$dir/cancel" || mv -f "$dir/.cancel" "$dir/cancel" || answer_fail disk "$dir cannot be written to"
		if [ ! -e "$dir/exit" ]; then
			launch_away "$dir" stop "$dir" cancel
			return
		fi
		field_of "$dir/exit" next || return 0
		dir=$d_local/runs/$1/$value
	done
}

# RUN N: one that may be on its way yet has ended before it came.
cancel_absent() {
	check_name "$1"
	check_number "$2"
	mkdir -p "$d_local/runs/$1" || answer_fail io "$d_local/runs cannot be written to"
	mkdir "$d_local/runs/$1/$2" 2>/dev/null || return 0
	exit_write "$d_local/runs/$1/$2" failed 125 0 dlrun Interrupted "$HOLD_ABSENT"
}

# HOW, for an attempt of several hosts, which has no next one. What its user said before counts.
cancel_for() {
	[ ! -e "$dir/exit" ] || return 0
	[ "$1" != drop ] || mv "$dir/held" "$dir/late" 2>/dev/null || [ ! -e "$dir/go" ] || answer_fail busy 'it has begun'
	[ -e "$dir/cancel" ] || printf 'how=%s\n' "$1" >"$dir/cancel" || answer_fail disk "$dir cannot be written to"
	launch_away "$dir" stop "$dir" cancel
}

# DIR: $end_state and so on of an attempt whose end was asked for.
end_asked() {
	end_state=cancelled end_code=143 end_origin=dlrun end_reason=Cancelled end_text='it was cancelled'
	field_of "$1/cancel" how || return 0
	case $value in
	study)
		field_of "$1/cancel" failed
		end_text="cancelled: $value failed (--fail-fast)"
		;;
	peer) end_reason=PeerEnded end_text='another rank had ended' ;;
	role) end_reason=RoleEnded end_text='the role that the run ends with had ended' ;;
	drop) end_state=failed end_code=125 end_reason=Interrupted end_text=$HOLD_BACK ;;
	esac
}

# DIR WHY: cancel or timeout. One at a time; a second one sees that it is done.
job_stop() {
	dir=$1
	exec 8>"$dir/.stop"
	flock -n 8 || exit 0
	[ ! -e "$dir/exit" ] || exit 0
	rm -f "$dir/.stuck"
	. "$dir/job"
	watcher_of "$dir"
	family_not=$watcher
	if field_of "$dir/state" program; then
		stop_program "$2"
	else
		stop_before "$2"
	fi
}

stop_program() {
	is_alive "${value%:*}" "${value#*:}" && stop_group=${value%:*} || stop_group=
	if [ "$1" = timeout ]; then
		# It had ended in time.
		[ "$stop_group" ] || exit 0
		true >"$dir/.timeout"
		note "$dir" 'the time limit is reached'
	else
		note "$dir" cancelled
	fi
	stop_end family "$((${j_grace_ms:-10000} / 10))" "${j_stop_signal-}"
}

# Its supervisor first, so that nothing begins any more; then what it had begun.
stop_before() {
	field_of "$dir/state" supervisor && is_alive "${value%:*}" "${value#*:}" && kill -KILL "${value%:*}"
	note "$dir" cancelled
	stop_group=
	stop_end workers "$((${j_grace_ms:-10000} / 10))"
}

stop_end() {
	end_family "$dir" "$1" "$2" "$stop_group" "${3-}" 8>&- || state_set "$dir" "text=$end_stuck"
	[ -z "$end_stuck" ] || true >"$dir/.stuck"
	container_stop "$dir" "$stop_group" 8>&-
	# Who waits for it writes the end. If that was killed, nobody does.
	field_of "$dir/state" supervisor
	is_alive "${value%:*}" "${value#*:}" && return
	judge_write "$dir"
}

# DIR: beside the program, since it began; in a session of its own with what it starts.
job_limited() {
	dir=$1
	. "$dir/job"
	proc_start_of $$
	printf 'pid=%s:%s\n' $$ "$start" >"$dir/.limit"
	# Whoever ends it may have looked for that before.
	[ ! -e "$dir/.unlimited" ] || exit 0
	limit_left=$j_timeout_ms
	if [ "${j_signal-}" ] && [ "${j_signal_before_ms:-0}" -gt 0 ]; then
		sleep_ms $((limit_left - j_signal_before_ms))
		limit_left=$j_signal_before_ms
		if field_of "$dir/state" program && is_alive "${value%:*}" "${value#*:}"; then
			note "$dir" "the time limit is near: SIG$j_signal"
			if [ "${j_runtime-}" ]; then
				container_signal "$dir" "$j_signal"
			else
				kill "-$j_signal" "-${value%:*}"
			fi
		fi
	fi
	sleep_ms "$limit_left"
	[ -e "$dir/exit" ] || launch_away "$dir" stop "$dir" timeout
}

# DIR: it would sleep on, and hold GPUs.
limit_end() {
	true >"$1/.unlimited"
	limit_pid=$(field "$1/.limit" pid) && is_alive "${limit_pid%:*}" "${limit_pid#*:}" && judge_boot "$1" || return 0
	kill -KILL "-${limit_pid%:*}" || kill -KILL "${limit_pid%:*}"
} 2>/dev/null

sleep_ms() {
	[ "$1" -gt 0 ] || return 0
	sleep "$(($1 / 1000)).$(printf %03d $(($1 % 1000)))" 2>/dev/null || sleep $((($1 + 999) / 1000))
}
