#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Environments by the files of conda and pixi: packages from a channel on loopback, installed by what pip gets for that."""

import contextlib
import functools
import http.server
import json
import threading

from channel import channel, conda_lock, pixi_lock
from harness import *  # noqa: F403
from pypi import network, wheel

LOOK = """import os, small, sys
print(small.VERSION, sys.prefix == os.environ["CONDA_PREFIX"], os.path.realpath(sys.prefix) != sys.prefix, os.environ.get("VIRTUAL_ENV"))
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@contextlib.contextmanager
def served(w):
    packages = channel(w.dir / "channel")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=w.dir / "channel"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", packages
    finally:
        server.shutdown()


def project(w, lock, text):
    w.repo({".gitignore": ".venv/\n", "look.py": LOOK, lock: text, "dlrun.yaml": f"environment: {{lock: {lock}}}\n"})
    w.env.update(network(), VIRTUAL_ENV="/outer")


def environment_yml(url, *wanted):
    return json.dumps({"channels": [url], "dependencies": list(wanted)})


def setups(w):
    return sorted(p.parent.name for p in w.home.rglob("setups/*/done"))


def test_environment_yml(w):
    with served(w) as (url, _):
        project(w, "environment.yml", environment_yml(url, "python", "small>=1", "tool=1.0", {"pip": ["-r needed.txt  # by pip"]}))
        w.write("needed.txt", "./extra-1-py3-none-any.whl\n")
        w.write("extra-1-py3-none-any.whl", wheel("extra", "1"))
        first = w.ok("submit", "-f", "--", "sh", "-c", "python look.py && python -c 'import extra' && tool")
        assert first.out.startswith("1.0 True True None\ntool of /") and first.out.endswith("/.venv\n"), first
        assert "not found" not in w.ok("submit", "-f", "--", "tool").err
        assert w.ok("submit", "-f", "--", "look.py").out == "1.0 True True None\n", "a script gets the interpreter of the environment"
        assert len(setups(w)) == 1
        w.write("environment.yml", environment_yml(url, "python", "tool=9.9"))
        failed = w.run("submit", "-f", "--", "tool")
        assert failed.rc == 125 and "No candidates were found for tool" in failed.out + failed.err, failed
        assert "setup failed with exit 1: lock=environment.yml" in failed.err and len(setups(w)) == 1, failed


def test_lock_files(w):
    with served(w) as (url, packages):
        project(w, "conda-lock.yml", conda_lock(url, packages))
        assert w.ok("submit", "-f", "--", "python", "look.py").out == "1.0 True True None\n"
        w.write("dlrun.yaml", "environment: {lock: pixi.lock}\n")
        w.write("pixi.lock", pixi_lock(url, packages))
        assert w.ok("submit", "-f", "--", "python", "look.py").out == "1.0 True True None\n"
        w.write("pixi.lock", pixi_lock(url, packages, "osx-arm64"))
        failed = w.run("submit", "-f", "--", "python", "look.py")
        assert failed.rc == 125 and "pixi.lock: it is for osx-arm64, and not for linux-64" in failed.out + failed.err, failed
        assert len(setups(w)) == 2


TOOL = """#!/bin/sh
[ "$1" != --version ] || { echo VERSION; exit; }
mkdir -p AT/conda-meta AT/bin
echo "${0##*/} $*" | sed "s,$PWD,TREE," >AT/said
"""


def test_a_tool_of_the_host_makes_it(w):
    """By what it is called with: these programs are stand-ins."""
    made = "create -y -q -p TREE/.venv -f"
    for lock, there, expected in (
            ("environment.yml", ("conda", "conda-lock", "pixi"), "conda env create -q -p TREE/.venv -f environment.yml"),
            ("environment.yml", ("conda", "mamba", "micromamba"), f"micromamba {made} environment.yml"),
            ("environment.yaml", ("conda", "mamba"), f"mamba {made} environment.yaml"),
            ("conda-lock.yml", ("conda", "conda-lock", "mamba 1.5"), "conda-lock install -p TREE/.venv conda-lock.yml"),
            ("conda-lock.yaml", ("conda-lock",), "conda-lock install -p TREE/.venv conda-lock.yaml"),
            ("conda-lock.yml", ("micromamba", "conda-lock"), f"micromamba {made} conda-lock.yml"),
            ("pixi.lock", ("micromamba", "pixi"), "pixi install --frozen")):
        tools = w.dir / f"tools-{'-'.join(there)}-{lock}"
        tools.mkdir()
        for name in there:
            name, _, version = name.partition(" ")
            at = ".pixi/envs/default" if name == "pixi" else ".venv"
            (tools / name).write_text(TOOL.replace("AT", at).replace("VERSION", version or "2.1"))
            (tools / name).chmod(0o755)
        project(w, lock, "x: 1\n" + " ".join(there))
        done = w.ok("submit", "-f", "--", "sh", "-c", 'cat .venv/said; [ "$CONDA_PREFIX" = "$PWD/.venv" ] && [ -z "${VIRTUAL_ENV-}" ] && echo active',
                    env={"PATH": f"{tools}:{w.env['PATH']}"})
        assert done.out == f"{expected}\nactive\n", (lock, there, done)


def test_without_a_tool_it_is_said(w):
    project(w, "conda-lock.yml", "x")
    (w.dir / "python3").mkdir()
    (w.dir / "python3/python3").write_text("#!/bin/sh\nexit 1\n")
    (w.dir / "python3/python3").chmod(0o755)
    failed = w.run("submit", "-f", "--", "true", env={"PATH": f"{w.dir}/python3:{w.env['PATH']}"})
    assert failed.rc == 125 and "take a base image with one of them" in failed.out + failed.err and not setups(w), failed


if __name__ == "__main__":
    main()
