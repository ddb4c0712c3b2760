# SPDX-License-Identifier: Apache-2.0
# Commands beside the program, and terminals.

verb_exec() {
	proc_start_of "$PPID" || :
	exec_parent=$start
	exec_lines "$@"
	exec_enter "$@"
	exec_check
	exec_go
	login_env
	# A terminal hangs up by itself.
	[ -z "$d_tty" ] || exec_program
	exec_watched
}

# In a session of its own, which is hung up when its client has gone, as that of a terminal is.
exec_watched() {
	exec_group=
	! command -v setsid >/dev/null 2>&1 || exec_group=-
	exec 8<&0
	if [ "$exec_alone" ]; then
		exec_child </dev/null 8<&- &
	else
		exec_child <&8 8<&- &
	fi
	exec_pid=$! exec_tail=
	if [ "$exec_alone" ]; then
		exec_until_input >/dev/null 2>&1 &
	else
		exec_reader
		exec_until_output >/dev/null 2>&1 8<&- &
	fi
	exec_watch=$!
	exec 8<&- >/dev/null 2>&1
	exec_status=0
	wait "$exec_pid" || exec_status=$?
	kill "$exec_watch" $exec_tail
	exit "$exec_status"
}

exec_child() {
	program_default_signals
	[ -z "$exec_group" ] || program_in="setsid $program_in"
	exec_program
}

# Its stdin tells that the client lives.
exec_until_input() {
	while read -r exec_line; do :; done <&8
	kill -HUP "$exec_group$exec_pid"
}

# Who reads the output: a tail that follows ends when nobody does. Where none can tell, whoever began this lives
# as long as the connection.
exec_reader() {
	case $(tail --version 2>/dev/null) in
	*'GNU coreutils'*)
		tail --pid="$exec_pid" -f /dev/null 2>/dev/null 8<&- &
		exec_tail=$!
		;;
	esac
}

exec_until_output() {
	while exec_has_reader; do
		sleep 1 || return 0
	done
	kill -HUP "$exec_group$exec_pid"
}

exec_has_reader() {
	if [ "$exec_tail" ]; then
		kill -0 "$exec_tail"
	else
		[ -z "$exec_parent" ] || is_alive "$PPID" "$exec_parent"
	fi
}

# Not beside any run (73-store.sh).
verb_store() {
	exec_quoted=
	while next_line; do
		unword_of "${line#word }"
		quoted_of "$plain"
		exec_quoted="$exec_quoted $quoted"
	done
	printf '%s go\n' "$d_mark"
	umask "$d_umask"
	eval "store$exec_quoted"
	exit
}

# The terminal of a run whose program waits for that. Where nothing keeps terminals, its end is the command's.
verb_shell() {
	exec_lines "$@"
	field_of "$dir/state" program && is_alive "${value%:*}" "${value#*:}" || answer_fail gone "$1 does not run"
	shell_keep= shell_file= shell_name=dlrun-$1-$2 shell_dir=$dir
	[ ! -t 0 ] || shell_keeper "$1"
	[ -z "$shell_keep" ] || [ "$d_launch" != systemd ] || shell_scope
	shell_record=
	if [ -t 0 ] && [ -z "$shell_keep" ]; then
		log_line "$dir" 'what its terminal shows is not kept: this host has neither tmux nor screen'
	else
		part_of record "$dir"
		shell_record=" $part_words"
	fi
	exec_enter "$@"
	program_words=$shell_record$program_words
	if [ -z "$shell_keep" ]; then
		exec_go
		login_env
		exec_program
	fi
	shell_term
	# A single word would be a line for somebody's shell.
	program_words=" $shell_keep$program_words"
	unset TMUX STY
	[ -z "$shell_file" ] || shell_enter_scope
	exec_go
	login_env
	shell_modes=$(stty -g 2>/dev/null) shell_status=0
	# This shell would say that it was ended with the run; dash puts itself in its place where nothing follows.
	{ (exec_program 2>&3 3>&-) || shell_status=$?; } 3>&2 2>/dev/null
	# One that was killed leaves the terminal as it was: raw, and often with its other screen.
	[ -z "$shell_modes" ] || stty "$shell_modes" 2>/dev/null
	[ "$shell_status" -le 128 ] || printf '\033[?1049l\033[?25h\033[0m'
	shell_show
}

