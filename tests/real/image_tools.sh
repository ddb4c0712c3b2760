#!/bin/bash
# Other people's tools accept the images that `push --to oci:DIR` writes: umoci unpacks them to the
# bytes of the tree, crane pushes and validates them, GNU tar reads the full layer.
#
#     tests/real/image_tools.sh DLRUN
#
# Needs umoci and crane on PATH (or CRANE=/path/to/crane); exits 77 without them. Installs nothing,
# listens on a loopback port that crane chooses.
set -euo pipefail
export LC_ALL=C

dlrun=$(realpath "${1:?usage: image_tools.sh DLRUN}")
crane=${CRANE:-crane}
for tool in umoci "$crane"; do
	command -v "$tool" >/dev/null || {
		echo "skipped: no $tool"
		exit 77
	}
done

work=$(mktemp -d)
registry=
cleanup() {
	[ -z "$registry" ] || kill "$registry" 2>/dev/null || true
	rm -rf "$work"
}
trap cleanup EXIT
export HOME=$work/home XDG_STATE_HOME=$work/state XDG_CACHE_HOME=$work/cache
export XDG_DATA_HOME=$work/data XDG_CONFIG_HOME=$work/config
mkdir -p "$HOME" "$XDG_STATE_HOME" "$XDG_CACHE_HOME" "$XDG_DATA_HOME" "$XDG_CONFIG_HOME"

fail() {
	echo "FAIL: $*" >&2
	exit 1
}

RANDOM=${SEED:=$$}
echo "seed $SEED"

# Something new at a random place, whatever was there before.
put() {
	local names=(a b a-b a.c 'with blank' $'new\nline' $'\xff\xfe' 'é' -dash) path=$tree depth i
	depth=$((RANDOM % 4 + 1))
	for ((i = 0; i < depth; i++)); do
		path=$path/${names[RANDOM % ${#names[@]}]}
		if ((i + 1 < depth)) && [ -L "$path" -o ! -d "$path" ]; then
			rm -rf "$path"
			mkdir "$path"
		fi
	done
	rm -rf "$path"
	case $((RANDOM % 6)) in
	0) ln -s "../target $RANDOM" "$path" ;;
	1) : >"$path" ;;
	2) head -c $((RANDOM * 40)) /dev/urandom >"$path" ;;
	3)
		echo "echo $RANDOM" >"$path"
		chmod 755 "$path"
		;;
	*) seq $((RANDOM % 2000)) >"$path" ;;
	esac
}

# Images have no empty directories.
edit() {
	local n=$1
	while ((n-- > 0)); do put; done
	find "$tree" -mindepth 1 -depth -type d -empty -delete
}

# Names, kinds, execute bits and contents.
list() {
	(cd "$1" && find . -mindepth 1 \( -type f -perm /100 -printf 'x %p\0' \) -o -printf '%y %p %l\0' |
		sort -z | tr '\0\n' '\n?')
}

same_tree() {
	diff -r --no-dereference "$1" "$2" || fail "$3: contents differ"
	diff <(list "$1") <(list "$2") || fail "$3: kinds or modes differ"
}

# push NAME [OPTION…]: the tree under this name; prints the digest.
push() {
	local name=$1
	shift
	"$dlrun" -C "$tree" push --to "oci:$images:$name" "$@" >"$work/out" 2>"$work/err" ||
		fail "push $name: $(cat "$work/err")"
	sed -n 's/.*@\(sha256:[0-9a-f]*\).*/\1/p' "$work/out"
}

unpack() {
	rm -rf "$work/bundle"
	umoci unpack --rootless --image "$images:$1" "$work/bundle" >"$work/log" 2>&1 ||
		fail "umoci unpack $1: $(cat "$work/log")"
}

blob() {
	echo "$images/blobs/sha256/${1#sha256:}"
}

# The last layer digest of a manifest.
last_layer() {
	grep -o '"digest":"sha256:[0-9a-f]*"' "$(blob "$1")" | sed 's/.*"\(sha256:[0-9a-f]*\)"/\1/' | tail -1
}

tree=$work/tree images=$work/images
mkdir "$tree"
touch "$tree/dlrun.yaml"
edit 40
head -c 9000000 /dev/urandom >"$tree/weights.bin"

first=$(push v0 --image scratch)
[ "$(push v0 --image scratch)" = "$first" ] || fail "an unchanged tree has another digest"
for i in 1 2 3 4 5 6; do
	edit 4
	push "v$i" --image scratch >/dev/null
	unpack "v$i"
	same_tree "$tree" "$work/bundle/rootfs/dlrun/src" "v$i"
done

# The whole tree in one layer: GNU tar makes the same of it.
rm "$tree/weights.bin"
full=$(push full --image scratch --full)
mkdir "$work/tar"
tar -C "$work/tar" -xzf "$(blob "$(last_layer "$full")")" || fail "GNU tar"
same_tree "$tree" "$work/tar/dlrun/src" "GNU tar"
unpack full
same_tree "$tree" "$work/bundle/rootfs/dlrun/src" "full"

# Over a base that umoci made.
umoci init --layout "$work/base"
umoci new --image "$work/base:v1"
mkdir -p "$work/layer/etc" && echo base >"$work/layer/etc/base"
tar -C "$work/layer" -cf "$work/layer.tar" etc
umoci raw add-layer --image "$work/base:v1" "$work/layer.tar" >"$work/log" 2>&1 ||
	fail "umoci raw add-layer: $(cat "$work/log")"
umoci config --image "$work/base:v1" --config.user 1000 --config.env A=b
push based --image "oci:$work/base:v1" >/dev/null
edit 4
push based2 --image "oci:$work/base:v1" >/dev/null
unpack based2
same_tree "$tree" "$work/bundle/rootfs/dlrun/src" "based2"
[ "$(cat "$work/bundle/rootfs/etc/base")" = base ] || fail "the base is not there"
umoci stat --image "$images:based2" --json >"$work/stat"
grep -q '"created_by":"dlrun full"' "$work/stat" ||
	fail "the history does not tell of the layers"

# All of them at once, through a registry.
"$crane" registry serve --address 127.0.0.1:0 >"$work/registry" 2>&1 &
registry=$!
for ((i = 0; i < 100; i++)); do
	port=$(sed -n 's/.*serving on port \([0-9]*\).*/\1/p' "$work/registry")
	[ -z "$port" ] || break
	sleep 0.1
done
[ -n "$port" ] || fail "crane registry: $(cat "$work/registry")"
"$crane" push --index "$images" "127.0.0.1:$port/all" >"$work/log" 2>&1 ||
	fail "crane push: $(cat "$work/log")"
"$crane" validate --remote "127.0.0.1:$port/all" >"$work/log" 2>&1 ||
	fail "crane validate: $(cat "$work/log")"

# What nobody refers to goes, and umoci finds nothing more.
umoci gc --layout "$images" >"$work/log" 2>&1 || fail "umoci gc: $(cat "$work/log")"
unpack based2
echo "ok"
