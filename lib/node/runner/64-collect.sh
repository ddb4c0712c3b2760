# SPDX-License-Identifier: Apache-2.0
# Results from the tree (dlrun.yaml(5): collect): what a program has created or changed in its tree becomes
# hard links in RUN/outputs; RUN/collected has the same links and tells which files of the outputs those are.
# DIR/collect, written when the tree was complete, is what times are compared with, and says what is left out.
# DIR/dirs has "INODE PATH" of the directories that there were then; DIR/split says which are searched at once.

# Expressions of find: what is never collected, and what is looked for while the program runs.
COLLECT_NEVER="-name .git -o -name __pycache__ -o -name .pytest_cache -o -name .mypy_cache -o -name .ruff_cache \
-o -name .ipynb_checkpoints -o -name '*.pyc' -o -name '*.pyo'"
COLLECT_LIVE="-name '*tfevents*' -o -name params.json -o -name hparams.yaml -o -name args.json -o -path '*/.hydra/config.yaml' \
-o -path '*/.hydra/overrides.yaml' \
-o -name projector_config.pbtxt -o -name tensors.tsv -o -name metadata.tsv -o -name sprite.png \
-o -name '*.pt.trace.json' -o -name '*.pt.trace.json.gz' -o -name 'tfdbg_events.*' -o -path '*/plugins/profile/*'"
COLLECT_SIZE=21474836480
COLLECT_MAX=1000000
# Directories that are new or moved, not counting those below them.
COLLECT_MOVED=1000
# A tree of fewer directories is searched by one find; any tree by at most so many.
COLLECT_SPLIT=512
COLLECT_FINDS=8
# So many names are told of each kind.
COLLECT_NAMED=4
# Links that a setup has made are older than what is changed: some of them may be replaced.
COLLECT_PRODUCTS=1000
collect_dirs= collect_is_moved= collect_parts=0

j_exclude() {
	:
}

# WORD...: further words of the expression of find.
collect_words() {
	for collect_word; do
		quoted_of "$collect_word"
		collect_prune="$collect_prune $quoted"
	done
}

# PATH: as a pattern that only this path matches.
collect_pattern() {
	case $1 in
	*[\\*?[]*) collect_path=$(printf %s. "$1" | sed 's/[\\*?[]/\\&/g') collect_path=./${collect_path%.} ;;
	*) collect_path=./$1 ;;
	esac
}

