#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of README's console blocks, one after the other in one shell on a terminal.

    tests/check/readme.py DLRUN

Where output is shown below a command, it must be what comes out, but for what differs from run to run (VOLATILE).
"""

import difflib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 100
MARK = "@@ readme "

VOLATILE = [
    (r"\b(demo)-[2-9a-z]{5}\b", r"\1-XXXXX"),
    (r"sha256:[0-9a-f]{12}", "sha256:HEX"),
    (r"\b\d+(\.\d+)? (ms|s)\b", "TIME"),
    (r"\b[\d.]+ (B|KiB|MiB)\b", "SIZE"),
    (r"\d+ processors?\b|\d+ CPUs?\b", "N CPUs"),
    (r"/\S*/\.local/", "HOME/.local/"),
]


def normalise(lines):
    text = "\n".join(line.rstrip() for line in lines)
    for pattern, to in VOLATILE:
        text = re.sub(pattern, to, text)
    return text.strip("\n").split("\n")


def commands(text):
    """(command, lines of output that are shown) of each."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.startswith("> "):
                found[-1] = (found[-1][0] + "\n" + line[2:], [])
            else:
                found[-1][1].append(line)
    return found


def run(script, scratch):
    """(exit status, what came out on a terminal)"""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    env = {"HOME": f"{scratch}/home", "PATH": f"{scratch}/bin:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", "NO_COLOR": "1",
           "TERM": "xterm", "GIT_PAGER": "cat", "PAGER": "cat"}
    said = bytearray()

    def read():
        try:
            while part := os.read(master, 65536):
                said.extend(part)
        except OSError:
            pass  # nobody has the other end any more

    shell = subprocess.Popen(["bash", "-c", script], cwd=scratch, env=env, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
    os.close(slave)
    reader = threading.Thread(target=read)
    reader.start()
    status = shell.wait()
    reader.join()
    os.close(master)
    return status, said.decode(errors="replace").replace("\r\n", "\n")


def main():
    dlrun = Path(sys.argv[1]).resolve()
    wanted = commands((ROOT / "README.md").read_text())
    with tempfile.TemporaryDirectory(prefix="dlrun-readme-") as scratch:
        (Path(scratch) / "bin").mkdir()
        (Path(scratch) / "bin/dlrun").symlink_to(dlrun)
        (Path(scratch) / "home").mkdir()
        script = "set -e\n" + "\n".join(f"echo '{MARK}'{i}\n{line}" for i, (line, _) in enumerate(wanted)) + f"\necho '{MARK}'end\n"
        status, said = run(script, scratch)
    parts = [part.split("\n") for part in said.split(MARK)[1:]]
    if status or not parts or parts[-1][0] != "end":
        print(f"failed: {wanted[len(parts) - 1][0]}\nexit {status}\n{said}")
        print(f"{max(len(parts) - 1, 0)} passed, 1 failed, 0 skipped")
        return 1
    failed = 0
    for (line, shown), part in zip(wanted, parts):
        diff = list(difflib.unified_diff(normalise(shown), normalise(part[1:]), "README.md", "what came out", lineterm="")) if shown else []
        failed += bool(diff)
        print("\n".join([f"failed: {line}", *diff]) if diff else "", end="\n" if diff else "")
    print(f"{len(wanted) - failed} passed, {failed} failed, 0 skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
