#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The objects of tests/unit/data/kube on a real cluster: whether the server takes them, and what pods of them can do."""

import json
from pathlib import Path

import cluster as clusters
from harness import *  # noqa: F403

OBJECTS = Path(__file__).parents[1] / "unit" / "data" / "kube"
JOB = "resnet-3k2f9"
GIVEN_IMAGE = re.compile(r"registry\.example\.com/me/dlrun@sha256:[0-9a-f]{64}")
WRITES = "id -u; id -g; echo a >$DLRUN_OUTPUT_DIR/result && echo b >in-the-tree && mkdir -p /dlrun/src/new/dir && echo written"


def text_of(name, namespace, image=None, words=None):
    """The documents of a file, in that namespace, with that image and command."""
    text = (OBJECTS / f"{name}.yaml").read_text().replace("namespace: me\n", f"namespace: {namespace}\n")
    if image:
        text = GIVEN_IMAGE.sub(image, text)
    if words:
        given = "        - python\n        - train.py\n"
        assert given in text
        text = text.replace(given, "".join(f"        - {json.dumps(word)}\n" for word in words))
    return text


def create(c, text, *options):
    c.kubectl("create", "--validate=strict", *options, "-f", "-", stdin=None, input=text)


def pushed(w, c):
    w.repo({"a.txt": "a", "exp/a/b.txt": "b"})
    image = w.ok("push", "--image", c.images["busybox"], "--to", f"{c.registry}/objects/code").out.strip()
    assert "@sha256:" in image
    return image


def log_of_end(c, namespace):
    c.wait(lambda: any(i["type"] in ("Complete", "Failed") for i in c.get("Job", JOB, namespace)["status"].get("conditions", [])),
           "the end of the Job")
    return c.kubectl("-n", namespace, "logs", "-l", f"dlrun.io/run-id={JOB}")


def test_the_server_takes_them(w):
    c = clusters.get()
    with c.namespace() as ns:
        for file in sorted(OBJECTS.glob("*.yaml")):
            if "kind: JobSet" not in file.read_text():
                create(c, text_of(file.stem, ns), "--dry-run=server")


def test_a_root_image_writes_in_an_open_namespace(w):
    c = clusters.get()
    with c.namespace() as ns:
        create(c, text_of("plain", ns, pushed(w, c), ["sh", "-c", WRITES]))
        assert log_of_end(c, ns) == "0\n0\nwritten\n"


def test_any_image_writes_in_a_restricted_namespace(w):
    c = clusters.get()
    with c.namespace(labels={"pod-security.kubernetes.io/enforce": "restricted"}) as ns:
        there = c.volume(ns, f"{JOB}-results")
        job = text_of("restricted", ns, pushed(w, c), ["sh", "-c", f"touch $HOME/x && {WRITES}"]).split("---\n")[1]
        create(c, job)
        assert log_of_end(c, ns) == "1000\n0\nwritten\n"
        assert (there / JOB / "result").read_text() == "a\n"


def test_the_limit_is_kept_in_the_pod(w):
    c = clusters.get()
    begin = "trap 'echo saved' USR1; trap 'echo asked; exit 3' TERM; echo begun; while :; do sleep 0.1; done"
    with c.namespace() as ns:
        text = text_of("script", ns, pushed(w, c), ["sh", "-c", begin])
        text = text.replace("uv sync --frozen", "echo setup").replace("source ~/venv/bin/activate", "X=1")
        text = text.replace("        - /entrypoint.sh\n", "        - env\n").replace("sleep 3510", "sleep 1").replace("sleep 90", "sleep 1")
        text = text.replace("/dlrun/src/exp\n", "/dlrun/src\n")
        create(c, text)
        assert log_of_end(c, ns).splitlines()[0] == "begun"
        ended = c.get("Pod", namespace=ns)[0]["status"]["containerStatuses"][0]["state"]["terminated"]
        assert ended["exitCode"] == 124 and ended["message"] == "dlrun: time limit", ended


if __name__ == "__main__":
    main()
