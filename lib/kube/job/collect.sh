# SPDX-License-Identifier: Apache-2.0
# Collects the files that a program leaves in its tree: copies them to the results, and puts them into the tree of the next
# attempt. MODE [ARGUMENT...], in the tree:
#	begin [new]	put what was collected before into the tree; set the time since which files count (new: the tree
#			was changed here)
#	live		collect what is looked at while the program runs
#	all		collect everything so far
#	final		the same, and say what is missing
#	sum		the results by now ($told)
# The others are steps of these, for as many paths as one command takes. -cnewer compares the ctime, which no program sets,
# with the time of a mark's contents. Without it stat tells both; where it knows whole seconds only, the mark has the first
# one that begins after the tree was made. Names with anything in them pass through: there are no lists of lines.
#
# job_script.c sets: i (the rank), a (directory of the attempt), o (results), notes and m below it (marks: an empty file
# for each that was collected, or one with a word in it, where the program itself has written one of that name), t (what is
# being copied now; a file gets its name in the results as a whole, after its mark), r (the tree), most (bytes), told, and
# names, which lists candidates ($at: from there; $old: an expression that drops entries before names are tested).
cd -- "$r" || exit
k=$0 mode=$1 status=0
shift
umask 002
export LC_ALL=C TZ=UTC0
has_cnewer() { find . -prune -cnewer "$1" >/dev/null 2>&1; }
mark() { date '+%Y-%m-%d %H:%M:%S' >"$1"; }
mark_of() {
	s=$(stat -c %y "$1" 2>/dev/null)
	case $s in *.*[1-9]*) ;; *) read -r s <"$1"; return 1 ;; esac
}
tick() { sleep 0.02 2>/dev/null || sleep 1; }
# Directories of the image. An overlay renames none that its layers have, unless redirect_dir is set for it, or for all
# (Linux, filesystems/overlayfs.rst).
may_move() {
	read -r x </sys/module/overlay/parameters/redirect_dir && [ "$x" = N ] || return 0
	while read -r x p x; do
		case $r/ in "${p%/}"/*) f=$x ;; esac
	done </proc/mounts
	case $f in *redirect_dir=on*) ;; 'overlay '*) return 1 ;; esac
} 2>/dev/null
is_there() { [ -e "$1" ] || [ -L "$1" ]; }
copy_options() {
	g='--preserve=mode,timestamps,links --reflink=auto'
	cp $g -- /dev/null "$a/probe-$$" 2>/dev/null || g=-p
	echo "$g"
	rm -f "$a/probe-$$"
}
dirs() {
	old='! -type d -o' at=
	read -r i <"$a/dirs" || return
	names -exec stat -c "$i" {} + >"$1.dirs"
} 2>/dev/null
# Since when, and conditions. What is older ends before names are looked at: nearly all files.
changed() {
	f=$1 old= at=
	shift
	if has_cnewer "$f"; then
		old="! -type d ! -cnewer $f -o"
		set -- "$@" -cnewer "$f" -print0
	else
		mark_of "$f"
		set -- "$@" -exec /bin/sh "$k" since "$s" {} +
	fi
	names "$@"
}
# Files in a directory that was moved as a whole keep their times, so they do not look changed.
moved() {
	read -r i <"$a/dirs" && [ -s "$1.dirs" ] || return 0
	changed "$1" -type d | xargs -0 -r stat -c "$i" | grep -Fvxf "$1.dirs" | {
		old= top=/ n=0
		while IFS= read -r d && [ $n -lt 1000 ]; do
			at=${d#* }
			case $at in "$top"/*) continue ;; ./*) [ -d "$at" ] || continue ;; *) continue ;; esac
			top=$at n=$((n + 1))
			names \( -type f -o -type l \) -print0
		done
	}
} 2>/dev/null
list_all() {
	moved "$1" >"$a/moved"
	if [ -s "$a/moved" ]; then
		changed "$1" \( -type f -o -type l \) | sort -zu "$a/moved" -
	else
		changed "$1" \( -type f -o -type l \)
	fi
}
live() {
	changed "$since" \( -type f -o -type l \) \( -name '*tfevents*' -o -name params.json -o -name hparams.yaml -o -name args.json \
		-o -path '*/.hydra/config.yaml' -o -path '*/.hydra/overrides.yaml' -o -name projector_config.pbtxt -o -name tensors.tsv \
		-o -name metadata.tsv -o -name sprite.png -o -name '*.pt.trace.json' -o -name '*.pt.trace.json.gz' \
		-o -name 'tfdbg_events.*' -o -path '*/plugins/profile/*' \)
}
is_over() {
	echo "$most" >"$a/left"
	n=$(xargs -0 -r stat -c %s -- <"$a/list" 2>/dev/null | {
		n=0
		while read -r b; do n=$((n + b)); done
		echo $n
	})
	[ "$n" -gt "$most" ]
}
kinds='(^|/)(params[.]json|args[.]json|hparams[.]ya?ml|[.]hydra/(overrides|config)[.]yaml)$'
# Of lines "// SIZE TIME ./PATH", which no path has in it: the largest names at the top; of files with parameters those
# that count (params.h).
summary='
function flush(at, top, kind, deep) {
	if (path == "") return
	files++
	bytes += size
	at = index(path, "/")
	top = at ? substr(path, 1, at) : path
	count[top]++
	sum[top] += size
	if (path ~ /\n/ || !match(path, kinds)) return
	kind = substr(path, RSTART)
	sub(/^\//, "", kind)
	deep = gsub("/", "/", path)
	if ((kind in depth) && (deep > depth[kind] || (deep == depth[kind] && time < newest[kind]))) return
	depth[kind] = deep
	newest[kind] = time
	params[kind] = path
}
/^\/\/ / {
	flush()
	size = $2
	time = $3
	path = substr($0, length($2 $3) + 8)
	next
}
{ path = path "\n" $0 }
END {
	flush()
	for (top in sum) more++
	shown = 0
	for (room = 2000; shown < 20; shown++) {
		best = ""
		for (top in sum) if (best == "" || sum[top] > sum[best]) best = top
		if (best == "" || (room -= length(best) + 20) < 0) break
		name = best
		gsub(/\\/, "&&", name)
		# Awks differ in the meaning of a backslash in a replacement.
		n = split(name, parts, "\n")
		name = parts[1]
		for (i = 2; i <= n; i++) name = name "\\n" parts[i]
		line[shown] = count[best] " " sprintf("%.0f", sum[best]) " " name
		delete sum[best]
	}
	printf "\n%s %d %.0f %d\n", told, files, bytes, more - shown
	for (i = 0; i < shown; i++) print line[i]
	for (kind in params) print "params " params[kind]
}
'
case $mode in
begin)
	n=$1
	if [ -d "$m" ]; then
		n=new
		(cd -- "$m" && find . -type f -empty -print0) | xargs -0 -r /bin/sh "$k" put
		(cd -- "$m" && find . -type f ! -empty -print0) | xargs -0 -r /bin/sh "$k" put_own
	fi 2>/dev/null
	if ! has_cnewer "$k"; then
		mark "$a/start"
		if mark_of "$a/start"; then
			tick
		else
			sleep 1
			mark "$a/start"
		fi
# The node made that file when the image was there, before the container.
	elif [ "$n" ] || ! touch -r /dev/termination-log "$a/start" 2>/dev/null; then
		mark "$a/start"
		tick
	fi
	if [ "$n" ] || may_move; then
# Layers on several file systems have no lasting numbers of directories.
		p=$(names -type f -print 2>/dev/null | head -n 1)
		i=%i
		[ "$(stat -c %d -- "$p")" = "$(stat -c %d .)" ] || i=-
		echo "$i %n" >"$a/dirs"
		dirs "$a/start"
	fi
	;;
put)
	rm -f -- "$@"
	cd -- "$o" && cp -P $(copy_options) --parents -- "$@" "$r/"
	;;
put_own)
	for p; do
		q=${p%.tree}
		mkdir -p -- "${q%/*}"
		rm -f -- "$q"
		cp -P $(copy_options) -- "$o/$p" "$q"
	done
	;;
# The names of many, and the times in the same order, unless one is gone meanwhile.
since)
	s=$1 n=0
	shift
	IFS='
'
	times=$(stat -c %z -- "$@" 2>/dev/null)
	for z in $times; do n=$((n + 1)); done
	if [ $n = $# ]; then
		for z in $times; do
			[ ! "$z" \> "$s" ] || printf '%s\0' "$1"
			shift
		done
	else
		for p; do
			z=$(stat -c %z -- "$p" 2>/dev/null) || continue
			[ ! "$z" \> "$s" ] || printf '%s\0' "$p"
		done
	fi
	;;
aged)
	for p; do
		z=$(stat -c '%Z %s' -- "$p" 2>/dev/null) && printf '%s %s\0' "$z" "$p"
	done
	;;
# Newest first: "TIME SIZE PATH".
fit)
	read -r left <"$a/left"
	for x; do
		x=${x#* }
		n=${x%% *} p=${x#* }
		if [ "$n" -le "$left" ]; then
			left=$((left - n))
			printf '%s\0' "$p"
		else
			[ ! -e "$m/$p" ] || rm -f -- "$o/$p" "$m/$p"
			printf 'over the size of collect: %s (%s bytes)\n' "$p" "$n" >&2
		fi
	done
	echo "$left" >"$a/left"
	;;
# Remove from the results what the program has removed since it was collected.
gone)
	for p; do
		p=${p#"$m"/}
		q=$p
		[ ! -s "$m/$p" ] || q=${p%.tree}
		is_there "./$q" && continue
		rm -f -- "$o/$p" "$m/$p"
		while case $p in */*) ;; *) false ;; esac; do
			p=${p%/*}
			rmdir -- "$o/$p" "$m/$p" 2>/dev/null || break
		done
	done
	;;
# A file is whole or not there: a full disk, or one that was removed meanwhile.
copy)
	g=$(copy_options)
	cp -P $g --parents -- "$@" "$t/" 2>/dev/null || for p; do
		cp -P $g --parents -- "$p" "$t/" 2>"$a/why-$$" && continue
		rm -f -- "$t/$p"
		is_there "$p" || continue
		cat "$a/why-$$" >&2
		status=1
	done
	rm -f "$a/why-$$"
	for p; do
		p=${p#./}
		is_there "$t/$p" || continue
		case $p in */*) [ -d "$m/${p%/*}" ] || mkdir -p -- "$m/${p%/*}" ;; esac
		if is_there "$o/$p" && [ ! -f "$m/$p" ]; then
			[ -s "$m/$p.tree" ] || printf '%s is in the results already: the one from the tree is %s.tree\n' "$p" "$p" >&2
			mv -f -- "$t/$p" "$t/$p.tree"
			echo tree >"$m/$p.tree"
		else
			: >>"$m/$p"
		fi
	done
	;;
