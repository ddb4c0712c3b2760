#!/usr/bin/env python3
"""A cluster that fails: answers that are lost, servers that stand still, logins that expire. Runs are neither doubled nor forgotten,
and what dlrun says is the cause. DLRUN_LOST: how often an answer to a create is lost (40); DLRUN_FULL=1: 200, with longer pauses."""

import collections
import contextlib
import json
import threading

from harness import *  # noqa: F403
from kubesite import site
from registries import Certs

from apiproxy import ApiProxy

FULL = bool(os.environ.get("DLRUN_FULL"))
LOST = int(os.environ.get("DLRUN_LOST", "200" if FULL else "40"))
AWAY_S = 60 if FULL else 20
FAKE = "fake-faults"
NODES = threading.Lock()
OVERLAY = {"spec": {"nodeSelector": {"kubernetes.io/hostname": FAKE}, "tolerations": [{"key": "tests/fake", "operator": "Exists"}]}}
PARTS = ("Job", "Pod", "Service", "Secret", "PersistentVolumeClaim", "ConfigMap")


class First:
    """What becomes of the first request about each object of a kind, of the second, …"""

    def __init__(self, method, plural, *verdicts):
        self.method, self.plural, self.verdicts, self.seen = method, plural, verdicts, collections.Counter()

    def __call__(self, method, path, body):
        path = path.split("?")[0]
        if method != self.method or f"/{self.plural}" not in path:
            return None
        name = json.loads(body)["metadata"]["name"] if method == "POST" else path.rsplit("/", 1)[1]
        self.seen[name] += 1
        return self.verdicts[self.seen[name] - 1] if self.seen[name] <= len(self.verdicts) else None


def all_of(*faults):
    def fault(*request):
        return next((v for f in faults if (v := f(*request)) is not None), None)
    return fault


def on_fake_nodes(s, name=FAKE):
    """Its runs seem to run, and to end at once, without any container."""
    with NODES:
        s.cluster.fake_node(name)
    s.w.write("pod.json", json.dumps(OVERLAY | {"spec": {**OVERLAY["spec"], "nodeSelector": {"kubernetes.io/hostname": name}}}), base=s.w.tree)
    s.configure(overlay="pod.json")


@contextlib.contextmanager
def proxied(w, credentials=None, **more):
    """A site behind a proxy: s.proxy.fault decides."""
    certs = Certs(w.dir / "certs")
    with site(w, results={"emptyDir": True}, **more) as s, ApiProxy(s.cluster.address, s.cluster.ca, *certs.pair()) as proxy:
        s.proxy = proxy
        w.env["KUBECONFIG"] = str(s.cluster.kubeconfig(
            s.user, w.dir / "proxied", server=proxy.address, ca=False, namespace=s.namespace, how="none" if credentials else "token",
            cluster={"certificate-authority": str(certs.ca)}, credentials=credentials))
        on_fake_nodes(s)
        yield s


def names(s, kind="Job"):
    return sorted(o["metadata"]["name"] for o in s.cluster.get(kind, namespace=s.namespace))


def own(s, kind):
    return [o for o in s.cluster.get(kind, namespace=s.namespace) if o["metadata"].get("labels", {}).get("dlrun.io/run-id")]


