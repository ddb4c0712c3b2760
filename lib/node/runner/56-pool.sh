# SPDX-License-Identifier: Apache-2.0
# Attempts that wait on several hosts with one home: the first of them that has the GPUs takes the attempt. In ROOT/pool,
# which all of them see:
#	id                random; hosts that tell the same one may have one home (a copy of a disk tells the same)
#	names/RUN.N       for ever, of each attempt that was given to several hosts: the name of its ticket and the inode of
#	                  that directory, which a copy of the file system does not have
#	tickets/NAME/     job, plan, apply, secrets, record (until the program has begun), needs; with
#	  claim.K         who takes it, K from 1: SELF BOOT PID START HOST; or "- STATE CODE REASON MS": nobody, it has ended
#	  void.K          who claimed it has not begun it, and never will: claim.K+1 is open
#	line/MS.RUN.N     those that wait, the oldest first (a list to look at: the claims count)
#	hosts/MACHINE     SELF of that machine, which finds it again when its local disk was emptied
# Claims, names and the id are made by link(2), which a file server carries out once for all hosts, and are never
# changed. Locks are used among processes of one host only, in LOCAL/pool:
#	self              random: this host, also after a restart
#	joined/RUN.N      this host may take it: HOST, as the client calls it
#	unfit/RUN.N       why it cannot
#	lock, agent       of the one process here that takes what waits: PID START
#	try.RUN.N/        of the attempt to get its GPUs

# FILE NAME: an exclusive create. A file server that was asked twice, since its first answer was lost, says no the second
# time: what NAME is counts.
pool_link() {
	ln "$1" "$2" 2>/dev/null || [ "$1" -ef "$2" ]
}

# $pool_random
pool_random_of() {
	pool_random=$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')
}

# $pool_id; empty where files cannot be linked.
pool_id_of() {
	pool_id=
	{ read -r pool_id <"$d_root/pool/id"; } 2>/dev/null && return
	[ ! -e "$d_root/pool/none" ] && mkdir -p "$d_root/pool" && pool_random_of || return 0
	pool_new=$d_root/pool/.id-$d_place-$$
	printf '%s\n' "$pool_random" >"$pool_new" || return 0
	pool_link "$pool_new" "$d_root/pool/id" || [ -e "$d_root/pool/id" ] || true >"$d_root/pool/none"
	rm -f "$pool_new"
	read -r pool_id <"$d_root/pool/id"
} 2>/dev/null

# $pool_self
pool_self_of() {
	{ read -r pool_self <"$d_local/pool/self"; } 2>/dev/null && return
	mkdir -p "$d_local/pool/joined" "$d_local/pool/unfit" && pool_random_of || return 1
	! pool_machine_of || ! read -r pool_at <"$d_root/pool/hosts/$pool_machine" || pool_random=$pool_at
	printf '%s\n' "$pool_random" >"$d_local/pool/.self-$$" || return 1
	pool_link "$d_local/pool/.self-$$" "$d_local/pool/self"
	rm -f "$d_local/pool/.self-$$"
	read -r pool_self <"$d_local/pool/self"
} 2>/dev/null

