# SPDX-License-Identifier: Apache-2.0
# GPUs of this machine, as lib/host/gpu_find.c and gpu_parse.c find them: the ids must be the same.
# dgpu_list: a line for each, "VENDOR INDEX ID PCI MEMORY USED MODEL", in the order of VENDOR and
# INDEX. PCI may be -, MEMORY 0 (unknown), USED is 0 or 1, MODEL has blanks.
d_sys=/sys
dgpu_trim='function trim(s) { gsub(/^[ \t\r]+|[ \t\r]+$/, "", s); return s }
function known(s) { return s != "" && s !~ /^\[/ && tolower(s) != "n/a" }
function pad(s, n) { while (length(s) < n) s = "0" s; return s }
function pci(s, p, n) {
	s = tolower(s)
	if (s !~ /^[0-9a-f:.]+$/) return "-"
	n = split(s, p, /[:.]/)
	if (n == 3) s = "0:" s
	else if (n != 4) return "-"
	split(s, p, /[:.]/)
	sub(/^0+/, "", p[1])
	return pad(p[1], 4) ":" pad(p[2], 2) ":" pad(p[3], 2) "." p[4]
}
function model(s) { gsub(/[^ -~]/, "?", s); return substr(s, 1, 95) }
'

# What a tool says, at most 1 MiB and 10 s. The last line is its exit status.
gpu_ask() {
	{
		LC_ALL=C timeout 10 "$@" 2>&1 </dev/null 6<&- 5<&- 9<&-
		echo "status $?"
	} | tail -c 1048576
}

# The tool and the lines of its answer that are to be shown, as words for people.
gpu_tool_failed() {
	dgpu_error="$1 does not list the GPUs: $(printf '%s\n' "$2" | head -n 2 | head -c 300 | tr '\n' ' ')"
	return 1
}

gpu_no_driver() {
	case $1 in
	*"couldn't communicate with the NVIDIA driver"* | *"couldn't find libnvidia-ml"* | \
		*"amdgpu not found"* | *"Driver not initialized"*) return 0 ;;
	esac
	return 1
}

