#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages for developers name only what is there.

    tests/check/docs.py [ROOT]

Fails on a file or a function in backticks, or a link, that the repository does not have. Words with
capitals (test_NAME.c) stand for others.
"""

import re
import subprocess
import sys
from pathlib import Path

PAGES = ["ARCHITECTURE.md", "HACKING.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "README.md"]
FILE = re.compile(r"(?<![\w/.*-])((?:[\w.-]+/)*[\w-]+\.(?:c|h|py|sh|scd|build|ini))(?!\w)")
PLACE = re.compile(r"(?<![\w/.-])((?:tests|packaging|examples|completions|man)/[\w./-]*\w)")
FUNCTION = re.compile(r"\b([a-z_]\w+)\(\)")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)\)")


def check(text, files, defined):
    names = {Path(f).name for f in files} | {"dlrun.yaml"}
    folders = {str(p) for f in files for p in Path(f).parents}
    # Commands and code in blocks are not looked at, but their lines count.
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S)
    for quoted in re.finditer(r"`([^`]+)`", text):
        number = text.count("\n", 0, quoted.start()) + 1
        for name in FILE.findall(quoted[1]):
            if not re.search(r"[A-Z]", name) and (name not in files if name.startswith("tests/") else Path(name).name not in names):
                yield number, f"no file {name}"
        for name in PLACE.findall(quoted[1]):
            if not re.search(r"[A-Z]", name) and name not in files and name not in folders:
                yield number, f"no {name}"
        for name in FUNCTION.findall(quoted[1]):
            if name not in defined:
                yield number, f"no function {name}"
    for link in LINK.finditer(text):
        if link[1] not in files:
            yield text.count("\n", 0, link.start()) + 1, f"no file {link[1]}"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve()
    files = set(subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True,
                               check=True).stdout.split())
    source = "\n".join((root / f).read_text() for f in files if f.endswith((".c", ".h")) and f.startswith(("lib/", "cli/", "tests/")))
    defined = set(re.findall(r"^[a-zA-Z_][^;={}()\n]*?\b(\w+)\(", source, re.M)) | set(re.findall(r"^#define (\w+)\(", source, re.M))
    problems = [f"{page}:{line}: {text}" for page in PAGES if (root / page).exists()
                for line, text in check((root / page).read_text(), files, defined)]
    print("\n".join(problems), end="\n" if problems else "")
    print(f"docs: {len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