# A pattern without "/" is for each name of a path, another one for the path from the root of the tree.
collect_exclude() {
	collect_path=${1#./}
	collect_path=${collect_path#/}
	collect_path=${collect_path%/}
	case $collect_path in
	'') ;;
	*/*) collect_words -o -path "./$collect_path" ;;
	*) collect_words -o -name "$collect_path" ;;
	esac
}

# The tree of $dir is complete but for what the attempt before has left.
collect_begin() {
	collect_prune=$COLLECT_NEVER collect_n=0
	eval "set -- ${links_data-}"
	while [ $# -gt 0 ]; do
		collect_pattern "$1"
		collect_words -o -path "$collect_path"
		shift 2
	done
	eval "set -- ${setup_products-}"
	for collect_item; do
		[ $((collect_n += 1)) -le "$COLLECT_PRODUCTS" ] || break
		collect_pattern "$collect_item"
		collect_words -o -path "$collect_path"
	done
	eval "set -- ${links_outputs-}"
	for collect_item; do
		collect_pattern "$collect_item"
		collect_words -o -type l -path "$collect_path"
	done
	j_exclude
	[ ! -d "${dir%/*}/collected" ] || (collect_restore 9>&-) >/dev/null 2>&1 8>"${dir%/*}/.collecting"
	eval "set -- ! -type d -o '(' $collect_prune ')' -prune"
	# Beside what else is done until the program begins: collect_tick waits for it.
	true >"$dir/.dirs"
	exec 8<"$dir/.dirs"
	flock 8
	{
		(cd "$dir/tree" && find . -mindepth 1 "$@" -o -exec stat -c '%i %n' {} +) >"$dir/.dirs"
		mv "$dir/.dirs" "$dir/dirs"
		exec 8<&-
		hello_cpus
		[ "$cpus" -le "$COLLECT_FINDS" ] || cpus=$COLLECT_FINDS
		awk -v finds="$cpus" -v least="$COLLECT_SPLIT" -v q="'" "$collect_split_awk" "$dir/dirs" >"$dir/.split" && mv "$dir/.split" "$dir/split"
	} 9>&- 2>/dev/null &
	exec 8<&-
	quoted_of "$collect_prune"
	collect_prune=$quoted
	quoted_of "${links_outputs-}"
	printf 'collect_mode=%s\ncollect_bytes=%s\ncollect_prune=%s\ncollect_outputs=%s\n' "${j_collect:-auto}" \
		"${j_collect_bytes:-$COLLECT_SIZE}" "$collect_prune" "$quoted" >"$dir/collect" && ticks_of &&
		printf 'ticks=%s\n' "$ticks" >"$dir/.collect" || attempt_fail "$dir" StartFailed "$dir cannot be written to"
}

# Of "INODE PATH" lines "collect_part N PATH": subtrees for all finds but one, each of which gets about as many
# directories. None where a name has lines, nor so many that the words of find grow long.
collect_split_awk='
{
	if ($0 !~ /^[0-9]+ \.\//) { n = 0; exit }
	sub(/^[0-9]+ \.\//, "")
	path[++n] = at = $0
	do size[at]++; while (sub(/\/[^\/]*$/, "", at))
}
function quote(s, n, p, i, out) {
	n = split(s, p, q)
	out = q p[1]
	for (i = 2; i <= n; i++) out = out q "\\" q q p[i]
	return out q
}
END {
	each = n / finds
	for (i = 1; i <= n && n >= least && nth + 1 < finds && words < 65536; i++) {
		this = size[path[i]]
		if (this * 4 > each || this * 32 < each || (taken != "" && index(path[i], taken "/") == 1)) continue
		taken = path[i]; words += length(taken)
		print "collect_part " nth + 1 " " quote(taken)
		if ((sum += this) >= each) { nth++; sum = 0 }
	}
}
'

# DIR: until the directories are listed, and what the program writes has a later time. Those of files are as coarse as
# the clock's interrupts.
collect_tick() {
	[ ! -e "$1/.dirs" ] || flock -s 8 8<"$1/.dirs"
	field_of "$1/.collect" ticks || return 0
	ticks_of
	while [ $((ticks - value)) -ge 0 ] && [ $((ticks - value)) -lt 2 ]; do
		sleep 0.01 || sleep 1
		ticks_of
	done 2>/dev/null
}

# Lines FUNCTION DIR NAMES... for this shell, of records of stat. `since`: only those changed after that. `max`: so
# many bytes, the newest first; the rest is for collect_left_in.
collect_awk='
BEGIN { begin = mark " "; at = length(begin) + 1; wide = length(since); dirs = ENVIRON["collect_was"] }
function quote(s, n, p, i, out) {
	n = split(s, p, q)
	out = q p[1]
	for (i = 2; i <= n; i++) out = out q "\\" q q p[i]
	return out q
}
# A directory: INODE PATH, as in the file dirs.
function flush_dir(lines, i, n) {
	while (dirs != "" && (getline i < dirs) > 0) was[i] = 1
	dirs = ""
	n = split(record, lines, "\n")
	for (i = 1; i <= n && lines[i] in was; i++);
	if (i > n) return
	sub(/^[^ ]* /, "", record)
	if (n_moved >= most_moved) return
	for (i = record; sub(/\/[^\/]*$/, "", i);) if (i in moved) return
	moved[record] = 1; n_moved++
	print "collect_moved_is " quote(record)
}
function flush(p, path, at, is_new) {
	if (record == "") return
	if (is_dir) { flush_dir(p); return }
	split(record, p, " ")
	path = substr(record, length(p[1] p[2] p[3] p[4] p[5]) + 6)
	if (substr(path, 1, 2) == "./") path = substr(path, 3)
	if (wide) {
		# Where there are only seconds, the time of the contents tells of the first one.
		stamp = p[1] " " p[2]
		is_new = stamp > since || (stamp == since && !is_fine && p[5] >= seconds)
		if (is_new != !is_moved) return
	}
	if (++n > most) { over++; n--; return }
	for (at = length(path); at > 0 && substr(path, at, 1) != "/"; at--);
	dir[n] = at ? substr(path, 1, at - 1) : "."
	name[n] = substr(path, at + 1)
	size[n] = p[4]; time[n] = p[5]; sum += p[4]
}
function say(what, i, key) {
	key = what " " quote(dir[i])
	line[key] = line[key] " " quote(name[i])
	if (++count[key] >= 200) { print key line[key]; delete line[key]; delete count[key] }
}
function choose(i, j, k, gap) {
	for (i = 1; i <= n; i++) order[i] = i
	for (gap = int(n / 2); gap > 0; gap = int(gap / 2))
		for (i = gap + 1; i <= n; i++) {
			k = order[i]
			for (j = i; j > gap && time[order[j - gap]] < time[k]; j -= gap) order[j] = order[j - gap]
			order[j] = k
		}
	sum = 0
	for (i = 1; i <= n; i++) {
		k = order[i]
		if (sum + size[k] > max) is_left[k] = 1
		else sum += size[k]
	}
}
substr($0, 1, at - 1) == begin {
	flush()
	# Nearly all end here.
	is_old = !is_moved && substr($0, at, wide) < since
	record = is_old ? "" : substr($0, at)
	is_dir = 0
	next
}
index($0, mark "/ ") == 1 { flush(); record = substr($0, at + 1); is_old = 0; is_dir = 1; next }
$0 == mark "!" { flush(); record = ""; faults++; next }
!is_old { record = record "\n" $0 }
END {
	flush()
	if (max != "" && sum > max) choose()
	for (i = 1; i <= n; i++) say(i in is_left ? "collect_left_in" : what, i)
	for (key in line) print key line[key]
	if (max != "") printf "collect_most=%.0f\n", max - sum
	if (over) print "collect_over " over
	if (faults) print "collect_unread"
}
'

# DIR FUNCTION SINCE SECONDS MAX WORD...: calls it with the files that find WORD... finds there, and collect_moved_is
# with those of the directories by $collect_dirs, more words, that were not there. With $collect_is_moved it is called
# with what has not been changed since then.
collect_each() {
	collect_at=$1 collect_do=$2 collect_since=$3 collect_seconds=$4 collect_limit=$5 collect_fine=
	shift 5
	case $collect_since in
	*.*[1-9]*) collect_fine=1 ;;
	esac
	collect_mark=$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')
	set -- "$@" -exec stat -c "$collect_mark %z %s %Y %n" {} +
	[ -z "$collect_dirs" ] || eval "set -- \"\$@\" -o $collect_dirs -exec stat -c '$collect_mark/ %i %n' {} +"
	collect_calls=$(cd "$collect_at" && collect_find "$collect_parts" "$@" | collect_was=${collect_dirs:+$collect_dir/dirs} awk \
		-v mark="$collect_mark" -v q="'" -v what="$collect_do" -v since="$collect_since" -v seconds="$collect_seconds" -v is_fine="$collect_fine" -v max="$collect_limit" \
		-v most="$COLLECT_MAX" -v most_moved="$COLLECT_MOVED" -v is_moved="$collect_is_moved" "$collect_awk") || return
	eval "$collect_calls"
}

# N WORD...: what find WORD... prints, of which the first is the tree without its N parts; then that of each part. They
# are searched at once.
collect_find() {
	collect_nth=$1
	shift
	if [ "$collect_nth" = 0 ]; then
		find "$@" || printf '%s!\n' "$collect_mark"
		return
	fi
	{
		shift
		eval "collect_list=\$collect_part_$collect_nth"
		eval "set -- $collect_list \"\$@\""
		[ -z "$collect_list" ] || collect_find 0 "$@"
	} | {
		collect_find $((collect_nth - 1)) "$@"
		cat
	}
}

# N PATH: of DIR/split. Not where a link leads there by now.
collect_part() {
	collect_place_of . "$2" && [ -d "./$2" ] || return 0
	collect_parts=$1
	quoted_of "./$2"
	eval "collect_part_$1=\"\$collect_part_$1 \$quoted\""
	collect_pattern "$2"
	quoted_of "$collect_path"
	collect_apart="$collect_apart${collect_apart:+ -o }-path $quoted"
}

# DIR [live]: what its program has changed until now is in the outputs; with live only what is looked at while it
# runs. By anybody, any number of times. 1: something is missing that may be linked another time.
collect() {
	[ -f "$1/collect" ] && [ -d "$1/tree" ] || return 0
	(collect_locked "$1" "${2-}") >/dev/null 2>&1 8>"${1%/*}/.collecting"
}

# DIR, of one that has ended: 0 when nothing is left to be done.
collect_again() {
	[ ! -e "$1/.uncollected" ] || collect "$1"
}

collect_locked() {
	flock 8
	if [ -e "$1/exit" ]; then
		[ -e "$1/.uncollected" ] || exit 0
		# The outputs are a later attempt's.
		[ ! -d "${1%/*}/$((${1##*/} + 1))" ] || exit 1
	fi
	collect_dir=$1 collect_run=${1%/*} collect_live=$2 collect_faults=0 collect_text= collect_mode= collect_prune=
	# As the times are written.
	export TZ=UTC0
	. "$1/collect"
	[ "$collect_prune" ] && cd "$1/tree" || exit 1
	if [ -z "$collect_live" ] && [ -d "$collect_run/collected" ]; then
		collect_each "$collect_run/collected" collect_gone_in '' '' '' . ! -type d
	fi
	collect_changed
	[ -z "$collect_live" ] || exit 0
	collect_told left 'left in the tree, over the size of collect'
	collect_told beside 'kept beside a file of that name in the output directory, as NAME.tree'
	collect_told fault 'could not be linked to the outputs'
	collect_told unread 'could not be read'
	[ ! -e "$collect_dir/warnings" ] || rm -f "$collect_dir/warnings"
	[ -z "$collect_text" ] || printf 'collect=%s\n' "$(printf %s "$collect_text" | tr '\n' '?')" >"$collect_dir/warnings"
	if [ "$collect_faults" -gt 0 ] && free_of "$collect_run" && [ "$free" -le 65536 ]; then
		true >"$collect_dir/.uncollected"
		exit 1
	fi
	[ ! -e "$collect_dir/.uncollected" ] || rm -f "$collect_dir/.uncollected"
	exit 0
}

# KIND PATH, said later.
collect_say() {
	eval "collect_n=\$((\${collect_$1_n:-0} + 1)) collect_names=\${collect_$1_names-}"
	[ "$collect_n" -gt "$COLLECT_NAMED" ] || collect_names="$collect_names${collect_names:+, }${2#./}"
	eval "collect_$1_n=\$collect_n collect_$1_names=\$collect_names"
}

# KIND TEXT
collect_told() {
	eval "collect_n=\${collect_$1_n:-0} collect_names=\${collect_$1_names-}"
	[ "$collect_n" -gt 0 ] || return 0
	[ "$collect_n" -le "$COLLECT_NAMED" ] || collect_names="$collect_names and $((collect_n - COLLECT_NAMED)) more"
	collect_text="$collect_text${collect_text:+; }$2: $collect_names"
}

# PATH: a directory that the program has made or moved. In what was moved files have the times they had, and count.
collect_moved_is() {
	quoted_of "$1"
	collect_moved="$collect_moved $quoted"
}

# Where everything stays in the tree, what the program has put in the place of an output is one of the outputs.
collect_changed() {
	set -- .
	if [ "$collect_mode" = none ]; then
		eval "set -- $collect_outputs"
		for collect_item; do
			shift
			[ -L "$collect_item" ] || [ ! -d "$collect_item" ] || set -- "$@" "./$collect_item"
		done
		[ $# -gt 0 ] || return 0
	fi
	collect_since=$(stat -c '%Y %z' "$collect_dir/collect") || return
	collect_seconds=${collect_since%% *} collect_since=${collect_since#* } collect_most=$collect_bytes
	collect_since=${collect_since% *} collect_moved='' collect_newer=
	# Nearly all files end here, before their names are looked at.
	! find "$collect_dir/collect" -cnewer "$collect_dir/collect" || collect_since='' collect_newer='-cnewer "$collect_dir/collect"'
	collect_files="'(' $collect_prune ')' -prune -o '(' -type f -o -type l ')'"
	if [ "$collect_live" ]; then
		collect_files="$collect_files '(' $COLLECT_LIVE ')'" collect_most=
	elif [ "$collect_mode" != none ] && [ -s "$collect_dir/dirs" ]; then
		collect_apart=
		for collect_n in 1 2 3 4 5 6 7; do eval "collect_part_$collect_n="; done
		[ -z "$collect_newer" ] || [ ! -s "$collect_dir/split" ] || . "$collect_dir/split"
		collect_dirs="-type d ${collect_apart:+'(' '(' $collect_apart ')' -prune -o -name '*' ')'} $collect_newer"
	fi
	eval "set -- \"\$@\" -mindepth 1 ${collect_newer:+! -type d ! $collect_newer -o} $collect_files"
	collect_each . collect_in "$collect_since" "$collect_seconds" "$collect_most" "$@"
	collect_dirs='' collect_is_moved=1 collect_parts=0
	eval "set -- $collect_moved"
	[ $# -gt 0 ] || return 0
	eval "set -- \"\$@\" ${collect_newer:+! -type d $collect_newer -o} $collect_files"
	collect_each . collect_in "$collect_since" "$collect_seconds" "$collect_most" "$@"
}

# PATH PATH: links of the same text, or one file.
collect_same() {
	if [ -L "$1" ]; then
		[ -L "$2" ] && [ "$(readlink "$1")" = "$(readlink "$2")" ]
	else
		[ ! -L "$2" ] && [ "$1" -ef "$2" ]
	fi
}

# BASE DIR [SUFFIX]: $collect_place, where DIR is or would be there; SUFFIX: beside what is no directory.
# $collect_ours: it is below an output, of which the program has nothing but what is in its tree.
collect_place_of() {
	collect_place=$1 collect_rest=$2/ collect_ours=
	[ "$2" != . ] || return 0
	while [ "$collect_rest" ]; do
		collect_place=$collect_place/${collect_rest%%/*}
		collect_rest=${collect_rest#*/}
		collect_is_dir "$collect_place" && continue
		collect_place=$collect_place${3-}
		[ "${3-}" ] && collect_is_dir "$collect_place" || return 1
	done
	eval "set -- \"\$2\" $collect_outputs"
	collect_rest=$1/
	shift
	for collect_item; do
		case $collect_rest in
		"$collect_item"/*) collect_ours=1 ;;
		esac
	done
}

# Or could be one.
collect_is_dir() {
	[ ! -L "$1" ] && { [ -d "$1" ] || [ ! -e "$1" ]; }
}

# DIR NAME...: changed there. What the outputs have of somebody else stays, and this comes beside it.
collect_in() {
	collect_dir_at=$1 collect_keep=$collect_run/collected/$1
	shift
	collect_place_of "$collect_run/outputs" "$collect_dir_at" .tree || {
		collect_lost "$@"
		return
	}
	collect_list=
	for collect_name; do
		collect_from=./$collect_dir_at/$collect_name collect_to=$collect_place/$collect_name
		if collect_same "$collect_from" "$collect_to"; then
			collect_same "$collect_from" "$collect_keep/$collect_name" && continue
		elif [ ! -L "$collect_to" ] && [ ! -e "$collect_to" ]; then
			:
		elif collect_same "$collect_keep/$collect_name" "$collect_to"; then
			:
		elif [ -z "$collect_ours" ] || [ -d "$collect_to" ]; then
			collect_beside
			continue
		fi
		collect_add "$collect_from"
	done
	[ "$collect_list" ] || return 0
	eval "set -- $collect_list"
	collect_make_dir "$collect_place" && collect_make_dir "$collect_keep" && ln -f "$@" "$collect_place/" && ln -f "$@" "$collect_keep/" &&
		return
	for collect_from; do
		collect_one "$collect_place/${collect_from##*/}" && collect_one "$collect_keep/${collect_from##*/}" || collect_lost "${collect_from##*/}"
	done
}

