# SPDX-License-Identifier: Apache-2.0
# After the program.

# DIR CODE SIGNAL
job_finish() {
	dir=$1
	now_of
	finish_ended=$now
	. "$dir/job"
	watcher_of "$dir"
	[ -z "$watcher" ] || kill -KILL "$watcher"
	family_not=$watcher
	finish_judge "$2" "$3"
	limits_judge "$dir"
	limit_end "$dir"
	end_left
	limits_remove "$dir"
	container_remove "$dir"
	gpus_leave "$dir"
	(usage_sample "$dir") 9>&- &
	finish_sample=$!
	mark_log "$dir"
	[ "${end_stuck-}" ] || log_release "$dir" "$mark_size"
	collect "$dir" 9>&-
	wait "$finish_sample"
	finish_next=
	[ "$end_origin" != job ] || [ "$end_state" != failed ] || finish_again
	[ "$end_state" != failed ] || [ "$end_reason" = Interrupted ] || [ "$finish_next" ] || slot_fail "$dir"
	exit_write "$dir" "$end_state" "$end_code" "$end_signal" "$end_origin" "$end_reason" "$end_text" "$finish_next" "$finish_ended"
	finish_pass_on
	slot_leave "$dir" "$finish_next"
	# Behind the end, which it would make wait for the disk.
	spare_begin "$dir"
	pool_kick
	exit 0
}

# What is left behind would hold GPUs, and write where others read. What ends with its program, as a terminal's keeper
# does, needs a moment.
end_left() {
	for end_try in 1 2 3 4 5 6; do
		family_of "$dir"
		[ "$family" ] || return 0
		[ "$end_try" = 6 ] || sleep 0.1 || sleep 1
	done 2>/dev/null
	# A stop that is under way ends them, by the run's signal and with its grace period: a program may still save when
	# the shell in front of it has ended.
	if [ -e "$dir/.stop" ]; then
		flock -s 8 8<"$dir/.stop"
		family_of "$dir"
		[ "$family" ] || return 0
	fi
	note "$dir" 'it has ended and left processes behind: SIGTERM'
	end_family "$dir" family "$LEFT_GRACE" || end_text="$end_text${end_text:+; }$end_stuck"
}

# CODE SIGNAL: $end_state and so on; lib/targets/local/supervisor_end.c has the same words.
finish_judge() {
	end_signal=$2 end_origin=dlrun
	if [ -e "$dir/cancel" ]; then
		end_asked "$dir"
	elif [ -e "$dir/.timeout" ]; then
		duration_of "$j_timeout_ms"
		end_state=failed end_code=124 end_reason=Timeout end_text="it reached its time limit of $duration"
	elif [ -f "$dir/.why" ]; then
		{
			read -r end_code
			read -r end_reason
			IFS= read -r end_text
		} <"$dir/.why"
		end_state=failed
	elif ! field_of "$dir/state" program; then
		end_state=failed end_code=125 end_reason=StartFailed end_text='it could not be started: the end of notes says why'
		free_of "$dir"
		[ "$free" -gt 65536 ] || end_text='it could not be started: the disk is full'
	else
		finish_program "$1" "$2"
	fi
}

finish_program() {
	end_origin=job end_code=$1
	# podman and docker tell it so.
	if [ "${j_runtime-}" ] && [ "$2" = 0 ] && [ "$1" -gt 128 ] && [ "$1" -le 192 ]; then
		set -- "$1" $(($1 - 128))
		end_signal=$2
	fi
	if [ "$2" != 0 ]; then
		signal_name_of "$2"
		end_state=failed end_code=$((128 + $2)) end_reason=Signal end_text="the program was killed by $signal_name"
	elif [ "$1" != 0 ]; then
		end_state=failed end_reason=Error end_text="the program exited with $1"
		[ "$1" != 127 ] || finish_not_found
	else
		end_state=succeeded end_reason=Completed end_text=
	fi
	[ -z "${j_runtime-}" ] || container_judge "$1"
	[ "$1" = 0 ] || finish_full
}

