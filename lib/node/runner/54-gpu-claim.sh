# SPDX-License-Identifier: Apache-2.0
# The queue for GPUs, as lib/host/gpu_claim.c: first come, first served; no ticket takes a GPU that
# an earlier living one may take. Sets of GPUs are words between blanks: " ID ID ".

# gpu_match "WORDS": the ids that they allow (indexes, ids, beginnings of GPU-UUIDs; none: all).
gpu_match() {
	dgpu_set=' '
	while read -r dgpu_vendor dgpu_index dgpu_id dgpu_rest; do
		[ -n "$dgpu_id" ] || continue
		dgpu_named=$1
		[ -n "$dgpu_named" ] || dgpu_set="$dgpu_set$dgpu_id "
		while [ -n "$dgpu_named" ]; do
			dgpu_word=${dgpu_named%%"$nl"*}
			dgpu_named=${dgpu_named#"$dgpu_word"}
			dgpu_named=${dgpu_named#"$nl"}
			case $dgpu_word in
			"$dgpu_index" | "$dgpu_id") ;;
			GPU-*)
				case $dgpu_id in "$dgpu_word"*) ;; *) continue ;; esac ;;
			*) continue ;;
			esac
			dgpu_set="$dgpu_set$dgpu_id "
			break
		done
	done <<-EOF
		$dgpu_list
	EOF
}

gpu_count() {
	dgpu_n=0
	for dgpu_id in $1; do
		dgpu_n=$((dgpu_n + 1))
	done
}

# gpu_pick SET N: the first N of one vendor; nothing where there are not so many. N 0: of the vendor
# that has the most.
gpu_pick() {
	dgpu_best='' dgpu_most=0
	for dgpu_of in nvidia amd; do
		dgpu_set='' dgpu_n=0
		while read -r dgpu_vendor dgpu_index dgpu_id dgpu_rest; do
			case $dgpu_vendor$1 in "$dgpu_of"*" $dgpu_id "*) ;; *) continue ;; esac
			[ "$2" -eq 0 ] || [ "$dgpu_n" -lt "$2" ] || continue
			dgpu_set="$dgpu_set $dgpu_id"
			dgpu_n=$((dgpu_n + 1))
		done <<-EOF
			$dgpu_list
		EOF
		if [ "$dgpu_n" -gt "$dgpu_most" ] && [ "$dgpu_n" -ge "$2" ]; then
			dgpu_best=$dgpu_set dgpu_most=$dgpu_n
			[ "$2" -eq 0 ] || break
		fi
	done
	dgpu_set=$dgpu_best
}

# 1: it would wait forever.
gpu_check_count() {
	gpu_pick "$dgpu_eligible" 0
	dgpu_may=$dgpu_most
	[ "$dgpu_may" -lt "$dgpu_want" ] || return 0
	gpu_match ''
	gpu_count "$dgpu_set"
	dgpu_all=$dgpu_n
	gpu_pick "$dgpu_set" 0
	dgpu_error="requested $dgpu_want GPUs,"
	[ "$dgpu_want" -ne 1 ] || dgpu_error='requested 1 GPU,'
	if [ "$dgpu_most" -eq 0 ]; then
		dgpu_error="$dgpu_error this machine has none"
	elif [ "$dgpu_most" -lt "$dgpu_want" ]; then
		dgpu_error="$dgpu_error this machine has $dgpu_most"
		[ "$dgpu_most" -eq "$dgpu_all" ] || dgpu_error="$dgpu_error of one vendor"
	else
		dgpu_error="$dgpu_error only $dgpu_may of this machine's $dgpu_most may be used"
	fi
	return 1
}