# WORD, behind the others of $collect_list.
collect_add() {
	quoted_of "$1"
	collect_list="$collect_list $quoted"
}

collect_make_dir() {
	[ -d "$1" ] || (umask "$d_umask" && mkdir -p "$1")
}

# TO, in the place of what is there. A file that belongs to somebody else cannot be linked everywhere.
collect_one() {
	! collect_same "$collect_from" "$1" || return 0
	[ -L "$1" ] || [ ! -d "$1" ] || return 1
	rm -f "$1.dlrun-$$"
	ln "$collect_from" "$1.dlrun-$$" || cp -pP "$collect_from" "$1.dlrun-$$" || {
		rm -f "$1.dlrun-$$"
		return 1
	}
	mv -f "$1.dlrun-$$" "$1"
	rm -f "$1.dlrun-$$"
}

# NAME... of $collect_dir_at that are there and not in the outputs.
collect_lost() {
	for collect_name; do
		[ -e "./$collect_dir_at/$collect_name" ] || [ -L "./$collect_dir_at/$collect_name" ] || continue
		collect_say fault "$collect_dir_at/$collect_name"
		collect_faults=$((collect_faults + 1))
	done
}

collect_beside() {
	collect_to=$collect_to.tree
	if [ -L "$collect_to" ] || [ -e "$collect_to" ]; then
		collect_same "$collect_from" "$collect_to" || collect_same "$collect_keep/$collect_name" "$collect_to" || {
			collect_lost "$collect_name"
			return
		}
	fi
	collect_say beside "$collect_from"
	collect_make_dir "$collect_keep"
	collect_one "$collect_to" && collect_one "$collect_keep/$collect_name" || collect_lost "$collect_name"
}

