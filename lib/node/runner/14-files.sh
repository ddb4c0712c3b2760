# SPDX-License-Identifier: Apache-2.0
# Files of an attempt. DIR is its directory, absolute.

# $value: of KEY in a file of key=value lines; empty and 1: there is none.
field_of() {
	value=
	[ -f "$1" ] || return 1
	while IFS= read -r field_line; do
		case $field_line in
		"$2="*)
			value=${field_line#*=}
			return 0
			;;
		esac
	done <"$1"
	return 1
}

field() {
	field_of "$1" "$2" && printf '%s\n' "$value"
}

# DIR KEY=VALUE...: the file `state` with these. One writer at a time: the supervisor's main line.
state_set() {
	state_dir=$1 state_new=
	shift
	if [ -f "$state_dir/state" ]; then
		while IFS= read -r state_line; do
			for state_pair; do
				case $state_pair in
				"${state_line%%=*}="*) continue 2 ;;
				esac
			done
			state_new=$state_new$state_line$nl
		done <"$state_dir/state"
	fi
	for state_pair; do
		case $state_pair in
		*"$nl"*) state_pair=$(printf %s "$state_pair" | tr '\n' ' ') ;;
		esac
		state_new=$state_new$state_pair$nl
	done
	printf %s "$state_new" >"$state_dir/.state" && mv -f "$state_dir/.state" "$state_dir/state"
}

# DIR TEXT [STATE]: what is said while the program has not begun. STATE: queued (as if not given), starting.
wait_as() {
	state_set "$1" "state=${3-queued}" "text=$2"
}

# DIR TEXT: for those who look why something went as it did.
note() {
	printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$2" >>"$1/notes"
} 2>/dev/null

LOG_RESERVE=65536

# DIR SIZE: room behind its log, for what its program says of a disk that is full.
log_reserve() {
	fallocate -n -o "$2" -l "$LOG_RESERVE" "$1/log"
} >/dev/null 2>&1

# DIR SIZE: the room is given back. Nobody writes there any more.
log_release() {
	dd if=/dev/null of="$1/log" bs=1 seek="$2" count=0
} 2>/dev/null

# DIR TEXT: a line of dlrun's in the program's output.
log_line() {
	printf 'dlrun: %s\n' "$2" >>"$1/log"
} 2>/dev/null
