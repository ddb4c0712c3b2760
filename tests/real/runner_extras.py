#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The extras of the runner, its functions and verbs, in each shell that a node may have.

The parts of lib/node/runner are joined without the one that serves, and lines of a test stand behind.
"""

import shlex
import sys

from harness import *  # noqa: F403

ROOT = Path(__file__).resolve().parents[2]
SHELLS = {"dash": ["dash"], "bash": ["bash"], "busybox": ["busybox", "sh"]}


def script(w, lines):
    """A file: the runner's parts, then lines, in a place of this test."""
    parts = sorted((ROOT / "lib/node/runner").glob("[0-8]*.sh"))
    stands = f"d_root={shlex.quote(str(w.dir))}/root d_local={shlex.quote(str(w.dir))}/local d_mark=MARK d_uid={os.geteuid()} " \
             f"dgpu_dir={shlex.quote(str(w.dir))}/gpus d_sys={shlex.quote(str(w.dir))}/sys\n"
    for name in ("root", "local/runs", "local/incoming", "sys/bus/pci/devices"):
        (w.dir / name).mkdir(parents=True, exist_ok=True)
    text = "".join(p.read_text() for p in parts) + stands + lines
    path = w.dir / f"script-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return path if path.exists() else w.write(path.name, text, base=w.dir)


def argv(shell, file, *words):
    if not shutil.which(SHELLS[shell][0]):
        raise Missing(f"{shell} is not installed")
    return [*SHELLS[shell], str(file), *map(str, words)]


def sh(w, shell, lines, *words, **options):
    return w.command(argv(shell, script(w, lines), *words), **options)


def attempt(w, run, number=1):
    path = w.dir / f"local/runs/{run}/{number}"
    (path / "tree/files").mkdir(parents=True)
    (w.dir / f"local/runs/{run}/outputs").mkdir(exist_ok=True)
    return path


# --- GPUs


def smi(w, rows, apps="", more=""):
    """A fake nvidia-smi; rows and apps are its answers."""
    w.write("smi/rows", rows, base=w.dir)
    w.write("smi/apps", apps, base=w.dir)
    w.write("smi/nvidia-smi", f"#!/bin/sh\n{more}\ncase \"$*\" in\n*query-gpu*) cat {w.dir}/smi/rows ;;\n"
            f"*) cat {w.dir}/smi/apps ;;\nesac\n", 0o755, base=w.dir)
    if f"{w.dir}/smi" not in w.env["PATH"]:
        w.env["PATH"] = f"{w.dir}/smi:{w.env['PATH']}"


def row(index, model="Fake"):
    return f"{index}, GPU-{index:04x}aaaa, 00000000:{index + 1:02X}:00.0, 81559, {model}\n"


ENTER = """
d_at=$1 j_run=$2 j_gpus=$3 j_gpus_only=$4
shift 4
mkdir -p "$d_at"
gpus_enter "$d_at" "$@"
"""