# DIR NAME...: of `collected`. What the program has removed is not kept.
collect_gone_in() {
	collect_dir_at=$1
	shift
	collect_place_of . "$collect_dir_at" && [ -d "$collect_place" ] && collect_there=1 || collect_there=
	collect_list=
	for collect_name; do
		collect_from=./$collect_dir_at/$collect_name
		[ "$collect_there" ] && { [ -L "$collect_from" ] || [ -f "$collect_from" ]; } || collect_add "$collect_name"
	done
	[ -z "$collect_list" ] || eval "collect_drop $collect_list"
}

# DIR NAME...: what there is no room for.
collect_left_in() {
	collect_dir_at=$1
	shift
	collect_list=
	for collect_name; do
		collect_say left "$collect_dir_at/$collect_name"
		collect_keep=$collect_run/collected/$collect_dir_at/$collect_name
		[ ! -L "$collect_keep" ] && [ ! -e "$collect_keep" ] || collect_add "$collect_name"
	done
	[ -z "$collect_list" ] || eval "collect_drop $collect_list"
}

# N: more than anybody lists.
collect_over() {
	collect_left_n=$((${collect_left_n:-0} + $1))
}

# NAME... of $collect_dir_at: no longer collected. From the outputs first, so that whoever is killed is gone on with.
collect_drop() {
	collect_keep=$collect_run/collected/$collect_dir_at
	collect_place_of "$collect_run/outputs" "$collect_dir_at" .tree || collect_place=
	collect_list=
	for collect_name; do
		for collect_to in "$collect_place/$collect_name" "$collect_place/$collect_name.tree"; do
			[ -z "$collect_place" ] || ! collect_same "$collect_keep/$collect_name" "$collect_to" || collect_add "$collect_to"
		done
		collect_add "$collect_keep/$collect_name"
	done
	eval "rm -f $collect_list"
	# Directories of which nothing is left; not what an output's link leads to.
	while [ "$collect_dir_at" != . ] && rmdir "$collect_run/collected/$collect_dir_at"; do
		[ -z "$collect_place" ] || [ "$collect_ours" ] || rmdir "$collect_place"
		collect_place=${collect_place%/*}
		case $collect_dir_at in
		*/*) collect_dir_at=${collect_dir_at%/*} ;;
		*) collect_dir_at=. ;;
		esac
	done
}

# Directories that find did not get into.
collect_unread() {
	eval "set -- '(' $collect_prune ')' -prune"
	collect_lines=$(find . -mindepth 1 "$@" -o -type d -name / 2>&1 >/dev/null |
		sed -n "s/^[^:]*: ['\"]*\(\.\/\)*\(.*[^'\"]\)['\"]*: Permission denied\$/\2/p" | head -n 1000)
	while [ "$collect_lines" ]; do
		collect_say unread "${collect_lines%%"$nl"*}"
		case $collect_lines in
		*"$nl"*) collect_lines=${collect_lines#*"$nl"} ;;
		*) collect_lines= ;;
		esac
	done
}

# What the attempt before of $dir has left, at its place in the new tree. What cannot be there is only an output.
collect_restore() {
	flock 8
	collect_run=${dir%/*} collect_outputs=
	cd "$collect_run/collected" || return
	collect_each . collect_restore_in '' '' '' . ! -type d
}

collect_restore_in() {
	collect_dir_at=$1 collect_list=
	shift
	collect_place_of "$dir/tree" "$collect_dir_at" && collect_make_dir "$collect_place" || collect_place=
	for collect_name; do
		collect_from=./$collect_dir_at/$collect_name collect_to=$collect_place/$collect_name
		if [ -z "$collect_place" ] || { [ -d "$collect_to" ] && [ ! -L "$collect_to" ]; }; then
			rm -f "$collect_from"
		else
			collect_add "$collect_from"
		fi
	done
	eval "set -- $collect_list"
	[ $# -gt 0 ] && ! ln -f "$@" "$collect_place/" || return 0
	for collect_from; do
		collect_one "$collect_place/${collect_from##*/}" && continue
		note "$dir" "${collect_from#./} of the attempt before cannot be put into the tree"
		rm -f "$collect_from"
	done
}
