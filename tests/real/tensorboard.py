#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dlrun tensorboard with a real TensorBoard (PyPI) in a real Chromium: what is drawn, what comes while it is looked at,
who is refused, what is said when something is missing."""

import contextlib
import http.client
import re
import signal
import socket
import struct
import sys
import urllib.parse

from chromium import Chromium
from cluster_forward import Terminal
from harness import *  # noqa: F403
from mirror import IMAGES, grow, images_run
from pypi import CACHE, only_one, pip_install, venv
from registries import free_port, listens
from sshsite import site

ROOT = Path(__file__).resolve().parents[2]
SHOTS = Path(os.environ.get("DLRUN_TEST_OUT", ROOT / "build-test/out"))
EVENTS = (ROOT / "examples/digits/events.py").read_text()
START_S, NEW_S = 120, 90
OTHER = 65533
# Writes steps up to the number in a file, as often as that changes; ends when it says "end".
TRAIN = """
import os, sys, time
from events import EventWriter

slope, control = float(sys.argv[1]), sys.argv[2]
out = os.environ["DLRUN_OUTPUT_DIR"] + "/tb"
os.makedirs(out, exist_ok=True)
done = 0
with EventWriter(out) as events:
    while True:
        try:
            word = open(control).read().strip()
        except OSError:
            word = ""
        for step in range(done, int(word) if word.isdigit() else done):
            events.scalars(step, loss=slope * step, accuracy=1 - 1 / (step + slope))
            done = step + 1
        if word == "end":
            break
        time.sleep(0.05)
"""


def tensorboard_env(*packages, name="tensorboard"):
    """A virtual environment with TensorBoard, made once."""
    there = CACHE / f"{name}-{sys.version_info[0]}.{sys.version_info[1]}"
    with only_one(name):
        if not (there / "whole").exists():
            shutil.rmtree(there, ignore_errors=True)
            venv(there)
            pip_install(there, *(packages or ["tensorboard>=2.21"]))
            (there / "whole").touch()
    return there


def same_packages():
    """TensorBoard and what it needs, for a Python that every user of this machine can run."""
    packages = next(tensorboard_env().glob("lib/python*/site-packages"))
    version = subprocess.run(["/usr/bin/python3", "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"], capture_output=True, text=True)
    if version.stdout.strip() != packages.parent.name:
        raise Skip(f"/usr/bin/python3 is another one than {packages.parent.name}")
    return packages


class Shown:
    """`dlrun tensorboard` that goes on; `url` once it is there."""

    def __init__(self, w, *words, env=None):
        self.err = open(w.dir / f"tensorboard-{time.monotonic_ns()}", "w+")
        self.process = subprocess.Popen([w.dlrun, "tensorboard", *words], cwd=w.tree, env={**w.env, **(env or {})}, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=self.err, text=True, start_new_session=True,
                                        **({"user": w.user, "group": w.user, "extra_groups": []} if w.user else {}))
        self.url = None

    def said(self):
        self.err.flush()
        return Path(self.err.name).read_text()

    def open(self):
        line = self.process.stdout.readline()
        assert line.startswith(("http://127.0.0.1:", "{")), (line, self.said())
        self.url = json.loads(line)["url"] if line[0] == "{" else line.strip()
        parts = urllib.parse.urlsplit(self.url)
        self.port, self.path = parts.port, parts.path
        assert re.fullmatch(r"/[2-9a-hjkmnp-z]{26}/", self.path), self.path
        return self

    def get(self, path="", method="GET", whole=False, body=None, **headers):
        """(status, body) below the secret path, or of the whole path."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        connection.request(method, path if whole else self.path + path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    def json(self, path):
        status, text = self.get(path)
        assert status == 200, (status, text[:300])
        return json.loads(text)

    def steps(self, run, tag="loss"):
        """What TensorBoard has of a scalar; empty before it knows it."""
        status, text = self.get(f"data/plugin/scalars/scalars?run={urllib.parse.quote(run, safe='')}&tag={tag}")
        return [(step, value) for _, step, value in json.loads(text)] if status == 200 else []

    def processes(self):
        """Of the session that TensorBoard runs in: (pid, words)."""
        return [(pid, words) for pid, words in processes() if parent_is(pid, self.process.pid)]

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(30) == 0, self.said()
        return self.said()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.err.close()


