# SPDX-License-Identifier: Apache-2.0
# Slots of a study on this node, as lib/targets/local/study_slot.h has it: of its members at most j_parallel run at a
# time, the lowest index first. LOCAL/studies/ID with
#	slot.K           locked by who has it: the supervisor and its program, as descriptor 7
#	wait.IIIIII.NNN  locked (6) as long as attempt N of member I waits and its supervisor lives
#	bell             a FIFO, which the first of the line reads (4), and who gives a slot back writes to
#	failed           with j_fail_fast: "RUN N", which failed last
# A slot is taken before the tree, the setup and the GPUs, and kept by retries. Nobody who waits for one has any of
# those, so that no circle of waiting members can arise.

# $slot_dir. 1: no member of a study.
slot_dir_of() {
	case ${j_study-} in '' | *[!a-z0-9-]*) return 1 ;; esac
	slot_dir=$d_local/studies/$j_study
}

# DIR. Descriptor 7 is its slot, where there is a limit. Does not come back if it is not to begin.
slot_enter() {
	slot_dir_of || return 0
	# The attempt before has handed it over.
	! slot_is_held || return 0
	slot_check "$1"
	[ "${j_parallel:-0}" -gt 0 ] || return 0
	slot_ticket=$slot_dir/wait.$(printf %06d.%03d "$j_index" "${1##*/}") slot_bell= slot_said=
	until slot_is_first "$1" && slot_take "$1"; do
		slot_wait "$1"
		begin_check
		slot_check "$1"
	done
	rm -f "$slot_ticket"
	exec 4<&- 6>&-
	wait_as "$1" '' starting
}

slot_is_held() {
	[ -e /proc/self/fd/7 ] || return 1
	for slot_at in "$slot_dir"/slot.*; do
		[ ! "$slot_at" -ef /proc/self/fd/7 ] || return 0
	done
	return 1
}

# A ticket is locked when it gets its name.
slot_join() {
	mkdir -p "$slot_dir" && command exec 6>"$slot_dir/.new-$$" && flock 6 && mv -f "$slot_dir/.new-$$" "$slot_ticket" ||
		attempt_fail "$1" StartFailed "$slot_dir cannot be written to"
}

# DIR: whether nobody who lives is before it; else $slot_before, the last ticket of $slot_n.
slot_is_first() {
	while :; do
		# Somebody may have removed it.
		[ "$slot_ticket" -ef /proc/self/fd/6 ] || slot_join "$1"
		slot_before= slot_n=0
		for slot_at in "$slot_dir"/wait.*; do
			[ "$slot_at" != "$slot_ticket" ] || break
			slot_before=$slot_at slot_n=$((slot_n + 1))
		done
		[ "$slot_before" ] || return 0
		! ticket_lives "$slot_before" || return 1
	done
} 2>/dev/null

# DIR. The bell is heard from before the look, so that none is missed.
slot_take() {
	if [ -z "$slot_bell" ]; then
		mkfifo "$slot_dir/bell" 2>/dev/null
		slot_bell=none
		[ ! -p "$slot_dir/bell" ] || ! command exec 4<>"$slot_dir/bell" || slot_bell=heard
	fi
	slot_k=0
	while [ "$slot_k" -lt "$j_parallel" ]; do
		command exec 7>>"$slot_dir/slot.$slot_k" || attempt_fail "$1" StartFailed "$slot_dir cannot be written to"
		! flock -n 7 || return 0
		exec 7>&-
		slot_k=$((slot_k + 1))
	done
	return 1
}

# DIR: until something may have changed. Each waits for the one before it, so that an end wakes one; the first one
# looks now and then besides, for a killed program rings no bell.
slot_wait() {
	slot_why="waits for a place in study $j_study: $j_parallel run"
	[ "$j_parallel" != 1 ] || slot_why=${slot_why}s
	[ "$slot_n" = 0 ] || slot_why="$slot_why, $slot_n before it"
	[ "$slot_why" = "$slot_said" ] || wait_as "$1" "$slot_why"
	slot_said=$slot_why
	if [ "$slot_n" -gt 0 ]; then
		{ lock_by "timeout $((10 + slot_n / 2))" -s 3 6<&- 9<&-; } 3<"$slot_before"
	elif [ "$slot_bell" = heard ]; then
		timeout $((1 + j_parallel / 16)) dd bs=64 count=1 <&4 >/dev/null 6<&- 9<&-
	else
		(exit 127)
	fi
	# There is no timeout(1), or no bell.
	[ $? -ne 127 ] || sleep 1 6<&- 9<&-
} 2>/dev/null

# DIR NEXT: it has ended. Free, whoever has the descriptor, unless the attempt NEXT has it now.
slot_leave() {
	slot_dir_of && slot_is_held || return 0
	if [ -z "$2" ]; then
		flock -u 7
		[ ! -p "$slot_dir/bell" ] || printf x 1<>"$slot_dir/bell"
	fi
	exec 7>&-
} 2>/dev/null

# DIR: it has failed, and is not repeated.
slot_fail() {
	[ "${j_fail_fast:-0}" = 1 ] && slot_dir_of || return 0
	mkdir -p "$slot_dir" && printf '%s %s\n' "$j_run" "${1##*/}" >"$slot_dir/.failed-$$" &&
		mv -f "$slot_dir/.failed-$$" "$slot_dir/failed"
} 2>/dev/null

# DIR: whether it is not to begin because $slot_run has failed; `cancel` says so then. An attempt that was made
# afterwards begins, and so do all when that run was restarted here, or removed.
slot_is_over() {
	[ "${j_fail_fast:-0}" = 1 ] && slot_dir_of && read -r slot_run slot_at <"$slot_dir/failed" || return 1
	case $slot_at in '' | *[!0-9]*) return 1 ;; esac
	case $slot_run in '' | *[!a-z0-9-]*) return 1 ;; esac
	[ -d "$d_local/runs/$slot_run/$slot_at" ] && [ ! -d "$d_local/runs/$slot_run/$((slot_at + 1))" ] || return 1
	[ "${1##*/}" = 1 ] || [ ! "$1/job" -nt "$slot_dir/failed" ] || return 1
	[ -e "$1/cancel" ] || printf 'how=study\nfailed=%s\n' "$slot_run" >"$1/cancel"
} 2>/dev/null

slot_check() {
	slot_is_over "$1" || return 0
	end_asked "$1"
	exit_write "$1" "$end_state" "$end_code" 0 "$end_origin" "$end_reason" "$end_text"
	exit 0
}
