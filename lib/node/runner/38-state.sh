# SPDX-License-Identifier: Apache-2.0
# How attempts stand. Nothing here needs their supervisors.

# DIR: $state, also of one that nobody cares for any more: that is written down then, so that none can begin
# later and all hear the same.
judge_of() {
	judge_text=
	if field_of "$1/exit" state; then
		state=$value
		return
	fi
	field_of "$1/state" state && state=$value || state=starting
	field_of "$1/state" supervisor && is_alive "${value%:*}" "${value#*:}" && judge_boot "$1" && return
	if field_of "$1/state" program && is_alive "${value%:*}" "${value#*:}" && judge_boot "$1"; then
		judge_text='its supervisor was killed: how it ends will not be known'
		return
	fi
	judge_wait "$1"
	! field_of "$1/exit" state || state=$value
}

judge_boot() {
	field_of "$1/state" boot && [ "$value" = "$d_boot" ]
}

# Somebody may be about to begin it, or to write down its end: they hold its lock meanwhile.
judge_wait() {
	judge_tries=0
	while [ ! -e "$1/exit" ] && [ $((judge_tries += 1)) -le 50 ]; do
		[ -e "$1/lock" ] && judge_locked "$1" 8<"$1/lock" && return
		field_of "$1/state" supervisor && is_alive "${value%:*}" "${value#*:}" && return
		sleep 0.1 || sleep 1
	done 2>/dev/null
	[ -e "$1/lock" ] || judge_write "$1"
}

# Nobody is about to begin it while this shares the lock.
judge_locked() {
	flock -s -n 8 && judge_write "$1" 8<&-
}

# DIR: the end of one that is over, and nobody said how.
judge_write() {
	collect "$1"
	limits_remove "$1"
	if [ -e "$1/cancel" ]; then
		end_asked "$1"
		field_of "$1/state" program || [ "$end_reason" != Cancelled ] || end_text='it was cancelled before it had begun'
		exit_write "$1" "$end_state" "$end_code" 0 dlrun "$end_reason" "$end_text"
	elif [ -e "$1/.timeout" ]; then
		field_of "$1/job" j_timeout_ms
		duration_of "${value:-0}"
		exit_write "$1" failed 124 0 dlrun Timeout "it reached its time limit of $duration"
	elif field_of "$1/state" program; then
		judge_end='its supervisor was killed'
		judge_boot "$1" || judge_end='the machine restarted'
		limit_end "$1"
		now=$(stat -c %Y "$1/log" 2>/dev/null)
		exit_write "$1" lost 125 0 dlrun Lost "$judge_end" '' "${now:+${now}000}"
	elif pool_release "$1"; then
		return
	else
		judge_end='dlrun was stopped before the run had begun'
		[ "${1##*/}" = 1 ] || judge_end="dlrun was stopped before attempt ${1##*/} had begun"
		exit_write "$1" failed 125 0 dlrun Interrupted "$judge_end"
	fi
}

# FILE KEYS: its values as words of an answer, but for those KEYS (between blanks).
fields_of() {
	[ -f "$1" ] || return 0
	while IFS= read -r fields_line; do
		case $fields_line in
		?*=*) ;;
		*) continue ;;
		esac
		case "$2" in
		*" ${fields_line%%=*} "*) continue ;;
		esac
		word_of "${fields_line#*=}"
		fields="$fields ${fields_line%%=*}=$coded"
	done <"$1"
}

# RUN N: its line of an answer.
attempt_line() {
	attempt_dir=$d_local/runs/$1/$2 fields=
	if { [ ! -d "$attempt_dir" ] || [ -f "$d_root/pool/names/$1.$2" ] && [ ! -f "$attempt_dir/pool" ]; } && pool_line "$1" "$2"; then
		return
	fi
	if [ ! -d "$attempt_dir" ]; then
		printf 'attempt %s absent\n' "$1/$2"
		return
	fi
	judge_of "$attempt_dir"
	# Nobody began it, and it waits again.
	if [ ! -d "$attempt_dir" ] && pool_line "$1" "$2"; then
		return
	fi
	# It may have ended only now.
	if field_of "$attempt_dir/exit" state; then
		state=$value
		fields_of "$attempt_dir/state" ' state text '
		fields_of "$attempt_dir/exit" ' state pad '
	elif [ "$judge_text" ]; then
		fields_of "$attempt_dir/state" ' state text '
		word_of "$judge_text"
		fields="$fields text=$coded"
	else
		fields_of "$attempt_dir/state" ' state '
	fi
	fields_of "$attempt_dir/usage" ' '
	fields_of "$attempt_dir/warnings" ' '
	[ ! -e "$attempt_dir/cancel" ] || [ -f "$attempt_dir/exit" ] || fields="$fields cancel=1"
	[ ! -e "$attempt_dir/held" ] || fields="$fields held=1"
	[ ! -e "$attempt_dir/go" ] || fields="$fields go=1"
	printf 'attempt %s %s%s\n' "$1/$2" "$state" "$fields"
}

