# SPDX-License-Identifier: Apache-2.0
# Versions of data in a directory that programs read (`dlrun data`). What is read by others, too, stands alone here:
# the same script works on this machine and in a pod, with `store "$@"` behind it.
#	DIR/.dlrun/d-HEX/        a version: plain files and directories that nobody may write to. What several versions
#	                         have in common is one file with several names
#	DIR/.dlrun/d-HEX.list    what it consists of (lib/app/data/version.h); its presence makes the version. What is newer
#	                         in the version was changed there nevertheless, by root for example
#	DIR/.dlrun/current       a link to the version that programs get
#	DIR/.dlrun/part-KEY-TOKEN/      what has come of a version, .base: which one it began as, .gone: paths of that one
#	                         which were removed since, .in/: of this transfer, with `do`, what is done with the rest of
#	                         it, which comes last, `own`, and rest/, the ends of files that had begun to come. Each transfer takes over what the one before has left by
#	                         another TOKEN, and the `own` of that one is gone first: a tar that still has bytes to
#	                         unpack makes its directories anew, but no version of them
# The exit status tells what is wrong (enum data_status in lib/app/data/place.h), stderr the rest.

# VERB DIR ARGS...: alone, not as a request.
store() {
	store_verb=$1 store_place=$2
	shift 2
	case $store_place in
	'~') store_place=${HOME-} ;;
	'~/'*) store_place=${HOME-}/${store_place#'~/'} ;;
	esac
	case $store_place in
	/*) ;;
	*) exit 40 ;;
	esac
	store_dir=$store_place/.dlrun
	"store_$store_verb" "$@"
}

store_enter() {
	cd "$store_dir" 2>/dev/null || exit 44
}

# The first version is made where nothing else is: what is there already would be in the way of nobody knows whom.
store_make() {
	[ ! -d "$store_dir" ] || return 0
	mkdir -p "$store_place" || exit 40
	for store_file in "$store_place"/* "$store_place"/.[!.]*; do
		[ -e "$store_file" ] || [ -L "$store_file" ] || continue
		case ${store_file##*/} in
		lost+found | .snapshot | .dlrun | .dlrun-gone-*) ;;
		*)
			printf '%s\n' "${store_file##*/}" >&2
			exit 41
			;;
		esac
	done
	mkdir "$store_dir" || [ -d "$store_dir" ] || exit 40
}

store_check_tools() {
	for store_tool in tar find xargs stat sha256sum dd tr head tail cp sort; do
		command -v "$store_tool" >/dev/null 2>&1 || {
			printf '%s\n' "$store_tool" >&2
			exit 43
		}
	done
}