# Of the files "$@" lines "LIVES SIZE NAME". LIVES is 1 where somebody holds a lock on it for sure, so that no
# process needs to be started for each. Trusted only where our own ticket is seen: not in containers and on
# layered file systems.
gpu_held() {
	{
		stat -L -c '%i %s %n' /proc/self/fd/6 "$@"
		echo
		cat /proc/locks
	} 2>/dev/null 5<&- | awk '
	NF == 0 { locks = 1; next }
	!locks { inode[++found] = $1; size[found] = $2; name[found] = $3; next }
	$2 == "FLOCK" && $4 == "WRITE" {
		split($6, at, ":")
		held[$6] = 1
		if (at[3] == inode[1]) { device = at[1] ":" at[2]; ours++ }
	}
	END { for (i = 2; i <= found; i++) print (ours == 1 && (device ":" inode[i]) in held) + 0, size[i], name[i] }'
}

# FILE SIZE: the words of a ticket, behind its owner. One that cannot be read allows all.
gpu_ticket_words() {
	dgpu_named=''
	[ "$2" -le 8192 ] || return 0
	{
		read -r dgpu_word
		while read -r dgpu_word; do
			[ -z "$dgpu_word" ] || dgpu_named="$dgpu_named$dgpu_word$nl"
		done
	} 2>/dev/null <"$1"
}

# The queue is locked: who is before us, and what they may take.
gpu_see_queue() {
	dgpu_ahead=0 dgpu_reserved=' ' dgpu_blocker=''
	set --
	for dgpu_at in "$dgpu_dir"/ticket.[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]; do
		[ "$dgpu_at" != "$dgpu_ticket" ] || break
		if [ -f "$dgpu_at" ] && [ ! -L "$dgpu_at" ]; then
			set -- "$@" "$dgpu_at"
		fi
	done
	[ $# -gt 0 ] || return 0
	dgpu_tickets=$(gpu_held "$@")
	while read -r dgpu_held dgpu_bytes dgpu_at; do
		[ "${dgpu_held:-0}" -eq 1 ] || ticket_lives "$dgpu_at" || continue
		dgpu_ahead=$((dgpu_ahead + 1))
		gpu_ticket_words "$dgpu_at" "$dgpu_bytes"
		gpu_match "$dgpu_named"
		dgpu_all_of=1
		for dgpu_id in $dgpu_eligible; do
			case $dgpu_set in
			*" $dgpu_id "*) ;;
			*)
				dgpu_all_of=0
				continue ;;
			esac
			case $dgpu_reserved in
			*" $dgpu_id "*) ;;
			*) dgpu_reserved="$dgpu_reserved$dgpu_id " ;;
			esac
		done
		[ "$dgpu_all_of" -eq 0 ] || dgpu_blocker=$dgpu_at
	done <<-EOF
		$dgpu_tickets
	EOF
}

gpu_lock_name() {
	case $1 in
	*[!A-Za-z0-9_.-]*) dgpu_name=gpu.$(printf '%s' "$1" | tr -c 'A-Za-z0-9_.-' _) ;;
	*) dgpu_name=gpu.$1 ;;
	esac
}

# NAME: who has the lock that could not be had, as gpu_dir_holder of lib/host/gpu_holder.c: what he wrote into
# it, open as 4, if he is a living process, and the one that the kernel's list names. $dgpu_who.
gpu_who_of() {
	dgpu_who='another run'
	dgpu_word=$(stat -L -c %i /proc/self/fd/4 && head -c 199 <&4) || return 0
	{
		read -r dgpu_inode
		read -r dgpu_run dgpu_uid dgpu_pid dgpu_start dgpu_since dgpu_rest
	} <<-EOF
		$dgpu_word
	EOF
	case $dgpu_run in '' | [!a-z]* | *[!a-z0-9-]*) return 0 ;; esac
	case $dgpu_pid$dgpu_start$dgpu_uid in '' | *[!0-9]*) return 0 ;; esac
	case $dgpu_since in
	20[0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]Z) ;;
	*) return 0 ;;
	esac
	[ "${#dgpu_run}" -lt 48 ] && proc_start_of "$dgpu_pid" && [ "$start" = "$dgpu_start" ] || return 0
	# A list without any is none.
	dgpu_listed=''
	while read -r dgpu_at dgpu_kind dgpu_rest; do
		case "$dgpu_kind $dgpu_rest " in
		"FLOCK "*" WRITE $dgpu_pid "*":$dgpu_inode "*)
			dgpu_listed=1
			break ;;
		"FLOCK "*) dgpu_listed=0 ;;
		esac
	done </proc/locks
	[ "${dgpu_listed:-1}" -eq 1 ] || return 0
	dgpu_who=$dgpu_run
	[ "$dgpu_uid" = "$d_uid" ] || dgpu_who="$dgpu_who of another user"
	dgpu_who="$dgpu_who since $dgpu_since"
} 2>/dev/null

