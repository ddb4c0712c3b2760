#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`submit --from` between this machine and a registry: the same code goes along, its layers as they are. The cluster is an API
server that takes every Job and never runs one."""

import http.server
import threading

from harness import *  # noqa: F403
from image import base_layout
from kube_api import write_kubeconfig
from push import SimpleImage, put_base
from registries import plain

REVIEWS = {"selfsubjectreviews": {"userInfo": {"username": "alice"}}, "selfsubjectaccessreviews": {"allowed": True}}
LISTS, THERE = ("jobs", "pods", "nodes", "events", "localqueues"), ("namespaces", "persistentvolumeclaims", "configmaps")


class Api:
    """What was created stands in `made` by its kind, the last names of all paths that were got in `asked`."""

    def __init__(self):
        api, self.made, self.items, self.forbidden, self.asked = self, {}, {}, set(), []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self, status, value):
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):  # noqa: N802
                if self.path.startswith("/version"):
                    return self.answer(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
                path = self.path.split("?")[0].split("/")
                api.asked.append(path[-1])
                if path[-1] in api.forbidden:
                    return self.answer(403, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
                                             "message": "forbidden", "code": 403})
                if path[-1] in LISTS or path[-1] in api.items:
                    return self.answer(200, {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": api.items.get(path[-1], [])})
                if path[-2] in THERE:
                    return self.answer(200, {"metadata": {"name": path[-1], "uid": "u"}})
                return self.answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
                                         "message": "not found", "code": 404})

            def do_POST(self):  # noqa: N802
                value = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                kind = self.path.split("?")[0].rsplit("/", 1)[1]
                about = value.get("spec", {}).get("resourceAttributes", {})
                if about.get("resource") in api.forbidden:
                    return self.answer(201, {**value, "status": {"allowed": False}})
                if kind in REVIEWS:
                    return self.answer(201, {**value, "status": REVIEWS[kind]})
                value["metadata"]["uid"] = f"uid-{len(api.made)}"
                api.made.setdefault(kind, []).append(value)
                return self.answer(201, value)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.server.shutdown()
        self.server.server_close()
        # Not in everybody's Role, and needed by nobody who submits.
        assert kind or "storageclasses" in self.items or "storageclasses" not in self.asked

    def configure(self, w):
        server = {"server": f"http://127.0.0.1:{self.server.server_address[1]}"}
        w.env["KUBECONFIG"] = str(write_kubeconfig(w.dir / "kubeconfig", server, {}))

    def image(self):
        """That of the newest Job."""
        return self.made["jobs"][-1]["spec"]["template"]["spec"]["containers"][0]["image"]


def site(w, registry, image):
    w.repo({"a.py": "print('first')\n", "exp/b.py": "print('b')\n"})
    (w.tree / "dlrun.yaml").write_text(json.dumps({
        "image": image, "targets": {"lab": {"kind": "kubernetes", "registry": f"{registry.host}/me/code"}}}))
    return disk_tree(w.tree, all_files(w.tree))


def own(run):
    return [(layer["role"], layer["digest"]) for layer in run["image"]["layers"] if layer["role"] != "base"]


def to_cluster(w, api, registry, source, *words):
    """(the record, its image read back)"""
    run = w.ok("submit", "-d", "--from", source, "-t", "lab", *words).out.strip()
    record = w.show(run)
    assert record["image"]["ref"] == api.image(), (record["image"], api.image())
    return record, SimpleImage(w, registry, "me/code", record["image"]["ref"].split("@")[1]).fetch()


def test_the_code_of_a_local_run_goes_to_the_registry(w):
    with plain(w) as registry, Api() as api:
        api.configure(w)
        reference, _, layers = put_base(w, registry, layers=3)
        then = site(w, registry, reference)
        first = w.ok("submit", "-d", "-t", "local", "--", "python3", "a.py").out.strip()
        assert w.run("wait", first).rc == 0
        w.write("a.py", "print('edited')\n")
        mark = len(registry.requests())
        record, image = to_cluster(w, api, registry, first)
        assert image.tree == then
        assert own(record) == own(w.show(first)), record["image"]
        assert [layer["digest"] for layer in image.manifest["layers"]][:len(layers)] == layers, image.manifest
        assert record["parent"] == first and record["snapshot"]["id"] == w.show(first)["snapshot"]["id"]
        assert record["image"]["base"] == reference and record["image"]["layers_pushed"] == 1, record["image"]
        program = api.made["jobs"][-1]["spec"]["template"]["spec"]["containers"][0]
        # Behind the script that collects.
        assert (program.get("args") or program["command"])[-2:] == ["python3", "a.py"], program
        assert [r for r in registry.requests()[mark:] if r.method == "PUT"]
        # Once more: it is all there.
        again, _ = to_cluster(w, api, registry, first, "--", "python3", "exp/b.py")
        assert again["image"]["ref"] == record["image"]["ref"] and again["image"]["layers_pushed"] == 0, again["image"]
        # And from the run in the cluster, whose image is where it is wanted.
        third, _ = to_cluster(w, api, registry, record["id"])
        assert third["image"]["ref"] == record["image"]["ref"]
        assert own(third) == own(record), third["image"]


def test_a_cluster_needs_an_image_with_the_program(w):
    """Refused before a byte is sent, and before there is a run; here nothing is in a container."""
    with plain(w) as registry, Api() as api:
        api.configure(w)
        config = json.loads(((site(w, registry, "x") and w.tree) / "dlrun.yaml").read_text())
        del config["image"]
        (w.tree / "dlrun.yaml").write_text(json.dumps(config))
        local = w.ok("submit", "-d", "-t", "local", "--", "python3", "a.py").out.strip()
        assert w.run("wait", local).rc == 0
        mark = len(registry.requests())
        ways = ["lab", "--image", "image:", "dlrun init"]
        for words in (["--", "python3", "a.py"], ["--dry-run", "--", "./a.py"], ["--from", local]):
            w.refused("submit", "-d", "-t", "lab", *words, id="image.none", rc=2, says=ways)
        # Nothing but the tree is in it, by the user's own word.
        w.refused("submit", "-d", "-t", "lab", "--image", "scratch", "--", "python3", "a.py", id="image.none", rc=2, says=["python3", "scratch"])
        assert not [r for r in registry.requests()[mark:] if r.method in ("POST", "PUT", "PATCH")] and "jobs" not in api.made
        w.ok("submit", "-d", "-t", "lab", "--image", "scratch", "--", "/own/program")
        assert len(api.made["jobs"]) == 1


def test_a_base_on_this_machine_is_looked_into(w):
    """Its layers are here: what none of them holds is refused, what may be there is not."""
    busybox = {"bin/busybox": b"program", "bin/sh": "busybox"}
    merged = {"bin": "usr/bin", "usr/bin/sh": b"program"}
    python = {**merged, "usr/bin/python3": b"program"}
    opt = {**busybox, "opt/py/bin/python3": b"program"}
    cases = {
        "busybox": ([busybox], {"python3": False, "sh": True, "busybox": True, "/bin/python3": True}),
        "merged": ([merged], {"python3": False, "sh": True}),
        "python": ([python], {"python3": True, "python": False}),
        "above": ([busybox, {"usr/bin/python3": b"program"}], {"python3": True}),
        "removed": ([python, {"usr/bin/.wh.python3": b""}], {"python3": False, "sh": True}),
        "emptied": ([python, {"usr/bin/.wh..wh..opq": b"", "usr/bin/sh": b"program"}], {"python3": False, "sh": True}),
        # A name below a link of a lower layer: nothing here says what a node makes of that.
        "below": ([merged, {"bin/tool": b"program"}], {"python3": True}),
        "elsewhere": ([opt], {"python3": True}),
    }
    with plain(w) as registry, Api() as api:
        api.configure(w)
        for name, (layers, programs) in cases.items():
            there = base_layout(w, len(layers), members=layers.__getitem__, name=name, settings={"Env": ["PATH=/opt/py/bin:/bin"]})[0]
            site(w, registry, f"oci:{there}")
            for program, fine in programs.items():
                words = ["submit", "-d", "-t", "lab", "--", program, "a.py"]
                if fine:
                    w.ok(*words)
                else:
                    w.refused(*words, id="image.none", rc=2, says=[program, name, "no file in its layers has that name"])
        # Other things that could bring it. A setup without key files is run in the pod of the run.
        there = w.dir / "busybox"
        for key in ({"before": "true"}, {"setup": {"run": "true"}}, {"env": {"PATH": "/own"}}):
            site(w, registry, f"oci:{there}")
            config = {**json.loads((w.tree / "dlrun.yaml").read_text()), **key}
            (w.tree / "dlrun.yaml").write_text(json.dumps(config))
            w.ok("submit", "-d", "-t", "lab", "--", "python3", "a.py")
        there = base_layout(w, 1, members=busybox, name="wraps", settings={"Entrypoint": ["/bin/wrap"]})[0]
        site(w, registry, f"oci:{there}")
        w.ok("submit", "-d", "-t", "lab", "--", "python3", "a.py")


def test_a_base_that_is_a_distribution_and_nothing_else(w):
    """In a registry only its configuration is read."""
    with plain(w) as registry, Api() as api:
        api.configure(w)
        for history, fine in (("# debian.sh --arch 'amd64' out/ 'bookworm'", False), ("COPY rootfs /", True)):
            there = base_layout(w, 1, members={"bin/sh": b"program"}, name="distribution", settings={"Env": ["PATH=/bin"]}, history=history)[0]
            site(w, registry, registry.put_layout(w, there, f"base/d{fine:d}"))
            made = len(api.made.get("jobs", []))
            if fine:
                w.ok("submit", "-d", "-t", "lab", "--", "python3", "a.py")
            else:
                w.refused("submit", "-d", "-t", "lab", "--", "python3", "a.py", id="image.none", rc=2, says=["python3", "Debian"])
            assert len(api.made.get("jobs", [])) == made + fine
            w.ok("submit", "-d", "-t", "lab", "--", "sh", "-c", "true")


def test_the_code_of_a_run_in_a_cluster_comes_here(w):
    with plain(w) as registry, Api() as api:
        api.configure(w)
        reference, _, _ = put_base(w, registry, layers=3)
        site(w, registry, reference)
        first = w.ok("submit", "-d", "-t", "lab", "--", "cat", "a.py").out.strip()
        w.write("a.py", "print('edited')\n")
        result = w.ok("submit", "-f", "--from", first, "-t", "local")
        assert result.out == "print('first')\n", result
        record = w.show()
        assert record["image"]["ref"].startswith("oci:") and own(record) == own(w.show(first)), record["image"]
        # It is this machine's now: also without the registry and the cache.
        shutil.rmtree(w.cache)
        registry.stop()
        assert w.ok("submit", "-f", "--from", record["id"], "-t", "local").out == "print('first')\n"
        w.refused("submit", "-d", "--from", first, "-t", "local", id="registry.unreachable", rc=3, says=[first])


def test_an_image_by_its_name(w):
    with plain(w) as registry, Api() as api:
        api.configure(w)
        reference, _, _ = put_base(w, registry, layers=2)
        then = site(w, registry, reference)
        pushed = w.ok("push", "-q", "--to", f"{registry.host}/me/other").out.strip()
        w.write("a.py", "print('edited')\n")
        assert w.ok("submit", "-f", "--from", pushed, "-t", "local", "--", "cat", "a.py").out == "print('first')\n"
        run = w.ok("submit", "-d", "--from", pushed, "-t", "lab", "--", "cat", "a.py").out.strip()
        assert api.image() == pushed == w.show(run)["image"]["ref"]
        here = w.ok("push", "-q", "--image", "scratch", "--to", "oci:there").out.strip()
        _, image = to_cluster(w, api, registry, here, "--", "true")
        assert image.tree[b"a.py"] != then[b"a.py"]
        assert w.ok("submit", "-f", "--from", here, "-t", "local", "--", "cat", "a.py").out == "print('edited')\n"
        w.refused("submit", "-d", "--from", f"{registry.host}/me/other@sha256:{'0' * 64}", "-t", "local", "--", "true",
                  id="image.base", rc=5, says=["0000"])


def test_nothing_is_sent_in_a_dry_run(w):
    with plain(w) as registry, Api() as api:
        api.configure(w)
        reference, _, _ = put_base(w, registry, layers=2)
        site(w, registry, reference)
        first = w.ok("submit", "-d", "-t", "local", "--", "python3", "a.py").out.strip()
        mark = len(registry.requests())
        objects = w.ok("submit", "--from", first, "-t", "lab", "--dry-run", "-o", "json").out
        assert not [r for r in registry.requests()[mark:] if r.method in ("PUT", "POST", "PATCH")]
        record, _ = to_cluster(w, api, registry, first)
        assert record["image"]["ref"] in objects, objects


def test_data_are_where_the_new_target_has_them(w):
    with plain(w) as registry, Api() as api:
        api.configure(w)
        reference, _, _ = put_base(w, registry, layers=2)
        site(w, registry, reference)
        w.write("data/x", "1")
        w.write(".gitignore", "data\n")
        plan = json.loads((w.tree / "dlrun.yaml").read_text())
        plan["data"] = ["data"]
        (w.tree / "dlrun.yaml").write_text(json.dumps(plan))
        first = w.ok("submit", "-d", "-t", "local", "--", "cat", "data/x").out.strip()
        assert w.run("wait", first).rc == 0
        w.refused("submit", "-d", "--from", first, "-t", "lab", id="run.data", rc=2, says=["data", "lab"])
        plan["targets"]["lab"]["data"] = {"data": {"pvc": "sets"}}
        (w.tree / "dlrun.yaml").write_text(json.dumps(plan))
        record, _ = to_cluster(w, api, registry, first)
        volumes = api.made["jobs"][-1]["spec"]["template"]["spec"]["volumes"]
        assert any(v.get("persistentVolumeClaim", {}).get("claimName") == "sets" for v in volumes), volumes
        assert w.ok("submit", "-f", "--from", record["id"], "-t", "local").out == "1"


if __name__ == "__main__":
    main()
