# SPDX-License-Identifier: Apache-2.0
# The supervisor until the program begins. Each step is found by its traces when it is killed:
#	no directory      nothing has happened
#	no lock           only just, or it was killed in that moment
#	lock not held     it is over; whoever looks writes that down (judge_of)
#	program in state  the program has begun, perhaps only just

# RUN N NEW LAUNCH [EARLIER]: NEW is what is moved into the attempt's directory; EARLIER is the attempt that
# has to end first.
job_begin() {
	d_launch=$4
	dir=$d_local/runs/$1/$2
	begin_claim "$1" "$2" "$3"
	exec >/dev/null 2>>"$dir/notes"
	[ -z "${begin_has_gpus-}" ] || rm -rf "$3"
	. "$dir/job"
	[ -z "${j_roles-}" ] || state_set "$dir" roles="$j_roles" || exit 1
	[ "${j_parallel:-0}" -gt 0 ] || begin_watch
	[ -z "${5-}" ] || begin_after "$d_local/runs/$1/$5"
	slot_enter "$dir"
	# One that waits needs nobody who looks each second.
	[ "${j_parallel:-0}" = 0 ] || begin_watch
	begin_tree
	begin_logout
	world_link "$dir" 9>&-
	begin_check
	setup_make "$dir" 9>&-
	begin_check
	collect_begin
	container_make "$dir" 9>&-
	begin_check
	begin_reaper
}

# By mkdir: of many only one. All is there and locked before, so that whoever looks never finds an attempt that
# seems to have nobody (but for the moment until the lock is moved: judge_wait). What was written down by somebody
# who thought us dead counts.
begin_claim() {
	exec 9>"$3/lock"
	flock 9
	true >>"$3/log"
	log_reserve "$3" 0
	true >"$3/.cancel"
	true >"$3/.begin"
	true >"$3/.stop"
	login_write "$3"
	exit_make_room "$3"
	proc_start_of $$
	state_set "$3" state=starting boot="$d_boot" host="$d_host" supervisor="$$:$start" launch="$d_launch" || exit 1
	if ! mkdir "$dir"; then
		[ -d "$dir" ] || exit 1
		exit 0
	fi
	# The lock first; then what tells that other hosts may take it (56-pool.sh).
	mv "$3/lock" "$dir/" && { [ ! -f "$3/pool" ] || mv "$3/pool" "$dir/"; } || exit 1
	mv "$3/.exit" "$3/.cancel" "$3/.begin" "$3/.stop" "$3/state" "$dir/" && mv "$3"/* "$dir/" || exit 1
	[ ! -e "$dir/exit" ] || exit 0
	# Who asked may have gone away.
	trap '' PIPE
	printf 'accepted %s %s\n' $$ "$start" 2>/dev/null
	trap - PIPE
}

begin_watch() {
	watch "$dir" 7>&- &
	proc_start_of "$!" && state_set "$dir" "watcher=$!:$start"
}

begin_check() {
	[ ! -e "$dir/exit" ] || exit 0
}

# Its end is known when nobody holds its lock: then it holds no GPU either.
begin_after() {
	flock -s 8 8<"$1/lock"
	judge_of "$1"
}

begin_tree() {
	. "$dir/plan"
	now_of
	begin_since=$now
	begin_how=layers
	if [ "$p_spare" ] && [ -d "$d_local/spares/$p_spare" ] && mv "$d_local/spares/$p_spare" "$dir/tree" 2>/dev/null; then
		begin_how="a spare tree"
	else
		p_count=0
		(umask "$d_umask" && mkdir "$dir/tree")
	fi
	begin_n=0
	set -- $p_tree
	begin_total=$#
	for begin_item; do
		[ $((begin_n += 1)) -gt "$p_count" ] || continue
		begin_layer
	done
	now_of
	note "$dir" "the tree is made of $begin_how in $((now - begin_since)) ms"
}

# Said where it matters: what is started now may end with the login.
begin_logout() {
	# Root is excluded by default.
	[ "$d_launch" != systemd ] && [ "$d_uid" != 0 ] && grep -qsi '^ *KillUserProcesses *= *\(y\|t\|on\|1\)' \
		/etc/systemd/logind.conf /etc/systemd/logind.conf.d/*.conf /run/systemd/logind.conf.d/*.conf \
		/usr/lib/systemd/logind.conf.d/*.conf || return 0
	state_set "$dir" warning='this node ends what a login has started (KillUserProcesses): loginctl enable-linger'
	note "$dir" 'KillUserProcesses is set, and this user does not linger'
}

begin_layer() {
	begin_apply=
	[ "$begin_n" -lt "$begin_total" ] || begin_apply=$dir/apply
	unpack "$d_root/layers/${begin_item%:*}" "${begin_item#*:}" "$dir/tree" "$p_strip" "$begin_apply" 9>&- && return
	begin_damaged
	attempt_fail "$dir" StartFailed "the tree could not be unpacked: $(tail -n 1 "$dir/notes")"
}

# A layer that a machine which stopped has not written whole is sent again next time.
begin_damaged() {
	begin_sum=$(sha256sum <"$d_root/layers/${begin_item%:*}") && [ "${begin_sum%% *}" != "${begin_item%:*}" ] || return
	echo "layer ${begin_item%:*} is damaged on this node; it is removed, and the next run sends it again" >>"$dir/notes"
	rm -f "$d_root/layers/${begin_item%:*}"
}

# LAYER CODEC TREE STRIP APPLY: in a subshell, with the login's umask.
unpack() (
	[ -f "$1" ] || {
		echo "layer ${1##*/} is not there" >&2
		exit 1
	}
	umask "$d_umask"
	unset TAR_OPTIONS
	cd "$3" || exit 1
	if [ -f "$5" ]; then
		(
			set +u
			. "$5"
		) || exit 1
	fi
	unpack_plain=$d_local/plain/${1##*/}
	if [ -f "$unpack_plain" ]; then
		! unpack_tar "$unpack_plain" none "$3" "$4" || exit 0
		rm -f "$unpack_plain"
	fi
	unpack_tar "$@"
)

