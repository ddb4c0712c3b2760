#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The runner's core over pipes, in each shell that a node may have: what is said, and what becomes of it.

    tests/real/runner.py - [NAME…]
"""

import importlib.util
import os
import random
import select
import signal
import string
import subprocess

from harness import *  # noqa: F403

ROOT = Path(__file__).resolve().parents[2]
MARK = "0123456789abcdef"
SHELLS = {"dash": "dash", "bash": "bash", "busybox": "busybox"}

spec = importlib.util.spec_from_file_location("joiner", ROOT / "lib/node/runner.py")
joiner = importlib.util.module_from_spec(spec)
spec.loader.exec_module(joiner)
RUNNER = "".join(joiner.without_comments(p.read_text()) for p in sorted((ROOT / "lib/node/runner").glob("[0-9]*.sh"))).encode()
HASH = hashlib.sha256(RUNNER).hexdigest()[:32]
BOOT = (ROOT / "lib/node/runner/boot.sh").read_text().strip()


def each_shell(function, shells=SHELLS):
    """One test of the function's module for each shell, so that they run in parallel."""
    def make(shell):
        def test(w):
            node = Node(w, shell)
            try:
                function(node)
            finally:
                node.close()
        return test
    for shell in shells:
        function.__globals__[f"{function.__name__.replace('each_', 'test_', 1)}_{shell}"] = make(shell)
    return function


def decoded(word):
    if word == "\\0":
        return ""
    raw = re.sub(rb"\\0([0-7]{3})", lambda m: bytes([int(m.group(1), 8)]), word.encode("utf-8", "surrogateescape"))
    return raw.decode("utf-8", "surrogateescape")


def coded(text):
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    safe = (string.ascii_letters + string.digits + "._/:=,@%+~-").encode()
    return "".join(chr(b) if b in safe else f"\\0{b:03o}" for b in raw) or "\\0"


def quoted(text):
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return b"'" + raw.replace(b"'", b"'\\''") + b"'"


class Failed(Exception):
    def __init__(self, kind, text):
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


