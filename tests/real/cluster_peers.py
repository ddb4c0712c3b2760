#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dlrun makes in a cluster, as others see it: the Python client reads all of it, the API server takes it back with
fieldValidation=Strict, and `ps` lists many Jobs with few requests. DLRUN_JOBS: how many (200); DLRUN_FULL=1: 1,000."""

import json

import pypi
from cluster import path_of
from cluster_faults import FULL, few_gpus, on_fake_nodes, own
from harness import *  # noqa: F403
from kubesite import site

JOBS = int(os.environ.get("DLRUN_JOBS", "1000" if FULL else "200"))
PAGE = 500
SOON_S = 60
KINDS = ("Job", "Service", "Secret", "PersistentVolumeClaim")
READ = """
import json, sys
from kubernetes import client, config
config.load_kube_config(sys.argv[1])
batch, core, space = client.BatchV1Api(), client.CoreV1Api(), sys.argv[2]
lists = {"Job": batch.list_namespaced_job, "Service": core.list_namespaced_service, "Secret": core.list_namespaced_secret,
         "PersistentVolumeClaim": core.list_namespaced_persistent_volume_claim}
label = {"label_selector": "dlrun.io/run-id"}
print(json.dumps({kind: [client.ApiClient().sanitize_for_serialization(o) for o in read(space, **label).items]
                  for kind, read in lists.items()}))