def processes():
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield int(path.name), (path / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")


def alive(pids):
    """Those that are no zombies."""
    now = dict(processes())
    return [pid for pid in pids if now.get(pid)]


def parent_is(pid, ancestor):
    """Whether the process descends from that one."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def shown(w, *words, **more):
    return contextlib.closing(Shown(w, *words, **more))


def with_tensorboard(w):
    there = tensorboard_env()
    w.env |= {"VIRTUAL_ENV": str(there), "PATH": f"{there}/bin:{w.env['PATH']}", "XDG_RUNTIME_DIR": str(w.dir / "runtime")}
    (w.dir / "runtime").mkdir(mode=0o700)


def finished(w, n=20, slope=2, options=()):
    """A local run that has ended, with n steps."""
    control = w.write("control", str(n), base=w.dir)
    run = w.ok("submit", "-d", "-n", "done", *options, "--", sys.executable, "train.py", str(slope), control).out.strip()
    wait_for(lambda: len(list((w.state / "runs" / run / "outputs").glob("tb/*tfevents*"))) and
             sum(p.stat().st_size for p in (w.state / "runs" / run / "outputs").glob("tb/*")) > 60 * n, "its events", START_S)
    control.write_text("end")
    w.ok("wait", run)
    return run


def live(w, n=5, to=None, slope=3, control=None):
    """A run that goes on, with n steps until its control file says more."""
    control = control or w.write(f"control-{slope}", str(n), base=w.dir)
    target = ["-t", to] if to else []
    run = w.ok("submit", "-d", "-n", "live", *target, "--", "python3", "train.py", str(slope), str(control)).out.strip()
    return run, control


def tree(w, files=None):
    w.repo({"train.py": TRAIN, "events.py": EVENTS, **(files or {})})


# The text of each card without its breaks, and how many curves are in it. Without a GPU they are lines of SVG.
CARDS = """return [...document.querySelectorAll('card-view')].map(card => ({
    text: card.innerText.replace(/\\s+/g, ' '), names: card.innerText.replace(/\\s+/g, ''),
    curves: [...card.querySelectorAll('line-chart path')].filter(p => (p.getAttribute('d') || '').split('L').length > 4).length}))"""


# --- what is shown


def test_a_finished_and_a_live_run_in_the_browser(w):
    """A local run that has ended beside one on a node that goes on: both drawn; new points come by themselves."""
    with_tensorboard(w)
    with site(w, files={"train.py": TRAIN, "events.py": EVENTS}) as s:
        old = finished(w)
        there = s["gpu1"].home / "control"
        there.write_text("5")
        new, _ = live(w, to="ssh:gpu1", control="/home/me/control")
        wait_for(lambda: any(s["gpu1"].home.rglob("*tfevents*")), "events of the live run", START_S)
        with shown(w, old, new) as tb, contextlib.ExitStack() as stack:
            tb.open()
            wait_for(lambda: set(tb.json("data/runs")) == {f"{old}/tb", f"{new}/tb"}, "both runs", NEW_S)
            assert tb.steps(f"{old}/tb") == [(i, 2.0 * i) for i in range(20)]
            wait_for(lambda: tb.steps(f"{new}/tb") == [(i, 3.0 * i) for i in range(5)], "the first points of the live run", NEW_S)
            page = stack.enter_context(Chromium(w.dir / "browser"))
            page.open(tb.url + "#timeseries")
            cards = page.wait_for(CARDS, lambda cards: len(cards) == 2 and all(
                old in c["names"] and new in c["names"] and c["curves"] >= 2 for c in cards), "the curves of both runs in each card")
            assert [c["text"].split()[0] for c in cards] == ["accuracy", "loss"], cards
            page.screenshot(SHOTS / "tensorboard-local-ssh.png")
            there.write_text("9")
            wait_for(lambda: tb.steps(f"{new}/tb") == [(i, 3.0 * i) for i in range(9)], "new points", NEW_S)
            page.run("document.querySelector('app-header-reload button').click()")
            page.wait_for(CARDS, lambda cards: any("24" in c["text"].split() for c in cards), "the new last value of the live run")
            page.screenshot(SHOTS / "tensorboard-new-points.png")
            complaints = page.errors()
            assert not complaints, complaints
            there.write_text("end")
            wait_for(lambda: f"{new} has ended; all of its event files are here" in tb.said(), "the end of the run", NEW_S)
            said = tb.stop()
        assert re.search(r"mirror +2 runs · 2 event files · [0-9.]+ \w+ · new bytes only, every 5 s", said), said
        s.ended(new)
    assert w.show(old)["state"] == "succeeded"


def test_a_run_that_has_written_nothing_yet(w):
    """It is waited for, and its points come."""
    with_tensorboard(w)
    tree(w)
    gate = w.dir / "gate"
    late = w.ok("submit", "-d", "--", "sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.1; done; exec \"$@\"", "sh", "python3", "train.py", "1",
                str(w.write("control", "4", base=w.dir))).out.strip()
    with shown(w, late) as tb:
        wait_for(lambda: "no event files yet" in tb.said(), "what it waits for", START_S)
        gate.touch()
        tb.open()
        wait_for(lambda: tb.steps(f"{late}/tb") == [(i, float(i)) for i in range(4)], "its points", NEW_S)
        (w.dir / "control").write_text("end")
        tb.stop()


def test_scalars_only(w):
    """Of a run elsewhere whose files hold images, too: the curves, what is new of them, and no images."""
    with_tensorboard(w)
    with site(w, files={"w.py": IMAGES, "events.py": EVENTS}) as s:
        run = images_run(s, w, 100)
        with s.wire("gpu1") as wire, shown(w, "--scalars", run) as tb:
            before = wire.down
            tb.open()
            wait_for(lambda: [step for step, _ in tb.steps(f"{run}/tb")] == list(range(100)), "its points", NEW_S)
            grow(s, w, [run])
            wait_for(lambda: [step for step, _ in tb.steps(f"{run}/tb")] == list(range(101)), "the new point", NEW_S)
            assert not tb.json("data/plugin/images/tags").get(f"{run}/tb"), tb.json("data/plugin/images/tags")
            assert wire.down - before < 2_000_000, wire.down - before
            assert re.search(r"mirror +1 run · .* · curves only · new bytes only, every 5 s", tb.said()), tb.said()
            tb.stop()
        w.ok("cancel", run)


PROJECTED = """import os
import events as e
out = os.environ["DLRUN_OUTPUT_DIR"] + "/tb"
os.makedirs(out + "/00000/default")
with e.EventWriter(out) as events:
    events.scalars(1, loss=1.0)
open(out + "/00000/default/tensors.tsv", "w").write("1.5\\t2.5\\n3.5\\t4.5\\n")
open(out + "/00000/default/metadata.tsv", "w").write("one\\ntwo\\n")
open(out + "/projector_config.pbtxt", "w").write('embeddings { tensor_name: "default:00000" tensor_path: "00000/default/tensors.tsv"'
                                                 ' metadata_path: "00000/default/metadata.tsv" }\\n')
"""


def test_the_projector(w):
    """Its points and their words, of a run here and of one on a host; both are counted beside the event files."""
    with_tensorboard(w)
    with site(w, files={"train.py": PROJECTED, "events.py": EVENTS}) as s:
        here = w.ok("submit", "-d", "--", sys.executable, "train.py").out.strip()
        away = s.submit("--", "python3", "train.py")
        assert w.run("wait", here, away).rc == 0
        with shown(w, here, away) as tb:
            tb.open()
            # A host that takes long is not waited for.
            assert re.search(r"2 event files.*6 of plugins|1 event file\b.*3 of plugins", tb.said()), tb.said()
            for run in (here, away):
                name = urllib.parse.quote(f"{run}/tb", safe="")
                wait_for(lambda name=name: tb.get(f"data/plugin/projector/info?run={name}")[0] == 200, "the projector's run", START_S)
                config = tb.json(f"data/plugin/projector/info?run={name}")["embeddings"]
                assert [c["tensorPath"] for c in config if c.get("tensorPath")] == ["00000/default/tensors.tsv"], config
                status, tensor = tb.get(f"data/plugin/projector/tensor?run={name}&name=default:00000")
                assert status == 200 and struct.unpack("<4f", tensor) == (1.5, 2.5, 3.5, 4.5), (status, tensor)
                status, words = tb.get(f"data/plugin/projector/metadata?run={name}&name=default:00000")
                assert (status, words) == (200, b"one\ntwo\n"), (status, words)


def test_a_host_that_is_away(w):
    """What is here is shown; the rest comes when its host answers again."""
    with_tensorboard(w)
    with site(w, files={"train.py": TRAIN, "events.py": EVENTS}) as s:
        old = finished(w)
        (s["gpu1"].home / "control").write_text("5")
        new = s.submit("--", "python3", "train.py", "3", "/home/me/control")
        s.running(new)
        s["gpu1"].stop(sessions=True)
        with shown(w, old, new) as tb:
            tb.open()
            wait_for(lambda: re.search(f"{new}: .*; trying again", tb.said()), "what is wrong", NEW_S)
            assert tb.steps(f"{old}/tb") == [(i, 2.0 * i) for i in range(20)]
            s["gpu1"].start()
            wait_for(lambda: tb.steps(f"{new}/tb") == [(i, 3.0 * i) for i in range(5)], "its points", 120)
            assert f"{new} can be read again" in tb.said(), tb.said()
            tb.stop()
        w.ok("cancel", new)
        s.ended(new)


def test_the_lines_of_the_readme(w):
    with_tensorboard(w)
    tree(w)
    old = finished(w)
    run, control = live(w)
    text = (ROOT / "README.md").read_text()
    lines = re.findall(r"^dlrun tensorboard *(.*?) *#", text, re.M)
    assert len(lines) == 4, lines
    for line in lines:
        words = [old if word == "resnet-3k2f9" else word for word in line.split()]
        wait_for(lambda: run_has_events(w, run), "its events", START_S)
        with shown(w, *words) as tb:
            tb.open()
            here = [run, old] if "@-1" in words else [run]
            wanted = {"tb"} if "--remote" in words else {f"{each}/tb" for each in here}
            wait_for(lambda: set(tb.json("data/runs")) == wanted, wanted, NEW_S)
            tb.stop()
    control.write_text("end")
    w.ok("wait", run)


def run_has_events(w, run):
    return list((w.state / "runs" / run / "outputs").glob("tb/*tfevents*"))


def test_the_browser(w):
    """On a terminal it is opened, by a path that leads there once: everybody can read the arguments of a process."""
    with_tensorboard(w)
    tree(w)
    run = finished(w)
    asked = w.dir / "asked"
    w.write("browser", f"#!/bin/sh\necho \"$1\" >{asked}.new && mv {asked}.new {asked}\n", 0o755, base=w.dir)
    w.env["BROWSER"] = str(w.dir / "browser")
    with contextlib.closing(Terminal(w, w.dlrun, "tensorboard", run, size=(24, 120))) as t:
        t.wait_for(b"Ctrl-C stops serving", START_S)
        wait_for(asked.exists, "the browser", START_S)
        url = urllib.parse.urlsplit(asked.read_text().strip())
        assert url.port and url.path.encode() not in t.seen

        def get(path):
            connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=START_S)
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            connection.close()
            return answer.status, answer.headers.get("Location")

        status, place = get(url.path)
        assert status == 302 and place.encode() in t.seen, (status, place)
        assert get(place)[0] == 200 and get(url.path)[0] == 404
        t.type(b"\x03")
        assert t.process.wait(30) == 0


# --- its life


def test_ctrl_c_ends_all_of_it_and_nothing_else(w):
    with_tensorboard(w)
    tree(w)
    run, control = live(w)
    with shown(w, run) as tb:
        tb.open()
        own = dict(tb.processes())
        assert len(own) >= 2, own
        said = tb.stop()
        assert "runs are not touched" in said
        wait_for(lambda: not alive(own), f"the end of {own}", 5)
    assert w.show(run)["state"] == "running"
    assert not runtime_left(w), runtime_left(w)
    control.write_text("end")
    w.ok("wait", run)


def runtime_left(w):
    return list((Path(w.env["XDG_RUNTIME_DIR"]) / "dlrun").glob("tensorboard-*"))


def test_a_killed_dlrun_leaves_nothing_running(w):
    with_tensorboard(w)
    tree(w)
    run = finished(w)
    with shown(w, run) as tb:
        tb.open()
        own = dict(tb.processes())
        tb.process.kill()
        tb.process.wait()
        wait_for(lambda: not alive(own), f"the end of {own}", 20)
    assert runtime_left(w)
    with shown(w, run) as tb:
        tb.open().stop()
    assert not runtime_left(w), runtime_left(w)


def test_tensorboard_is_killed(w):
    with_tensorboard(w)
    tree(w)
    run = finished(w)
    with shown(w, run) as tb:
        tb.open()
        python = next(pid for pid, words in tb.processes() if "json.loads" in words)
        os.kill(python, signal.SIGKILL)
        assert tb.process.wait(30) == 1
        check_error_form(tb.said()[tb.said().index("error: "):], "tensorboard.ended")
        assert "SIGKILL" in tb.said()


def test_a_port_that_is_taken(w):
    with_tensorboard(w)
    tree(w)
    run = finished(w)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        w.refused("tensorboard", "--port", str(port), run, id="listen.taken", rc=1, says=str(port))
    port = free_port()
    with shown(w, "--port", str(port), "--json", run) as tb:
        assert tb.open().port == port
        tb.stop()


# --- who is refused


def own_ports(tb):
    """Ports of this network's 127.0.0.1 that processes of TensorBoard listen at."""
    sockets = set()
    for pid, _ in tb.processes():
        for fd in Path(f"/proc/{pid}/fd").glob("*") if pid != tb.process.pid else ():
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(fd))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(words[1].partition(":")[2], 16) for words in lines if words[3] == "0A" and f"socket:[{words[9]}]" in sockets}


