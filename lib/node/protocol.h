/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Protocol between dlrun and its runner on a node. The runner is one POSIX shell script
 * (lib/node/runner/, joined at build time), kept on the node as ROOT/bin/HASH. Nothing else is
 * installed there. The protocol needs a byte stream with stdin, stdout, stderr and an exit status
 * for each connection (channel.h), nothing of SSH.
 *
 * A connection is one command:
 *
 *	exec sh -c 'BOOT' dlrun ROOT HASH SIZE MARK
 *
 * BOOT has no newline, `'`, `!` or `\`, so that sh, bash, zsh, fish, csh and tcsh hand it over as
 * it is; ROOT ("~/.dlrun", "/scratch/me") is of [A-Za-z0-9._/~+-]; MARK is 16 random hex digits.
 * What comes on stdout before the first line that begins with MARK is a login shell's noise (at
 * most NODE_NOISE_MAX bytes; its last lines are evidence where no such line comes).
 *
 *	MARK send                       the node has no such runner: the client sends its SIZE
 *	                                bytes and the end of stdin; then
 *	MARK stored                     and the connection is over: the client begins it anew
 *	MARK hello 1                    followed by facts and a line "."
 *	MARK fail CLASS text            ROOT cannot be used: CLASS is one of below; the
 *	                                connection is over
 *
 * Lines end with LF. Every value in a line is one word of [A-Za-z0-9._/:=,@%+~-]; other bytes stand
 * as `\0ooo` (three octal digits), which is what printf %b and NODE_WORD decode; an empty value is
 * `\0`. A line has at most NODE_LINE_MAX bytes.
 *
 * Facts, "key value" (a later version may add more; unknown ones are passed over):
 *	host NAME       uname -n            boot ID       of this boot
 *	root PATH       ROOT, absolute      local PATH    where runs are (below)
 *	home PATH       uid N               system NAME   uname -s        machine NAME  uname -m
 *	time MS         wall clock there    free BYTES    on the disk of `local`
 *	cpus N          memory BYTES        in all
 *	launch HOW                      how programs outlive the login: systemd, setsid, nohup
 *	shell NAME                      what sh is, as far as it can be told: dash, bash,
 *	                                busybox, …
 *	missing NAME                    a tool that is not there (one line each), of tar, gzip,
 *	                                flock, setsid, tail, head, sha256sum; flock: nor anything
 *	                                that does the same
 *	pool ID                         random: nodes that tell the same may share ROOT
 *	layer HEX                       a layer that is kept, newest first, at most
 *	                                NODE_LAYERS_MAX
 *	spare KEY                       a tree that is made ahead
 *	partial NAME[.ID] BYTES         what has come of a transfer that was cut; several may have
 *	                                had a part of it
 *
 * Then the client says one request: lines, the first of which is the verb with its words, up to a
 * line "."; then, where the verb has a payload, bytes up to the end of stdin. The response is lines
 * (or, where said, raw bytes) on stdout. Its last line, or for raw answers the last line of stderr,
 * is one of
 *	MARK done
 *	MARK fail CLASS text            CLASS: usage, busy, disk, missing, corrupt, io, gone, gpu,
 *	                                tool, program (of exec: it is not there), noexec (it
 *	                                cannot be executed), log (what it had written was removed)
 * text is words for people, coded as values are. stderr is otherwise what tools said: evidence. A
 * request whose client goes away before its "." or in mid-payload has no effect but for a partial
 * transfer. Connections of one node may run at the same time.
 *
 * RUN is a run's id, N an attempt from 1, KEY, NAME and HEX 1 to 64 of [a-z0-9-].
 *
 *	submit RUN N                    payload: the rest of a transfer
 *	  transfer NAME TOTAL FROM      of TOTAL bytes, this payload begins at byte FROM (not
 *	                                after what it has: else fail gone)
 *	  part job SIZE                 the parts of the transfer in their order, each once or
 *	                                not at all but for layers. The job (below),
 *	  part secrets SIZE             a further script of `export K='V'` lines; the last part,
 *	                                of which nothing is kept when the transfer is cut,
 *	  part record SIZE              what becomes the file `record` of the run,
 *	  part apply SIZE               script to be run in the tree before the last layer is
 *	                                unpacked (it removes what the layer replaces),
 *	  part layer SIZE HEX           a compressed layer, which is verified and kept
 *	  tree HEX gzip|zstd|none       the layers of the tree, lowest first
 *	  strip N                       leading names of their paths that are left out
 *	  spare KEY COUNT               of the first COUNT layers; taken if it is there, and one
 *	                                is made after the start
 *	  need BYTES                    free space without which it is refused (disk)
 *	  tool NAME                     on PATH, else it is refused (tool)
 *	  pool NAME                     the attempt begins on the first node that has its GPUs, of
 *	                                those that share ROOT and were told of it (state); NAME is
 *	                                this node, as the client calls it
 *	The response comes when the attempt is durable and its supervisor lives, or found so: an
 *	attempt is begun by mkdir of its directory, so a second submit of it is `done` as well.
 *	  accepted PID START
 *
 *	state RUN/N[:NAME]...           for each one a line; NAME: this node may take it if it is
 *	                                in ROOT's pool, and is called so
 *	  attempt RUN/N STATE key=value...
 *	                                as in the attempt's files `state`, `exit`, `usage`,
 *	                                `warnings` below,
 *	                                the last one of a key counts; cancel=1: its end has
 *	                                been asked for; held=1: it waits to be told to begin;
 *	                                go=1: it was. pool=1: it is in ROOT's pool, not here;
 *	                                claimed=NAME: that node has taken it. STATE absent: no
 *	                                such attempt
 *	list                            the runs of this user: an `attempt` line for the newest
 *	                                attempt of each, preceded by
 *	  run RUN USER RECORD           RECORD: the file `record` of the run
 *	log RUN N OFFSET MARKS [follow]
 *	                                raw: the program's output from byte OFFSET on. stderr:
 *	                                lines `m MS BYTES` of `marks` from byte MARKS on, and at
 *	                                the end `attempt` (of state) where it has ended, and
 *	                                `end BYTES STATE`, where BYTES is the size of the log: the
 *	                                client has it all when it has so many. follow: until the
 *	                                attempt has ended. It ends as well when the client closes
 *	                                its stdin.
 *	tail RUN N LINES                `offset BYTES`: where the last LINES lines begin
 *	cancel RUN N [HOW]              durable when answered. HOW of one of several hosts: peer
 *	                                (another rank has ended: reason PeerEnded), role (those
 *	                                that the run ends with have: RoleEnded), drop (only
 *	                                while it has not been told to begin: failed,
 *	                                Interrupted; one that has not come never will)
 *	withdraw RUN N                  an attempt that has not begun never will: `withdrawn yes`,
 *	                                or `withdrawn absent` where none was there; or it has
 *	                                begun, or ended as something else: `withdrawn no`
 *	go RUN N                        one that is held begins, or has begun; fail gone: it never
 *	                                will
 *	forget RUN N [all]              tree and spares; with all the whole run
 *	exec RUN N                      raw both ways, after "MARK go" on stdout: a command beside
 *	                                the program, in its directory and environment. stdin is
 *	                                the command's from the line "." on, the exit status of
 *	                                the connection is the command's. Lines before ".":
 *	                                `word VALUE` (each of the argv; none: a shell), `alone`
 *	                                (it has no stdin, and is hung up when stdin ends)
 *	store                           raw both ways, after "MARK go" on stdout: versions of data
 *	                                (runner/73-store.sh). Lines before ".": `word VALUE`: VERB
 *	                                DIR and more. The exit status of the connection is its own
 *	shell RUN N                     the same as exec for ad-hoc work: the run is a terminal's
 *	                                (in tmux or screen where they are); attaches to it if it
 *	                                lives
 *	files RUN[/N] [PATH [LIKE...]]  results: lines `d MODE PATH`, `l TARGET PATH`, `f SIZE
 *	                                MTIME_MS MODE PATH`, below $DLRUN_OUTPUT_DIR; with N what
 *	                                lies in the tree of that attempt instead. PATH: it alone
 *	                                or what is below it (`.`: all); LIKE: only files whose
 *	                                names match one of these patterns, or one with a slash
 *	                                "./" and their path. Without N and LIKE, what the tree
 *	                                of a run has by now is collected before
 *	get RUN[/N]                     lines `want OFFSET LENGTH PATH` before "."; raw: for each
 *	                                one in order at most LENGTH bytes from OFFSET on, as many
 *	                                as a line `size BYTES` on stderr says before them (0: it
 *	                                is no file any more). One that becomes shorter meanwhile
 *	                                is filled up with zeros, and `short BYTES` said behind it
 *	have HEX...                     `layer HEX` for each that is kept
 *	data KEY [SIZE]                 `have KEY`, and it is over, for one that is there; else
 *	                                `want KEY`, upon which the payload comes: a tar stream
 *	                                (of SIZE bytes) that becomes data/KEY
 *	gpus                            `gpu VENDOR INDEX ID MEMORY USED HOLDER MODEL` each
 *	                                (HOLDER: a run, `other` for one that is not this user's
 *	                                run on this node, or -)
 *	machine                         what the machine uses now, lines that may be missing:
 *	                                `load N.NN` of one minute, `cpus N`, `memory BYTES
 *	                                AVAILABLE`, `gpu` as of gpus, `meter VENDOR INDEX PERCENT
 *	                                BYTES MILLIWATTS` (how busy, memory taken, power; - is not
 *	                                known), `error TEXT` where the GPUs cannot be listed
 *	describe                        lines `is KEY VALUE`: what the hosts of a pool should have
 *	                                in common (runner/78-describe.sh has the keys); one that
 *	                                is not known is missing
 *	usage RUN/N...                  lines `usage RUN/N key=value...` as of now
 *	gc AGE_S BYTES [dry]            trees of ended runs, layers and data by age and down to
 *	                                BYTES; `freed BYTES COUNT KIND` lines
 *
 * On the node, all 0700:
 *
 *	ROOT/bin/HASH  ROOT/layers/HEX  ROOT/data/KEY  ROOT/pool (runner/56-pool.sh)
 *	ROOT/gangs (runner/35-peers.sh) may be shared by nodes with one home
 *	LOCAL = ROOT/on/HOST, or /var/tmp/dlrun-UID/on/HOST where ROOT is on a network file system
 *	                                or has a file `shared` (ROOT/on/HOST is a link then)
 *	LOCAL/incoming/NAME.PID         transfers: one file of each connection that sends NAME
 *	LOCAL/spares/KEY                trees made ahead
 *	LOCAL/plain/HEX                 layers of those without their compression
 *	LOCAL/setups/KEY/               setup.h's directory, as far as a shell can
 *	LOCAL/pool/                     what this node waits for of ROOT/pool
 *	LOCAL/studies/ID/               which members of a study run and wait (runner/27-slot.sh)
 *	LOCAL/runs/RUN/                 outputs/ ($DLRUN_OUTPUT_DIR), record, versions (words
 *	                                PATH@VERSION: of its data), collected/ (links of
 *	                                what lies in outputs/ and was taken from a tree), and for
 *	                                each attempt N/:
 *	  job                           shell: what is to be done (below)
 *	  tree/                         files/ ($DLRUN_ATTEMPT_DIR)
 *	  lock                          locked (flock) by the supervisor and its watcher while
 *	                                they live
 *	  state                         `key=value` lines: state (preparing queued starting
 *	                                running), boot, host, supervisor=PID:START,
 *	                                program=PID:START (START: field 22 of proc(5)'s stat),
 *	                                watcher=PID:START, started=MS, gpus=0,2, text=why it
 *	                                waits, launch, warning=what may go wrong on this node,
 *	                                roles (j_roles)
 *	  exit                          key=value: state, code, signal, reason, ended=MS, text,
 *	                                origin (job, dlrun, setup), next=N of the attempt that
 *	                                follows by itself, pad (of no meaning); its presence,
 *	                                complete with a last line `end`, makes the end final.
 *	                                Room for it is made at the start.
 *	  usage                         key=value: cpu_s, memory_peak_bytes, gpu_busy,
 *	                                gpu_memory_peak_bytes, energy_j (of the GPUs), time=MS;
 *	                                as of now: cpu, memory_bytes, gpu_busy_now,
 *	                                gpu_memory_bytes, power_w
 *	  log, marks                    the program's output; lines `<wall ms> <bytes>`
 *	                                (core/attempt/marks.h)
 *	  cancel                        its end has been asked for; how=HOW, also study:
 *	                                failed=RUN, so that this one is not to begin
 *	  .begin begun held go late     not begun; it begins; with j_hold_ms: ready, and waits to
 *	                                be told to begin; it was told; it never begins: its time
 *	                                was over, or it was taken back. One file that is renamed
 *	  notes                         what the supervisor has to say
 *	  pool                          the ticket that it came from
 *	  collect                       written when the tree was complete: what changes after it
 *	                                is collected; shell: how (runner/64-collect.sh)
 *	  warnings                      key=value: collect=what could not be collected
 *	  .uncollected                  for want of room: the tree stays until that is done
 *	  container                     its name, dlrun-RUN-N, where it has one
 *	  home                          $HOME in a container of a user who is not root
 *
 * The job is a shell script of assignments only, quoted with '…', so that any bytes but NUL are
 * kept; it is read by `.` in the supervisor and in the child that becomes the program:
 *	j_run j_attempt j_cwd (in the tree) j_shell (1: one line for sh -c)
 *	j_timeout_ms j_grace_ms j_retries j_signal j_signal_before_ms
 *	j_stop_signal (empty: TERM)
 *	j_gpus (auto, or a number) j_gpus_only
 *	j_memory_bytes j_cpus_milli (0: any; held by runner/31-limits.sh) j_memory (for people)
 *	j_before j_setup_run j_setup_key (hex; of the line, key files and platform) j_setup_cwd
 *	j_rank j_ranks
 *	j_hold_ms                       the program waits so long, with its GPUs, for `go`
 *	j_hosts                         lines of $DLRUN_HOSTFILE
 *	j_roles                         of the run, as in its record (roles.h); for `state`
 *	j_number                        of the rank within the run
 *	j_ends_first j_ends_n           the run ends with these ranks; 0: with all
 *	j_study j_index j_fail_fast (of a member of a study) j_parallel (so many members run at
 *	                                once on this node; 0: any)
 *	j_runtime (podman, docker; the rest of these is there with it only) j_image j_workdir
 *	j_entrypoint (none: without that of the image) j_shm_bytes j_names and
 *	j_default_names (of the variables below, for the container)
 *	j_command()                     { set_command 'a' 'b' …; }
 *	j_env()                         export K='V' …, over everything; secrets are in
 *	                                `secrets`, a further script that is removed when the
 *	                                program has been started for the last time
 *	j_defaults()                    default K 'V' …, only where K is not set
 *	j_data()                        link_data 'path in the tree' 'path there' …
 *	j_outputs()                     link_output 'path in the tree' …
 *	j_collect (auto, none) j_collect_bytes
 *	j_exclude()                     collect_exclude 'pattern' …
 *
 * Identity of a process: pid, start time, boot id; so a reboot and a pid of somebody else now are
 * told from a program that lives (state lost).
 */
#ifndef DLRUN_NODE_PROTOCOL_H
#define DLRUN_NODE_PROTOCOL_H

enum {
	NODE_LINE_MAX = 256 << 10, /* of the runner; the client's have at most 64 KiB */
	NODE_NOISE_MAX = 256 << 10,
	NODE_LAYERS_MAX = 256,
};

#endif
