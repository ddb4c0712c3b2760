#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The order of the rooms and the circles among files, by what the objects of a build really use.

    tests/check/symbols.py BUILD [--write]

Fails on a use of a symbol that a later or a sibling room defines, and on a circle of files that call each other which
tests/check/circles does not list; --write states the circles as they are now. A line is one circle: they may only become
fewer and smaller.
"""

import collections
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests/check")]
import rooms  # noqa: E402
import structure  # noqa: E402

CIRCLES = ROOT / "tests/check/circles"


def read_build(build):
    """{file: symbols that it uses}, {symbol: file that defines it}; a file is its path in the tree, without its ending."""
    uses, defined = collections.defaultdict(set), {}
    objects = {re.sub(r"\W", "_", f.removeprefix("lib/").removeprefix("cli/")): f[:-2] for f in rooms.sources(endings=(".c",))}
    for path in sorted(build.glob("lib/*.a.p/*.c.o")) + sorted(build.glob("cli/*.a.p/*.c.o")):
        name = objects.get(re.sub(r"\W", "_", path.name.removesuffix(".o")))
        if not name:
            continue  # made by the build
        out = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
        for line in out.splitlines():
            *_, kind, symbol = line.split()
            if kind == "U":
                uses[name].add(symbol)
            elif kind in "TDBRVWC":
                defined[symbol] = name
    return uses, defined


def components(graph):
    """The strongly connected ones of more than one file (Tarjan), each sorted."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = set()
            while node not in group:
                group.add(stack[-1])
                on_stack.discard(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)


def room_of(file):
    return str(Path(file).parent).removeprefix("lib/")


def main():
    build = Path(sys.argv[1])
    uses, defined = read_build(build)
    graph = collections.defaultdict(set)
    problems = []
    for file, symbols in uses.items():
        for symbol in symbols & defined.keys():
            other = defined[symbol]
            if other == file:
                continue
            graph[file].add(other)
            own, room = room_of(file), room_of(other)
            layer, to = own.split("/")[0], room.split("/")[0]
            if own != room and not (structure.may_know(ROOT, own, room) if layer == to else to in structure.LAYERS[layer]):
                problems.append(f"{file}.c uses {symbol} of {other}.c: {own} must not know {room}")
    circles = [" ".join(group) for group in components(graph)]
    if "--write" in sys.argv:
        CIRCLES.write_text("# Files that call each other in a circle; tests/check/symbols.py BUILD --write\n" + "".join(f"{c}\n" for c in circles))
        return 0
    known = [set(line.split()) for line in CIRCLES.read_text().splitlines() if not line.startswith("#")]
    for circle in circles:
        if not any(set(circle.split()) <= group for group in known):
            problems.append(f"these files call each other in a circle: {circle}")
    for line in sorted(problems):
        print(line)
    print(f"symbols: {len(uses)} files, {sum(map(len, graph.values()))} files used by others, {len(circles)} circles of "
          f"{sum(len(c.split()) for c in circles)} files, {len(problems)} problems")
    return 1 if problems or not uses else 0


if __name__ == "__main__":
    sys.exit(main())
