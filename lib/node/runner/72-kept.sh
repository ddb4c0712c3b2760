# SPDX-License-Identifier: Apache-2.0
# What is kept by what it is, and cleaning up. The time of a layer or of data is that of its last use.

verb_have() {
	for kept_hex; do
		case $kept_hex in
		'' | *[!0-9a-f]*) continue ;;
		esac
		[ -f "$d_root/layers/$kept_hex" ] || continue
		touch -c "$d_root/layers/$kept_hex" 2>/dev/null
		printf 'layer %s\n' "$kept_hex"
	done
}

# KEY [BYTES]: a tar stream of so many bytes. Without BYTES its end tells that all of it came.
verb_data() {
	check_name "${1-}"
	[ $# -lt 2 ] || check_number "$2"
	kept_place=$d_root/data/$1
	if [ -d "$kept_place" ]; then
		touch -c "$kept_place"
		printf 'have %s\n' "$1"
		return
	fi
	printf 'want %s\n' "$1"
	kept_new=$d_root/data/.new-$1-$d_place-$$
	mkdir -p "$kept_new/tree" && mkfifo "$kept_new/copy" || answer_fail io "$d_root/data cannot be written to"
	trap 'rm -rf "$kept_new"' EXIT
	kept_unpack "${2-}" || answer_fail corrupt "the data $1 did not come whole: $(tail -n 1 "$kept_new/said")"
	chmod -R u+rwX "$kept_new/tree"
	touch "$kept_new/tree"
	# Somebody else may have been quicker.
	[ -d "$kept_place" ] || mv "$kept_new/tree" "$kept_place" || [ -d "$kept_place" ] ||
		answer_fail disk "$d_root/data cannot be written to"
}

kept_unpack() {
	if [ -n "$1" ]; then
		(wc -c <"$kept_new/copy" >"$kept_new/end") &
	else
		(tail -c 1024 <"$kept_new/copy" | tr -d '\0' | wc -c >"$kept_new/end") &
	fi
	{ tee "$kept_new/copy" || echo "the disk is full" >>"$kept_new/said"; } | {
		tar -xof - -C "$kept_new/tree" 2>>"$kept_new/said" || echo "tar: failed" >>"$kept_new/said"
		cat >/dev/null
	}
	wait "$!"
	kept_end=$(($(cat "$kept_new/end")))
	if [ "$kept_end" -ne "${1:-0}" ] || { [ -z "$1" ] && [ -z "$(ls -A "$kept_new/tree")" ]; }; then
		echo "it was cut" >>"$kept_new/said"
	fi
	[ ! -s "$kept_new/said" ]
}

# AGE_S BYTES [dry]
verb_gc() {
	check_number "${1-}"
	check_number "${2-}"
	now_of
	kept_now=${now%???} kept_living=$nl kept_busy=''
	kept_see_runs
	kept_list | sort -n | awk -v age="$1" -v limit="$2" -v now="$kept_now" -v shared="$(is_shared && echo 1)" '
	{ time[NR] = $1; bytes[NR] = $2 * 1024; kind[NR] = $3; path[NR] = $4; sum += bytes[NR] }
	END {
		for (i = 1; i <= NR; i++) {
			only_by_age = shared && (kind[i] == "layers" || kind[i] == "data")
			if (now - time[i] < age && (only_by_age || sum <= limit)) continue
			sum -= bytes[i]
			printf "%s %.0f %s %s\n", kind[i], bytes[i], path[i], time[i]
		}
	}' | while read -r kept_kind kept_bytes kept_path kept_time; do
		[ "${3-}" = dry ] || kept_remove "$kept_path" "$kept_time" || continue
		printf '%s %s\n' "$kept_kind" "$kept_bytes"
	done | awk '
	{ bytes[$1] += $2; count[$1]++ }
	END { for (kind in bytes) printf "freed %.0f %d %s\n", bytes[kind], count[kind], kind }'
	[ "${3-}" = dry ] || kept_clean "$1"
}

# $kept_living: the files of attempts that have not ended; $kept_busy: one is about to come.
kept_see_runs() {
	for kept_dir in "$d_local"/runs/*/[1-9]* "$d_local"/runs/*/.new-*; do
		[ -d "$kept_dir" ] || continue
		case $kept_dir in
		*/.new-*)
			kept_is_old "$kept_dir" 86400 || kept_is_left "$kept_dir" || kept_busy=1
			continue ;;
		esac
		[ -e "$kept_dir/exit" ] || judge_of "$kept_dir"
		[ -e "$kept_dir/exit" ] || kept_living=$kept_living$kept_dir$nl
	done
	for kept_dir in "$d_root"/pool/tickets/*; do
		[ ! -f "$kept_dir/job" ] || kept_living=$kept_living$kept_dir$nl
	done
}

# PATH SECONDS
kept_is_old() {
	kept_then=$(stat -c %Y "$1" 2>/dev/null) && [ $((kept_now - kept_then)) -ge "$2" ]
}

# WORDS: whether the job or the plan of an attempt that lives has them.
kept_is_used() {
	kept_rest=${kept_living#"$nl"}
	while [ -n "$kept_rest" ]; do
		kept_dir=${kept_rest%%"$nl"*}
		kept_rest=${kept_rest#*"$nl"}
		! grep -qF -e "$1" "$kept_dir/job" "$kept_dir/plan" 2>/dev/null || return 0
	done
	return 1
}

# Lines TIME KIB KIND PATH of what may go. PATH has no blanks: neither have ROOT and our names.
kept_list() {
	for kept_dir in "$d_local"/runs/*/[1-9]*; do
		[ -d "$kept_dir/tree" ] && [ -e "$kept_dir/exit" ] && collect_again "$kept_dir" && kept_line trees "$kept_dir/tree" "$kept_dir/exit"
	done
	for kept_path in "$d_local"/spares/*; do
		[ -d "$kept_path" ] && kept_line trees "$kept_path" "$kept_path"
	done
	for kept_path in "$d_local"/plain/*; do
		[ -f "$kept_path" ] && kept_line layers "$kept_path" "$kept_path"
	done
	for kept_path in "$d_local"/setups/*; do
		[ -d "$kept_path" ] && kept_setup_is_free "$kept_path" && kept_line trees "$kept_path" "$kept_path/stamp"
	done
	for kept_path in "$d_root"/data/*; do
		[ -d "$kept_path" ] && ! kept_is_used "data/${kept_path##*/}'" && kept_line data "$kept_path" "$kept_path"
	done
	[ -z "$kept_busy" ] || return 0
	for kept_path in "$d_root"/layers/*; do
		[ -f "$kept_path" ] && ! kept_is_used "${kept_path##*/}" && kept_line layers "$kept_path" "$kept_path"
	done
}

