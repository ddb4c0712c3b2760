# SPDX-License-Identifier: Apache-2.0
# Ranks of one run on hosts with one home end with each other while no dlrun polls them. In ROOT/gangs/RUN.N, if ROOT is shared:
#	NUMBER            STATE REASON MS of the rank of that number, which has ended
# On hosts whose homes are apart the dlrun that polls them ends them (lib/targets/ssh/gang.h, which has the same rules).

# DIR STATE REASON MS
peers_tell() {
	field_of "$1/job" j_number && is_shared || return 0
	peers_dir=${1%/*}
	peers_dir=$d_root/gangs/${peers_dir##*/}.${1##*/}
	mkdir -p "$peers_dir" && printf '%s %s %s\n' "$2" "$3" "$4" >"$peers_dir/.$value.$$" && mv -f "$peers_dir/.$value.$$" "$peers_dir/$value"
} 2>/dev/null

# DIR, whose job was read. A rank that was not told to begin is ended by the dlrun that submits it.
peers_look() {
	[ "${j_number-}" ] && [ -e "$1/go" ] && [ ! -e "$1/cancel" ] && [ -d "$d_root/gangs/$j_run.$j_attempt" ] || return 0
	peers_how= peers_left=$j_ends_n
	now_of
	for peers_at in "$d_root/gangs/$j_run.$j_attempt"/*; do
		read -r peers_state peers_reason peers_ms <"$peers_at" || continue
		peers_at=${peers_at##*/}
		peers_deciding=
		[ "$peers_at" -lt "$j_ends_first" ] || [ "$peers_at" -ge $((j_ends_first + j_ends_n)) ] || peers_deciding=1
		case $peers_state:$peers_reason in
		succeeded:*) [ -z "$peers_deciding" ] || peers_left=$((peers_left - 1)) ;;
		*:PeerEnded | *:RoleEnded | *:Interrupted) ;;
		# GANG_LATE_MS
		*) [ "$peers_deciding" ] || [ "$j_ends_n" = 0 ] || [ $((now - peers_ms)) -ge 3000 ] && peers_how=peer ;;
		esac
	done
	[ "$j_ends_n" = 0 ] || [ "$peers_left" -gt 0 ] || peers_how=role
	[ -z "$peers_how" ] || (dir=$1 && cancel_for "$peers_how")
} 2>/dev/null

# RUN
peers_forget() {
	rm -rf "$d_root/gangs/$1".*
}