class Node:
    """A machine: a ROOT of its own, and `sh` of one kind."""

    launcher = ()

    def __init__(self, w, shell):
        self.w, self.shell = w, needs(SHELLS.get(shell, shell))
        self.root = w.dir / "root"
        self.runner = w.write("runner", RUNNER, base=w.dir)
        (w.dir / "bin").mkdir()
        (w.dir / "bin/sh").symlink_to(self.shell)
        self.env = {**w.env, "PATH": f"{w.dir}/bin:{w.env['PATH']}"}
        del self.env["DLRUN_OFFLINE"]  # of the laptop
        self.local = self.root / "on" / os.uname().nodename

    def close(self):
        """Ends what works in our directory; nobody else's has its path."""
        for _ in range(3):
            for entry in os.listdir("/proc"):
                try:
                    if entry.isdigit() and int(entry) != os.getpid() and \
                            f"{self.w.dir}/root".encode() in Path(f"/proc/{entry}/environ").read_bytes() + \
                            Path(f"/proc/{entry}/cmdline").read_bytes():
                        os.kill(int(entry), signal.SIGKILL)
                except OSError:
                    pass

    def argv(self):
        return [*self.launcher, str(self.w.dir / "bin/sh"), str(self.runner), str(self.root), MARK]

    def open(self, env=None, **more):
        merged = {k: v for k, v in {**self.env, **(env or {})}.items() if v is not None}
        return subprocess.Popen(self.argv(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.w.home,
                                env=merged, **more)

    def talk(self, request, payload=b"", env=None):
        """(facts, answer, stderr, status) of one conversation; answer: bytes behind hello."""
        talk = self.open(env)
        out, err = talk.communicate(request.encode("utf-8", "surrogateescape") + b".\n" + payload, timeout=60)
        head, _, rest = out.partition(b"\n.\n")
        assert head.startswith(f"{MARK} hello 1\n".encode()), (out, err)
        return head.decode().splitlines()[1:], rest, err, talk.returncode

    def ask(self, *lines, payload=b"", env=None):
        """The answer's lines without the last, which is "done"."""
        _, answer, err, _ = self.talk("".join(f"{line}\n" for line in lines), payload, env)
        return self.checked(answer, err)

    @staticmethod
    def checked(answer, err):
        lines = answer.decode().splitlines()
        assert lines and lines[-1].startswith(MARK + " "), (answer, err)
        end = lines[-1].split(" ")
        if end[1] == "fail":
            raise Failed(end[2], decoded(end[3]))
        assert end[1:] == ["done"], (answer, err)
        return lines[:-1]

    # --- attempts

    def job(self, run, *words, n=1, shell=0, cwd=".", set_env=(), defaults=(), timeout_ms=0, grace_ms=10000, retries=0, sig="", before_ms=0,
            before="", more=""):
        text = f"j_run={run}\nj_attempt={n}\nj_cwd='{cwd}'\nj_shell={shell}\nj_timeout_ms={timeout_ms}\nj_grace_ms={grace_ms}\n" \
               f"j_retries={retries}\nj_signal={sig}\nj_signal_before_ms={before_ms}\nj_gpus=0\nj_gpus_only=\n" \
               "j_setup_run=\nj_setup_key=\nj_setup_cwd=\nj_rank=0\nj_ranks=1\n"
        raw = text.encode() + b"j_before=" + quoted(before) + b"\nj_command() {\nset_command"
        raw += b"".join(b" " + quoted(word) for word in words) + b"\n}\nj_env() {\n:\n"
        raw += b"".join(b"export " + quoted(k + "=") + quoted(v) + b"\n" for k, v in set_env) + b"}\nj_defaults() {\n:\n"
        raw += b"".join(b"default " + quoted(k) + b" " + quoted(v) + b"\n" for k, v in defaults)
        return raw + b"}\nj_data() { :; }\nj_outputs() { :; }\n" + more.encode()

    def transfer(self, parts, name="t1", tree=(), strip=0, spare="", need=0):
        """Lines of a submit, and its whole payload."""
        payload = b"".join(data for _, data, *_ in parts)
        lines = [f"transfer {name} {len(payload)} 0"]
        lines += [" ".join(["part", kind, str(len(data)), *rest]) for kind, data, *rest in parts]
        lines += [f"tree {digest} {codec}" for digest, codec in tree]
        lines += [f"strip {strip}", f"need {need}"] + ([f"spare {spare}"] if spare else [])
        return lines, payload

    def submit(self, run, *words, layers=(), n=1, apply=None, secrets=None, record=None, strip=0, spare="", env=None, need=0, send=None,
               **job):
        """layers: (bytes, codec); send: which of them travel (all)."""
        parts = [("job", self.job(run, *words, n=n, **job))]
        parts += [(k, v) for k, v in (("secrets", secrets), ("record", record), ("apply", apply)) if v is not None]
        digests = [(hashlib.sha256(data).hexdigest(), codec) for data, codec in layers]
        parts += [("layer", data, digests[i][0]) for i, (data, _) in enumerate(layers) if send is None or i in send]
        lines, payload = self.transfer(parts, f"{run}-{n}", digests, strip, spare, need)
        answer = self.ask(f"submit {run} {n}", *lines, payload=payload, env=env)
        assert len(answer) == 1 and re.fullmatch(r"accepted [0-9]* [0-9]*", answer[0]), answer
        return answer[0].split()[1:]

    def state(self, run, n=1):
        line, = self.ask(f"state {run}/{n}")
        words = line.split(" ")
        assert words[:2] == ["attempt", f"{run}/{n}"], line
        return {"state": words[2], **{k: decoded(v) for k, v in (word.split("=", 1) for word in words[3:])}}

    def wait(self, run, n=1, seconds=30):
        done = ("succeeded", "failed", "cancelled", "lost")
        return wait_for(lambda: (lambda s: s if s["state"] in done else None)(self.state(run, n)), f"the end of {run}", seconds)

    def running(self, run, n=1):
        return wait_for(lambda: (lambda s: s if s["state"] == "running" else None)(self.state(run, n)), f"{run} runs")

    def dir(self, run, n=1):
        return self.local / "runs" / run / str(n)

    def log(self, run, n=1):
        path = self.dir(run, n) / "log"
        return path.read_bytes() if path.exists() else b""


def refused(kind, ask):
    try:
        ask()
    except Failed as e:
        assert e.kind == kind, e
    else:
        raise AssertionError(f"{kind} was not said")


def end_of(state):
    return state["state"], int(state["code"]), int(state["signal"]), state["reason"]


def layer(files, strip="", whiteouts=()):
    """A layer as dlrun packs it: names below strip."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in whiteouts:
            head, _, last = name.rpartition("/")
            archive.addfile(member(f"{strip}{head + '/' if head else ''}.wh.{last}", b""), io.BytesIO(b""))
        for name, content in sorted(files.items()):
            data = content if isinstance(content, bytes) else content.encode()
            archive.addfile(member(strip + name, data), io.BytesIO(data))
    import gzip
    return gzip.compress(out.getvalue(), mtime=0), "gzip"


def member(name, data):
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), 0o775 if data.startswith(b"#!") else 0o664, 315619200
    return info


# --- conversations


@each_shell
def each_hello(node):
    facts, answer, err, _ = node.talk("nonsense\n")
    words = dict(line.split(" ", 1) for line in facts)
    assert words["root"] == str(node.root) and words["local"] == str(node.local) and words["uid"] == str(os.getuid()), facts
    assert int(words["free"]) > 0 and int(words["memory"]) > 1 << 20 and int(words["cpus"]) == os.cpu_count(), facts
    assert abs(int(words["time"]) - time.time() * 1000) < 5000 and words["launch"] in ("setsid", "systemd"), facts
    assert answer == f"{MARK} fail usage the\\0040runner\\0040does\\0040not\\0040know\\0040nonsense\n".encode(), answer
    assert err == b"", err
    for name in (node.root, node.local, node.local / "runs"):
        assert name.stat().st_mode & 0o777 == 0o700, name


@each_shell
def each_run(node):
    node.submit("r1", "sh", "-c", 'cat a; pwd; echo "$K:$D:$HOME"; echo err >&2; echo "$DLRUN_ATTEMPT" "$DLRUN_RUN_ID" "$PYTHONUNBUFFERED"; '
                'ls -d "$DLRUN_OUTPUT_DIR" "$DLRUN_ATTEMPT_DIR"; umask; exit 3',
                layers=[layer({"a": "one\n"})], env={"D": "login"}, defaults=[("D", "default"), ("E", "x")])
    end = node.wait("r1")
    assert end_of(end) == ("failed", 3, 0, "Error"), (end, node.log("r1"))
    log = node.log("r1").decode()
    umask = os.umask(0o22)
    os.umask(umask)
    assert log == f"one\n{node.dir('r1')}/tree\n:login:{node.w.home}\nerr\n1 r1 1\n{node.dir('r1')}/files\n" \
                  f"{node.local}/runs/r1/outputs\n{umask:04o}\n", log
    marks = [line.split() for line in (node.dir("r1") / "marks").read_text().splitlines()]
    assert int(marks[-1][1]) == len(log) and int(marks[0][1]) == 0, marks
    assert (node.dir("r1") / "exit").read_text().endswith("\nend\n")


# --- ends


@each_shell
def each_end(node):
    cases = {
        "ok": (["true"], {}, ("succeeded", 0, 0, "Completed")),
        "killed": (["sh", "-c", "kill -9 $$"], {}, ("failed", 137, 9, "Signal")),
        "term": (["sh", "-c", "kill -TERM $$"], {}, ("failed", 143, 15, "Signal")),
        "exit137": (["sh", "-c", "exit 137"], {}, ("failed", 137, 0, "Error")),
        "exit255": (["sh", "-c", "exit 255"], {}, ("failed", 255, 0, "Error")),
        "none": (["no-such-program"], {}, ("failed", 127, 0, "NotFound")),
        "nopath": (["./nothing"], {}, ("failed", 127, 0, "NotFound")),
        "noexec": (["./plain"], {}, ("failed", 126, 0, "NotExecutable")),
        "dir": (["./d"], {}, ("failed", 126, 0, "NotExecutable")),
        "nointerp": (["./nointerp"], {}, ("failed", 127, 0, "NotFound")),
        "before127": (["no-such-program"], {"before": "X=1"}, ("failed", 127, 0, "NotFound")),
        "own127": (["sh", "-c", "exit 127"], {}, ("failed", 127, 0, "Error")),
        "line": (["exit 4"], {"shell": 1}, ("failed", 4, 0, "Error")),
        "nodir": (["true"], {"cwd": "x/y"}, ("failed", 125, 0, "StartFailed")),
    }
    base = layer({"plain": "x", "d/f": "y", "nointerp": "#!/no/such/interpreter\n"})
    for name, (words, job, _) in cases.items():
        node.submit(name, *words, layers=[base], **job)
    for name, (_, _, wanted) in cases.items():
        end = node.wait(name)
        assert end_of(end) == wanted, (name, end, node.log(name))
    assert node.log("none") == b"dlrun: no-such-program: command not found\n"
    assert node.log("before127") == b"dlrun: no-such-program: command not found\n"
    assert node.log("nopath") == b"dlrun: ./nothing: no such file\n"
    assert "interpreter" in node.state("nointerp")["text"], node.state("nointerp")
    assert node.state("killed")["text"] == "the program was killed by SIGKILL"
    assert node.state("exit137")["text"] == "the program exited with 137"


# --- limits

@each_shell
def each_end_without_cgroups(node):
    """Machines that show none, as some containers do."""
    node.launcher = (needs("unshare"), "--mount", *(["--map-root-user"] if os.geteuid() else []), "sh", "-c",
                     'mount -t tmpfs none /sys && exec "$@"', "sh")
    for name, words, wanted in (("ok", ["true"], ("succeeded", 0, 0, "Completed")), ("bad", ["sh", "-c", "exit 3"], ("failed", 3, 0, "Error"))):
        node.submit(name, *words)
        end = node.wait(name)
        assert end_of(end) == wanted, (end, node.log(name))


HOG = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(len(bytearray(400 << 20)))'])\n"
LIMITS = "j_memory_bytes=67108864\nj_memory='64 MiB'\n"


def limited(node):
    """Where no cgroup can be written to that is said once, and the run goes on."""
    node.submit("can", "cat", "/proc/self/cgroup", more=LIMITS + "j_cpus_milli=500\n")
    end = node.wait("can")
    assert end_of(end) == ("succeeded", 0, 0, "Completed"), (end, node.log("can"))
    if end["limits"]:
        assert end["limits"].endswith("not enforced, no writable cgroup there has that controller"), end
        raise Skip(end["limits"])
    assert f"/dlrun-can-1-".encode() in node.log("can"), node.log("can")


def groups_of(run):
    return list(Path("/sys/fs/cgroup").glob(f"**/dlrun-{run}-1-*"))


@each_shell
def each_limits(node):
    limited(node)
    tag = f"m{os.getpid()}{node.shell.rpartition('/')[2]}"
    python = sys_python()
    cases = {
        "self": ([python, "-c", "print(len(bytearray(400 << 20)))"], ("failed", 137, 9, "OutOfMemory"), "the kernel killed it for memory (limit 64 MiB)"),
        "code": ([python, "-c", HOG + "sys.exit(5)"], ("failed", 5, 0, "Error"),
                 "the kernel killed one of its processes for memory (limit 64 MiB), then the program exited with 5"),
        "well": ([python, "-c", HOG], ("succeeded", 0, 0, "Completed"),
                 "the kernel killed one of its processes for memory (limit 64 MiB), then the program exited with 0"),
        "term": ([python, "-c", HOG + "import os\nos.kill(os.getpid(), 15)"], ("failed", 143, 15, "Signal"),
                 "the kernel killed one of its processes for memory (limit 64 MiB), then the program was killed by SIGTERM"),
        "none": (["sh", "-c", "exit 4"], ("failed", 4, 0, "Error"), "the program exited with 4"),
    }
    for name, (words, _, _) in cases.items():
        node.submit(tag + name, *words, more=LIMITS)
    for name, (_, wanted, text) in cases.items():
        end = node.wait(tag + name)
        assert end_of(end) == wanted and end["text"] == text, (name, end, node.log(tag + name))
        assert not groups_of(tag + name), name


@each_shell
def each_limits_reach_what_hides(node):
    """Nothing of its environment tells whose they are; the group does."""
    limited(node)
    tag = f"h{os.getpid()}{node.shell.rpartition('/')[2]}"
    node.submit(tag, "sh", "-c", "env -i setsid sleep 600 & env -i sleep 600 & echo up; wait", more=LIMITS, grace_ms=500)
    wait_for(lambda: node.log(tag) == b"up\n" and sum(len(g.joinpath("cgroup.procs").read_text().split()) for g in groups_of(tag)) >= 3, "all of it")
    pids = [int(pid) for group in groups_of(tag) for pid in group.joinpath("cgroup.procs").read_text().split()]
    node.ask(f"cancel {tag} 1")
    assert node.wait(tag)["state"] == "cancelled"
    wait_for(lambda: all(is_gone(pid) for pid in pids) and not groups_of(tag), "all of it is gone")


V2 = """
limits_proc=$1 limits_groups= limits_lacks= limits_name=dlrun-x-1-4194305 limits_bytes=$2 limits_milli=$3 limits_want=0
limits_find
[ "$limits_bytes" = 0 ] || limits_set_memory
[ "$limits_milli" = 0 ] || limits_set_cpus
[ "$limits_want" = 0 ] || limits_set_v2
echo "$limits_groups|$limits_lacks"
"""


@each_shell
def each_limits_of_version_2(node):
    """Groups as far as their files tell, as systemd's manager of a user has them."""
    top = node.w.dir / "cg"
    node.w.write("proc/cgroup", "1:name=systemd:/x\n0::/user/app/scope\n", base=node.w.dir)
    node.w.write("proc/mountinfo", f"25 30 0:23 / /sys rw - sysfs sysfs rw\n26 25 0:24 / {top} rw shared:4 - cgroup2 cgroup2 rw\n", base=node.w.dir)
    control = {".": "cpu memory pids", "user": "cpu memory pids", "user/app": "memory pids", "user/app/scope": ""}
    for name, below in control.items():
        node.w.write(f"cg/{name}/cgroup.procs", "", base=node.w.dir)
        node.w.write(f"cg/{name}/cgroup.subtree_control", below, base=node.w.dir)
        made = f"cg/{name}/dlrun-x-1-4194305"
        for file in ("memory.swap.max", "cgroup.procs", *(["memory.max"] if "memory" in below else []), *(["cpu.max"] if "cpu" in below else [])):
            node.w.write(f"{made}/{file}", "max", base=node.w.dir)
    part = node.w.write("part.sh", (ROOT / "lib/node/runner/31-limits.sh").read_text() + V2, base=node.w.dir)

    def choose(memory, cpus):
        out = subprocess.run([str(node.w.dir / "bin/sh"), "-u", str(part), str(node.w.dir / "proc"), str(memory), str(cpus)], check=True,
                             capture_output=True, text=True)
        assert not out.stderr, out
        group, _, lacks = out.stdout.rstrip("\n").partition("|")
        return group.strip().removeprefix(f"{top}/").removesuffix("dlrun-x-1-4194305").strip("/"), lacks

    assert choose(64 << 20, 0) == ("user/app", "")
    assert (top / "user/app/dlrun-x-1-4194305/memory.max").read_text() == "67108864"
    assert (top / "user/app/dlrun-x-1-4194305/memory.swap.max").read_text()[0] == "0"
    assert choose(64 << 20, 1500) == ("user", "") and choose(0, 1500) == ("user", "")
    assert (top / "user/dlrun-x-1-4194305/cpu.max").read_text() == "150000 100000"
    # A limit that somebody has set is not left; nor is what may not be written.
    for name, text in (("memory.max", "1000"), ("cpu.max", "50000 100000"), ("memory.high", "9")):
        node.w.write(f"cg/user/app/scope/{name}", text, base=node.w.dir)
        assert choose(64 << 20, 0) == ("user/app/scope", " and --memory")
        (top / "user/app/scope" / name).unlink()
    (top / "user/cgroup.procs").unlink()
    assert choose(64 << 20, 1500) == ("user/app", " and --cpus")
    (top / "user/app/cgroup.procs").unlink()
    assert choose(64 << 20, 1500) == ("user/app/scope", " and --memory and --cpus")
    # A namespace shows what is outside of it so.
    node.w.write("proc/cgroup", "0::/../x\n", base=node.w.dir)
    assert choose(64 << 20, 0) == ("", " and --memory")


PROBE = """import os, signal, sys
ignored = [line.split()[1] for line in open('/proc/self/status') if line.startswith('SigIgn')]
print(os.getpid() == os.getsid(0) == os.getpgrp(), int(ignored[0], 16) & ~(1 << 12 | 1 << 24 | 3 << 31), os.readlink('/proc/self/fd/0'),
      sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1], os.environ.get('LC_ALL'), os.environ['PWD'] == os.getcwd(),
      sorted(k for k in os.environ if k.startswith(('DLRUN', 'j_', 'OLDPWD'))), os.environ['K'], os.environ['D'], os.environ['S'])
"""


@each_shell
def each_world_of_the_program(node):
    names = ["DLRUN_ATTEMPT", "DLRUN_ATTEMPT_DIR", "DLRUN_OUTPUT_DIR", "DLRUN_RUN_ID"]
    wanted = f"True 0 /dev/null [0, 1, 2] POSIX True {names} here default it's\n"
    for i, more in enumerate(({}, {"before": "B=1"})):
        parts = [("job", node.job(f"w{i}", sys_python(), "../p.py", cwd="d", set_env=[("K", "here")], defaults=[("D", "default"), ("HOME", "/")],
                                  **more)), ("secrets", b"export S='it'\\''s'\n")]
        data, codec = layer({"p.py": PROBE, "d/x": ""})
        digest = hashlib.sha256(data).hexdigest()
        lines, payload = node.transfer([*parts, ("layer", data, digest)], f"w{i}", [(digest, codec)])
        node.ask(f"submit w{i} 1", *lines, payload=payload, env={"LC_ALL": "POSIX", "K": "login"})
        assert node.wait(f"w{i}")["state"] == "succeeded", node.log(f"w{i}")
        assert node.log(f"w{i}").decode() == wanted, (node.log(f"w{i}").decode(), wanted)
        assert not (node.dir(f"w{i}") / "secrets").exists()


def sys_python():
    return needs("python3")


@each_shell
def each_names_of_the_runner(node):
    """A program's variables may have names that the runner has, and its PATH nothing that the runner needs."""
    names = ("dir", "now", "start", "value", "nl", "quoted", "state", "proc_text")
    show = "import os, sys\nprint(*(os.environ[k] for k in sys.argv[1:]))"
    for run, more in (("n", {}), ("b", {"before": "B=1"}), ("c", {"cwd": "nowhere"})):
        node.submit(run, sys_python(), "-c", show, *names, set_env=[(k, f"my-{k}") for k in names] + [("PATH", "/none")],
                    secrets=b"export line='x'\n", **more)
        end = node.wait(run)
        if run == "c":
            assert end_of(end) == ("failed", 125, 0, "StartFailed") and end["text"] == "nowhere is not in the tree", end
        else:
            assert end["state"] == "succeeded" and node.log(run).decode().split() == [f"my-{k}" for k in names], (end, node.log(run))
        assert not (node.dir(run) / "secrets").exists()


@each_shell
def each_before(node):
    node.submit("b", "sh", "-c", 'echo "$V"; printf "%s\\n" "$@"', "x", "a b", "'", before="V='from before'\nexport V\n[[ -n $V ]] && V+=!")
    end = node.wait("b")
    assert end["state"] == "succeeded" and node.log("b") == b"from before!\na b\n'\n", (end, node.log("b"))


def strings(seed, n):
    """Random bytes as people do not write them, but programs do."""
    chance = random.Random(seed)
    odd = [b"'", b'"', b"\\", b"$", b"`", b"!", b"\n", b"\t", b" ", b"*", b"?", b"[", b"]", b"~", b"#", b"%", b"&", b";", b"|", b"<", b">",
           b"(", b")", b"{", b"}", b"=", b"^", b"\r", b"\x7f", b"\x01", b"\xc3\xa9", b"\xff", b"\x80", b"a", b"-", b"\\n", b"$(x)", b"${x}"]
    for _ in range(n):
        yield b"".join(chance.choice(odd) for _ in range(chance.randrange(0, 12)))


DUMP = """import os, sys
out = open(os.path.join(os.environ['DLRUN_OUTPUT_DIR'], sys.argv[1]), 'wb')
for word in sys.argv[2:]:
    out.write(os.fsencode(word) + b'\\0')
for i in range(int(os.environ['N'])):
    out.write(os.environb[b'V%d' % i] + b'\\0')
"""


@each_shell
def each_string(node):
    total, each = int(os.environ.get("DLRUN_RANDOM_STRINGS", "1000")), 1000
    for at in range(0, total, each):
        words = list(strings(at, each))
        half, run = each // 2, f"s{at}"
        env = [("N", str(each - half))] + [(f"V{i}", value) for i, value in enumerate(words[half:])]
        parts = [("job", node.job(run, sys_python(), "-c", DUMP, "dump", *words[:half], set_env=env, before="" if at % 2000 else ":"))]
        lines, payload = node.transfer(parts, run)
        node.ask(f"submit {run} 1", *lines, payload=payload)
        assert node.wait(run)["state"] == "succeeded", node.log(run)
        got = (node.local / "runs" / run / "outputs/dump").read_bytes().split(b"\0")[:-1]
        assert got == words, [pair for pair in zip(got, words) if pair[0] != pair[1]][:3]
    # The same by exec, word by word.
    node.submit("x", "sleep", "600")
    node.running("x")
    words = list(strings(7, 200))
    said = "".join(f"word {coded(w)}\n" for w in [sys_python(), "-c", DUMP, "exec", *words])
    _, answer, err, status = node.talk("exec x 1\n" + said, env={"N": "0"})
    assert (answer, status) == (f"{MARK} go\n".encode(), 0), (answer, err, status)
    assert (node.local / "runs/x/outputs/exec").read_bytes().split(b"\0")[:-1] == words


# --- transfers


@each_shell
def each_layers_and_spares(node):
    base = layer({"keep": "1", "gone": "2", "d/x": "3", "run": "#!/bin/sh\ncat keep new d/x\nls\n"}, strip="dlrun/src/")
    delta = layer({"new": "n\n", "keep": "one\n", "d/x": "x\n"}, strip="dlrun/src/", whiteouts=["gone"])
    apply = b"rm -rf -- './gone' './d/x'\n"
    more = {"strip": 2, "spare": "key1 1", "apply": apply}
    node.submit("l1", "./run", layers=[base, delta], **more)
    assert node.wait("l1")["state"] == "succeeded", node.log("l1")
    wanted = b"one\nn\nx\nd\nkeep\nnew\nrun\n"
    assert node.log("l1") == wanted, node.log("l1")
    spare = node.local / "spares/key1"
    wait_for(spare.is_dir, "a spare")
    assert sorted(p.name for p in spare.iterdir()) == ["d", "gone", "keep", "run"]
    facts, *_ = node.talk("state\n")
    assert "spare key1" in facts and sum(f.startswith("layer ") for f in facts) == 2, facts
    node.submit("l2", "./run", layers=[base, delta], send=(), **more)
    assert node.wait("l2")["state"] == "succeeded"
    assert node.log("l2") == wanted and "a spare tree" in (node.dir("l2") / "notes").read_text()
    plain = node.local / "plain" / hashlib.sha256(base[0]).hexdigest()
    wait_for(plain.is_file, "a layer without its compression")
    wait_for(spare.is_dir, "a spare")
    # It is used, and one that is damaged is done without.
    for damage in (False, True):
        spare.rename(node.w.dir / f"away-{damage}")
        if damage:
            wait_for(lambda: not beside(node), "quiet")
            plain.write_bytes(plain.read_bytes()[:700])
        else:
            (node.root / "layers" / plain.name).rename(node.w.dir / "layer")
            (node.root / "layers" / plain.name).write_bytes(b"")
        run = f"plain{int(damage)}"
        node.submit(run, "./run", layers=[base, delta], send=(), **more)
        node.wait(run)
        assert node.log(run) == wanted, node.log(run)
        if not damage:
            (node.w.dir / "layer").rename(node.root / "layers" / plain.name)
        wait_for(spare.is_dir, "a spare")
    umask = os.umask(0o22)
    os.umask(umask)
    # tar of busybox does as the layer says.
    assert (node.dir("l2") / "tree/run").stat().st_mode & 0o777 in ({0o775 & ~umask, 0o775} if "busybox" in node.shell else {0o775 & ~umask})
    # At most four are kept, the newest.
    for i in range(2, 7):
        node.submit(f"k{i}", "true", layers=[base], send=(), spare=f"key{i} 1")
        wait_for((node.local / f"spares/key{i}").is_dir, "another spare")
    wait_for(lambda: len(list((node.local / "spares").iterdir())) == 4, "four spares")
    assert (node.local / "spares/key6").is_dir()


@each_shell
def each_refusal(node):
    data, codec = layer({"a": "1"})
    digest = hashlib.sha256(data).hexdigest()

    def refused(kind, run, parts, **options):
        lines, payload = node.transfer(parts, run, **options)
        try:
            node.ask(f"submit {run} 1", *lines, payload=payload)
        except Failed as failed:
            assert failed.kind == kind, failed
            assert node.state(run)["state"] == "absent" and not list((node.local / "incoming").iterdir()), failed
            return failed.text
        raise AssertionError(f"{run} was taken")

    job = ("job", node.job("r", "true"))
    assert digest in refused("corrupt", "r1", [job, ("layer", data[:-1] + b"x", digest)], tree=[(digest, codec)])
    assert digest in refused("missing", "r2", [job], tree=[(digest, codec)])
    assert "free" in refused("disk", "r3", [job], need=10**17)
    refused("usage", "r4", [("record", b"{}")])
    assert refused("tool", "r5", [job], tree=[(digest, "zstd")]) == "zstd is not there" if not shutil.which("zstd") else True
    for line in ("submit ../x 1", "submit x 0x1", "state x/1;id", "cancel x -1", "tail x 1 1", "submit"):
        try:
            node.ask(line)
        except Failed as failed:
            assert failed.kind in ("usage", "missing"), (line, failed)
        else:
            raise AssertionError(line)


@each_shell
def each_cut(node):
    """A transfer that is cut begins nothing, and goes on where it was."""
    big = os.urandom(300000)
    digest = hashlib.sha256(big).hexdigest()
    lines, payload = node.transfer([("job", node.job("c", "true")), ("layer", big, digest)], "c1", [])
    request = "".join(f"{line}\n" for line in ["submit c 1", *lines, "."]).encode()
    for end in (10, len(request) - 1, len(request), len(request) + 1000):
        talk = node.open()
        out, _ = talk.communicate((request + payload)[:end], timeout=30)
        assert b" done" not in out and b" fail" not in out and b"accepted" not in out, out
        assert node.state("c")["state"] == "absent"
    talk = node.open()
    talk.stdin.write(request + payload[:200000])
    talk.stdin.flush()
    wait_for(lambda: partial(node, "c1") == 200000, "what has come is told while it comes")
    # The old conversation may live on: its connection is thought to be lost here, and not there.
    for how in ("lives", "ended"):
        lines[0] = f"transfer c1 {len(payload)} 150000"
        if how == "ended":
            talk.communicate(timeout=30)
            assert partial(node, "c1") == 200010
        try:
            node.ask("submit c 1", *lines, payload=payload[150000:200010])
        except AssertionError:
            pass
        assert node.state("c")["state"] == "absent"
    lines[0] = f"transfer c1 {len(payload)} {len(payload)}"
    try:
        node.ask("submit c 1", *lines)
    except Failed as failed:
        assert failed.kind == "gone", failed
    at = partial(node, "c1")
    assert at == 200010, at
    lines[0] = f"transfer c1 {len(payload)} {at}"
    node.ask("submit c 1", *lines, payload=payload[at:])
    assert node.wait("c")["state"] == "succeeded"
    assert (node.root / "layers" / digest).read_bytes() == big
    wait_for(lambda: not list((node.local / "incoming").iterdir()), "nothing is left")


def told(node, text):
    """The files of the node that hold it."""
    return [str(p) for p in node.root.parent.rglob("*") if p.is_file() and not p.is_symlink() and text in p.read_bytes()]


@each_shell
def each_cut_with_secrets(node):
    """What came of the secrets is gone with the conversation; the rest waits for somebody who goes on."""
    big = os.urandom(300000)
    digest = hashlib.sha256(big).hexdigest()
    hidden = b"hidden-7d1c"
    secrets = b"export TOKEN='" + hidden + b"'\nexport MORE='" + b"x" * 100 + b"'\n"
    lines, payload = node.transfer([("job", node.job("c", "sh", "-c", '[ "$TOKEN" ]')), ("layer", big, digest), ("secrets", secrets)], "c1", [])
    request = "".join(f"{line}\n" for line in ["submit c 1", *lines, "."]).encode()
    for missing in (1, 50, len(secrets) - 5):
        talk = node.open()
        out, _ = talk.communicate((request + payload)[:-missing], timeout=30)
        assert b" done" not in out and b"accepted" not in out, out
        assert not told(node, hidden), told(node, hidden)
        assert partial(node, "c1") == len(payload) - len(secrets)
        assert [p.name for p in (node.local / "incoming").iterdir() if p.name.startswith(".")] == []
    # The runner itself is killed: whoever comes next removes it. One that lives keeps what it has.
    for signal_number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP):
        talk = node.open()
        talk.stdin.write((request + payload)[:-1])
        talk.stdin.flush()
        wait_for(lambda: told(node, hidden), "the secret is there")
        assert node.state("c")["state"] == "absent" and told(node, hidden)
        for pid in {p.name.rpartition(".")[2] for p in (node.local / "incoming").glob(".secret-*")}:
            os.kill(int(pid), signal_number)
        talk.stdin.close()
        talk.wait(timeout=30)
        wait_for(lambda: node.state("c")["state"] == "absent" and not told(node, hidden), "the secret is gone")
    at = partial(node, "c1")
    lines[0] = f"transfer c1 {len(payload)} {at}"
    node.ask("submit c 1", *lines, payload=payload[at:])
    state = node.wait("c")
    assert state["state"] == "succeeded", state
    wait_for(lambda: not list((node.local / "incoming").iterdir()), "nothing is left")
    assert not [path for path in told(node, hidden) if not path.endswith("log")], told(node, hidden)


