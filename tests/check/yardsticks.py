#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures of the code's mass and grain, for the whole of lib/ and cli/ and for each room.

    tests/check/yardsticks.py [--rooms] [ROOT]      --rooms: only lines and files of each room

raw lines     all lines of .c and .h files
code lines    those that hold more than blanks and comments
once          static functions whose name occurs at one place beside its definition and declarations
twice         functions that share their name with another one of the program
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).resolve().parents[1]))
import rooms  # noqa: E402

BLANKED = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def blanked(text):
    """Without comments and the contents of strings; line numbers stay."""
    return BLANKED.sub(lambda m: '""' if m[0][0] in "\"'" else re.sub(r"[^\n]", "", m[0]), text)


def functions(root, files):
    """(name, path, lines) of every definition, as pmccabe counts them."""
    done = subprocess.run(["pmccabe", *(f for f in files if f.endswith(".c"))], cwd=root, capture_output=True, text=True, check=True)
    for row in done.stdout.splitlines():
        *_, lines, where = row.split("\t")[:6]
        path, name = re.match(r"(.*)\(\d+\): (\S+)", where).groups()
        yield name, path, int(lines)


def statics_at_one_place(found, texts):
    """Static functions whose file names them once but for definition and declarations."""
    once = 0
    statics = 0
    for name, path, _ in found:
        text = texts[path]
        heads = len(re.findall(rf"^static\b[^;{{}}()=]*\b{name}\(", text, re.M))
        if heads:
            statics += 1
            once += len(re.findall(rf"\b{name}\b", text)) - heads == 1
    return once, statics


def table_of_rooms(root):
    """(room, raw lines, files) of each."""
    for room, files in rooms.rooms(root).items():
        yield room, sum(len((root / f).read_text().splitlines()) for f in files), len(files)


def percent(part, whole):
    return f"{100 * part / max(whole, 1):.0f} %"


def main():
    words = [w for w in sys.argv[1:] if w != "--rooms"]
    root = Path(words[0] if words else Path(__file__).parents[2]).resolve()
    table = list(table_of_rooms(root))
    if "--rooms" not in sys.argv:
        files = rooms.sources(root)
        texts = {f: blanked((root / f).read_text()) for f in files}
        raw = sum(lines for _, lines, _ in table)
        code = sum(sum(bool(line.strip()) for line in text.splitlines()) for text in texts.values())
        found = list(functions(root, files))
        sizes = sorted(lines for _, _, lines in found)
        once, statics = statics_at_one_place(found, texts)
        names = Counter(name for name, _, _ in found)
        rows = [("raw lines", f"{raw:,}"), ("code lines", f"{code:,}"), ("files", len(files)), ("functions", f"{len(found):,}"),
                ("functions per 1,000 code lines", round(1000 * len(found) / code)),
                ("function lines, median / p90 / max", f"{median(sizes):.0f} / {sizes[len(sizes) * 9 // 10]} / {sizes[-1]}"),
                ("statics at one place", percent(once, statics)),
                ("functions with a name of another", percent(sum(n for n in names.values() if n > 1), len(found)))]
        for title, value in rows:
            print(f"{title:36}{value:>16}")
        print()
    for room, lines, count in table:
        print(f"{room:36}{lines:>10,} lines{count:>6} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
