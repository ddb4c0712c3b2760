# SPDX-License-Identifier: Apache-2.0
# submit: a transfer is taken, cut into its parts, kept; then a supervisor is started that begins the attempt.

verb_submit() {
	check_name "${1-}"
	check_number "${2-}"
	sub_run=$1 sub_n=$2 sub_dir=$d_local/runs/$1/$2
	sub_file=$d_local/incoming/none.$$
	submit_lines
	submit_check
	if [ "$sub_pool" ] && pool_of "$sub_run" "$sub_n"; then
		sub_new=$sub_file sub_mark=$sub_file
		pool_submit
		return
	fi
	# It came a second time: the one that came first goes on.
	if [ -d "$sub_dir" ]; then
		submit_accepted
		return
	fi
	sub_new=$d_local/runs/$sub_run/.new-$$ sub_mark=$d_local/incoming/.secret-$sub_name.$$
	# Of somebody with our pid, before a restart.
	[ ! -e "$sub_new" ] || rm -rf "$sub_new"
	mkdir -p "$d_local/runs/$sub_run/outputs" "$sub_new/files" || answer_fail io "$d_local/runs cannot be written to"
	submit_touch
	submit_take
	submit_cut
	for sub_item in $sub_tree; do
		[ -f "$d_root/layers/${sub_item%:*}" ] || submit_fail missing "layer ${sub_item%:*} is not there"
	done
	printf "p_tree='%s'\np_strip=%s\np_spare=%s\np_count=%s\n" "$sub_tree" "$sub_strip" "$sub_spare" "$sub_count" >"$sub_new/plan" ||
		submit_fail disk "$sub_new cannot be written to"
	if [ "$sub_pool" ]; then
		pool_submit
	else
		submit_start
	fi
}

# What is used now is not taken away for its age (72-kept.sh).
submit_touch() {
	set --
	for sub_item in $sub_tree; do
		set -- "$@" "$d_root/layers/${sub_item%:*}"
	done
	[ $# = 0 ] || touch -c "$@"
} 2>/dev/null

submit_lines() {
	sub_total=0 sub_from=0 sub_name= sub_parts= sub_tree= sub_strip=0 sub_spare= sub_count=0 sub_need=0 sub_sum=0 sub_tools= sub_secret=0 sub_pool=
	while next_line; do
		set -f
		set -- $line
		set +f
		case ${1-} in
		transfer) sub_name=$2 sub_total=$3 sub_from=$4 ;;
		part)
			check_number "${3-}"
			case $2 in
			job | secrets | record | apply)
				sub_parts="$sub_parts $2:$3"
				[ "$2" != secrets ] || sub_secret=$3
				;;
			layer)
				check_name "${4-}"
				sub_parts="$sub_parts layer:$3:$4"
				;;
			*) answer_fail usage "a part $2" ;;
			esac
			sub_sum=$((sub_sum + $3))
			;;
		tree)
			check_name "${2-}"
			case ${3-} in
			gzip | zstd | none) sub_tree="$sub_tree $2:$3" ;;
			*) answer_fail usage "a layer as ${3-}" ;;
			esac
			;;
		strip) sub_strip=$2 ;;
		pool)
			unword_of "${2-}"
			sub_pool=$plain
			;;
		spare) sub_spare=$2 sub_count=$3 ;;
		need) sub_need=$2 ;;
		tool)
			check_name "${2-}"
			sub_tools="$sub_tools $2"
			;;
		*) answer_fail usage "submit does not know ${1-an empty line}" ;;
		esac
	done
}

submit_check() {
	for sub_item in "$sub_total" "$sub_from" "$sub_strip" "$sub_count" "$sub_need"; do
		check_number "$sub_item"
	done
	check_name "$sub_name"
	[ -z "$sub_spare" ] || check_name "$sub_spare"
	[ "$sub_sum" = "$sub_total" ] || answer_fail usage "parts of $sub_sum bytes are no $sub_total"
	for sub_item in tar sha256sum $sub_tools; do
		has_tool "$sub_item"
	done
	[ "$d_flock" ] || answer_fail tool 'none of flock, perl and python3 is there'
	case $sub_tree in *:gzip*) has_tool gzip ;; esac
	case $sub_tree in *:zstd*) has_tool zstd ;; esac
	[ "$d_free" -ge $((sub_need + sub_total - sub_from)) ] ||
		answer_fail disk "$d_local has $d_free bytes free, $((sub_need + sub_total - sub_from)) are needed"
}

has_tool() {
	command -v "$1" >/dev/null 2>&1 || answer_fail tool "$1 is not there"
}

submit_fail() {
	rm -rf "$sub_new" "$sub_file" "$sub_mark"
	answer_fail "$1" "$2"
}

# Each conversation writes a file of its own, so that one that is thought dead and is not does no harm.
# What others have is only added to: its beginning stays as it is.
submit_take() {
	sub_file=$d_local/incoming/$sub_name.$$
	if [ "$sub_secret" -gt 0 ]; then
		proc_start_of $$
		printf '%s %s\n' "$start" "$sub_new" >"$sub_mark"
	fi
	if [ "$sub_from" -gt 0 ]; then
		submit_resume
		cat >>"$sub_file"
	else
		cat >"$sub_file"
	fi || submit_fail disk "$d_local is full"
	sub_size=$(wc -c <"$sub_file")
	[ "$sub_size" -ge "$sub_total" ] || {
		submit_keep_rest
		exit 0
	}
	[ "$sub_size" -eq "$sub_total" ] || submit_fail corrupt "$((sub_size)) bytes came for $sub_total"
}

