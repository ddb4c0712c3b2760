# SPDX-License-Identifier: Apache-2.0
# What a program uses, summed up from looks at its processes. DIR/usage is for others, DIR/.usage has what is summed up.

# In ticks: between two questions to the tool of the GPUs, and how long an answer holds.
USAGE_GPU_PAUSE=1500
USAGE_GPU_HOLDS=6000

verb_usage() {
	for usage_name; do
		check_name "${usage_name%/*}"
		check_number "${usage_name##*/}"
		fields=''
		fields_of "$d_local/runs/$usage_name/usage" ' '
		printf 'usage %s%s\n' "$usage_name" "$fields"
	done
}

usage_sample() {
	usage_dir=$1
	field_of "$1/state" program || return 0
	usage_pid=${value%:*}
	usage_cpu_ms=0 usage_peak=0 usage_ticks=0 usage_n=0 usage_hz=0 usage_page=0
	usage_busy_sum=0 usage_busy_n=0 usage_gpu_peak='' usage_gpu_asked=0 usage_gpu_pause=$USAGE_GPU_PAUSE
	usage_gpu_said=0 usage_busy='' usage_gpu_memory='' usage_power='' usage_energy=''
	[ ! -f "$1/.usage" ] || . "$1/.usage"
	now_of
	ticks_of
	usage_elapsed=$(((ticks - usage_ticks) * 10))
	# At most a hundredth of a processor: some 80 us for each process of the machine.
	[ "$usage_elapsed" -ge $((usage_n * 8)) ] || return 0
	if [ "$usage_hz" = 0 ]; then
		usage_hz=$(getconf CLK_TCK 2>/dev/null) || usage_hz=100
		usage_page=$(getconf PAGESIZE 2>/dev/null) || usage_page=4096
	fi
	usage_look
	usage_gpus
	usage_write
}