def submit_all(s, times, *words, at_once=3):
    """The ids of so many accepted runs."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return sorted(f.result() for f in [pool.submit(s.submit, *words) for _ in range(times)])


def test_an_answer_that_is_lost_makes_no_second_job(w):
    with proxied(w) as s:
        begin = time.monotonic()
        s.proxy.fault = First("POST", "jobs", "swallow")
        runs = submit_all(s, LOST, "--", "true")
        assert len(set(runs)) == LOST and names(s) == runs, set(names(s)) ^ set(runs)
        assert set(s.proxy.fault.seen.values()) == {2}, s.proxy.fault.seen
        w.ok("wait", *runs)
        assert {r["state"] for r in w.runs()} == {"succeeded"}
        print(f"{LOST} lost answers to creates: {len(names(s))} Jobs, {time.monotonic() - begin:.1f} s", flush=True)


LEADER = (500, {}, "etcdserver: leader changed")
CREATES = {
    "dropped": [First("POST", "jobs", "drop", "drop")],
    "lost twice": [First("POST", "jobs", "swallow", "swallow")],
    "lost, then 409 and the look is lost, too": [First("POST", "jobs", "swallow"), First("GET", "jobs/", "swallow", "drop")],
    "lost, then refused": [First("POST", "jobs", "swallow", (403, {}, "made to fail"))],
    "leader changed": [First("POST", "jobs", LEADER, LEADER)],
    "503": [First("POST", "jobs", 503, 503)],
    "504 after it was taken": [First("POST", "jobs", "swallow", 504)],
    "429": [First("POST", "jobs", 429)],
    "429 with Retry-After": [First("POST", "jobs", (429, {"Retry-After": "1"}))],
    "Secret and Service lost": [First("POST", "secrets", "swallow"), First("POST", "services", "swallow", 503)],
    "Secret and Service dropped": [First("POST", "secrets", "drop", 429), First("POST", "services", "drop")],
    "adoption lost": [First("PATCH", "secrets/", "swallow"), First("PATCH", "services/", "drop", 503)],
}


def check_create(s, what, faults):
    runs = []
    s.proxy.fault = all_of(*faults)
    runs.append(s.submit("--secret", "HOME", "-N", "2", "--", "true"))
    assert all(f.seen for f in faults), f"{what}: it did not happen"
    return runs


def test_faults_of_creates_are_waited_out(w):
    with proxied(w) as s:
        runs = []
        for what, faults in CREATES.items():
            try:
                runs += check_create(s, what, faults)
            except AssertionError as wrong:
                raise AssertionError(f"{what}: {wrong}") from None
        s.proxy.fault = lambda *_: None
        assert names(s) == sorted(runs)
        for kind in ("Secret", "Service"):
            owners = {o["metadata"]["labels"]["dlrun.io/run-id"]: o["metadata"].get("ownerReferences") for o in own(s, kind)}
            assert sorted(owners) == sorted(runs) and all(owners.values()), (kind, owners)


def test_an_adoption_that_failed_is_made_up_for(w):
    with proxied(w) as s:
        s.proxy.fault = all_of(First("PATCH", "secrets/", *[400] * 9), First("PATCH", "services/", *[400] * 9))
        run = s.submit("--secret", "HOME", "-N", "2", "--", "true")
        other = s.submit("--secret", "HOME", "-N", "2", "--", "true")
        assert not any(o["metadata"].get("ownerReferences") for k in ("Secret", "Service") for o in own(s, k))
        w.ok("rm", other) if w.run("wait", other).rc == 0 else None
        s.proxy.fault = lambda *_: None
        w.ok("ps")
        left = [o for k in ("Secret", "Service") for o in own(s, k)]
        assert all(o["metadata"].get("ownerReferences") for o in left), left
        assert {o["metadata"]["labels"]["dlrun.io/run-id"] for o in left} <= {run}


REFUSED = {
    "403": ((403, {}, "jobs.batch is forbidden: User cannot create resource"), "kube.denied", 4, "jobs"),
    "422": ((422, {}, "Job.batch is invalid: spec.template: made to fail"), "kube.invalid", None, "made to fail"),
    "500": ((500, {}, "Internal error occurred: failed calling webhook"), "kube.server", None, "webhook"),
}


def test_what_is_refused_is_no_run(w):
    """Nothing stays in the cluster, and the record says why."""
    with proxied(w) as s:
        for what, (verdict, id, rc, says) in REFUSED.items():
            s.proxy.fault = First("POST", "jobs", *[verdict] * 9)
            done = w.run("submit", "-d", "--secret", "HOME", "-N", "2", "--", "true")
            assert done.rc != 0 and (rc is None or done.rc == rc) and says in done.err, (what, done)
            check_error_form(done.err, id)
            s.proxy.fault = lambda *_: None
            if what != "500":
                record = w.show("@")
                assert record["state"] == "failed" and says in record["text"], (what, record)
                assert not [o for k in PARTS for o in own(s, k)], (what, [own(s, k) for k in PARTS])
        assert names(s) == []


def test_a_login_that_is_refused_is_made_anew(w):
    plugin = w.dir / "plugin"
    plugin.mkdir()
    import cluster as clusters
    with proxied(w, credentials=clusters.get().exec_plugin("alice", plugin)) as s:
        s.proxy.fault = First("POST", "jobs", 401)
        run = s.submit("--", "true")
        assert names(s) == [run] and len((plugin / "calls").read_text().splitlines()) == 2
        s.proxy.fault = First("POST", "jobs", 401, 401, 401)
        done = w.run("submit", "-d", "--", "true")
        check_error_form(done.err, "kube.auth")
        assert done.rc == 4 and names(s) == [run], done


def test_an_unknown_outcome_is_shown_as_unknown(w):
    """The Job was made, and then nothing can be heard any more: no failure, no success, and the next command knows."""
    with proxied(w) as s:
        down = threading.Event()

        def fault(method, path, body):
            if down.is_set():
                return "drop"
            if method == "POST" and "/jobs" in path:
                down.set()
                return "swallow"
            return None

        s.proxy.fault = fault
        if FULL:
            done = w.run("submit", "-d", "--", "true")
            assert done.rc == 6, done
            check_error_form(done.err, "kube.unreachable")
        else:
            with subprocess.Popen([w.dlrun, "submit", "-d", "--", "true"], cwd=w.tree, env=w.env, stderr=subprocess.PIPE) as running:
                assert down.wait(60)
                running.send_signal(signal.SIGINT)
                assert running.wait(3) != 0, running.stderr.read()
        assert len(names(s)) == 1
        assert w.show("@")["state"] == "unknown", w.show("@")
        down.clear()
        s.proxy.fault = lambda *_: None
        wait_for(lambda: w.show("@")["state"] == "succeeded", "its end", 30)


if __name__ == "__main__":
    main()
