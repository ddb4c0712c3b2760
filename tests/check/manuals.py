#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The manual is whole: pages, help screens and examples agree with the tables of the program.

    tests/check/manuals.py DLRUN [ROOT]

Fails on: a command without a page, or whose page leaves out a part; a reference to a page that there
is none of; a page that scdoc does not take; help that is wider than 80 columns; an example that the
program's own parser refuses.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

COLUMNS = 80
PARTS = ["# NAME", "# SYNOPSIS", "# DESCRIPTION", "# OPTIONS", "# EXIT STATUS", "# EXAMPLES", "# SEE ALSO"]
FILLED = ["@NAME@", "@SYNOPSIS@", "@OPTIONS@", "@EXAMPLES@"]

problems = []


def run(*argv, stdin=None):
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)


def check_width(what, text):
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > COLUMNS:
            problems.append(f"{what}:{number}: {len(line)} columns: {line.strip()}")


def check_command_page(name, path):
    if not path.exists():
        problems.append(f"{name}: no page {path.name}")
        return
    lines = path.read_text().splitlines()
    for part in PARTS + FILLED:
        if part not in lines:
            problems.append(f"{path.name}: no {part}")
    headings = [line for line in lines if line in PARTS]
    if headings != [part for part in PARTS if part in headings]:
        problems.append(f"{path.name}: the parts are not in their order")


def check_example(dlrun, name, example):
    line, hash_sign, text = example.partition(" # ")
    words = shlex.split(line.partition(" >")[0])
    if not hash_sign or not text:
        problems.append(f"{name}: example without words: {example}")
    if words[:2] != ["dlrun", name] and name not in line:
        problems.append(f"{name}: example of something else: {line}")
    # -h right behind the command's name: what follows is parsed, and then help is shown.
    done = run(dlrun, words[1], "-h", *words[2:])
    if done.returncode:
        problems.append(f"{name}: example is refused: {line}: {done.stderr.strip()}")


def check_command(dlrun, root, command):
    name = command["name"]
    check_command_page(name, root / f"man/dlrun-{name}.1.scd")
    if len(command["examples"]) != 3:
        problems.append(f"{name}: {len(command['examples'])} examples, not three")
    for example in command["examples"]:
        check_example(dlrun, name, example)
    check_width(f"dlrun {name} -h", run(dlrun, name, "-h").stdout)
    check_width(f"dlrun help {name}", run(dlrun, "help", name).stdout)


def check_page(dlrun, path, pages):
    page = path.name.removesuffix(".scd")
    done = run(dlrun, "__manual", page)
    if done.returncode:
        problems.append(f"{page}: not in the program: {done.stderr.strip()}")
        return
    for word in re.findall(r"@[A-Z]+@", done.stdout):
        problems.append(f"{page}: {word} is not filled in")
    for name, section in re.findall(r"\*(dlrun[\w.-]*)\*\((\d)\)", done.stdout):
        if f"{name}.{section}" not in pages:
            problems.append(f"{page}: refers to {name}({section}), and there is no such page")
    check_scdoc(page, done.stdout)


def check_scdoc(page, source):
    if not shutil.which("scdoc"):
        return
    done = run("scdoc", stdin=source)
    if done.returncode:
        problems.append(f"{page}: scdoc: {done.stderr.strip()}")


def main():
    dlrun = str(Path(sys.argv[1]).resolve())
    root = Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).parents[2]).resolve()
    commands = json.loads(run(dlrun, "help", "--json").stdout)["commands"]
    paths = sorted((root / "man").glob("*.scd"))
    pages = {path.name.removesuffix(".scd") for path in paths}
    for command in commands:
        check_command(dlrun, root, command)
    for path in paths:
        check_page(dlrun, path, pages)
    check_width("dlrun help", run(dlrun, "help").stdout)
    for line in problems:
        print(line)
    print(f"manuals: {len(commands)} commands, {len(paths)} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
