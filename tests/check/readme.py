#!/usr/bin/env python3
"""Runs the commands of README's console blocks, one after the other in one shell.

    tests/check/readme.py DLRUN
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def commands(text):
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                yield line[2:]


def main():
    dlrun = Path(sys.argv[1]).resolve()
    lines = list(commands((ROOT / "README.md").read_text()))
    with tempfile.TemporaryDirectory(prefix="dlrun-readme-") as scratch:
        (Path(scratch) / "bin").mkdir()
        (Path(scratch) / "bin/dlrun").symlink_to(dlrun)
        (Path(scratch) / "home").mkdir()
        env = {"HOME": f"{scratch}/home", "PATH": f"{scratch}/bin:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
        script = "set -e\n" + "\n".join(f"echo {i} >&9\n{line}" for i, line in enumerate(lines)) + "\necho end >&9\n"
        with open(f"{scratch}/at", "w") as at:
            done = subprocess.run(["bash", "-c", script.replace("&9", f"&{at.fileno()}")], cwd=scratch, env=env,
                                  capture_output=True, text=True, stdin=subprocess.DEVNULL, pass_fds=(at.fileno(),))
        reached = Path(f"{scratch}/at").read_text().split()
    if done.returncode or reached[-1] != "end":
        print(f"failed: {lines[int(reached[-1])]}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}")
        print(f"{len(reached) - 1} passed, 1 failed, 0 skipped")
        return 1
    print(f"{len(lines)} passed, 0 failed, 0 skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
