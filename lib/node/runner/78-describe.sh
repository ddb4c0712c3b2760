# SPDX-License-Identifier: Apache-2.0
# What the hosts of a pool should have in common.

# KEY VALUE; a fact without a value is not printed.
describe() {
	[ -n "$2" ] || return 0
	word_of "$2"
	printf 'is %s %s\n' "$1" "$coded"
}

# The first word that begins with a number, of the first line of COMMAND --version.
describe_version() {
	command -v "$1" >/dev/null 2>&1 || return 0
	describe_words=$(gpu_ask "$1" --version | head -n 1 | head -c 300)
	set -f
	for describe_word in $describe_words; do
		case $describe_word in
		[0-9]*.*) describe "$1" "${describe_word%,}" && break ;;
		esac
	done
	set +f
}

describe_system() {
	while IFS='=' read -r describe_key describe_value; do
		[ "$describe_key" = PRETTY_NAME ] || continue
		describe_value=${describe_value#[\"\']}
		describe system "${describe_value%[\"\']}"
	done </etc/os-release
	read -r describe_value </proc/sys/kernel/osrelease && describe kernel "$describe_value"
	while IFS=: read -r describe_key describe_value; do
		case $describe_key in
		'model name'*) describe cpu "${describe_value# }" && break ;;
		esac
	done </proc/cpuinfo
} 2>/dev/null

# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue …"
describe_driver() {
	{ IFS= read -r describe_words </proc/driver/nvidia/version; } 2>/dev/null || describe_words=
	[ "$describe_words" ] || ! command -v nvidia-smi >/dev/null 2>&1 ||
		describe_words=$(gpu_ask nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
	set -f
	for describe_word in $describe_words; do
		case $describe_word in
		[0-9]*.*[0-9]) describe driver "$describe_word" && break ;;
		esac
	done
	set +f
	describe_words=$(readlink -f /usr/local/cuda 2>/dev/null)
	case $describe_words in
	*/cuda-*) describe cuda "${describe_words##*/cuda-}" ;;
	esac
}

# KEY DIR: size of its file system.
describe_size() {
	describe "$1" "$(df -Pk "$2" 2>/dev/null | LC_ALL=C awk 'END { if ($(NF - 4) ~ /^[0-9]+$/) printf "%.0f", $(NF - 4) * 1024 }')"
}

# Each may be one that this shell does not know.
describe_limits() {
	describe open-files "$(ulimit -n)"
	describe locked-memory "$(ulimit -l)"
	describe processes "$(ulimit -u || ulimit -p)"
} 2>/dev/null

verb_describe() {
	describe_system
	describe_driver
	for describe_name in python3 uv git docker podman apptainer; do
		describe_version "$describe_name"
	done
	describe_size disk "$d_local"
	describe file-system "$(stat -f -c %T "$d_local" 2>/dev/null)"
	[ ! -d /dev/shm ] || describe_size shared-memory /dev/shm
	describe_limits
}