def partial(node, name):
    facts, *_ = node.talk("state\n")
    return max((int(f.split()[2]) for f in facts if f.startswith(f"partial {name} ")), default=0)


@each_shell
def each_submit_uses_layers(node):
    """Their time says so, for whoever cleans up."""
    data, codec = layer({"a": "1"})
    path = node.root / "layers" / hashlib.sha256(data).hexdigest()
    for run, send in (("u1", None), ("u2", ())):
        node.submit(run, "true", layers=[(data, codec)], send=send)
        node.wait(run)
        assert time.time() - path.stat().st_mtime < 100, run
        os.utime(path, (1_600_000_000, 1_600_000_000))


@each_shell
def each_damaged_layer(node):
    """It is not kept, so that it comes again."""
    data, codec = layer({"a": "1\n"})
    path = node.root / "layers" / hashlib.sha256(data).hexdigest()
    env = {"TAR_OPTIONS": "--exclude=a"}
    node.submit("d1", "cat", "a", layers=[(data, codec)], env=env)
    assert node.wait("d1")["state"] == "succeeded", node.log("d1")
    path.write_bytes(data[:30])
    node.submit("d2", "cat", "a", layers=[(data, codec)], send=(), env=env)
    end = node.wait("d2")
    assert end_of(end) == ("failed", 125, 0, "StartFailed") and "damaged" in end["text"] and not path.exists(), end
    node.submit("d3", "cat", "a", layers=[(data, codec)], env=env)
    assert node.wait("d3")["state"] == "succeeded"