# LAYER CODEC COMMAND...: a command that reads it without its compression.
unpack_by() {
	unpack_layer=$1 unpack_codec=$2
	shift 2
	case $unpack_codec in
	gzip) gzip -dc <"$unpack_layer" | "$@" ;;
	zstd) zstd -dcq <"$unpack_layer" | "$@" ;;
	none) "$@" <"$unpack_layer" ;;
	esac
}

# LAYER CODEC TREE STRIP: but for the marks of what a layer removes. A tar that cannot leave them out has them
# removed behind it.
unpack_tar() {
	if [ ! -e "$d_local/plain-tar" ]; then
		unpack_by "$1" "$2" tar -xof - --no-same-permissions --strip-components="$4" --exclude='.wh.*' && return
		! tar -cf /dev/null --exclude=x /dev/null 2>/dev/null || return 1
		true >"$d_local/plain-tar"
	fi
	unpack_by "$1" "$2" tar -xof - --strip-components="$4" || return 1
	unpack_by "$1" "$2" tar -tf - | while IFS= read -r unpack_name; do
		case $unpack_name in
		*/.wh.* | .wh.*)
			unpack_n=0
			while [ $((unpack_n += 1)) -le "$4" ]; do
				unpack_name=${unpack_name#*/}
			done
			rm -f "./$unpack_name"
			;;
		esac
	done
}

# What the supervisor becomes: a process that waits for the program and can tell a signal from an exit, which a
# shell cannot. For an awk that cannot either (busybox) a shell does.
REAPER='BEGIN {
	if (system("kill -9 $$") == 0) exit system(ARGV[3])
	r = system(ARGV[1])
	s = 0
	if (r >= 512) s = r - 512
	else if (r >= 256) s = r - 256
	else if (r != int(r)) s = int((r - int(r)) * 256 + 0.5) % 128
	if (s) r = 128 + s
	exit system(ARGV[2] " " r " " s) != 0
}'

# The same where there is a perl. What loses its parent in the program comes to this process, whatever it did to be
# on its own (prctl(2), PR_SET_CHILD_SUBREAPER), and is waited for.
REAPER_PERL='require Config;
my ($program, $finish) = @ARGV;
my $cpu = $Config::Config{archname};
my $prctl = $cpu =~ /x32/ ? 0 : $cpu =~ /^x86_64/ ? 157 : $cpu =~ /^(aarch64|riscv64|loongarch64)/ ? 167
	: $cpu =~ /^(i\d86|arm|s390)/ ? 172 : $cpu =~ /^(powerpc|ppc)/ ? 171 : 0;
syscall($prctl, 36, 1, 0, 0, 0) if $prctl;
my $child = fork;
exit 1 unless defined $child;
exec "/bin/sh", "-c", $program unless $child;
my $pid;
do { $pid = wait } until $pid == $child || $pid == -1;
my $signal = $? & 127;
exec "/bin/sh", "-c", "$finish " . ($signal ? 128 + $signal : $? >> 8) . " $signal";
'

begin_reaper() {
	part_of program "$dir"
	begin_program="exec $part_words" begin_setsid=
	! command -v setsid >/dev/null 2>&1 || begin_setsid='setsid '
	part_of limited "$dir"
	[ "${j_timeout_ms:-0}" -le 0 ] || begin_program="(exec ${begin_setsid}$part_words </dev/null >/dev/null 7>&- 9>&- &); $begin_program"
	part_of hold "$dir"
	[ "${j_hold_ms:-0}" -le 0 ] || begin_program="$part_words || exit 125; $begin_program"
	part_of finish "$dir"
	begin_finish="exec $part_words"
	part_of reap "$dir"
	begin_reap="exec $part_words"
	quoted_of "$begin_program"
	begin_reap="$begin_reap $quoted"
	# A container's processes have a parent in it, and its tool starts others that serve more than this container.
	if [ -z "${j_runtime-}" ] && perl -MConfig -e 1 2>/dev/null; then
		set -- perl -e "$REAPER_PERL" "$begin_program" "$begin_finish"
	else
		set -- sh -c "$begin_reap"
		# A shell that has an awk of its own would take that one.
		for begin_item in mawk gawk nawk awk; do
			command -v "$begin_item" >/dev/null 2>&1 || continue
			set -- "$begin_item" "$REAPER" "$begin_program" "$begin_finish" "$begin_reap"
			break
		done
	fi
	[ -z "${begin_has_gpus-}" ] || exec "$@"
	gpus_enter "$dir" "$@"
	# Not reached by what became the reaper; behind one that was a child it is over.
	begin_check
	attempt_fail "$dir" StartFailed "the supervisor could not go on"
}

# DIR COMMAND: 128 and more is taken for a signal.
job_reap() {
	reap_signal=0
	sh -c "$2"
	reap_code=$?
	[ "$reap_code" -le 128 ] || [ "$reap_code" -gt 192 ] || reap_signal=$((reap_code - 128))
	job_finish "$1" "$reap_code" "$reap_signal"
}
