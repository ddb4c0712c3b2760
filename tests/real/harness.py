# SPDX-License-Identifier: Apache-2.0
"""What the real tests share: a world of their own for each test, and an independent reader of images.

A test file defines functions named test_* that take a World, and ends with `main()`. Tests run in
parallel; each has its own HOME, state and tree, and everything it starts ends with it.

    tests/real/FILE.py DLRUN [NAME…]

A test that is not over within its limit fails, with the place where it stood, and what it started is killed; the others
go on. Without
`tests/run --all` a test that there is for each shell runs in some of them (of_other_shells).
"""

import atexit
import concurrent.futures
import ctypes
import hashlib
import inspect
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
import zlib
from pathlib import Path

from stopwatch import Stopwatch, running_time  # noqa: F401

NOBODY = 65534
SHELLS = ("dash", "busybox", "bash")
DEADLINE_S = 300
ALL = os.environ.get("DLRUN_TESTS") == "all"
# Of one test, by a clock that leaves out standstills of the machine. Many times what any needs: it ends what hangs, and judges no pace.
LIMIT_S = int(os.environ.get("DLRUN_TEST_LIMIT", 3600 if ALL else 900))
# What a test that was told to end gets for it.
LEAVE_S = 30
# A program that ends by SIGINT; a second one would cut its last words.
INTERRUPTED = """import time
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(0.5)
    print("saved", flush=True)
"""


class Skip(Exception):
    """The kernel or the file system does not offer what the test needs."""


class Missing(Exception):
    """A program that the tests install is not there: a failure in CI, a visible skip elsewhere."""


class TimeUp(BaseException):
    """Raised inside a test that has passed its limit."""


def needs(program):
    found = shutil.which(program) or os.environ.get(program.upper())
    if not found:
        raise Missing(f"{program} is not installed")
    return found


class _Counted(subprocess.Popen):
    """Adds what a child has computed, with those that it waited for, to the thread that waits for it."""
    waited = threading.local()

    def _try_wait(self, flags):
        try:
            pid, status, use = os.wait4(self.pid, flags)
        except ChildProcessError:
            return self.pid, 0
        if pid:
            self.waited.cpu_s = getattr(self.waited, "cpu_s", 0.0) + use.ru_utime + use.ru_stime
        return pid, status


subprocess.Popen = _Counted


def cpu_s():
    """Seconds of CPU of this thread and of the children that it has waited for; what outlives its parent is not among them."""
    return time.thread_time() + getattr(_Counted.waited, "cpu_s", 0.0)


