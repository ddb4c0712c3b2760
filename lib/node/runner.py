#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the C file that holds the runner: lib/node/runner.py OUTPUT BOOT PART...
Or one that holds another script: lib/node/runner.py --text NAME OUTPUT PART..."""

import hashlib
import sys
from pathlib import Path


def quoted(line):
    out = ""
    for char in line:
        if char in '"\\?':
            out += "\\" + char
        elif char == "\t":
            out += "\\t"
        elif char == "\n":
            out += "\\n"
        elif 32 <= ord(char) < 127:
            out += char
        else:
            raise SystemExit(f"runner: {char!r} is no ASCII")
    return f'\t"{out}"'


def without_comments(text):
    """What only people read does not travel: whole-line comments and empty lines."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))


def write_text(name, output, *parts):
    text = "".join(without_comments(Path(part).read_text()) for part in parts)
    lines = [f"extern const char {name}[];", f"const char {name}[] =", *(quoted(line) for line in text.splitlines(keepends=True)), ";"]
    Path(output).write_text("\n".join(lines) + "\n")


def main():
    if sys.argv[1] == "--text":
        write_text(*sys.argv[2:])
        return
    output, boot, *parts = sys.argv[1:]
    start = Path(boot).read_text().strip()
    if any(char in start for char in "'!\\\n"):
        raise SystemExit("runner: BOOT does not get through every login shell")
    text = "".join(without_comments(Path(part).read_text()) for part in parts)
    digest = hashlib.sha256(text.encode()).hexdigest()
    lines = [
        '#include "node/runner.h"\n',
        f"const char node_boot[] ={quoted(start)};",
        "const char node_runner[] =",
        *(quoted(line) for line in text.splitlines(keepends=True)),
        ";",
        f"const size_t node_runner_size = {len(text)};",
        f'const char node_runner_hash[] = "{digest[:32]}";',
    ]
    Path(output).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
