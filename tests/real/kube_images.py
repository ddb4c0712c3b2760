# SPDX-License-Identifier: Apache-2.0
"""Images of the cluster tests, made of what the machine has, without any network; kept in the cache.

    pause       holds a pod's namespaces
    busybox     a shell and the usual programs
    python      the machine's python3 with its library, and busybox
    bare        the same python3, and neither a shell nor any other program; not in the registry of each cluster
    machine     nothing but the names that lead to /usr, which a pod has to mount from its node
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from harness import needs
from image import base_layout
from pypi import CACHE, only_one

PASSWD = b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
GROUP = b"root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"
NOT_NEEDED = re.compile(r"/(tests?|idlelib|lib2to3|pydoc_data|ensurepip|tkinter|turtledemo|__pycache__|config-[^/]*|"
                        r"(site|dist)-packages)/|_tkinter")
COMPILE = """import py_compile, sys
sys.pycache_prefix = sys.argv[1]
for path in sys.stdin.read().split("\\n"):
    py_compile.compile(path, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
"""
ENV = ["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"]


def pause():
    source = Path(__file__).with_name("kubernetes") / "pause.c"
    program = CACHE / "pause"
    subprocess.run([needs("cc"), "-static", "-Os", "-s", "-o", program, source], check=True)
    return [{"pause": program.read_bytes()}], {"Entrypoint": ["/pause"]}


def busybox_files():
    program = needs("busybox")
    names = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split()
    links = {f"bin/{name}": "busybox" for name in names if name != "busybox"}
    return {"bin/busybox": Path(program).read_bytes(), **links, "etc/passwd": PASSWD, "etc/group": GROUP, "tmp/.keep": b""}


def busybox():
    return [busybox_files()], {"Env": ENV, "Cmd": ["sh"]}


def libraries(programs):
    """The files that the loader would take for these, by the names under which it looks for them."""
    said = subprocess.run([needs("ldd"), *programs], check=True, capture_output=True, text=True).stdout
    return sorted(set(re.findall(r"(/\S+) \(0x", said)))


def byte_code(python3, files):
    """What Python would make of these at each start of a pod; it takes it whatever the times of the files are."""
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([python3, "-I", "-c", COMPILE, made], input="\n".join(files), text=True, check=True)
        return {f"{p.parent.relative_to(made)}/__pycache__/{p.name}": p.read_bytes() for p in Path(made).rglob("*.pyc")}


def python_files():
    """The system's own rather than one that somebody has built into a home directory."""
    python3 = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    ask = "import os, sys, sysconfig; print(os.path.realpath(sys.executable)); print(sysconfig.get_path('stdlib'))"
    program, library = subprocess.run([python3, "-I", "-c", ask], check=True, capture_output=True, text=True).stdout.split("\n")[:2]
    files = [str(p) for p in Path(library).rglob("*") if p.is_file() and not NOT_NEEDED.search(str(p))]
    wanted = [program, *files, *libraries([program, *(f for f in files if f.endswith(".so"))])]
    found = {path.lstrip("/"): Path(path).read_bytes() for path in wanted} | byte_code(python3, [f for f in files if f.endswith(".py")])
    for name in ("python3", "python"):
        found.setdefault(f"usr/bin/{name}", os.path.relpath(program, "/usr/bin"))
    return found


def python():
    return [busybox_files(), python_files()], {"Env": ENV, "Cmd": ["python3"]}


def bare():
    return [{**python_files(), "etc/passwd": PASSWD, "etc/group": GROUP, "tmp/.keep": b""}], {"Env": ENV, "Cmd": ["python3"]}


def machine():
    names = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64") if os.path.islink(f"/{name}")}
    return [{**names, "etc/passwd": PASSWD, "etc/group": GROUP, "tmp/.keep": b""}], {"Env": ENV, "Cmd": ["python3"]}


IMAGES = {"pause": pause, "busybox": busybox, "python": python, "machine": machine}
OTHERS = {"bare": bare}
# As a build from a Dockerfile leaves it, which tells that there is a shell.
HISTORY = {"python": "RUN /bin/sh -c make install"}


def push_python(repository):
    """The image with Python, as a public base is named; its reference."""
    there = f"{repository}:3.11-slim"
    subprocess.run(["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{layout('python')}:v1", f"docker://{there}"], check=True)
    return there


def layout(name):
    """The directory of an image layout with the tag v1."""
    own = hashlib.sha256(b"".join(Path(f).read_bytes() for f in (__file__, needs("busybox")))).hexdigest()[:12]
    there = CACHE / "images" / f"{name}-{own}"
    with only_one(f"image-{name}"):
        if not there.exists():
            there.parent.mkdir(exist_ok=True)
            new = there.with_name(f"new-{there.name}")
            shutil.rmtree(new, ignore_errors=True)
            layers, settings = (IMAGES | OTHERS)[name]()
            base_layout(SimpleNamespace(dir=new.parent), len(layers), members=lambda i: layers[i], name=new.name, settings=settings,
                        history=HISTORY.get(name, "x"))
            new.rename(there)
    return there
