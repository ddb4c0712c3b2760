#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The runner of nodes over the streams of a pod's exec, in a real cluster: nothing of its protocol is SSH's."""

import contextlib
import os
import re
import signal
import subprocess

import cluster as clusters
from cluster import pod
from harness import *  # noqa: F403
from runner import layer

PIECES, LINES = 40, 2000
CUTS = 5
PIECE = f"BEGIN {{ for (i = 1; i <= {LINES}; i++) print n, i, \"of {LINES}\" }}"
# Where the stream is cut, and how far the program goes beyond that before it waits for the test.
CUT_AT = [cut * PIECES // (CUTS + 2) for cut in range(1, CUTS + 1)]
BEYOND = 4


def counts(waits_at=()):
    waits = "|".join(map(str, waits_at))
    gate = f"case $n in {waits}) until [ -e /tmp/go-$n ]; do sleep 0.1; done;; esac; " if waits else ""
    return f"n=0; while [ $n -lt {PIECES} ]; do n=$((n + 1)); awk -v n=$n '{PIECE}'; sleep 0.1; {gate}done; exit 7"


WHOLE = "".join(f"{n} {i} of {LINES}\n" for n in range(1, PIECES + 1) for i in range(1, LINES + 1))


class PodNode:
    """A pod that sleeps, and what opens a conversation with it."""

    def __init__(self, w, cluster, namespace, name):
        self.w, self.cluster, self.namespace, self.name = w, cluster, namespace, name
        self.config = cluster.kubeconfig("alice", w.dir / f"config-{name}", namespace=namespace)
        self.tools = Path(w.dlrun).parent / "tests/real"
        self.opener = [self.tools / "pod_tool", "exec", self.config, namespace, name, "main", "-i", "--", "sh", "-c"]

    def argv(self, *words, opener=None):
        return [str(word) for word in (self.tools / "node_tool", *(opener or self.opener), "--", *words)]

    def ask(self, *words, rc=0, opener=None, **more):
        done = self.w.command(self.argv(*words, opener=opener), timeout=120, **more)
        assert done.rc == rc, done
        return done

    def facts(self, **more):
        pairs = [line.split(" ", 1) for line in self.ask("hello", **more).out.splitlines()]
        return dict(pairs), [value for key, value in pairs if key == "missing"]

    def state(self, run):
        """(state, fields)"""
        word, *fields = self.ask("state", run).out.splitlines()
        return word, dict(field.split("=", 1) for field in fields)

    def inside(self, line):
        return self.cluster.kubectl("-n", self.namespace, "exec", self.name, "--", "busybox", "sh", "-c", line)

    def bring(self, program):
        """A program of the machine's."""
        argv = self.cluster.kubectl_argv("-n", self.namespace, "exec", "-i", self.name, "--", "busybox", "sh", "-c",
                                         f"cd /bin && cat >new && chmod 755 new && mv -f new {program}")
        subprocess.run(argv, input=Path(needs(program)).read_bytes(), check=True, timeout=60)

    def working(self):
        """The processes of the runner that live in the pod."""
        look = "for d in /proc/[0-9]*; do echo $d $(busybox tr '\\0' ' ' <$d/cmdline); done 2>/dev/null"
        return [line for line in self.inside(look).splitlines() if "/.dlrun/" in line]

    def ends(self):
        wait_for(lambda: not self.working(), "the end of what works in the pod")


@contextlib.contextmanager
def pod_node(w, shell="busybox", flock=True):
    """The first process of the pod is a program that waits for no children; busybox has no flock everywhere."""
    c = clusters.get()
    with c.namespace("alice") as ns:
        c.apply(pod("node", c.images["python"], "busybox", "sleep", "3600"), namespace=ns)
        c.phase(ns, "node", "Running")
        node = PodNode(w, c, ns, "node")
        for program in (["flock"] if flock else []) + ([shell] if shell != "busybox" else []):
            node.bring(program)
        node.inside(f"busybox ln -sf {shell} /bin/sh")
        yield node


def openings(process):
    """The processes that carry conversations of a node_tool."""
    try:
        return [int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def kill(*pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def started(node, *words):
    """A node_tool whose output is a file."""
    out, err = node.w.dir / "out", node.w.dir / "err"
    with open(out, "wb") as out_file, open(err, "wb") as err_file:
        process = subprocess.Popen(node.argv(*words), stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file, env=node.w.env)
    process.out, process.err = out, err
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_hello(w):
    for shell in ("busybox", "dash"):
        with pod_node(w, shell) as node:
            facts, missing = node.facts()
            assert facts["shell"] == shell and facts["host"] == "node" and facts["uid"] == "0" and not missing, (facts, missing)
            assert facts["launch"] == "setsid" and int(facts["free"]) > 0, facts
            digest, file = node.inside(f"sha256sum {facts['root']}/bin/*").split()
            assert digest.startswith(file.rpartition("/")[2]), (digest, file)
            kubectl = [*node.cluster.kubectl_argv("exec", "-i", node.name, config=node.config), "--", "sh", "-c"]
            assert node.facts(opener=kubectl)[0]["root"] == facts["root"]
            node.ends()


def test_a_run(w):
    with pod_node(w) as node:
        data, _ = layer({"words": "of the layer\n"})
        tgz = w.write("layer.tgz", data, base=w.dir)
        line = 'cat words; echo "$1" >&2; head -c 300000 /dev/urandom >"$DLRUN_OUTPUT_DIR/r"; sha256sum <"$DLRUN_OUTPUT_DIR/r"; exit 3'
        done = node.ask("run", "--layer", tgz, "a-22222", "sh", "-c", line, "x", "it's", rc=3)
        said = re.fullmatch(r"of the layer\nit's\n([0-9a-f]{64})  -\n", done.out)
        assert said and not done.err, done
        got = node.ask("get", "a-22222", "r").out_bytes
        assert len(got) == 300000 and hashlib.sha256(got).hexdigest() == said[1], len(got)
        word, fields = node.state("a-22222")
        assert word == "failed" and fields["code"] == "3" and fields["reason"] == "Error", (word, fields)
        assert node.state("b-22222")[0] == "absent"
        node.ends()


def test_beside_a_run(w):
    with pod_node(w) as node, started(node, "run", "e-22222", "python3", "-c", "import time; print('on', flush=True); time.sleep(99)") \
            as process:
        wait_for(lambda: process.out.read_text() == "on\n", "a line of the log", 60)
        beside = node.ask("exec", "e-22222", "sh", "-c", "echo $DLRUN_RUN_ID; cat; echo err >&2; exit 5", rc=5, stdin=None, input=b"input\n")
        assert (beside.out, beside.err) == ("e-22222\ninput\n", "err\n"), beside
        assert "no-such-program" in node.ask("exec", "e-22222", "no-such-program", rc=125).err
        node.ask("cancel", "e-22222")
        assert process.wait(30) == 143, process.err.read_text()
        assert node.state("e-22222")[0] == "cancelled"
        node.ends()


def outlives_its_stream(w, shell):
    program = counts(piece + BEYOND for piece in CUT_AT)
    with pod_node(w, shell) as node, started(node, "run", "c-22222", "sh", "-c", program) as process:
        programs = set()
        for piece in CUT_AT:
            wait_for(lambda: f"\n{piece} 1 of" in process.out.read_text(), f"piece {piece} of the log", 60)
            carriers = wait_for(lambda: openings(process) or process.poll() is not None, "a conversation")
            assert process.poll() is None, process.err.read_text()
            kill(*carriers)
            word, fields = node.state("c-22222")
            assert word == "running", (word, fields)
            programs.add(fields["program"])
            node.inside(f"busybox touch /tmp/go-{piece + BEYOND}")
        assert process.wait(120) == 7, process.err.read_text()
        assert len(programs) == 1, programs
        assert process.out.read_text() == WHOLE, (process.out.stat().st_size, len(WHOLE))
        said = process.err.read_text()
        assert "was lost" in said and "answers again" in said, said
        assert node.ask("log", "c-22222").out == WHOLE
        node.ends()


def test_a_run_outlives_its_stream_busybox(w):
    outlives_its_stream(w, "busybox")


def test_a_run_outlives_its_stream_dash(w):
    outlives_its_stream(w, "dash")


def test_a_run_outlives_its_client(w):
    with pod_node(w) as node:
        with started(node, "run", "d-22222", "sh", "-c", counts()) as process:
            wait_for(lambda: "\n2 1 of" in process.out.read_text(), "the beginning of the log", 60)
            kill(process.pid, *openings(process))
        assert node.ask("log", "d-22222").out == WHOLE
        assert node.state("d-22222")[1]["code"] == "7"
        node.ends()


def test_missing_tools_are_named(w):
    with pod_node(w, "dash", flock=False) as node:
        node.inside("busybox rm -f /bin/flock /bin/setsid")
        # Locks are python's.
        assert node.facts()[1] == ["setsid"]
        assert node.ask("run", "e-22222", "true").rc == 0 and node.state("e-22222")[1]["code"] == "0"
        node.inside("busybox rm -f /usr/bin/python*")
        assert node.facts()[1] == ["flock", "setsid"]
        done = node.ask("run", "f-22222", "true", rc=125)
        assert done.err == "error: node.tool: node: none of flock, perl and python3 is there\n", done
        assert node.state("f-22222")[0] == "absent"


def test_without_a_shell(w):
    with pod_node(w) as node:
        node.inside("busybox rm /bin/sh")
        done = node.ask("hello", rc=125)
        assert done.err.startswith("error: node.shell: ") and "sh cannot be started in the pod" in done.err, done


if __name__ == "__main__":
    main()
