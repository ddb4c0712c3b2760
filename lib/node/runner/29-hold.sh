# SPDX-License-Identifier: Apache-2.0
# One of several hosts: all is ready, and the program waits for the word that it may begin. Who may rename `held`
# has decided: to `go` (verb_go), or to `late` (the time is over, or it was taken back).

# DIR. Before the program, with its GPUs. 1: it is not to begin; .why says why.
job_hold() {
	dir=$1
	exec </dev/null >/dev/null 2>>"$dir/notes"
	. "$dir/job"
	true >"$dir/held" && state_set "$dir" text='it waits for the other hosts' || exit 1
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