# INDEX: one more of $dgpu_who; $dgpu_holders has a line "INDEX,INDEX WHO" for each.
gpu_add_holder() {
	dgpu_lines='' dgpu_place=$1
	while read -r dgpu_at dgpu_rest; do
		[ -n "$dgpu_at" ] || continue
		if [ "$dgpu_rest" = "$dgpu_who" ]; then
			dgpu_at=$dgpu_at,$dgpu_place dgpu_place=''
		fi
		dgpu_lines=$dgpu_lines$dgpu_at\ $dgpu_rest$nl
	done <<-EOF
		$dgpu_holders
	EOF
	dgpu_holders=$dgpu_lines${dgpu_place:+$dgpu_place $dgpu_who$nl}
}

# Whether somebody has what is called $dgpu_name where only he can write: he has it whatever became of the
# lock that all share. $dgpu_who.
gpu_guarded() {
	for dgpu_at in "$dgpu_shared".*/"$dgpu_name"; do
		# A link to a directory is nobody's.
		[ -f "$dgpu_at" ] && [ ! -L "$dgpu_at" ] && [ ! -L "${dgpu_at%/*}" ] && command exec 4<"$dgpu_at" || continue
		if ! flock -n -s 4 6<&- 5<&-; then
			gpu_who_of
			exec 4<&-
			return 0
		fi
		exec 4<&-
	done
	return 1
} 2>/dev/null

gpu_see_locks() {
	dgpu_busy=' ' dgpu_holders=''
	while read -r dgpu_vendor dgpu_index dgpu_id dgpu_rest; do
		case $dgpu_eligible in *" $dgpu_id "*) ;; *) continue ;; esac
		gpu_lock_name "$dgpu_id"
		gpu_open "$dgpu_name" || return 1
		if ! flock -n 4 6<&- 5<&-; then
			gpu_who_of
			exec 4<&-
		else
			exec 4<&-
			gpu_guarded || continue
		fi
		dgpu_busy="$dgpu_busy$dgpu_id "
		gpu_add_holder "$dgpu_index"
	done <<-EOF
		$dgpu_list
	EOF
}

# INDEXES WHAT: "GPU 3 is WHAT", "GPUs 0,1 are WHAT".
gpu_add_why() {
	case $1 in
	'') return ;;
	*,*,*,*,*,*,*,*,*)
		gpu_count "$(printf %s "$1" | tr , ' ')"
		dgpu_part="$dgpu_n GPUs are" ;;
	*,*) dgpu_part="GPUs $1 are" ;;
	*) dgpu_part="GPU $1 is" ;;
	esac
	dgpu_why="$dgpu_why${dgpu_why:+; }$dgpu_part $2"
}

gpu_explain() {
	dgpu_why='' dgpu_idle_used=' ' dgpu_others='' dgpu_places='' dgpu_named_n=0
	while read -r dgpu_vendor dgpu_index dgpu_id dgpu_pci dgpu_memory dgpu_used dgpu_rest; do
		case $dgpu_used$dgpu_busy in 0* | *" $dgpu_id "*) continue ;; esac
		case $dgpu_eligible in *" $dgpu_id "*) ;; *) continue ;; esac
		dgpu_idle_used="$dgpu_idle_used$dgpu_id "
		dgpu_places=$dgpu_places${dgpu_places:+,}$dgpu_index
	done <<-EOF
		$dgpu_list
	EOF
	while read -r dgpu_at dgpu_rest; do
		if [ $((dgpu_named_n += 1)) -le 2 ]; then
			gpu_add_why "$dgpu_at" "in use by $dgpu_rest"
		else
			dgpu_others=$dgpu_others${dgpu_others:+,}$dgpu_at
		fi
	done <<-EOF
		$dgpu_holders
	EOF
	gpu_add_why "$dgpu_others" 'in use by other runs'
	gpu_add_why "$dgpu_places" 'used by a program outside of dlrun'
	case $dgpu_ahead in
	0) ;;
	1) dgpu_why="$dgpu_why${dgpu_why:+; }1 run is before it" ;;
	*) dgpu_why="$dgpu_why${dgpu_why:+; }$dgpu_ahead runs are before it" ;;
	esac
	dgpu_why=${dgpu_why:-the GPUs are free}
}

