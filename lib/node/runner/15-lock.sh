# SPDX-License-Identifier: Apache-2.0
# Locks of files, flock(2), by flock(1) or by what does the same. A lock belongs to what was opened, not to who took
# it: whoever gets an open descriptor can lock it for the shell, and end.
#	flock [-n] [-s | -x | -u] FD
#	flock -F [-n] [-s | -x] FILE COMMAND...     becomes the command
LOCK_PERL='my %bit = ("-s", 1, "-x", 2, "-n", 4, "-u", 8);
my $how = 0;
$how |= $bit{+shift} while $ARGV[0] =~ /^-/;
$^F = 1 << 30;
open my $file, @ARGV > 1 ? "<" : "<&=", shift or exit 1;
flock $file, $how & 11 ? $how : $how | 2 or exit 1;
exit 127 if @ARGV && !exec @ARGV;'

# Nothing is imported from the present directory. Python itself ignores two signals, which a command would inherit.
LOCK_PYTHON='import sys
del sys.path[0]
import fcntl, os, signal
words, how = sys.argv[1:], 0
while words[0].startswith("-"):
	how |= {"-s": 1, "-x": 2, "-n": 4, "-u": 8}.get(words.pop(0), 0)
try:
	file = os.open(words.pop(0), os.O_RDONLY) if words[1:] else int(words.pop())
	fcntl.flock(file, how if how & 11 else how | 2)
except (IOError, OSError):
	sys.exit(1)
if words:
	fcntl.fcntl(file, fcntl.F_SETFD, 0)
	signal.signal(signal.SIGPIPE, signal.SIG_DFL)
	signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
	os.execvp(words[0], words)'

# $d_flock: the words that do it, quoted; empty: nothing there does.
lock_find() {
	for d_flock in flock perl python3 python; do
		command -v "$d_flock" >/dev/null 2>&1 || continue
		case $d_flock in
		perl) d_flock="perl -e '$LOCK_PERL' --" ;;
		python*) d_flock="$d_flock -ESc '$LOCK_PYTHON'" ;;
		esac
		return
	done
	d_flock=
}
lock_find

# PREFIX ARGS...: flock ARGS behind the words of PREFIX.
lock_by() {
	lock_prefix=$1
	shift
	eval "$lock_prefix $d_flock \"\$@\""
}

case $d_flock in
'' | flock) ;;
*)
	flock() {
		lock_by '' "$@"
	}
	;;
esac

# FILE: whether the owner of a ticket, who has it locked, lives. A shared lock, so that two who look do not take each
# other for the owner; what is dead is removed. The caller's own ticket (6) and lock of the queue (5) are not inherited.
ticket_lives() {
	if [ -L "$1" ] || [ ! -f "$1" ]; then
		return 1
	fi
	# 75: it could be locked.
	{ ! flock -n -s 3 6<&- 5<&- || (exit 75); } 3<"$1" && return 0
	[ $? -ne 75 ] || rm -f "$1"
	return 1
} 2>/dev/null
