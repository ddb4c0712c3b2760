#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""API servers that stand still, etcd that is killed, laptops that sleep, logins that expire, in the middle of submit, logs -f, wait and
forward: all go on by themselves. DLRUN_FULL=1: each for 60 s (else 20 s or less)."""

import contextlib
import json
import socket
import threading

from cluster_faults import FULL, names
from cluster_forward import NAME, Forward, recovery_s
from harness import *  # noqa: F403
from kubesite import site
from registries import Certs

from apiproxy import ApiProxy

AWAY_S = 60 if FULL else 20
ETCD_S = 60 if FULL else 3
CUTS = 7 if FULL else 2
# For what is to come back within seconds, on a machine that has a lot else to do.
BACK_S = 60
# Counts ten times a second until it is told to end, and answers with its name.
COUNTER = f"""
import contextlib, os, socket, sys, threading, time

# A connection that is cut, or says nothing, is none of the others' business.
def one(line):
    with line, contextlib.suppress(OSError):
        line.recv(100)
        line.sendall(b"counter")

def answer():
    listener = socket.create_server(("", {NAME}))
    while True:
        threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

threading.Thread(target=answer, daemon=True).start()
begin, i = time.monotonic(), 0
while not os.path.exists("/tmp/over"):
    print(i, flush=True)
    i += 1
    time.sleep(max(0, begin + i / 10 - time.monotonic()))
