#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ports of runs on this machine, and commands beside their programs, in a real cluster: what arrives, what a lost tunnel or pod
leaves, and what is said. DLRUN_FORWARD_MIB: sent each way (64); DLRUN_FORWARD_RESETS: of tunnels (20)."""

import contextlib
import fcntl
import hashlib
import os
import pty
import re
import signal
import socket
import statistics
import struct
import subprocess
import termios
import threading
import time

from harness import *  # noqa: F403
from kubesite import site
from registries import FaultProxy, free_port

MIB = int(os.environ.get("DLRUN_FORWARD_MIB", "64"))
RESETS = int(os.environ.get("DLRUN_FORWARD_RESETS", "20"))
AT_ONCE = 200
ANSWER_S = 30
# A wide factor: what waits behind a bulk stream waits for hundreds of times as long.
HELD_UP = 40
BLOCK = hashlib.shake_256(b"forward").digest(1 << 20)
ECHO, DOWN, UP, SLOW, NAME, LATER, LATE, NEVER = range(7000, 7008)
SERVER = '''
import hashlib, secrets, socket, struct, threading, time

BLOCK = hashlib.shake_256(b"forward").digest(1 << 20)
NAME = secrets.token_hex(8).encode()

def echo(c, lines):
    while data := c.recv(1 << 16):
        c.sendall(data)

def down(c, lines):
    for number in range(int(lines.readline())):
        c.sendall(struct.pack(">Q", number) + BLOCK[8:])

def up(c, lines):
    left, digest = int(lines.readline()) << 20, hashlib.sha256()
    while left and (data := lines.read1(left)):
        digest.update(data)
        left -= len(data)
    c.sendall(digest.hexdigest().encode())

def slow(c, lines):
    lines.readline()
    time.sleep(0.1)
    c.sendall(NAME)

def name(c, lines):
    while lines.readline():
        c.sendall(NAME)

def later(c, lines):
    threading.Timer(float(lines.readline()), serve, (7006, name)).start()
    c.sendall(b"so be it")

def one(c, answer):
    with c, c.makefile("rb") as lines:
        try:
            answer(c, lines)
            c.shutdown(socket.SHUT_WR)
        except OSError:
            pass

def serve(port, answer):
    listener = socket.create_server(("", port), backlog=512)
    def accept():
        while True:
            threading.Thread(target=one, args=(listener.accept()[0], answer), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()

for port, answer in enumerate((echo, down, up, slow, name, later), 7000):
    serve(port, answer)
print("ready", flush=True)
threading.Event().wait()
'''


class Forward(Serving):
    """dlrun (or kubectl) that forwards these ports; `ports`: where, by the port of the program."""

    def __init__(self, w, argv, remotes, pattern=r"http://127\.0\.0\.1:(\d+)/$"):
        self.said = w.dir / f"said-{free_port()}"
        with open(self.said, "wb") as err:
            self.process = subprocess.Popen(argv, cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err)
        self.ports = {}
        for remote in remotes:
            line = self.process.stdout.readline().decode()
            found = re.search(pattern, line)
            assert found, (line, self.said.read_text())
            self.ports[remote] = int(found[1])

    def connect(self, remote):
        line = socket.create_connection(("127.0.0.1", self.ports[remote]), timeout=ANSWER_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line

    def ask(self, remote, text=b"\n"):
        """The first bytes of the answer; none: the connection ended."""
        with self.connect(remote) as line:
            line.sendall(text)
            return line.recv(1 << 16)

    def median_s(self, remote=NAME, times=30):
        """Of a small request with a connection of its own."""
        took = []
        for _ in range(times):
            begin = time.monotonic()
            assert self.ask(remote), self.said.read_text()
            took.append(time.monotonic() - begin)
        return statistics.median(took)

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def forward(w, run, *remotes):
    ports = Forward(w, [w.dlrun, "forward", run, *map(str, remotes)], remotes)
    try:
        yield ports
        assert ports.process.poll() is None, ports.said.read_text()
    finally:
        ports.end(signal.SIGKILL)


def serve(s, *words):
    """A run whose server listens."""
    s.w.write("server.py", SERVER)
    run = s.submit("--grace", "1s", *words, "--", "python3", "server.py")
    wait_for(lambda: "ready" in s.w.run("logs", run).out, f"the server of {run}", 90)
    return run


def blocks(count):
    for number in range(count):
        yield struct.pack(">Q", number) + BLOCK[8:]


def digest_of(pieces):
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


def received(line):
    while data := line.recv(1 << 20):
        yield data


def download(ports, mib):
    """(digest, size) of what comes, and the seconds that it took."""
    begin = time.monotonic()
    with ports.connect(DOWN) as line:
        line.sendall(b"%d\n" % mib)
        return digest_of(received(line)), time.monotonic() - begin


def test_bytes_arrive_whole(w):
    with site(w) as s:
        run = serve(s)
        with forward(w, run, DOWN, UP, SLOW) as ports:
            wanted = digest_of(blocks(MIB))
            came, took = download(ports, MIB)
            assert came == wanted, (came, wanted)
            begin = time.monotonic()
            with ports.connect(UP) as line:
                line.sendall(b"%d\n" % MIB)
                for block in blocks(MIB):
                    line.sendall(block)
                assert line.recv(100).decode() == wanted[0]
            print(f"forward: {MIB} MiB down in {took:.1f} s, up in {time.monotonic() - begin:.1f} s")
            # containerd keeps the program from seeing this end, and passes on for a second what it still says
            with ports.connect(SLOW) as line:
                line.sendall(b"\n")
                line.shutdown(socket.SHUT_WR)
                assert len(b"".join(received(line))) == 16, ports.said.read_text()


def small_requests_s(ports):
    """Medians of small requests: alone (the slower of before and after the others), beside a reader that stands still, beside a
    bulk one."""
    ports.median_s(times=5)
    before = ports.median_s()
    with ports.connect(DOWN) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        stalled.sendall(b"100000\n")
        assert stalled.recv(1)
        behind = ports.median_s()
    with ports.connect(DOWN) as bulk:
        bulk.sendall(b"100000\n")
        over = threading.Event()
        reader = threading.Thread(target=lambda: any(over.is_set() for _ in received(bulk)))
        reader.start()
        beside = ports.median_s()
        over.set()
        reader.join()
    return max(before, ports.median_s()), behind, beside


def is_good(alone, behind, beside):
    return max(behind, beside) < HELD_UP * alone


def test_small_requests_are_not_held_up(w):
    """In one of three rounds: what is held up is so in all of them, what this machine does beside is not."""
    with site(w) as s:
        run = serve(s)
        with forward(w, run, NAME, DOWN) as ports:
            rounds = []
            while len(rounds) < 3 and not any(is_good(*took) for took in rounds):
                rounds.append(small_requests_s(ports))
                alone, behind, beside = rounds[-1]
                print(f"forward: a small request takes {alone * 1e3:.1f} ms, beside a bulk one {beside * 1e3:.1f} ms, "
                      f"beside a reader that stands still {behind * 1e3:.1f} ms")
            assert is_good(*rounds[-1]), rounds


def test_many_connections_at_once(w):
    with site(w) as s:
        run = serve(s)
        with forward(w, run, ECHO) as ports, contextlib.ExitStack() as open_lines:
            lines = [open_lines.enter_context(ports.connect(ECHO)) for _ in range(AT_ONCE)]
            texts = [b"%06d" % number * 500 for number in range(AT_ONCE)]
            for line, text in zip(lines, texts):
                line.sendall(text)
            for line, text in zip(lines, texts):
                with line.makefile("rb") as answer:
                    assert answer.read(len(text)) == text, ports.said.read_text()


def recovery_s(ports, seconds=ANSWER_S):
    """Seconds until a request is answered; a listener that is closed is an error."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError, TimeoutError):
            if ports.ask(NAME):
                return time.monotonic() - begin
    raise AssertionError(f"no answer in {seconds} s: {ports.said.read_text()}")