@each_shell
def each_submit_at_once(node):
    """Of one attempt: it begins once."""
    line = 'echo x >> "$DLRUN_OUTPUT_DIR/n"'
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: node.submit("o", "sh", "-c", line), range(8)))
    assert len({tuple(d) for d in done}) == 1, done
    node.wait("o")
    assert node.submit("o", "sh", "-c", line)
    assert (node.local / "runs/o/outputs/n").read_text() == "x\n"


@each_shell
def each_submit_killed(node):
    """The conversation is killed at moments that chance picks; asked again, the attempt has run once."""
    line = 'echo x >> "$DLRUN_OUTPUT_DIR/n"'
    delta = layer({"a": "1"})
    chance = random.Random(1)
    for i in range(15):
        run = f"k{i}"
        digest = hashlib.sha256(delta[0]).hexdigest()
        lines, payload = node.transfer([("job", node.job(run, "sh", "-c", line)), ("layer", delta[0], digest)], run, [(digest, delta[1])])
        talk = node.open()
        talk.stdin.write("".join(f"{line}\n" for line in [f"submit {run} 1", *lines, "."]).encode() + payload)
        talk.stdin.close()
        try:
            talk.wait(chance.random() * 0.1)
        except subprocess.TimeoutExpired:
            pass
        talk.kill()
        talk.wait()
        talk.stdout.close()
        talk.stderr.close()
        node.ask(f"submit {run} 1", *lines, payload=payload)
        assert node.wait(run)["state"] == "succeeded", (node.state(run), node.log(run))
        assert (node.local / "runs" / run / "outputs/n").read_text() == "x\n"


# --- stopping


STUBBORN = """import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
print('up', os.getpid(), flush=True)
time.sleep(600)
"""


def pids(node, run):
    return [int(line.split()[1]) for line in node.log(run).decode().splitlines() if line.startswith("up ")]


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@each_shell
def each_cancel(node):
    node.submit("c", sys_python(), "-c", STUBBORN, grace_ms=300)
    wait_for(lambda: len(pids(node, "c")) == 2, "both are up")
    node.ask("cancel c 1")
    assert (node.dir("c") / "cancel").exists()
    assert node.state("c").get("cancel") == "1" or node.state("c")["state"] == "cancelled"
    end = node.wait("c")
    assert end_of(end) == ("cancelled", 143, 9, "Cancelled"), end
    assert all(is_gone(pid) for pid in pids(node, "c"))
    before = (node.dir("c") / "exit").read_bytes()
    node.ask("cancel c 1")
    assert (node.dir("c") / "exit").read_bytes() == before
    node.submit("q", "sh", "-c", 'trap "echo bye; exit 0" TERM; echo up $$; sleep 600 & wait')
    wait_for(lambda: pids(node, "q"), "up")
    node.ask("cancel q 1")
    assert end_of(node.wait("q")) == ("cancelled", 143, 0, "Cancelled") and node.log("q").endswith(b"bye\n")


@each_shell
def each_cancel_before_it_begins(node):
    held = f"echo up >{node.w.dir}/up; exec sleep 600".encode()
    node.submit("h", "echo", "ran", layers=[layer({"a": "1"})], apply=held)
    wait_for((node.w.dir / "up").exists, "its tree is being made")
    assert node.state("h")["state"] == "starting"
    node.ask("cancel h 1")
    end = node.wait("h")
    assert end_of(end) == ("cancelled", 143, 0, "Cancelled") and node.log("h") == b"" and "begun" in end["text"], end


def hold(node, run, *words, hold_ms=60000, **more):
    """A run that is ready, and waits."""
    node.submit(run, *(words or ("echo", "ran")), more=f"j_hold_ms={hold_ms}\nj_hosts='h0\nh1'\n", **more)
    return wait_for(lambda: node.state(run).get("held") or "code" in node.state(run), f"{run} is ready")


