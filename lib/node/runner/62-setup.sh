# SPDX-License-Identifier: Apache-2.0
# What is run once for each content of its key files, as lib/targets/local/setup.h has it: LOCAL/setups/KEY with lock,
# tree, log, done, stamp. Descriptor 3 is the lock, shared by whoever uses it; the program keeps it.

setup_make() {
	set +u
	. "$1/job"
	set -u
	[ -n "${j_setup_run-}" ] || return 0
	check_setup_key
	setup_of=$1 setup_dir=$d_local/setups/$j_setup_key setup_tree=$1/tree setup_why=''
	setup_made=$setup_dir/tree
	until setup_look; do
		[ ! -e "$1/exit" ] || exit 0
	done
	touch "$setup_dir/stamp"
	setup_link
	setup_python
}

check_setup_key() {
	case $j_setup_key in
	'' | *[!0-9a-f]*) attempt_fail "$1" SetupFailed 'the setup has no key' ;;
	esac
}

# 0: it is done, and stays so as long as 3 is open. 1: look again.
setup_look() {
	mkdir -p "$setup_dir" && true >>"$setup_dir/lock" || attempt_fail "$setup_of" SetupFailed "$setup_dir cannot be made"
	command exec 3<"$setup_dir/lock" || return 1
	if setup_is_done; then
		setup_lock -s && setup_is_done && return 0
		setup_wait 'another run does the same setup'
		return 1
	fi
	if ! setup_lock -x; then
		setup_wait 'another run does the same setup'
		return 1
	fi
	! setup_is_done || return 1
	exec 4>>"$setup_dir/log"
	if ! flock -n 4; then
		exec 4>&-
		flock -u 3
		exec 3<"$setup_dir/log"
		setup_wait 'a setup whose supervisor was killed still runs'
		return 1
	fi
	setup_run
	exec 4>&-
	# Whoever gets in between finds that it is done.
	flock -s 3 && setup_lock -s && setup_is_done
} 2>/dev/null

# Who cleans up may have removed the directory.
setup_lock() {
	flock "$1" -n 3 && [ "$setup_dir/lock" -ef /proc/self/fd/3 ]
}

# Until 3 is free, or for a moment.
setup_wait() {
	[ "$setup_why" = "$1" ] || wait_as "$setup_of" "$1" starting
	setup_why=$1
	lock_by 'timeout 2' -s 3 || [ $? -ne 127 ] || sleep 1
	flock -u 3
	exec 3<&-
}

# What was on its way to the disk when the machine stopped may be missing, unless it was used again when the
# rest had had two minutes.
setup_is_done() {
	setup_products='' setup_boot='' setup_complete=''
	[ -f "$setup_dir/done" ] && [ -d "$setup_made" ] || return 1
	. "$setup_dir/done"
	[ "$setup_complete" = 1 ] || return 1
	[ "$setup_boot" != "$d_boot" ] || return 0
	setup_then=$(stat -c %Y "$setup_dir/done") && setup_used=$(stat -c %Y "$setup_dir/stamp") &&
		[ "$setup_used" -gt $((setup_then + 120)) ]
} 2>/dev/null

# The lock is ours alone, and the log.
setup_run() {
	wait_as "$setup_of" 'its setup runs' starting
	rm -f "$setup_dir/done"
	rm -rf "$setup_made"
	true >"$setup_dir/log"
	(umask "$d_umask" && mkdir "$setup_made" && cp -pPR "$setup_tree/." "$setup_made/") >&4 2>&1 3<&- 4>&- ||
		setup_failed "the tree cannot be copied to $setup_made"
	setup_without_outputs
	mkdir -p "$setup_made/${j_setup_cwd:-.}"
	note "$setup_of" "setup: ${j_setup_run%%"$nl"*}, output in $setup_dir/log"
	(setup_line) </dev/null >&4 2>&1 3<&- 4>&-
	setup_code=$?
	if [ "$setup_code" -gt 128 ]; then
		setup_failed "setup failed by signal $((setup_code - 128)): ${j_setup_run%%"$nl"*}"
	elif [ "$setup_code" -ne 0 ]; then
		setup_failed "setup failed with exit $setup_code: ${j_setup_run%%"$nl"*}"
	fi
	setup_products=''
	setup_find '' 0
	printf "setup_products=%s\nsetup_boot='%s'\nsetup_complete=1\n" "$(quoted_of "$setup_products" && printf %s "$quoted")" \
		"$d_boot" >"$setup_dir/.done" && sync "$setup_dir/.done" && mv -f "$setup_dir/.done" "$setup_dir/done" ||
		setup_failed "$setup_dir cannot be written to"
}

# Instead of the program, in the setup's own copy.
setup_line() {
	program_why() {
		printf 'dlrun: %s\n' "$3"
	}
	. "$setup_of/login"
	program_env "$setup_of"
	cd "$setup_made/${j_setup_cwd:-.}" || exit 125
	export PWD="$setup_made/${j_setup_cwd:-.}"
	login_env
	exec /bin/sh -c "$j_setup_run"
}

setup_without_outputs() {
	link_output() {
		[ ! -L "$setup_made/$1" ] || rm -f "$setup_made/$1"
	}
	j_outputs
}