# A version whose list was complete when somebody was killed; a list or a directory that is alone is none. A version
# that somebody makes now has .d-HEX.list, then d-HEX, then d-HEX.list: so they are looked for in this order.
store_mend() {
	for store_file in .d-*.list; do
		store_id=${store_file#.}
		[ -d "${store_id%.list}" ] && [ -f "$store_file" ] && store_close "${store_id%.list}" &&
			mv -f "$store_file" "$store_id"
	done
	for store_file in d-*; do
		store_id=${store_file%.list}
		if [ "$store_id" != "$store_file" ]; then
			[ -d "$store_id" ] || rm -f "$store_file"
		elif [ -d "$store_id" ] && [ ! -e ".$store_id.list" ] && [ ! -e "$store_id.list" ]; then
			mv "$store_id" ".gone-$store_id-$$"
		fi
	done
	for store_file in .gone-* ../.dlrun-gone-*; do
		[ ! -e "$store_file" ] || store_remove "$store_file"
	done
	# Transfers that nobody has gone on with.
	for store_file in part-*; do
		[ -z "$(find "$store_file" -prune -mtime +30 2>/dev/null)" ] || store_remove "$store_file"
	done
}

# DIR: its directories may be written to again, where they are ours.
store_open() {
	find "$1" -type d ! -perm -200 -exec chmod u+w {} + 2>/dev/null || :
}

# ID: as a version is, but for its list. Nothing in it is newer than that, by whatever clock.
store_close() {
	find "$1" ! -type l \( -newer ".$1.list" -o -perm -200 -o -perm -020 -o -perm -002 \) \
		-exec chmod a-w {} + -exec touch -c -r ".$1.list" {} + 2>/dev/null || :
}

store_remove() {
	for store_name; do
		[ ! -d "$store_name" ] || store_open "$store_name"
	done
	rm -rf "$@"
}

# Lines: current ID, version ID SUMMARY. The newest comes first.
store_versions() {
	store_current=$(readlink current) && [ -f "$store_current.list" ] && printf 'current %s\n' "$store_current"
	for store_id in $(store_ids); do
		store_line=
		read -r store_line <"$store_id.list"
		printf 'version %s %s\n' "$store_id" "$store_line"
	done
}

# The newest first.
store_ids() {
	ls -t | sed -n 's/^\(d-[0-9a-f]*\)\.list$/\1/p'
}

store_list() {
	[ -d "$store_dir" ] || return 0
	store_enter
	store_versions
}

# KEY TOKEN: versions; unchanged ID, of the newest if nothing was; what has come of a transfer, by store_say.
store_begin() {
	store_check_tools
	store_make
	[ -w "$store_dir" ] || exit 40
	store_enter
	store_mend
	store_versions
	store_base=$(store_ids | head -n 1)
	[ -z "$store_base" ] || [ "$(store_doubtful "$store_base")" ] || printf 'unchanged %s\n' "$store_base"
	store_part=part-$1-$2
	# What cannot be gone on with, as where there is no room for the notes about it, is only in the way.
	(store_take_all "$1") || store_drop "$1" || exit 47
	[ -d "$store_part" ] && read -r store_base <"$store_part.base" || return 0
	store_say "$store_base" "$store_part"
}

# KEY
store_take_all() {
	for store_file in "part-$1-"*.base; do
		store_take "${store_file%.base}"
	done
	[ -d "$store_part" ] || return 0
	[ -f "$store_part.gone" ] || : >"$store_part.gone"
	store_names "$store_part" -type d -print0 >"$store_part.dirs" &&
		store_names "$store_part" ! -type f ! -type d -print0 >"$store_part.other" &&
		store_names "$store_part" -type f -links 1 -print0 >"$store_part.files"
}

# DIR TEST...
store_names() {
	(cd "$1" && shift && find . "$@") || exit 47
}

# ID DIR: part ID; gone BYTES, dirs BYTES, other BYTES, each followed by paths with a NUL behind, links BYTES (or
# not) by paths and targets; size and mode of each file, "sums", their digests. Of a transfer these are paths of ID that
# were removed since, its directories, all that is neither that nor a file, and files that are no version's; of a version
# that was changed see store_changed.
store_say() {
	printf 'part %s\n' "$1"
	for store_file in gone dirs other links; do
		[ -f "$store_part.$store_file" ] || continue
		printf '%s %s\n' "$store_file" "$(($(wc -c <"$store_part.$store_file")))"
		cat "$store_part.$store_file"
	done
	cd "$2" || exit 40
	xargs -0 -r stat -c '%s %a' <"../$store_part.files"
	echo sums
	xargs -0 -r sha256sum <"../$store_part.files"
}

# ID: paths of it that were changed since it was made. A link cannot be.
store_newer() {
	store_names "$1" ! -type l -newer "../$1.list"
}

# ID: something if it was changed, or root has made something in it that others cannot look at.
store_doubtful() {
	{ (store_newer "$1") || echo x; } 2>/dev/null | head -c 1
}

# ID TOKEN: nothing, or what was changed: gone are directories in which names were, dirs, other, links and files what is in
# these, and files besides.
store_changed() {
	store_enter
	[ -f "$1.list" ] || exit 44
	[ "$(store_doubtful "$1")" ] || return 0
	store_part=part-check-$2
	rm -f "$store_part".*
	set -- "$1" -type d -newer "../$1.list"
	store_names "$@" -print0 >"$store_part.gone"
	store_names "$@" -exec sh -c 'find "$@" -mindepth 1 -maxdepth 1 -type d -print0' sh {} + >"$store_part.dirs"
	store_names "$@" -exec sh -c 'find "$@" -mindepth 1 -maxdepth 1 ! -type d ! -type f -print0' sh {} + >"$store_part.other"
	# By a process for each where find does not know targets.
	(cd "$1" && {
		xargs -0 -r sh -c 'find "$@" -mindepth 1 -maxdepth 1 -type l -printf "%p\\0%l\\0"' sh <"../$store_part.gone" 2>/dev/null ||
			xargs -0 -r sh -c 'for link; do
				[ -L "$link" ] || continue
				target=$(readlink "$link" && echo .)
				printf "%s\\0" "$link" "${target%??}"
			done' sh <"../$store_part.other"
	}) >"$store_part.links"
	{
		store_names "$@" -exec sh -c 'find "$@" -mindepth 1 -maxdepth 1 -type f -print0' sh {} +
		store_names "$1" -type f -newer "../$1.list" -print0
	} | sort -zu >"$store_part.files"
	(store_say "$1" "$1")
	rm -f "$store_part".*
}

# PART: of an earlier transfer.
store_take() {
	rm -f "$1.in/own"
	if [ -d "$1" ] && [ ! -d "$store_part" ]; then
		# What does not join, of a transfer that was cut, is sent again: there may be no room for it.
		[ ! -d "$1.in/rest" ] || (store_join "$1") || :
		store_remove "$1.in"
		[ ! -f "$1.gone" ] || cp "$1.gone" "$store_part.gone" || exit 47
		cp "$1.base" "$store_part.base" && touch "$1" && mv "$1" "$store_part" || exit 47
	fi
	store_remove "$1" "$1".*
}

# TO OFFSET REST...: below TO they go into the files of the same names, whose ends they are. An earlier tar may still be at
# work on these, so it is told where. A dd that fails for want of room has written some of it, and nothing comes behind that.
store_end='to=$1 offset=$2
shift 2
for rest; do
	chmod u+w "$to/$rest" && {
		dd if="$rest" of="$to/$rest" bs=1048576 oflag=seek_bytes seek="$offset" conv=notrunc 2>/dev/null ||
			{ [ "$(($(wc -c <"$to/$rest")))" -eq "$offset" ] && cat "$rest" >>"$to/$rest"; }
	} && chmod a-w "$to/$rest" || exit
done'

# PART: what has come of the ends of its files. Whether they are right is told by their digests.
store_join() {
	for store_rest in "$1.in/rest"/*; do
		(cd "$store_rest" && find . -type f -exec sh -c "$store_end" sh "../../../$1" "${store_rest##*/}" {} +) || exit 47
	done
}

