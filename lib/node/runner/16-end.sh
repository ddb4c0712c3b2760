# SPDX-License-Identifier: Apache-2.0
# How an attempt ends, written down. The first that is complete is final.

EXIT_ROOM=4096

# DIR: room for the end on a disk that may be full by then.
exit_make_room() {
	printf "%$((EXIT_ROOM - 1))s\n" '' >"$1/.exit"
}

# DIR STATE CODE SIGNAL ORIGIN REASON TEXT [NEXT [ENDED_MS]]: origin is job or dlrun, or setup; SIGNAL 0: none.
# Who calls holds the lock, or found that nobody does; several may find that at once.
exit_write() {
	[ ! -e "$1/exit" ] && [ -d "$1" ] || return 0
	exit_write_alone "$@" 7<"$1"
}

exit_write_alone() {
	flock 7
	[ ! -e "$1/exit" ] || return 0
	if [ "${9-}" ]; then now=$9; else now_of; fi
	exit_text="state=$2${nl}code=$3${nl}signal=$4${nl}origin=$5${nl}reason=$6${nl}ended=$now$nl"
	[ -z "${8-}" ] || exit_text="${exit_text}next=$8$nl"
	case $7 in
	*"$nl"*) exit_text=${exit_text}text=$(printf %s "$7" | tr '\n' ' ' | cut -c1-2000)$nl ;;
	?*) exit_text=${exit_text}text=$7$nl ;;
	esac
	exit_pad=$((EXIT_ROOM - ${#exit_text} - 9))
	if [ "$exit_pad" -lt 0 ]; then
		exit_text="state=$2${nl}code=$3${nl}signal=$4${nl}origin=$5${nl}reason=$6${nl}ended=$now$nl"
		[ -z "${8-}" ] || exit_text="${exit_text}next=$8$nl"
		exit_pad=$((EXIT_ROOM - ${#exit_text} - 9))
	fi
	exit_tries=0
	until exit_put "$1" && mv -f "$1/.exit" "$1/exit"; do
		[ -d "$1" ] && [ $((exit_tries += 1)) -le 600 ] || return 1
		# A disk that copies what is written over has no room either: some of our own.
		rm -f "$1/.exit" "$1/.state"
		sleep 1
	done 2>/dev/null
	pool_over "$1"
	peers_tell "$1" "$2" "$6" "$now"
	note "$1" "$2, exit $3"
}

# Over the room, not into a new file.
exit_put() {
	[ -f "$1/.exit" ] || exit_make_room "$1" || return 1
	printf "%spad=%${exit_pad}s\nend\n" "$exit_text" '' 1<>"$1/.exit" || return 1
	sync "$1/.exit" || :
}

# DIR REASON TEXT: the attempt ends as failed before its program began (reason: StartFailed, SetupFailed,
# …; the text stands in its output too). Does not come back.
attempt_fail() {
	attempt_origin=dlrun
	[ "$2" != SetupFailed ] || attempt_origin=setup
	# The process that waits may see the cancel before another one ends the attempt for it.
	if [ -e "$1/cancel" ]; then
		end_asked "$1"
		exit_write "$1" "$end_state" "$end_code" 0 "$end_origin" "$end_reason" "$end_text"
		exit 125
	fi
	slot_fail "$1"
	[ -e "$1/exit" ] || log_line "$1" "$3"
	exit_write "$1" failed 125 0 "$attempt_origin" "$2" "$3"
	exit 125
}
