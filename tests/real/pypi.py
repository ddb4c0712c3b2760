# SPDX-License-Identifier: Apache-2.0
"""Python projects for the tests, made with pip and uv from the package index.

Downloads are kept in ~/.cache/dlrun-tests, so that only the first run on a machine needs time for
them. Without an index the tests that need one are skipped, in CI they fail.
"""

import base64
import fcntl
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path

from harness import Missing

CACHE = Path(os.path.expanduser("~/.cache/dlrun-tests"))
TOOLS = CACHE / "tools-{}.{}".format(*sys.version_info)
PASSED_ON = ("PIP_", "UV_", "SSL_CERT", "REQUESTS_CA", "CURL_CA", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def network():
    """What a shell of the researcher's has set for pip and uv, with the caches of the tests."""
    own = {k: v for k, v in os.environ.items() if k.upper().startswith(PASSED_ON)}
    return {**own, "PIP_CACHE_DIR": str(CACHE / "pip"), "UV_CACHE_DIR": str(CACHE / "uv"), "UV_PYTHON": sys.executable,
            "UV_PYTHON_DOWNLOADS": "never", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_NO_PROGRESS": "1"}


def build(*argv, cwd=None, timeout=300):
    """One command of those that make a project: with the real HOME, and the settings of pip in it."""
    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([os.fspath(a) for a in argv], cwd=cwd, env={**env, **network()}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    if done.returncode:
        raise Missing(f"{' '.join(map(str, argv))}: {done.stdout[-600:]}")


@contextmanager
def only_one(name):
    """Tests and whole runs of them share the caches."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tools():
    """bin/python with pip, and bin/uv; made once."""
    with only_one("tools"):
        if not (TOOLS / "bin/uv").exists():
            build(sys.executable, "-m", "venv", "--clear", TOOLS)
            build(TOOLS / "bin/python", "-m", "pip", "install", "-q", "-U", "pip", "uv")
    return TOOLS / "bin"


def uv(*words, cwd):
    build(tools() / "uv", *words, cwd=cwd)


def venv(there):
    tools()
    build(sys.executable, "-m", "venv", "--without-pip", there)
    return there


def pip_install(prefix, *words, cwd=None, timeout=300):
    """pip of the tests' own, into the environment prefix: making a pip for each takes seconds."""
    build(tools() / "python", "-m", "pip", "--python", prefix / "bin/python", "install", "-q", *words, cwd=cwd, timeout=timeout)


def made_once(name, *words):
    """The Python of an environment with these packages, which outlives the tests."""
    there = CACHE / "{}-{}.{}".format(name, *sys.version_info)
    with only_one(name):
        if not (there / "whole").exists():
            build(sys.executable, "-m", "venv", "--clear", "--without-pip", there)
            pip_install(there, *words, timeout=600)
            (there / "whole").touch()
    return there / "bin/python"


def activated(w, prefix, **more):
    """The environment of a shell in which prefix/bin/activate was read."""
    return {**network(), "VIRTUAL_ENV": str(prefix), "PATH": f"{prefix}/bin:{w.env['PATH']}", **more}


def wheel(name, version):
    """A wheel with one module of that name."""
    files = {f"{name}.py": f"VERSION = '{version}'\n",
             f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
             f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        rows.append(f"{path},sha256={digest},{len(text)}")
    files[f"{name}-{version}.dist-info/RECORD"] = "\n".join([*rows, f"{name}-{version}.dist-info/RECORD,,"]) + "\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return out.getvalue()
