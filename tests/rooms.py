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


def changed_files(root=ROOT):
    """Paths that differ from base_commit() in the working tree, new ones too; None where all may have changed."""
    base = base_commit(root)
    listed = git(root, "diff", "--name-only", "--no-renames", base, "--") if base else None
    new = git(root, "ls-files", "-o", "--exclude-standard")
    return None if listed is None or new is None else sorted(set(listed + new))


def changed_rooms(root=ROOT):
    """The rooms with a changed file, and those that include a header of one which changed; all where that is not known."""
    changed, known = changed_files(root), folders(sources(root))
    if changed is None:
        return sorted(known)
    found = {room_of(f, known) for f in changed} - {None}
    headers = {f.removeprefix("lib/") for f in changed if f.endswith(".h") and f.startswith(("lib/", "cli/"))}
    if headers:
        found |= {room for room, files in rooms(root).items()
                  if any(headers & set(includes(Path(root) / f)) for f in files)}
    return sorted(found)


def includes(path):
    """The names in quotes that a source includes."""
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(errors="replace"), re.M)


def unit_tests(root=ROOT):
    return sorted(p.stem.removeprefix("test_") for p in (Path(root) / UNIT).glob("test_*.c"))


def targets(tests):
    """What ninja is to build for these unit tests."""
    return [f"{UNIT}test_{name}" for name in tests] + [f"{UNIT}fake_nvml.so"] * ("usage" in tests)


def modules(root=ROOT):
    """The rooms of each module's name: stems of sources, and those with the names of their folders before them ("kube_job")."""
    found = {}
    for room, files in rooms(root).items():
        parts = room.split("/")[1:]
        for path in files:
            stem = Path(path).stem
            for name in [stem, *(f"{part}_{stem}" for part in parts)]:
                found.setdefault(name, set()).add(room)
    return found


def rooms_of_test(name, by_module, root=ROOT):
    """The rooms whose code a unit test is about: by its name or the longest beginning of it that a module has, else those whose
    headers it includes."""
    words = name.split("_")
    for count in range(len(words), 0, -1):
        found = by_module.get("_".join(words[:count]))
        if found:
            included = {room_of(h if h.startswith("cli/") else f"lib/{h}", set().union(*by_module.values()))
                        for h in includes(Path(root) / f"{UNIT}test_{name}.c")}
            return found & included or found
    known = set().union(*by_module.values())
    return {room_of(h if h.startswith("cli/") else f"lib/{h}", known)
            for h in includes(Path(root) / f"{UNIT}test_{name}.c")} - {None}


def tests_of(wanted, changed=(), root=ROOT):
    """The unit tests of these rooms, and those that changed themselves, or whose fixtures did."""
    by_module = modules(root)
    fixtures = {os.path.basename(f) for f in changed if f.startswith(UNIT) and f.endswith(".h")}
    found = []
    for name in unit_tests(root):
        path = f"{UNIT}test_{name}.c"
        if path in changed or fixtures & set(includes(Path(root) / path)) or rooms_of_test(name, by_module, root) & set(wanted):
            found.append(name)
    return found


def tests_of_system(root=ROOT):
    """The unit tests of what asks base/os, which another system answers otherwise: those of modules that include it, and those
    that include it themselves."""
    asking = {f for f in sources(root) if any(re.fullmatch(r"base/os\w*\.h", h) for h in includes(Path(root) / f))}
    stems = {Path(f).stem for f in asking} | {f"{part}_{Path(f).stem}" for f in asking for part in f.split("/")[1:-1]}
    found = []
    for name in unit_tests(root):
        own = includes(Path(root) / f"{UNIT}test_{name}.c")
        fixtures = [h for fixture in own if (Path(root) / UNIT / fixture).exists() for h in includes(Path(root) / UNIT / fixture)]
        if name in stems or any(stem.startswith(name + "_") for stem in stems) or any(h.startswith("base/os") for h in own + fixtures):
            found.append(name)
    return found