# $pool_machine: by its name and the addresses that its devices were made with; without those its id. 1: others may be the
# same.
pool_machine_of() {
	case $d_host in localhost*) return 1 ;; esac
	pool_machine=
	for pool_at in /sys/class/net/*/device; do
		pool_at=${pool_at%/device}
		read -r pool_kind <"$pool_at/addr_assign_type" && [ "$pool_kind" = 0 ] && read -r pool_address <"$pool_at/address" || continue
		[ "${#pool_address}" != 17 ] || pool_machine="$pool_machine $pool_address"
	done
	[ "$pool_machine" ] || read -r pool_machine </etc/machine-id || return 1
	[ "$pool_machine" ] || return 1
	pool_machine=$d_place-$(printf '%s %s' "$d_host" "$pool_machine" | cksum | tr ' ' -)
} 2>/dev/null

# Before this host claims anything.
pool_note_self() {
	pool_self_of && pool_machine_of && [ ! -e "$d_root/pool/hosts/$pool_machine" ] && mkdir -p "$d_root/pool/hosts" || return 0
	pool_new=$d_root/pool/.host-$pool_self-$$
	printf '%s\n' "$pool_self" >"$pool_new" && pool_link "$pool_new" "$d_root/pool/hosts/$pool_machine"
	rm -f "$pool_new"
} 2>/dev/null

# RUN N: $pool_dir, its ticket. 1: it has none.
pool_of() {
	pool_dir=
	{ read -r pool_name pool_inode <"$d_root/pool/names/$1.$2"; } 2>/dev/null || return 1
	case $pool_name in '' | *[!0-9a-f]*) return 1 ;; esac
	pool_dir=$d_root/pool/tickets/$pool_name
}

# Whether somebody has claimed $pool_dir: $pool_k, the number of the claim, and its words $pool_by $pool_boot $pool_pid
# $pool_start $pool_host. 1: nobody has, and $pool_k is the number that is open.
pool_claimed() {
	pool_k=1
	while [ -e "$pool_dir/claim.$pool_k" ]; do
		if [ ! -e "$pool_dir/void.$pool_k" ]; then
			pool_by=? pool_boot= pool_pid= pool_start= pool_host=
			{ read -r pool_by pool_boot pool_pid pool_start pool_host <"$pool_dir/claim.$pool_k"; } 2>/dev/null
			return 0
		fi
		pool_k=$((pool_k + 1))
	done
	return 1
}

# WORDS: claims $pool_dir with them. 1: somebody else has it, or it cannot be written to.
pool_claim() {
	! pool_claimed && pool_claim_as "$pool_k" "$1"
}

# K WORDS
pool_claim_as() {
	# Two hosts may have one name, and pids do.
	pool_self_of || return 1
	pool_new=$pool_dir/.claim-$pool_self-$$
	pool_rc=1
	printf '%s\n' "$2" >"$pool_new" 2>/dev/null && pool_link "$pool_new" "$pool_dir/claim.$1" && pool_rc=0
	rm -f "$pool_new"
	return "$pool_rc"
}

# K STATE CODE REASON TEXT: claim K, of this host, came to nothing, and so did all: its end is there before the next claim is
# open.
pool_claim_end() {
	now_of
	pool_claim_as "$(($1 + 1))" "- $2 $3 $4 $now$nl$5" || [ -e "$pool_dir/claim.$(($1 + 1))" ] || return 1
	true >"$pool_dir/void.$1" && pool_forget
}

# What its attempt begins with is not needed any more; from now on no claim can be taken back.
pool_forget() {
	rm -f "$pool_dir/job" "$pool_dir/secrets" "$pool_dir/plan" "$pool_dir/apply" "$pool_dir/record"
}

# RUN N: it waits. Who made it may have been killed before it said so.
pool_enline() {
	for pool_at in "$d_root"/pool/line/*."$1.$2"; do
		[ ! -e "$pool_at" ] || return 0
	done
	now_of
	true >"$d_root/pool/line/$now.$1.$2"
}

# RUN N: it waits no more.
pool_unline() {
	rm -f "$d_root"/pool/line/*."$1.$2" "$d_local/pool/joined/$1.$2" "$d_local/pool/unfit/$1.$2"
}

# RUN N HOST: this host may take it from now on, if it sees the same ticket as the host that made it.
pool_join() {
	[ ! -e "$d_local/pool/joined/$1.$2" ] || return 0
	pool_self_of && [ "$(stat -c %i "$pool_dir" 2>/dev/null)" = "$pool_inode" ] && [ -f "$pool_dir/job" ] || return 1
	mkdir -p "$d_local/pool/joined" && printf '%s\n' "$3" >"$d_local/pool/joined/.$1.$2.$$" &&
		mv -f "$d_local/pool/joined/.$1.$2.$$" "$d_local/pool/joined/$1.$2"
}

# One that was killed, or ended with the machine, is followed by another one when anybody talks to this host.
pool_kick() {
	for pool_at in "$d_local"/pool/joined/*; do
		[ -e "$pool_at" ] || return 0
		break
	done
	pool_pid= pool_start=
	{ read -r pool_pid pool_start <"$d_local/pool/agent"; } 2>/dev/null
	is_alive "$pool_pid" "$pool_start" || launch_away "$d_local/pool" pool
}

#
# A submit
#

# $sub_new becomes a ticket. One that is there already counts.
pool_submit() {
	if pool_of "$sub_run" "$sub_n" || pool_make; then
		rm -rf "$sub_file" "$sub_new" "$sub_mark"
		# Nobody takes it here before this host has joined: nothing of it is there yet.
		if [ ! -e "$d_local/pool/joined/$sub_run.$sub_n" ]; then
			newest_of "$sub_run"
			[ "$newest" -gt 0 ] || rmdir "$d_local/runs/$sub_run/outputs" "$d_local/runs/$sub_run" 2>/dev/null
		fi
		pool_join "$sub_run" "$sub_n" "$sub_pool" || :
		printf 'accepted 0 0\n'
		pool_kick
		return
	fi
	submit_fail io "$d_root/pool cannot be written to"
}

pool_make() {
	mkdir -p "$d_root/pool/names" "$d_root/pool/tickets" "$d_root/pool/line" && pool_random_of || return 1
	pool_name=$pool_random pool_dir=$d_root/pool/tickets/$pool_random
	mkdir "$pool_dir" || return 1
	for sub_item in plan apply secrets record job; do
		[ ! -f "$sub_new/$sub_item" ] || cp "$sub_new/$sub_item" "$pool_dir/$sub_item" || return 1
	done
	printf 'need=%s\ntools=%s\n' "$sub_need" "$sub_tools" >"$pool_dir/needs" || return 1
	pool_inode=$(stat -c %i "$pool_dir") && printf '%s %s\n' "$pool_name" "$pool_inode" >"$pool_dir/name" || return 1
	sync "$pool_dir"/* 2>/dev/null
	if pool_link "$pool_dir/name" "$d_root/pool/names/$sub_run.$sub_n"; then
		pool_enline "$sub_run" "$sub_n"
		return
	fi
	rm -rf "$pool_dir"
	pool_of "$sub_run" "$sub_n"
} 2>/dev/null

# Tickets of long ago: nobody sends such an attempt again.
pool_clean() {
	find "$d_root/gangs" -mindepth 1 -maxdepth 1 -mtime +90 -exec rm -rf {} + 2>/dev/null
	find "$d_root/pool/names" -type f -mtime +90 2>/dev/null | while IFS= read -r pool_at; do
		pool_at=${pool_at##*/}
		pool_of "${pool_at%.*}" "${pool_at##*.}" && [ ! -f "$pool_dir/job" ] || continue
		rm -f "$d_root/pool/names/$pool_at"
		rm -rf "$pool_dir"
	done
}