@each_shell
def each_held(node):
    """One of several hosts: nothing runs before it is told to go, and what is told once stays so."""
    hold(node, "go", "sh", "-c", "cat $DLRUN_HOSTFILE; exec sleep 600", timeout_ms=3600000)
    state = node.state("go")
    assert state["state"] == "starting" and "started" not in state, state
    node.ask("go go 1")
    wait_for(lambda: node.log("go") == b"h0\nh1\n", "it runs")
    state = node.running("go")
    assert state.get("go") == "1" and "held" not in state and not state.get("text"), state
    node.ask("go go 1")
    refused("busy", lambda: node.ask("cancel go 1 drop"))
    node.ask("cancel go 1 peer")
    assert end_of(node.wait("go")) == ("cancelled", 143, 15, "PeerEnded"), node.state("go")
    node.ask("go go 1")
    hold(node, "drop")
    node.ask("cancel drop 1 drop")
    assert end_of(node.wait("drop")) == ("failed", 125, 0, "Interrupted"), node.state("drop")
    refused("gone", lambda: node.ask("go drop 1"))
    node.ask("cancel early 1 drop")
    hold(node, "early")
    assert end_of(node.state("early")) == ("failed", 125, 0, "Interrupted"), node.state("early")
    assert "supervisor" not in node.state("early")
    hold(node, "late", hold_ms=300)
    assert end_of(node.wait("late")) == ("failed", 125, 0, "Interrupted"), node.state("late")
    refused("gone", lambda: node.ask("go late 1"))
    hold(node, "mine")
    node.ask("cancel mine 1")
    node.ask("cancel mine 1 peer")
    assert end_of(node.wait("mine")) == ("cancelled", 143, 0, "Cancelled"), node.state("mine")
    for run in ("drop", "early", "late", "mine"):
        assert node.log(run) == b"", (run, node.log(run))
    refused("missing", lambda: node.ask("go nowhere 1"))
    refused("usage", lambda: node.ask("cancel mine 1 why"))


@each_shell
def each_held_race(node):
    """Told to go and taken back at the same time: one of the two, as both hear it."""
    for i in range(6):
        run = f"r{i}"
        hold(node, run, "sh", "-c", "echo ran; exec sleep 600")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            said = [pool.submit(node.ask, line) for line in (f"go {run} 1", f"cancel {run} 1 drop")]
            went, dropped = (future.exception() is None for future in said)
        assert went != dropped, said
        if went:
            wait_for(lambda: node.log(run) == b"ran\n", "it runs")
            node.ask(f"cancel {run} 1")
        end = node.wait(run)
        assert (end["reason"], node.log(run)) == (("Cancelled", b"ran\n") if went else ("Interrupted", b"")), end


def withdrawn(node, run, attempt=1):
    line, = node.ask(f"withdraw {run} {attempt}")
    assert line.startswith("withdrawn "), line
    return line.split()[1]


@each_shell
def each_withdraw(node):
    """What has not begun never will, and says so again; what has begun goes on."""
    gate = node.w.dir / "gate"
    held = f"echo up >{node.w.dir}/up; until [ -e {gate} ]; do sleep 0.05; done".encode()
    node.submit("w", "echo", "ran", layers=[layer({"a": "1"})], apply=held)
    wait_for((node.w.dir / "up").exists, "its tree is being made")
    assert withdrawn(node, "w") == "yes"
    assert end_of(node.wait("w")) == ("failed", 125, 0, "Interrupted"), node.state("w")
    assert node.log("w") == b"" and withdrawn(node, "w") == "yes"
    gate.touch()
    # It comes behind its withdrawal.
    assert withdrawn(node, "early") == "absent" == withdrawn(node, "early")
    node.submit("early", "echo", "ran")
    assert end_of(node.state("early")) == ("failed", 125, 0, "Interrupted") and node.log("early") == b"", node.state("early")
    node.submit("runs", "sh", "-c", "echo ran; exec sleep 600", timeout_ms=3600000)
    wait_for(lambda: node.log("runs") == b"ran\n", "it runs")
    assert withdrawn(node, "runs") == "no" and "cancel" not in node.state("runs")
    node.ask("cancel runs 1")
    node.wait("runs")
    assert withdrawn(node, "runs") == "no"
    node.submit("done", "true")
    assert end_of(node.wait("done"))[0] == "succeeded" and withdrawn(node, "done") == "no"
    hold(node, "ready")
    assert withdrawn(node, "ready") == "yes"
    assert end_of(node.wait("ready")) == ("failed", 125, 0, "Interrupted") and node.log("ready") == b"", node.state("ready")
    refused("gone", lambda: node.ask("go ready 1"))
    hold(node, "told", "sh", "-c", "echo ran; exec sleep 600", timeout_ms=3600000)
    node.ask("go told 1")
    assert withdrawn(node, "told") == "no"
    wait_for(lambda: node.log("told") == b"ran\n", "it runs")
    node.ask("cancel told 1")
    node.wait("told")


@each_shell
def each_withdraw_race(node):
    """Taken back at any moment of its start, by two at once: it has run, or it was taken back."""
    seen = set()
    for i in range(16):
        run = f"r{i}"
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            begun = pool.submit(node.submit, run, "sh", "-c", "echo ran")
            time.sleep(i * 0.02)
            said = {f.result() for f in [pool.submit(withdrawn, node, run) for _ in range(2)]}
            begun.result()
        end = node.wait(run)
        assert len(said) == 1 and withdrawn(node, run) in said, (said, end)
        seen |= said
        assert (end["reason"], node.log(run)) == (("Completed", b"ran\n") if "no" in said else ("Interrupted", b"")), (said, end)
    assert seen & {"yes", "absent"}, seen


@each_shell
def each_withdraw_killed(node):
    """Whoever took it back died between two steps: it does not begin, and the next who asks hears the same."""
    gate = node.w.dir / "gate"
    wait = f"until [ -e {gate} ]; do sleep 0.02; done".encode()
    node.submit("k", "echo", "ran", layers=[layer({"a": "1"})], apply=wait)
    at = node.local / "runs/k/1"
    (at / ".begin").rename(at / "late")
    gate.touch()
    assert end_of(node.wait("k")) == ("failed", 125, 0, "Interrupted") and node.log("k") == b"", node.state("k")
    assert withdrawn(node, "k") == "yes"


@each_shell
def each_limit(node):
    node.submit("t1", "sh", "-c", "echo up $$; sleep 600", timeout_ms=4000, grace_ms=20000, retries=3)
    node.submit("t2", sys_python(), "-c", STUBBORN, timeout_ms=5000, grace_ms=100)
    saver = "import signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(print('saved')))\nprint('up', flush=True)\n" \
            "time.sleep(600)\n"
    node.submit("t3", sys_python(), "-c", saver, timeout_ms=25000, sig="USR1", before_ms=20000)
    node.submit("t4", "true", timeout_ms=3600000)
    end = node.wait("t1")
    assert end_of(end) == ("failed", 124, 15, "Timeout") and end["text"] == "it reached its time limit of 4 s", end
    assert "next" not in end and not node.dir("t1", 2).exists()
    assert end_of(node.wait("t2")) == ("failed", 124, 9, "Timeout") and all(is_gone(p) for p in pids(node, "t2"))
    assert end_of(node.wait("t3")) == ("succeeded", 0, 0, "Completed"), node.state("t3")
    assert node.log("t3") == b"up\nsaved\n"
    node.wait("t4")
    limit_is_no_more(node, "t4")


def limit_is_no_more(node, run):
    """What counts its time says who it is, at the latest when the program has ended, and is gone."""
    file = node.dir(run) / ".limit"
    pid = wait_for(lambda: file.exists() and re.match(r"pid=(\d+):.*\n", file.read_text()), "its limit").group(1)
    wait_for(lambda: is_gone(int(pid)), "its limit is no more")


@each_shell
def each_limit_that_begins_late(node):
    """The program has ended before what counts its time is at work."""
    begin = b"job_limited() {\n\tdir=$1\n"
    assert begin in RUNNER
    node.runner.write_bytes(RUNNER.replace(begin, begin + b"\tuntil [ -e \"$dir/exit\" ]; do sleep 0.1; done\n", 1))
    node.submit("t", "true", timeout_ms=3600000)
    assert end_of(node.wait("t")) == ("succeeded", 0, 0, "Completed")
    limit_is_no_more(node, "t")


@each_shell
def each_left_behind(node):
    node.submit("b", "sh", "-c", "setsid sleep 600 & echo up $!; sleep 600 & echo up $!; exit 5")
    assert end_of(node.wait("b")) == ("failed", 5, 0, "Error")
    assert len(pids(node, "b")) == 2 and all(is_gone(p) for p in pids(node, "b"))
    assert "left processes behind" in (node.dir("b") / "notes").read_text()


@each_shell
def each_tenth_attempt(node):
    """What works for the tenth attempt does not work for the first."""
    jobs = b'job_asleep() { exec sleep 600; }\njob_launched() { (launch "$1" asleep) >/dev/null; }\njob_probe() { workers_of "$1"; echo "$family"; }\n'
    node.runner.write_bytes(RUNNER.replace(b"d_runner=$0\n", jobs + b"d_runner=$0\n", 1))

    def runs(word, of):
        return subprocess.run([*node.argv()[:3], "-", node.local, word, of], env=node.env, check=True, timeout=30,
                              stdout=subprocess.PIPE, text=True).stdout
    first, tenth = node.dir("t", 1), node.dir("t", 10)
    first.mkdir(parents=True)
    for of in (first, tenth):
        runs("launched", of)

    def workers(of):
        return {int(pid) for pid in runs("probe", of).split()}

    def alone():
        """setsid, which has the same words, may fork and end a moment later."""
        both = workers(first), workers(tenth)
        return both if len(both[0]) == len(both[1]) == 1 else None
    both = wait_for(alone, "one of each at work")
    assert not both[0] & both[1], both