def test_lost_tunnels_are_made_good(w):
    with site(w) as s:
        host, port = s.cluster.address.rsplit(":", 1)
        with FaultProxy((host, int(port))) as proxy:
            s.cluster.kubeconfig(s.user, w.env["KUBECONFIG"], namespace=s.namespace, server=proxy.address)
            run = serve(s)
            with forward(w, run, NAME) as ports:
                assert ports.ask(NAME)
                took = []
                for turn in range(RESETS):
                    proxy.cut_all("rst" if turn % 2 else "fin")
                    took.append(recovery_s(ports))
                    assert all(ports.ask(NAME) for _ in range(3)), ports.said.read_text()
            took.sort()
            print(f"forward: answers again {took[len(took) // 2]:.2f} s after a reset, p95 {took[len(took) * 95 // 100]:.2f} s, "
                  f"at most {took[-1]:.2f} s")


def test_goes_on_with_the_pod_that_replaces_one(w):
    with site(w, results={"emptyDir": True}) as s:
        run = serve(s, "--retries", "2")
        with forward(w, run, NAME) as ports:
            first = ports.ask(NAME)
            s.cluster.delete("Pod", s.cluster.started(s.namespace, run), s.namespace)
            end = time.monotonic() + 90
            while time.monotonic() < end:
                with contextlib.suppress(OSError):
                    if (answer := ports.ask(NAME)) and answer != first:
                        break
            else:
                raise AssertionError(f"no answer of another pod: {ports.said.read_text()}")


