#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Logs of a real cluster as lib/kube follows them: ranks, restarts, replaced pods, tokens; then cuts, rotation and a restarting
API server under a fast writer, beside kubectl. DLRUN_FULL=1: five million lines (else 400,000)."""

import os
import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import cluster as clusters
from harness import *  # noqa: F403
from registries import FaultProxy

LINES = 5_000_000 if os.environ.get("DLRUN_FULL") else 400_000
CUTS = 50
# Numbered lines, each with its time, as fast as the runtime takes them.
WRITER = """
import os, sys, time
n, lines, pause = 0, int(sys.argv[1]), float(sys.argv[2])
time.sleep(5)  # for those who follow
while n < lines:
    ms = time.time_ns() // 1000000
    os.write(1, b"".join(b"%d %d\\n" % (i, ms) for i in range(n, min(n + 200, lines))))
    n += 200
    time.sleep(pause)
os.write(1, b"END\\n")
time.sleep(2)
"""


def tool(w):
    return Path(w.dlrun).parent / "tests/real/logs_tool"


def job(name, image, *words, **spec):
    return {"kind": "Job", "metadata": {"name": name}, "spec": {
        "backoffLimit": 3, "completionMode": "Indexed", "completions": 1, "parallelism": 1, **spec.pop("job", {}),
        "template": {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, **spec,
                              "containers": [{"name": "program", "image": image, "command": list(words)}]}}}}


def as_admin(w, c, **more):
    return c.kubeconfig("admin", w.dir / "config", "cert", **more)


def follow(w, c, ns, name, rank, *options, config=None, timeout=60, to=None):
    """(what came, what was said, exit status); `to`: a file in which the lines are as they come."""
    argv = [tool(w), config or as_admin(w, c), ns, "job", name, str(rank), *options]
    to = to or w.dir / "followed"
    with open(to, "wb") as out:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, timeout=timeout)
    return to.read_bytes().decode(), done.stderr.decode(), done.returncode


def test_all_ranks_until_the_end(w):
    c = clusters.get()
    script = 'for i in 1 2 3; do echo "$JOB_COMPLETION_INDEX:$i"; sleep 0.2; done; printf "no end"'
    with c.namespace() as ns:
        c.apply(job("ranks", c.images["busybox"], "sh", "-c", script, job={"completions": 3, "parallelism": 3}), namespace=ns)
        out, err, rc = follow(w, c, ns, "ranks", -1)
        assert rc == 0, err
        parts = re.findall(r"\[(\d)\]([^\[]*)", out)
        for rank in range(3):
            mine = "".join(text for n, text in parts if int(n) == rank)
            assert mine == "".join(f"{rank}:{i}\n" for i in (1, 2, 3)) + "no end", (out, err)
        assert follow(w, c, ns, "ranks", 1, "nofollow")[0] == "1:1\n1:2\n1:3\nno end"


def test_last_lines_and_where_to_go_on(w):
    c = clusters.get()
    with c.namespace() as ns:
        c.apply(job("tail", c.images["busybox"], "sh", "-c", "seq 1 100; sleep 1; seq 101 200"), namespace=ns)
        whole, err, rc = follow(w, c, ns, "tail", 0, "showtoken")
        assert (rc, whole) == (0, "".join(f"{n}\n" for n in range(1, 201))), (rc, whole, err)
        assert follow(w, c, ns, "tail", 0, "tail=2")[0] == "199\n200\n"
        assert follow(w, c, ns, "tail", 0, "tail=0")[0] == ""
        token = re.search(r"^token: (\S+)$", err, re.M)[1]
        assert len(token) < 128
        assert follow(w, c, ns, "tail", 0, f"token={token}")[0] == ""
        early = follow(w, c, ns, "tail", 0, "nofollow", "showtoken")[1]
        assert re.search(r"^token: (\S+)$", early, re.M)[1] == token


def test_goes_on_in_the_pod_that_replaces_one(w):
    """The first never ends by itself, the second when its line has come."""
    c = clusters.get()
    script = ('trap "exit 1" TERM; end=/data/over; [ -e /data/first ] || end=/never; touch /data/first; echo "from $HOSTNAME"; '
              'until [ -e $end ]; do sleep 0.1; done; echo over')
    with c.namespace() as ns:
        there = c.volume(ns, "data")
        one = job("moves", c.images["busybox"], "sh", "-c", script, volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}])
        one["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [{"name": "d", "mountPath": "/data"}]
        c.apply(one, namespace=ns)
        first = c.wait(lambda: c.started(ns, "moves"), "the first pod")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            seen = w.dir / "seen"
            following = pool.submit(follow, w, c, ns, "moves", 0, timeout=180, to=seen)
            wait_for(lambda: seen.exists() and seen.read_text() == "from moves-0\n", "a line of the first pod", 60)
            c.delete("Pod", first, ns)
            try:
                wait_for(lambda: seen.read_text().count("from") == 2, "a line of the second pod", 90)
            finally:
                (there / "over").touch()
            out, err, rc = following.result()
        assert rc == 0, err
        assert re.fullmatch(r"from moves-0\nfrom moves-0\nover\n", out), (out, err)
        assert "goes on in pod moves-0-" in err, err


def test_a_container_that_is_started_again(w):
    c = clusters.get()
    script = 'echo "try"; [ -e /data/second ] && { echo over; exit 0; }; touch /data/second; sleep 1; echo fails; exit 1'
    one = job("again", c.images["busybox"], "sh", "-c", script, restartPolicy="OnFailure", volumes=[{"name": "d", "emptyDir": {}}])
    one["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [{"name": "d", "mountPath": "/data"}]
    with c.namespace() as ns:
        c.apply(one, namespace=ns)
        out, err, rc = follow(w, c, ns, "again", 0)
        assert (rc, out) == (0, "try\nfails\ntry\nover\n"), (out, err)
        assert "was started again" in err, err


def test_more_ranks_than_connections_of_a_push(w):
    """All of them are followed at the same time: none ends before the last has begun."""
    c = clusters.get()
    script = 'echo "$JOB_COMPLETION_INDEX:begins"; sleep 4; echo "$JOB_COMPLETION_INDEX:ends"'
    with c.namespace() as ns:
        c.apply(job("many", c.images["busybox"], "sh", "-c", script, job={"completions": 12, "parallelism": 12}), namespace=ns)
        out, err, rc = follow(w, c, ns, "many", -1, timeout=120)
        assert rc == 0, err
        words = re.findall(r"(\d+):(begins|ends)", out)
        assert sorted(words) == sorted((str(n), what) for n in range(12) for what in ("begins", "ends")), (out, err)


def judge(out, lines):
    """(lines got, missing, holes); fails for what is doubled, reordered, or missing without a notice of its own, at that place or
    later."""
    out, gaps = re.subn(r"notice \d+: [^\n]*lines (?:between|before|after) [^\n]*\n", "\0", out)
    out = re.sub(r"(?:notice \d+|end): [^\n]*\n", "", out)
    last, last_ms, missing, holes, torn, told, untold = -1, 0, 0, 0, 0, False, []
    for line in out.split("\n"):
        for _ in range(line.count("\0")):
            told = told or not untold
            untold = untold[1:]
        line = line.replace("\0", "")
        words = line.split()
        if line in ("END", ""):
            continue
        if len(words) != 2 or len(words[1]) != 13:
            torn += 1
            continue
        n, ms = int(words[0]), int(words[1])
        if n <= last and gaps and ms >= last_ms:
            torn += 1  # its beginning went to the file before, or with one that is gone
            last_ms = ms
            continue
        assert n > last, f"{n} after {last}"
        if n > last + 1:
            untold += [] if told else [f"{last} to {n}, {last_ms} to {ms}"]
            holes, missing = holes + 1, missing + n - last - 1
        last, last_ms, told = n, ms, False
    assert last == lines - 1 or told, f"ends at {last}"
    assert not untold, untold
    assert torn <= 2 * gaps, torn
    return lines - missing, missing, holes


def measured(argv, out_path, timeout=600):
    """(seconds, CPU seconds) of a program whose output goes to a file, with what it says between the lines."""
    begin = time.monotonic()
    with open(out_path, "wb") as out, subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as running:
        killer = threading.Timer(timeout, running.kill)
        killer.start()
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        killer.cancel()
    return time.monotonic() - begin, used.ru_utime + used.ru_stime


def write_fast(c, ns, name, lines, pause="0"):
    c.apply(job(name, c.images["python"], "python3", "-c", WRITER, str(lines), pause), namespace=ns)
    return c.wait(lambda: c.started(ns, name), "the writer")


def late_reader(w, c, ns):
    """What was rotated away before anything was read is told, too."""
    pod = write_fast(c, ns, "late", LINES, "0.01")
    first = ("logs", "-n", ns, pod, "--limit-bytes", "2")
    c.wait(lambda: c.kubectl(*first).strip() not in ("", "0"), "a rotation")
    out = w.dir / "late"
    measured([tool(w), as_admin(w, c), ns, "job", "late", "0"], out)
    judge(out.read_text(), LINES)
    assert re.search("rank 0: lines before .* may be missing", out.read_text())


def test_cuts_rotation_and_a_restart(w):
    random.seed(7)
    with clusters.Cluster(nodes=1, kubelet={"containerLogMaxSize": "1Mi"}) as c, c.namespace() as ns:
        host, port = c.server.removeprefix("https://").rsplit(":", 1)
        with FaultProxy((host, int(port))) as proxy:
            config = as_admin(w, c, server=proxy.address)
            write_fast(c, ns, "fast", LINES, "0.001")
            done = threading.Event()

            def disturb():
                for n in range(CUTS):
                    if done.wait(random.random() * LINES / 500_000):
                        return
                    proxy.cut_all(random.choice(("rst", "fin")))
                    if n == CUTS // 2:
                        c.restart("apiserver")

            thread = threading.Thread(target=disturb)
            thread.start()
            out = w.dir / "out"
            seconds, cpu = measured([tool(w), config, ns, "job", "fast", "0"], out)
            done.set()
            thread.join()
        late_reader(w, c, ns)
        got, missing, holes = judge(out.read_text(), LINES)
        print(f"{LINES} lines, {proxy.accepted} connections: {seconds:.1f} s, CPU {cpu:.2f} s, {got} came, {missing} missing in "
              f"{holes} holes, all told", flush=True)


def test_beside_kubectl(w):
    """Both follow the same pod, one after the other started, at the same time."""
    c = clusters.get()
    with c.namespace() as ns:
        pod = write_fast(c, ns, "both", LINES, "0.001")
        outs, results = [w.dir / "ours", w.dir / "theirs"], [None, None]
        argvs = [[tool(w), as_admin(w, c), ns, "job", "both", "0"], c.kubectl_argv("logs", "-f", "-n", ns, pod)]

        def one(i):
            results[i] = measured(argvs[i], outs[i])

        threads = [threading.Thread(target=one, args=(i,)) for i in range(2)]
        begin = time.time()
        [t.start() for t in threads]
        [t.join() for t in threads]
        counts = [sum(1 for _ in open(out, "rb")) for out in outs]
        judge(outs[0].read_text(), LINES)
        for who, (seconds, cpu), count, out in zip(("ours", "kubectl"), results, counts, outs):
            print(f"{who}: {count} lines in {out.stat().st_mtime - begin:.1f} s, ended after {seconds:.1f} s, CPU {cpu:.2f} s, "
                  f"{cpu / max(count, 1) * 1e6:.2f} us a line", flush=True)


if __name__ == "__main__":
    main()
