# SPDX-License-Identifier: Apache-2.0
# The directory in which GPUs are queued for, the same as of lib/host/gpu_dir.c and gpu_ticket.c:
# runs of this machine that dlrun starts without a node queue there as well. Descriptors: 6 is the
# ticket, 5 the queue's lock, 4 and 3 what is looked at. What is started meanwhile keeps neither 6 nor 5.
dgpu_dir='' dgpu_salt='' dgpu_made=0
gpu_shared() {
	[ -d "$1" ] || return 1
	dgpu_mode=$(stat -L -c %a "$1" 2>/dev/null) || return 1
	[ $((0$dgpu_mode & 01777)) -eq $((01777)) ] || return 1
	case $(stat -f -c %t "$1" 2>/dev/null) in
	6969 | 517b | ff534d42 | fe534d42 | c36400 | bd00bd0 | 47504653 | 19830326 | 5346414f | 6b414653 | \
		1021997 | 1161970 | 7461636f | 73757245 | 65735546) return 1 ;;
	esac
}

gpu_machine_dir() {
	for dgpu_at in /tmp /run/lock /dev/shm; do
		! gpu_shared "$dgpu_at" || break
	done
	gpu_shared "$dgpu_at" || dgpu_at=/tmp
	echo "$dgpu_at/dlrun-gpus"
}

# Sets dgpu_dir. 1: dgpu_error says why not.
gpu_dir_open() {
	dgpu_dir=${dgpu_dir:-$(gpu_machine_dir)}
	dgpu_tries=0
	while [ "$dgpu_tries" -lt 20 ]; do
		mkdir -m 700 "$dgpu_dir" 2>/dev/null
		if [ -L "$dgpu_dir" ] || [ ! -d "$dgpu_dir" ]; then
			dgpu_error="cannot use the directory $dgpu_dir: it is no directory"
			return 1
		fi
		dgpu_mode=$(stat -c %a "$dgpu_dir") || dgpu_mode=0
		if [ $((0$dgpu_mode & 01777)) -eq $((01777)) ]; then
			return 0
		fi
		# Another user has just made it and has not opened it yet.
		if [ ! -O "$dgpu_dir" ]; then
			sleep 0.1 2>/dev/null || sleep 1
		elif ! chmod 1777 "$dgpu_dir"; then
			dgpu_error="cannot use the directory $dgpu_dir"
			return 1
		fi
		dgpu_tries=$((dgpu_tries + 1))
	done
	dgpu_error="the directory $dgpu_dir is not open to all users (sudo chmod 1777 $dgpu_dir)"
	return 1
}

gpu_is_own() {
	[ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] && chmod 755 "$1"
} 2>/dev/null

# Sets dgpu_own, where only this user writes, and dgpu_shared, the name that all such begin with, as
# lib/host/gpu_guard.c. 1: dgpu_error says why not.
gpu_own_open() {
	dgpu_shared=${dgpu_dir:-$(gpu_machine_dir)}
	for dgpu_own in "$dgpu_shared.$d_uid" "$dgpu_shared.$d_uid".*; do
		! gpu_is_own "$dgpu_own" || return 0
	done
	for dgpu_own in "$dgpu_shared.$d_uid" "$dgpu_shared.$d_uid.$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')"; do
		mkdir -m 755 "$dgpu_own" 2>/dev/null
		! gpu_is_own "$dgpu_own" || return 0
	done
	dgpu_error="cannot use the directory $dgpu_own"
	return 1
}