kept_line() {
	kept_kib=$(du -sk "$2" 2>/dev/null) && kept_then=$(stat -c %Y "$3" 2>/dev/null || echo 0) &&
		printf '%s %s %s %s\n' "$kept_then" "${kept_kib%%"$tab"*}" "$1" "$2"
}

kept_setup_is_free() {
	[ -f "$1/lock" ] || return 0
	flock -n 3 3<"$1/lock" && flock -n 3 3>>"$1/log"
} 2>/dev/null

# PATH TIME. What is used by now stays.
kept_remove() {
	case $1 in
	*/setups/*)
		command exec 3>>"$1/lock" && flock -n 3 || return 1
		rm -f "$1/done"
		kept_gone "$1" "$d_local/incoming/.gone-$$"
		exec 3>&- ;;
	*/layers/*) kept_unused "$1" "$d_root/layers/.${1##*/}.$d_place-$$" "$2" ;;
	*/data/*) kept_unused "$1" "$d_root/data/.new-gone-$d_place-$$" "$2" ;;
	*) kept_gone "$1" "$d_local/incoming/.gone-$$" ;;
	esac
}

# PATH ASIDE TIME: whoever uses it touches it, then looks whether it is there.
kept_unused() {
	[ "$(stat -c %Y "$1")" = "$3" ] && mv "$1" "$2" || return 1
	if [ "$(stat -c %Y "$2")" != "$3" ]; then
		[ -e "$1" ] || mv "$2" "$1"
		return 1
	fi
	kept_end "$2"
} 2>/dev/null

kept_gone() {
	kept_end "$2"
	mv "$1" "$2" && kept_end "$2"
}

# A program may have left directories that not even their owner may write to.
kept_end() {
	rm -rf "$1" 2>/dev/null || { chmod -R u+rwX "$1" && rm -rf "$1"; }
}

# PATH: of a submission whose process has ended. One that is complete may be taken over by its supervisor.
kept_is_left() {
	case $1 in
	"$d_local"/incoming/[!.]*.*) ;;
	"$d_local"/runs/*/.new-*) kept_is_old "$1" 60 || return 1 ;;
	*) return 1 ;;
	esac
	kept_pid=${1##*[.-]}
	case $kept_pid in '' | *[!0-9]*) return 1 ;; esac
	! kill -0 "$kept_pid"
} 2>/dev/null

# AGE_S: half of something, which nobody has gone on with for a day, or for AGE_S if its process has ended.
kept_clean() {
	for kept_path in "$d_local"/incoming/* "$d_local"/incoming/.g* "$d_local"/runs/*/.new-* "$d_local"/plain/.new-* "$d_root"/layers/.[0-9a-f]* \
		"$d_root"/data/.new-*; do
		[ -e "$kept_path" ] || continue
		if kept_is_old "$kept_path" 86400 || { kept_is_old "$kept_path" "$1" && kept_is_left "$kept_path"; }; then
			kept_end "$kept_path"
		fi
	done
	for kept_path in "$d_local"/studies/*; do
		[ -d "$kept_path" ] && kept_is_old "$kept_path" "$1" && ! kept_has_members "${kept_path##*/}" || continue
		kept_end "$kept_path"
	done
	pool_clean
}

# STUDY
kept_has_members() {
	for kept_dir in "$d_local/runs/${1%-*}"-[0-9]*-"${1##*-}"; do
		[ ! -d "$kept_dir" ] || return 0
	done
	return 1
}
