# SPDX-License-Identifier: Apache-2.0
# Processes that outlive the login.

# $1 in quotes for a shell.
quoted_of() {
	quoted= quoted_rest=$1
	while :; do
		case $quoted_rest in
		*\'*) ;;
		*) break ;;
		esac
		quoted=$quoted${quoted_rest%%\'*}"'\\''"
		quoted_rest=${quoted_rest#*\'}
	done
	quoted="'$quoted$quoted_rest'"
}

# WORD DIR: $part_words, quoted words that run job_WORD DIR, for more of them.
part_of() {
	part_words=sh
	for part_word in "$d_runner" "$d_root" - "$d_local" "$@"; do
		quoted_of "$part_word"
		part_words="$part_words $quoted"
	done
}

# Descriptors that dash cannot name, of locks that are another attempt's.
CLOSE_THESE='for d in $1; do eval "exec $d<&-"; done
shift
exec "$@"'

# DIR WORD ARGS...: job_WORD in a session of its own, in the login's environment; it is found by DIR. In a ( ) or
# $( ): its parent ends at once, for the second setsid finds itself at the head of a group and forks. `&` would do
# that too, but what it starts ignores SIGINT for ever.
launch() {
	login_env
	# The slash ends it: 1 is not 10.
	export DLRUN_NODE_ATTEMPT="$1/"
	shift
	set -- sh "$d_runner" "$d_root" - "$d_local" "$@"
	case ${d_launch-} in
	systemd)
		export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/run/user/$d_uid}"
		set -- systemd-run --user --scope --quiet --collect -- "$@"
		;;
	esac
	if [ "${d_locks-}" ] && command -v bash >/dev/null 2>&1; then
		set -- bash -c "$CLOSE_THESE" bash "$d_locks" "$@"
	fi
	cd /
	exec </dev/null 3>&- 4>&- 5>&- 6>&- 8>&- 9>&-
	[ "${launch_keeps-}" ] || exec 7>&-
	if command -v setsid >/dev/null 2>&1; then
		exec setsid setsid "$@"
	fi
	trap '' HUP
	"$@" &
}

# The same, and nobody listens.
launch_away() {
	(launch "$@" >/dev/null 2>>"$1/notes")
}