#
# States
#

# RUN N: its line of an answer, if it is in ROOT/pool and not here.
pool_line() {
	pool_of "$1" "$2" || return 1
	[ -e "$d_local/pool/joined/$1.$2" ] || [ "$(stat -c %i "$pool_dir" 2>/dev/null)" = "$pool_inode" ] || return 1
	pool_mend_gone "$1" "$2"
	if ! pool_claimed; then
		pool_wait_text "$1" "$2"
		word_of "$pool_text"
		printf 'attempt %s queued pool=1 text=%s\n' "$1/$2" "$coded"
		return
	fi
	if [ "$pool_by" = - ]; then
		# The words stand for others here: STATE CODE REASON MS.
		word_of "$(tail -n 1 "$pool_dir/claim.$pool_k")"
		printf 'attempt %s %s pool=1 code=%s signal=0 origin=dlrun reason=%s ended=%s text=%s\n' "$1/$2" "$pool_boot" "$pool_pid" \
			"$pool_start" "$pool_host" "$coded"
		return
	fi
	word_of "$pool_host"
	printf 'attempt %s queued pool=1 claimed=%s\n' "$1/$2" "$coded"
}

# RUN N: $pool_text, why it waits here. Before it are those that this host may take, too.
pool_wait_text() {
	pool_before=0 pool_text=
	for pool_at in "$d_root"/pool/line/*; do
		case $pool_at in *."$1.$2") break ;; esac
		pool_at=${pool_at##*/}
		[ ! -e "$d_local/pool/joined/${pool_at#*.}" ] || pool_before=$((pool_before + 1))
	done
	case $pool_before in
	0) ;;
	1) pool_text='1 run is before it' ;;
	*) pool_text="$pool_before runs are before it" ;;
	esac
	if pool_is_unfit "$d_local/pool/unfit/$1.$2"; then
		pool_text="$d_host cannot take it: $pool_why${pool_text:+; $pool_text}"
	elif field_of "$d_local/pool/try.$1.$2/state" text && [ "$value" ]; then
		pool_text="$value${pool_text:+; $pool_text}"
	fi
}