def test_ports_that_open_late_or_never(w):
    with site(w) as s:
        run = serve(s)
        with forward(w, run, LATER, LATE, NEVER) as ports:
            assert ports.ask(LATER, b"1.5\n") == b"so be it"
            assert len(ports.ask(LATE)) == 16
            with contextlib.suppress(ConnectionResetError):
                assert ports.ask(NEVER) == b""
            wait_for(lambda: f"nothing listens on port {NEVER} of pod {run}" in ports.said.read_text(), "what is said of a port", 5)
            assert len(ports.ask(LATE)) == 16


def listening(pid):
    """The addresses of its sockets that listen, as /proc/net has them."""
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    found = []
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(fields[1].split(":")[0])
    return found


def test_only_this_machine_is_listened_to(w):
    loopback = {"0100007F", "00000000000000000000000001000000"}
    with site(w) as s, socket.create_server(("127.0.0.1", 0)) as taken:
        run = serve(s)
        port = taken.getsockname()[1]
        w.refused("forward", run, f"{port}:{NAME}", id="listen.taken", rc=1, says=str(port))
        with forward(w, run, NAME) as first, forward(w, run, NAME) as second:
            assert first.ports != second.ports and first.ask(NAME) == second.ask(NAME)
            assert listening(first.process.pid) and set(listening(first.process.pid)) <= loopback
            assert set(listening(second.process.pid)) <= loopback
            done = Forward(w, [w.dlrun, "forward", run, f"{free_port()}:{NAME}"], [NAME])
            assert done.ask(NAME) == first.ask(NAME)
            assert done.end(signal.SIGINT) == 0, done.said.read_text()
            assert "the run goes on" in done.said.read_text()
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", done.ports[NAME])) != 0
            assert w.show(run)["state"] == "running" and first.ask(NAME)


def measured(ports):
    """What a bulk download and small requests cost."""
    ports.median_s(times=5)
    before = ports.cpu_s()
    came, took = download(ports, MIB)
    assert came[1] == MIB << 20
    cpu = ports.cpu_s() - before
    return f"{MIB / took:.0f} MiB/s with {cpu:.2f} s of CPU, a small request {ports.median_s(times=50) * 1e3:.1f} ms"


def test_beside_kubectl(w):
    with site(w) as s:
        run = serve(s)
        pod = s.cluster.started(s.namespace, run)
        argv = s.cluster.kubectl_argv("-n", s.namespace, "port-forward", "--address", "127.0.0.1", f"pod/{pod}", f":{DOWN}", f":{NAME}",
                                      config=w.env["KUBECONFIG"])
        with forward(w, run, DOWN, NAME) as ports:
            ours = measured(ports)
        peer = Forward(w, argv, (DOWN, NAME), r"127\.0\.0\.1:(\d+) ->")
        try:
            print(f"forward: dlrun {ours}; kubectl {measured(peer)}")
        finally:
            peer.end(signal.SIGKILL)


# --- commands


def sleeping(s, *words):
    run = s.submit("--grace", "1s", *words, "--", "sleep", "600")
    wait_for(lambda: s.w.show(run)["state"] == "running", f"the start of {run}", 90)
    return run


