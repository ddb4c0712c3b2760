#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ports that a run names, reachable on this machine while it is followed, in a real cluster."""

import contextlib
import signal
import socket
import subprocess
import time

from harness import *  # noqa: F403
from kubesite import site

ANSWER_S = 30
SERVER = '''
import secrets, socket, sys, threading, time
name, over = secrets.token_hex(8).encode(), threading.Event()
def one(c):
    with c:
        asked = c.recv(100)
        c.sendall(name)
    if asked == b"over":
        over.set()
def serve():
    listener = socket.create_server(("", int(sys.argv[2])))
    while True:
        threading.Thread(target=one, args=listener.accept()[:1], daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
for i in range(int(sys.argv[1])):
    print(i, flush=True)
    time.sleep(0.05)
over.wait()
'''


@contextlib.contextmanager
def following(w, *words):
    """(the process, its stderr, where its stdout goes)"""
    out, err = w.dir / "followed.out", w.dir / "followed.err"
    with open(out, "wb") as o, open(err, "wb") as e:
        process = subprocess.Popen([w.dlrun, *words], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=o, stderr=e)
    try:
        yield process, err, out
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def listened(err, remote):
    """The port here, and the run."""
    pattern = re.compile(rf"^port {remote} of ([a-z0-9-]+): http://127\.0\.0\.1:(\d+)/$", re.M)
    wait_for(lambda: pattern.search(err.read_text()), f"the line of port {remote}: {err.read_text()}", 60)
    found = pattern.search(err.read_text())
    return int(found[2]), found[1]


def ask(port, text=b"?"):
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as line:
        line.sendall(text)
        return line.recv(100).decode()


def lines_of(out):
    return out.read_text().split("\n")[:-1]


def test_ports_are_open_while_the_output_follows(w):
    with site(w) as s:
        w.write("server.py", SERVER)
        taken = socket.create_server(("127.0.0.1", 0))
        remote = taken.getsockname()[1]
        s.keys["ports"] = [remote]
        s.configure()
        with taken, following(w, "submit", "-f", "--grace", "1s", "--port", "7101", "--", "python3", "server.py", "300", str(remote)) as \
                (process, err, out):
            port, run = listened(err, remote)
            assert port != remote, err.read_text()
            nobody, _ = listened(err, 7101)
            # Asked for before there is a pod: it is held until there is one.
            pod = ask(port)
            assert len(pod) == 16, pod
            # Nobody listens there: that ends the connection, and nothing else.
            with socket.create_connection(("127.0.0.1", nobody), timeout=ANSWER_S) as line:
                line.sendall(b"?")
                with contextlib.suppress(ConnectionError):
                    assert not line.recv(1)
            assert ask(port) == pod and ask(port, b"over") == pod
            assert process.wait(90) == 0, err.read_text()
        assert lines_of(out) == [str(i) for i in range(300)], out.read_text()
        said = [line for line in err.read_text().splitlines() if "port 7101 of" in line]
        assert len(said) == 1, said
        with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=5) as line:
            raise AssertionError("it still listens")


def test_logs_open_them_again(w):
    with site(w) as s:
        w.write("server.py", SERVER)
        run = s.submit("--grace", "1s", "--port", "7100", "--", "python3", "server.py", "2000", "7100")
        assert f"its port: dlrun forward {run} 7100" in s.said, s.said
        with following(w, "logs", "-f", run) as (process, err, out):
            port, _ = listened(err, 7100)
            assert len(ask(port)) == 16
            wait_for(lambda: len(lines_of(out)) > 5, "lines")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130, err.read_text()
        s.cancel(run)


def test_the_listener_stays_when_the_pod_is_another(w):
    with site(w) as s:
        w.write("server.py", SERVER)
        run = s.submit("--grace", "1s", "--retries", "2", "--port", "7100", "--", "python3", "server.py", "4000", "7100")
        with following(w, "logs", "-f", run) as (process, err, _):
            port, _ = listened(err, 7100)
            first = ask(port)
            s.cluster.kubectl("-n", s.namespace, "delete", "pod", "-l", f"dlrun.io/run-id={run}", "--grace-period=1", "--wait=false")
            deadline = time.monotonic() + 90
            second = first
            while second in ("", first) and time.monotonic() < deadline:
                try:
                    second = ask(port)
                except OSError:
                    second = ""
            assert second not in ("", first), err.read_text()
            assert process.poll() is None, err.read_text()
        s.cancel(run)


if __name__ == "__main__":
    main()