# gpu_look IS_TAKING: one look. 0: dgpu_set is what may be taken (with IS_TAKING the queue is still
# locked), 1: not yet, and dgpu_why, 2: never, and dgpu_error.
gpu_look() {
	dgpu_rc=0
	[ -n "$dgpu_queued" ] || gpu_queue 30 || dgpu_rc=$?
	dgpu_queued=''
	case $dgpu_rc in
	1)
		dgpu_why='another process holds the queue for GPUs' dgpu_blocker='' dgpu_idle_used=' '
		dgpu_error="another process holds $dgpu_dir/queue for too long"
		return $((dgpu_held_n += 1)) ;;
	2) return 2 ;;
	esac
	dgpu_held_n=0
	# Who cleans up may have removed it; then we come last.
	if [ ! "$dgpu_ticket" -ef /proc/self/fd/6 ]; then
		exec 6>&-
		gpu_ticket_new "$dgpu_text" || return 2
	fi
	gpu_see_queue
	gpu_see_locks || return 2
	gpu_explain
	dgpu_open_set=' '
	for dgpu_id in $dgpu_eligible; do
		case "$dgpu_reserved$dgpu_busy" in *" $dgpu_id "*) continue ;; esac
		if [ "$1" -eq 1 ]; then
			case $dgpu_idle_used in *" $dgpu_id "*) continue ;; esac
		fi
		dgpu_open_set="$dgpu_open_set$dgpu_id "
	done
	gpu_pick "$dgpu_open_set" "$dgpu_want"
	if [ -n "$dgpu_set" ] && [ "$1" -eq 1 ]; then
		return 0
	fi
	gpu_unqueue
	[ -n "$dgpu_set" ]
}

# gpu_wait SECONDS: until something may have changed, or for about so long, because nothing tells of
# the end of programs outside, nor that this run is to end.
gpu_wait() {
	dgpu_at=$dgpu_blocker
	if [ -z "$dgpu_at" ]; then
		for dgpu_id in $dgpu_busy; do
			gpu_lock_name "$dgpu_id"
			dgpu_at=$dgpu_dir/$dgpu_name
			break
		done
	fi
	if [ -z "$dgpu_at" ] || [ -n "$dgpu_fruitless" ]; then
		sleep "$1" 6<&- 9<&-
	elif [ -f "$dgpu_at" ] && [ ! -L "$dgpu_at" ]; then
		{
			lock_by "timeout $1" -s 3 6<&- 9<&-
			[ $? -ne 127 ] || sleep 1 6<&- 9<&-
			flock -u 3 6<&- 9<&-
		} 3<"$dgpu_at"
	fi
} 2>/dev/null

gpu_say_why() {
	[ "$dgpu_why" = "$dgpu_said_why" ] || wait_as "$1" "$dgpu_why"
	dgpu_said_why=$dgpu_why
}

# The one behind whom we wait for all that we may have is still there: nothing to look at but our
# place.
gpu_still_behind() {
	[ -n "$dgpu_blocker" ] || return 1
	ticket_lives "$dgpu_blocker" || return 1
	dgpu_n=0
	for dgpu_at in "$dgpu_dir"/ticket.*; do
		[ "$dgpu_at" != "$dgpu_ticket" ] || break
		dgpu_n=$((dgpu_n + 1))
	done
	if [ "$dgpu_n" -lt "$dgpu_ahead" ]; then
		dgpu_ahead=$dgpu_n
		gpu_explain
	fi
}