def test_commands_end_as_they_would_here(w):
    with site(w) as s:
        run = sleeping(s)
        done = w.run("exec", run, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
        assert (done.rc, done.out, done.err) == (7, "out\n", "err\n"), done
        assert w.run("exec", run, "--", "sh", "-c", "kill -9 $$").rc == 137
        assert w.run("exec", run, "--", "sh", "-c", "kill $$").rc == 143
        assert w.run("ssh", run, "--", "sh", "-c", "exit 3").rc == 3
        done = w.run("ssh", "@", "--", "echo", "two  words", "$HOME")
        assert (done.rc, done.out) == (0, "two  words $HOME\n"), done
        w.refused("exec", run, "--", "no-such-program", id="exec.not_found", rc=127, says="no-such-program")
        w.refused("exec", run, "--", "/etc", id="exec.not_executable", rc=126, says="/etc")
        w.refused("exec", "--rank", "3", run, "--", "true", id="usage", rc=2, says="rank 0")
        w.refused("exec", "-t", run, "--", "true", id="usage", rc=2, says="terminal")
        s.cancel(run)
        for command in (("exec", run, "--", "true"), ("ssh", run, "--", "true"), ("forward", run, "6006")):
            w.refused(*command, id="run.ended", rc=1, says=f"{run} has ended")


def test_bytes_of_commands_arrive_whole(w):
    data = b"".join(blocks(16))
    with site(w) as s:
        run = sleeping(s)
        begin = time.monotonic()
        with open(w.write("data", data, base=w.dir), "rb") as file:
            done = w.run("exec", "-i", run, "--", "sha256sum", stdin=file)
        up = time.monotonic() - begin
        assert done.rc == 0 and done.out.split()[0] == hashlib.sha256(data).hexdigest(), done
        script = f"import os\nfor i in range({1024}):\n    os.write(1, bytes(range(256)) * 64)\nos.write(2, b'over')"
        begin = time.monotonic()
        done = w.run("exec", run, "--", "python3", "-c", script)
        print(f"exec: 16 MiB to a command in {up:.1f} s, from one in {time.monotonic() - begin:.1f} s")
        assert (done.rc, done.err, done.out_bytes) == (0, "over", bytes(range(256)) * 64 * 1024), (done.rc, done.err, len(done.out_bytes))
        with open(w.dir / "data", "rb") as file:
            done = w.run("exec", "-i", run, "--", "cat", stdin=file)
        assert done.rc == 0 and digest_of([done.out_bytes]) == digest_of([data]), (done.rc, done.err)
        done = w.run("exec", run, "--", "cat")
        assert (done.rc, done.out) == (0, ""), done


def test_a_command_is_interrupted(w):
    with site(w) as s:
        run = sleeping(s)
        argv = [w.dlrun, "exec", run, "--", "sh", "-c", "echo ready; sleep 600"]
        with subprocess.Popen(argv, cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        argv = [w.dlrun, "exec", run, "--", "yes"]
        with subprocess.Popen(argv, cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"y\n"
            process.stdout.close()
            assert process.wait(30) in (141, -signal.SIGPIPE)
        assert w.show(run)["state"] == "running"


class Terminal:
    """A command with a terminal of its own."""

    def __init__(self, w, *argv, size=(24, 80)):
        self.master, slave = pty.openpty()
        self.resize(*size)
        self.seen = b""

        def own():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.process = subprocess.Popen(argv, cwd=w.tree, env=w.env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                        preexec_fn=own)
        self.slave = slave
        self.before = termios.tcgetattr(slave)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 1 << 16):
                self.seen += data

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.master, text)

    def wait_for(self, text, seconds=30):
        try:
            wait_for(lambda: text in self.seen, text, seconds)
        except AssertionError:
            raise AssertionError(f"{text} was expected: {self.seen}") from None

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.slave)
        self.reader.join(5)
        os.close(self.master)


def test_commands_have_this_terminal(w):
    with site(w) as s:
        run = sleeping(s)
        script = 'trap "echo caught" INT; echo ready; while read -r line; do eval "$line"; done; exit 5'
        with contextlib.closing(Terminal(w, w.dlrun, "exec", "-it", run, "--", "sh", "-c", script, size=(33, 111))) as terminal:
            terminal.wait_for(b"ready")
            assert termios.tcgetattr(terminal.slave) != terminal.before
            terminal.type(b"stty size\r")
            terminal.wait_for(b"33 111")
            terminal.resize(44, 122)

            def is_resized():
                terminal.type(b"stty size\r")
                time.sleep(0.1)
                return b"44 122" in terminal.seen
            wait_for(is_resized, f"its new size: {terminal.seen}")
            terminal.type(b"\x03")
            terminal.wait_for(b"caught")
            terminal.type(b"\r\x04")
            assert terminal.process.wait(30) == 5, (terminal.process.returncode, terminal.seen)
            assert termios.tcgetattr(terminal.slave) == terminal.before
        with contextlib.closing(Terminal(w, w.dlrun, "ssh", run)) as terminal:
            terminal.type(b"echo $((40 + 2)) $DLRUN_RUN_ID; exit 6\r")
            terminal.wait_for(f"42 {run}".encode())
            assert terminal.process.wait(30) == 6, terminal.seen


if __name__ == "__main__":
    main()
