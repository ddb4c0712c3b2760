#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The libraries that a program loads late stand in its notes, where tools for packages look for them.

    tests/check/notes.py DLRUN

Each name of a library in the program is one that it is linked with, or that a note declares in the form of
https://systemd.io/ELF_DLOPEN_METADATA/; and the other way round.
"""

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

PRIORITIES = {"required", "recommended", "suggested"}


def readelf(option, program):
    """Older ones print no text of notes of others, and fail for it."""
    return subprocess.run(["readelf", "-W", option, program], stdout=subprocess.PIPE, text=True).stdout


def notes(program):
    """The objects of each note of type FDO 0x407c0c0a."""
    section = re.search(r"\.note\.dlopen\s+NOTE\s+\w+ (\w+) (\w+) .* 4$", readelf("-S", program), re.M)
    assert section, "there is no section for notes, aligned to 4"
    at, size = (int(number, 16) for number in section.groups())
    data = Path(program).read_bytes()[at:at + size]
    while data:
        name_size, size, kind = struct.unpack_from("<III", data)
        assert (name_size, kind, data[12:16]) == (4, 0x407C0C0A, b"FDO\0"), data
        assert f"FDO                  {size:#010x}" in readelf("-n", program)
        yield from json.loads(data[16:16 + size].rstrip(b"\0"))
        data = data[16 + (size + 3 & ~3):]


def main(program):
    declared = {}
    for note in notes(program):
        assert set(note) == {"feature", "description", "priority", "soname"} and note["priority"] in PRIORITIES, note
        declared |= dict.fromkeys(note["soname"], note["feature"])
    linked = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", program)))
    # Strings may share their ends, so that a name need not begin behind a NUL.
    named = {name.decode() for name in re.findall(rb"(?<!\")\blib[\w-]+\.so\.[\d.]+(?=\0)", Path(program).read_bytes())}
    wrong = sorted((named - linked) ^ set(declared))
    for name in wrong:
        print(f"{program}: {name} is {'declared and not loaded' if name in declared else 'loaded late and in no note'}")
    print(f"notes: {len(declared)} libraries declared, {len(wrong)} problems")
    return 1 if wrong or not declared else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