# NAME VALUE, where the user has not set NAME for the program.
gpu_export() {
	if command -v j_env >/dev/null 2>&1 && (set +u && unset "$1" && j_env && eval "[ \"\${$1+1}\" ]"); then
		return 0
	fi
	echo "export $1=$2"
}

# What the program gets: exports for it, gpus= for the state, the rest for the usage.
gpu_write() {
	dgpu_index_list='' dgpu_places='' dgpu_model='' dgpu_of=none
	while read -r dgpu_vendor dgpu_index dgpu_id dgpu_pci dgpu_memory dgpu_used dgpu_rest; do
		case " $2 " in *" $dgpu_id "*) ;; *) continue ;; esac
		dgpu_index_list="$dgpu_index_list${dgpu_index_list:+,}$dgpu_index"
		dgpu_places="$dgpu_places${dgpu_places:+ }$dgpu_pci"
		dgpu_model=${dgpu_model:-$dgpu_rest} dgpu_of=$dgpu_vendor
	done <<-EOF
		$dgpu_list
	EOF
	gpu_count "$2"
	{
		case $dgpu_of in
		nvidia)
			# CUDA alone would count the fastest first.
			gpu_export CUDA_DEVICE_ORDER PCI_BUS_ID
			gpu_export CUDA_VISIBLE_DEVICES "$dgpu_index_list" ;;
		amd) gpu_export ROCR_VISIBLE_DEVICES "$dgpu_index_list" ;;
		esac
		[ "$dgpu_n" -eq 0 ] || echo "export DLRUN_GPUS_PER_NODE=$dgpu_n"
		echo "gpus=$dgpu_index_list"
		echo "dgpu_vendor=$dgpu_of"
		echo "dgpu_ids='${2# }'"
		echo "dgpu_places='$dgpu_places'"
		printf "dgpu_model='%s'\n" "$(printf '%s' "$dgpu_model" | tr -d "'")"
	} >"$1/gpus.new" && mv -f "$1/gpus.new" "$1/gpus"
}

