# SPDX-License-Identifier: Apache-2.0
# The init container of a run whose code is not in its image: unpacks the layers of the code below
# /dlrun/code, as from the root of an image. Arguments: the directory that has them in parts
# LAYER.PART, or "" where they are sent (deliver.sh), each until it is whole; the place of the tree;
# the SHA-256 of each, lowest first.

to=/dlrun/code in=$1 tree=$2
shift 2

fail() {
	echo "dlrun: $*" >&2
	exit 1
}

has() {
	command -v "$1" >/dev/null 2>&1
}

# FILE SHA-256
is_whole() {
	if has sha256sum; then
		found=$(sha256sum <"$1") && [ "${found%% *}" = "$2" ]
	else
		python3 -c 'import hashlib, sys
sys.exit(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest() != sys.argv[2])' "$1" "$2"
	fi
}

# FILE: for one that is damaged: it is sent again.
drop() {
	rm -f "$1" || fail 'the code is damaged, and cannot be removed'
	return 1
}

# FILE DIRECTORY. Modes are as in the archive, whatever the umask is.
unpack() {
	if has tar; then
		tar -xzpf "$1" -C "$2"
	else
		python3 -c 'import sys, tarfile
with tarfile.open(sys.argv[1], errors="surrogateescape") as t:
    t.extractall(sys.argv[2])' "$1" "$2"
	fi
}

# In a directory: remove what whiteouts name in another one, and the whiteouts.
remove_whiteouts='for f; do
	name=${f##*/.wh.}
	rm -rf -- "$to/${f%/*}/$name" "$f" || exit
done'

# What is to be a file goes, and what is in the way of a directory.
make_way='for f; do
	if [ ! -d "$f" ] || [ -L "$f" ]; then
		rm -rf -- "$to/$f"
	elif [ ! -d "$to/$f" ] || [ -L "$to/$f" ]; then
		rm -f -- "$to/$f"
	fi || exit
done'

# FILE: lay it over what is there.
lay_over() {
	rm -rf "$to/.dlrun-next"
	mkdir "$to/.dlrun-next" && unpack "$1" "$to/.dlrun-next" &&
		(
			cd "$to/.dlrun-next" || exit
			export to
			find . -name '.wh.*' -exec /bin/sh -c "$remove_whiteouts" sh {} + &&
				find . ! -name . -exec /bin/sh -c "$make_way" sh {} + &&
				find . -mindepth 1 -maxdepth 1 -exec cp -a {} "$to" \;
		) && rm -rf "$to/.dlrun-next"
}

# A container that is started again goes on where it was.
[ ! -e "$to/.dlrun-done" ] || exit 0
rm -rf "${to:?}$tree"
has sha256sum || has python3 || fail 'without a registry the code is checked in the pod, and the image has neither sha256sum nor python3'
has tar || has python3 || fail 'without a registry the code is unpacked in the pod, and the image has neither tar nor python3'
n=0
for sum; do
	file=$to/.dlrun-layer
	if [ "$in" ]; then
		cat "$in/$n".* >"$file" || fail 'the code cannot be written'
		is_whole "$file" "$sum" || fail "layer $n of the code is damaged"
	else
		file=$to/.dlrun-$n
		has head && has wc || fail 'the image has no head and wc, by which the code is sent to it'
		until [ -e "$file" ] && { is_whole "$file" "$sum" || drop "$file"; }; do
			sleep 0.1 2>/dev/null || sleep 1
		done
	fi
	if [ "$n" = 0 ]; then
		unpack "$file" "$to" && rm -f "$to$tree/.wh..wh..opq"
	else
		lay_over "$file"
	fi || fail "layer $n of the code cannot be unpacked"
	n=$((n + 1))
done
: >"$to/.dlrun-done"
rm -f "$to"/.dlrun-layer "$to"/.dlrun-[0-9]*