verb_state() {
	for state_name; do
		state_as=
		case $state_name in
		*:*)
			unword_of "${state_name#*:}"
			state_as=$plain state_name=${state_name%%:*}
			;;
		esac
		check_name "${state_name%/*}"
		check_number "${state_name##*/}"
		if [ "$state_as" ] && pool_of "${state_name%/*}" "${state_name##*/}" && pool_mend_gone "${state_name%/*}" "${state_name##*/}" &&
			! pool_claimed; then
			pool_join "${state_name%/*}" "${state_name##*/}" "$state_as" && pool_kick
		fi
		attempt_line "${state_name%/*}" "${state_name##*/}"
	done
}

# RUN: $newest, the number of its newest attempt, or 0.
newest_of() {
	newest=0
	for newest_dir in "$d_local/runs/$1"/[1-9]*; do
		newest_n=${newest_dir##*/}
		case $newest_n in
		*[!0-9]*) continue ;;
		esac
		[ ! -d "$newest_dir" ] || [ "$newest_n" -le "$newest" ] || newest=$newest_n
	done
}

# The record as one word, made once; one that would make the line too long is left out.
record_of() {
	coded='\0'
	[ -f "$1/record" ] || return 0
	if [ ! -f "$1/.record" ] || [ "$1/record" -nt "$1/.record" ]; then
		{ words_awk <"$1/record" && echo; } >"$1/.record.$$" && mv -f "$1/.record.$$" "$1/.record"
	fi
	IFS= read -r coded <"$1/.record"
	[ "${#coded}" -le 60000 ] && [ "$coded" ] || coded='\0'
}

verb_list() {
	list_user=$(id -un 2>/dev/null) || list_user=$d_uid
	word_of "$list_user"
	list_user=$coded
	for list_dir in "$d_local"/runs/*; do
		newest_of "${list_dir##*/}"
		[ "$newest" -gt 0 ] || continue
		record_of "$list_dir"
		printf 'run %s %s %s\n' "${list_dir##*/}" "$list_user" "$coded"
		attempt_line "${list_dir##*/}" "$newest"
	done
	pool_list
}

# Tree and spares; with all: everything that there is of the run.
verb_forget() {
	check_name "${1-}"
	check_number "${2-}"
	forget_dir=$d_local/runs/$1
	[ -d "$forget_dir" ] || return 0
	forget_tried=0
	for forget_n in "$forget_dir"/[1-9]*; do
		[ -d "$forget_n" ] || continue
		[ "${3-}" = all ] || [ "$forget_n" = "$forget_dir/$2" ] || continue
		judge_of "$forget_n"
		[ -e "$forget_n/exit" ] || answer_fail busy "attempt ${forget_n##*/} of $1 has not ended"
	done
	if [ "${3-}" = all ]; then
		peers_forget "$1"
		forget_path "$forget_dir"
		return
	fi
	forget_dir=$forget_dir/$2
	[ -d "$forget_dir" ] || return 0
	collect_again "$forget_dir" || answer_fail disk "results of $1 lie in its tree, and the disk is full"
	field_of "$forget_dir/plan" p_spare && [ "$value" ] && forget_path "$d_local/spares/$value"
	forget_path "$forget_dir/tree"
}

# Out of the way at once; a tree of 50,000 files takes its time to be removed.
forget_path() {
	[ -e "$1" ] || return 0
	forget_gone=$d_local/incoming/.gone-$$-$((forget_tried += 1))
	# Two may be asked to remove a run at the same time, one for each attempt.
	mv "$1" "$forget_gone" || [ ! -e "$1" ] || answer_fail io "$1 cannot be removed"
	(self_of && renice -n 10 -p "$self"; kept_end "$forget_gone") </dev/null >/dev/null 2>&1 &
	# On a full disk whoever comes next needs the room.
	forget_room=$d_local/incoming/.gone-$$-room forget_waited=0
	if ! { printf '%65536s' '' >"$forget_room"; } 2>/dev/null; then
		while [ -e "$forget_gone" ] && [ "$((forget_waited += 1))" -le 50 ]; do
			sleep 0.1 2>/dev/null || sleep 1
		done
	fi
	rm -f "$forget_room"
}