# Those of this host's for verb_list.
pool_list() {
	for list_dir in "$d_local"/pool/joined/*; do
		[ -e "$list_dir" ] || return 0
		list_dir=${list_dir##*/}
		pool_of "${list_dir%.*}" "${list_dir##*.}" && [ -f "$pool_dir/record" ] && ! pool_claimed || continue
		coded=$(words_awk <"$pool_dir/record")
		[ "${#coded}" -le 60000 ] && [ "$coded" ] || coded='\0'
		printf 'run %s %s %s\n' "${list_dir%.*}" "$list_user" "$coded"
		pool_line "${list_dir%.*}" "${list_dir##*.}"
	done
}

#
# Ends
#

# RUN N STATE CODE REASON TEXT: it ends before anybody has begun it. 1: this host has it, or it was never given to several.
# Does not come back where another host has it.
pool_end() {
	pool_of "$1" "$2" || return 1
	[ ! -d "$d_local/runs/$1/$2" ] || { pool_claimed && pool_mend_one "$1" "$2"; } || return 1
	pool_tries=0
	while [ $((pool_tries += 1)) -le 100 ]; do
		now_of
		if pool_claim "- $3 $4 $5 $now$nl$6"; then
			pool_forget
			pool_unline "$1" "$2"
			return 0
		fi
		pool_claimed || continue
		[ "$pool_by" != - ] || return 0
		pool_self_of && [ "$pool_by" = "$pool_self" ] ||
			answer_fail gone "$pool_host has taken it"
		# Here: it is being made, or who took it was killed.
		[ ! -d "$d_local/runs/$1/$2" ] || return 1
		pool_mend_one "$1" "$2" || sleep 0.1 || sleep 1
	done 2>/dev/null
	pool_claimed || answer_fail disk "$pool_dir cannot be written to"
	answer_fail busy 'it is about to begin'
}

#
# Claims of this host that came to nothing. Only it can tell.
#

# RUN N, with its claim in $pool_by and so on: whoever claimed it here died before there was anything of the attempt. 1: it
# is not so.
pool_mend_one() {
	pool_self_of && [ "$pool_by" = "$pool_self" ] && [ -f "$pool_dir/job" ] || return 1
	if [ "$pool_boot" = "$d_boot" ] && is_alive "$pool_pid" "$pool_start"; then
		return 1
	fi
	# In this order: who is dead makes no directory any more.
	[ ! -d "$d_local/runs/$1/$2" ] || pool_mend_dir "$1" "$2" 7<"$d_local/runs/$1/$2" || return 1
	true >"$pool_dir/void.$pool_k"
}