print("end", i, flush=True)
sys.exit(3)
"""


class Relay:
    """Passes bytes on. freeze(): from now on those of all connections vanish, without a word, those of later ones until thaw()."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self.target, self.frozen, self.links = (host, int(port)), False, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client = self.listener.accept()[0]
            try:
                server = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            self.links.append(link := {"dead": self.frozen, "ends": (client, server)})
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(link, one, other), daemon=True).start()

    def pump(self, link, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if not link["dead"]:
                    other.sendall(data)
        if not link["dead"]:
            self.end(link)

    def end(self, link):
        for end in link["ends"]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def freeze(self):
        self.frozen = True
        for link in self.links:
            link["dead"] = True

    def thaw(self):
        self.frozen = False

    def cut(self):
        for link in self.links:
            self.end(link)


class Watchers:
    """`logs -f`, `wait` and `forward` of a run that counts."""

    def __init__(self, s):
        s.w.write("count.py", COUNTER)
        self.s, self.w, self.run = s, s.w, s.submit("--", "python3", "count.py")
        self.out, self.err = self.w.dir / "out", self.w.dir / "err"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.logs = self.start("logs", "-f", self.run, stdout=out, stderr=err)
        self.wait = self.start("wait", self.run, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.grown()
        self.ports = Forward(self.w, [self.w.dlrun, "forward", self.run, str(NAME)], [NAME])
        recovery_s(self.ports, BACK_S)

    def start(self, *words, **more):
        return subprocess.Popen([self.w.dlrun, *words], cwd=self.w.tree, env=self.w.env, stdin=subprocess.DEVNULL, **more)

    def count(self):
        return len(self.out.read_bytes().splitlines())

    def grown(self, by=5):
        """Seconds until more lines have come."""
        begin, before = time.monotonic(), self.count()
        try:
            wait_for(lambda: self.count() >= before + by, f"more lines than {before}", BACK_S)
        except AssertionError as wrong:
            raise AssertionError(f"{wrong}: {self.err.read_text()}") from None
        return time.monotonic() - begin

    def back(self):
        """What is said of how soon all go on."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answers = pool.submit(recovery_s, self.ports, BACK_S)
            lines = self.grown()
            return f"next lines after {lines:.1f} s, an answer through forward after {answers.result():.1f} s"

    def send(self, number):
        for one in (self.logs, self.wait, self.ports.process):
            one.send_signal(number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in (self.logs, self.wait):
            one.kill()
            one.communicate()
        self.ports.end(signal.SIGKILL)

    def finish(self):
        """All lines, once and in order, and the program's exit status."""
        pod = self.s.cluster.started(self.s.namespace, self.run)
        tell = self.s.cluster.kubectl_argv("-n", self.s.namespace, "exec", pod, "--", "touch", "/tmp/over")
        wait_for(lambda: subprocess.run(tell, capture_output=True).returncode == 0, "a command in the pod", BACK_S)
        rc = self.logs.wait(BACK_S), self.wait.wait(BACK_S)
        text, said = self.out.read_text(), self.err.read_text()
        lines = self.count() - 1
        assert text == "".join(f"{i}\n" for i in range(lines)) + f"end {lines}\n", (text[-300:], said)
        assert rc[1] == 3, (rc, self.wait.stderr.read())


def config_through(s, address, ca=None, **more):
    """A kubeconfig of the user's that leads to the API server through that address."""
    path = s.w.dir / f"through-{address.rpartition(':')[2]}"
    there = {"certificate-authority": ca} if ca else {"tls-server-name": s.cluster.address.split(":")[0]}
    return str(s.cluster.kubeconfig(s.user, path, server=address, ca=not ca, namespace=s.namespace, cluster=there, **more))


def test_a_cluster_that_stands_still(w):
    """The API server does not answer for a while, in the middle of a submit; then etcd is killed."""
    with site(w, results={"emptyDir": True}, alone=True) as s, Watchers(s) as watchers:
        certs = Certs(w.dir / "certs")
        with ApiProxy(s.cluster.address, s.cluster.ca, *certs.pair()) as proxy, concurrent.futures.ThreadPoolExecutor() as pool:
            stopped = threading.Event()

            def fault(method, path, body):
                if method == "POST" and "/jobs" in path and not stopped.is_set():
                    s.cluster.stop("apiserver")
                    stopped.set()

            proxy.fault = fault
            submit = pool.submit(s.submit, "--", "true", env={"KUBECONFIG": config_through(s, proxy.address, str(certs.ca))})
            assert stopped.wait(BACK_S)
            time.sleep(AWAY_S)
            s.cluster.cont("apiserver")
            back, begin = watchers.back(), time.monotonic()
            other = submit.result(BACK_S)
            print(f"API server stopped for {AWAY_S} s: {back}, a submit {time.monotonic() - begin:.1f} s after that", flush=True)
        assert [n for n in names(s) if n.startswith("true-")] == [other]
        s.cluster.kill("etcd")
        time.sleep(ETCD_S)
        s.cluster.start("etcd")
        print(f"etcd killed, and started after {ETCD_S} s: {watchers.back()}", flush=True)
        watchers.finish()


def test_a_laptop_that_sleeps(w):
    with site(w, results={"emptyDir": True}) as s, contextlib.ExitStack() as stack:
        relay = Relay(s.cluster.address)
        w.env["KUBECONFIG"] = config_through(s, relay.address)
        watchers = stack.enter_context(Watchers(s))
        links = len(relay.links)
        submit = watchers.start("submit", "-d", "--name", "asleep", "--", "true", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for(lambda: len(relay.links) > links, "the first connection of a submit")
        relay.freeze()
        watchers.send(signal.SIGSTOP)
        submit.send_signal(signal.SIGSTOP)
        time.sleep(AWAY_S)
        relay.thaw()
        begin = time.monotonic()
        submit.send_signal(signal.SIGCONT)
        watchers.send(signal.SIGCONT)
        back = watchers.back()
        out, err = submit.communicate(timeout=BACK_S)
        took = time.monotonic() - begin
        made = [n for n in names(s) if n.startswith("asleep-")]
        assert submit.returncode == 0 and len(made) == 1 and made == out.decode().split(), (out, err, made)
        print(f"asleep for {AWAY_S} s, all connections dead: {back}, a submit after {took:.1f} s", flush=True)
        watchers.finish()


def test_tokens_that_expire_meanwhile(w):
    with site(w, results={"emptyDir": True}) as s, contextlib.ExitStack() as stack:
        relay, token, over = Relay(s.cluster.address), w.dir / "token", threading.Event()

        def renew():
            while not over.is_set():
                w.write("token.tmp", s.cluster.short_token(s.user, 6), base=w.dir).rename(token)
                over.wait(1)

        renewing = threading.Thread(target=renew)
        renewing.start()
        stack.callback(renewing.join)
        stack.callback(over.set)
        wait_for(token.exists, "a token")
        plugin = s.cluster.exec_plugin(s.user, w.dir, life_s=4, token=f"'\"$(cat {token})\"'")
        w.env["KUBECONFIG"] = config_through(s, relay.address, how="none", credentials=plugin)
        watchers = stack.enter_context(Watchers(s))
        for _ in range(CUTS):
            time.sleep(8)
            relay.cut()
            begin = time.monotonic()
            back = watchers.back()
            s.submit("--name", "other", "--", "true")
            print(f"tokens of 6 s, connections cut: {back}, a submit after {time.monotonic() - begin:.1f} s", flush=True)
        watchers.finish()
        calls = (w.dir / "calls").read_text().count("\n")
        assert calls >= 2 * CUTS, calls


if __name__ == "__main__":
    main()
