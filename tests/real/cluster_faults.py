#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cluster that fails: answers that are lost, requests that are refused, runs that cannot be. Runs are neither doubled nor forgotten,
and what dlrun says is the cause. DLRUN_LOST: how often an answer to a create is lost (40); DLRUN_FULL=1: 200, with longer pauses."""

import collections
import contextlib
import json
import threading

from harness import *  # noqa: F403
from kube_images import layout
from kubesite import site
from registries import Certs, with_password

from apiproxy import ApiProxy

FULL = bool(os.environ.get("DLRUN_FULL"))
LOST = int(os.environ.get("DLRUN_LOST", "200" if FULL else "40"))
SOON_S = 30
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
        begin = running_time()
        s.proxy.fault = First("POST", "jobs", "swallow")
        runs = submit_all(s, LOST, "--", "true")
        assert len(set(runs)) == LOST and names(s) == runs, set(names(s)) ^ set(runs)
        assert set(s.proxy.fault.seen.values()) == {2}, s.proxy.fault.seen
        w.ok("wait", *runs)
        assert {r["state"] for r in w.runs()} == {"succeeded"}
        print(f"{LOST} lost answers to creates: {len(names(s))} Jobs, {running_time() - begin:.1f} s", flush=True)


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

        def left_when_adopted():
            w.ok("ps")
            left = [o for k in ("Secret", "Service") for o in own(s, k)]
            return all(o["metadata"].get("ownerReferences") for o in left) and [left]
        left, = wait_for(left_when_adopted, "owners of all that is left")
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
            assert done.rc == 3, done
            check_error_form(done.err, "kube.unreachable")
        else:
            with subprocess.Popen([w.dlrun, "submit", "-d", "--", "true"], cwd=w.tree, env=w.env, stderr=subprocess.PIPE) as running:
                assert down.wait(60)
                running.send_signal(signal.SIGINT)
                assert running.wait(SOON_S) != 0, running.stderr.read()
        wait_for(lambda: len(names(s)) == 1, "the Job", SOON_S)
        assert w.show("@")["state"] == "unknown", w.show("@")
        down.clear()
        s.proxy.fault = lambda *_: None
        wait_for(lambda: w.show("@")["state"] == "succeeded", "its end", 30)


# --- what is said of runs that cannot be: within SAID_S after the cluster knows it


SAID_S = 10


def waiting(pod):
    return [c["state"]["waiting"].get("reason", "") for c in pod.get("status", {}).get("containerStatuses", []) if "waiting" in c["state"]]


def ended_reasons(pod):
    status = pod.get("status", {})
    return [status.get("reason", "")] + [c["state"]["terminated"].get("reason", "") for c in status.get("containerStatuses", [])
                                         if "terminated" in c["state"]]


def unschedulable(pod):
    return [c.get("reason", "") for c in pod.get("status", {}).get("conditions", []) if c["type"] == "PodScheduled" and c["status"] == "False"]


def pods_of(s, run):
    return s.cluster.get("Pod", namespace=s.namespace, labelSelector=f"dlrun.io/run-id={run}")


def in_pods(look, *reasons):
    return lambda s, run: any(r in reasons for p in pods_of(s, run) for r in look(p))


def evicted(s, run):
    """It has been asked to go, and has ended."""
    return any(c["type"] == "DisruptionTarget" and c["status"] == "True" for p in pods_of(s, run) if any(ended_reasons(p))
               for c in p["status"].get("conditions", []))


def in_events(text):
    return lambda s, run: any(text in e.get("message", "") for e in s.cluster.get("Event", namespace=s.namespace))


def image_from(**where):
    def prepare(s):
        code = f"{s.cluster.registry}/{s.namespace}/code"
        s.configure(registry={"push": code, "pull": where["pull"].format(registry=s.cluster.registry, namespace=s.namespace)})
    return prepare


def overlay_of(**spec):
    def prepare(s):
        s.w.write("pod.json", json.dumps({"spec": spec}), base=s.w.tree)
        s.configure(overlay="pod.json")
    return prepare


def quota(s):
    s.cluster.apply({"kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}}, namespace=s.namespace)


def tainted(s):
    with NODES:
        s.cluster.fake_node("fake-tainted", taints=[{"key": "example.com/reserved", "effect": "NoSchedule"}])
    overlay_of(nodeSelector={"kubernetes.io/hostname": "fake-tainted"})(s)


def other_arch(s):
    overlay_of(nodeSelector={"kubernetes.io/arch": "riscv64"})(s)


def unbound(s):
    s.cluster.apply({"kind": "PersistentVolumeClaim", "metadata": {"name": "waits"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}}, namespace=s.namespace)
    s.configure(results={"pvc": "waits"})


def few_gpus(s):
    with NODES:
        s.cluster.fake_node("fake-gpus", **{"nvidia.com/gpu": 2})


def evict(s, run):
    name = s.cluster.wait(lambda: s.cluster.started(s.namespace, run), "its start")
    s.cluster.api("POST", f"/api/v1/namespaces/{s.namespace}/pods/{name}/eviction", {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}})


# what: (preparation, words of submit, what the cluster says, what dlrun says, what is done to it meanwhile)
SENTENCES = {
    "bad image": (image_from(pull="{registry}/{namespace}/other"), ["true"], in_pods(waiting, "ErrImagePull", "ImagePullBackOff"),
                  ["has no image"], None),
    "no pull secret": (None, ["true"], in_pods(waiting, "ErrImagePull", "ImagePullBackOff"), ["login", "me/code"], None),
    "registry out of reach": (image_from(pull="127.0.0.1:1/{namespace}/code"), ["true"], in_pods(waiting, "ErrImagePull", "ImagePullBackOff"),
                              ["cannot reach registry 127.0.0.1:1"], None),
    "quota": (quota, ["true"], in_events("exceeded quota"), ["allows 0 pods"], None),
    "claim without a volume": (unbound, ["true"], in_pods(unschedulable, "Unschedulable"), ["is not bound to a volume yet"], None),
    "taint": (tainted, ["true"], in_pods(unschedulable, "Unschedulable"), ["taints that it does not tolerate"], None),
    "other architecture": (other_arch, ["true"], in_pods(unschedulable, "Unschedulable"), ["other labels than it wants"], None),
    "GPUs": (few_gpus, ["--gpus", "2", "true"], in_pods(unschedulable, "Unschedulable"), ["no node has 2 free GPUs"], None),
    "command not found": (None, ["no-such-program"], in_pods(ended_reasons, "StartError", "ContainerCannotRun"),
                          ["no-such-program", "not found"], None),
    "OOM": (None, ["--memory", "32Mi", "python3", "-c", "x = bytearray(300 << 20)"], in_pods(ended_reasons, "OOMKilled"),
            ["memory limit of 32Mi"], None),
    "deadline": (None, ["--timeout", "2s", "sleep", "60"], in_pods(ended_reasons, "Error", "DeadlineExceeded"), ["time limit"], None),
    "eviction": (None, ["--grace", "1s", "sleep", "600"], evicted, ["evict"], evict),
}


def said_in(s, run, knows, texts, seconds=40):
    """Seconds from the moment that the cluster says it until `why` does."""
    knew, end = None, time.monotonic() + seconds
    while time.monotonic() < end:
        knew = knew or (time.monotonic() if knows(s, run) else None)
        answer = s.why(run)
        if all(t in json.dumps(answer, ensure_ascii=False) for t in texts):
            return time.monotonic() - (knew or time.monotonic())
        time.sleep(0.1)
    raise AssertionError(f"{texts} {'were expected' if knew else 'and the cluster says nothing'}: {answer}")


def one_sentence(w, what):
    prepare, words, knows, texts, meanwhile = SENTENCES[what]
    with site(w, results={"emptyDir": True}) as s, contextlib.ExitStack() as stack:
        if what == "no pull secret":
            registry = stack.enter_context(with_password(w))
            s.cluster.trust(registry.host, registry.certs.ca)
            registry.login(w)
            s.base = registry.put_layout(w, layout("busybox"), "me/busybox")
            s.configure(registry=f"{registry.host}/me/code")
        elif prepare:
            prepare(s)
        options = [x for x in words if x.startswith("--")]
        at = 2 * len(options)
        run = s.submit(*words[:at], "--", *words[at:])
        if meanwhile:
            meanwhile(s, run)
        took = said_in(s, run, knows, texts)
        sentence = s.why(run)
        assert took <= SAID_S, f"{what}: said after {took:.1f} s"
        return took, sentence.get("why") or sentence


def test_what_cannot_be_is_said_soon(w):
    worlds, verdicts = [], {}

    def one(what):
        world = World(w.dlrun, "sentence")
        worlds.append(world)
        try:
            return one_sentence(world, what)
        except AssertionError as wrong:
            return wrong
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            verdicts = dict(zip(SENTENCES, pool.map(one, SENTENCES)))
    finally:
        for world in worlds:
            world.close()
    wrong = [f"{what}: {v}" for what, v in verdicts.items() if isinstance(v, AssertionError)]
    for what, verdict in verdicts.items():
        if not isinstance(verdict, AssertionError):
            print(f"{what}: {verdict[0]:.1f} s: {verdict[1]}", flush=True)
    assert not wrong, "\n".join(wrong)


def test_logins_and_servers_that_fail_are_said_at_once(w):
    with site(w) as s:
        run = s.submit("--", "true")
        no_plugin = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "interactiveMode": "Never",
                              "installHint": "get it at example.com/plugin"}}
        cases = {
            "expired token": (dict(how="none", credentials={"token": s.cluster.short_token(s.user, -60)}), "kube.auth", 4,
                              ["does not accept the login"]),
            "no plugin": (dict(how="none", credentials=no_plugin), "kube.plugin", 4, ["no-such-plugin", "example.com/plugin"]),
            "server down": (dict(server="127.0.0.1:1"), "kube.unreachable", 3, ["127.0.0.1:1"]),
        }
        for what, (access, id, rc, says) in cases.items():
            config = s.cluster.kubeconfig(s.user, w.dir / "config", namespace=s.namespace, **access)
            done = in_time(lambda: w.run("submit", "-d", "--", "true", env={"KUBECONFIG": str(config)}), SAID_S)
            assert done.rc == rc and all(t in done.err for t in says), (what, done)
            check_error_form(done.err, id)
        assert len(w.runs()) == 1 and s.ended(run)["state"] == "succeeded"


# --- cancel leaves nothing


def test_cancel_leaves_nothing_at_any_moment(w):
    """Queued, while it starts, while it runs; also what a claim was made for, which stays until rm."""
    with site(w, results={"emptyDir": True}) as s:
        words = ("--secret", "HOME", "-N", "2", "--grace", "1s", "--", "sleep", "600")
        s.w.write("pod.json", json.dumps({"spec": {"nodeSelector": {"never": "there"}}}), base=s.w.tree)
        s.configure(overlay="pod.json")
        queued = s.submit(*words)
        s.target.pop("overlay")
        s.configure()
        starting, running = s.submit(*words), s.submit(*words)
        w.run("cancel", starting, queued)
        wait_for(lambda: w.show(running)["state"] == "running", "its start", 60)
        w.run("cancel", running)
        for run in (queued, starting, running):
            assert s.ended(run)["state"] == "cancelled", w.show(run)
        wait_for(lambda: not [o for k in PARTS for o in own(s, k)], "the end of all objects", 60)
        s.configure(results={"claim": "1Gi"})
        keeps = s.submit(*words)
        w.run("cancel", keeps)
        wait_for(lambda: [k for k in PARTS if own(s, k)] == ["PersistentVolumeClaim"], "the end of all objects but the claim", 60)
        w.ok("rm", keeps)
        wait_for(lambda: not own(s, "PersistentVolumeClaim"), "the end of the claim", 60)


if __name__ == "__main__":
    main()
