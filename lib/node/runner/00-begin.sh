# SPDX-License-Identifier: Apache-2.0
# dlrun's side on a node; lib/node/protocol.h says what is spoken. POSIX sh only: dash, bash, busybox.
#	sh RUNNER ROOT MARK                     one conversation
#	sh RUNNER ROOT - LOCAL WORD ARGS...     a part of an attempt that works by itself: job_WORD
# What everybody has: $d_root, $d_local (LOCAL), $d_runner, $d_mark (serving only), $d_uid, $d_host,
# $d_boot; $nl and $tab. Global names of the core begin with d_; a function's own variables begin
# with letters of its name: a name that people export would be changed for their programs.
# Descriptors: 9 is the attempt's lock, 8 is the core's, and 7, but as the slot of a study (27-slot.sh); 3 to 6 are
# free for locks of GPUs. The program inherits these and 7.
# Sums of 32 bits are too small for sizes and times, and ksh keeps descriptors to itself.
case ${KSH_VERSION-} in
?*)
	for d_shell in dash bash; do
		! command -v "$d_shell" >/dev/null 2>&1 || exec env -u KSH_VERSION "$d_shell" "$0" "$@"
	done
	;;
esac
set -u
nl='
'
tab='	'
d_mark=- d_local= d_uid= d_host= d_boot= d_free=
d_umask=$(umask)
umask 077
# Bytes are bytes, and what tools say is in one language. The program gets its own back.
d_lc_set=${LC_ALL+1} d_lc=${LC_ALL-}
export LC_ALL=C

# As the login has it: what is executed next is not ours.
login_env() {
	umask "$d_umask"
	# bash complains of locales that are not there.
	{ if [ "$d_lc_set" ]; then LC_ALL=$d_lc; else unset LC_ALL; fi; } 2>/dev/null
}

# DIR: the file `login`, for parts of an attempt that do not come from the login.
login_write() {
	printf "d_umask=%s d_lc_set=%s d_lc='%s'\n" "$d_umask" "$d_lc_set" "${d_lc%%\'*}" >"$1/login"
}