def ask_as_other(tb_port, path):
    """What another Unix user gets."""
    script = ("import http.client, sys\nc = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=20)\n"
              "try:\n    c.request('GET', sys.argv[2])\n    a = c.getresponse(); print(a.status, len(a.read()))\n"
              "except (OSError, http.client.HTTPException) as e:\n    print('none', type(e).__name__)\n")
    done = subprocess.run([shutil.which("python3", path="/usr/bin:/bin") or needs("python3"), "-c", script, str(tb_port), path], capture_output=True, text=True, user=OTHER, group=OTHER,
                          extra_groups=[], cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_who_is_refused(w):
    """Pages of others, wrong paths, another user of the machine; and its secret is nowhere to be read."""
    with_tensorboard(w)
    tree(w)
    run = finished(w)
    with shown(w, run) as tb:
        tb.open()
        assert tb.get("data/runs")[0] == 200
        for host in ("evil.example", f"evil.example:{tb.port}", f"127.0.0.1:{tb.port + 1}", f"localhost.evil.example:{tb.port}"):
            assert tb.get("data/runs", Host=host)[0] in (400, 403, 421), host
        assert tb.get("data/runs", Host=f"localhost:{tb.port}")[0] == 200
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}):
            assert tb.get("data/runs", **headers)[0] == 403, headers
            assert tb.get("data/plugin/timeseries/timeSeries", "POST", body=b"requests=[]", **headers)[0] == 403, headers
        other = tb.path[:-2] + ("y" if tb.path[-2] != "y" else "z")
        for path in ("/", "/data/runs", "/x" * 30, tb.path[:-2] + "/data/runs", f"{other}/data/runs", f"/x{tb.path}"):
            assert tb.get(path, whole=True)[0] == 404, path
        assert tb.get("/%2e%2e/data/runs", whole=True)[0] in (400, 404)
        # Its own pages ask for their fonts outside of the prefix.
        for referer, status in ((tb.url, 302), (f"http://127.0.0.1:{tb.port}/x/", 404), (f"http://127.0.0.1:{tb.port}/x?{tb.path}", 404)):
            assert tb.get("/font-roboto/x.woff2", whole=True, Referer=referer)[0] == status, referer
        if os.getuid() == 0:
            check_other_user(tb)
        assert not own_ports(tb), "TensorBoard can be reached around dlrun"
        secret = tb.path.strip("/")
        for pid, words in processes():
            assert secret not in words, (pid, words)
        tb.stop()