# The locks are held by descriptors that everything behind them inherits, so that a GPU is free when
# the last process has ended. dash can name ten descriptors only, so each lock is taken by a flock ($f, quoted words)
# of its own that gets the next free one: sh opens a file as 4, flock opens that once more. Not by
# its name: O_CREAT on the file of another user is refused by fs.protected_regular. Who is inside of a
# flock writes into its lock, which is open as 4, who has it, as gpu_dir_sign of lib/host/gpu_holder.c. At the
# end: of two users without a common queue who took the same at once, both give way until one does not meet the other.
dgpu_chain='
c=$1 f=$2 n=$3 m=$4 w=$5
shift 5
p=$$
[ "$f" != flock ] || p=$PPID
case $w in
.*) w=${w#.} p= ;;
esac
if [ "$p" ] && IFS= read -r s <"/proc/$p/stat"; then
	s=${s##*") "} i=1
	while [ "$i" -lt 20 ]; do s=${s#* } i=$((i + 1)); done
	printf "%s %s %s %s\n" "${w% *}" "$p" "${s%% *}" "${w##* }" >/proc/self/fd/4
fi 2>/dev/null
if [ "$n" -gt 0 ]; then
	g=$1
	shift
	exec 4<"$g" || exit 75
	[ "$g" -ef /proc/self/fd/4 ] || exit 75
	eval "exec $f -x /proc/self/fd/4 sh -c \"\$c\" sh \"\$c\" \"\$f\" $((n - 1)) \"\$m\" \"\$w\" \"\$@\""
fi
lock() { eval "$f \"\$@\""; }
d=$1 t=$2 o=$3 s=$4
shift 4
k=
for x in /proc/self/fd/[1-9][0-9]*; do
	for n in "$o"/gpu.*; do [ ! "$x" -ef "$n" ] || k="$k ${x##*/}:${n##*/}"; done
done
taken() {
	for x in $k; do
		for n in "$s".*/"${x#*:}"; do
			[ "${n%/*}" != "$o" ] && [ ! -L "${n%/*}" ] && [ -f "$n" ] && [ ! -L "$n" ] && [ -r "$n" ] || continue
			lock -n -s 3 3<"$n" || return 0
		done
	done
	return 1
}
while taken; do
	for x in $k; do lock -u "${x%%:*}"; done
	sleep $((1 + $$ % 3))
	for x in $k; do lock "${x%%:*}"; done
done
rm -f "$t"
lock -u 6
lock -u 5
exec 6>&- 5<&- 4<&-
for m in $m; do eval "exec $m<&-"; done
(set -C; : >"$d/wake.$$" && rm -f "$d/wake.$$") 2>/dev/null
exec "$@"
'

# gpu_take "IDS" NEXT...
gpu_take() {
	gpu_count "$1"
	dgpu_left=$((2 * dgpu_n)) dgpu_set=$1
	shift
	set -- "$dgpu_dir" "$dgpu_ticket" "$dgpu_own" "$dgpu_shared" "$@"
	for dgpu_id in $dgpu_set; do
		gpu_lock_name "$dgpu_id"
		dgpu_at=$dgpu_dir dgpu_dir=$dgpu_own
		gpu_open "$dgpu_name" && exec 4<&-
		dgpu_dir=$dgpu_at
		set -- "$dgpu_dir/$dgpu_name" "$dgpu_own/$dgpu_name" "$@"
	done
	dgpu_flock=$d_flock
	! flock -F /dev/null true 2>/dev/null 6<&- 5<&- || dgpu_flock="$d_flock -F"
	# No lock is to get a number that a script may use.
	dgpu_fillers=''
	for dgpu_n in 3 7 8 9; do
		[ ! -e /proc/self/fd/$dgpu_n ] || continue
		eval "exec $dgpu_n</dev/null"
		dgpu_fillers="$dgpu_fillers $dgpu_n"
	done
	set -- ".${j_run-?} $d_uid $(date -u +%Y-%m-%dT%H:%M:%SZ)" "$@"
	exec sh -c "$dgpu_chain" sh "$dgpu_chain" "$dgpu_flock" "$dgpu_left" "$dgpu_fillers" "$@"
}

# Many who come at once, each with its processes, take minutes where the machine has no time for them, and the
# lock is not given in turn. So this waits as for GPUs, and says so, but not for ever. 1: it was cancelled.
gpu_join() {
	dgpu_tries=0
	while :; do
		gpu_queue 10
		dgpu_rc=$?
		[ "$dgpu_rc" -eq 1 ] || return "$dgpu_rc"
		dgpu_error="another process holds $dgpu_dir/queue for too long"
		[ $((dgpu_tries += 1)) -lt 6 ] || return 2
		[ "$dgpu_tries" -gt 1 ] || wait_as "$1" 'another process holds the queue for GPUs'
		if [ -e "$1/cancel" ]; then
			dgpu_error='it was cancelled while it waited for a GPU'
			return 1
		fi
	done
}

# TYPE[,TYPE...]: of $dgpu_only (of all) those of its words, as gpu_model_matches of lib/host/gpu.c. 1: there is none.
gpu_only_type() {
	dgpu_only=$(printf '%s\n' "$dgpu_list" | LC_ALL=C awk -v only="$dgpu_only" -v type="$1" '
	BEGIN { n_only = split(only, of, "\n"); n_types = split(tolower(type), types, ",") }
	function chosen(i) {
		if (n_only == 0) return 1
		for (i = 1; i <= n_only; i++) if (of[i] == $2 || (of[i] != "" && index($3, of[i]) == 1)) return 1
		return 0
	}
	function has(w, i, k, s) {
		for (i = 1; i <= n; i++) {
			s = ""
			for (k = i; k <= n && length(s) < length(w); k++) s = s part[k]
			if (s == w) return 1
		}
		return 0
	}
	function is(type, j, n_type, any) {
		n_type = split(type, word, /[^a-z0-9]+/)
		for (j = 1; j <= n_type; j++) {
			if (word[j] == "") continue
			if (!has(word[j])) return 0
			any = 1
		}
		return any
	}
	NF >= 7 && chosen() {
		model = tolower($0)
		sub(/^([^ ]+ ){6}/, "", model)
		n = split(model, part, /[^a-z0-9]+/)
		for (t = 1; t <= n_types; t++) if (is(types[t])) { print $3; next }
	}')
	[ "$dgpu_only" ] && return
	dgpu_error="this host has no GPU of type $1"
	return 1
}

# DIR: into the queue of $dgpu_dir. 1: it was cancelled, 2: it cannot be used; dgpu_error.
gpu_enter_queue() {
	gpu_dir_open || return 2
	gpu_join "$1" || return
	if ! gpu_ticket_new "$dgpu_text"; then
		gpu_unqueue
		return 2
	fi
	dgpu_queued=1 dgpu_held_n=0
}

# DIR: what others do to the shared directory may cost the order of the queue, but no run.
gpu_go_alone() {
	[ "$dgpu_dir" != "$dgpu_own/alone" ] || return 2
	gpu_unqueue
	[ -z "$dgpu_ticket" ] || gpu_ticket_leave
	log_line "$1" "GPUs of this machine are not queued for in order: $dgpu_error"
	dgpu_ticket='' dgpu_dir=$dgpu_own/alone
	gpu_enter_queue "$1"
}

# The queue, up to the exec of NEXT. 1: dgpu_error says why not.
gpu_queue_up() {
	dgpu_at_dir=$1
	shift
	gpu_own_open || return 1
	dgpu_only=$(printf '%s' "${j_gpus_only-}" | tr ', ' '\n\n')
	[ -z "${j_gpu_type-}" ] || gpu_only_type "$j_gpu_type" || return 1
	gpu_match "$dgpu_only"
	dgpu_eligible=$dgpu_set
	gpu_check_count || return 1
	dgpu_text=${j_run-?}$nl${dgpu_only:+$dgpu_only$nl} dgpu_ticket=''
	dgpu_rc=0
	gpu_enter_queue "$dgpu_at_dir" || dgpu_rc=$?
	[ "$dgpu_rc" -ne 2 ] || { gpu_go_alone "$dgpu_at_dir" && dgpu_rc=0; }
	[ "$dgpu_rc" -eq 0 ] || return 1
	dgpu_busy='' dgpu_blocker='' dgpu_ahead=0 dgpu_idle_used=' '
	dgpu_new_list=1 dgpu_fruitless='' dgpu_said_why=''
	while :; do
		# An old list may call a GPU free that is used by now: it is taken with a new one only.
		gpu_look "$dgpu_new_list"
		dgpu_rc=$?
		if [ "$dgpu_rc" -ge 2 ]; then
			gpu_go_alone "$dgpu_at_dir" && continue
			break
		fi
		if [ "$dgpu_rc" -eq 0 ] && [ "$dgpu_new_list" -eq 1 ]; then
			dgpu_taken=$dgpu_set
			dgpu_error="cannot write $dgpu_at_dir/gpus"
			! gpu_write "$dgpu_at_dir" "$dgpu_taken" || gpu_take "$dgpu_taken" "$@"
			dgpu_rc=2
		elif [ "$dgpu_rc" -eq 0 ]; then
			dgpu_new_list=1
			gpus_find && continue
			dgpu_rc=2
		fi
		if [ "$dgpu_rc" -eq 2 ]; then
			break
		fi
		dgpu_fruitless=''
		[ "$dgpu_new_list" -eq 0 ] || [ "$dgpu_idle_used" = ' ' ] || dgpu_fruitless=1
		dgpu_new_list=0
		gpu_say_why "$dgpu_at_dir"
		gpu_wait 1
		while gpu_still_behind && [ ! -e "$dgpu_at_dir/cancel" ] && ! pool_is_lost; do
			gpu_say_why "$dgpu_at_dir"
			gpu_wait 1
		done
		if [ -e "$dgpu_at_dir/cancel" ] || pool_is_lost; then
			dgpu_error='it was cancelled while it waited for a GPU'
			break
		fi
	done
	gpu_unqueue
	[ -z "$dgpu_ticket" ] || gpu_ticket_leave
	return 1
}

# gpus_enter DIR NEXT...: become NEXT, with the GPUs of the job; NEXT may be another process than
# this one, whose end is waited for. Returns only after attempt_fail.
gpus_enter() {
	dgpu_list=''
	case ${j_gpus:-0} in
	0) ;;
	auto)
		dgpu_want=1
		if ! gpus_find; then
			note "$1" "it was given no GPU: $dgpu_error"
			dgpu_list=''
		fi ;;
	*)
		dgpu_want=$j_gpus
		if ! gpus_find; then
			attempt_fail "$1" StartFailed "$dgpu_error"
			return 1
		fi ;;
	esac
	if [ "${j_gpus:-0}" = 0 ] || { [ "$j_gpus" = auto ] && [ -z "$dgpu_list" ]; }; then
		gpu_write "$1" ''
		shift
		exec "$@"
	fi
	if gpu_queue_up "$@"; then
		return 1
	fi
	if [ "$j_gpus" = auto ] && [ ! -e "$1/cancel" ]; then
		note "$1" "it was given no GPU: $dgpu_error"
		gpu_write "$1" ''
		shift
		exec "$@"
	fi
	attempt_fail "$1" StartFailed "$dgpu_error"
	return 1
}

# $d_locks: the descriptors of this process that lock GPUs.
gpu_locks_of() {
	d_locks=
	dgpu_dir=${dgpu_dir:-$(gpu_machine_dir)}
	for dgpu_at in /proc/self/fd/[1-9][0-9]*; do
		for dgpu_name in "$dgpu_dir"/gpu.* "$dgpu_dir.$d_uid"*/gpu.* "$dgpu_dir.$d_uid"*/alone/gpu.*; do
			[ "$dgpu_at" -ef "$dgpu_name" ] || continue
			d_locks="$d_locks ${dgpu_at##*/}"
			break
		done
	done
}

# DIR: what its program held is free, though this process and what it starts have the descriptors.
gpus_leave() {
	d_locks=
	field_of "$1/gpus" dgpu_ids && [ "$value" != "''" ] || return 0
	gpu_locks_of
	for dgpu_at in $d_locks; do
		flock -u "$dgpu_at"
	done
	[ -z "$d_locks" ] || gpu_wake
} 2>/dev/null

# verb_gpus: "other" holds a GPU where it is not known who does.
verb_gpus() {
	if ! gpus_find; then
		answer_fail gpu "$dgpu_error"
		return 1
	fi
	gpus_say
}

gpu_holder_is() {
	gpu_who_of
	case $dgpu_who in
	"another run") dgpu_holder=other ;;
	*) dgpu_holder=${dgpu_who%% *} ;;
	esac
}