# Whether there is an NVIDIA display controller, or the bus cannot be seen.
gpu_may_have_nvidia() {
	[ -d "$d_sys/bus/pci/devices" ] || return 0
	for dgpu_at in "$d_sys"/bus/pci/devices/*; do
		dgpu_vendor='' dgpu_class=''
		read -r dgpu_vendor 2>/dev/null <"$dgpu_at/vendor" || continue
		read -r dgpu_class 2>/dev/null <"$dgpu_at/class" || continue
		case $dgpu_vendor$dgpu_class in 0x10de0x03*) return 0 ;; esac
	done
	return 1
}

gpu_find_nvidia() {
	command -v nvidia-smi >/dev/null 2>&1 || return 0
	dgpu_said=$(gpu_ask nvidia-smi --query-gpu=index,uuid,pci.bus_id,memory.total,name \
		--format=csv,noheader,nounits)
	if gpu_no_driver "$dgpu_said" && ! gpu_may_have_nvidia; then
		return 0
	fi
	dgpu_uses=$(gpu_ask nvidia-smi --query-compute-apps=gpu_uuid,gpu_bus_id,pid,process_name \
		--format=csv,noheader)
	dgpu_found=$(printf '%s\n\n%s\n' "$dgpu_said" "$dgpu_uses" | LC_ALL=C awk -F, "$dgpu_trim"'
	!apps && /^status [0-9]+$/ { status = $0; apps = 1; next }
	!apps && (/No devices were found/ || /No devices found/) { none = 1; next }
	!apps && (/Unable to determine the device handle/ || /GPU is lost/ || /[Ww]arning:|WARNING:/ ||
		/^[ \t\r]*$/) { next }
	!apps {
		index_ = trim($1); id = trim($2); at = pci(trim($3)); memory = trim($4); name = $5
		for (i = 6; i <= NF; i++) name = name "," $i
		if (!known(id) || length(id) > 95 || id !~ /^[A-Za-z0-9._:-]+$/) id = at
		if (index_ !~ /^[0-9]+$/ || index_ + 0 > 4096 || id == "-" || memory == "" ||
			(known(memory) && memory !~ /^[0-9]+$/)) { bad = 1; next }
		n++
		row[n] = "nvidia " index_ " " id " " at " " sprintf("%.0f", memory * 1048576)
		by[id] = n; by[at] = n; words[n] = model(trim(name))
		next
	}
	{
		name = $4
		for (i = 5; i <= NF; i++) name = name "," $i
		if (trim(name) ~ /nvidia-cuda-mps-server$/) next
		id = trim($1); at = pci(trim($2))
		if (id in by) used[by[id]] = 1
		else if (at != "-" && at in by) used[by[at]] = 1
	}
	END {
		if (bad || (n == 0 && !none && status != "status 0")) { print "bad"; exit }
		for (i = 1; i <= n; i++) print row[i], used[i] + 0, words[i]
	}')
	if [ "$dgpu_found" = bad ]; then
		gpu_tool_failed nvidia-smi "$dgpu_said"
	fi
}

# AMD's compute driver counts as ROCR_VISIBLE_DEVICES does. Lines as of dgpu_list.
gpu_kfd() {
	dgpu_n=0 dgpu_node=0
	dgpu_top=$d_sys/class/kfd/kfd
	while [ "$dgpu_node" -lt 256 ] && [ -d "$dgpu_top" ]; do
		gpu_kfd_node "$dgpu_top/topology/nodes/$dgpu_node"
		dgpu_node=$((dgpu_node + 1))
	done
}

gpu_kfd_node() {
	[ -r "$1/properties" ] || return 0
	dgpu_id=0
	read -r dgpu_id 2>/dev/null <"$1/gpu_id" || return 0
	dgpu_simd=0 dgpu_place='' dgpu_unique=0 dgpu_domain=0 dgpu_version=0
	while read -r dgpu_key dgpu_value; do
		case $dgpu_key in
		simd_count) dgpu_simd=$dgpu_value ;;
		location_id) dgpu_place=$dgpu_value ;;
		unique_id) dgpu_unique=$dgpu_value ;;
		domain) dgpu_domain=$dgpu_value ;;
		gfx_target_version) dgpu_version=$dgpu_value ;;
		esac
	done <"$1/properties"
	if [ "$dgpu_simd" = 0 ] || [ -z "$dgpu_place" ]; then
		return 0
	fi
	dgpu_at=$(printf '%04x:%02x:%02x.%x' "$dgpu_domain" $((dgpu_place / 256 % 256)) \
		$((dgpu_place / 8 % 32)) $((dgpu_place % 8)))
	dgpu_name=$dgpu_at
	[ "$dgpu_unique" = 0 ] || dgpu_name=$(printf '0x%016x' "$dgpu_unique")
	printf 'amd %s %s %s %s %s AMD gfx%d%x%x\n' "$dgpu_n" "$dgpu_name" "$dgpu_at" "$(gpu_kfd_memory "$1")" \
		"$(gpu_kfd_used "$dgpu_id")" $((dgpu_version / 10000 % 100)) $((dgpu_version / 100 % 100)) \
		$((dgpu_version % 100))
	dgpu_n=$((dgpu_n + 1))
}

gpu_kfd_memory() {
	dgpu_sum=0
	for dgpu_bank in "$1"/mem_banks/*/properties; do
		[ -r "$dgpu_bank" ] || continue
		dgpu_heap=0 dgpu_size=0
		while read -r dgpu_key dgpu_value; do
			case $dgpu_key in
			heap_type) dgpu_heap=$dgpu_value ;;
			size_in_bytes) dgpu_size=$dgpu_value ;;
			esac
		done <"$dgpu_bank"
		case $dgpu_heap in 1 | 2) dgpu_sum=$((dgpu_sum + dgpu_size)) ;; esac
	done
	echo "$dgpu_sum"
}

gpu_kfd_used() {
	for dgpu_use in "$dgpu_top"/proc/[0-9]*/vram_"$1"; do
		dgpu_value=0
		read -r dgpu_value 2>/dev/null <"$dgpu_use" || continue
		[ "$dgpu_value" = 0 ] || { echo 1; return; }
	done
	echo 0
}

