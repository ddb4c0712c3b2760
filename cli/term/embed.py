#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a C file that holds text files: cli/term/embed.py OUTPUT FILE..."""

import sys
from pathlib import Path


def quoted(line):
    """One line as a C string: printable ASCII as it is, other bytes in octal."""
    out = ""
    for byte in line:
        char = chr(byte)
        if char in '"\\?':
            out += "\\" + char
        elif char == "\n":
            out += "\\n"
        elif 32 <= byte < 127:
            out += char
        else:
            out += f"\\{byte:03o}"
    return f'\t"{out}"'


def main():
    output, *files = sys.argv[1:]
    parts = ['#include "cli/term/embed.h"\n', "const struct embed embeds[] = {"]
    for name in files:
        lines = Path(name).read_bytes().splitlines(keepends=True) or [b""]
        parts.append(f'{{"{Path(name).name}",')
        parts += [quoted(line) for line in lines]
        parts.append("},")
    parts += ["};", f"const size_t embeds_n = {len(files)};", ""]
    Path(output).write_text("\n".join(parts))


if __name__ == "__main__":
    main()