usage_look() {
	usage_before_ms=$usage_cpu_ms usage_memory='' usage_large='' usage_cpu=''
	family_of "$usage_dir"
	# For those who will look for them when their parents are gone.
	printf '%s\n' "$family_starts" | tr '\n' ' ' >"$usage_dir/.seen" && mv -f "$usage_dir/.seen" "$usage_dir/.family"
	set -- $(printf 'mine %s\n%s\n' "$family" "$family_stats" | awk -v hz="$usage_hz" -v page="$usage_page" "$STAT_AWK"'
	$1 == "mine" { n = split($0, mine, " "); for (; n > 1; n--) member[mine[n]] = 1; next }
	stat_line() {
		all++
		if (!(pid in member)) next
		sum += stat[12] + stat[13] + stat[14] + stat[15]; memory += stat[22] * page
		if (stat[22] * page >= 33554432) large = large " " pid ":" stat[22] * page
	}
	END { printf "%d %.0f %.0f%s\n", all, sum * 1000 / hz, memory, large }')
	[ $# -ge 3 ] || return 0
	usage_n=$1
	# Times of processes that nobody waited for are lost again.
	[ "$2" -le "$usage_cpu_ms" ] || usage_cpu_ms=$2
	usage_memory=$3
	shift 3
	[ $# -lt 2 ] || usage_share "$@"
	if [ "$usage_ticks" -gt 0 ] && [ "$usage_elapsed" -gt 0 ]; then
		usage_cpu=$(((usage_cpu_ms - usage_before_ms) * 100 / usage_elapsed))
	fi
	usage_ticks=$ticks
	[ "$usage_memory" -le "$usage_peak" ] || usage_peak=$usage_memory
	[ -f "$usage_dir/container" ] || usage_high
}

# PID:BYTES...: pages that large processes share are counted once.
usage_share() {
	usage_looked=0
	for usage_one; do
		[ $((usage_looked += 1)) -le 32 ] || break
		while read -r usage_key usage_value usage_unit; do
			if [ "$usage_key" = Pss: ]; then
				usage_memory=$((usage_memory - ${usage_one#*:} + usage_value * 1024))
				break
			fi
		done <"/proc/${usage_one%:*}/smaps_rollup"
	done
} 2>/dev/null

# What the program itself has had at most, between two looks too.
usage_high() {
	while read -r usage_key usage_value usage_unit; do
		if [ "$usage_key" = VmHWM: ]; then
			[ $((usage_value * 1024)) -le "$usage_peak" ] || usage_peak=$((usage_value * 1024))
			break
		fi
	done <"/proc/$usage_pid/status"
} 2>/dev/null

# GPUs: $usage_busy (percent), $usage_gpu_memory, $usage_power (milliwatts); empty: not known.
usage_gpus() {
	[ -f "$usage_dir/gpus" ] || return 0
	field_of "$usage_dir/gpus" dgpu_vendor || return 0
	usage_before=$usage_gpu_said
	case $value in
	nvidia) usage_nvidia ;;
	amd) usage_amd ;;
	*) return 0 ;;
	esac
	if [ $((ticks - usage_gpu_said)) -gt "$USAGE_GPU_HOLDS" ]; then
		usage_busy='' usage_gpu_memory='' usage_power=''
	fi
	[ "$usage_gpu_said" = "$usage_before" ] || usage_gpu_sum $((usage_gpu_said - usage_before))
}

# TICKS since the last answer: that one is new.
usage_gpu_sum() {
	if [ -n "$usage_busy" ]; then
		usage_busy_sum=$((usage_busy_sum + usage_busy)) usage_busy_n=$((usage_busy_n + 1))
	fi
	if [ -n "$usage_gpu_memory" ] && [ "$usage_gpu_memory" -gt "${usage_gpu_peak:-0}" ]; then
		usage_gpu_peak=$usage_gpu_memory
	fi
	[ -n "$usage_power" ] || return 0
	# Of the time before the first answer, and of one that is long ago, nothing is known.
	[ "$usage_before" -gt 0 ] && [ "$1" -le "$USAGE_GPU_HOLDS" ] || return 0
	usage_energy=$((${usage_energy:-0} + usage_power * $1 / 100))
}

# The tool may take seconds: its answer is for a later look.
usage_nvidia() {
	if [ -f "$usage_dir/.gpus" ]; then
		usage_gpu_said=$ticks
		read -r usage_busy usage_gpu_memory usage_power usage_gpu_pause <"$usage_dir/.gpus"
		rm -f "$usage_dir/.gpus"
		[ "$usage_busy" != - ] || usage_busy=''
		[ "$usage_gpu_memory" != - ] || usage_gpu_memory=''
		[ "$usage_power" != - ] || usage_power=''
	fi
	[ $((ticks - usage_gpu_asked)) -ge "$usage_gpu_pause" ] || return 0
	usage_gpu_asked=$ticks
	field_of "$usage_dir/gpus" dgpu_ids
	usage_ids=$(printf %s "$value" | tr -d "'" | tr ' ' ,)
	(usage_ask_nvidia "$usage_ids" </dev/null >/dev/null 2>&1 &)
}

# A tool that takes a second is asked less often than one that answers at once.
usage_ask_nvidia() {
	ticks_of
	usage_began=$ticks
	usage_said=$(timeout 10 nvidia-smi --query-gpu=utilization.gpu,memory.used,power.draw --format=csv,noheader,nounits -i "$1" | tail -c 65536)
	ticks_of
	usage_gpu_pause=$(((ticks - usage_began) * 100))
	[ "$usage_gpu_pause" -ge 400 ] || usage_gpu_pause=400
	[ "$usage_gpu_pause" -le "$USAGE_GPU_PAUSE" ] || usage_gpu_pause=$USAGE_GPU_PAUSE
	printf '%s\n' "$usage_said" | awk -F, -v pause="$usage_gpu_pause" '
	function number(s) { return s ~ /^ *[0-9]+([.][0-9]+)? *$/ && length(s) < 16 }
	number($1) { busy += $1; busies++ }
	number($2) { memory += $2; memories++ }
	number($3) { power += $3; powers++ }
	END {
		printf busies ? "%d " : "- ", busies ? busy / busies : 0
		printf memories ? "%.0f " : "- ", memory * 1048576
		printf powers ? "%.0f " : "- ", power * 1000
		print pause
	}' >"$usage_dir/.gpus-new" && mv -f "$usage_dir/.gpus-new" "$usage_dir/.gpus"
}

usage_amd() {
	field_of "$usage_dir/gpus" dgpu_places
	usage_cards=0 usage_busy=0 usage_gpu_memory=0 usage_power=''
	for usage_one in $(printf %s "$value" | tr -d "'"); do
		amd_read "$d_sys/bus/pci/devices/$usage_one" || continue
		usage_busy=$((usage_busy + amd_busy)) usage_cards=$((usage_cards + 1))
		usage_gpu_memory=$((usage_gpu_memory + ${amd_memory:-0}))
		[ -z "$amd_power" ] || usage_power=$((${usage_power:-0} + amd_power))
	done
	if [ "$usage_cards" -eq 0 ]; then
		usage_busy='' usage_gpu_memory='' usage_power=''
	else
		usage_busy=$((usage_busy / usage_cards)) usage_gpu_said=$ticks
	fi
}

# DIR of a PCI device: $amd_busy (percent), $amd_memory, $amd_power (milliwatts), the last two maybe empty.
amd_read() {
	amd_busy='' amd_memory='' amd_power=''
	{ read -r amd_busy <"$1/gpu_busy_percent"; } 2>/dev/null || return 1
	{ read -r amd_memory <"$1/mem_info_vram_used"; } 2>/dev/null || amd_memory=''
	for amd_sensor in "$1"/hwmon/*/power1_average "$1"/hwmon/*/power1_input; do
		{ read -r amd_power <"$amd_sensor"; } 2>/dev/null || continue
		amd_power=$((amd_power / 1000))
		break
	done
}

# N: as hundredths, with two digits behind the point.
usage_hundredths() {
	usage_rest=$(($1 % 100))
	[ "$usage_rest" -ge 10 ] || usage_rest=0$usage_rest
	usage_words=$(($1 / 100)).$usage_rest
}

# KEY VALUE: a line, unless it is not known.
usage_line() {
	[ -z "$2" ] || usage_text="$usage_text$1=$2$nl"
}

usage_write() {
	usage_text=
	usage_line time "$now"
	# What was over before anybody looked is not nothing.
	if [ "$usage_peak" -gt 0 ]; then
		usage_hundredths $((usage_cpu_ms / 10))
		usage_line cpu_s "$usage_words"
		usage_line memory_peak_bytes "$usage_peak"
	fi
	if [ -n "$usage_cpu" ]; then
		usage_hundredths "$usage_cpu"
		usage_line cpu "$usage_words"
	fi
	usage_line memory_bytes "$usage_memory"
	if [ "$usage_busy_n" -gt 0 ]; then
		usage_hundredths $((usage_busy_sum / usage_busy_n))
		usage_line gpu_busy "$usage_words"
	fi
	if [ -n "$usage_busy" ]; then
		usage_hundredths "$usage_busy"
		usage_line gpu_busy_now "$usage_words"
	fi
	usage_line gpu_memory_bytes "$usage_gpu_memory"
	usage_line gpu_memory_peak_bytes "$usage_gpu_peak"
	if [ -n "$usage_power" ]; then
		usage_hundredths $((usage_power / 10))
		usage_line power_w "$usage_words"
	fi
	if [ -n "$usage_energy" ]; then
		usage_hundredths $((usage_energy / 10))
		usage_line energy_j "$usage_words"
	fi
	for usage_one in usage_cpu_ms usage_peak usage_ticks usage_n usage_hz usage_page usage_busy_sum usage_busy_n \
		usage_gpu_peak usage_gpu_asked usage_gpu_pause usage_gpu_said usage_busy usage_gpu_memory usage_power \
		usage_energy; do
		eval "echo $usage_one=\$$usage_one"
	done >"$usage_dir/.usage-new" && mv -f "$usage_dir/.usage-new" "$usage_dir/.usage"
	printf %s "$usage_text" >"$usage_dir/.usage-out" && mv -f "$usage_dir/.usage-out" "$usage_dir/usage"
} 2>/dev/null