"""
# Of the target, and the words of submit.
RUNS = {
    "plain": ({"results": {"emptyDir": True}}, ["--", "python3", "a.py"]),
    "nodes": ({"results": {"emptyDir": True}},
              ["--secret", "HOME", "-N", "2", "--memory", "1Gi", "--cpus", "0.5", "-e", "A=$(B)", "--", "python3", "a.py"]),
    "claim": ({"results": {"claim": "1Gi"}}, ["--retries", "2", "--timeout", "1h", "--signal", "USR1@60", "--", "python3", "a.py"]),
    "gpus": ({"results": {"emptyDir": True}}, ["--gpus", "2", "--note", "a note", "--", "python3", "a.py", "caf\u00e9 $(x)"]),
    "nfs": ({"results": {"nfs": "files.example.com:/results"}, "volumes": [{"nfs": "files.example.com:/sets", "path": "/data", "read_only": True}]},
            ["--", "python3", "a.py"]),
}


def strictly(s, made):
    """The API server takes it as it is, under another name and without what only it writes."""
    new = json.loads(json.dumps(made))
    about = new["metadata"]
    about["name"] += "-again"
    for key in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "ownerReferences", "finalizers"):
        about.pop(key, None)
    new.pop("status", None)
    if new["kind"] == "Job":
        new["spec"].pop("selector", None)
        for labels in (about["labels"], new["spec"]["template"]["metadata"]["labels"]):
            for key in [k for k in labels if k.endswith(("controller-uid", "job-name"))]:
                del labels[key]
    if new["kind"] == "PersistentVolumeClaim":
        new["spec"].pop("volumeName", None)
    s.cluster.api("POST", path_of(new["kind"], "", s.namespace), new, dryRun="All", fieldValidation="Strict")


def same_object(there, read, where):
    """All that the server has is in what the client made of it, but for what changes while both read."""
    if isinstance(there, dict):
        for key, value in there.items():
            if key not in ("kind", "apiVersion", "managedFields", "creationTimestamp", "resourceVersion", "status") and value not in ({}, [], None):
                assert key in read, f"{where}.{key} is lost"
                same_object(value, read[key], f"{where}.{key}")
    elif isinstance(there, list):
        assert len(there) == len(read), where
        for number, pair in enumerate(zip(there, read)):
            same_object(*pair, f"{where}[{number}]")
    else:
        assert there == read, (where, there, read)


def configure(s, keys):
    for key in ("results", "volumes"):
        s.target.pop(key, None)
    s.configure(**keys)


def test_the_python_client_reads_all_of_it(w):
    python = pypi.made_once("kubernetes-client", "kubernetes")
    with site(w) as s:
        on_fake_nodes(s)
        few_gpus(s)
        for keys, words in RUNS.values():
            configure(s, keys)
            s.submit(*words)
        done = w.command([python, "-c", READ, w.env["KUBECONFIG"], s.namespace])
        assert done.rc == 0, done
        read, count = json.loads(done.out), 0
        for kind in KINDS:
            theirs = {o["metadata"]["name"]: o for o in read[kind]}
            for made in own(s, kind):
                same_object(s.cluster.get(kind, made["metadata"]["name"], s.namespace), theirs[made["metadata"]["name"]], kind)
                strictly(s, {"kind": kind, **theirs[made["metadata"]["name"]]})
                count += 1
        assert len(read["Job"]) == len(RUNS) and all(read[kind] for kind in KINDS), {k: len(v) for k, v in read.items()}
        print(f"{count} objects of {len(RUNS)} runs read with the Python client, and taken back strictly", flush=True)


def test_what_dry_run_prints_is_strictly_right(w):
    with site(w) as s:
        few_gpus(s)
        for what, (keys, words) in RUNS.items():
            configure(s, keys)
            file = w.write("objects.yaml", w.ok("submit", "--dry-run", "-o", "yaml", *words).out, base=w.dir)
            s.cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-f", file, config=w.env["KUBECONFIG"])
            objects = [json.loads(line) for line in w.ok("submit", "--dry-run", "-o", "json", *words).out.splitlines()]
            for made in objects:
                s.cluster.api("POST", path_of(made["kind"], "", s.namespace), made, dryRun="All", fieldValidation="Strict")
            if what == "nfs":
                pod = objects[-1]["spec"]["template"]["spec"]
                exports = {v["nfs"]["path"]: v["nfs"] for v in pod["volumes"] if "nfs" in v}
                assert set(exports) == {"/results", "/sets"} and {e["server"] for e in exports.values()} == {"files.example.com"}, exports
                names = {v["nfs"]["path"]: v["name"] for v in pod["volumes"] if "nfs" in v}
                mounts = {m["name"]: m for m in pod["containers"][0]["volumeMounts"]}
                assert mounts[names["/sets"]]["mountPath"] == "/data" and mounts[names["/sets"]]["readOnly"], mounts
        assert s.jobs() == [] and w.runs() == []


def copies(s, run, count):
    """As if the user had submitted as many more."""
    made = s.cluster.get("Job", run, s.namespace)
    for key in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"):
        made["metadata"].pop(key, None)
    for key in ("selector", "status"):
        made["spec"].pop(key, None)
    made.pop("status", None)
    made["spec"]["template"]["metadata"]["labels"] = {
        k: v for k, v in made["spec"]["template"]["metadata"]["labels"].items() if not k.endswith(("controller-uid", "job-name"))}
    text, stem = json.dumps(made), run.rsplit("-", 1)[0]
    ids = [f"{stem}-{number:05d}".translate(str.maketrans("01", "ab")) for number in range(count)]

    def create(id):
        s.cluster.api("POST", path_of("Job", "", s.namespace), json.loads(text.replace(run, id)))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(create, ids))
    return ids


def listed(s, ids, most):
    """(seconds, requests) of a list in which all of these have succeeded; no list asks for more than `most`. One that has not
    been answered within a second says of its runs that they are unknown."""
    def one():
        since, begin = s.cluster.audit_begin(s.user), time.monotonic()
        runs = json.loads(s.w.ok("ps", "-a", "-t", "k", "--json").out)["runs"]
        took = time.monotonic() - begin
        assert {r["id"] for r in runs} == ids and len(runs) == len(ids), len(runs)
        asked = [(e["verb"], e["requestURI"]) for e in s.cluster.audit_whole(s.user, since)
                 if e["stage"] == "ResponseComplete" and f"/{s.namespace}/" in e["requestURI"]]
        kinds = [path_of(kind, "", s.namespace) for kind in ("Job", "JobSet")]
        assert all(verb == "list" and uri.split("?")[0] in kinds for verb, uri in asked), asked
        assert 0 < len(asked) <= most and took < SOON_S, (asked, took)
        states = {r["state"] for r in runs}
        return None if "unknown" in states else (took, len(asked), states)
    took, asked, states = wait_for(one, "a list that knows all states", 60)
    assert states == {"succeeded"}, states
    return took, asked


def test_ps_of_many_jobs(w):
    with site(w, results={"emptyDir": True}) as s:
        on_fake_nodes(s)
        run = s.submit("--", "true")
        ids = copies(s, run, JOBS - 1)
        s.cluster.wait(lambda: sum(j["status"].get("succeeded", 0) for j in s.jobs()) == JOBS, "the end of all", 300, least=1)
        pages, jobsets = -(-JOBS // PAGE), 1
        first, again = listed(s, {run, *ids}, 2 * pages + jobsets), listed(s, {run, *ids}, pages + jobsets)
        print(f"ps of {JOBS} Jobs: {first[0]:.2f} s and {first[1]} requests where they were not known yet, then {again[0]:.2f} s and "
              f"{again[1]}", flush=True)


if __name__ == "__main__":
    main()