# A line for each GPU of dgpu_list.
gpus_say() {
	dgpu_dir=${dgpu_dir:-$(gpu_machine_dir)}
	dgpu_locked=''
	[ ! -f "$dgpu_dir/queue" ] || [ -L "$dgpu_dir/queue" ] || gpu_queue 2
	while read -r dgpu_vendor dgpu_index dgpu_id dgpu_pci dgpu_memory dgpu_used dgpu_label; do
		[ -n "$dgpu_id" ] || continue
		gpu_lock_name "$dgpu_id"
		dgpu_holder=-
		for dgpu_at in "$dgpu_dir/$dgpu_name" "$dgpu_dir".*/"$dgpu_name"; do
			[ -f "$dgpu_at" ] && [ ! -L "$dgpu_at" ] && [ -r "$dgpu_at" ] || continue
			{
				flock -n -s 4 5<&- || gpu_holder_is
			} 2>/dev/null 4<"$dgpu_at"
			[ "$dgpu_holder" = - ] || break
		done
		printf 'gpu %s %s %s %s %s %s %s\n' "$dgpu_vendor" "$dgpu_index" "$(word "$dgpu_id")" "$dgpu_memory" \
			"$dgpu_used" "$dgpu_holder" "$(word "$dgpu_label")"
	done <<-EOF
		$dgpu_list
	EOF
	gpu_unqueue
}
