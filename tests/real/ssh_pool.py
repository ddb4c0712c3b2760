#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several hosts: which of them takes a run and why, gangs of all ranks or none, and hosts that share one home."""

import contextlib
import json
import time

from harness import *  # noqa: F403
from sshsite import SshSite, site
from ssh_gpus import holding

POOL = "gpu1,gpu2,gpu3"


@contextlib.contextmanager
def pool(w, *gpus, **options):
    with SshSite(w) as s:
        for i, n in enumerate(gpus, 1):
            s.host(f"gpu{i}", gpus=n, **options)
        w.repo()
        yield s


def host_of(s, run):
    return s.w.show(run)["target"]["hosts"]


def test_the_one_that_fits_is_taken(w):
    with pool(w, 0, 1, 4) as s:
        run = s.submit("-g", "2", "--", "true", to=POOL)
        assert host_of(s, run) == ["gpu3"], host_of(s, run)
        done = w.run("submit", "-d", "-t", f"ssh:{POOL}", "-g", "5", "--", "true")
        assert done.rc in (1, 2, 5) and "5 GPUs" in done.err and "3 hosts" in done.err, done


def test_the_one_that_is_free_is_taken(w):
    with pool(w, 1, 1, 1) as s:
        runs = [holding(s, to=POOL) for _ in range(3)]
        assert sorted(host_of(s, run)[0] for run in runs) == ["gpu1", "gpu2", "gpu3"], [host_of(s, run) for run in runs]
        late = s.submit("-g", "1", "--", "echo", "at last", to=POOL)
        wait_for(lambda: s.state(late) == "queued", "its queueing", 20)
        where = host_of(s, late)[0]
        for run in runs:
            if host_of(s, run) == [where]:
                w.ok("cancel", run)
        assert s.ended(late)["state"] == "succeeded"
        for run in runs:
            w.run("cancel", run)


def test_the_one_with_the_layers_is_preferred(w):
    with pool(w, 0, 0, 0) as s:
        w.write("big.bin", os.urandom(9 << 20))
        s.ended(s.submit("--", "true", to="gpu2"))
        run = s.submit("--", "true", to=POOL)
        assert host_of(s, run) == ["gpu2"] and w.show(run)["image"]["bytes_pushed"] < 1 << 20, w.show(run)


def test_hosts_that_do_not_answer_are_passed_over(w):
    with pool(w, 0, 0, 0) as s:
        s["gpu1"].stop()
        s["gpu2"].freeze()
        begin = running_time()
        run = s.submit("--", "true", to=POOL)
        assert host_of(s, run) == ["gpu3"] and running_time() - begin < 20, (host_of(s, run), running_time() - begin)
        assert "gpu1" in s.said + json.dumps(w.show(run)["warnings"]) + json.dumps(s.why(run)), s.said
        s["gpu3"].stop()
        done = w.run("submit", "-d", "-t", f"ssh:{POOL}", "--", "true")
        assert done.rc == 3 and all(name in done.err for name in POOL.split(",")), done
        s["gpu2"].freeze(False)


def test_what_differs_between_hosts(w):
    """Tools, GPUs and limits that one host of a pool has and another has not; a host that is away is named."""
    with pool(w, 2, 2, 1) as s:
        for i, version in enumerate(("3.11.2", "3.11.2", "3.12.3"), 1):
            s[f"gpu{i}"].program("python3", f"#!/bin/sh\necho Python {version}\n")
        s["gpu2"].program("uv", "#!/bin/sh\nexit 1\n")
        s["gpu2"].program("podman", "#!/bin/sh\nprintf 'podman version 5.0.3\\033[31m\\n'\n")
        w.write("dlrun.yaml", json.dumps({"targets": {"lab": {"kind": "ssh", "hosts": ["gpu[1-3]"]}}}))
        done = w.ok("targets", "--diff", "lab")
        lines = done.out.splitlines()
        assert lines[0].startswith("lab: 3 hosts, "), done
        assert "  python3        3.11.2 on gpu1, gpu2; 3.12.3 on gpu3" in lines, done
        assert any(line.startswith("  GPUs           2 × ") and "on gpu1, gpu2; 1 × " in line for line in lines), done
        assert "\033" not in done.out and any(line.startswith("  podman ") and "on gpu2" in line for line in lines), done
        facts = {f["name"]: f["values"] for f in json.loads(w.ok("targets", "--diff", "--json", "lab").out)["targets"][0]["facts"]}
        assert facts["python3"] == [{"value": "3.11.2", "hosts": ["gpu1", "gpu2"]}, {"value": "3.12.3", "hosts": ["gpu3"]}], facts
        assert facts["clock"] == [{"value": "right", "hosts": ["gpu1", "gpu2", "gpu3"]}] and "kernel" in facts and "disk" in facts, facts
        s["gpu3"].stop()
        done = w.ok("targets", "--diff", "lab")
        assert done.out.startswith("lab: 2 hosts, ") and "python3" not in done.out and "gpu3: " in done.err, done
        w.refused("targets", "--diff", "--gpus", rc=2, id="usage", says="--gpus and --diff cannot be used together")
        assert "there is nothing to compare" in w.ok("targets", "--diff", "local").err


def test_ranges_and_what_targets_says(w):
    with pool(w, 2, 0) as s:
        w.write("dlrun.yaml", json.dumps({"targets": {"lab": {"kind": "ssh", "hosts": ["gpu[1-2]"]}}}))
        done = w.ok("targets")
        assert "lab" in done.out and "2" in done.out, done
        told = json.loads(w.ok("targets", "--json").out)
        assert "gpu1" in json.dumps(told) and "gpu2" in json.dumps(told), told
        assert w.ok("doctor", "lab", "--json").out if "lab" in w.run("doctor", "--help").out else True
        run = w.ok("submit", "-d", "-t", "lab", "-g", "1", "--", "true").out.strip()
        assert host_of(s, run) == ["gpu1"]


def test_two_hosts_share_one_home(w):
    """Layers are shared; runs, locks and pids are each host's own."""
    with SshSite(w) as s:
        one = s.host("gpu1", gpus=1)
        s.host("gpu2", gpus=1, home=one.homes)
        one.ok("sh", "-c", "mkdir -m 700 -p ~/.dlrun && : > ~/.dlrun/shared", user="me")
        w.repo()
        w.write("big.bin", os.urandom(2 << 20))
        runs = [holding(s, to=name) for name in ("gpu1", "gpu2")]
        assert w.show(runs[1])["image"]["bytes_pushed"] < 1 << 20, w.show(runs[1])["image"]
        for name, run, other in (("gpu1", *runs), ("gpu2", *runs[::-1])):
            local = s[name].dir / "var-tmp/dlrun-3001/on" / name / "runs"
            assert (local / run).is_dir() and not (local / other).exists(), list(local.iterdir())
        one.reboot()
        assert s.ended(runs[0], 20)["state"] == "lost" and s.state(runs[1]) == "running"
        w.ok("cancel", runs[1])
        assert s.ended(runs[1])["state"] == "cancelled"


def test_many_hosts_are_asked_at_once(w):
    names = [f"n{i:02}" for i in range(12)]
    with site(w, *names) as s, contextlib.ExitStack() as wires:
        for name in names:
            wires.enter_context(s.wire(name, delay=0.1))
        s.submit("--", "true", to="n[00-11]")
        begin = running_time()
        s.submit("--", "true", to="n[00-11]")
        took = running_time() - begin
        print(f"12 hosts at 200 ms: {took:.1f} s", flush=True)
        assert took < 12, took


if __name__ == "__main__":
    main()