# rocm-smi: {"card0": {"Unique ID": "0x...", ...}, "system": {...}} behind any text. It may count
# what is no GPU for ROCm, and does not say who uses one: the driver's own list does.
gpu_find_amd() {
	dgpu_amd=$(gpu_kfd)
	dgpu_cards=''
	if command -v rocm-smi >/dev/null 2>&1; then
		dgpu_said=$(gpu_ask rocm-smi --showuniqueid --showproductname --showbus --showmeminfo vram --json)
		gpu_no_driver "$dgpu_said" || dgpu_cards=$(printf '%s\n' "$dgpu_said" | LC_ALL=C awk -F'"' "$dgpu_trim"'
		/^status [0-9]+$/ { next }
		{ text = text $0 }
		function rank(number, k, r) {
			for (k in numbers) if (numbers[k] < number) r++
			return r + 0
		}
		function hex(s) {
			s = tolower(s); sub(/^0x/, "", s)
			if (s !~ /^[0-9a-f]+$/ || length(s) > 16) return ""
			sub(/^0+/, "", s)
			return s == "" ? "" : "0x" pad(s, 16)
		}
		function named(s) { return known(s) && s !~ /^0x/ }
		END {
			if (text ~ /No JSON data/ || text ~ /^[ \t\r]*$/) exit
			at = index(text, "{")
			if (!at) { print "bad"; exit }
			n = split(substr(text, at), part, "\"")
			if (n < 2 || n % 2 == 0 || part[n] !~ /[}]/) { print "bad"; exit }
			for (i = 2; i <= n; i += 2) {
				if (part[i + 1] ~ /^[ \t]*:[ \t]*[{]/) {
					card = part[i] ~ /^card[0-9]+$/ ? part[i] : ""
					if (card != "") { order[++cards] = card; numbers[card] = substr(card, 5) + 0 }
				} else if (part[i + 1] ~ /^[ \t]*:[ \t]*$/ && i + 2 <= n) {
					if (card != "") v[card, tolower(part[i])] = trim(part[i + 2])
					i += 2
				}
			}
			for (i = 1; i <= cards; i++) {
				card = order[i]
				place = pci(v[card, "pci bus"]); id = hex(v[card, "unique id"])
				if (id == "") id = place
				if (id == "-") { print "bad"; exit }
				memory = v[card, "vram total memory (b)"]
				name = "AMD GPU"
				if (named(v[card, "device name"])) name = v[card, "device name"]
				if (named(v[card, "card model"])) name = v[card, "card model"]
				if (named(v[card, "card series"])) name = v[card, "card series"]
				print "amd", rank(numbers[card]), id, place, (memory ~ /^[0-9]+$/ ? memory : 0), 0, model(name)
			}
		}')
		if [ "$dgpu_cards" = bad ]; then
			gpu_tool_failed rocm-smi "$dgpu_said"
			return 1
		fi
	fi
	# Parts of processors, with less than 2 GiB set apart, are none.
	dgpu_amd=$(printf '%s\n\n%s\n' "$dgpu_amd" "$dgpu_cards" | LC_ALL=C awk '
	NF == 0 { cards = 1; next }
	!cards { kfd[++n] = $0; at[$4] = n; next }
	{ found[++m] = $0 }
	END {
		for (i = 1; i <= (m ? m : n); i++) {
			$0 = m ? found[i] : kfd[i]
			if (m && $4 != "-" && $4 in at) {
				split(kfd[at[$4]], k, " ")
				$2 = k[2]; $6 = k[6]
			}
			if ($5 + 0 == 0 || $5 + 0 >= 2147483648) print
		}
	}')
}

# 0: dgpu_list is filled in, maybe with nothing. 1: dgpu_error says why not.
gpus_find() {
	dgpu_found='' dgpu_error='' dgpu_list=''
	gpu_find_nvidia || return 1
	dgpu_nvidia=$dgpu_found
	gpu_find_amd || return 1
	dgpu_list=$(printf '%s\n%s\n' "$dgpu_nvidia" "$dgpu_amd" | LC_ALL=C sort -k1,1r -k2,2n -k3,3 | LC_ALL=C awk '
	NF >= 6 {
		id = $3
		for (i = 2; $3 in seen; i++) $3 = id "-" i
		seen[$3] = 1
		print
	}')
	dgpu_n=$(printf '%s\n' "$dgpu_list" | wc -l)
	if [ "$dgpu_n" -gt 64 ]; then
		dgpu_error='this machine has more than 64 GPUs'
		return 1
	fi
}
