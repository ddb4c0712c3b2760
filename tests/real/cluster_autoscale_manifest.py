#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`dlrun autoscale manifest`, as a real API server takes it; the pod that it describes, of an image of packaging/image; and an
autoscaler that has the rights of its service account, and no others."""

import contextlib
import json
import socket
import socketserver
import subprocess
import threading
import urllib.request

from cluster_autoscale_run import GPUS, RANKS, SOON_S, SYSTEM, done, forget, lab
from harness import *  # noqa: F403

ACCOUNT = "dlrun-autoscale"
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
PORT = 9090
ROOT = Path(__file__).resolve().parents[2]
# Pulling, unpacking and starting an image.
POD_S = 120
DENIED = ["delete pods", "create pods", f"create pods -n {SYSTEM}", "get secrets", "list secrets", "create nodes", "update nodes",
          "patch jobs", "create jobs", "get configmaps", f"update configmaps/dlrun-autoscale-settings -n {SYSTEM}",
          f"delete configmaps -n {SYSTEM}", f"update leases/other -n {SYSTEM}", "create rolebindings"]
ALLOWED = ["delete nodes", "patch nodes", "list pods", "list jobs", f"update configmaps/dlrun-autoscale-state -n {SYSTEM}",
           f"update leases/dlrun-autoscale -n {SYSTEM}"]


@contextlib.contextmanager
def applied(here, image=None):
    """As it is printed, or without an image all of it but the Deployment; the namespace stays for others."""
    path = here.w.dir / "manifest.yaml"
    text = here.w.ok("autoscale", "manifest", "--image", image or "none", "--settings", "autoscale.yaml").out
    documents = [d for d in text.split("---\n") if image or "\nkind: Deployment\n" not in d]
    path.write_text(text if image else "---\n".join(documents))
    try:
        here.c.kubectl("apply", "-f", path)
        yield
    finally:
        path.write_text("---\n".join(d for d in documents if "\nkind: Namespace\n" not in d))
        here.c.kubectl("delete", "--ignore-not-found", "-f", path)
        here.c.wait(lambda: not autoscalers(here), "the end of the pod", POD_S)


# --- the pod


@contextlib.contextmanager
def provider_for_pods(here):
    """The tests' provider, at an address that pods reach: a line of a request, and its response."""
    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            said = subprocess.run(here.machines.exec, input=self.rfile.readline(), capture_output=True, check=False)
            with contextlib.suppress(OSError):
                self.wfile.write(said.stdout)

    with socketserver.ThreadingTCPServer((here.c.state["network"].replace(".0.0/16", ".0.1"), 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address
        finally:
            server.shutdown()


def image_layout(w):
    """dlrun and busybox."""
    made = w.command([ROOT / "packaging/image", w.dir / "image", needs("busybox")], cwd=w.dir, env={"DLRUN": w.dlrun}, timeout=600)
    assert made.rc == 0, made
    return w.dir / "image"


def push_image(here, layout, address):
    """Above it the working tree, with a program that is the provider."""
    here.w.write("provider", f"#!/bin/busybox sh\nexec /bin/busybox nc {address[0]} {address[1]}\n", 0o755)
    return here.w.ok("push", "--image", f"oci:{layout}", "--to", f"{here.c.registry}/{here.tag}/dlrun:1").out.strip()


def autoscalers(here):
    return here.c.get("Pod", namespace=SYSTEM, labelSelector=f"app.kubernetes.io/name={ACCOUNT}")


def ready(here, other_than=None):
    """The pod, once it is; not the one of that name."""
    def found():
        for pod in autoscalers(here):
            conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
            if pod["metadata"]["name"] != other_than and conditions.get("Ready") == "True":
                return pod
    return here.c.wait(found, "a pod that is ready", POD_S)


def metrics_of(pod):
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{pod['status']['podIP']}:{PORT}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {}


def holder(here):
    return here.c.get("Lease", ACCOUNT, SYSTEM)["spec"]["holderIdentity"]


def rules(here):
    """Of the two Roles of the account, by kind."""
    return {kind: here.c.get(kind, ACCOUNT, SYSTEM)["rules"] for kind in ("ClusterRole", "Role")}


def rights(here):
    return {(g, r, v) for of in rules(here).values() for rule in of for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}


def bought(here):
    return [i for c in here.machines.calls("grow") for i in c.get("response", {}).get("instances", [])]


def probes(here, pod):
    """How often its liveness was found good, as its kubelet counts."""
    text = here.c.api("GET", f"/api/v1/nodes/{pod['spec']['nodeName']}/proxy/metrics/probes")
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("prober_probe_total{") and
               all(f'{k}="{v}"' in line for k, v in (("pod", pod["metadata"]["name"]), ("probe_type", "Liveness"), ("result", "successful"))))


def test_the_pod_of_the_manifest(w):
    """It buys, is killed while machines are on their way, and the next one goes on; what it asks for is what its Roles allow."""
    layout = image_layout(w)  # One test has the lab at a time.
    with lab(w, a=8) as here, provider_for_pods(here) as address:
        path = here.w.tree / "autoscale.yaml"
        path.write_text(json.dumps(json.loads(path.read_text()) | {
            "metrics": PORT, "providers": [{"exec": ["/dlrun/src/provider"]}]}))
        image, begin = push_image(here, layout, address), here.c.audit_mark()
        with applied(here, image):
            first = ready(here)
            name = first["metadata"]["name"]
            here.machines.faults(boot={here.id("a"): 6})
            here.add_gang("g", RANKS)
            here.c.wait(lambda: bought(here), "machines that are asked for", SOON_S)
            assert holder(here).startswith(name), (holder(here), name)
            here.c.delete("Pod", name, SYSTEM, gracePeriodSeconds="0")
            second = ready(here, other_than=name)
            here.c.wait(lambda: len(here.bound()) == RANKS, "the gang on its machines", POD_S)
            here.c.wait(lambda: holder(here).startswith(second["metadata"]["name"]), "the Lease of the second", SOON_S)
            assert here.sizes() == {"a": RANKS} and len(set(bought(here))) == RANKS, (here.sizes(), bought(here))
            group = f'dlrun_autoscale_group_ready{{group="{here.id("a")}"}}'
            here.c.wait(lambda: metrics_of(second).get(group) == str(RANKS), "metrics", SOON_S)
            growth = json.loads(here.c.get("ConfigMap", ACCOUNT, SYSTEM)["data"]["growth"])
            assert growth["applies"] and growth["cluster"] == "lab", growth
            here.remove_pods()
            here.c.wait(lambda: not here.nodes(), "the end of all machines", SOON_S)
            log = here.c.kubectl("-n", SYSTEM, "logs", second["metadata"]["name"])
            assert "forbidden" not in log and " terminate " in log, log
            here.c.wait(lambda: probes(here, second), "a probe", POD_S)
            last = ready(here)
            assert last["metadata"]["name"] == second["metadata"]["name"], "it was replaced"
            assert last["status"]["containerStatuses"][0]["restartCount"] == 0, last["status"]
            here.c.audit_caught_up(here.s.user, begin)
            asked = [e for e in here.c.audit(USER, begin) if "objectRef" in e]
            assert not [e for e in asked if e["responseStatus"]["code"] == 403], asked
            used = {(e["objectRef"].get("apiGroup", ""), e["objectRef"]["resource"], e["verb"]) for e in asked}
            assert used == rights(here), (used - rights(here), rights(here) - used)


@contextlib.contextmanager
def without(here, group, resource, verb):
    """The account may not do that meanwhile."""
    before = rules(here)

    def put(what):
        """The last of these, once it counts."""
        for kind, of in what.items():
            here.c.apply({"kind": kind, "metadata": {"name": ACCOUNT}, "rules": of}, namespace=SYSTEM)
        name = {} if verb in ("create", "list") or resource == "nodes" else {"name": ACCOUNT}
        review = {"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": {"user": USER, "resourceAttributes": {
            "namespace": SYSTEM, "group": group, "resource": resource, "verb": verb, **name}}}
        here.c.wait(lambda: here.c.api("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"] ==
                    (what is before), f"rights to {verb} {resource}")

    def less(rule):
        apart = group in rule["apiGroups"] and resource in rule["resources"]
        return [rule | {"resources": [r for r in rule["resources"] if r != resource]}, rule | {"resources": [resource], "verbs": [
            v for v in rule["verbs"] if v != verb]}] if apart else [rule]
    put({kind: [r for rule in of for r in less(rule) if r["resources"] and r["verbs"]] for kind, of in before.items()})
    try:
        yield
    finally:
        put(before)


def test_a_right_that_is_missing_is_named(w):
    """For each of the manifest's: the API server's words for it are printed, and no other Role is proposed."""
    with lab(w, a=8) as here, applied(here):
        token = here.c.kubectl("-n", SYSTEM, "create", "token", ACCOUNT).strip()
        here.w.env["KUBECONFIG"] = str(here.c.kubeconfig(here.s.user, here.w.dir / "account", how="none", credentials={"token": token}))
        named, wanted = set(), rights(here)

        def told_without(group, resource, verb):
            def said():
                here.turn()
                text = (here.last.out + here.last.err).replace('\\"', '"')
                assert "init --rbac" not in text, text
                return f'cannot {verb} resource "{resource}" in API group "{group}"' in text and USER in text
            with without(here, group, resource, verb):
                here.c.wait(said, f"a word of {verb} {resource}", SOON_S)
            named.add((group, resource, verb))
        for group, resource, verb in sorted(wanted):
            if resource == "nodes" and verb != "list":
                continue
            if verb == "create":
                forget(here.c)
            if (resource, verb) in (("configmaps", "create"), ("configmaps", "update")):
                here.add_pods(1, name=f"p-{verb}")
            told_without(group, resource, verb)
            here.turn_ok()
        # A node that goes: it is marked and cordoned, looked at, and deleted.
        here.c.wait(lambda: here.turn() is not None and here.bound(), "a pod on a machine", SOON_S)
        here.remove_pods()
        told_without("", "nodes", "patch")
        here.c.wait(lambda: done(here.turn(), "cordon"), "a cordoned node", SOON_S)
        told_without("", "nodes", "get")
        told_without("", "nodes", "delete")
        here.c.wait(lambda: here.turn() is not None and not here.nodes(), "the end of all machines", SOON_S)
        assert named == wanted, wanted - named


def told(here, port, notices):
    """Settings with a port of metrics and a program of notices."""
    path = here.w.tree / "autoscale.yaml"
    keeps = ["/bin/sh", "-c", 'cat >>"$1"', "sh", str(notices)]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metrics": port, "notify": keeps}))


def test_metrics_and_notices_tell_what_was_done(w):
    notices = w.dir / "notices"
    with lab(w, a=RANKS) as here:
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        told(here, port, notices)
        here.add_gang("g", RANKS)
        here.add_pods(1, gpus=2 * GPUS)
        loop = here.start()
        values = {}

        def scraped():
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
                assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4"), response.headers
                values.update(line.rsplit(" ", 1) for line in response.read().decode().splitlines() if not line.startswith("#"))
            return values.get(f'dlrun_autoscale_group_ready{{group="{here.id("a")}"}}') == str(RANKS) and \
                values["dlrun_autoscale_pods_waiting"] == "1"
        here.c.wait(scraped, "metrics of the machines", SOON_S)
        group = f'{{group="{here.id("a")}"}}'
        assert values[f"dlrun_autoscale_machines_bought_total{group}"] == str(RANKS), values
        assert values["dlrun_autoscale_pods_not_helped"] == "1" and values['dlrun_autoscale_info{cluster="lab"}'] == "1", values
        assert values["dlrun_autoscale_price_per_hour"] == str(10 * RANKS), values
        assert int(values["dlrun_autoscale_turns_total"]) > 0 and values["dlrun_autoscale_notices_lost_total"] == "0", values
        loop.terminate()
        assert loop.wait(30) == 0, here.said()

        # The programs that take them are not waited for.
        def noticed():
            lines = [json.loads(line) for line in notices.read_text().splitlines()] if notices.exists() else []
            return {"grow", "not_helped"} <= {n["kind"] for n in lines} and lines
        lines = wait_for(noticed, "notices", SOON_S)
    assert [n["kind"] for n in lines].count("grow") == 1, lines
    reasons = [n for n in lines if n["kind"] == "not_helped"]
    assert reasons and {n["owner"] for n in reasons} == {f"{here.tag}/p0"} and all(n["cluster"] == "lab" for n in lines), lines
    assert len({n["text"] for n in reasons}) == len(reasons), "it is told again each turn"


def test_the_manifest_gives_no_other_rights(w):
    with lab(w, a=1) as here, applied(here):
        who = f"--as=system:serviceaccount:{SYSTEM}:{ACCOUNT}"
        said = {question: here.c.kubectl("auth", "can-i", who, *question.split(), check=False).split()[-1] for question in DENIED + ALLOWED}
        assert said == {q: "no" for q in DENIED} | {q: "yes" for q in ALLOWED}, said
        anybody = here.c.kubectl("auth", "can-i", "--as=anybody", "--as-group=system:authenticated", "get", f"configmaps/{ACCOUNT}",
                                 "-n", SYSTEM, check=False)
        assert anybody.split()[-1] == "yes", anybody


if __name__ == "__main__":
    main()