def enter(w, shell, name, gpus, *next_, only="", **options):
    return subprocess.Popen(argv(shell, script(w, ENTER), w.dir / "at" / name, name, gpus, only, *next_), env=w.env, cwd=w.tree,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


def said(process, seconds=200):
    out, _ = process.communicate(timeout=seconds)
    return process.returncode, out.decode()


def each_shell(function):
    """One test for each shell, so that they run in parallel."""
    def make(shell):
        def test(w):
            function(w, shell)
        return test
    for shell in SHELLS:
        globals()[f"{function.__name__.replace('each_', 'test_')}_{shell}"] = make(shell)
    return function


@each_shell
def each_list_of_gpus(w, shell):
    smi(w, row(1, "H100, 80GB") + "WARNING: infoROM is corrupted\n" + row(0) + "2, [N/A], 0000:C1:00.0, [N/A], \x01odd\n",
        "GPU-0001aaaa, 00000000:02:00.0, 7, python\n[N/A], 00000000:C1:00.0, 8, nvidia-cuda-mps-server\n")
    lines = "gpus_find && printf '%s\\n' \"$dgpu_list\" || echo \"failed $dgpu_error\""
    out = sh(w, shell, lines).out
    assert out == ("nvidia 0 GPU-0000aaaa 0000:01:00.0 85520809984 0 Fake\n"
                   "nvidia 1 GPU-0001aaaa 0000:02:00.0 85520809984 1 H100, 80GB\n"
                   "nvidia 2 0000:c1:00.0 0000:c1:00.0 0 0 ?odd\n"), out
    smi(w, "Failed to initialize NVML: Driver/library version mismatch\n", more="case $* in *query-gpu*) trap 'exit 18' EXIT; esac")
    assert sh(w, shell, lines).out.startswith("failed nvidia-smi does not list the GPUs: Failed to init"), sh(w, shell, lines)
    smi(w, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver\n")
    assert sh(w, shell, lines).out == "\n", "a login node has none"
    w.write("sys/bus/pci/devices/0/vendor", "0x10de\n", base=w.dir)
    w.write("sys/bus/pci/devices/0/class", "0x030200\n", base=w.dir)
    assert "couldn't communicate" in sh(w, shell, lines).out
    smi(w, "No devices were found\n")
    assert sh(w, shell, lines).out == "\n"
    smi(w, "2, GPU-x y, nowhere, 1, m\n")
    assert sh(w, shell, lines).out.startswith("failed")


ROCM = """WARNING: some text
{"card1": {"Unique ID": "0xBEEF", "VRAM Total Memory (B)": "68702699520", "Card series": "Instinct", "PCI Bus": "0000:C1:00.0"},
 "card0": {"Unique ID": "N/A", "VRAM Total Memory (B)": "536870912", "Card series": "0x1234", "PCI Bus": "0000:03:00.0"},
 "system": {"Driver version": "6.7"}}
"""


@each_shell
def each_list_of_amd(w, shell):
    w.write("smi/rocm-smi", f"#!/bin/sh\ncat {w.dir}/rocm\n", 0o755, base=w.dir)
    w.env["PATH"] = f"{w.dir}/smi:{w.env['PATH']}"
    w.write("rocm", ROCM, base=w.dir)
    lines = "gpus_find && printf '%s\\n' \"$dgpu_list\" || echo \"failed $dgpu_error\""
    # The part of a processor does not count.
    assert sh(w, shell, lines).out == "amd 1 0x000000000000beef 0000:c1:00.0 68702699520 0 Instinct\n", sh(w, shell, lines)
    kfd = "sys/class/kfd/kfd"
    w.write(f"{kfd}/topology/nodes/0/properties", "simd_count 0\nlocation_id 0\n", base=w.dir)
    w.write(f"{kfd}/topology/nodes/0/gpu_id", "0\n", base=w.dir)
    w.write(f"{kfd}/topology/nodes/1/properties",
            "simd_count 304\nlocation_id 49408\ndomain 0\nunique_id 17834567890123456789\ngfx_target_version 90402\n", base=w.dir)
    w.write(f"{kfd}/topology/nodes/1/gpu_id", "4711\n", base=w.dir)
    w.write(f"{kfd}/topology/nodes/1/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 68702699520\n", base=w.dir)
    w.write(f"{kfd}/proc/99/vram_4711", "4096\n", base=w.dir)
    # The driver says how ROCm counts, and who uses it.
    assert sh(w, shell, lines).out == "amd 0 0x000000000000beef 0000:c1:00.0 68702699520 1 Instinct\n", sh(w, shell, lines)
    (w.dir / "smi/rocm-smi").unlink()
    assert sh(w, shell, lines).out == "amd 0 0xf7811d0125658115 0000:c1:00.0 68702699520 1 AMD gfx942\n", sh(w, shell, lines)
    w.write("smi/rocm-smi", "#!/bin/sh\necho '{\"card0\": {'\n", 0o755, base=w.dir)
    assert sh(w, shell, lines).out.startswith("failed rocm-smi does not list"), sh(w, shell, lines)


@each_shell
def each_gpus_of_a_program(w, shell):
    smi(w, row(0) + row(1) + row(2), "GPU-0001aaaa, , 7, python\n")
    # Neither the one that others use, nor the locks' descriptors among those that scripts use.
    code, out = said(enter(w, shell, "a-22222", 2, "sh", "-c",
                           ". \"$0\"; echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $DLRUN_GPUS_PER_NODE $gpus; ls -l /proc/$$/fd",
                           w.dir / "at/a-22222/gpus"))
    assert code == 0 and out.startswith("0,2 PCI_BUS_ID 2 0,2\n"), out
    held = re.findall(r"(\d+) -> \S*/gpus(\.\d+)?/gpu\.GPU-000([0-9])aaaa", out)
    own = f".{os.geteuid()}"
    assert sorted(h[1:] for h in held) == [("", "0"), ("", "2"), (own, "0"), (own, "2")], out
    assert all(int(h[0]) >= 10 for h in held) and "ticket" not in out and "queue" not in out, out
    assert sorted(os.listdir(w.dir / "gpus")) == ["gpu.GPU-0000aaaa", "gpu.GPU-0001aaaa", "gpu.GPU-0002aaaa", "queue"]
    for name in os.listdir(w.dir / "gpus"):
        assert (w.dir / "gpus" / name).stat().st_mode & 0o7777 == 0o1666, name
    assert (w.dir / "gpus").stat().st_mode & 0o7777 == 0o1777
    code, out = said(enter(w, shell, "b-22222", 1, "sh", "-c", ". \"$0\"; echo $gpus", w.dir / "at/b-22222/gpus", only="GPU-0002,0"))
    assert code == 0 and out == "0\n", out
    code, out = said(enter(w, shell, "c-22222", 4, "true"))
    assert code == 125 and "text=requested 4 GPUs, this machine has 3\n" in (w.dir / "at/c-22222/exit").read_text()
    code, out = said(enter(w, shell, "d-22222", 2, "true", only="1 7"))
    assert code == 125 and "text=requested 2 GPUs, only 1 of this machine's 3 may be used\n" in (w.dir / "at/d-22222/exit").read_text()
    code, out = said(enter(w, shell, "e-22222", 0, "sh", "-c", "echo ${CUDA_VISIBLE_DEVICES-none}"))
    assert (code, out) == (0, "none\n")
    smi(w, "")
    code, out = said(enter(w, shell, "f-22222", "auto", "echo", "ran"))
    assert (code, out) == (0, "ran\n")
    code, out = said(enter(w, shell, "g-22222", 1, "true"))
    assert code == 125 and "text=requested 1 GPU, this machine has none\n" in (w.dir / "at/g-22222/exit").read_text()


def eight(w):
    smi(w, "".join(row(i) for i in range(9)))


@each_shell
def each_more_locks_than_names(w, shell):
    """dash has ten descriptors; a flock without -F waits beside what it starts."""
    eight(w)
    hold = "echo $$ >\"$0.pid\"; exec sleep 100"
    if shell == "bash":
        flock = shutil.which("flock")
        w.write("smi/flock", f"#!/bin/sh\ncase $1 in -F) exit 1; esac\nexec {flock} \"$@\"\n", 0o755, base=w.dir)
    holder = enter(w, shell, "a-22222", 9, "sh", "-c", hold, w.dir / "at/a-22222/x")
    pid = int(wait_for(lambda: (w.dir / "at/a-22222/x.pid").exists() and (w.dir / "at/a-22222/x.pid").read_text().strip(), "it holds them"))
    next_ = enter(w, shell, "b-22222", 9, "echo", "mine")
    wait_for(lambda: "9 GPUs are in use by a-22222\n" in timeless(w, "b-22222"), "it waits")
    # The kernel's list of locks is read in pieces: one that is there may be missing from it while others come and go.
    wait_for(lambda: [line.split()[6] for line in sh(w, shell, "verb_gpus").out.splitlines()] == ["a-22222"] * 9, "all name their holder")
    os.kill(pid, signal.SIGKILL)
    code, out = said(next_)
    assert code == 0 and out.endswith("mine\n"), out
    holder.communicate()


def state(w, name):
    path = w.dir / "at" / name / "state"
    return path.read_text() if path.exists() else ""


def timeless(w, name):
    return re.sub(r" since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", "", state(w, name))


def waits_for(w, name, why):
    wait_for(lambda: f"text={why}\n" in timeless(w, name), f"{name} waits: {why}")


@each_shell
def each_place_in_the_queue(w, shell):
    smi(w, row(0) + row(1))
    first = enter(w, shell, "a-22222", 2, "sleep", "100")
    wait_for(lambda: (w.dir / "at/a-22222/gpus").exists(), "it has them")
    second = enter(w, shell, "b-22222", 2, "echo", "second")
    waits_for(w, "b-22222", "GPUs 0,1 are in use by a-22222")
    third = enter(w, shell, "c-22222", 1, "echo", "third", only="1")
    waits_for(w, "c-22222", "GPU 1 is in use by a-22222; 1 run is before it")
    fourth = enter(w, shell, "d-22222", 1, "echo", "fourth")
    waits_for(w, "d-22222", "GPUs 0,1 are in use by a-22222; 2 runs are before it")
    # One that waits is killed: it is not waited for.
    second.kill()
    second.communicate()
    waits_for(w, "c-22222", "GPU 1 is in use by a-22222")
    waits_for(w, "d-22222", "GPUs 0,1 are in use by a-22222; 1 run is before it")
    first.kill()
    first.communicate()
    assert said(third)[0] == 0 and said(fourth)[0] == 0
    # A foreign program: it is passed over, or waited for.
    smi(w, row(0) + row(1), "GPU-0000aaaa, , 7, python\n")
    fifth = enter(w, shell, "e-22222", 2, "echo", "fifth")
    wait_for(lambda: "text=GPU 0 is used by a program outside of dlrun\n" in state(w, "e-22222"), "it waits")
    (w.dir / "at/e-22222/cancel").touch()
    code, _ = said(fifth)
    assert code == 125 and "cancelled" in (w.dir / "at/e-22222/exit").read_text()
    assert not list((w.dir / "gpus").glob("ticket.*"))


def alone(w, shell, how):
    """Without a queue, but one after the other."""
    said_ = "GPUs of this machine are not queued for in order: cannot use "
    first = enter(w, shell, f"{how}a-22222", 1, "sleep", "100")
    wait_for(lambda: (w.dir / "at" / f"{how}a-22222/gpus").exists(), f"it has the GPU: {how}")
    assert any(said_ in path.read_text() for path in (w.dir / "at" / f"{how}a-22222").iterdir() if path.is_file()), how
    second = enter(w, shell, f"{how}b-22222", 1, "echo", "second")
    waits_for(w, f"{how}b-22222", f"GPU 0 is in use by {how}a-22222")
    first.kill()
    first.communicate()
    assert said(second) == (0, "second\n"), how


@each_shell
def each_bad_directory(w, shell):
    smi(w, row(0))
    gpus = w.dir / "gpus"
    victim = w.dir / "victim"
    victim.mkdir(mode=0o700)
    gpus.symlink_to(victim)
    alone(w, shell, "link")
    assert victim.stat().st_mode & 0o7777 == 0o700 and not os.listdir(victim)
    gpus.unlink()
    gpus.mkdir(mode=0o1777)
    gpus.chmod(0o1777)
    # Links that were planted: neither followed nor written to.
    target = w.dir / "target"
    target.write_text("mine")
    target.chmod(0o600)
    (gpus / "queue").symlink_to(target)
    alone(w, shell, "queue")
    (gpus / "queue").unlink()
    (gpus / "gpu.GPU-0000aaaa").symlink_to(target)
    alone(w, shell, "lock")
    (gpus / "gpu.GPU-0000aaaa").unlink()
    os.mkfifo(gpus / "gpu.GPU-0000aaaa")
    alone(w, shell, "fifo")
    (gpus / "gpu.GPU-0000aaaa").unlink()
    # Tickets that are none, and numbers of the dead: they cost nothing but their numbers.
    (gpus / "ticket.000000000007").symlink_to(target)
    os.mkfifo(gpus / "ticket.000000000008")
    (gpus / "ticket.000000000009").mkdir()
    (gpus / "ticket.000000000010").write_text("x\n" * 100000)
    (gpus / "ticket.999999999999").write_text("dead\n")
    (gpus / "ticket.000000000007 x").write_text("odd\n")
    (gpus / "new.1").symlink_to(target)
    code, out = said(enter(w, shell, "e-22222", 1, "echo", "mine"))
    assert (code, out) == (0, "mine\n"), out
    assert target.read_text() == "mine" and target.stat().st_mode & 0o7777 == 0o600
    assert not (gpus / "ticket.000000000010").exists() and not (gpus / "new.1").is_symlink()


def test_directory_of_another_user(w):
    if os.getuid() != 0:
        raise Skip("needs two users")
    smi(w, row(0))
    (w.dir / "gpus").mkdir(mode=0o700)
    w.as_nobody()
    os.chown(w.dir / "gpus", 0, 0)
    file = script(w, ENTER)
    file.chmod(0o644)
    result = w.command(argv("dash", file, w.dir / "at/a-22222", "a-22222", 1, "", "true"))
    assert result.rc == 0, result
    # Made by another user, and open: locks and tickets of both exclude each other.
    (w.dir / "gpus").chmod(0o1777)
    holder = enter(w, "dash", "b-22222", 1, "sleep", "100")
    wait_for(lambda: (w.dir / "at/b-22222/gpus").exists(), "root has it")
    w.write("as-nobody", script(w, ENTER).read_text().replace(f"d_uid={os.geteuid()} ", f"d_uid={NOBODY} "), base=w.dir)
    other = subprocess.Popen(["dash", w.dir / "as-nobody", w.dir / "at/c-22222", "c-22222", "1", "", "echo", "mine"], env=w.env,
                             cwd=w.tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, user=NOBODY,
                             group=NOBODY, extra_groups=[])
    waits_for(w, "c-22222", "GPU 0 is in use by b-22222 of another user")
    holder.kill()
    holder.communicate()
    assert said(other) == (0, "mine\n")


@each_shell
def each_link_beside_the_locks(w, shell):
    """One that leads to our own locks is no other user who holds them."""
    smi(w, row(0))
    (w.dir / f"gpus.{os.geteuid()}").mkdir(mode=0o755)
    (w.dir / "gpus.link").symlink_to(f"gpus.{os.geteuid()}")
    claim = enter(w, shell, "a-22222", 1, "echo", "mine")
    try:
        assert said(claim, 30) == (0, "mine\n")
    finally:
        claim.kill()


@each_shell
def each_holder(w, shell):
    """A name in a lock is believed of a living process that holds it, whoever wrote it."""
    smi(w, row(0))
    first = enter(w, shell, "a-22222", 1, "sleep", "100")
    lock = w.dir / "gpus/gpu.GPU-0000aaaa"
    wait_for(lambda: lock.exists() and lock.read_text(), "it has signed")
    name, uid, pid, start, since = lock.read_text().split()
    assert (name, int(uid)) == ("a-22222", os.geteuid()) and since.endswith("Z"), lock.read_text()
    assert Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19] == start
    second = enter(w, shell, "b-22222", 1, "echo", "second")
    waits_for(w, "b-22222", "GPU 0 is in use by a-22222")
    mine = Path(f"/proc/{os.getpid()}/stat").read_text().rsplit(")", 1)[1].split()[19]
    for text in ("", f"a-22222 {uid} {pid} {int(start) + 1} {since}\n", f"a-22222 {uid} {os.getpid()} {mine} {since}\n",
                 f"a-22222 {uid} 0 0 {since}\n", f"A;$(id) {uid} {pid} {start} {since}\n", f"\x1b[31m {uid} {pid} {start} {since}\n",
                 f"a-22222 {uid} {pid} {start} never\n", "a" * 100000, "\n\n\n", f"* {uid} {pid} {start} {since}\n"):
        lock.write_text(text)
        wait_for(lambda: "GPU 0 is in use by another run\n" in state(w, "b-22222"), f"{text[:80]!r} is not believed")
        lock.write_text(f"c-22222 {uid} {pid} {start} {since}\n")
        waits_for(w, "b-22222", "GPU 0 is in use by c-22222")
    first.kill()
    first.communicate()
    assert said(second) == (0, "second\n")


@each_shell
def each_holder_of_the_other_kind(w, shell):
    """Local runs and those of nodes name each other."""
    smi(w, row(0))
    tool = Path(w.dlrun).parent / "tests/real/gpu_tool"
    if not tool.exists():
        raise Skip("gpu_tool is not built")

    def local(name, *next_):
        return subprocess.Popen([tool, w.dir / "gpus", name, "1", *next_], env=w.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = local("a-22222", "sleep", "100")
    lock = w.dir / "gpus/gpu.GPU-0000aaaa"
    wait_for(lambda: lock.exists() and lock.read_text(), "it has signed")
    second = enter(w, shell, "b-22222", 1, "sleep", "100")
    waits_for(w, "b-22222", "GPU 0 is in use by a-22222")
    first.kill()
    first.communicate()
    wait_for(lambda: lock.read_text().startswith("b-22222 "), "it has signed")
    third = local("c-22222", "echo", "third")
    line = third.stderr.readline().decode()
    assert re.fullmatch(r"GPU 0 is in use by b-22222 since 20\S+Z\n", line), line
    second.kill()
    second.communicate()
    assert third.communicate(timeout=200)[0] == b"third\n"


RACER = r"""
mkdir "$1/holder" 2>/dev/null || echo "two at once: $2" >>"$1/bad"
echo "$2" >>"$1/order"
rmdir "$1/holder"
case $2 in *[05]) kill -9 $$ ;; esac
"""


def race(w, claims, rounds):
    """claims: functions that start one claim with a name and a racer's words."""
    at = w.dir / "race"
    at.mkdir()
    count = 0
    for number in range(rounds):
        started = []
        for i, claim in enumerate(claims):
            name = f"r{number}-{i}"
            started.append((name, claim(name, ["sh", "-c", RACER, "sh", str(at), name])))
        for name, process in started:
            code, out = said(process, 900)
            assert code in ((-9, 137) if name[-1] in "05" else (0,)), (name, code, out, state(w, name), [p.read_text() for p in (w.dir / "at" / name).glob("exit")])
        count += len(claims)
        assert not (at / "bad").exists(), (at / "bad").read_text()
        assert sorted((at / "order").read_text().split()) == sorted({*(at / "order").read_text().split()})
        assert len((at / "order").read_text().split()) == count
    left = os.listdir(w.dir / "gpus")
    assert not [n for n in left if n.startswith(("ticket", "new", "wake"))], left


def test_race_for_one_gpu(w):
    smi(w, row(0))
    shells = list(SHELLS)
    race(w, [lambda name, next_, shell=shells[i % 3]: enter(w, shell, name, 1, *next_) for i in range(24)], 2)


def test_race_with_local_runs(w):
    """Claims of lib/host, which runs on the same machine take, and of nodes' runs."""
    tool = Path(w.dlrun).parent / "tests/real/gpu_tool"
    if not tool.exists():
        raise Skip("gpu_tool is not built")
    smi(w, row(0))

    def local(name, next_):
        return subprocess.Popen([tool, w.dir / "gpus", name, "1", *next_], env=w.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def node(name, next_, shell):
        return enter(w, shell, name, 1, *next_)
    claims = []
    for shell in list(SHELLS) * 3:
        claims += [lambda name, next_, shell=shell: node(name, next_, shell), local]
    race(w, claims, 3)


# --- ends


@each_shell
def each_end_is_final(w, shell):
    """Of many who find at once that it is over, the first says how."""
    lines = 'exit_write "$1" failed "$2" 0 dlrun Lost "by $2"; cat "$1/exit"\n'
    for i in range(4):
        at = attempt(w, f"e{i}-22222")
        many = [subprocess.Popen(argv(shell, script(w, lines), at, n), env=w.env, stdout=subprocess.PIPE) for n in range(1, 9)]
        said_ = {m.communicate(timeout=60)[0] for m in many}
        assert len(said_) == 1 and said_ == {(at / "exit").read_bytes()} and said_.pop().endswith(b"\nend\n"), said_
        assert not (at / ".exit").exists()


@each_shell
def each_free_space(w, shell):
    df = "df() { printf 'Filesystem 1024-blocks Used Available Capacity Mounted on\\n//srv/My Share 100 20 80 20%% /a 1 5%%\\n'; }\n"
    assert sh(w, shell, df + 'free_of /; echo "$free"').out == "81920\n"


@each_shell
def each_state_that_ends_meanwhile(w, shell):
    """What is said of an end is said of one state."""
    at = attempt(w, "a-22222")
    w.write("state", "state=running\n", base=at)
    late = "judge_of() { state=running judge_text=; exit_write \"$1\" cancelled 143 0 dlrun Cancelled gone; }\n"
    out = sh(w, shell, late + "attempt_line a-22222 1").out
    assert out.startswith("attempt a-22222/1 cancelled code=143 "), out


@each_shell
def each_place_that_cannot_be_written_to(w, shell):
    """It is said, though a shell ends where a redirection of `:` fails."""
    w.write("local/setups", "", base=w.dir)
    at = attempt(w, "a-22222")
    with_setup(w, at, "true")
    assert sh(w, shell, MAKE, at).rc == 125 and why(at).endswith("/setups/ab12 cannot be made")
    (at / "exit").unlink()
    (at / "cancel").mkdir()
    assert "MARK fail disk" in sh(w, shell, "node_of; verb_cancel a-22222 1").out


# --- data and results in the tree


def job(outputs=(), data=(), more=""):
    lines = [f"j_outputs() {{ :\n{''.join(f'link_output {shlex.quote(o)}' + chr(10) for o in outputs)}}}\n",
             f"j_data() {{ :\n{''.join(f'link_data {shlex.quote(p)} {shlex.quote(str(f))}' + chr(10) for p, f in data)}}}\n",
             "j_env() { :; }\n", more]
    return "".join(lines)


def linked(w, shell, at, outputs=(), data=(), lines="world_link \"$1\"; echo linked"):
    w.write("job", job(outputs, data), base=at)
    return sh(w, shell, lines, at)


def why(at):
    return re.search(r"^text=(.*)$", (at / "exit").read_text(), re.M).group(1)


@each_shell
def each_outputs(w, shell):
    at = attempt(w, "a-22222")
    tree, outputs = at / "tree", w.dir / "local/runs/a-22222/outputs"
    w.write("out/.keep", "keep", base=tree)
    w.write("out/sub dir/new\nline", "1", base=tree)
    w.write("out/both/mine", "snapshot", base=tree)
    w.write("out/both/more", "snapshot", base=tree)
    w.write("out/both/mine", "earlier", base=outputs)
    result = linked(w, shell, at, ["out", "a/b c", "out/inner", "it's"])
    assert result.out == "linked\n", (result, at / "exit")
    assert os.readlink(tree / "out") == str(outputs / "out") and os.readlink(tree / "a/b c") == str(outputs / "a/b c")
    assert os.readlink(tree / "it's") == str(outputs / "it's")
    assert (outputs / "out/inner").is_dir() and not (outputs / "out/inner").is_symlink()
    assert (tree / "out/.keep").read_text() == "keep" and (tree / "out/sub dir/new\nline").read_text() == "1"
    assert (outputs / "out/both/mine").read_text() == "earlier" and (outputs / "out/both/more").read_text() == "snapshot"
    # Once more is no harm.
    assert linked(w, shell, at, ["out", "a/b c", "out/inner", "it's"]).out == "linked\n"


@each_shell
def each_data(w, shell):
    at = attempt(w, "a-22222")
    tree, outputs, place = at / "tree", w.dir / "local/runs/a-22222/outputs", w.dir / "place"
    w.write("x/1", "1", base=place)
    w.write("x/deep/2", "2", base=place)
    w.write("-n", "odd", base=place)
    w.write("root/data/abc/3", "3", base=w.dir)
    w.write("data/x/.gitkeep", "", base=tree)
    w.write("data/x/1", "snapshot", base=tree)
    (tree / "was").symlink_to("elsewhere")
    result = linked(w, shell, at, ["out"], [("data", place), ("whole/it", place / "x"), ("was", "data/abc"), ("out/d", place), ("one", place / "-n"),
                                            ("home", "~/in home")][:5])
    assert result.out == "linked\n", (result, why(at))
    assert os.readlink(tree / "whole/it") == str(place / "x") and (tree / "was/3").read_text() == "3"
    assert (tree / "data/x/1").read_text() == "snapshot" and (tree / "data/x/deep/2").read_text() == "2"
    assert os.readlink(tree / "data/-n") == str(place / "-n") and os.readlink(outputs / "out/d") == str(place)
    assert (tree / "one").read_text() == "odd" and not list(place.glob("x/.gitkeep"))


@each_shell
def each_bad_links(w, shell):
    place = w.dir / "place"
    w.write("x", "1", base=place)
    outside = w.dir / "outside"
    outside.mkdir()
    cases = [
        ([], [("d", w.dir / "nowhere")], f"data 'd' is not at {w.dir}/nowhere"),
        (["d"], [("d", place)], "'d' cannot be both data and an output"),
        (["d/o"], [("d", place)], "the output 'd/o' would lie in the data 'd'"),
        ([], [("d", place), ("d", "/usr")], "data 'd' has two places"),
        (["file"], [], "output 'file': 'file' is a file, no directory"),
        (["file/o"], [], "output 'file/o': 'file' is a file, no directory"),
        (["link"], [], "output 'link': 'link' is a symbolic link"),
        (["link/o"], [], "output 'link/o': 'link' is a symbolic link"),
        ([], [("link/d", place)], "data 'link/d': 'link' is a symbolic link"),
        ([], [("file", place)], f"data 'file': one of the snapshot and {place} is a file, the other a directory"),
    ]
    for i, (outputs, data, text) in enumerate(cases):
        at = attempt(w, f"a{i}-22222")
        w.write("file", "1", base=at / "tree")
        (at / "tree/link").symlink_to(outside)
        result = linked(w, shell, at, outputs, data)
        assert result.rc == 125 and why(at) == text, (text, result)
    assert not os.listdir(outside)


# --- setup


def with_setup(w, at, line, key="ab12", cwd=".", outputs=()):
    w.write("job", job(outputs, more=f"j_run=x j_cwd=. j_setup_run={shlex.quote(line)} j_setup_key={key} j_setup_cwd={shlex.quote(cwd)}\n"
                       "j_defaults() { default FROM_JOB yes; }\n"), base=at)
    w.write("login", "d_umask=022 d_lc_set= d_lc=''\n", base=at)


MAKE = "node_of; setup_make \"$1\"; echo ready; [ ! -f \"$1/setup_env\" ] || cat \"$1/setup_env\"; [ -z \"${2-}\" ] || exec sleep 100"


@each_shell
def each_setup(w, shell):
    first = attempt(w, "a-22222")
    w.write("src/a b.py", "1", base=first / "tree")
    (first / "tree/out").symlink_to(w.dir / "local/runs/a-22222/outputs")
    with_setup(w, first, "echo made; echo 1 >>'%s/times'; mkdir -p .venv/bin src/x __pycache__ 'new\nname'; echo $FROM_JOB >.venv/pyvenv.cfg;"
               " echo lib >'src/it'\"'\"'s.so'; echo >src/c.pyc; test ! -e out" % w.dir, outputs=["out"])
    result = sh(w, shell, MAKE, first)
    tree, made = first / "tree", w.dir / "local/setups/ab12/tree"
    assert result.out.startswith("ready\nexport VIRTUAL_ENV='" + str(tree) + "/.venv'\n"), (result, why(first) if (first / "exit").exists() else "")
    assert (w.dir / "local/setups/ab12/log").read_text() == "made\n" and (made / ".venv/pyvenv.cfg").read_text() == "yes\n"
    links = {str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_symlink()}
    assert links == {"out", ".venv", "src/x", "src/it's.so", "new\nname"}, links
    assert os.readlink(tree / "src/x") == str(made / "src/x")
    # A second run has another file there, and waits for nothing.
    second = attempt(w, "b-22222")
    w.write("src/x", "mine", base=second / "tree")
    with_setup(w, second, "false")
    assert sh(w, shell, MAKE, second).out.startswith("ready\n")
    assert (second / "tree/src/x").read_text() == "mine" and (second / "tree/.venv").is_symlink()
    assert (w.dir / "times").read_text() == "1\n"
    # It is used by who lives: cleaning up leaves it.
    third = attempt(w, "c-22222")
    with_setup(w, third, "false")
    user = subprocess.Popen(argv(shell, script(w, MAKE), third, "stay"), env=w.env, stdout=subprocess.PIPE)
    assert user.stdout.readline() == b"ready\n"
    gc = "node_of; verb_gc 0 0"
    sh(w, shell, gc)
    assert (made / ".venv").is_dir()
    user.kill()
    user.communicate()
    assert " trees\n" in sh(w, shell, gc).out and not made.exists()


@each_shell
def each_setup_fails(w, shell):
    at = attempt(w, "a-22222")
    with_setup(w, at, "echo why not; exit 3")
    result = sh(w, shell, MAKE, at)
    assert result.rc == 125 and why(at) == "setup failed with exit 3: echo why not; exit 3", result
    assert "reason=SetupFailed\n" in (at / "exit").read_text() and "why not\n" in (at / "log").read_text()
    # One that was killed in the midst is never used; while something of it runs, it is waited for.
    second = attempt(w, "b-22222")
    w.write("go", "", base=w.dir)
    (w.dir / "go").unlink()
    os.mkfifo(w.dir / "go")
    with_setup(w, second, f"echo half >half; cat {w.dir}/go; echo whole >half")
    killed = subprocess.Popen(argv(shell, script(w, MAKE), second), env=w.env, stdout=subprocess.PIPE)
    wait_for(lambda: (w.dir / "local/setups/ab12/tree/half").exists(), "it runs")
    killed.kill()
    killed.wait()
    third = attempt(w, "c-22222")
    with_setup(w, third, "echo anew >anew")
    waits = subprocess.Popen(argv(shell, script(w, MAKE), third), env=w.env, stdout=subprocess.PIPE)
    wait_for(lambda: (third / "state").exists() and "supervisor was killed" in (third / "state").read_text(), "it waits")
    (w.dir / "go").write_text("")
    out, _ = waits.communicate(timeout=60)
    assert out == b"ready\n" and (third / "tree/anew").read_text() == "anew\n" and not (third / "tree/half").exists()
    # Many at once: one makes it.
    ats = [attempt(w, f"d{i}-22222") for i in range(6)]
    for at in ats:
        with_setup(w, at, f"echo 1 >>{w.dir}/times; echo x >x", key="cd34")
    many = [subprocess.Popen(argv(shell, script(w, MAKE), at), env=w.env, stdout=subprocess.PIPE) for at in ats]
    assert [m.communicate(timeout=60)[0] for m in many] == [b"ready\n"] * 6
    assert (w.dir / "times").read_text() == "1\n" and all((at / "tree/x").is_symlink() for at in ats)


@each_shell
def each_setup_editable(w, shell):
    at = attempt(w, "a-22222")
    made = w.dir / "local/setups/ab12/tree"
    w.write("web/src/a.py", "1", base=at / "tree")
    site = ".venv/lib/python3.11/site-packages"
    with_setup(w, at, f"mkdir -p {site}; touch .venv/pyvenv.cfg; printf '%s\\n' '# text' {made}/web/src >{site}/e.pth", cwd="web")
    result = sh(w, shell, MAKE, at)
    assert f"export PYTHONPATH='{at}/tree/web/src'\"${{PYTHONPATH:+:$PYTHONPATH}}\"\n" in result.out, result
    assert f"VIRTUAL_ENV='{at}/tree/web/.venv'" in result.out
    other = attempt(w, "b-22222")
    with_setup(w, other, f"mkdir -p {site}; touch .venv/pyvenv.cfg; echo \"MAPPING = {{'x': '$PWD/src/x'}}\" >{site}/__editable___my_pkg_0_1_finder.py", key="ef")
    assert sh(w, shell, MAKE, other).rc == 125 and "installs my_pkg with -e by an import hook" in why(other)


# --- results


def decoded(word):
    data = b"" if word == "\\0" else re.sub(rb"\\0([0-7]{3})", lambda m: bytes([int(m.group(1), 8)]), word.encode())
    return os.fsdecode(data)


def listed(result):
    assert result.rc == 0 and not result.err, result
    return [(line.split(" ")[0], *map(decoded, line.split(" ")[1:])) for line in result.out.splitlines()]


NAMES = ["plain", "a b", "new\nline", "end\n", "\n", "-n", "f 1 2 3 x", "t\tab", "q'\"\\\\0101$(x)`", "\udcff\udc80", ".hidden", "*", "\u00e9"]


@each_shell
def each_files(w, shell):
    attempt(w, "a-22222")
    outputs = w.dir / "local/runs/a-22222/outputs"
    for i, name in enumerate(NAMES):
        w.write(name, b"x" * i, 0o640, base=outputs)
        w.write(name, b"y", 0o755, base=outputs / "sub")
        os.utime(outputs / name, ns=(0, 1700000000123456789 + i * 10**9))
    (outputs / "link").symlink_to("new\nline \n")
    (outputs / "away").symlink_to("/etc")
    os.mkfifo(outputs / "pipe")
    (outputs / "empty dir").mkdir(mode=0o2750)
    (outputs / "empty dir").chmod(0o2750)
    got = listed(sh(w, shell, "verb_files a-22222"))
    files = {f[4]: f[1:4] for f in got if f[0] == "f"}
    assert set(files) == {*NAMES, *(f"sub/{n}" for n in NAMES)}, set(files) ^ {*NAMES, *(f"sub/{n}" for n in NAMES)}
    for i, name in enumerate(NAMES):
        assert files[name] == (str(i), str(1700000000123 + i * 1000), "0640"), (name, files[name])
    assert {l[2]: l[1] for l in got if l[0] == "l"} == {"link": "new\nline \n", "away": "/etc"}
    assert {d[2]: d[1][-4:] for d in got if d[0] == "d"} == {"sub": f"{(outputs / 'sub').stat().st_mode & 0o7777:04o}", "empty dir": "2750"}
    assert [g[0] for g in listed(sh(w, shell, "verb_files a-22222 sub"))] == ["d"] + ["f"] * len(NAMES)
    assert [g[-1] for g in listed(sh(w, shell, "verb_files a-22222 'new\\0012line'"))] == ["new\nline"]
    for bad in ("away", "..", "sub/../..", "/etc", "away/passwd", "nothing"):
        assert listed(sh(w, shell, f"verb_files a-22222 {bad}")) == ([("l", "/etc", "away")] if bad == "away" else []), bad
    # By a part of the name: files alone. Of the tree of an attempt.
    w.write("sub/x.tfevents.d/y", b"y", base=outputs)
    w.write("sub/tfevents\n1", b"123", base=outputs)
    (outputs / "link.tfevents").symlink_to("plain")
    os.mkfifo(outputs / "pipe.tfevents")
    assert [g[0::4] for g in listed(sh(w, shell, "verb_files a-22222 . '*tfevents*'"))] == [("f", "sub/tfevents\n1")]
    assert [g[0::4] for g in listed(sh(w, shell, "verb_files a-22222 sub none '*tfevents*'"))] == [("f", "sub/tfevents\n1")]
    assert listed(sh(w, shell, "verb_files a-22222 nothing '*tfevents*'")) == []
    for other in ("'a c'", "a/b", "'$(x)'", "'-o'", "\"'\"", "'('"):
        assert listed(sh(w, shell, f"verb_files a-22222 . {other}")) == [], other
    assert [g[-1] for g in listed(sh(w, shell, "verb_files a-22222 . none '*/sub/*vents?1'"))] == ["sub/tfevents\n1"]
    w.write("code.py", b"code", base=w.dir / "local/runs/a-22222/1/tree")
    assert ("f", "code.py") in [g[0::4] for g in listed(sh(w, shell, "verb_files a-22222/1"))]
    for bad in ("a-22222/2", "b-22222/1"):
        assert sh(w, shell, f"verb_files {bad}").out.startswith("MARK fail missing"), bad
    for bad in ("a-22222/", "a-22222/../1", "a-22222/x", "../a-22222/1"):
        assert sh(w, shell, f"verb_files {bad}").out.startswith("MARK fail usage"), bad
    assert sh(w, shell, "verb_files b-22222").out.startswith("MARK fail missing")
    assert sh(w, shell, "RESULTS_MAX=5; verb_files a-22222").out.splitlines()[-1].startswith("MARK fail usage"), "a limit"


def want(w, shell, *wants, lines="mkdir -p $d_local/incoming; verb_get a-22222", **options):
    """(offset, path) for the rest of a file, or (offset, length, path)"""
    lines_ = [f"want {o[0]} {o[1] if len(o) > 2 else 10**15} {o[-1]}\n" for o in wants]
    said = w.write("wants", "".join(lines_) + ".\n", base=w.dir)
    with open(said, "rb") as stdin:
        return w.command(argv(shell, script(w, lines)), stdin=stdin, **options)


@each_shell
def each_get(w, shell):
    attempt(w, "a-22222")
    outputs = w.dir / "local/runs/a-22222/outputs"
    big = os.urandom(3_000_001)
    w.write("big", big, base=outputs)
    w.write("new\nline", b"1234", base=outputs)
    w.write("empty", b"", base=outputs)
    w.write("d/x", b"0\0" * 10, base=outputs)
    (outputs / "link").symlink_to("/etc/passwd")
    (outputs / "up").symlink_to("..")
    result = want(w, shell, (0, "big"), (2_000_000, "big"), (3, "new\\0012line"), (4, "new\\0012line"), (99, "big.none"), (0, "empty"), (0, "link"),
                  (0, "up/record"), (0, "../record"), (0, "d"), (1, "d/x"), (0, "/etc/passwd"))
    assert result.out_bytes == big + big[2_000_000:] + b"4" + (b"0\0" * 10)[1:], (len(result.out_bytes), result.err)
    sizes = [int(line.split()[1]) for line in result.err.splitlines() if line.startswith("size ")]
    assert sizes == [len(big), 1_000_001, 1, 0, 0, 0, 0, 0, 0, 0, 19, 0], sizes
    result = want(w, shell, (5, 10, "big"), (2_999_999, 10, "big"), (0, 0, "big"), (3_000_001, 1, "big"), (0, 3, "new\\0012line"))
    assert result.out_bytes == big[5:15] + big[2_999_999:] + b"123", result
    assert [int(line.split()[1]) for line in result.err.splitlines() if line.startswith("size ")] == [10, 2, 0, 0, 3], result.err
    # A file that is cut while it is sent, and one that grows: as many as was said.
    cut = """
mkdir -p $d_local/incoming
head() { case $3 in '') truncate -s 1000000 "$d_local/runs/a-22222/outputs/big"; echo more >>"$d_local/runs/a-22222/outputs/d/x" ;; esac; command head "$@"; }
verb_get a-22222
"""
    result = want(w, shell, (500_000, "big"), (0, "d/x"), lines=cut.replace("$3", "${3-}"))
    assert result.out_bytes == big[500_000:1_000_000] + bytes(2_000_001) + b"0\0" * 10 or result.out_bytes[:2_500_001] == big[500_000:1_000_000] + bytes(2_000_001), result.err
    assert result.err.splitlines()[:2] == ["size 2500001", "short 500000"], result.err
    # Bytes of another place are worse than none.
    for broken in ("dd() { return 1; }", "dd() { return 137; }", "dd() { command dd count=0 </dev/null >/dev/null 2>&1; false; }"):
        result = want(w, shell, (2_000, "big"), (0, "new\\0012line"), (1, "new\\0012line"),
                      lines=f"mkdir -p $d_local/incoming; {broken}; verb_get a-22222")
        assert result.out == "1234", result
        assert [line for line in result.err.splitlines() if line.startswith("size ")] == ["size 0", "size 4", "size 0"], result
    w.write("code.py", b"code", base=w.dir / "local/runs/a-22222/1/tree")
    assert want(w, shell, (1, "code.py"), lines="mkdir -p $d_local/incoming; verb_get a-22222/1").out == "ode"


# --- what is kept


@each_shell
def each_data_sent(w, shell):
    w.write("in/a b", "1", base=w.dir)
    w.write("in/deep/new\nline", os.urandom(100_000), 0o755, base=w.dir)
    w.write("in/deep/zeros", bytes(5120), base=w.dir)
    tar = subprocess.run(["tar", "-cf", "-", "-C", w.dir / "in", "."], capture_output=True, check=True).stdout

    def send(data, key="k-1", more=""):
        w.write("stream", data, base=w.dir)
        with open(w.dir / "stream", "rb") as stdin:
            return w.command(argv(shell, script(w, f"node_of; verb_data {key} {more}; echo end")), stdin=stdin)
    for n in (0, 1, 512, 1024, 5000, len(tar) // 2, len(tar) - 10240):
        assert "MARK fail corrupt" in send(tar[:n]).out, n
        assert not (w.dir / "root/data/k-1").exists()
    assert "MARK fail corrupt" in send(tar, more=str(len(tar) + 1)).out
    assert os.listdir(w.dir / "root/data") == [], os.listdir(w.dir / "root/data")
    assert send(tar).out == "want k-1\nend\n"
    assert hash_dir(w.dir / "root/data/k-1") == hash_dir(w.dir / "in")
    assert send(b"").out == "have k-1\nend\n"
    assert send(tar, "k-2", len(tar)).out == "want k-2\nend\n" and (w.dir / "root/data/k-2/a b").read_text() == "1"
    assert "fail usage" in send(tar, "../x").out
    w.write("root/layers/00ff", "layer", base=w.dir)
    assert sh(w, shell, "verb_have 00ff ../bin 11ee").out == "layer 00ff\n"


@each_shell
def each_gc(w, shell):
    old = 1_600_000_000
    lives, ended, new = attempt(w, "a-22222"), attempt(w, "b-22222"), attempt(w, "c-22222")
    lines = "node_of; for at in a b c; do printf 'state=running\\nboot=%s\\nprogram=%s:%s\\n' \"$d_boot\" $$ $(proc_start_of $$ && echo $start) >$d_local/runs/$at-22222/1/state; done\n"
    for at in (lives, ended, new):
        w.write("tree/file", os.urandom(100_000), base=at)
        w.write("job", "j_data() {\nlink_data 'd' 'data/used'\n}\n" if at == lives else "", base=at)
        w.write("plan", "p_tree=' 00aa:gzip'\n" if at == lives else "p_tree=' 00bb:gzip'\n", base=at)
        w.write("log", "output", base=at)
    for at in (ended, new):
        w.write("exit", "state=failed\nend\n", base=at)
    os.utime(ended / "exit", (old, old))
    for name in ("00aa", "00bb", "00cc", ".00dd.77"):
        w.write(f"root/layers/{name}", os.urandom(50_000), base=w.dir)
        os.utime(w.dir / "root/layers" / name, (old, old))
    w.write("root/layers/00ee", os.urandom(50_000), base=w.dir)
    for name in ("used", "unused"):
        w.write(f"root/data/{name}/x", os.urandom(50_000), base=w.dir)
        os.utime(w.dir / "root/data" / name, (old, old))
    w.write("local/incoming/t.77", "part", base=w.dir)
    os.utime(w.dir / "local/incoming/t.77", (old, old))
    before = hash_dir(w.dir / "root")
    result = sh(w, shell, lines + "verb_gc 86400 1000000000000 dry")
    freed = {line.split()[3]: line.split()[1:3] for line in result.out.splitlines()}
    assert {k: v[1] for k, v in freed.items()} == {"trees": "1", "layers": "2", "data": "1"} and int(freed["layers"][0]) >= 100_000, result
    assert hash_dir(w.dir / "root") == before and (ended / "tree").exists()
    assert sh(w, shell, lines + "verb_gc 86400 1000000000000").out == result.out
    assert not (ended / "tree").exists() and (ended / "log").exists() and (new / "tree").exists() and (lives / "tree").exists()
    assert sorted(os.listdir(w.dir / "root/layers")) == ["00aa", "00ee"] and os.listdir(w.dir / "root/data") == ["used"]
    assert os.listdir(w.dir / "local/incoming") == []
    # What is used after it was looked at stays.
    w.write("root/layers/00cc", os.urandom(50_000), base=w.dir)
    os.utime(w.dir / "root/layers/00cc", (old, old))
    assert sh(w, shell, lines + 'sort() { command sort "$@"; touch -c "$d_root/layers/00cc"; }; verb_gc 86400 1000000000000').out == ""
    assert sorted(os.listdir(w.dir / "root/layers")) == ["00aa", "00cc", "00ee"]
    # Down to a size, the oldest first; what is shared with other nodes only by age.
    w.write("root/shared", "", base=w.dir)
    out = sh(w, shell, lines + "verb_gc 86400 0").out
    assert [line.split()[2:] for line in out.splitlines()] == [["1", "trees"]], out
    (w.dir / "root/shared").unlink()
    sh(w, shell, lines + "verb_gc 86400 0")
    assert sorted(os.listdir(w.dir / "root/layers")) == ["00aa"] and not (new / "tree").exists() and (lives / "tree/file").exists()


@each_shell
def each_gc_of_cut_submissions(w, shell):
    with subprocess.Popen(["true"]) as process:
        process.wait()
    gone, old = process.pid, time.time() - 100
    names = [f"local/incoming/t-1.{pid}" for pid in (gone, os.getpid())]
    for name in names:
        w.write(name, "part", base=w.dir)
    for pid in (gone, os.getpid()):
        names.append(f"local/runs/a-22222/.new-{pid}")
        w.write(f"{names[-1]}/files/x", "part", base=w.dir)
    left = lambda: [name for name in names if (w.dir / name).exists()]  # noqa: E731
    w.write("root/layers/00aa", "layer", base=w.dir)
    sh(w, shell, "node_of; verb_gc 3600 0")
    assert left() == names, left()
    # A supervisor may be about to take what is complete.
    sh(w, shell, "node_of; verb_gc 0 0")
    assert left() == names[1:] and os.listdir(w.dir / "root/layers") == ["00aa"], left()
    os.utime(w.dir / names[2], (old, old))
    sh(w, shell, "node_of; verb_gc 0 0")
    assert left() == [names[1], names[3]], left()
    os.utime(w.dir / names[3], (old, old))
    sh(w, shell, "node_of; verb_gc 0 0")
    assert left() == [names[1], names[3]] and os.listdir(w.dir / "root/layers") == ["00aa"], left()
    shutil.rmtree(w.dir / names[3])
    sh(w, shell, "node_of; verb_gc 0 0")
    assert left() == [names[1]] and not os.listdir(w.dir / "root/layers"), left()


# --- containers


@each_shell
def each_container_without_an_init(w, shell):
    """Told with the run; what the node has said before stays."""
    at = attempt(w, "a-22222")
    w.write("state", "state=starting\nwarning=before\n", base=at)
    lines = f"dir={shlex.quote(str(at))} j_runtime=podman container_options=\ncontainer_init\necho \"[$container_options]\"\n"
    tool = w.write("bin/some-init", "#!/bin/sh\n", 0o755, base=w.dir)
    assert sh(w, shell, f"CONTAINER_INITS='/nowhere/init {tool}'\n" + lines).out == f"[ '--init' '--init-path' '{tool}']\n"
    assert (at / "state").read_text() == "state=starting\nwarning=before\n"
    assert sh(w, shell, "CONTAINER_INITS='/nowhere/init no-such-init'\n" + lines).out == "[]\n"
    told = (at / "state").read_text()
    assert told.startswith("state=starting\nwarning=before; ") and "catatonit" in told, told
    w.write("state", "state=starting\n", base=at)
    sh(w, shell, "CONTAINER_INITS=\n" + lines)
    assert "warning=this node has no init" in (at / "state").read_text()
    assert sh(w, shell, "CONTAINER_INITS=\n" + lines.replace("podman", "docker")).out == "[ '--init']\n"


# --- usage

LOAD = "import os, time\nmemory = os.urandom(1 << 20) * 100\nif os.fork() == 0: time.sleep(100)\n" \
       "end = time.process_time() + 1\nwhile time.process_time() < end: pass\nopen('done', 'w').close()\ntime.sleep(100)\n"


@each_shell
def each_usage(w, shell):
    at = attempt(w, "a-22222")
    smi(w, row(0))
    w.write("smi/nvidia-smi", "#!/bin/sh\ncase $* in *'-i GPU-1,GPU-2') printf '50, 1024, 100.50\\n70, 2048, [N/A]\\n' ;; esac\n", 0o755, base=w.dir)
    w.write("gpus", "gpus=0,1\ndgpu_vendor=nvidia\ndgpu_ids='GPU-1 GPU-2'\n", base=at)
    program = subprocess.Popen(["python3", "-c", LOAD], cwd=w.tree, start_new_session=True)
    try:
        wait_for(lambda: (w.tree / "done").exists(), "it has worked")
        start = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[19]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        (at / "state").write_text(f"program={program.pid}:{start}\nboot={boot}")
        assert sh(w, shell, "node_of; usage_sample $d_local/runs/a-22222/1").rc == 0
        wait_for(lambda: (at / ".gpus").exists(), "the tool has answered")
        result = sh(w, shell, "node_of; usage_n=0; sed -i 's/usage_n=.*/usage_n=0/' $d_local/runs/a-22222/1/.usage; usage_sample $d_local/runs/a-22222/1; "
                    "verb_usage a-22222/1")
        assert result.err == "", result
        assert result.out.startswith("usage a-22222/1 time="), result
        usage = dict(pair.split("=") for pair in result.out.split()[2:])
        assert 0.95 < float(usage["cpu_s"]) < 2 and 100 << 20 < int(usage["memory_bytes"]) < 150 << 20, usage
        assert int(usage["memory_peak_bytes"]) >= int(usage["memory_bytes"]) and float(usage["cpu"]) >= 0, usage
        assert usage["gpu_busy"] == "0.60" and usage["gpu_memory_peak_bytes"] == str(3072 << 20) and usage["power_w"] == "100.50", usage
        assert usage["gpu_busy_now"] == "0.60" and usage["gpu_memory_bytes"] == str(3072 << 20) and "energy_j" not in usage, usage
        # What was said holds until the next answer, of which the energy is known.
        ticks = int(float(Path("/proc/uptime").read_text().split()[0]) * 100)
        (at / ".gpus").write_text("20 1 200000 400\n")
        sums = re.sub("usage_n=.*", "usage_n=0", (at / ".usage").read_text())
        (at / ".usage").write_text(re.sub("usage_gpu_said=.*", f"usage_gpu_said={ticks - 1000}", sums))
        said = sh(w, shell, "node_of; usage_sample $d_local/runs/a-22222/1; cat $d_local/runs/a-22222/1/usage").out
        usage = dict(line.split("=") for line in said.splitlines())
        assert usage["gpu_busy"] == "0.40" and usage["gpu_busy_now"] == "0.20" and 1900 < float(usage["energy_j"]) < 2400, usage
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    before = (at / "usage").read_text()
    sh(w, shell, "node_of; sed -i 's/usage_n=.*/usage_n=0/' $d_local/runs/a-22222/1/.usage; usage_sample $d_local/runs/a-22222/1")
    assert re.search("cpu_s=(.*)", before).group(1) == re.search("cpu_s=(.*)", (at / "usage").read_text()).group(1)


@each_shell
def each_machine(w, shell):
    smi(w, row(0))
    out = sh(w, shell, "node_of; verb_machine").out.splitlines()
    said = {line.split(" ")[0]: line.split(" ")[1:] for line in out}
    assert float(said["load"][0]) >= 0 and int(said["cpus"][0]) >= 1 and int(said["memory"][0]) > int(said["memory"][1]) > 0, out
    assert said["gpu"][:2] == ["nvidia", "0"] and "meter" not in said, out
    w.write("smi/nvidia-smi", "#!/bin/sh\ncase $* in *compute*) ;; *=index,util*) printf '0, 97, 1024, 300.50\\n1, [N/A], x, 1e9\\n2, 3\\n' ;; "
                              "*) echo '0, GPU-1, 00000000:01:00.0, 81559, A'; echo '1, GPU-2, 00000000:02:00.0, 81559, A' ;; esac\n", 0o755, base=w.dir)
    out = sh(w, shell, "node_of; verb_machine").out.splitlines()
    assert [line for line in out if line.startswith("meter")] == [f"meter nvidia 0 97 {1 << 30} 300500", "meter nvidia 1 - - -"], out
    w.write("smi/nvidia-smi", "#!/bin/sh\necho 'Failed to initialize NVML'; exit 18\n", 0o755, base=w.dir)
    out = sh(w, shell, "node_of; verb_machine").out.splitlines()
    assert out[-1].startswith("fault nvidia-smi") and out[0].startswith("load "), out


# --- without flock(1)


def by_other_lockers():
    """On hosts without flock(1), by what takes its locks there."""
    def make(function, shell, locker):
        def test(w):
            w.env["PATH"] = without_flock(w, locker)
            assert sh(w, shell, "command -v flock").out == "flock\n"
            function(w, shell)
        return test
    for function in (each_gpus_of_a_program, each_more_locks_than_names, each_place_in_the_queue, each_holder,
                     each_holder_of_the_other_kind, each_setup, each_setup_fails):
        for shell, locker in (("dash", "python3"), ("bash", "perl"), ("busybox", "perl")):
            globals()[f"{function.__name__.replace('each_', 'test_')}_by_{locker}_{shell}"] = make(function, shell, locker)


by_other_lockers()


@each_shell
def each_lock(w, shell):
    """What stands in for flock(1) does as that does, whatever lies in the present directory and whatever is ignored."""
    for name in ("fcntl.py", "os.py", "signal.py"):
        w.write(name, "raise SystemExit(0)\n", base=w.dir / "at")
    w.write("lock", "", base=w.dir)
    lines = """
cd "$1/at"
say() { "$@" && echo 0 || echo "not 0"; }
say flock -n 4 4<"$1/lock"
exec 4>>"$1/lock" 5<"$1/lock"
say flock -n 4
say flock -n -s 5
say flock -u 4
say flock -s 5
say flock -s -n 4
say flock -n -x 6 6<"$1/lock"
exec 4>&- 5<&-
say flock 7 7<"$1"
say flock -n 3
flock -F "$1/lock" sh -c 'exit 3' || echo $?
flock -F -x "$1/lock" sh -c 'cat /proc/self/status' | sed -n 's/^SigIgn:.*000\(.*\)/\1/p'
say lock_by 'timeout 0.3' -n 4 4<"$1/lock"
{ flock 4; say lock_by 'timeout 0.3' 5 5<"$1/lock"; } 4<"$1/lock"
"""
    wanted = None
    for others in ((), ("perl",), ("python3",)):
        w.env["PATH"] = w.env["PATH"] if not others else without_flock(w, *others)
        result = sh(w, shell, lines, w.dir)
        wanted = wanted or result.out
        assert result.out == wanted and result.out.startswith("0\n0\nnot 0\n"), (others, result, wanted)


if __name__ == "__main__":
    main()