# What was in the kept terminal is gone with it: shown in this one, unless it is only left. Who still writes it down
# needs a moment, and may have been killed.
shell_show() {
	# As a process of the run it would end with it.
	unset DLRUN_ATTEMPT_DIR
	shell_tries=0
	while [ -e "$shell_dir/files/.screen" ] && [ $((shell_tries += 1)) -le 100 ]; do
		! shell_is_kept || exit 0
		sleep 0.1 || sleep 1
	done >/dev/null 2>&1
	tail -n 1000 "$shell_dir/log" 2>/dev/null
	exit 0
}

# RUN
shell_keeper() {
	if command -v tmux >/dev/null 2>&1; then
		shell_keep="tmux -u -L $shell_name new-session -A -s $1"
	elif command -v screen >/dev/null 2>&1; then
		shell_keep="screen -D -RR -S $shell_name"
	fi
}

# screen(1) says by 10 and more how many terminals of that name there are.
shell_is_kept() {
	case $shell_keep in
	tmux*) tmux -L "$shell_name" has-session ;;
	*)
		shell_status=0
		screen -q -ls "$shell_name" || shell_status=$?
		[ "$shell_status" -ge 10 ]
		;;
	esac
}

# It outlives the login in a scope of its own, if it can have one.
shell_scope() {
	shell_in="env XDG_RUNTIME_DIR=/run/user/$d_uid systemd-run --user --scope --quiet --collect --"
	$shell_in true </dev/null >/dev/null 2>&1 || return 0
	shell_file=$dir/.shell-$$
	quoted_of "$shell_file"
	shell_in="$shell_in /bin/sh $quoted"
}

# By a file: systemd-run takes what looks so for variables in the words that it is given. It needs its own
# XDG_RUNTIME_DIR, and the program the user's.
shell_enter_scope() {
	shell_back=${XDG_RUNTIME_DIR+$(quoted_of "$XDG_RUNTIME_DIR" && printf 'export XDG_RUNTIME_DIR=%s' "$quoted")}
	printf 'rm -f -- "$0"\n%s\nexec%s\n' "$shell_back" "$program_words" >"$shell_file" && program_words=" $shell_in"
}

# Terminals that this node has not heard of.
shell_term() {
	! command -v infocmp >/dev/null 2>&1 || infocmp >/dev/null 2>&1 || export TERM=xterm
}

# RUN N: $dir and the lines of the request.
exec_lines() {
	exec_quoted= exec_alone=
	while next_line; do
		case $line in
		'word '*)
			unword_of "${line#word }"
			quoted_of "$plain"
			exec_quoted="$exec_quoted $quoted"
			;;
		alone) exec_alone=1 ;;
		*) answer_fail usage "a command is said word by word" ;;
		esac
	done
	attempt_dir_of "$@"
	[ -d "$dir/tree" ] || answer_fail gone "the tree of $1 is not there"
}

# RUN N: this process is where the program is, with what its user has set: names of ours may be theirs from now on.
exec_enter() {
	program_why() {
		case $1 in
		125) answer_fail gone "$3" ;;
		126) answer_fail noexec "$3" ;;
		*) answer_fail program "$3" ;;
		esac
	}
	set +u
	. "$dir/job"
	set -u
	program_words=$exec_quoted
	if [ "${j_runtime-}" ]; then
		j_signal= j_shell=0
		container_beside "$1"
		return
	fi
	program_env "$dir"
	j_signal= j_shell=0
	program_words=$exec_quoted
	[ "$exec_quoted" ] || program_words=' "${SHELL:-/bin/sh}"'
}

# Lines before it may make another PATH: then it is seen behind them.
exec_check() {
	[ -z "${j_before-}" ] || return 0
	eval "set -- $program_words"
	program_check "$1"
}

# The terminal as it was; then all is the command's.
exec_go() {
	# What cannot be executed says so where a person sees it.
	program_why() {
		printf 'dlrun: %s\n' "$3" >&2
	}
	[ -z "$d_tty" ] || stty "$d_tty"
	printf '%s go\n' "$d_mark"
}