class Result:
    def __init__(self, rc, out, err):
        self.rc, self.out_bytes, self.err_bytes = rc, out, err
        self.out = out.decode("utf-8", "surrogateescape")
        self.err = err.decode("utf-8", "surrogateescape")

    def __repr__(self):
        return f"exit {self.rc}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class World:
    """A HOME, the XDG directories and a tree below one temporary directory."""

    def __init__(self, dlrun, name):
        self.dir = Path(tempfile.mkdtemp(prefix=f"dlrun-{name[:30]}-")).resolve()
        self.dir.chmod(0o755)
        self.dlrun = dlrun
        self.home = self.dir / "home"
        self.tree = self.dir / "tree"
        self.home.mkdir()
        self.tree.mkdir()
        self.user = None
        self.env = {
            "HOME": str(self.home),
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LC_ALL": "C.UTF-8",
            "TERM": "dumb",
            # Nothing is to wait here but where a test is about that: held.py.
            "DLRUN_OFFLINE": "fail",
            "TMPDIR": str(self.dir),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.com",
            "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.com",
        }
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"):
            if name in os.environ:
                self.env[name] = os.environ[name]
        (self.home / ".gitconfig").write_text(
            "[init]\n\tdefaultBranch = main\n[protocol \"file\"]\n\tallow = always\n"
            "[gc]\n\tauto = 0\n[safe]\n\tdirectory = *\n")

    # --- directories of dlrun

    @property
    def state(self):
        return Path(self.env.get("XDG_STATE_HOME", self.home / ".local/state")) / "dlrun"

    @property
    def cache(self):
        return Path(self.env.get("XDG_CACHE_HOME", self.home / ".cache")) / "dlrun"

    @property
    def layout(self):
        return Path(self.env.get("XDG_DATA_HOME", self.home / ".local/share")) / "dlrun" / "oci"

    # --- doing things

    def as_nobody(self):
        """Permission bits mean nothing to root: the rest of the test runs as another user."""
        if os.getuid() == 0:
            subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(self.dir)], check=True)
            self.user = NOBODY
            own = self.dir / "dlrun-bin"
            # Not written from here: what another test starts meanwhile would hold it open, and nobody can run it then.
            subprocess.run(["install", "-m", "755", self.dlrun, own], check=True)
            self.dlrun = str(own)

    def command(self, argv, cwd=None, env=None, timeout=DEADLINE_S, preexec=None, **more):
        merged = {**self.env, **(env or {})}
        merged = {k: v for k, v in merged.items() if v is not None}
        who = {"user": self.user, "group": self.user, "extra_groups": []} if self.user else {}
        done = subprocess.run([os.fspath(a) for a in argv], cwd=cwd or self.tree, env=merged,
                              stdin=more.pop("stdin", subprocess.DEVNULL), capture_output=True,
                              timeout=timeout, preexec_fn=preexec, **who, **more)
        return Result(done.returncode, done.stdout, done.stderr)

    def run(self, *args, **options):
        return self.command([self.dlrun, *args], **options)

    def ok(self, *args, **options):
        result = self.run(*args, **options)
        assert result.rc == 0, f"dlrun {' '.join(map(str, args))}: {result!r}"
        return result

    def git(self, *args, cwd=None, check=True, **options):
        result = self.command(["git", *args], cwd=cwd, **options)
        assert not check or result.rc == 0, f"git {args}: {result!r}"
        return result

    def write(self, path, content=b"", mode=None, base=None):
        path = (base or self.tree) / path if not isinstance(path, bytes) else \
            Path(os.fsdecode(os.path.join(os.fsencode(base or self.tree), path)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        if mode is not None:
            path.chmod(mode)
        return path

    def repo(self, files=None, commit=True):
        """A repository in the tree with these files committed."""
        self.git("init", "-q")
        for path, content in (files or {"a.py": "print('a')\n"}).items():
            self.write(path, content)
        if commit:
            self.git("add", "-A")
            self.git("commit", "-qm", "start")

    def commit(self, message="more"):
        self.git("add", "-A")
        self.git("commit", "-qm", message)

    # --- what dlrun made

    def push(self, *args, to=None, **options):
        to = to or self.dir / "out"
        result = self.ok("push", "--to", f"oci:{to}", *args, **options)
        match = re.fullmatch(r"oci:(.*)@(sha256:[0-9a-f]{64})\n", result.out)
        assert match, f"push printed {result.out!r}"
        image = Image(to, match.group(2))
        image.said = result
        return image

    def refused(self, *args, id, rc, says=(), **options):
        """The command fails in the stated form and leaves nothing behind."""
        before = self.traces()
        result = self.run(*args, **options)
        assert result.rc == rc, f"exit {rc} was expected: {result!r}"
        check_error_form(result.err, id)
        for text in [says] if isinstance(says, str) else says:
            assert text in result.err, f"{text!r} is not said: {result!r}"
        assert self.traces() == before, f"left behind: {set(self.traces()) ^ set(before)}"
        return result

    def traces(self):
        """Runs and images that exist; caches may come and go."""
        found = []
        for base in (self.state / "runs", self.layout / "blobs/sha256"):
            if base.is_dir():
                found += [str(p) for p in base.rglob("*")]
        return sorted(found)

    def runs(self):
        return json.loads(self.ok("ps", "-a", "--json").out)["runs"]

    def show(self, run="@"):
        return json.loads(self.ok("show", run, "--json").out)

    def close(self):
        runs = {attempt.parent.parent.name for attempt in (self.state / "runs").glob("*/attempts/*")}
        if runs:
            subprocess.run(["pkill", "-KILL", "-f", f"__supervise.*({'|'.join(runs)})"], capture_output=True)
        subprocess.run(["chmod", "-R", "u+rwx", str(self.dir)], capture_output=True)
        shutil.rmtree(self.dir, ignore_errors=True)


def check_error_form(text, id):
    """error: one sentence   [stable.id], at most four lines of evidence, at most one hint."""
    lines = text.splitlines()
    at = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    assert len(at) == 1, f"one line must start with 'error: ': {text!r}"
    end = next(i for i in range(at[0], len(lines)) if lines[i].rstrip().endswith("]"))
    assert lines[end].rstrip().endswith(f"[{id}]"), f"[{id}] was expected: {text!r}"
    rest = lines[end + 1:]
    hints = [line for line in rest if line.startswith("  hint: ")]
    assert len(hints) <= 1 and len(rest) - len(hints) <= 8, f"not the form of an error: {text!r}"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text), f"control bytes: {text!r}"


class Image:
    """An image of a layout, read without dlrun: digests checked, layers applied (layer.md)."""

    def __init__(self, layout, digest, workdir="dlrun/src"):
        self.layout, self.digest = Path(layout), digest
        self.manifest = json.loads(self.blob(digest))
        self.config = json.loads(self.blob(self.manifest["config"]["digest"]))
        self.layers = self.manifest["layers"]
        self.diff_ids = self.config["rootfs"]["diff_ids"]
        assert len(self.layers) == len(self.diff_ids)
        self.tars = []
        self.tree = {}
        for layer, diff_id in zip(self.layers, self.diff_ids):
            blob = self.blob(layer["digest"])
            assert len(blob) == layer["size"]
            tar = decompress(blob)
            assert "sha256:" + hashlib.sha256(tar).hexdigest() == diff_id
            self.tars.append(tar)
            self.apply(tar, os.fsencode(workdir))

    def blob(self, digest):
        data = (self.layout / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()
        assert "sha256:" + hashlib.sha256(data).hexdigest() == digest
        return data

    def apply(self, tar, workdir):
        below = workdir + b"/"
        added = {}
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:", errors="surrogateescape") as archive:
            for member in archive:
                name = os.fsencode(member.name).rstrip(b"/")
                assert not name.startswith(b"/") and b".." not in name.split(b"/"), name
                if not name.startswith(below):
                    assert name == workdir or not name.startswith(workdir.split(b"/")[0]), name
                    continue
                name = name[len(below):]
                head, _, last = name.rpartition(b"/")
                if last == b".wh..wh..opq":
                    self.remove(head, children_only=True)
                elif last.startswith(b".wh."):
                    self.remove((head + b"/" if head else b"") + last[4:])
                elif member.issym():
                    self.remove(name)
                    added[name] = ("link", False, os.fsencode(member.linkname))
                elif member.isreg():
                    self.remove(name)
                    added[name] = ("file", bool(member.mode & 0o100), archive.extractfile(member).read())
                else:
                    assert member.isdir(), member
                    self.tree.pop(name, None)
                assert (member.uid, member.gid, member.uname) == (0, 0, ""), member
        for name in added:
            for parent in parents(name):
                self.tree.pop(parent, None)
        self.tree.update(added)

    def remove(self, name, children_only=False):
        for path in list(self.tree):
            if path == name and not children_only or path.startswith(name + b"/" if name else b""):
                del self.tree[path]

    def roles(self):
        return [layer.get("annotations", {}).get("dev.dlrun.role", "base") for layer in self.layers]

    def names(self, index):
        """The raw member names of a layer."""
        with tarfile.open(fileobj=io.BytesIO(self.tars[index]), mode="r:", errors="surrogateescape") as a:
            return [m.name for m in a]


def parents(name):
    parts = name.split(b"/")
    return [b"/".join(parts[:i]) for i in range(1, len(parts))]


def decompress(blob):
    if blob[:2] == b"\x1f\x8b":
        out = b""
        while blob:
            member = zlib.decompressobj(31)
            out += member.decompress(blob)
            assert member.eof, "a cut-off gzip member"
            blob = member.unused_data
        return out
    if blob[:4] == b"\x28\xb5\x2f\xfd":
        return subprocess.run(["zstd", "-dc"], input=blob, capture_output=True, check=True).stdout
    return blob


def disk_tree(root, paths):
    """What lies on disk at these paths, in the form of Image.tree."""
    tree = {}
    for path in paths:
        name = os.fsencode(path)
        full = os.path.join(os.fsencode(root), name)
        info = os.lstat(full)
        if stat.S_ISLNK(info.st_mode):
            tree[name] = ("link", False, os.readlink(full))
        else:
            with open(full, "rb") as file:
                tree[name] = ("file", bool(info.st_mode & 0o100), file.read())
    return tree


def all_files(root):
    """Every file and link below root but .git, as paths relative to it (bytes)."""
    found = []
    for base, dirs, files in os.walk(os.fsencode(root)):
        dirs[:] = [d for d in dirs if d != b".git"]
        links = [d for d in dirs if os.path.islink(os.path.join(base, d))]
        for name in files + links:
            if name != b".git":
                found.append(os.path.relpath(os.path.join(base, name), os.fsencode(root)))
    return found


def same_tree(image, root, paths):
    """The image holds exactly these paths with the bytes on disk."""
    wanted = disk_tree(root, paths)
    extra, missing = set(image.tree) - set(wanted), set(wanted) - set(image.tree)
    assert not extra and not missing, f"too much: {sorted(extra)[:5]}, missing: {sorted(missing)[:5]}"
    for path, value in wanted.items():
        assert image.tree[path] == value, f"{path!r} differs"


def without_flock(w, *others):
    """A PATH with all that ours has but flock(1) and what can stand in for it, of which there are only these."""
    at = w.dir / f"without-flock-{'-'.join(others)}"
    at.mkdir()
    for folder in w.env["PATH"].split(os.pathsep):
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if not re.match("flock|perl|python", name) and not os.path.lexists(at / name):
                (at / name).symlink_to(os.path.join(folder, name))
    for name in others:
        (at / name).symlink_to(needs(f"/usr/bin/{name}"))
    return str(at)


def busy_s(seconds):
    """How long to wait for what takes seconds where a machine has no other work; less than 20 say how soon something has to be."""
    return 4 * seconds if seconds >= 20 else seconds


def pause_s(began, least=0.01):
    """How long to wait before one asks anew, of a question that was asked at that moment: one that takes a program each time would
    keep a core busy, and other tests waiting for it."""
    return min(max(least, 6 * (time.monotonic() - began)), 0.5)


def wait_for(condition, what, seconds=30):
    """Poll until condition() is true; no test sleeps for a fixed time."""
    seconds = busy_s(seconds)
    end = running_time() + seconds
    while running_time() < end:
        began = time.monotonic()
        value = condition()
        if value:
            return value
        time.sleep(pause_s(began))
    raise AssertionError(f"did not happen within {seconds} s: {what}")


def member_id(study, index):
    name, suffix = study.rsplit("-", 1)
    return f"{name}-{index}-{suffix}"


def most_running(lines):
    """How many ran at once, of lines "b …" of members that begin and "e …" of those that end."""
    now = most = 0
    for line in lines:
        now += 1 if line[0] == "b" else -1
        most = max(most, now)
    return most


def in_time(call, limit_s):
    """What call() returns. Where it is late it is done anew, up to three times in all: a busy machine is late by chance."""
    for _ in range(3):
        begin = running_time()
        result = call()
        took = running_time() - begin
        if took < limit_s:
            return result
    raise AssertionError(f"took {took:.1f} s, {limit_s} are allowed: {result!r}")


def within_limit(run, had_time):
    """What run(SECONDS) returns, of a program with that time limit: where it had no time to do its part, which had_time() tells, anew
    with more."""
    for seconds in (4, 16, 50):
        result = run(seconds)
        if had_time():
            break
    return result


def hash_dir(path):
    """Names, kinds, modes and contents of everything below path."""
    found = {}
    for base, dirs, files in os.walk(path):
        for name in dirs + files:
            full = os.path.join(base, name)
            info = os.lstat(full)
            if stat.S_ISREG(info.st_mode):
                with open(full, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            else:
                content = os.readlink(full) if stat.S_ISLNK(info.st_mode) else ""
            found[os.path.relpath(full, path)] = (stat.S_IFMT(info.st_mode), info.st_mode & 0o7777, content)
    return found


def where(thread):
    """The lines that a test's thread stands at, outermost first."""
    frame = sys._current_frames().get(thread)
    lines = traceback.extract_stack(frame) if frame else []
    judged = [i for i, line in enumerate(lines) if line.name == "_judge"]
    lines = lines[judged[-1] + 1:] if judged else lines
    return "".join(f"\n  {os.path.basename(line.filename)}:{line.lineno} in {line.name}: {line.line}" for line in lines[:8])


def summary(error):
    """One line that says by itself what went wrong and where: summaries of many tests keep no other."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    said = (str(error).splitlines() or [""])[0][:300]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}: {frame.line[:120]}: {type(error).__name__}: {said}\n"


class Running:
    """A test under way, or over: its world, thread, beginning, and once it was told to end, where it stood."""

    def __init__(self, name, function):
        self.name, self.function = name, function
        self.world = self.thread = self.began = self.told = None
        self.stood, self.cpu_s = "", 0.0

    def run(self, dlrun):
        """(verdict, text)"""
        self.thread, self.began, before = threading.get_ident(), running_time(), cpu_s()
        try:
            return self._judge(dlrun)
        except TimeUp:  # It may come a moment after the test's own end.
            return "failed", self.stood
        finally:
            self.cpu_s = cpu_s() - before

    def _judge(self, dlrun):
        try:
            self.world = World(dlrun, self.name)
            self.function(self.world)
            return "passed", ""
        except Skip as reason:
            return "skipped", str(reason)
        except Missing as reason:
            return "failed" if os.environ.get("CI") else "skipped", str(reason)
        except subprocess.TimeoutExpired as late:
            return "failed", f"no end after {late.timeout} s: {late.cmd}{self._place()}"
        except TimeUp:
            return "failed", self.stood
        except BaseException as error:
            return "failed", (self.stood + "\n" if self.stood else "") + summary(error) + traceback.format_exc(limit=-4)
        finally:
            if self.world:
                self.world.close()

    @staticmethod
    def _place():
        """Lines of the tests in the traceback of what is being handled."""
        here = [f for f in traceback.extract_tb(sys.exc_info()[2]) if f.filename.startswith(str(Path(__file__).parent))]
        return "".join(f"\n  {os.path.basename(f.filename)}:{f.lineno} in {f.name}: {f.line}" for f in here[-4:])

    def is_late(self):
        return self.began is not None and not self.told and running_time() - self.began > LIMIT_S

    def is_stuck(self):
        return self.told is not None and running_time() - self.told > LEAVE_S

    def tell_to_end(self, why):
        """What it waits for is killed, then it gets an exception."""
        self.stood = f"{why}; it stood at{where(self.thread)}"
        self.told = running_time()
        if self.world:
            for pid in processes_of(self.world.dir):
                self.stood += f"\n  beside {pid}: {command_of(pid)}"
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), ctypes.py_object(TimeUp))


def processes_of(directory):
    """Those whose environment or arguments name it: what a world started."""
    for entry in Path("/proc").glob("[0-9]*") if os.path.isdir("/proc/self") else ():
        try:
            if int(entry.name) != os.getpid() and any(
                    os.fsencode(directory) in (entry / part).read_bytes() for part in ("environ", "cmdline")):
                yield int(entry.name)
        except OSError:
            pass


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return "gone"


class Serving:
    """A dlrun command, self.process, that goes on until it is told to end."""

    def end(self, number=signal.SIGINT):
        """The exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.stdout.close()
        return self.process.wait(30)


def left_to_all(shown_by):
    """Of a test whose class of faults others show in CI as well: `shown_by` names them, with their file where it is another one. It
    runs with --all, and where it is asked for by name."""
    def mark(function):
        function.left_to_all = shown_by
        return function
    return mark


def main():
    dlrun, wanted = os.path.abspath(sys.argv[1]), sys.argv[2:]
    module = sys.modules["__main__"]
    # Who starts tests in the background or under nohup ignores these, and a program that is started so could not take them back.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    tests = [(n, f) for n, f in vars(module).items() if n.startswith("test_") and inspect.isfunction(f)]
    if wanted:
        tests = [(n, f) for n, f in tests if any(w in n for w in wanted)]
    elif not ALL:
        left, shown = of_other_shells(tests), [n for n, f in tests if hasattr(f, "left_to_all")]
        if left:
            print(f"left to --all: {len(left)} tests that run in another shell here: {' '.join(left)}", flush=True)
        if shown:
            print(f"left to --all: {len(shown)} tests whose faults others show here: {' '.join(shown)}", flush=True)
        tests = [(n, f) for n, f in tests if n not in (*left, *shown)]
    failed = run_tests(dlrun, [Running(n, f) for n, f in tests])
    sys.exit(1 if failed or wanted and not tests else 0)


def of_other_shells(tests):
    """Of the tests that there are for each of SHELLS, as test_NAME_SHELL, those that run in enough other ones: each runs in one of
    the two that know nothing beyond POSIX, in turn, each sixth in bash too, and in every shell that its source names."""
    by_name, left = {}, []
    for name, function in tests:
        stem, _, shell = name.rpartition("_")
        if shell in SHELLS:
            by_name.setdefault(stem, {})[shell] = function
    for i, (stem, found) in enumerate(by_name.items()):
        body = inspect.getclosurevars(next(iter(found.values()))).nonlocals.get("function")
        source = inspect.getsource(body) if body else ""
        kept = {SHELLS[i % 2]} | ({"bash"} if i % 6 == 0 else set())
        if len(found) == len(SHELLS):
            left += [f"{stem}_{shell}" for shell in SHELLS if shell not in kept and f'"{shell}"' not in source]
    return left


def run_tests(dlrun, tests):
    """How many failed."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}

    def add(test, verdict, text):
        counts[verdict] += 1
        if verdict != "passed":
            print(f"{verdict}: {test.name}: {text}", flush=True)
        if test.began is not None:
            print(f"took: {test.name} {running_time() - test.began:.2f} s, {test.cpu_s:.2f} s of CPU", flush=True)
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=(os.cpu_count() or 2) + 1)
    pending = {pool.submit(test.run, dlrun): test for test in tests}
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    while True:
        live = [future for future, test in pending.items() if not future.cancelled() and not test.is_stuck()]
        # With every worker of the pool stuck nobody is left to run the others.
        if not live or sum(test.is_stuck() for test in pending.values()) > (os.cpu_count() or 2):
            break
        for future in concurrent.futures.wait(live, 1, concurrent.futures.FIRST_COMPLETED).done:
            add(pending.pop(future), *future.result())
        for future, test in pending.items():
            if test.is_late():
                test.tell_to_end(f"no end within {LIMIT_S} s")
            elif ended.is_set() and not future.cancel() and test.began is not None and not test.told:
                test.tell_to_end("ended by SIGTERM")
    for test in pending.values():
        add(test, "failed", test.stood or "not begun")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped", flush=True)
    if pending:
        # Python's own end would wait for its threads.
        atexit._run_exitfuncs()
        os._exit(1)
    return counts["failed"]
