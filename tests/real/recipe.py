#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`dlrun targets --recipe`: what comes out is what the tools that make hosts and nodes take."""

import json
import sys

import pypi
from harness import *  # noqa: F403

TOOLS = pypi.CACHE / "recipes-{}.{}".format(*sys.version_info)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBqR0pWl9YkQ2cQ me@laptop"
SCHEMA = """import json, sys, yaml, jsonschema
schema = json.load(open(sys.argv[1]))
document = yaml.safe_load(open(sys.argv[2]))
jsonschema.validate(document, schema)
print(json.dumps(document))
"""
# Ansible takes any text for a template that is not marked.
DUMP = """import json, sys, yaml
yaml.SafeLoader.add_constructor("!unsafe", lambda loader, node: [loader.construct_scalar(node)])
print(json.dumps(yaml.safe_load(open(sys.argv[1]))))
"""
TYPES = """variable "node_groups" {
  type = map(object({
    labels = map(string)
    taints = list(object({ key = string, value = string, effect = string }))
    tags   = map(string)
  }))
}
output "node_groups" { value = var.node_groups }
"""


def tools():
    """Directory of ansible-playbook and a Python with the checks; made once."""
    with pypi.only_one("recipes"):
        if not (TOOLS / "bin/ansible-playbook").exists():
            pypi.build(sys.executable, "-m", "venv", "--clear", TOOLS)
            pypi.build(TOOLS / "bin/python", "-m", "pip", "install", "-q", "ansible-core", "jsonschema", "pyyaml")
    return TOOLS / "bin"


def cloud_init_schema():
    """That of the distribution's package, which is not installed."""
    there = pypi.CACHE / "cloud-init"
    with pypi.only_one("cloud-init"):
        if not list(there.rglob("schema-cloud-config*.json")):
            there.mkdir(exist_ok=True)
            pypi.build(needs("apt-get"), "download", "cloud-init", cwd=there)
            pypi.build(needs("dpkg"), "-x", next(there.glob("*.deb")), there, cwd=there)
    return next(there.rglob("schema-cloud-config*.json"))


def configure(w, **targets):
    w.repo()
    w.write(".ssh/id_ed25519.pub", f"{KEY}\nmore\n", base=w.home)
    w.write("dlrun.yaml", json.dumps({"targets": targets}))
    w.ok("config", "trust", "--yes")


def checked(w, *argv):
    done = w.command([os.fspath(a) for a in argv], env={**w.env, **pypi.network()}, timeout=120)
    assert done.rc == 0, done
    return done.out


LAB = {"kind": "ssh", "hosts": ["gpu1", "ana@gpu2"], "runtime": "podman", "dir": "/scratch/ana: #1", "caches": "/scratch/{{ x }}\"'"}


def test_cloud_init(w):
    configure(w, lab=LAB)
    w.write("user-data", w.ok("targets", "--recipe", "cloud-init", "lab").out)
    assert (w.tree / "user-data").read_text().startswith("#cloud-config\n")
    found = json.loads(checked(w, tools() / "python", "-c", SCHEMA, cloud_init_schema(), w.tree / "user-data"))
    assert {"tar", "gzip", "coreutils", "util-linux", "podman"} <= set(found["packages"]), found
    user = found["users"][1]
    assert user["name"] == "ana" and user["ssh_authorized_keys"] == [KEY], found
    assert ["loginctl", "enable-linger", "ana"] in found["runcmd"]
    made = [words[-1] for words in found["runcmd"] if words[0] == "install"]
    assert made == [LAB["dir"], LAB["caches"]], made
    assert "ana - nofile 1048576\n" in found["write_files"][0]["content"]
    # A host that the configuration does not know, where root logs in.
    w.write("user-data", w.ok("targets", "--recipe", "cloud-init", "ssh:root@gpu9").out)
    found = json.loads(checked(w, tools() / "python", "-c", SCHEMA, cloud_init_schema(), w.tree / "user-data"))
    assert "users" not in found and "runcmd" not in found, found


