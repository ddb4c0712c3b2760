# SPDX-License-Identifier: Apache-2.0
"""What the benches share: a directory of their own with a HOME, trees of real source code, exact times."""

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

# What the files are cut from: source code as it is, because compression decides much.
CODE = Path(os.__file__).parent
CODE_MAX = 24 << 20
PROCESS_S = 600


def bench(name):
    """Another bench as a module."""
    loader = SourceFileLoader(name, str(Path(__file__).with_name(name)))
    module = module_from_spec(spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class Bench:
    def __init__(self, options):
        self.options = options
        self.dlrun = os.path.abspath(options.dlrun)
        self.dir = Path(tempfile.mkdtemp(prefix="dlrun-bench-", dir=options.dir))
        self.home = self.dir / "home"
        self.home.mkdir()
        self.env = {"HOME": str(self.home), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8",
                    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_NAME": "a",
                    "GIT_COMMITTER_EMAIL": "a@example.com"}

    def timed(self, argv, cwd, env=None):
        """Wall seconds, peak resident bytes and output of one process, which ends with this one."""
        with tempfile.TemporaryFile() as said:
            begin = time.perf_counter()
            process = subprocess.Popen(argv, cwd=cwd, env={**self.env, **(env or {})}, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=said, start_new_session=True)
            late = threading.Timer(PROCESS_S, os.killpg, (process.pid, signal.SIGKILL))
            late.start()
            try:
                out = process.stdout.read()
                _, status, usage = os.wait4(process.pid, 0)
                wall = time.perf_counter() - begin
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
            finally:
                late.cancel()
                process.stdout.close()
            process.returncode = status
            if status:
                said.seek(0)
                sys.exit(f"{argv}: {said.read().decode()}")
        return wall, usage.ru_maxrss * 1024, out.decode()

    def tree(self, name, files, total):
        """Made by a process of its own: what this one has once held would count as its children's peak."""
        maker = multiprocessing.Process(target=self.make_tree, args=(name, files, total))
        maker.start()
        maker.join()
        return self.dir / name

    def make_tree(self, name, files, total):
        rng = random.Random(7)
        root = self.dir / name
        each = total // files
        text = bytearray()
        for path in sorted(CODE.rglob("*.py")):
            if len(text) < CODE_MAX:
                text += path.read_bytes()
        for i in range(files):
            if i % 20 == 0:
                here = root / f"d{i // 1000}" / f"e{i // 20}"
                here.mkdir(parents=True)
            at = rng.randrange(len(text) - each - 1)
            (here / f"f{i}.py").write_bytes(b"# %d\n" % i + text[at:at + each - 8])
        self.git(root, "init", "-q")
        self.git(root, "add", "-A")
        self.git(root, "commit", "-qm", "x")

    def git(self, root, *args):
        subprocess.run(["git", "-c", "gc.auto=0", *args], cwd=root, env=self.env, check=True, capture_output=True)

    def edit(self, root, i):
        with open(next((root / "d0").rglob("f7.py")), "a") as file:
            file.write(f"edit {i}\n")
