# SPDX-License-Identifier: Apache-2.0
# The program in a container of the node's own podman or docker, where the job has a j_runtime. Everything that is
# made here is found again by its name, and its processes by their environment as those of the host are.

# What these say is for the tool itself, whatever they are for the program.
CONTAINER_TOOL_NAMES="HOME PATH LD_LIBRARY_PATH LD_PRELOAD TMPDIR XDG_RUNTIME_DIR XDG_CONFIG_HOME XDG_DATA_HOME DOCKER_HOST DOCKER_CONFIG
DOCKER_CONTEXT CONTAINER_HOST CONTAINERS_CONF CONTAINERS_STORAGE_CONF REGISTRY_AUTH_FILE"
# Behind it a name is free again, also of a tool that does not answer.
CONTAINER_PATIENCE=60
CONTAINER_LOOK=5
# What podman may bring along, or a distribution beside it. It has to be static.
CONTAINER_INITS="/usr/libexec/podman/catatonit /usr/lib/podman/catatonit /usr/libexec/catatonit/catatonit catatonit tini-static"

# DIR: $container, its name.
container_name_of() {
	container=${1%/*}
	container=dlrun-${container##*/}-${1##*/}
}

# DIR: the image is there afterwards. Before GPUs are waited for.
container_make() {
	[ "${j_runtime-}" ] || return 0
	command -v "$j_runtime" >/dev/null 2>&1 || attempt_fail "$1" StartFailed "$j_runtime is not there"
	container_look "$1" && return
	wait_as "$1" "$j_runtime pulls $j_image" starting
	note "$1" "$j_runtime pulls $j_image"
	"$j_runtime" pull "$j_image" </dev/null >"$1/.pull" 2>&1 ||
		attempt_fail "$1" StartFailed "$j_runtime cannot pull $j_image: $(tail -n 1 "$1/.pull")"
	rm -f "$1/.pull"
	container_look "$1" || attempt_fail "$1" StartFailed "$j_runtime pulled $j_image and does not have it"
}

# DIR: 0 and the names that the image sets in DIR/image_env, for one that is there.
container_look() {
	container_text=$("$j_runtime" image inspect --format '{{range .Config.Env}}{{println .}}{{end}}' "$j_image" 2>/dev/null) || return 1
	printf '%s\n' "$container_text" | sed -n 's/^\([A-Za-z_][A-Za-z_0-9]*\)=.*/\1/p' >"$1/image_env"
}

# The tool, and what it is to find in its own environment, before the program's is made.
container_save() {
	container_tool=$(command -v "$j_runtime") || {
		program_why 125 StartFailed "$j_runtime is not there"
		exit 125
	}
	container_saved=
	for container_name in $CONTAINER_TOOL_NAMES; do
		eval "container_text=\${$container_name-}"
		eval "container_set=\${$container_name+1}"
		quoted_of "$container_text"
		if [ "$container_set" ]; then
			container_saved="${container_saved}export $container_name=$quoted$nl"
		else
			container_saved="${container_saved}unset $container_name$nl"
		fi
	done
}

# WORD...: further options of the tool.
container_add() {
	for container_word; do
		quoted_of "$container_word"
		container_options="$container_options $quoted"
	done
}

# FROM TO
container_mount() {
	case $container_mounted in
	*"$nl$2$nl"*) return ;;
	esac
	container_mounted=$container_mounted$2$nl
	case $1:$2 in
	*:*:*,* | *,*:*:*)
		program_why 125 StartFailed "$1 cannot be mounted in a container: it has both : and , in its name"
		exit 125
		;;
	*:*:*) container_add --mount "type=bind,src=$1,dst=$2" ;;
	*) container_add -v "$1:$2" ;;
	esac
}

container_mounts() {
	container_mounted=$nl
	container_mount "$dir/tree" "$j_workdir"
	for container_word in "${dir%/*}/outputs" "$dir/files"; do
		container_mount "$container_word" "$container_word"
	done
	if [ "${j_caches-}" ]; then
		mkdir -p "$j_caches" || {
			program_why 125 StartFailed "the directory of caches: cannot be made: $j_caches"
			exit 125
		}
		container_mount "$j_caches" "$j_caches"
	fi
	links_data=
	j_data
	eval "set -- $links_data"
	while [ $# -gt 0 ]; do
		container_mount "$2" "$2"
		shift 2
	done
}

# Values are not among the words of a command, which everybody on the node may read. All names are set by then.
container_variables() {
	container_tools=" $(printf %s "$CONTAINER_TOOL_NAMES" | tr '\n' ' ') "
	container_in_image=" $(tr '\n' ' ' <"$dir/image_env") "
	container_in_file=
	for container_name in $j_names DLRUN_RUN_ID DLRUN_ATTEMPT $(sed -n 's/^export \([A-Z_]*\)=.*/\1/p' "$dir/gpus"); do
		case $container_tools in
		*" $container_name "*) container_in_file="$container_in_file $container_name" ;;
		*) container_add -e "$container_name" ;;
		esac
	done
	for container_name in $j_default_names; do
		case $container_in_image in
		*" $container_name "*) ;;
		*) container_add -e "$container_name" ;;
		esac
	done
	if [ "$container_in_file" ]; then
		(container_file $container_in_file) || exit 125
		container_add --env-file "$dir/.env"
	fi
	[ -z "$container_seen" ] || container_add -e "CUDA_VISIBLE_DEVICES=$container_seen"
	container_add -e "DLRUN_OUTPUT_DIR=${dir%/*}/outputs" -e "DLRUN_ATTEMPT_DIR=$dir/files"
}

