#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Has the compiler of a build check the sources that this build leaves out, because they are of another system.

    tests/check/left_out.py BUILD_DIR

Each is checked, not compiled, with the flags of a source beside it.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
import rooms  # noqa: E402


def words_without(command, source):
    words = shlex.split(command)
    for flag in ("-o", "-MF", "-MQ"):
        at = words.index(flag)
        del words[at:at + 2]
    return [w for w in words if w not in ("-MD", "-c", "ccache", source)]


def main():
    build = Path(sys.argv[1]).resolve()
    commands = json.loads((build / "compile_commands.json").read_text())
    by_file = {os.path.relpath(Path(c["directory"]) / c["file"], ROOT): c for c in commands}
    beside = {os.path.dirname(path): c for path, c in by_file.items()}
    left_out = [f for f in rooms.sources(endings=(".c",)) + list(rooms.unit_tests().values()) if f not in by_file]
    failed = 0
    for path in left_out:
        command = beside.get(os.path.dirname(path))
        if not command:
            sys.exit(f"{path}: no source beside it is compiled")
        done = subprocess.run([*words_without(command["command"], command["file"]), "-Werror", "-fsyntax-only", str(ROOT / path)],
                              cwd=command["directory"])
        failed += done.returncode != 0
    print(f"{len(left_out)} sources of another system, {failed} with faults: {' '.join(left_out)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