# Parents come first; what is new as a whole is moved as a whole.
merge)
	for d; do
		[ -d "$t/$d" ] || continue
		if ! is_there "$o/$d"; then
			mv -- "$t/$d" "$o/$d" || status=1
		elif [ -d "$o/$d" ] && [ ! -L "$o/$d" ]; then
			find "$t/$d" -mindepth 1 -maxdepth 1 ! -type d -exec /bin/sh -c 'mv -f -- "$@" "$0/"' "$o/$d" {} + || status=1
		else
			printf '%s is not a directory in the results\n' "$d" >&2
			status=1
		fi
	done
	;;
sum)
	cd -- "$o" || exit
	set -- -path "./$notes" -prune
	[ "$i" != 0 ] || set -- "$@" -o -path './rank-[1-9]*' -prune
	find . \( "$@" \) -o -type f -exec stat -c '// %s %Y %n' {} + 2>/dev/null | awk -v kinds="$kinds" -v told="$told" "$summary" | {
		n=3800
		while IFS= read -r l; do
			p=${l#params }
			z=0
			[ "$p" = "$l" ] || z=$(wc -c <"./$p") || continue
			[ $((z + ${#l} + 10)) -le $n ] || continue
			n=$((n - z - ${#l} - 10))
			if [ "$p" = "$l" ]; then
				printf '%s\n' "$l"
			else
				printf 'params %s %s\n' $((z)) "$p"
				head -c $((z)) "./$p"
				echo
			fi
		done
	} 2>/dev/null
	;;
live | all | final)
	[ -e "$a/start" ] || exit 0
	until ln -s $$ "$a/busy" 2>/dev/null; do
		kill -0 "$(readlink "$a/busy")" 2>/dev/null || rm -f "$a/busy"
		tick
	done
	trap 'rm -f "$a/busy"' EXIT
	rm -rf "$t"
	[ $mode = final ] || { mark "$a/next"; tick; }
	[ $mode != all ] || dirs "$a/next"
	since=$a/last-$mode
	[ $mode != final ] || since=$a/last-all
	[ -e "$since" ] || since=$a/start
	if [ $mode = live ]; then
		live >"$a/list"
	else
		[ ! -d "$m" ] || find "$m" -type f -exec /bin/sh "$k" gone {} +
		list_all "$a/start" >"$a/list"
		if is_over; then
			xargs -0 /bin/sh "$k" aged <"$a/list" | sort -z -rn |
				xargs -0 -r /bin/sh "$k" fit >"$a/fits"
			mv -f "$a/fits" "$a/list"
		elif [ "$since" != "$a/start" ]; then
			list_all "$since" >"$a/list"
		fi
	fi
	if [ -s "$a/list" ]; then
		mkdir -p "$t" "$m" "$o" || exit
		xargs -0 /bin/sh "$k" copy <"$a/list" || status=1
		(cd -- "$t" && find . -type d -print0) | xargs -0 -r /bin/sh "$k" merge || status=1
		rm -rf "$t"
	fi
	if [ $mode != final ] && [ $status = 0 ]; then
		[ $mode = live ] || mv -f "$a/next.dirs" "$a/last-all.dirs" 2>/dev/null
		mv -f "$a/next" "$a/last-$mode"
	fi
	;;
esac
exit $status