# ID
store_show() {
	store_enter
	cat "$1.list" || exit 44
}

# ID: it is what programs get from now on.
store_use() {
	store_enter
	[ -f "$1.list" ] || exit 44
	[ "$(readlink current)" != "$1" ] || return 0
	rm -f ".current-$$"
	ln -s "$1" ".current-$$" || exit 47
	mv -Tf ".current-$$" current 2>/dev/null || { rm -f current && mv -f ".current-$$" current; } || exit 47
}

# KEY
store_drop() {
	store_enter
	rm -f "part-$1-"*.in/own
	store_remove "part-$1-"*
}

# By dd, which names the error everywhere.
store_has_room() {
	store_said=$(dd if=/dev/zero of="$store_part.room" bs=65536 count=1 2>&1)
	rm -f "$store_part.room"
	case $store_said in
	*'No space'* | *uota*) return 1 ;;
	esac
}

# KEY TOKEN BASE BLOCKS: stdin is so many blocks of names to be removed, each with a NUL behind it, then a tar. Where there
# is no room for it, what has come of it is removed: nobody could go on there. A tool may also fail since it was taken over
# or removed meanwhile.
store_put() {
	store_make
	store_enter
	store_part=part-$1-$2 store_in=part-$1-$2.in store_status=47 store_begun=
	if mkdir "$store_in" && true >"$store_in/own"; then
		store_begun=1 store_status=0
		(store_receive "$@") || store_status=$?
	fi
	if [ "$store_status" -eq 47 ]; then
		if ! store_has_room; then
			store_status=49
		elif [ "$store_begun" ] && [ ! -f "$store_in/own" ]; then
			store_status=46
		fi
	fi
	# Without its base it is what tar has made anew.
	[ "$store_status" -ne 49 ] && [ -f "$store_part.base" ] || store_remove "$store_part" "$store_part".*
	[ "$store_status" -ne 49 ] || store_tell_rest >&2
	exit "$store_status"
}

# Files of versions, which parts have by a second name, count for those, which come first.
store_tell_rest() {
	store_rest=0
	for store_file in $(du -sk d-* part-* 2>/dev/null | sed -n 's/[[:blank:]]*part-.*//p'); do
		store_rest=$((store_rest + store_file))
	done
	[ "$store_rest" -eq 0 ] || echo "No space left on device; $store_rest KiB of other unfinished pushes are there"
}

store_receive() {
	[ -d "$store_part" ] || store_part_make "$3"
	store_open "$store_part"
	if [ "$4" -gt 0 ]; then
		dd bs=65536 count="$4" iflag=fullblock 2>/dev/null | tr -s '\0' >"$store_in/gone"
		cat "$store_in/gone" >>"$store_part.gone" || exit 47
		(cd "$store_part" && xargs -0 rm -rf --) <"$store_in/gone" || exit 47
	fi
	tar -xpof - || store_cut=1
	[ -f "$store_in/own" ] || exit 46
	if [ ! -f "$store_in/do" ]; then
		# The stream was cut, or what came of it has no room here.
		store_has_room || exit 47
		exit 46
	fi
	[ -z "${store_cut-}" ] || exit 47
	. "./$store_in/do"
}

# Its own time: store_mend goes by that, and cp takes over the one of the version.
store_part_make() {
	store_remove "$store_part.gone" "$store_part.new"
	if [ "$1" = - ]; then
		mkdir "$store_part.new"
	else
		cp -al "$1" "$store_part.new" 2>/dev/null || {
			store_remove "$store_part.new"
			cp -a "$1" "$store_part.new"
		}
	fi || {
		[ "$1" = - ] || [ -f "$1.list" ] || exit 44
		exit 47
	}
	printf '%s\n' "$1" >"$store_part.base" && touch "$store_part.new" && mv "$store_part.new" "$store_part" ||
		exit 47
}