# Said by the shell in front of the program, behind `before`; or by what became the program.
finish_not_found() {
	set_command() {
		finish_name=$1
	}
	j_command
	finish_last=$(tail -n 1 "$dir/log" 2>/dev/null)
	case $finish_last in
	"dlrun: $finish_name: command not found") end_text="$finish_name: command not found" ;;
	*"setsid: "*"$finish_name"*": No such file"* | *"env: "*"$finish_name"*": No such file"*) end_text="$finish_name: its interpreter or loader is missing" ;;
	*) return ;;
	esac
	end_origin=dlrun end_reason=NotFound
}

finish_full() {
	free_of "$dir"
	[ "$free" -gt 65536 ] || end_text="$end_text; the disk is full, its output may end too early"
}

# $signal_name: SIGKILL.
signal_name_of() {
	signal_name=$(kill -l "$1" 2>/dev/null)
	signal_name=SIG${signal_name#SIG}
	[ "$signal_name" != SIG ] || signal_name="SIG$1"
}

# $duration: as lib/base/util/clock.c writes it.
duration_of() {
	duration_s=$(($1 / 1000)) duration_tenths=$((($1 + 50) / 100))
	if [ "$1" -lt 100 ]; then
		duration="$1 ms"
	elif [ "$1" -lt 9950 ]; then
		duration="$((duration_tenths / 10)).$((duration_tenths % 10)) s"
		duration="${duration%.0 s}"
		duration="${duration% s} s"
	elif [ "$duration_s" -lt 60 ]; then
		[ "$duration_s" -ge 10 ] || duration_s=10
		duration="$duration_s s"
	elif [ "$duration_s" -lt 3600 ]; then
		duration_units $((duration_s / 60)) min $((duration_s % 60)) s
	elif [ "$duration_s" -lt 86400 ]; then
		duration_units $((duration_s / 3600)) h $((duration_s / 60 % 60)) min
	else
		duration_units $((duration_s / 86400)) d $((duration_s / 3600 % 24)) h
	fi
}

duration_units() {
	duration="$1 $2"
	[ "$3" = 0 ] || duration="$duration $3 $4"
}

# The next attempt is made, and held by its own supervisor, before this one has ended: at each instant it is
# either this one that has not ended or that one that has begun. It waits for our lock.
finish_again() {
	finish_left=${j_retries:-0}
	[ "$finish_left" -gt 0 ] || return 0
	finish_run=${dir%/*}
	finish_n=$((${dir##*/} + 1))
	finish_new=$finish_run/.new-$$
	[ ! -e "$finish_new" ] || rm -rf "$finish_new"
	mkdir -p "$finish_new/files" && cp "$dir/job" "$dir/plan" "$finish_new/" &&
		printf '%s attempt after %s\n' "$((finish_left - 1))" "${dir##*/}" >"$finish_new/notes" || {
		note "$dir" 'there is no further attempt: the disk is full'
		rm -rf "$finish_new"
		return
	}
	for finish_file in apply secrets; do
		[ ! -f "$dir/$finish_file" ] || cp "$dir/$finish_file" "$finish_new/"
	done
	printf 'j_retries=%s j_attempt=%s\n' $((finish_left - 1)) "$finish_n" >>"$finish_new/job"
	field_of "$dir/state" launch && d_launch=$value
	. "$dir/login"
	finish_launch
	if [ -z "$finish_said" ] && [ "$d_launch" = systemd ] && [ ! -d "$finish_run/$finish_n" ]; then
		# What holds this one holds that as well.
		d_launch=setsid
		finish_launch
	fi
	if [ "$finish_said" ]; then
		finish_next=$finish_n
	else
		note "$dir" "there is no further attempt: $(tail -n 1 "$finish_new/notes")"
	fi
	rm -rf "$finish_new"
}

# With the slot of its study, which the next attempt has from the beginning.
finish_launch() {
	finish_said=$(launch_keeps=7; launch "$finish_run/$finish_n" begin "${finish_run##*/}" "$finish_n" "$finish_new" "$d_launch" "${dir##*/}" 2>>"$finish_new/notes" 9>&-)
}

# One that came when the program had failed already is for the next attempt. Whoever asks for the end writes
# it here, then looks for a next attempt; this is the other order.
finish_pass_on() {
	[ "$finish_next" ] && [ -e "$dir/cancel" ] || return 0
	true >"${dir%/*}/$finish_next/cancel"
	launch_away "${dir%/*}/$finish_next" stop "${dir%/*}/$finish_next" cancel
}