@each_shell
def each_retry(node):
    line = 'echo $DLRUN_ATTEMPT $S >> "$DLRUN_OUTPUT_DIR/n"; echo x >new; ls; test $DLRUN_ATTEMPT = 3'
    node.submit("r", "sh", "-c", line, retries=5, layers=[layer({"a": "1"})], secrets=b"export S='s'\n")
    assert end_of(node.wait("r", 3)) == ("succeeded", 0, 0, "Completed"), node.log("r", 3)
    ends = [node.wait("r", n) for n in (1, 2, 3)]
    assert [end_of(e)[:2] for e in ends] == [("failed", 1), ("failed", 1), ("succeeded", 0)], ends
    assert [e.get("next") for e in ends] == ["2", "3", None], ends
    assert [node.log("r", n) for n in (1, 2, 3)] == [b"a\nnew\n"] * 3
    assert (node.local / "runs/r/outputs/n").read_text() == "1 s\n2 s\n3 s\n"
    node.submit("u", "false", retries=2)
    assert end_of(node.wait("u", 3))[:2] == ("failed", 1), node.state("u", 3)
    assert not node.dir("u", 4).exists()
    starts = [int(node.state("u", n)["started"]) for n in (1, 2, 3)]
    assert starts == sorted(starts)


@each_shell
def each_retry_with_gpus(node):
    """The next attempt gets what this one had, and nothing of its locks."""
    node.runner.write_bytes(RUNNER.replace(b"dgpu_dir=''", f"dgpu_dir={node.w.dir}/gpus".encode(), 1))
    node.w.write("smi/nvidia-smi", "#!/bin/sh\ncase $* in *query-gpu*) echo '0, GPU-1, 00000000:01:00.0, 1, x'; echo '1, GPU-2, 00000000:02:00.0, 1, x' ;; esac\n",
                 0o755, base=node.w.dir)
    # The shell closes its end of the pipe while ls looks at it, and ls says so.
    line = "ls -l /proc/$$/fd 2>/dev/null | grep -c /gpu.GPU; test $DLRUN_ATTEMPT = 3"
    node.submit("g", "sh", "-c", line, retries=5, more="j_gpus=2\n", env={"PATH": f"{node.w.dir}/smi:{node.env['PATH']}"})
    assert end_of(node.wait("g", 3)) == ("succeeded", 0, 0, "Completed"), [node.state("g", n) for n in (1, 2, 3)]
    logs = [node.log("g", n) for n in (1, 2, 3)]
    # Two of each GPU: the lock that all share, and its own.
    assert logs == [b"4\n"] * 3, logs


@each_shell
def each_cancel_between_attempts(node):
    for i in range(4):
        run = f"b{i}"
        node.submit(run, "false", retries=1000)
        wait_for(lambda: node.dir(run, 2).exists(), "a second attempt")
        newest = max(int(p.name) for p in (node.local / "runs" / run).glob("[1-9]*"))
        node.ask(f"cancel {run} {max(1, newest - 1)}")

        def over():
            n = max(int(p.name) for p in (node.local / "runs" / run).glob("[1-9]*"))
            state = node.state(run, n)
            return state["state"] if "code" in state and "next" not in state else None
        assert wait_for(over, "the end", 90) == "cancelled"
        settled = sorted(p.name for p in (node.local / "runs" / run).glob("[1-9]*"))
        assert node.ask("list") and sorted(p.name for p in (node.local / "runs" / run).glob("[1-9]*")) == settled


# --- killed


def process(state, key):
    pid, _, start = state[key].partition(":")
    return int(pid)


@each_shell
def each_supervisor_killed(node):
    os.mkfifo(node.w.dir / "gate")
    node.submit("s", "sh", "-c", f"echo up $$; read x <{node.w.dir}/gate; exit 3")
    wait_for(lambda: pids(node, "s"), "up")
    state = node.running("s")
    supervisor = process(state, "supervisor")
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: is_gone(supervisor), "its end")
    for i in range(3):
        state = node.state("s")
        assert state["state"] == "running" and "supervisor" in state["text"], state
        if i == 0:
            os.kill(process(state, "watcher"), signal.SIGKILL)
    with open(node.w.dir / "gate", "w"):
        pass
    end = node.wait("s")
    assert end_of(end) == ("lost", 125, 0, "Lost") and end["text"] == "its supervisor was killed", end
    # Its limit does not wait for nobody.
    node.submit("l", "sleep", "600", timeout_ms=3600000)
    state = node.running("l")
    limit = wait_for(lambda: re.match(r"pid=(\d+):.*\n", (node.dir("l") / ".limit").read_text() if (node.dir("l") / ".limit").exists() else ""), "its limit")
    for victim in ("supervisor", "watcher", "program"):
        os.kill(process(state, victim), signal.SIGKILL)
    assert end_of(node.wait("l"))[0] == "lost"
    wait_for(lambda: is_gone(int(limit.group(1))), "its limit is no more")
    # With its watcher alive, nobody has to ask.
    node.submit("w", "sleep", "600")
    state = node.running("w")
    os.kill(process(state, "supervisor"), signal.SIGKILL)
    os.kill(process(state, "program"), signal.SIGKILL)
    wait_for((node.dir("w") / "exit").exists, "its watcher writes it down")
    assert end_of(node.state("w"))[0] == "lost"
    # And it can still be cancelled.
    node.submit("c", "sleep", "600")
    state = node.running("c")
    os.kill(process(state, "supervisor"), signal.SIGKILL)
    node.ask("cancel c 1")
    assert end_of(node.wait("c"))[0] == "cancelled" and is_gone(process(state, "program"))


@each_shell
def each_supervisor_killed_early(node):
    for i, victims in enumerate((["supervisor"], ["supervisor", "watcher"])):
        run = f"e{i}"
        held = f"echo up >{node.w.dir}/up{i}; read x <{node.w.dir}/gate{i}".encode()
        os.mkfifo(node.w.dir / f"gate{i}")
        node.submit(run, "echo", "ran", layers=[layer({"a": "1"})], apply=held)
        wait_for((node.w.dir / f"up{i}").exists, "its tree is being made")
        state = wait_for(lambda: (lambda s: s if "watcher" in s else None)(node.state(run)), "it has a watcher")
        for victim in victims:
            os.kill(process(state, victim), signal.SIGKILL)
        for victim in victims:
            wait_for(lambda: is_gone(process(state, victim)), f"the end of its {victim}")
        # Who noticed that may have ended what would read from it.
        gate = os.open(node.w.dir / f"gate{i}", os.O_RDWR)
        os.write(gate, b"\n")
        end = node.wait(run)
        os.close(gate)
        assert end_of(end) == ("failed", 125, 0, "Interrupted") and "begun" in end["text"], end
        node.submit(run, "echo", "ran")
        assert node.state(run) == end and node.log(run) == b""


@each_shell
def each_supervisor_killed_as_it_starts_the_program(node):
    """What becomes the program finds nobody who would write down how it ends."""
    part = [line for line in RUNNER.splitlines() if line == b"job_program() {"]
    node.runner.write_bytes(RUNNER.replace(part[0], part[0] + f"\nread -r x <{node.w.dir}/gate".encode(), 1))
    os.mkfifo(node.w.dir / "gate")
    node.submit("p", "echo", "ran")

    def begun():
        pid = process(node.state("p"), "supervisor")
        return pid if Path(f"/proc/{pid}/task/{pid}/children").read_text().split() and \
            b"finish" in Path(f"/proc/{pid}/cmdline").read_bytes() else None
    reaper = wait_for(begun, "its reaper")
    os.kill(reaper, signal.SIGKILL)
    wait_for(lambda: is_gone(reaper), "its end, which may come later than the signal")
    # Whoever looks first may have ended what would read from it.
    gate = os.open(node.w.dir / "gate", os.O_RDWR)
    os.write(gate, b"\n")
    assert end_of(node.wait("p")) == ("failed", 125, 0, "Interrupted") and node.log("p") == b"", node.state("p")
    os.close(gate)


@each_shell
def each_reboot_and_pid_reuse(node):
    for run, old, new, text in (("b1", r"(?m)^boot=.*", "boot=another", "restarted"),
                                ("b2", r"(?m)^(program|supervisor)=(\d+):.*", r"\1=\2:1", "supervisor was killed")):
        node.submit(run, "sleep", "600")
        state = node.running(run)
        for victim in ("supervisor", "watcher"):
            os.kill(process(state, victim), signal.SIGKILL)
        file = node.dir(run) / "state"
        file.write_text(re.sub(old, new, file.read_text()))
        end = node.state(run)
        assert end_of(end) == ("lost", 125, 0, "Lost") and text in end["text"], end
        os.kill(process(state, "program"), signal.SIGKILL)


# --- looking


class Follower:
    def __init__(self, node, run, offset=0, marks=0, n=1, **more):
        self.talk = node.open(**more)
        self.talk.stdin.write(f"log {run} {n} {offset} {marks} follow\n.\n".encode())
        self.talk.stdin.flush()
        out = b""
        while b"\n.\n" not in out:
            out += os.read(self.talk.stdout.fileno(), 1)
        self.out = b""

    def until(self, text, seconds=20):
        end = time.monotonic() + seconds
        while text not in self.out:
            assert select.select([self.talk.stdout], [], [], max(0, end - time.monotonic()))[0], (text, self.out)
            more = os.read(self.talk.stdout.fileno(), 65536)
            assert more, (text, self.out)
            self.out += more

    def rest(self, close=False):
        """What still comes; the client stays until the end, or not."""
        stdin, self.talk.stdin = self.talk.stdin, None
        if close:
            stdin.close()
        out, err = self.talk.communicate(timeout=30)
        stdin.close()
        return self.out + out, err.decode()


