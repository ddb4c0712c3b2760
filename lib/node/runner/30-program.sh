# SPDX-License-Identifier: Apache-2.0
# The program: what stands between the reaper and its first instruction.

# DIR. This process becomes the program. It holds the lock until what it is has been written down, so that
# nobody takes it for one that never began.
job_program() {
	dir=$1
	exec </dev/null >>"$dir/log" 2>&1
	unset DLRUN_NODE_ATTEMPT
	. "$dir/login"
	# All that takes names or tools of ours comes before what the user has set.
	. "$dir/job"
	! slot_is_over "$dir" || exit 143
	program_tree "$dir"
	j_command
	program_attempt=$dir
	[ -z "${j_runtime-}" ] || container_start
	now_of
	printf '%s 0\n' "$now" >>"$dir/marks"
	# Of a supervisor that was killed meanwhile nobody is the parent, or somebody who lives for ever.
	field_of "$dir/state" supervisor && is_alive "${value%:*}" "${value#*:}" || exit 143
	proc_start_of "$PPID"
	program_parent=$PPID:$start
	program_claim "$dir"
	proc_start_of $$
	limits_enter "$dir"
	state_set "$dir" state=running text= groups="$limits_groups" limits="$limits_lacks" oom="$limits_oom" supervisor="$program_parent" program="$$:$start" started="$now" || exit 125
	pool_over "$dir"
	program_default_signals
	! program_tool=$(command -v setsid) || program_in="$program_tool $program_in"
	[ ! -e "$dir/cancel" ] || exit 143
	collect_tick "$dir"
	[ "${j_retries:-0}" -gt 0 ] || [ ! -f "$dir/secrets" ] || program_secrets=$(cat "$dir/secrets" && rm -f "$dir/secrets")
	program_env "$dir"
	[ -z "${j_runtime-}" ] || container_restore
	login_env
	exec_program 9>&-
}
program_secrets=

# DIR: where its program finds its tree.
program_tree() {
	j_tree=$1/tree
	[ -z "${j_runtime-}" ] || j_tree=$j_workdir
}

# DIR: the variables and the directory of its program, here.
program_env() {
	set +u
	. "$1/job"
	program_tree "$1"
	j_attempt=${1##*/}
	j_defaults
	j_env
	if [ -f "$1/secrets" ]; then
		. "$1/secrets"
	elif [ "$program_secrets" ]; then
		eval "$program_secrets"
	fi
	program_secrets=
	[ -z "${j_hosts-}" ] || program_hosts "$1"
	default PYTHONUNBUFFERED 1
	program_attempt=$1
	program_run=${1%/*}
	export DLRUN_RUN_ID="$j_run" DLRUN_ATTEMPT="$j_attempt" DLRUN_OUTPUT_DIR="$program_run/outputs" DLRUN_ATTEMPT_DIR="$1/files"
	program_cwd=$1/tree
	case $j_cwd in
	'' | .) ;;
	*) program_cwd=$program_cwd/$j_cwd ;;
	esac
	if ! cd "$program_cwd"; then
		program_why 125 StartFailed "$j_cwd is not in the tree"
		exit 125
	fi
	export PWD="$program_cwd"
	unset OLDPWD
	[ ! -f "$1/setup_env" ] || . "$1/setup_env"
	[ ! -f "$1/gpus" ] || . "$1/gpus"
	set -u
}

# DIR: a line for each of several hosts.
program_hosts() {
	[ -f "$1/hostfile" ] || printf '%s\n' "$j_hosts" >"$1/hostfile"
	default DLRUN_HOSTFILE "$1/hostfile"
}

# K V: only where K is not set.
default() {
	eval "[ \"\${$1+1}\" ]" || export "$1=$2"
}

# j_command's words become $program_words, quoted.
set_command() {
	program_words=
	for program_word; do
		quoted_of "$program_word"
		program_words="$program_words $quoted"
	done
}

# CODE REASON TEXT: why there is no program; a line of it stands in the output.
program_why() {
	printf 'dlrun: %s\n' "$3"
	printf '%s\n%s\n%s\n' "$1" "$2" "$3" >"$program_attempt/.why"
}

# What the program is executed by. Its own session: a signal for its group reaches what it has started, and
# nobody else.
program_in=

# What is ignored here would be ignored there. Shells cannot undo it.
program_default_signals() {
	while read -r program_key program_value; do
		case $program_key in
		SigIgn:)
			case $program_value in
			# 32 and 33 are the C library's.
			0000000[01][08]0000000) ;;
			*[!0]*) ! env --default-signal true 2>/dev/null || program_in="$(command -v env) --default-signal" ;;
			esac
			return
			;;
		esac
	done 2>/dev/null </proc/self/status
}

# Behind `before`, which may have made another PATH; as lib/targets/local/program.c has it.
EXEC_LINES='case $1 in */*) ;; *) command -v -- "$1" >/dev/null || {
printf '\''dlrun: %s: command not found\n'\'' "$1" >&2; exit 127; } ;; esac
exec "$@"'

program_nl=$nl

exec_program() {
	eval "set -- $program_words"
	# An empty trap keeps a shell in front of the program alive, and is not inherited by it.
	program_lines=
	[ -z "${j_signal-}" ] || program_lines="trap : $j_signal$program_nl"
	[ -z "${j_before-}" ] || program_lines=$program_lines$j_before$program_nl
	program_shell=/bin/sh
	[ -z "${j_before-}" ] || ! command -v bash >/dev/null 2>&1 || program_shell=bash
	if [ "${j_shell:-0}" = 1 ]; then
		set -- "$program_shell" -c "$program_lines$1"
	elif [ "${j_before-}" ]; then
		set -- "$program_shell" -c "$program_lines$EXEC_LINES" dlrun "$@"
	else
		program_check "$1"
	fi
	exec $program_in "$@"
}

# Words that are executed as they are: what a person is told when that will fail.
program_check() {
	case $1 in
	*/*)
		if [ ! -e "$1" ]; then
			program_why 127 NotFound "$1: no such file"
			exit 127
		fi
		program_found=$1
		;;
	*)
		program_found=
		program_path=${PATH-/bin:/usr/bin}:
		while [ "$program_path" ]; do
			program_dir=${program_path%%:*}
			program_path=${program_path#*:}
			if [ -x "${program_dir:-.}/$1" ] && [ ! -d "${program_dir:-.}/$1" ]; then
				program_found=$program_dir/$1
				break
			fi
		done
		if [ -z "$program_found" ]; then
			program_why 127 NotFound "$1: command not found"
			exit 127
		fi
		;;
	esac
	if [ -d "$program_found" ] || [ ! -x "$program_found" ]; then
		program_why 126 NotExecutable "$1: Permission denied"
		exit 126
	fi
}