def test_ansible(w):
    configure(w, lab=LAB)
    w.write("play.yml", w.ok("targets", "--recipe", "ansible", "lab").out)
    said = checked(w, tools() / "ansible-playbook", "--syntax-check", "-i", "gpu1,", w.tree / "play.yml")
    assert "play.yml" in said, said
    tasks = json.loads(checked(w, tools() / "python", "-c", DUMP, w.tree / "play.yml"))[0]["tasks"]
    assert [t["ansible.builtin.file"]["path"] for t in tasks if "ansible.builtin.file" in t] == [[LAB["dir"]], [LAB["caches"]]], tasks
    users = [t["ansible.builtin.user"] for t in tasks if "ansible.builtin.user" in t]
    assert users == [{"name": ["ana"], "shell": "/bin/bash", "groups": ["video"], "append": True}], tasks
    w.write("dlrun.yaml", json.dumps({"targets": {"lab": {**LAB, "runtime": "docker"}}}))
    w.ok("config", "trust", "--yes")
    w.write("play.yml", w.ok("targets", "--recipe", "ansible", "lab").out)
    checked(w, tools() / "ansible-playbook", "--syntax-check", "-i", "gpu1,", w.tree / "play.yml")
    tasks = json.loads(checked(w, tools() / "python", "-c", DUMP, w.tree / "play.yml"))[0]["tasks"]
    assert "docker.io" in tasks[0]["ansible.builtin.package"]["name"]
    assert tasks[1]["ansible.builtin.user"]["groups"] == ["video", "docker"], tasks


def test_terraform(w):
    program = needs("terraform")
    types = {"h100": {"resource": "nvidia.com/gpu", "node_selector": {"gpu": "h100", "odd": "${a}%{b}\"\\"},
                      "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"},
                                      {"key": "team", "value": "vision"}, {"operator": "Exists"}]},
             "a100": {"resource": "nvidia.com/gpu", "node_selector": {"gpu": "a100"}}}
    configure(w, k={"kind": "kubernetes", "gpu_types": types}, plain={"kind": "kubernetes"})

    def groups(target):
        there = w.dir / f"terraform-{target}"
        there.mkdir()
        (there / "main.tf").write_text(TYPES)
        (there / "dlrun.auto.tfvars").write_text(w.ok("targets", "--recipe", "terraform", target).out)
        for verb in (["init"], ["apply", "-auto-approve"]):
            checked(w, program, f"-chdir={there}", *verb, "-no-color", "-input=false")
        return json.loads(checked(w, program, f"-chdir={there}", "output", "-json", "node_groups"))

    found = groups("k")
    assert found["h100"]["labels"] == types["h100"]["node_selector"], found
    assert found["h100"]["taints"] == [{"key": "nvidia.com/gpu", "value": "", "effect": "NO_EXECUTE"},
                                       {"key": "team", "value": "vision", "effect": "NO_SCHEDULE"}], found
    before = "k8s.io/cluster-autoscaler/node-template"
    assert found["h100"]["tags"][f"{before}/label/odd"] == types["h100"]["node_selector"]["odd"], found
    assert found["h100"]["tags"][f"{before}/taint/team"] == "vision:NoSchedule", found
    assert found["a100"]["taints"] == [] and found["a100"]["tags"][f"{before}/label/gpu"] == "a100", found
    assert list(groups("plain")) == ["plain"]


def test_what_has_no_recipe(w):
    configure(w, lab=LAB, k={"kind": "kubernetes"})
    for words, text in ((["terraform", "lab"], "is for clusters"), (["ansible", "k"], "is for SSH hosts"), (["ansible"], "target local is not one"),
                        (["ansible", "nosuch"], "there is no target 'nosuch'"), (["ansible", "lab", "k"], "one target"),
                        (["chef", "lab"], "must be cloud-init, ansible or terraform"), (["ansible", "lab", "--json"], "--json")):
        refused = w.run("targets", "--recipe", *words)
        assert refused.rc == 2 and text in refused.err + refused.out, refused


if __name__ == "__main__":
    main()