# RUN N: it was killed between its directory and what tells that this is of a ticket (begin_claim). 1: it is not so, or its
# end, of which somebody was told, is that of the ticket now.
pool_mend_dir() {
	flock 7
	pool_made=$d_local/runs/$1/$2
	[ "$pool_made" -ef /proc/self/fd/7 ] && [ ! -e "$pool_made/pool" ] || return 1
	if field_of "$pool_made/exit" state; then
		end_state=$value
		field_of "$pool_made/exit" code && end_code=$value && field_of "$pool_made/exit" reason && end_reason=$value || return 1
		field_of "$pool_made/exit" text
		pool_claim_end "$pool_k" "$end_state" "$end_code" "$end_reason" "$value" && pool_unline "$1" "$2"
		return 1
	fi
	[ ! -e "$pool_made/lock" ] || flock -n 8 8<"$pool_made/lock" || return 1
	pool_gone=$d_local/incoming/.gone-$$-pool
	mv "$pool_made" "$pool_gone" || return 1
	pool_rc=0
	if [ -e "$pool_gone/cancel" ]; then
		pool_rc=1
		pool_end_asked "$pool_k" "$pool_gone" && pool_unline "$1" "$2"
	fi
	rm -rf "$pool_gone"
	return "$pool_rc"
}

# RUN N: a claim of this host of which nobody knows here, since its local disk was emptied: another host may begin what
# had not begun, and what had is lost.
pool_mend_gone() {
	pool_claimed && pool_self_of && [ "$pool_by" = "$pool_self" ] || return 0
	if [ "$pool_boot" = "$d_boot" ] && is_alive "$pool_pid" "$pool_start"; then
		return
	fi
	# In this order, as in pool_mend_one.
	if [ -d "$d_local/runs/$1/$2" ]; then
		return
	elif [ -f "$pool_dir/job" ]; then
		true >"$pool_dir/void.$pool_k"
	else
		pool_claim_end "$pool_k" lost 125 Lost "$pool_host no longer knows of it"
	fi
	return 0
} 2>/dev/null

# K DIR: its end was asked for, and promised: no host begins it.
pool_end_asked() {
	end_asked "$2"
	[ "$end_reason" != Cancelled ] || end_text='it was cancelled before it had begun'
	pool_claim_end "$1" "$end_state" "$end_code" "$end_reason" "$end_text"
}

# RUN N: whether it was taken back on this host before there was a ticket here (cancel_absent).
pool_is_back() {
	[ ! -e "$d_local/runs/$1/$2/pool" ] && field_of "$d_local/runs/$1/$2/exit" text && [ "$value" = "$HOLD_ABSENT" ]
}

# DIR: an attempt that has not begun, and that nobody can begin any more, waits on all hosts again. 1: it was not theirs.
pool_release() {
	[ -f "$1/pool" ] && [ ! -e "$1/cancel" ] && read -r release_name release_k release_host <"$1/pool" || return 1
	pool_dir=$d_root/pool/tickets/$release_name
	[ -f "$pool_dir/job" ] && release_alone "$1" 7<"$1"
} 2>/dev/null

