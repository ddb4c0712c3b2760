# SPDX-License-Identifier: Apache-2.0
"""A tree whose target is a namespace of the tests' cluster, and what dlrun makes there."""

import contextlib
import json
import time

import cluster as clusters
from harness import wait_for

PROGRAM = "import sys\nprint('hello', *sys.argv[1:], flush=True)\n"
ENDED = ("succeeded", "failed", "cancelled", "lost")


class KubeSite:
    def __init__(self, world, cluster, namespace, user, base, keys, target):
        self.w, self.cluster, self.namespace, self.user = world, cluster, namespace, user
        self.base, self.keys, self.target = base, dict(keys or {}), dict(target or {})
        world.env["KUBECONFIG"] = str(cluster.kubeconfig(user, world.dir / "kubeconfig", namespace=namespace))

    def configure(self, **target):
        """Write dlrun.yaml with these further keys of the target."""
        self.target.update(target)
        registry = f"{self.cluster.registry}/{self.namespace}/code"
        keys = {"image": self.base, **self.keys, "target": "k",
                "targets": {"k": {"kind": "kubernetes", "registry": registry, **self.target}}}
        self.w.write("dlrun.yaml", json.dumps(keys, indent=1))
        self.w.ok("config", "trust", "--yes")

    def submit(self, *words, **options):
        """The id of a run that was accepted."""
        done = self.w.ok("submit", "-d", *words, **options)
        self.said = done.err
        return done.out.strip()

    def why(self, run="@"):
        return json.loads(self.w.ok("why", "--json", run).out)

    def without_pods(self):
        """What lay in them is gone."""
        wait_for(lambda: all(p["status"]["phase"] in ("Succeeded", "Failed") for p in self.cluster.get("Pod", namespace=self.namespace)),
                 "the end of all pods", 90)

    def ended(self, run, seconds=90):
        """The record once the run has ended."""
        wait_for(lambda: self.w.show(run)["state"] in ENDED, f"the end of {run}", seconds)
        return self.w.show(run)

    def cancel(self, *runs, ends=("cancelled",)):
        """The command waits for 5 s longer than programs may take to end; nodes may take more."""
        done = self.w.run("cancel", *runs)
        assert done.rc == 0 or done.rc == 1 and "has not ended after" in done.err, done
        for run in runs:
            assert self.ended(run, 60)["state"] in ends, self.w.show(run)

    def said_within(self, run, *texts, seconds=40):
        """The sentence for the run, once all the texts are in it or its evidence."""
        def found():
            answer = self.why(run)
            self.last = answer
            return all(t in json.dumps(answer, ensure_ascii=False) for t in texts)
        try:
            wait_for(found, f"{texts} of {run}", seconds)
        except AssertionError:
            raise AssertionError(f"{texts} were expected: {self.last}") from None
        return self.last

    def output(self, run):
        """A pod that fetches has its label, too, and is removed while kubectl asks for its log."""
        def said():
            with contextlib.suppress(AssertionError):
                return [self.cluster.kubectl("-n", self.namespace, "logs", "-l", f"dlrun.io/run-id={run}", "--tail=-1")]
        return wait_for(said, f"the output of {run}")[0]

    def jobs(self):
        return self.cluster.get("Job", namespace=self.namespace)

    def first_line_s(self, run, since):
        return self.cluster.started(self.namespace, run) - since


@contextlib.contextmanager
def site(world, user="alice", base="python", files=None, keys=None, labels=None, alone=False, role="admin", **target):
    """A KubeSite with a repository in its tree."""
    cluster = clusters.get()
    with cluster.namespace(user, role=role, labels=labels, alone=alone) as namespace:
        here = KubeSite(world, cluster, namespace, user, cluster.images.get(base, base), keys, target)
        world.repo({"a.py": PROGRAM, **(files or {})})
        here.configure()
        yield here