@each_shell
def each_log(node):
    os.mkfifo(node.w.dir / "gate")
    node.submit("l", "sh", "-c", f"echo one; echo two; read x <{node.w.dir}/gate; echo three; printf end")
    wait_for(lambda: node.log("l") == b"one\ntwo\n", "its first lines")
    _, answer, err, _ = node.talk("log l 1 4 0\n")
    lines = err.decode().splitlines()
    assert answer == b"two\n" and lines[-2:] == ["end 8 running", f"{MARK} done"], (answer, lines)
    assert all(re.fullmatch(r"m \d{13} \d+", line) for line in lines[:-2]), lines
    followers = [Follower(node, "l"), Follower(node, "l", 4), Follower(node, "l", 8), Follower(node, "l", 100)]
    followers[0].until(b"one\ntwo\n")
    followers[1].until(b"two\n")
    began = time.monotonic()
    with open(node.w.dir / "gate", "w"):
        pass
    followers[2].until(b"three\n")
    late = time.monotonic() - began
    for follower, wanted in zip(followers, (b"one\ntwo\nthree\nend", b"two\nthree\nend", b"three\nend", b"")):
        out, err = follower.rest()
        assert out == wanted, (out, wanted)
        lines = err.splitlines()
        assert lines[-3].startswith("attempt l/1 succeeded ") and " code=0 " in lines[-3], lines
        assert lines[-2:] == ["end 17 succeeded", f"{MARK} done"], lines
        assert follower.talk.returncode == 0
        if not wanted:
            continue
        marks = [tuple(map(int, line.split()[1:])) for line in lines[:-3]]
        assert marks == sorted(marks) and marks[-1][1] == 17, lines
    assert late < 5, late
    _, answer, err, _ = node.talk("log l 1 0 0 follow\n")
    assert answer == b"one\ntwo\nthree\nend" and "end 17 succeeded" in err.decode()
    assert node.ask("tail l 1 2") == ["offset 8"] and node.ask("tail l 1 100") == ["offset 0"] and node.ask("tail l 1 0") == ["offset 17"]


def waits_for_lock(node, pid):
    """What waits for the end of an attempt, whatever program that is, has only its lock open as 8."""
    try:
        return os.readlink(f"/proc/{pid}/fd/8").startswith(f"{node.local}/runs/") and os.readlink(f"/proc/{pid}/fd/8").endswith("/lock")
    except OSError:
        return False


def beside(node):
    """Processes of conversations of ours: their command lines name our directory."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes() if entry.isdigit() else b""
        except OSError:
            continue
        if str(node.root).encode() in words and (MARK.encode() in words or words.startswith((b"tail\0", b"flock\0"))) or waits_for_lock(node, entry):
            found.append(words)
    return found


@each_shell
def each_follow_ends_with_its_client(node):
    node.submit("f", "sh", "-c", "echo one; exec sleep 600")
    for how in ("stdin", "all", "killed"):
        follower = Follower(node, "f")
        follower.until(b"one\n")
        assert beside(node)
        if how == "stdin":
            out, err = follower.rest(close=True)
            assert out == b"one\n" and "end 4 running" in err, (out, err)
        elif how == "killed":
            follower.talk.kill()
        for pipe in (follower.talk.stdin, follower.talk.stdout, follower.talk.stderr):
            if pipe:
                pipe.close()
        follower.talk.wait(30)
        wait_for(lambda: not beside(node), f"nothing is left ({how}): {beside(node)}")


@each_shell
def each_follow_whose_bytes_nobody_takes(node):
    """The client has gone, and the pipe stays open, as containerd leaves it of a pod's exec."""
    node.submit("f", "sh", "-c", "echo one; head -c 1000000 /dev/zero; exec sleep 600")
    wait_for(lambda: len(node.log("f")) == 1000004, "its output")
    follower = Follower(node, "f")
    follower.until(b"one\n")
    follower.talk.stdin.close()
    assert follower.talk.wait(30) == -signal.SIGKILL
    wait_for(lambda: not beside(node), "nothing is left")
    follower.talk.stdout.close()
    follower.talk.stderr.close()
    with node.open() as talk:
        talk.stdin.write(b"log f 1 0 0\n.\n")
        talk.stdin.flush()
        while talk.stdout.readline() != b"one\n":
            pass
        talk.stdin.close()
        assert talk.wait(30) == -signal.SIGKILL
        wait_for(lambda: not beside(node), "nothing is left of who does not follow")


@each_shell
def each_slow_reader(node):
    """Nobody is taken for one who has gone while bytes move."""
    node.submit("f", "sh", "-c", "head -c 1500000 /dev/zero")
    node.wait("f")
    with node.open() as talk:
        talk.stdin.write(b"log f 1 0 0\n.\n")
        talk.stdin.close()
        got = 0
        while data := os.read(talk.stdout.fileno(), 100000):
            got += len(data)
            time.sleep(0.8)
        assert talk.wait(30) == 0 and got > 1500000, got


@each_shell
def each_long_log(node):
    """Every byte once, however it falls, to several who follow."""
    node.submit("l", sys_python(), "-c", "import sys, time\nfor i in range(200000):\n    sys.stdout.write('%d\\n' % i)\n"
                "    if i % 20000 == 0: sys.stdout.flush(); time.sleep(0.05)\n")
    wanted = b"".join(b"%d\n" % i for i in range(200000))
    for out, err in [f.rest() for f in [Follower(node, "l") for _ in range(3)]]:
        assert out == wanted, (len(out), len(wanted))
        assert f"end {len(wanted)} succeeded" in err
    assert node.log("l") == wanted


@each_shell
def each_list_and_forget(node):
    record = '{"name":"é \\"x\\"","lines":"a\nb"}'
    for run in ("a", "b"):
        node.submit(run, "true", layers=[layer({"f": "1"})], record=record.encode(), spare="sp 1")
        node.wait(run)
    node.submit("c", "sleep", "600")
    lines = node.ask("list")
    assert [line.split()[:2] for line in lines[::2]] == [["run", "a"], ["run", "b"], ["run", "c"]], lines
    assert [line.split()[:2] for line in lines[1::2]] == [["attempt", "a/1"], ["attempt", "b/1"], ["attempt", "c/1"]], lines
    assert decoded(lines[0].split()[3]) == record and lines[4].split()[3] == "\\0", lines
    assert node.ask("state a/1 zz/1 b/1")[1] == "attempt zz/1 absent"
    node.ask("forget a 1")
    assert not (node.dir("a") / "tree").exists() and node.state("a")["state"] == "succeeded" and (node.dir("a") / "log").exists()
    node.ask("forget b 1 all")
    assert not (node.local / "runs/b").exists() and node.state("b")["state"] == "absent"
    try:
        node.ask("forget c 1 all")
    except Failed as failed:
        assert failed.kind == "busy"
    assert node.state("c")["state"] in ("starting", "running")


# --- beside the program


@each_shell
def each_exec(node):
    own = {"K": "v", "dir": "/nowhere", "value": "own", "quoted": "q'", "start": "s", "line": "l", "nl": "n", "plain": "p"}
    node.submit("e", "sleep", "600", layers=[layer({"d/f": "1"})], cwd="d", set_env=own.items(), before="B=b; export B")
    node.running("e")
    _, answer, err, status = node.talk("exec e 1\nword sh\nword -c\nword " + coded('cat; echo "$K $B $DLRUN_RUN_ID" >&2; pwd; exit 7') + "\n",
                                       b"in \0 put\n")
    assert answer == f"{MARK} go\n".encode() + b"in \0 put\n" + f"{node.dir('e')}/tree/d\n".encode(), answer
    assert err == b"v b e\n" and status == 7, (err, status)
    _, answer, err, status = node.talk("exec e 1\nword env\n")
    assert status == 0 and {f"{k}={v}" for k, v in own.items()} <= set(answer.decode().splitlines()), answer
    _, answer, err, status = node.talk("exec e 1\n", b"echo $((6 * 7))\n", env={"SHELL": "/bin/sh"})
    assert answer == f"{MARK} go\n42\n".encode() and status == 0
    _, answer, err, status = node.talk("exec e 1\nword no-such\n")
    assert status == 127 and b"no-such: command not found" in err, (answer, err, status)
    node.submit("p", "sleep", "600")
    node.running("p")
    for word in ("no-such", "./no-such"):
        _, answer, *_ = node.talk(f"exec p 1\nword {word}\n")
        assert answer.startswith(f"{MARK} fail program {word}:".encode()), answer
    alone = f"exec p 1\nword sh\nword -c\nword {coded('echo on; read -r x; kill -9 $$')}\nalone\n"
    with node.open() as talk:
        talk.stdin.write(alone.encode() + b".\n")
        talk.stdin.flush()
        out, err = talk.stdout.read(), talk.stderr.read()
        assert out.endswith(f"{MARK} go\non\n".encode()) and err == b"" and talk.wait(30) == 137, (out, err)
    with node.open() as talk:
        talk.stdin.write(alone.replace(coded("read -r x"), coded("sleep 600")).encode() + b".\n")
        talk.stdin.flush()
        while talk.stdout.readline() != b"on\n":
            pass
        talk.stdin.close()
        assert talk.wait(30) == 129 and talk.stdout.read() == talk.stderr.read() == b""
    # One that neither reads nor writes, and whose client has gone. A busybox has a tail of its own, and goes by its parent.
    login = [needs("dash"), "-c", '"$@"; :', "login", *node.argv()]
    with subprocess.Popen(login, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=node.env, cwd=node.w.home) as talk:
        talk.stdin.write(f"exec p 1\nword sh\nword -c\nword {coded('echo on $$; exec sleep 600')}\n.\n".encode())
        talk.stdin.flush()
        while not (line := talk.stdout.readline()).startswith(b"on "):
            pass
        pid = int(line.split()[1])
        assert Path(f"/proc/{pid}").exists()
        if "busybox" in node.shell:
            talk.kill()
        else:
            talk.stdout.close()
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the command", 20)
    _, answer, *_ = node.talk("exec nope 1\nword true\n")
    assert answer.startswith(f"{MARK} fail missing ".encode()), answer
    assert node.state("e")["state"] == "running"