# For somebody who goes on; but what came of the secrets, which are last, does not wait for him.
submit_keep_rest() {
	sub_open=$((sub_total - sub_secret))
	if [ "$sub_size" -gt "$sub_open" ]; then
		dd if=/dev/null of="$sub_file" bs="$sub_open" seek=1 count=0 2>/dev/null || rm -f "$sub_file"
	fi
	rm -rf "$sub_new" "$sub_mark"
}

# Of conversations that were killed while they had secrets.
submit_sweep() {
	for sub_old in "$d_local"/incoming/.secret-*.*; do
		[ -f "$sub_old" ] && read -r sub_start sub_new <"$sub_old" || continue
		if proc_start_of "${sub_old##*.}" && [ "$start" = "$sub_start" ]; then
			continue
		fi
		case $sub_new in "$d_local"/runs/*/.new-*) rm -rf "$sub_new" ;; esac
		rm -f "$d_local/incoming/${sub_old##*/.secret-}" "$sub_old"
	done
} 2>/dev/null

submit_resume() {
	for sub_old in "$d_local/incoming/$sub_name".*; do
		[ "$sub_old" != "$sub_file" ] && [ -f "$sub_old" ] && [ "$(wc -c <"$sub_old")" -ge "$sub_from" ] || continue
		if kill -0 "${sub_old##*.}" 2>/dev/null; then
			head -c "$sub_from" "$sub_old" >"$sub_file"
		else
			mv -f "$sub_old" "$sub_file" && dd if=/dev/null of="$sub_file" bs="$sub_from" seek=1 count=0 2>/dev/null
		fi && [ "$(wc -c <"$sub_file")" -eq "$sub_from" ] && return
		rm -f "$sub_file"
	done
	submit_fail gone "there are no $sub_from bytes of $sub_name"
}

# One after the other from one open file.
submit_cut() {
	for sub_item in $sub_parts; do
		sub_what=${sub_item%%:*} sub_item=${sub_item#*:}
		sub_hex=${sub_item#*:} sub_size=${sub_item%%:*}
		if [ "$sub_what" = layer ]; then
			submit_layer
		else
			submit_bytes "$sub_new/$sub_what"
		fi
	done <"$sub_file"
	[ -f "$sub_new/job" ] || submit_fail usage 'no job'
	[ ! -f "$sub_new/record" ] || [ "$sub_pool" ] || mv -f "$sub_new/record" "$d_local/runs/$sub_run/record"
}

submit_bytes() {
	sub_rest=$((sub_size & 1048575)) sub_big=$((sub_size >> 20))
	{
		{ [ "$sub_big" = 0 ] || dd bs=1048576 count="$sub_big" 2>/dev/null; } &&
			{ [ "$sub_rest" = 0 ] || dd bs="$sub_rest" count=1 2>/dev/null; }
	} >"$1" || submit_fail disk "$d_local is full"
}

submit_layer() {
	sub_layer=$d_root/layers/.$sub_hex.$d_place-$$
	submit_bytes "$sub_layer"
	sub_sum=$(sha256sum <"$sub_layer")
	if [ "${sub_sum%% *}" != "$sub_hex" ]; then
		rm -f "$sub_layer"
		submit_fail corrupt "layer $sub_hex came as ${sub_sum%% *}"
	fi
	mv -f "$sub_layer" "$d_root/layers/$sub_hex" || submit_fail disk "$d_root/layers cannot be written to"
}

# It says who it is, or ends without a word; what it said then is evidence.
submit_start() {
	printf '%s supervised by %s\n' "$sub_run/$sub_n" "$d_launch" >"$sub_new/notes"
	sub_said=$(launch "$sub_dir" begin "$sub_run" "$sub_n" "$sub_new" "$d_launch" 2>>"$sub_new/notes")
	if [ -z "$sub_said" ] && [ "$d_launch" = systemd ] && [ ! -d "$sub_dir" ]; then
		d_launch=setsid
		sub_said=$(launch "$sub_dir" begin "$sub_run" "$sub_n" "$sub_new" setsid 2>>"$sub_new/notes")
	fi
	if [ "$sub_said" ]; then
		printf '%s\n' "$sub_said"
	elif [ -d "$sub_dir" ]; then
		submit_accepted
	else
		cat "$sub_new/notes" >&2
		submit_fail io 'the supervisor did not start'
	fi
	printf '%s done\n' "$d_mark"
	rm -rf "$sub_file" "$sub_new" "$sub_mark"
	# Of earlier conversations.
	for sub_old in "$d_local/incoming/$sub_name".*; do
		kill -0 "${sub_old##*.}" 2>/dev/null || rm -f "$sub_old"
	done
	exit 0
}

# The attempt is somebody else's; in a moment it says who that is, or it has ended.
submit_accepted() {
	sub_tries=0
	until field_of "$sub_dir/state" supervisor || [ -e "$sub_dir/exit" ] || [ $((sub_tries += 1)) -gt 50 ]; do
		sleep 0.1 || sleep 1
	done 2>/dev/null
	[ "$value" ] || value=0:0
	printf 'accepted %s %s\n' "${value%:*}" "${value#*:}"
}