def test_an_ordinary_user(w):
    """Not root: TensorBoard has a network of its own where the system gives one to everybody, and is as well hidden elsewhere."""
    if os.getuid():
        raise Skip("it takes root to be somebody else")
    no_tensorboard(w)
    shutil.copytree(same_packages(), w.dir / "packages", symlinks=True)
    w.write("bin/tensorboard", "#!/usr/bin/python3\nfrom tensorboard.main import run_main\nrun_main()\n", 0o755, base=w.dir)
    tree(w)
    w.as_nobody()
    w.env |= {"PATH": f"{w.dir}/bin:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(w.dir / "packages")}
    control = w.write("control", "7", base=w.dir)
    control.chmod(0o666)
    run = w.ok("submit", "-d", "--", "python3", "train.py", "2", control).out.strip()
    wait_for(lambda: run_has_events(w, run), "its events", START_S)
    may = w.command(["unshare", "-Un", "true"]).rc == 0
    with shown(w, run) as tb:
        tb.open()
        wait_for(lambda: tb.steps(f"{run}/tb") == [(i, 2.0 * i) for i in range(7)], "its points", NEW_S)
        assert len(own_ports(tb)) == (0 if may else 1), (may, tb.said())
        check_other_user(tb)
        tb.stop()
    control.write_text("end")
    w.ok("wait", run)


def check_other_user(tb):
    assert ask_as_other(tb.port, tb.path + "data/runs").split()[0] in ("403", "none")
    for port in own_ports(tb):
        answer = ask_as_other(port, "/data/runs")
        assert answer.split()[0] in ("404", "none", "400"), (port, answer)
    # Files that anybody could read would tell the path.
    for base in ("/tmp", "/var/tmp", "/dev/shm"):
        done = subprocess.run(["grep", "-rlsF", "--exclude-dir=bash_jobs*", tb.path.strip("/"), f"{base}/.tensorboard-info"],
                              capture_output=True, text=True)
        assert not done.stdout, done.stdout


def test_without_a_network_of_its_own(w):
    """The system refuses user namespaces: no data server, and still nothing without the secret."""
    with_tensorboard(w)
    tree(w)
    run = finished(w)
    # A module that is found first stands for a kernel that says no.
    w.write("modules/ctypes.py", "raise ImportError('not here')\n", base=w.dir)
    with shown(w, run, env={"PYTHONPATH": str(w.dir / "modules")}) as tb:
        tb.open()
        assert tb.steps(f"{run}/tb") == [(i, 2.0 * i) for i in range(20)]
        assert not [words for _, words in tb.processes() if "data_server" in words or "--die-after-stdin" in words]
        assert len(own_ports(tb)) == 1
        if os.getuid() == 0:
            check_other_user(tb)
        tb.stop()


# --- what is missing


def no_tensorboard(w):
    """A PATH that has everything but TensorBoard."""
    w.env["PATH"] = ":".join(p for p in w.env["PATH"].split(":") if not (Path(p) / "tensorboard").exists())
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        w.env.pop(name, None)


def test_no_tensorboard(w):
    no_tensorboard(w)
    tree(w)
    run = finished(w)
    w.refused("tensorboard", run, id="tensorboard.missing", rc=5, says=["install tensorboard", f"dlrun plot {run}"])


def test_too_old_for_its_setuptools(w):
    """A real one: 2.20 beside setuptools 82."""
    old = tensorboard_env("tensorboard==2.20.0", "setuptools>=82", name="tensorboard-2.20")
    no_tensorboard(w)
    w.env["PATH"] = f"{old}/bin:{w.env['PATH']}"
    tree(w)
    run = finished(w)
    w.refused("tensorboard", run, id="tensorboard.pkg_resources", rc=2,
              says=["TensorBoard 2.20.0 here cannot start: setuptools 82 removed pkg_resources", f"from {old}/bin/tensorboard",
                    "'tensorboard>=2.21'", f"dlrun plot {run}"])


def test_a_broken_one(w):
    no_tensorboard(w)
    tree(w)
    run = finished(w)
    w.write("bin/tensorboard", "#!/nonexistent/bin/python\n", 0o755, base=w.dir)
    w.env["PATH"] = f"{w.dir}/bin:{w.env['PATH']}"
    w.refused("tensorboard", run, id="tensorboard.start", rc=1, says=["/nonexistent/bin/python", f"from {w.dir}/bin/tensorboard"])
    w.write("bin/tensorboard", "#!/bin/sh\necho 'numpy.core.multiarray failed to import' >&2\nexit 1\n", 0o755, base=w.dir)
    w.refused("tensorboard", run, id="tensorboard.start", rc=1, says="NumPy")


def test_runs_without_event_files(w):
    with_tensorboard(w)
    tree(w, {"dlrun.yaml": "outputs: [out]\n"})
    run = w.ok("submit", "-d", "--", "true").out.strip()
    w.ok("wait", run)
    done = w.refused("tensorboard", run, id="tensorboard.empty", rc=5, says=[run, "all results", f"dlrun fetch --list {run}"])
    assert "http://" not in done.out
    other = w.ok("submit", "-d", "--", "true").out.strip()
    w.ok("wait", other)
    w.refused("tensorboard", run, other, id="tensorboard.empty", rc=5, says="none of 2 runs")
    w.refused("tensorboard", "nosuch", id="run.not_found", rc=5)


def test_a_directory_that_only_tensorboard_names(w):
    """tensorboard: of dlrun.yaml: the program writes into the tree, and its event files are kept and found."""
    with_tensorboard(w)
    tree(w, {"dlrun.yaml": "tensorboard: [logs/tb]\n",
             "write.py": "import os\nfrom events import EventWriter\nos.makedirs('logs/tb', exist_ok=True)\n"
                         "with EventWriter('logs/tb') as e:\n    [e.scalars(i, loss=i) for i in range(6)]\n"})
    run = w.ok("submit", "-d", "--", "python3", "write.py").out.strip()
    w.ok("wait", run)
    with shown(w, run) as tb:
        tb.open()
        wait_for(lambda: tb.steps(f"{run}/logs/tb") == [(i, float(i)) for i in range(6)], "its points", NEW_S)
        tb.stop()


# --- beside the program


def give_tensorboard(host):
    """The account there gets a TensorBoard, and nothing else of this machine's."""
    shutil.copytree(same_packages(), host.home / "packages", symlinks=True)
    host.program("tensorboard", "#!/usr/bin/python3\nfrom tensorboard.main import run_main\nrun_main()\n")
    return "PYTHONPATH=/home/me/packages"


def test_one_is_started_beside_the_program(w):
    no_tensorboard(w)
    with site(w, files={"train.py": TRAIN, "events.py": EVENTS}) as s:
        packages = give_tensorboard(s["gpu1"])
        (s["gpu1"].home / "control").write_text("5")
        run = s.submit("-e", packages, "--", "/usr/bin/python3", "train.py", "3", "/home/me/control")
        s.running(run)
        with shown(w, "--remote", run) as tb:
            tb.open()
            assert "started there" in tb.said(), tb.said()
            wait_for(lambda: tb.steps("tb") == [(i, 3.0 * i) for i in range(5)], "its points", NEW_S)
            (s["gpu1"].home / "control").write_text("8")
            wait_for(lambda: len(tb.steps("tb")) == 8, "new points", NEW_S)
            assert not [words for _, words in processes() if tb.path.strip("/") in words]
            assert tb.get("/data/runs", whole=True)[0] == 404
            tb.stop()
        wait_for(lambda: not s["gpu1"].processes("json.loads"), "the end of TensorBoard there", 20)
        with shown(w, "--remote", run) as tb:
            tb.open().process.kill()
            tb.process.wait()
            wait_for(lambda: not s["gpu1"].processes("json.loads"), "its end after a kill", 30)
        assert s.state(run) == "running"
        w.ok("cancel", run)
        s.ended(run)


def test_one_that_is_there_is_found(w):
    with_tensorboard(w)
    tree(w)
    port = free_port()
    run = w.ok("submit", "-d", "--port", str(port), "--", "tensorboard", "--logdir", ".", "--port", str(port)).out.strip()
    # One that does not answer within some seconds is none.
    wait_for(lambda: listens(port), "the program", START_S)
    with shown(w, "--remote", run) as tb:
        tb.open()
        assert f"at port {port} in {run}" in tb.said() and "found there" in tb.said(), tb.said()
        assert tb.json("data/environment")["data_location"]
        assert b"<!doctype html>" in tb.get()[1][:200].lower()
        assert tb.get("/data/environment", whole=True)[0] == 404
        tb.stop()
    w.ok("cancel", run)


def test_none_beside_the_program(w):
    no_tensorboard(w)
    with site(w, files={"a": ""}) as s:
        run = s.submit("--", "sleep", "100")
        s.running(run)
        done = w.run("tensorboard", "--remote", run)
        assert done.rc == 5, done
        check_error_form(done.err[done.err.index("error: "):], "tensorboard.missing")
        assert f"dlrun exec {run} -- python3 -m pip install tensorboard" in done.err, done
        w.ok("cancel", run)
        s.ended(run)
        w.refused("tensorboard", "--remote", run, id="run.ended", rc=1, says=f"dlrun tensorboard {run}")


if __name__ == "__main__":
    main()