# NAME...: in a ( ), where the values may be anything.
container_file() {
	exec 7>"$dir/.env"
	program_env "$dir"
	for container_name; do
		eval "container_text=\$$container_name"
		case $container_text in
		*"$program_nl"*)
			program_why 125 StartFailed "$container_name cannot be set in a container: it has more than one line"
			exit 125
			;;
		esac
		printf '%s=%s\n' "$container_name" "$container_text" >&7
	done
}

# Behind program_env: the tool has its own environment, and what is found by DLRUN_ATTEMPT_DIR is in the container.
container_restore() {
	eval "$container_saved"
	unset DLRUN_OUTPUT_DIR DLRUN_ATTEMPT_DIR
	# These are done inside.
	j_before= j_signal= j_shell=0
}

# Whoever writes there is the user, as on the host.
container_user() {
	if [ "$j_runtime" = podman ] && [ "$d_uid" != 0 ]; then
		container_add --userns=keep-id
	else
		container_add --user "$d_uid:$(id -g)"
	fi
	[ "$d_uid" != 0 ] || return 0
	if [ "$j_runtime" = docker ]; then
		for container_word in $(id -G); do
			container_add --group-add "$container_word"
		done
	fi
	case " $j_names " in
	*" HOME "*) return ;;
	esac
	mkdir -p "$dir/home"
	container_mount "$dir/home" "$dir/home"
	container_add -e "HOME=$dir/home"
}

# In it the GPUs that it was given are all that there are.
container_gpus() {
	value= container_seen=
	field_of "$dir/gpus" gpus
	container_list=$value value=none
	field_of "$dir/gpus" dgpu_vendor
	case $value in
	nvidia) container_nvidia ;;
	amd) container_add --device /dev/kfd --device /dev/dri ;;
	*) [ "$j_runtime" != docker ] || container_add -e NVIDIA_VISIBLE_DEVICES=void ;;
	esac
}

container_nvidia() {
	container_n=0
	for container_word in $(printf %s "$container_list" | tr , ' '); do
		[ "$j_runtime" = docker ] || container_add --device "nvidia.com/gpu=$container_word"
		container_seen=$container_seen${container_seen:+,}$container_n
		container_n=$((container_n + 1))
	done
	[ "$j_runtime" = podman ] || container_add --gpus "\"device=$container_list\""
	grep -q '^export CUDA_VISIBLE_DEVICES=' "$dir/gpus" || container_seen=
}

# Somebody has to be process 1 who passes signals on: the kernel gives that one only those that it handles, and nobody
# tells by which it ended.
container_init() {
	if [ "$j_runtime" = docker ]; then
		container_add --init
		return
	fi
	for container_word in $CONTAINER_INITS; do
		if container_text=$(command -v "$container_word") && [ -x "$container_text" ]; then
			container_add --init --init-path "$container_text"
			return
		fi
	done
	field_of "$dir/state" warning || :
	state_set "$dir" warning="${value:+$value; }this node has no init for containers, and signals without a handler do not reach the program: install catatonit"
}

# podman fails where a controller was not handed down to its user; docker says so and goes on.
container_limits() {
	[ "${j_memory_bytes:-0}" -gt 0 ] || [ "${j_cpus_milli:-0}" -gt 0 ] || return 0
	container_text='cpu memory'
	[ "$j_runtime" = docker ] || container_text=$("$container_tool" info --format '{{.Host.CgroupControllers}}' 2>/dev/null | tr -d '[]')
	case ${j_memory_bytes:-0}:" $container_text " in
	0:*) ;;
	*" memory "*) container_add "--memory=${j_memory_bytes}b" "--memory-swap=${j_memory_bytes}b" ;;
	*) container_lacks=' and --memory' ;;
	esac
	case ${j_cpus_milli:-0}:" $container_text " in
	0:*) ;;
	*" cpu "*) container_add "--cpus=$((j_cpus_milli / 1000)).$(printf %03d $((j_cpus_milli % 1000)))" ;;
	*) container_lacks="$container_lacks and --cpus" ;;
	esac
}
container_lacks=