# One at a time, and only that very directory: the next one has the same name.
release_alone() {
	flock 7
	[ "$1" -ef /proc/self/fd/7 ] || return 0
	[ ! -e "$1/exit" ] || return 1
	# Its setup, which nobody waits for any more, has the GPUs.
	if judge_boot "$1" && self_of; then
		release_not=$family_not family_not="$family_not $self"
		end_family "$1" workers "$LEFT_GRACE" 7>&-
		family_not=$release_not
	fi
	release_n=${1##*/} release_run=${1%/*}
	release_run=${release_run##*/}
	printf '%s\n' "$release_host" >"$d_local/pool/joined/$release_run.$release_n" || return 1
	pool_enline "$release_run" "$release_n"
	release_gone=$d_local/incoming/.gone-$$-pool
	mv "$1" "$release_gone" || return 1
	if [ -e "$release_gone/cancel" ]; then
		pool_end_asked "$release_k" "$release_gone" && pool_unline "$release_run" "$release_n"
	else
		true >"$pool_dir/void.$release_k"
	fi
	rm -rf "$release_gone"
	pool_kick
	return 0
}

#
# Taking
#

# The one process of this host that takes what waits. It ends when nothing does.
job_pool() {
	pool_here=$d_local/pool
	exec 9>>"$pool_here/lock" >/dev/null 2>>"$pool_here/notes"
	launch_of
	pool_self_of || exit 1
	pool_note_self
	while flock -n 9; do
		proc_start_of $$
		printf '%s %s\n' $$ "$start" >"$pool_here/.agent" && mv -f "$pool_here/.agent" "$pool_here/agent"
		pool_serve
		# Whoever joins after this begins another one; who joined before is seen now.
		rm -f "$pool_here/agent"
		flock -u 9
		for pool_at in "$pool_here"/joined/*; do
			[ -e "$pool_at" ] || exit 0
			break
		done
	done
}

pool_serve() {
	pool_is_nfs=
	! is_shared || pool_is_nfs=1
	while :; do
		pool_left=
		for pool_at in "$pool_here"/joined/*; do
			[ ! -e "$pool_at" ] || pool_left=1
			break
		done
		[ "$pool_left" ] || return 0
		if pool_next; then
			pool_try "$pool_run" "$pool_n"
		else
			sleep 1 9>&-
		fi
	done
}

# $pool_run $pool_n: the oldest that this host may take.
pool_next() {
	# What this host changes itself it reads anew from the file server.
	[ -z "$pool_is_nfs" ] || { true >"$d_root/pool/line/.$d_place" && rm -f "$d_root/pool/line/.$d_place"; }
	for pool_at in "$d_root"/pool/line/*; do
		pool_at=${pool_at##*/}
		pool_at=${pool_at#*.}
		pool_run=${pool_at%.*} pool_n=${pool_at##*.}
		[ -e "$pool_here/joined/$pool_at" ] && ! pool_is_unfit "$pool_here/unfit/$pool_at" && pool_of "$pool_run" "$pool_n" || continue
		if ! pool_claimed; then
			pool_is_back "$pool_run" "$pool_n" || return 0
			pool_end_back
			continue
		fi
		if [ "$pool_by" = "$pool_self" ]; then
			pool_mend_one "$pool_run" "$pool_n" && return 0
			[ ! -d "$d_local/runs/$pool_run/$pool_n" ] || judge_of "$d_local/runs/$pool_run/$pool_n"
		elif [ ! -f "$pool_dir/job" ]; then
			pool_unline "$pool_run" "$pool_n"
		fi
	done
	# Those of which the line tells no more, or not yet.
	for pool_at in "$pool_here"/joined/*; do
		pool_at=${pool_at##*/}
		pool_run=${pool_at%.*} pool_n=${pool_at##*.}
		if ! pool_of "$pool_run" "$pool_n" || [ ! -f "$pool_dir/job" ]; then
			rm -f "$pool_here/joined/$pool_at" "$pool_here/unfit/$pool_at"
		elif ! pool_claimed; then
			pool_enline "$pool_run" "$pool_n"
		fi
	done
	return 1
} 2>/dev/null

# $pool_run $pool_n: nobody begins it.
pool_end_back() {
	now_of
	! pool_claim "- failed 125 Interrupted $now$nl$HOLD_ABSENT" || pool_forget
	[ -f "$pool_dir/job" ] || pool_unline "$pool_run" "$pool_n"
}

# FILE: $pool_why; for a minute, since a driver may be in order again by then.
pool_is_unfit() {
	[ -e "$1" ] && read -r pool_since pool_why <"$1" || return 1
	ticks_of
	[ "$ticks" -ge "$pool_since" ] && [ "$ticks" -lt $((pool_since + 6000)) ]
} 2>/dev/null

# RUN N TEXT
pool_unfit() {
	ticks_of
	mkdir -p "$d_local/pool/unfit" && printf '%s %s\n' "$ticks" "$3" >"$d_local/pool/unfit/$1.$2"
}

# RUN N: waits for its GPUs here, until it has them, or another host has taken it.
pool_try() {
	pool_dir_here=$pool_here/try.$1.$2
	rm -rf "$pool_dir_here"
	mkdir -p "$pool_dir_here" && cp "$pool_dir/job" "$pool_dir_here/job" && true >"$pool_dir_here/notes" || {
		sleep 1 9>&-
		return
	}
	pool_launch "$1" "$2"
	if [ -z "$pool_said" ] && [ "$d_launch" = systemd ] && [ ! -e "$pool_dir_here/state" ]; then
		d_launch=setsid
		pool_launch "$1" "$2"
	fi
	if [ -z "$pool_said" ] && ! pool_claimed; then
		if field_of "$pool_dir_here/exit" text; then
			pool_unfit "$1" "$2" "$value"
		else
			tail -n 5 "$pool_dir_here/notes" >&2
			sleep 1 9>&-
		fi
	elif [ -z "$pool_said" ] && [ "$pool_by" = "$pool_self" ]; then
		# It has claimed it, and could not begin.
		sleep 1 9>&-
	fi
	rm -rf "$pool_dir_here"
}

# RUN N: $pool_said when it has begun; empty: it ended without that. Its first line tells, for it lives on.
pool_launch() {
	pool_said=$({ launch "$d_local/runs/$1/$2" pooled "$1" "$2" "$d_launch" 2>>"$pool_dir_here/notes" 9>&-; } | {
		IFS= read -r pool_said
		printf %s "$pool_said"
	} 9>&-)
}

# Whether another host has what this process waits for.
pool_is_lost() {
	[ "${pool_waits-}" ] && pool_claimed
}

# RUN N LAUNCH: gets the GPUs, then becomes job_taken.
job_pooled() {
	pool_of "$1" "$2" || exit 1
	dir=$d_local/pool/try.$1.$2
	. "$dir/job"
	# One that is not to be begun here has not failed.
	j_fail_fast=0 pool_waits=1
	# What follows has ours.
	login_write "$dir" || exit 1
	[ "$j_gpus" != auto ] || j_gpus=1
	field_of "$pool_dir/needs" tools
	for pool_at in $value; do
		command -v "$pool_at" >/dev/null 2>&1 || attempt_fail "$dir" StartFailed "$pool_at is not there"
	done
	field_of "$pool_dir/needs" need
	free_of "$d_local"
	[ "$free" -ge "${value:-0}" ] || attempt_fail "$dir" StartFailed "$d_local has $free bytes free, $value are needed"
	gpus_enter "$dir" sh "$d_runner" "$d_root" - "$d_local" taken "$1" "$2" "$3"
	exit 1
}

# RUN N LAUNCH, with the GPUs.
job_taken() {
	pool_of "$1" "$2" && pool_self_of && { read -r taken_host <"$d_local/pool/joined/$1.$2"; } 2>/dev/null || exit 1
	proc_start_of $$
	pool_claim "$pool_self $d_boot $$ $start $taken_host" || exit 1
	taken_new=$d_local/runs/$1/.new-$$
	rm -rf "$taken_new"
	if mkdir -p "$d_local/runs/$1/outputs" "$taken_new/files" && taken_copy "$1"; then
		printf '%s %s %s\n' "$pool_name" "$pool_k" "$taken_host" >"$taken_new/pool"
		mv -f "$d_local/pool/try.$1.$2/gpus" "$taken_new/gpus"
		gpu_locks_of
		begin_has_gpus=1
		. "$d_local/pool/try.$1.$2/login"
		job_begin "$1" "$2" "$taken_new" "$3"
	fi
	rm -rf "$taken_new"
	pool_unfit "$1" "$2" 'its disk is full'
	true >"$pool_dir/void.$pool_k"
	exit 1
}

# RUN
taken_copy() {
	printf '%s took it\n' "$d_host" >"$taken_new/notes" && cp "$pool_dir/job" "$pool_dir/plan" "$taken_new/" || return 1
	for taken_file in apply secrets; do
		[ ! -f "$pool_dir/$taken_file" ] || cp "$pool_dir/$taken_file" "$taken_new/" || return 1
	done
	[ ! -f "$pool_dir/record" ] || cp "$pool_dir/record" "$d_local/runs/$1/record"
}

# DIR: its program begins, or it has ended: the ticket is of no use any more.
pool_over() {
	[ -f "$1/pool" ] && read -r pool_name pool_at <"$1/pool" || return 0
	pool_dir=$d_root/pool/tickets/$pool_name
	pool_forget
	pool_unline "$(over_run=${1%/*} && printf %s "${over_run##*/}")" "${1##*/}"
} 2>/dev/null
