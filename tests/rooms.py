# SPDX-License-Identifier: Apache-2.0
"""The rooms of the tree, what has changed in it, and the unit tests of a room.

A room is a folder below lib/ or cli/ (or cli/ itself) that holds .c files; what lies in a folder below one that holds none
belongs to the nearest room above it.
"""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNIT = "tests/unit/"
RECENT, TURNS = 10, 7  # Of recent_rooms().


def git(root, *argv):
    """The lines that git prints, or None where it fails."""
    done = subprocess.run(["git", *argv], cwd=root, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else None


def sources(root=ROOT, endings=(".c", ".h")):
    """The files of lib/ and cli/ that are tracked or new, sorted."""
    listed = git(root, "ls-files", "-co", "--exclude-standard", "--", "lib", "cli") or []
    return sorted({f for f in listed if f.endswith(endings) and (Path(root) / f).is_file()})


def folders(files):
    return {os.path.dirname(f) for f in files if f.endswith(".c")}


def room_of(path, known):
    """The room that a file of lib/ or cli/ belongs to, None for others."""
    folder = os.path.dirname(path)
    while folder and folder not in known:
        folder = os.path.dirname(folder)
    return folder or None


def rooms(root=ROOT):
    """Sources by room."""
    files = sources(root)
    known = folders(files)
    found = {room: [] for room in sorted(known)}
    for path in files:
        found.setdefault(room_of(path, known) or os.path.dirname(path), []).append(path)
    return found


def base_commit(root=ROOT):
    """What a change is measured against: TESTS_BASE if it is set; else where HEAD leaves the branch that origin shows as its own;
    the commit before HEAD if there is no origin, or HEAD is a part of that branch. None: there is no earlier commit."""
    named = os.environ.get("TESTS_BASE")
    for branch in [named] if named else ["origin/HEAD", "origin/main", "origin/master"]:
        found = git(root, "merge-base", "HEAD", branch)
        if found and (named or found != git(root, "rev-parse", "HEAD")):
            return found[0]
    found = git(root, "rev-parse", "-q", "--verify", "HEAD^1")
    return found[0] if found else None


def changed_files(root=ROOT, base=None):
    """Paths that differ from the base, else from base_commit(), in the working tree, new ones too; None where all may have changed."""
    base = base or base_commit(root)
    listed = git(root, "diff", "--name-only", "--no-renames", base, "--") if base else None
    new = git(root, "ls-files", "-o", "--exclude-standard")
    return None if listed is None or new is None else sorted(set(listed + new))


def changed_rooms(root=ROOT, base=None):
    """The rooms with a changed file, and those that include a header of one which changed; all where that is not known."""
    changed, known = changed_files(root, base), folders(sources(root))
    if changed is None:
        return sorted(known)
    found = {room_of(f, known) for f in changed} - {None}
    headers = {f.removeprefix("lib/") for f in changed if f.endswith(".h") and f.startswith(("lib/", "cli/"))}
    if headers:
        found |= {room for room, files in rooms(root).items()
                  if any(headers & set(includes(Path(root) / f)) for f in files)}
    return sorted(found)


def recent_rooms(root=ROOT):
    """For a clone that does not know where its branch began: changed_rooms() since the tenth commit before, and of the others a seventh,
    which is another one on each day, by the date of the commit. All where the clone has no such history."""
    base, date = git(root, "rev-parse", "-q", "--verify", f"HEAD~{RECENT}"), git(root, "log", "-1", "--format=%ct")
    if not base:
        return sorted(folders(sources(root)))
    turn = int(date[0]) // 86400 % TURNS
    return sorted({*changed_rooms(root, base[0]), *list(rooms(root))[turn::TURNS]})


def wanted_rooms(words):
    """What a check that is called with these words is to look at."""
    return recent_rooms() if "--recent" in words else changed_rooms() if "--changed" in words else list(rooms())


def includes(path):
    """The names in quotes that a source includes."""
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(errors="replace"), re.M)


def unit_tests(root=ROOT):
    """The unit tests by name: their sources, which lie in the folders of their rooms."""
    return {p.stem.removeprefix("test_"): str(p.relative_to(root)) for p in sorted((Path(root) / UNIT).glob("**/test_*.c"))}


def targets(tests):
    """What ninja is to build for these unit tests."""
    return [f"{UNIT}test_{name}" for name in tests] + [f"{UNIT}fake_nvml.so"] * ("usage" in tests)


def room_of_test(path, root=ROOT):
    folder = os.path.dirname(path).removeprefix(UNIT)
    return folder if (Path(root) / folder).is_dir() else f"lib/{folder}"


def tests_of(wanted, changed=(), root=ROOT):
    """The unit tests of these rooms, of those whose headers they include, and those that changed themselves or in their fixtures."""
    folders_wanted = {room.removeprefix("lib/") for room in wanted}
    fixtures = {f for f in changed if f.startswith(UNIT) and f.endswith(".h")}
    found = []
    for name, path in unit_tests(root).items():
        included = includes(Path(root) / path)
        about = {os.path.dirname(h) for h in included if not h.startswith("base/")}
        if path in changed or room_of_test(path, root) in wanted or fixtures & set(included) or folders_wanted & about:
            found.append(name)
    return found


def tests_of_system(root=ROOT):
    """The unit tests of what asks base/os, which another system answers otherwise: those of modules that include it, and those
    that include it themselves."""
    def asks(path):
        return any(re.fullmatch(r"base/os/os\w*\.h", h) for h in includes(Path(root) / path))
    asking = [f for f in sources(root) if asks(f)]
    stems = {Path(f).stem for f in asking} | {f"{f.split('/')[1]}_{Path(f).stem}" for f in asking}
    found = []
    for name, path in unit_tests(root).items():
        fixtures = [h for h in includes(Path(root) / path) if h.startswith(UNIT)]
        if name in stems or any(stem.startswith(name + "_") for stem in stems) or any(map(asks, [path, *fixtures])):
            found.append(name)
    return found
