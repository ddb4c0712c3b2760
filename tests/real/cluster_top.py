#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What pods and the nodes of a cluster use, as top shows it: by a look beside the program, by the metrics API, or not at all."""

import json
import subprocess

import cluster as clusters
from harness import *  # noqa: F403
from kube_images import layout
from kubesite import site
from registries import Certs

from apiproxy import ApiProxy

LOAD = """
import os, sys
if len(sys.argv) > 1:
    with open("/tmp/nvidia-smi", "w") as f:
        f.write("#!/bin/sh\\necho " + sys.argv[1] + "\\n")
    os.chmod("/tmp/nvidia-smi", 0o755)
memory = bytearray(100 << 20)
for i in range(0, len(memory), 4096):
    memory[i] = 1
print("ready", flush=True)
while True:
    sum(range(1000))
"""
MIB = 1 << 20


def top(w, word):
    return json.loads(w.ok("top", "--json", word, timeout=120).out)


def running(s, *words):
    run = s.submit("--grace", "1s", *words)
    wait_for(lambda: "ready" in s.w.run("logs", run).out, "its first word", 90)
    return run


def looked_at(w, run):
    def known():
        [seen] = top(w, run)["runs"]
        return seen if seen["now"] and seen["now"].get("memory_bytes") is not None else None
    return wait_for(known, "a look at it", 60)


def test_a_program_with_gpus(w):
    """Its own nvidia-smi is on PATH; /proc or the control group tell the rest, also after the end."""
    with site(w, files={"load.py": LOAD}, results={"emptyDir": True}) as s:
        run = running(s, "--env", "PATH=/tmp:/usr/local/bin:/usr/bin:/bin", "--", "python3", "load.py", "'50, 2048, 75.5'")
        seen = looked_at(w, run)
        now = seen["now"]
        assert 0.02 < now["cpu"] < 1.5 and 90 * MIB < now["memory_bytes"] < 300 * MIB, now
        assert (now["gpu_busy"], now["gpu_memory_bytes"], now["power_w"]) == (0.5, 2048 * MIB, 75.5), now
        table = w.ok("top", run, timeout=120).out
        assert re.search(rf"^{run} +running +\S+ \S+ +\d+ % +\d+ MiB +50 % +2.0 GiB +76 W", table, re.M), table
        s.cancel(run)
        usage = s.ended(run)["usage"]
        assert usage["cpu_s"] > 0 and usage["memory_peak_bytes"] > 90 * MIB, usage
        assert usage["gpu_busy"] == 0.5 and usage["gpu_memory_peak_bytes"] == 2048 * MIB and usage["energy_j"] is None, usage


def test_a_program_that_lies(w):
    with site(w, files={"load.py": LOAD}, results={"emptyDir": True}) as s:
        run = running(s, "--env", "PATH=/tmp:/usr/local/bin:/usr/bin:/bin", "--", "python3", "load.py",
                      "dlrun:memory; printf '99999999999999999999\\n1e9, \\033[2J, nan\\n'; head -c 3000000 /dev/zero")
        done = w.ok("top", "--json", run, timeout=120)
        assert "\\u001b" not in done.out and "\x1b" not in done.out + done.err, done
        s.cancel(run)
        assert s.ended(run)["state"] == "cancelled"


def test_an_image_without_a_shell(w):
    cluster = clusters.get()
    base = f"{cluster.registry}/bare:v1"
    subprocess.run(["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{layout('bare')}:v1", f"docker://{base}"], check=True)
    with site(w, base=base, files={"load.py": LOAD}, results={"emptyDir": True}) as s:
        run = running(s, "--", "python3", "load.py")
        [seen] = top(w, run)["runs"]
        assert seen["state"] == "running" and not seen["now"], seen
        assert re.search(rf"^{run} +running +\S+ \S+ +- +- +- +- +-$", w.ok("top", run, timeout=120).out, re.M)
        s.cancel(run)
        assert s.ended(run)["usage"]["memory_peak_bytes"] is None


def test_the_metrics_api(w):
    """Behind a proxy that plays it, and passes no upgrade on: no command can be run beside the program."""
    certs = Certs(w.dir / "certs")
    answers = {}

    def play(method, path, body):
        for part, answer in answers.items():
            if part in path and "metrics.k8s.io" in path:
                return answer
        return 404 if "metrics.k8s.io" in path else None

    with site(w, files={"load.py": LOAD}, results={"emptyDir": True}) as s, \
            ApiProxy(s.cluster.address, s.cluster.ca, *certs.pair(), fault=play) as proxy:
        w.env["KUBECONFIG"] = str(s.cluster.kubeconfig(
            s.user, w.dir / "proxied", server=proxy.address, ca=False, namespace=s.namespace,
            cluster={"certificate-authority": str(certs.ca)}))
        run = running(s, "--", "python3", "load.py")
        pod = s.cluster.get("Pod", namespace=s.namespace)[0]["metadata"]["name"]
        answers["/pods"] = {"kind": "PodMetricsList", "items": [
            {"metadata": {"name": pod}, "containers": [{"name": "program", "usage": {"cpu": "750000000n", "memory": "300Mi"}}]}]}
        now = looked_at(w, run)["now"]
        assert (now["cpu"], now["memory_bytes"], now["gpu_busy"]) == (0.75, 300 * MIB, None), now
        answers["/pods"] = {"kind": "PodMetricsList", "items": [{"metadata": {"name": pod}, "containers": "\x1b[2J"}, 7]}
        assert top(w, run)["runs"][0]["state"] == "running"
        s.cancel(run)
        usage = s.ended(run)["usage"]
        assert usage["memory_peak_bytes"] == 300 * MIB and usage["cpu_s"] is None, usage


def test_the_nodes(w):
    with site(w, results={"emptyDir": True}) as s:
        s.cluster.offer(s.cluster.nodes[0], **{"nvidia.com/gpu": 2})
        try:
            w.env["KUBECONFIG"] = str(s.cluster.kubeconfig("admin", w.dir / "admin", namespace=s.namespace))
            found = {m["host"]: m for m in top(w, "k")["machines"]}
            first = found[s.cluster.nodes[0]]
            assert set(s.cluster.nodes) <= set(found) and first["gpus_all"] == 2 and first["gpus_free"] == 2, found
            assert first["cpus"] >= 1 and first["memory_bytes"] > 0 and first["load"] is None, first
            table = w.ok("top", "k", timeout=120).out
            assert re.search(rf"^{s.cluster.nodes[0]} +\d+ +- +- of \S+ GiB +2 of 2 free$", table, re.M), table
        finally:
            s.cluster.offer(s.cluster.nodes[0], **{"nvidia.com/gpu": None})


def test_who_may_not_list_nodes_sees_the_runs(w):
    with site(w, results={"emptyDir": True}) as s:
        [machine] = top(w, "k")["machines"]
        assert not machine["reachable"] and "nodes" in machine["error"], machine


if __name__ == "__main__":
    main()
