# SPDX-License-Identifier: Apache-2.0
# What a terminal shows goes to the log of its run, too. DIR/files/.screen is there meanwhile.

# DIR WORDS...: this process becomes what they run.
job_record() {
	record_dir=$1 record_pipe=$1/files/.screen
	shift
	rm -f "$record_pipe"
	if ! mkfifo "$record_pipe"; then
		record_run "$@"
	elif [ ! -t 0 ] || [ ! -t 1 ]; then
		record_pipes "$@"
		rm -f "$record_pipe"
	elif command -v script >/dev/null 2>&1; then
		record_terminal "$@"
	else
		rm -f "$record_pipe"
		log_line "$record_dir" 'what its terminal shows is not kept: this host has no script(1)'
		record_run "$@"
	fi
}

record_run() {
	login_env
	exec "$@"
}

record_pipes() {
	{ (record_run "$@") 2>&1 >&3 3>&- | tee -a "$record_dir/log" >&2; } 3>&1 | tee -a "$record_dir/log"
}

# script(1) runs a line in $SHELL, and writes in the language that is set.
record_terminal() {
	record_line=
	for record_word; do
		quoted_of "$record_word"
		record_line="$record_line $quoted"
	done
	quoted_of "${SHELL-}"
	record_line="${SHELL+SHELL=$quoted; }exec$record_line"
	[ "${SHELL+1}" ] || record_line="unset SHELL; $record_line"
	quoted_of "$d_lc"
	[ "$d_lc_set" ] && record_line="LC_ALL=$quoted; $record_line" || record_line="unset LC_ALL; $record_line"
	proc_start_of $$
	# No children of script(1), which waits for all that it has.
	(record_hangup $$ "$start" </dev/null >/dev/null 2>&1 &) 5<&0
	(record_log </dev/null >>"$record_dir/log" 2>/dev/null &)
	record_run env SHELL=/bin/sh LC_ALL=C script -q -f -c "$record_line" "$record_pipe"
}

# PID START of script(1), which does not care whether its terminal is gone: without it that of what it runs is gone, too.
record_hangup() {
	trap '' HUP INT TERM
	while [ -t 5 ]; do
		is_alive "$1" "$2" || exit 0
		sleep 1
	done
	! is_alive "$1" "$2" || kill -KILL "$1"
}

# Without the lines that script(1) begins and ends with, each of which comes in one piece.
record_log() {
	trap '' HUP INT TERM
	exec 4<"$record_pipe"
	if IFS= read -r record_line <&4; then
		case $record_line in
		'Script started on '*) ;;
		*) printf '%s\n' "$record_line" ;;
		esac
	else
		printf %s "$record_line"
	fi
	while dd bs=65536 count=1 of="$record_dir/.shown" <&4 && [ -s "$record_dir/.shown" ]; do
		record_line=$(tail -n 1 "$record_dir/.shown")
		case $record_line in
		'Script done on '*']') head -c $(($(wc -c <"$record_dir/.shown") - ${#record_line} - 2)) "$record_dir/.shown" ;;
		*) cat "$record_dir/.shown" ;;
		esac
	done
	cat <&4 >/dev/null
	rm -f "$record_dir/.shown" "$record_pipe"
}