# gpu_make NAME TEXT: a file that is complete and locked when it gets its name; open as 8. It is
# changed by its descriptor, because a name may mean another file by then. 2: there is one.
gpu_make() {
	dgpu_made=$((dgpu_made + 1))
	dgpu_new=$dgpu_dir/new.$$.$dgpu_made.${dgpu_salt:=$(od -An -N6 -tx1 /dev/urandom | tr -d ' \n')}
	dgpu_umask=$(umask)
	umask 0
	set -C
	command exec 4>"$dgpu_new"
	dgpu_rc=$?
	set +C
	umask "$dgpu_umask"
	[ "$dgpu_rc" -eq 0 ] || return 1
	# The sticky bit keeps systemd-tmpfiles from taking it away.
	chmod 1666 /proc/self/fd/4
	printf '%s' "$2" >&4 && flock -n 4 && link "$dgpu_new" "$dgpu_dir/$1"
	dgpu_rc=$?
	rm -f "$dgpu_new"
	if [ "$dgpu_rc" -eq 0 ] && [ "$dgpu_dir/$1" -ef /proc/self/fd/4 ]; then
		return 0
	fi
	exec 4>&-
	[ ! -e "$dgpu_dir/$1" ] && [ ! -L "$dgpu_dir/$1" ] && return 1
	return 2
} 2>/dev/null

# gpu_open NAME: open as 8 for reading, made if it is missing. What is no file is refused.
gpu_open() {
	for dgpu_try in 1 2 3 4 5 6 7 8; do
		if [ -L "$dgpu_dir/$1" ] || { [ -e "$dgpu_dir/$1" ] && [ ! -f "$dgpu_dir/$1" ]; }; then
			break
		fi
		if [ -f "$dgpu_dir/$1" ]; then
			if command exec 4<"$dgpu_dir/$1"; then
				return 0
			fi
			[ ! -e "$dgpu_dir/$1" ] || break
		fi
		gpu_make "$1" '' && exec 4>&-
	done
	dgpu_error="cannot use $dgpu_dir/$1"
	return 1
} 2>/dev/null

# gpu_queue SECONDS: lock the queue as 7. 1: somebody holds it for so long.
gpu_queue() {
	for dgpu_try_queue in 1 2 3 4; do
		gpu_open queue || return 2
		exec 5<&4 4<&-
		if ! flock -n 5 6<&- && ! lock_by "timeout $1" 5 6<&- 9<&-; then
			gpu_unqueue
			return 1
		fi
		# Somebody may have removed the file meanwhile: a lock on it excludes nobody.
		if [ "$dgpu_dir/queue" -ef /proc/self/fd/5 ]; then
			return 0
		fi
		gpu_unqueue
	done
	dgpu_error="cannot use $dgpu_dir/queue"
	return 2
}

# By name, because what watches for busybox's timeout keeps a copy for a second.
gpu_unqueue() {
	flock -u 5
	exec 5<&-
} 2>/dev/null

# Wakes who waits in the directory.
gpu_wake() {
	dgpu_made=$((dgpu_made + 1))
	(set -C && : >"$dgpu_dir/wake.$$.$dgpu_made" && rm -f "$dgpu_dir/wake.$$.$dgpu_made") 2>/dev/null
}

# The queue is locked. dgpu_ticket NAME is ours, open as 6.
gpu_ticket_new() {
	dgpu_top=''
	for dgpu_at in "$dgpu_dir"/new.* "$dgpu_dir"/wake.*; do
		[ ! -e "$dgpu_at" ] && [ ! -L "$dgpu_at" ] || rm -f "$dgpu_at"
	done
	for dgpu_at in "$dgpu_dir"/ticket.[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]; do
		dgpu_at=${dgpu_at##*/ticket.}
		# From there on they were written by hand, lest the numbers be used up: no place in the queue.
		case $dgpu_at in
		'['* | 9*) ;;
		*) dgpu_top=$dgpu_at ;;
		esac
	done
	dgpu_top=${dgpu_top#"${dgpu_top%%[!0]*}"}
	dgpu_try=0
	while [ $((dgpu_try += 1)) -le 1000 ]; do
		dgpu_top=$((${dgpu_top:-0} + 1))
		dgpu_ticket=$dgpu_dir/ticket.$(printf '%012d' "$dgpu_top")
		gpu_make "${dgpu_ticket##*/}" "$1"
		case $? in
		0)
			exec 6>&4 4>&-
			return 0 ;;
		1) dgpu_try=$((dgpu_try + 124)) ;;
		esac
	done
	dgpu_error="cannot use $dgpu_ticket"
	return 1
}

gpu_ticket_leave() {
	rm -f "$dgpu_ticket"
	flock -u 6
	exec 6>&-
	gpu_wake
}