# FILE OFFSET LENGTH: by tail where dd does not know bytes.
store_piece() {
	dd if="$1" bs=1048576 iflag=skip_bytes,count_bytes skip="$2" count="$3" 2>/dev/null ||
		tail -c +$(($2 + 1)) -- "$1" | head -c "$3"
}

# FILE DIGEST
store_check() {
	store_sum=$(sha256sum <"$1") && [ "${store_sum%% *}" = "$2" ] || exit 45
}

# NEW FILE MODE DIGEST MTIME
store_made() {
	store_check "$1" "$4"
	chmod "$3" "$1" && touch -d "@$5" "$1" && mv -f "$1" "$2" || exit 47
}

# PATH OFFSET MODE DIGEST MTIME: the rest of that file of the transfer.
store_more() {
	(cd "$store_in/rest/$2" && sh -c "$store_end" sh "../../../$store_part" "$2" "$1") || exit 47
	store_check "$store_part/$1" "$4"
	chmod "$3" "$store_part/$1" && touch -d "@$5" "$store_part/$1" || exit 47
}

# ID ENTRIES REPLACE: of so many its list consists. One that is there already and was changed is replaced, if it may be:
# a run could read it.
store_commit() {
	store_old=
	[ ! -f "$1.list" ] || store_old=$(store_doubtful "$1")
	if [ ! -f "$1.list" ] || [ "$store_old" ]; then
		[ -z "$store_old" ] || [ "${3-}" ] || exit 48
		[ "$(($(find "$store_part" -print0 | tr -dc '\0' | wc -c)))" -eq $(($2 + 1)) ] || exit 45
		# Of a base that is changed while a push lasts: what they have in common was changed in both.
		read -r store_base <"$store_part.base" || exit 47
		[ ! -f "$store_base.list" ] ||
			[ -z "$(find "$store_part" -type f -links +1 -newer "$store_base.list" | head -c 1)" ] || exit 45
		sync -f . 2>/dev/null || sync
		[ -f "$store_in/own" ] || exit 46
		# The list comes after that: with a directory beside it, it is a version (store_mend).
		[ -z "$store_old" ] || { mv "$1" ".gone-$1-$$" && rm -f "$1.list"; } || exit 47
		touch "$store_in/list" && mv -f "$store_in/list" ".$1.list" || exit 47
		# Somebody else may make the same version now.
		[ -d "$1" ] || mv "$store_part" "$1" 2>/dev/null || [ -d "$1" ] || exit 47
		rm -rf "$1/$store_part"
		store_close "$1"
		mv -f ".$1.list" "$1.list" || [ -f "$1.list" ] || exit 47
		# A removal meanwhile either finds the list, or has taken away before what is looked for here.
		[ -d "$1" ] && [ -f "$store_in/own" ] || {
			rm -f "$1.list"
			store_settle
			exit 46
		}
	fi
	store_use "$1"
	# What belongs to another user goes when that one pushes again.
	store_remove "$store_part" "$store_part".* .gone-* 2>/dev/null || :
}

# ID...: if programs get one of these, or none, they get the newest of the others. Fails if there is no other.
store_settle() {
	store_current=$(readlink current)
	case " $* " in
	*" $store_current "*) ;;
	*) [ ! -f "$store_current.list" ] || return 0 ;;
	esac
	store_next=$(store_ids | grep -vxF "$(printf '%s\n' "$@")" | head -n 1)
	[ "$store_next" ] && (store_use "$store_next")
}

# ID, or "all" ID...: these are versions no more. With "all" what is left of pushes goes, too, and those under way begin again;
# what one of them has made since the caller looked stays. Prints something where files of another user remain.
store_rm() {
	store_enter
	store_all=
	if [ "$1" = all ]; then
		shift
		store_all=1
		rm -f part-*.in/own || exit 47
		rm -f .d-*.list
		for store_file in part-*; do
			[ ! -e "$store_file" ] || mv "$store_file" ".gone-$$-$store_file" || echo rest
		done
	elif [ ! -f "$1.list" ]; then
		exit 44
	fi
	store_settle "$@" || rm -f current
	for store_id; do
		rm -f "$store_id.list" || exit 47
		[ ! -d "$store_id" ] || { mv "$store_id" ".gone-$$-$store_id" && rm -f "$store_id.list"; }
		[ ! -d "$store_id" ] || exit 47
	done
	store_remove ".gone-$$-"* || echo rest
	[ -z "$store_all" ] || store_mend
	# A push may have made the first one meanwhile.
	store_settle || :
	[ -z "$store_all" ] || { cd .. && rmdir .dlrun 2>/dev/null; } || :
}
