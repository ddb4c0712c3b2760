# SPDX-License-Identifier: Apache-2.0
# Whether the program begins is decided by a file, once: who renames it has decided.
#	.begin    nothing has begun
#	begun     the program of one host begins (program_claim)
#	held      one of several hosts: all is ready, and the program waits for the word that it may begin
#	go        it has it (verb_go)
#	late      it never begins: the time of `held` was over, or it was taken back (verb_withdraw, drop)

# DIR. Before the program, with its GPUs. 1: it is not to begin; .why says why.
job_hold() {
	dir=$1
	exec </dev/null >/dev/null 2>>"$dir/notes"
	. "$dir/job"
	mv "$dir/.begin" "$dir/held"
	[ -e "$dir/held" ] || [ -e "$dir/go" ] || [ -e "$dir/late" ] || exit 1
	state_set "$dir" text='it waits for the other hosts' || exit 1
	ticks_of
	hold_end=$((ticks + j_hold_ms / 10))
	until [ -e "$dir/go" ]; do
		[ ! -e "$dir/cancel" ] && [ ! -e "$dir/exit" ] || exit 1
		ticks_of
		if [ "$ticks" -ge "$hold_end" ]; then
			mv "$dir/held" "$dir/late" || continue
		fi
		if [ -e "$dir/late" ]; then
			printf '125\nInterrupted\n%s\n' 'it was not told to begin in time: nothing has run here' >"$dir/.why"
			exit 1
		fi
		sleep 0.1 || sleep 1
	done 2>/dev/null
}

# Of a program that is about to begin. Does not come back when it is not to.
program_claim() {
	[ ! -e "$1/go" ] && ! mv "$1/.begin" "$1/begun" && [ ! -e "$1/begun" ] || return 0
	if [ -e "$1/late" ]; then
		printf '125\nInterrupted\n%s\n' "$HOLD_BACK" >"$1/.why"
	else
		printf '125\nStartFailed\n%s\n' "$1 cannot be written to" >"$1/.why"
	fi
	exit 143
} 2>/dev/null
HOLD_BACK='it was taken back before it had begun'
HOLD_ABSENT='it was taken back before it had come'

# RUN N: an attempt that has not begun never will; what has begun, or ended, stays as it is. One that waits at each of
# several hosts is taken back at the first of them first, which is told to go before the others.
verb_withdraw() {
	check_name "${1-}"
	check_number "${2-}"
	if pool_end "$1" "$2" failed 125 Interrupted "$HOLD_BACK"; then
		withdraw_taken=no
		# Somebody else may have ended it otherwise.
		! pool_claimed || [ "$pool_start" != Interrupted ] || withdraw_taken=yes
		printf 'withdrawn %s\n' "$withdraw_taken"
		return
	fi
	cancel_absent "$@"
	attempt_dir_of "$@"
	judge_of "$dir"
	withdraw_taken=no
	if [ -e "$dir/exit" ]; then
		! field_of "$dir/exit" reason || [ "$value" != Interrupted ] || withdraw_taken=yes
		! field_of "$dir/exit" text || [ "$value" != "$HOLD_ABSENT" ] || withdraw_taken=absent
	elif mv "$dir/.begin" "$dir/late" || mv "$dir/held" "$dir/late" || [ -e "$dir/late" ]; then
		[ -e "$dir/cancel" ] || printf 'how=drop\n' >"$dir/cancel" || mv -f "$dir/.cancel" "$dir/cancel" ||
			answer_fail disk "$dir cannot be written to"
		launch_away "$dir" stop "$dir" cancel
		withdraw_taken=yes
	fi 2>/dev/null
	printf 'withdrawn %s\n' "$withdraw_taken"
}

# It begins, has begun, or the answer says that it never will.
verb_go() {
	attempt_dir_of "$@"
	[ ! -e "$dir/go" ] || return 0
	judge_of "$dir"
	if [ -e "$dir/exit" ]; then
		field_of "$dir/exit" text
		answer_fail gone "${value:-it has ended}"
	fi
	mv "$dir/held" "$dir/go" 2>/dev/null || [ -e "$dir/go" ] || answer_fail gone 'it is not ready to begin'
}
