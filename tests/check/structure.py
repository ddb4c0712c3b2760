#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of the house that a compiler does not know.

Reads the sources and fails on: an include that does not name its layer, points up or sideways, or
closes a cycle; a library used outside its door; a call that a layer must not make; what frees
itself and is returned past before it is set; a header without a contract; a file or function that
is too long or too branched without a reason beside it; a room with more lines than its budget.

    tests/check/structure.py [--write-budget] [ROOT]

A room that has to grow takes a larger budget in the same commit: --write-budget states all as they are now, rounded up.
"""

import collections
import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from yardsticks import table_of_rooms

# Lowest first. A layer sees those that it lists.
LAYERS = {
    "base": [],
    "net": ["base"],
    "host": ["base"],
    "events": ["base"],
    "snap": ["base"],
    "oci": ["base", "net"],
    "kube": ["base", "net"],
    "node": ["base", "net"],
    "core": ["base", "net", "host", "events", "snap", "oci", "kube", "node"],
    "targets": ["base", "net", "host", "events", "snap", "oci", "kube", "node", "core"],
    "app": ["base", "net", "host", "events", "snap", "oci", "kube", "node", "core", "targets"],
    "cli": ["base", "net", "host", "events", "snap", "oci", "kube", "node", "core", "targets", "app"],
}
# Rooms of one layer see those that are built before them, but for these, which do not know each other.
SIBLINGS = [{"targets/local", "targets/kube", "targets/ssh"}]
ROOM_FILES = 40
LICENSED = "/* SPDX-License-Identifier: Apache-2.0 */\n"
# Headers of a room's inside that other rooms still include.
INSIDE = {"kube/status/status_impl.h": ("lib/kube/job", "lib/kube/logs"), "net/http/http_impl.h": ("lib/net/websocket",)}

PLACEHOLDER = r"(?<![$\w])(?:NAME|RUN|HOST|FILE|DIR|BASE|TARGET|VALUE|PROGRAM|CONTEXT|TAG|REPO|PORT|LINES|USER|ID|T)\b|/WHERE"

# A library's header: the files that may include it.
DOORS = {
    r"git2(/.*)?\.h|git2\.h": r"lib/snap/git/.*",
    r"archive(_entry)?\.h": r"lib/oci/layer/.*",
    r"(zlib|isa-l/\w+|zstd(_errors)?)\.h": r"lib/oci/codec/.*|lib/net/websocket/spdy.*",
    r"curl/.*": r"lib/net/(http|websocket)/.*",
    r"libssh2.*": r"lib/net/ssh/.*",
    r"wslay/.*": r"lib/net/websocket/ws.*",
    r"sqlite3\.h": r"lib/core/store/.*",
    r"yaml\.h": r"lib/base/data/yaml\.c",
    r"(cjson/)?cJSON\.h": r"lib/base/data/json\.c",
    r"openssl/.*": r"lib/base/util/(digest|random)\.c",
    r"pthread\.h": r"lib/base/loop/(library|par|task)\.c",
    r"(sys/(inotify|prctl|signalfd|epoll|vfs|syscall)|linux/.*|sched)\.?h?": r"lib/base/os/os_linux(_\w+)?\.c",
}

BANNED = {
    "everywhere": (
        r"\b(strcpy|strcat|sprintf|vsprintf|strtok|atoi|atol|gets|system|popen|tmpnam|mktemp|"
        r"strncpy|alloca|setjmp|sleep|usleep)\s*\(",
        r".*",
    ),
    "in lib/ (it prints nothing, exits nowhere, reads no environment)": (
        r"\b(printf|puts|putchar|perror|exit|getenv|secure_getenv|setlocale|isatty)\s*\(",
        r"lib/.*",
    ),
    "in lib/ but where memory ends, and in a child before exec": (r"\b(_exit|abort)\s*\(", r"lib/(?!base/util/(mem|err)\.c|base/loop/proc\.c|targets/local/program\.c).*"),
    "(words about work not done)": (r"\b(TODO|FIXME|XXX|HACK)\b", r".*"),
}
# A child between fork and exec has no other way out.
AFTER_FORK = re.compile(r"lib/base/loop/proc\.c|lib/targets/local/program\.c")

FUNCTION_LINES = 60
FUNCTION_COMPLEXITY = 15
FILE_LINES = 1600

problems = []


def problem(path, line, text):
    problems.append(f"{path}:{line}: {text}")


def strip_comments(text):
    """Comments and string contents become blanks; line numbers stay."""

    def blank(match):
        s = match.group(0)
        if s.startswith('"'):
            return '"' + " " * (len(s) - 2) + '"'
        return re.sub(r"[^\n]", " ", s)

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


def layer_of(path):
    parts = path.split("/")
    if parts[0] == "lib" and len(parts) > 2:
        return parts[1]
    return "cli" if parts[0] == "cli" else None


def check_includes(root, files):
    graph = {}
    for path in files:
        layer = layer_of(path)
        key = path.removeprefix("lib/")
        graph[key] = []
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
            if not match:
                continue
            kind, name = match.groups()
            check_door(path, number, name)
            if kind == '"' and layer:
                check_include(root, path, number, layer, name)
                graph[key].append(name)
    check_cycles(graph)


def check_door(path, number, name):
    if not path.startswith(("lib/", "cli/")):
        return
    for header, door in DOORS.items():
        if re.fullmatch(header, name) and not re.fullmatch(door, path):
            problem(path, number, f"<{name}> has one door, and it is not here ({door})")


def check_include(root, path, number, layer, name):
    to, room = name.split("/")[0] if "/" in name else None, os.path.dirname(name)
    own = os.path.dirname(path).removeprefix("lib/")
    if to not in LAYERS:
        problem(path, number, f'"{name}" does not name its layer')
    elif to != layer and to not in LAYERS[layer]:
        problem(path, number, f'"{name}": {layer} must not know {to}')
    elif to == layer and room != own and not may_know(root, own, room):
        problem(path, number, f'"{name}": {own} must not know {room}')
    elif name.endswith("_impl.h") and room != own and os.path.dirname(path) not in INSIDE.get(name, ()):
        problem(path, number, f'"{name}" is for {room} alone')


@functools.cache
def built(root):
    """Rooms in the order in which they are built."""
    lib = re.findall(r"^    '([\w/]+)',$", (root / "lib/meson.build").read_text(), re.M)
    cli = re.search(r"^foreach room : \[(.*)\]$", (root / "cli/meson.build").read_text(), re.M)[1]
    return lib + [f"cli/{name}" for name in re.findall(r"'(\w+)'", cli)] + ["cli"]


def may_know(root, own, room):
    order = built(root)
    if own not in order or room not in order:
        return False
    return order.index(room) < order.index(own) and not any({own, room} <= group for group in SIBLINGS)


def check_rooms(files):
    """Folders that a reader can take in."""
    count = collections.Counter(os.path.dirname(path) for path in files)
    for room, n in count.items():
        if n > ROOM_FILES:
            problem(room, 1, f"{n} files, {ROOM_FILES} at most: a room of its own for some of them")


def check_cycles(graph):
    done, stack = set(), []

    def visit(node):
        if node in stack:
            cycle = stack[stack.index(node):] + [node]
            problem(node, 1, "include cycle: " + " -> ".join(cycle))
            return
        if node in done:
            return
        stack.append(node)
        for name in graph.get(node, []):
            if name.endswith(".h"):
                visit(name)
        stack.pop()
        done.add(node)

    for node in sorted(graph):
        visit(node)


def check_words(root, files):
    for path in files:
        lines = strip_comments((root / path).read_text()).splitlines()
        raw = (root / path).read_text().splitlines()
        for where, (pattern, scope) in BANNED.items():
            if not re.fullmatch(scope, path):
                continue
            text = raw if "words" in where else lines
            for number, line in enumerate(text, 1):
                match = re.search(pattern, line)
                if match and not (AFTER_FORK.fullmatch(path) and "exit" in match.group(0)):
                    problem(path, number, f"{match.group(0).strip()} is not used {where}")


VAGUE = re.compile(r"(What|Whoever|Whatever|Whichever|Whom|Whose|Who|Which|One|Those|It|Its|They|Their|Them|That|These|Somebody|Nobody|Others)\b")


def check_comments(root, files):
    """A comment that stands alone names its subject."""
    for path in files:
        text = (root / path).read_text()
        for match in re.finditer(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', text, re.S):
            alone = not text[text.rfind("\n", 0, match.start()) + 1:match.start()].strip()
            if match[0].startswith("/*") and alone and VAGUE.match(re.sub(r"\n\s*\*? ?", " ", match[0][2:-2]).strip()):
                problem(path, text.count("\n", 0, match.start()) + 1, "the comment does not name its subject")


def check_cleanup(root, files):
    """What a return before its first use would free is not set yet: no compiler tells."""
    for path in files:
        lines = strip_comments((root / path).read_text()).splitlines()
        for number, line in enumerate(lines, 1):
            match = re.match(r"\s+AUTO_\w+ (?:struct \w+ )?(\w+(?:, \w+)*);$", line)
            for name in match.group(1).split(", ") if match else ():
                used = re.compile(rf"\b{name}\b|^}}|(\breturn\b)")
                found = next(m for m in map(used.search, lines[number:]) if m)
                if found.group(1):
                    problem(path, number, f"{name} may be freed before it is set")


def check_header(root, path):
    """A header starts with what it is for, and every prototype stands below a comment or in a
    paragraph that starts with one."""
    text = (root / path).read_text().removeprefix(LICENSED)
    if not text.startswith("/*"):
        problem(path, 1, "a header starts with its contract: a comment that says what it is for")
    guard = "DLRUN_" + re.sub(r"\W", "_", path.removeprefix("lib/")).upper()
    if f"#ifndef {guard}\n#define {guard}\n" not in text:
        problem(path, 1, f"the include guard is {guard}")


def check_functions(root, files):
    if not shutil.which("pmccabe"):
        print("structure: pmccabe is missing: function sizes were not checked", file=sys.stderr)
        return 1
    sources = [f for f in files if f.endswith(".c")]
    out = subprocess.run(["pmccabe", *sources], cwd=root, capture_output=True, text=True, check=True)
    for row in out.stdout.splitlines():
        complexity, _, _, first, lines, where = row.split("\t")[:6]
        match = re.match(r"(.*)\((\d+)\): (.*)", where)
        path, number, name = match.groups()
        if int(complexity) <= FUNCTION_COMPLEXITY and int(lines) <= FUNCTION_LINES:
            continue
        if not has_reason(root / path, int(number)):
            problem(path, number, f"{name}: complexity {complexity}, {lines} lines, and no reason beside it")
    return 0


def has_reason(path, number):
    """A comment above the function with the word "long" or "branches" says why."""
    lines = path.read_text().splitlines()
    above = []
    for line in reversed(lines[: number - 1]):
        if not line.strip() or line.startswith("}"):
            break
        above.append(line)
    return bool(re.search(r"\b(long|branches)\b", " ".join(above)))


def check_sizes(root, files):
    for path in files:
        if not (root / path).read_text().startswith(LICENSED):
            problem(path, 1, "the first line names the licence")
        n = len((root / path).read_text().splitlines())
        if n > FILE_LINES:
            problem(path, 1, f"{n} lines: split it")
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            if len(line.replace("\t", " " * 8)) > 100 and "clang-format off" not in line:
                if not re.search(r'^\s*"|\\$|^\s*\{?"', line):
                    problem(path, number, "over 100 columns")
            if line.rstrip() != line:
                problem(path, number, "blanks at the end of the line")


def check_hints(root, files):
    """A hint can be pasted: nobody has to fill in a word. " …" at its end is the command as it was typed."""
    for path in files:
        text = (root / path).read_text()
        for call in re.finditer(r"\b(?:err|kube_why)_hint\(((?:[^;\"]|\"(?:[^\"\\]|\\.)*\")*)\);", text):
            hint = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', call[1]))
            line = text.count("\n", 0, call.start()) + 1
            if "…" in re.sub(r"(dlrun \w+ .*) …$", r"\1", hint):
                problem(path, line, "a hint with a gap")
            for word in re.findall(PLACEHOLDER, hint):
                problem(path, line, f"a hint with the placeholder {word}")


def check_commands(root):
    listed = re.findall(r"&cmd_(\w+)", (root / "cli/commands/cmds.c").read_text())
    plain = [name for name in listed if not name.startswith("__") and not name.startswith("internal_")]
    if plain != sorted(plain):
        problem("cli/commands/cmds.c", 1, "the list of commands is not sorted")
    for name in plain:
        page = name.replace("_", "-")
        if not (root / f"man/dlrun-{page}.1.scd").exists():
            problem("man", 1, f"no manual page for {page}")


BUDGET = "tests/check/budget"
BUDGET_STEP = 100  # So that not every line that is added touches the file, which branches share.


def check_budget(root):
    """Prints the raw lines of each room beside those that it may have."""
    text = (root / BUDGET).read_text() if (root / BUDGET).exists() else ""
    allowed = {room: int(lines) for room, lines in (line.split() for line in text.splitlines() if not line.startswith("#"))}
    rooms = {room: lines for room, lines, _ in table_of_rooms(root)}
    for room, lines in rooms.items():
        print(f"{room:36}{lines:>8} of {allowed.get(room, 0):>6} lines")
        if lines > allowed.get(room, 0):
            problem(room, 1, f"{lines} lines, {allowed.get(room, 0)} in {BUDGET}: delete as much as you add, or change the budget with a reason")
    for room in allowed.keys() - rooms.keys():
        problem(room, 1, f"no such room, but a line in {BUDGET}")


def write_budget(root):
    rows = [f"{room} {-(-lines // BUDGET_STEP) * BUDGET_STEP}" for room, lines, _ in table_of_rooms(root)]
    (root / BUDGET).write_text("# Raw lines of .c and .h files that a room may have; tests/check/structure.py --write-budget\n" +
                               "\n".join(rows) + "\n")


def main():
    words = [word for word in sys.argv[1:] if word != "--write-budget"]
    root = Path(words[0] if words else Path(__file__).parents[2]).resolve()
    if "--write-budget" in sys.argv:
        return write_budget(root)
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root,
                             capture_output=True, text=True, check=True).stdout.splitlines()
    sources = [f for f in tracked if f.endswith((".c", ".h")) and f.split("/")[0] in ("lib", "cli", "tests")
               and (root / f).exists()]
    house = [f for f in sources if f.startswith(("lib/", "cli/"))]
    check_includes(root, sources)
    check_rooms(house)
    check_words(root, house)
    check_comments(root, house)
    check_cleanup(root, [f for f in sources if f.endswith(".c")])
    for path in house:
        if path.endswith(".h"):
            check_header(root, path)
    check_hints(root, [f for f in house if f.endswith(".c")])
    check_sizes(root, house)
    check_budget(root)
    missing = check_functions(root, house)
    if (root / "cli/commands/cmds.c").exists():
        check_commands(root)
    for line in problems:
        print(line)
    print(f"structure: {len(house)} files, {len(problems)} problems")
    return 1 if problems or missing else 0


if __name__ == "__main__":
    sys.exit(main())