@each_shell
def each_terminal(node):
    """It is kept by tmux where there is one, and attached to again."""
    import pty
    needs("tmux")
    holder = 'mkfifo "$DLRUN_ATTEMPT_DIR/.t"; read -r s <"$DLRUN_ATTEMPT_DIR/.t"; exit "$s"'
    node.submit("t", "sh", "-c", holder, set_env=[("dir", "/nowhere"), ("value", "own")])
    node.running("t")
    inside = 'echo in-$((40 + 2)) $DLRUN_RUN_ID $dir $value; read -r l; echo "$l" >"$DLRUN_ATTEMPT_DIR/.t"'
    request = f"shell t 1\nword sh\nword -c\nword {coded(inside)}\n.\n".encode()
    env = {**node.env, "TERM": "xterm", "TMUX_TMPDIR": str(node.w.dir), "LANG": "C.UTF-8"}
    for last in (False, True):
        pid, master = pty.fork()
        if pid == 0:
            os.chdir(node.w.home)
            os.execve(node.argv()[0], node.argv(), env)
        os.write(master, request)
        seen = b""
        while b"in-42 t /nowhere own" not in seen:
            assert select.select([master], [], [], 30)[0], seen
            seen += os.read(master, 65536)
        assert f"{MARK} go".encode() in seen
        if last:
            os.write(master, b"9\r")
            try:
                while select.select([master], [], [], 30)[0] and os.read(master, 65536):
                    pass
            except OSError:
                pass  # it is over
        else:
            # The connection drops.
            os.kill(pid, signal.SIGHUP)
        os.close(master)
        os.waitpid(pid, 0)
        if not last:
            assert node.state("t")["state"] == "running"
    end = node.wait("t")
    assert end_of(end) == ("failed", 9, 0, "Error"), end


# --- nodes that lack something


@each_shell
def each_missing_tool(node):
    """A PATH of our own, without some of them."""
    few = node.w.dir / "few"
    few.mkdir()
    for name in ("sh awk cat chmod cp cut date dd df du env flock grep gzip head id kill ls mkdir mv nice rm rmdir sed setsid sha256sum sleep "
                 "sort stat stty tail tar touch tr uname wc").split():
        (few / name).symlink_to(node.shell if name == "sh" else needs(name))
    for name in ("tar", "gzip", "flock", "sha256sum"):
        (few / name).rename(few / f"no-{name}")
        facts, *_ = node.talk("state\n", env={"PATH": str(few)})
        # busybox has its own.
        if f"missing {name}" in facts:
            try:
                node.submit("m", "true", layers=[layer({"a": "1"})], env={"PATH": str(few)})
                raise AssertionError(f"taken without {name}")
            except Failed as failed:
                text = "none of flock, perl and python3 is there" if name == "flock" else f"{name} is not there"
                assert (failed.kind, failed.text) == ("tool", text), failed
        else:
            assert "busybox" in node.shell, facts
        (few / f"no-{name}").rename(few / name)
    (few / "setsid").unlink()
    node.submit("n", "sh", "-c", "kill -9 $$", layers=[layer({"a": "1"})], env={"PATH": str(few)})
    assert end_of(node.wait("n")) == ("failed", 137, 9, "Signal"), (node.state("n"), (node.dir("n") / "notes").read_text())


def by_other_lockers():
    """On hosts without flock(1), by what takes its locks there."""
    def make(function, shell, locker):
        def test(w):
            node = Node(w, shell)
            w.env["PATH"] = without_flock(w, locker)
            node.env["PATH"] = f"{w.dir}/bin:{w.env['PATH']}"
            assert "missing flock" not in node.talk("state\n")[0]
            try:
                function(node)
            finally:
                node.close()
        return test
    for function in (each_run, each_submit_at_once, each_cancel, each_limit, each_retry, each_retry_with_gpus, each_supervisor_killed,
                     each_supervisor_killed_early, each_log, each_follow_ends_with_its_client):
        for shell, locker in (("dash", "python3"), ("bash", "perl"), ("busybox", "perl")):
            globals()[f"{function.__name__.replace('each_', 'test_', 1)}_by_{locker}_{shell}"] = make(function, shell, locker)


by_other_lockers()


def test_everything_of_busybox(w):
    """A node whose tools are all busybox's, as far as Debian's is built."""
    box = needs("busybox")
    node = Node(w, "busybox")
    few = w.dir / "few"
    few.mkdir()
    for name in subprocess.run([box, "--list"], capture_output=True, text=True, check=True).stdout.split():
        (few / name).symlink_to(box)
    if not (few / "flock").exists():
        (few / "flock").symlink_to(needs("flock"))
    node.env["PATH"] = str(few)
    try:
        node.submit("b", "sh", "-c", "cat a; ls; sleep 2; exit 3", layers=[layer({"a": "1\n"}, whiteouts=["b"])], timeout_ms=60000)
        out, err = Follower(node, "b").rest()
        assert out == b"1\na\n" and "end 4 failed" in err, (out, err)
        assert end_of(node.wait("b")) == ("failed", 3, 0, "Error")
        node.submit("k", "sh", "-c", "setsid sleep 600 & echo up $!; exec sleep 600")
        wait_for(lambda: pids(node, "k"), "up")
        node.ask("cancel k 1")
        assert end_of(node.wait("k"))[:2] == ("cancelled", 143) and all(is_gone(p) for p in pids(node, "k"))
        node.submit("s", "sh", "-c", "kill -9 $$")
        assert end_of(node.wait("s")) == ("failed", 137, 9, "Signal")
    finally:
        node.close()


@each_shell
def each_disk_that_is_not_known(node):
    """As in a chroot, where df finds no mount: that is no full disk."""
    (node.w.dir / "bin/df").write_text("#!/bin/sh\necho \"df: $2: can't find mount point\" >&2\nexit 1\n")
    (node.w.dir / "bin/df").chmod(0o755)
    facts, _, _, _ = node.talk("nonsense\n")
    assert not [line for line in facts if line.startswith("free ")], facts
    node.submit("d", "sh", "-c", "echo x >made; echo ran; exit 3", layers=[layer({"a": "1"})], need=1 << 20)
    end = node.wait("d")
    assert end_of(end) == ("failed", 3, 0, "Error") and "disk" not in end["text"], end
    assert (node.local / "runs/d/outputs/made").read_text() == "x\n"


# Its shell takes no df but its own.
del globals()["test_disk_that_is_not_known_busybox"]


@each_shell
def each_full_disk(node):
    """The end is written down, into room that was kept."""
    if os.getuid() != 0:
        raise Skip("needs root to mount")
    node.root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "none", str(node.root)], capture_output=True, check=False).returncode:
        raise Skip("mounts are not allowed")
    try:
        node.submit("f", "sh", "-c", 'echo up; dd if=/dev/zero of="$DLRUN_OUTPUT_DIR/big" bs=4k 2>/dev/null; while echo more; do :; done; exit 9')
        end = node.wait("f", seconds=60)
        assert end_of(end) == ("failed", 9, 0, "Error") and "disk is full" in end["text"], end
        assert node.log("f").startswith(b"up\n")
        try:
            node.submit("g", "true")
            raise AssertionError("taken on a full disk")
        except Failed as failed:
            assert failed.kind == "disk", failed
        assert node.state("g")["state"] == "absent"
    finally:
        node.close()
        subprocess.run(["umount", "-l", str(node.root)], check=False)


def test_sh_is_ksh(w):
    """Its sums are of 32 bits: another shell does the work."""
    node = Node(w, "mksh")
    try:
        node.submit("k", "sh", "-c", "kill -9 $$")
        assert end_of(node.wait("k")) == ("failed", 137, 9, "Signal")
        assert "shell dash" in node.talk("state\n")[0] or "shell bash" in node.talk("state\n")[0]
    finally:
        node.close()


def test_home_of_several_nodes(w):
    """Locks and pids are this node's own, elsewhere; layers are everybody's."""
    node = Node(w, "dash")
    node.root.mkdir()
    (node.root / "shared").touch()
    facts, *_ = node.talk("state\n")
    local = Path(next(f for f in facts if f.startswith("local ")).split(" ", 1)[1])
    assert local == Path(f"/var/tmp/dlrun-{os.getuid()}/on") / os.uname().nodename
    assert (node.root / "on" / os.uname().nodename).is_symlink() and local.is_dir()


# --- login shells


LOGINS = {"sh": ["sh", "-c"], "bash": ["bash", "-c"], "zsh": ["zsh", "-c"], "fish": ["fish", "-c"], "tcsh": ["tcsh", "-c"],
          "dash": ["dash", "-c"], "mksh": ["mksh", "-c"]}


def boot(w, login, root="~/.dlrun", payload=b"", size=None, **env):
    command = f"exec sh -c '{BOOT}' dlrun {root} {HASH} {len(RUNNER) if size is None else size} {MARK}"
    done = subprocess.run([needs(LOGINS[login][0]), *LOGINS[login][1:], command], input=payload, capture_output=True, timeout=60,
                          env={**w.env, **env}, cwd=w.home, check=False)
    return done.stdout.decode(), done.stderr.decode()


def check_boot(w, login):
    for path in ("~/.dlrun", str(w.dir / "abs")):
        where = w.home / ".dlrun" if path.startswith("~") else Path(path)
        out, err = boot(w, login, path, RUNNER)
        assert out == f"{MARK} send\n{MARK} stored\n", (out, err)
        out, err = boot(w, login, path, b"state\n.\n")
        assert out.startswith(f"{MARK} hello 1\n") and out.endswith(f"\n.\n{MARK} done\n") and f"root {where}\n" in out, (out, err)
        assert (where / "bin" / HASH).read_bytes() == RUNNER and len(list((where / "bin").iterdir())) == 1
    for payload in (RUNNER[:-1], RUNNER[:-1] + b"x", b""):
        out, err = boot(w, login, "~/cut", payload)
        assert out.startswith(f"{MARK} send\n{MARK} fail disk ") and not list((w.home / "cut/bin").iterdir()), (out, err)
    w.write("file", "", base=w.home)
    out, err = boot(w, login, "~/file/x", RUNNER)
    assert out.startswith(f"{MARK} fail io "), (out, err)


for login_name in LOGINS:
    globals()[f"test_boot_{login_name}"] = lambda w, login=login_name: check_boot(w, login)


if __name__ == "__main__":
    main()
