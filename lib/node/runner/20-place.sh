# SPDX-License-Identifier: Apache-2.0
# Where things lie, and how this node is.

FREE_MARGIN=67108864
# More than any disk has: what df does not tell refuses nothing.
FREE_UNKNOWN=4611686018427387904

# $d_host, $d_boot, $d_uid, without a process where the kernel tells.
node_of() {
	{ read -r d_host </proc/sys/kernel/hostname || d_host=$(uname -n); } 2>/dev/null
	{ read -r d_boot </proc/sys/kernel/random/boot_id || d_boot=; } 2>/dev/null
	[ "$d_boot" ] || d_boot=$(who -b 2>/dev/null | tr -cd A-Za-z0-9)
	[ "$d_boot" ] || d_boot=unknown
	d_uid=
	while read -r node_key node_value node_rest; do
		case $node_key in
		Uid:)
			d_uid=$node_value
			break
			;;
		esac
	done 2>/dev/null </proc/self/status
	[ "$d_uid" ] || d_uid=$(id -u)
	case $d_host in
	'' | .* | *[!A-Za-z0-9._-]*) d_place=host-$(printf %s "$d_host" | cksum | tr ' ' -) ;;
	*) d_place=$d_host ;;
	esac
}

# A file system that other machines write too: locks, pids and watches of files mean nothing there. A file
# `shared` in ROOT says so of one that cannot be told.
is_shared() {
	[ ! -e "$d_root/shared" ] || return 0
	case $(stat -f -c %T "$d_root" 2>/dev/null) in
	nfs* | smb* | cifs | afs | *kafs | k-afs | coda | lustre | gpfs | ceph | fhgfs | panfs | v9fs | 9p | *19830326* | fuse* | \
		ocfs2 | gfs* | acfs | snfs | vboxsf | vmhgfs | prl_fs | UNKNOWN*65735546*) return 0 ;;
	esac
	return 1
}

# Decided once: afterwards $d_root/on/HOST is that directory, or a link that stands for the other one.
place_of() {
	d_local=$d_root/on/$d_place
	if [ -L "$d_local" ]; then
		d_local=/var/tmp/dlrun-$d_uid/on/$d_place
	elif [ -d "$d_local/runs" ]; then
		return
	fi
	mkdir -p "$d_root/on" "$d_root/layers" "$d_root/data" || answer_fail io "$d_root cannot be written to"
	case $d_local in
	/var/tmp/dlrun-"$d_uid"/on/*) ;;
	*)
		if is_shared; then
			d_local=/var/tmp/dlrun-$d_uid/on/$d_place
			ln -s "$d_local" "$d_root/on/$d_place" 2>/dev/null
		fi
		;;
	esac
	case $d_local in
	/var/tmp/dlrun-"$d_uid"/on/*) place_is_ours "/var/tmp/dlrun-$d_uid" || answer_fail io "/var/tmp/dlrun-$d_uid belongs to somebody else" ;;
	esac
	[ -d "$d_local/runs" ] ||
		mkdir -p "$d_local/incoming" "$d_local/spares" "$d_local/setups" "$d_local/runs" ||
		answer_fail io "$d_local cannot be made"
}

# A directory where everybody may write: ours, and no link of somebody else's.
place_is_ours() {
	mkdir -m 700 "$1" 2>/dev/null
	[ ! -L "$1" ] && [ -d "$1" ] && [ -O "$1" ]
}

# $free: bytes on the disk of $1.
free_of() {
	free_text=$(df -Pk "$1" 2>/dev/null)
	set -f
	set -- ${free_text#*"$nl"}
	set +f
	# What stands before the first percentage: a device may have blanks.
	free=$FREE_UNKNOWN
	while [ $# -gt 1 ]; do
		case $2 in
		[0-9]*%)
			case $1 in *[!0-9]*) ;; *) free=$(($1 * 1024)) ;; esac
			return
			;;
		esac
		shift
	done
}

# $d_launch. A scope of the user's own systemd outlives the login only where it lingers.
launch_of() {
	d_launch=nohup
	! command -v setsid >/dev/null 2>&1 || d_launch=setsid
	[ -e "/var/lib/systemd/linger/${LOGNAME:-${USER:-?}}" ] && [ -S "/run/user/$d_uid/systemd/private" ] &&
		command -v systemd-run >/dev/null 2>&1 && d_launch=systemd
}

# $cpus of a list like 0-3,5.
cpus_of() {
	cpus=0
	cpus_old=$IFS
	IFS=,
	for cpus_range in $1; do
		cpus=$((cpus + ${cpus_range#*-} - ${cpus_range%-*} + 1))
	done
	IFS=$cpus_old
}