# The end of its log stands in the run's output too.
setup_failed() {
	log_line "$setup_of" "setup failed, the end of $setup_dir/log:"
	tail -c 65536 "$setup_dir/log" >>"$setup_of/log"
	exec 4>&- 3<&-
	attempt_fail "$setup_of" SetupFailed "$1"
}

# BELOW DEPTH: what is there and not in the run's tree; a new directory is one product. Byte code is none.
setup_find() {
	for setup_name in "$setup_made/$1"* "$setup_made/$1".[!.]* "$setup_made/$1"..?*; do
		setup_name=${setup_name#"$setup_made/"}
		case $setup_name in
		*/__pycache__ | __pycache__ | *.pyc) continue ;;
		esac
		if [ ! -e "$setup_tree/$setup_name" ] && [ ! -L "$setup_tree/$setup_name" ]; then
			[ -e "$setup_made/$setup_name" ] || [ -L "$setup_made/$setup_name" ] || continue
			[ $((setup_n = ${setup_n:-0} + 1)) -le 65536 ] ||
				setup_failed 'the setup has made more than 65536 new names beside the files of the snapshot'
			quoted_of "$setup_name"
			setup_products="$setup_products $quoted"
		elif [ -d "$setup_made/$setup_name" ] && [ ! -L "$setup_made/$setup_name" ] &&
			[ -d "$setup_tree/$setup_name" ] && [ ! -L "$setup_tree/$setup_name" ] && [ "$2" -lt 64 ]; then
			setup_find "$setup_name/" $(($2 + 1))
		fi
	done
}

# Where the run's tree has the directory and nothing of that name.
setup_link() {
	eval "set -- $setup_products"
	for setup_name; do
		case $setup_name in
		*/*) setup_is_below "${setup_name%/*}" || continue ;;
		esac
		[ -e "$setup_tree/$setup_name" ] || [ -L "$setup_tree/$setup_name" ] ||
			ln -s "$setup_made/$setup_name" "$setup_tree/$setup_name" ||
			attempt_fail "$setup_of" SetupFailed "$setup_name cannot be linked into the tree"
	done
}

# A directory of the tree that is no link, nor is one above it.
setup_is_below() {
	setup_at=$setup_tree setup_rest=$1/
	while [ -n "$setup_rest" ]; do
		setup_at=$setup_at/${setup_rest%%/*}
		setup_rest=${setup_rest#*/}
		[ -d "$setup_at" ] && [ ! -L "$setup_at" ] || return 1
	done
}

# A virtual environment, or one of conda, in the setup's directory is active in the program; what it has installed from the
# copy as editable comes from the run's own tree.
setup_python() {
	setup_in=${j_setup_cwd:-.}/
	setup_in=${setup_in#./}
	setup_venv='' setup_paths=''
	eval "set -- $setup_products"
	for setup_name; do
		case ${setup_name#"$setup_in"} in
		*/*) continue ;;
		esac
		[ "$setup_name" != "${setup_name#"$setup_in"}" ] || [ -z "$setup_in" ] || continue
		[ -f "$setup_made/$setup_name/pyvenv.cfg" ] || [ -d "$setup_made/$setup_name/conda-meta" ] || continue
		case $setup_name in
		.venv | */.venv) setup_venv=$setup_name ;;
		*) setup_venv=${setup_venv:-$setup_name} ;;
		esac
	done
	[ -n "$setup_venv" ] || return 0
	for setup_at in "$setup_made/$setup_venv"/lib/python3*/site-packages; do
		setup_editable "$setup_at"
	done
	{
		quoted_of "$setup_tree/$setup_venv"
		if [ -d "$setup_made/$setup_venv/conda-meta" ]; then
			printf 'export CONDA_PREFIX=%s\nunset VIRTUAL_ENV\n' "$quoted"
		else
			printf 'export VIRTUAL_ENV=%s\nunset CONDA_PREFIX\ndefault UV_NO_SYNC 1\n' "$quoted"
		fi
		echo 'unset PYTHONHOME'
		quoted_of "$setup_tree/$setup_venv/bin"
		printf 'export PATH=%s"${PATH:+:$PATH}"\n' "$quoted"
		if [ -n "$setup_paths" ]; then
			quoted_of "$setup_paths"
			printf 'export PYTHONPATH=%s"${PYTHONPATH:+:$PYTHONPATH}"\n' "$quoted"
		fi
	} >"$setup_of/setup_env" || attempt_fail "$setup_of" SetupFailed "$setup_of cannot be written to"
}

setup_editable() {
	for setup_file in "$1"/*.pth; do
		[ -f "$setup_file" ] || continue
		while read -r setup_text || [ -n "$setup_text" ]; do
			case $setup_text/ in
			"$setup_made"/*) setup_paths=$setup_paths${setup_paths:+:}$setup_tree${setup_text#"$setup_made"} ;;
			esac
		done <"$setup_file"
	done
	for setup_file in "$1"/__editable__*_finder.py; do
		[ -f "$setup_file" ] && grep -qF "'$setup_made/" "$setup_file" || continue
		setup_text=${setup_file##*/__editable___}
		attempt_fail "$setup_of" SetupFailed "the setup installs ${setup_text%%_[0-9]*} with -e by an import hook: every run would import the code of the run that made the setup (install it without -e, and name its sources in setup.key)"
	done
}
