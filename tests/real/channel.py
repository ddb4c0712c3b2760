# SPDX-License-Identifier: Apache-2.0
"""A channel of conda: packages and what a server would say of them, in a directory; and lock files of them.

The interpreter in it is a link to that of this machine, in an environment that has the mark of a venv."""

import hashlib
import io
import json
import os
import sys
import tarfile

PREFIX = "/where/it/was/built"


def package(there, name, files, links=(), depends=(), version="1.0", subdir="linux-64", **more):
    """files: {path: text}, of those in bin/ programs; PREFIX in one is replaced when it is installed."""
    out, paths = io.BytesIO(), []
    index = {"name": name, "version": version, "build": "0", "build_number": 0, "depends": list(depends), "subdir": subdir, **more}
    with tarfile.open(fileobj=out, mode="w:bz2") as tar:
        def add(path, data, mode=0o644):
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(data), mode
            tar.addfile(member, io.BytesIO(data))

        for path, text in files.items():
            data = text.encode()
            add(path, data, 0o775 if path.startswith("bin/") else 0o664)
            row = {"_path": path, "path_type": "hardlink", "sha256": hashlib.sha256(data).hexdigest(), "size_in_bytes": len(data)}
            paths.append({**row, **({"prefix_placeholder": PREFIX, "file_mode": "text"} if PREFIX in text else {})})
        for path, target in dict(links).items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
            paths.append({"_path": path, "path_type": "softlink", "sha256": hashlib.sha256(b"").hexdigest(), "size_in_bytes": 0})
        add("info/index.json", json.dumps(index).encode())
        add("info/paths.json", json.dumps({"paths": paths, "paths_version": 1}).encode())
        add("info/files", "".join(row["_path"] + "\n" for row in paths).encode())
    (there / subdir).mkdir(parents=True, exist_ok=True)
    path = there / subdir / f"{name}-{version}-0.tar.bz2"
    path.write_bytes(out.getvalue())
    found = {kind: hashlib.new(kind, out.getvalue()).hexdigest() for kind in ("md5", "sha256")}
    return path, {**index, **found, "size": len(out.getvalue())}


def channel(there):
    """python, small (a module) and tool (a program)."""
    packages = [
        package(there, "python", {"pyvenv.cfg": f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n"},
                {"bin/python": os.path.realpath(sys.executable)},
                version="{}.{}.0".format(*sys.version_info)),
        package(there, "tool", {"bin/tool": f"#!/bin/sh\necho tool of {PREFIX}\n"}, depends=["python"]),
        package(there, "small", {"site-packages/small.py": "VERSION = '1.0'\n"}, depends=["python"], subdir="noarch", noarch="python"),
    ]
    for subdir in ("linux-64", "noarch"):
        found = {path.name: index for path, index in packages if index["subdir"] == subdir}
        (there / subdir / "repodata.json").write_text(json.dumps({"info": {"subdir": subdir}, "packages": found, "packages.conda": {}}))
    return packages


def conda_lock(url, packages, platform="linux-64"):
    rows = [{"name": index["name"], "version": index["version"], "manager": "conda", "platform": platform, "dependencies": {},
             "url": f"{url}/{index['subdir']}/{path.name}", "hash": {kind: index[kind] for kind in ("md5", "sha256")},
             "category": "main", "optional": False} for path, index in packages]
    return json.dumps({"version": 1, "metadata": {"content_hash": {platform: "0" * 64}, "channels": [{"url": url, "used_env_vars": []}],
                                                  "platforms": [platform], "sources": ["environment.yml"]}, "package": rows})


def pixi_lock(url, packages, platform="linux-64"):
    rows = [{"conda": f"{url}/{index['subdir']}/{path.name}", **{kind: index[kind] for kind in ("sha256", "md5", "depends", "size")},
             **({"noarch": index["noarch"]} if "noarch" in index else {})} for path, index in packages]
    names = [{"conda": row["conda"]} for row in rows]
    return json.dumps({"version": 6, "environments": {"default": {"channels": [{"url": url}], "packages": {platform: names}}}, "packages": rows})
