#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Members of a study on several hosts: where each goes, and that the limit of all holds though no host knows of the others."""

import contextlib
import json

from harness import *  # noqa: F403
from sshsite import SshSite

POOL = "gpu1,gpu2,gpu3"


class Study:
    """A member says "b I" in its host's home when it begins, waits for go.I there, and says "e I"."""

    def __init__(self, s, count, *options, parallel, end=":", to=POOL):
        self.s, self.w = s, s.w
        line = f"cd; echo b {{i}} >> study; until test -e go.{{i}}; do sleep 0.05; done; echo e {{i}} >> study; {end}"
        self.id = self.w.ok("sweep", "-d", "-t", f"ssh:{to}", "-g", "0", "--over", f"i=0..{count - 1}", "--parallel", str(parallel), *options,
                            "--", "sh", "-c", line, timeout=120).out.strip()

    def run(self, i):
        return member_id(self.id, i)

    def host(self, i):
        return self.w.show(self.run(i))["target"]["hosts"][0]

    def go(self, *members):
        for i in members:
            (self.s[self.host(i)].home / f"go.{i}").write_text("")

    def lines(self, host):
        path = self.s[host].home / "study"
        return path.read_text().splitlines() if path.exists() else []

    def begun(self, host):
        return [int(line[2:]) for line in self.lines(host) if line[0] == "b"]

    def ended(self, i):
        return self.s.ended(self.run(i))


@contextlib.contextmanager
def pool(w, n=3, **options):
    with SshSite(w) as s:
        for i in range(1, n + 1):
            s.host(f"gpu{i}", **options)
        w.repo()
        yield s


def test_limit_of_a_pool(w):
    """Four slots: two of the first host, one of each of the others."""
    with pool(w) as s:
        study = Study(s, 12, parallel=4)
        hosts = [study.host(i) for i in range(8)]
        assert hosts == ["gpu1", "gpu2", "gpu3", "gpu1"] * 2, (hosts, w.show(study.run(1)))
        slots = {"gpu1": 2, "gpu2": 1, "gpu3": 1}
        wait_for(lambda: all(len(study.begun(host)) == n for host, n in slots.items()), "as many as may")
        assert {host: study.begun(host) for host in slots} == {"gpu1": [0, 3], "gpu2": [1], "gpu3": [2]}
        wait_for(lambda: s.state(study.run(11)) == "queued", "the last one waits")
        assert f"waits for a place in study {study.id}: 2 run" in json.dumps(s.why(study.run(11))), s.why(study.run(11))
        study.go(*range(12))
        for i in range(12):
            assert study.ended(i)["state"] == "succeeded", i
        for host, n in slots.items():
            assert most_running(study.lines(host)) <= n and study.begun(host) == sorted(study.begun(host)), (host, study.lines(host))


def test_a_restart_keeps_the_limit_of_its_host(w):
    with pool(w, 2) as s:
        study = Study(s, 4, parallel=2, end="test {i} = 2")
        study.go(0, 1, 3)
        assert study.ended(0)["state"] == "failed"
        wait_for(lambda: 2 in study.begun("gpu1"), "the next one there")
        w.ok("restart", study.run(0))
        wait_for(lambda: s.state(study.run(0)) == "queued", "it waits")
        assert "1 runs" in json.dumps(s.why(study.run(0))), s.why(study.run(0))
        assert study.begun("gpu1") == [0, 2]
        study.go(2)
        assert study.ended(0)["state"] == "failed" and study.begun("gpu1") == [0, 2, 0]


def test_a_host_that_does_not_answer(w):
    """Its members go to the next one that has a slot, which keeps its own limit; a host without a slot gets none."""
    with pool(w) as s:
        s["gpu1"].stop()
        study = Study(s, 6, parallel=2)
        assert {study.host(i) for i in range(6)} == {"gpu2"}
        wait_for(lambda: study.begun("gpu2") == [0], "the first one")
        wait_for(lambda: s.state(study.run(1)) == "queued", "the second one waits")
        assert "1 runs" in json.dumps(s.why(study.run(1))), s.why(study.run(1))
        study.go(*range(6))
        for i in range(6):
            assert study.ended(i)["state"] == "succeeded", i
        assert study.begun("gpu2") == list(range(6)) and study.begun("gpu3") == []


def test_reboot(w):
    """Nobody holds a slot any more, and what waited there is lost."""
    with pool(w, 1) as s:
        study = Study(s, 3, parallel=1, to="gpu1")
        wait_for(lambda: study.begun("gpu1") == [0], "the first one")
        wait_for(lambda: s.state(study.run(2)) == "queued", "the others wait")
        s["gpu1"].reboot()
        for i in range(3):
            assert study.ended(i)["state"] in ("lost", "failed"), study.ended(i)
        study.go(0, 1, 2)
        w.ok("restart", study.run(2))
        assert study.ended(2)["state"] == "succeeded"


def test_fail_fast(w):
    with pool(w, 1) as s:
        study = Study(s, 5, "--fail-fast", parallel=2, to="gpu1", end="test {i} != 0")
        wait_for(lambda: sorted(study.begun("gpu1")) == [0, 1], "two of them")
        study.go(0)
        for i in range(2, 5):
            doc = study.ended(i)
            assert doc["state"] == "cancelled" and f"cancelled: {study.run(0)} failed (--fail-fast)" in json.dumps(doc), doc
        study.go(1)
        assert study.ended(1)["state"] == "succeeded"


if __name__ == "__main__":
    main()
