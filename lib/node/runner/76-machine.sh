# SPDX-License-Identifier: Apache-2.0
# What this machine has and uses as of now.

verb_machine() {
	machine_load
	machine_memory
	hello_cpus
	printf 'cpus %s\n' "$cpus"
	if ! gpus_find; then
		word_of "$dgpu_error"
		printf 'fault %s\n' "$coded"
		return 0
	fi
	[ -n "$dgpu_list" ] || return 0
	gpus_say
	machine_amd
	case $dgpu_list in
	nvidia*) machine_nvidia ;;
	esac
}

machine_load() {
	read -r machine_value machine_rest </proc/loadavg || return 0
	word_of "$machine_value"
	printf 'load %s\n' "$coded"
} 2>/dev/null

machine_memory() {
	machine_all='' machine_free=''
	while read -r machine_key machine_value machine_rest; do
		case $machine_key in
		MemTotal:) machine_all=$((machine_value * 1024)) ;;
		MemAvailable:) machine_free=$((machine_value * 1024)) ;;
		esac
	done </proc/meminfo
	if [ -n "$machine_all" ] && [ -n "$machine_free" ]; then
		printf 'memory %s %s\n' "$machine_all" "$machine_free"
	fi
} 2>/dev/null

machine_nvidia() {
	gpu_ask nvidia-smi --query-gpu=index,utilization.gpu,memory.used,power.draw --format=csv,noheader,nounits | LC_ALL=C awk -F, '
	function number(s) { return s ~ /^ *[0-9]+([.][0-9]+)? *$/ && length(s) < 16 }
	function known(s, factor) { return number(s) ? sprintf("%.0f", s * factor) : "-" }
	NF == 4 && number($1) && n++ < 64 {
		print "meter nvidia", known($1, 1), known($2, 1), known($3, 1048576), known($4, 1000)
	}'
}

machine_amd() {
	while read -r dgpu_vendor dgpu_index dgpu_id dgpu_pci dgpu_rest; do
		[ "$dgpu_vendor" = amd ] && amd_read "$d_sys/bus/pci/devices/$dgpu_pci" || continue
		word_of "$amd_busy"
		printf 'meter amd %s %s %s %s\n' "$dgpu_index" "$coded" "${amd_memory:--}" "${amd_power:--}"
	done <<-EOF
		$dgpu_list
	EOF
}