# $program_words as they are in the container, behind its ENTRYPOINT.
container_command() {
	eval "set -- $program_words"
	container_lines=
	[ -z "${j_signal-}" ] || container_lines="trap : $j_signal$nl"
	[ -z "${j_before-}" ] || container_lines=$container_lines$j_before$nl
	if [ "${j_shell:-0}" = 1 ]; then
		set -- sh -c "$container_lines$1"
	elif [ "${j_before-}" ]; then
		set -- sh -c "$container_lines$EXEC_LINES" dlrun "$@"
	fi
	container_options=
	container_add "$@"
	program_words=$container_options j_before= j_signal= j_shell=0
}

# Where the program is in it.
container_place() {
	case $j_cwd in
	'' | .) container_cwd=$j_workdir ;;
	*) container_cwd=$j_workdir/$j_cwd ;;
	esac
}

# $program_words become those that start the container.
container_start() {
	container_save
	container_name_of "$dir"
	printf '%s\n' "$container" >"$dir/container"
	container_command
	container_place
	container_options=
	container_add "$container_tool" run --rm --name "$container" --network=host --log-driver none --security-opt label=disable -w "$container_cwd"
	[ "${j_entrypoint-}" != none ] || container_add --entrypoint ''
	if [ "${j_shm_bytes:-0}" -gt 0 ]; then
		container_add "--shm-size=${j_shm_bytes}b"
	else
		container_add --ipc=host
	fi
	[ "$j_runtime" = docker ] || container_add --pull=never
	[ -z "${j_stop_signal-}" ] || container_add "--stop-signal=$j_stop_signal"
	container_limits
	container_init
	container_mounts
	container_user
	container_gpus
	container_variables
	container_add "$j_image"
	program_words=$container_options$program_words
}

# The same for a command beside the program.
container_beside() {
	field_of "$dir/state" program && is_alive "${value%:*}" "${value#*:}" || answer_fail gone "$1 does not run"
	[ "$exec_quoted" ] || set_command /bin/sh
	container_tool=$(command -v "$j_runtime") || answer_fail tool "$j_runtime is not there"
	container_name_of "$dir"
	container_command
	container_place
	container_options=
	container_add "$container_tool" exec -i
	[ ! -t 0 ] || container_add -t
	container_add -w "$container_cwd" "$container"
	program_words=$container_options$program_words
}

# DIR: $family_container, the first process in it.
container_root() {
	if ! field_of "$1/.container" root; then
		container_name_of "$1"
		field_of "$1/job" j_runtime
		container_word=$(timeout "$CONTAINER_LOOK" "$value" inspect --format '{{.State.Pid}}' "$container" </dev/null)
		[ "${container_word:-0}" -gt 0 ] && proc_start_of "$container_word" || return 0
		value=$container_word:$start
		printf 'root=%s\n' "$value" >"$1/.container"
	fi
	family_container=$value
}

# DIR: nothing of it is left.
container_remove() {
	[ -f "$1/container" ] || return 0
	container_name_of "$1"
	timeout "$CONTAINER_PATIENCE" "$j_runtime" rm -f "$container" </dev/null >/dev/null 2>&1 || :
	rm -f "$1/.env"
}

# DIR GROUP: what was being made when its end was asked for had no process yet.
container_stop() {
	[ -f "$1/container" ] || return 0
	container_tries=0
	while container_remove "$1" && [ "$2" ] && proc_start_of "$2" && [ $((container_tries += 1)) -le 10 ]; do
		[ "$container_tries" -lt 5 ] || kill -KILL "-$2"
		sleep 0.2 || sleep 1
	done 2>/dev/null
}

# DIR SIGNAL: to all that is in it, once: process 1 and the tool would pass it on a second time.
container_signal() {
	family_of "$1"
	for container_word in $family; do
		read -r container_text <"/proc/$container_word/comm" || continue
		case $container_text in
		*-init | catatonit | tini* | podman | docker | conmon) ;;
		*) kill "-$2" "$container_word" ;;
		esac
	done
} 2>/dev/null

# CODE: the tool's own failures, which it tells in the program's output by codes that programs have too.
container_judge() {
	container_last=$(tail -n 3 "$dir/log" 2>/dev/null | grep -v "^See '\|^Run '\|^ *$" | tail -n 1)
	case $1:$container_last in
	12[567]:Error:* | 12[567]:docker:*) container_text=${container_last#*: } ;;
	1:'ERROR (catatonit:'* | 127:'[FATAL tini'*) container_text=${container_last##*: } ;;
	*) return ;;
	esac
	end_origin=dlrun end_code=$1 end_reason=StartFailed end_text="$j_runtime: $container_text"
	case $1:$container_text in
	125:*) ;;
	126:*) end_reason=NotExecutable ;;
	*)
		set_command() {
			container_word=$1
		}
		j_command
		end_code=127 end_reason=NotFound end_text="$container_word cannot be started in $j_image: $container_text"
		;;
	esac
}
