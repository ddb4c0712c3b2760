#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Versions of data (`dlrun data`) here and on a real SSH server: what travels, what is there after a kill, and what runs get.

DLRUN_DATA_KILLS: how many pushes are killed (12; 100 in DLRUN_TESTS=all); DLRUN_DATA_MIB: of the large file (64).
"""

import contextlib
import hashlib
import random
import time

from harness import *  # noqa: F403
from sshsite import site

KILLS = int(os.environ.get("DLRUN_DATA_KILLS", 100 if os.environ.get("DLRUN_TESTS") == "all" else 12))
MIB = 1 << 20
LARGE = int(os.environ.get("DLRUN_DATA_MIB", 64)) * MIB
ODD = ["plain", "with blank", "new\nline", "back\\slash", "-dash", "per%cent", "quo'te\"", "$HOME `id`", "\x01", "x" * 200,
       "d/" * 60 + "deep", "ümlaut"]


def here(w, targets=None):
    w.write("dlrun.yaml", json.dumps({"data": ["data/set"], "targets": targets or {
        "local": {"kind": "local", "data": {"data/set": str(w.dir / "place")}}}}))
    return w.dir / "place"


def fill(w):
    for number, name in enumerate(ODD):
        w.write(f"data/set/odd/{name}", name * number)
    w.write("data/set/run.sh", "#!/bin/sh\necho ran\n", mode=0o755)
    (w.tree / "data/set/none").mkdir()
    os.symlink("../run.sh", w.tree / "data/set/odd/link")


def content(top):
    """What a directory consists of."""
    found = {}
    for base, dirs, files in os.walk(os.fsencode(top)):
        for name in dirs + files:
            path = os.path.join(base, name)
            key = os.path.relpath(path, os.fsencode(top))
            if key == b".dlrun" or key.startswith(b".dlrun/"):
                continue
            if os.path.islink(path):
                found[key] = os.readlink(path)
            elif os.path.isdir(path):
                found[key] = "dir"
            else:
                with open(path, "rb") as file:
                    found[key] = (os.stat(path).st_mode & 0o111, hashlib.file_digest(file, "sha256").hexdigest()
                                  if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read()).hexdigest())
    return found


def push(w, *words, **more):
    done = w.ok("data", "push", "data/set", "--json", *words, **more)
    return json.loads(done.out)


def check(w, place, version=None):
    there = place / ".dlrun" / (version or "current")
    found, wanted = content(there), content(w.tree / "data/set")
    assert found == wanted, set(found.items()) ^ set(wanted.items())
    writable = [p for p in (there.resolve(), *there.rglob("*")) if not p.is_symlink() and p.stat().st_mode & 0o222]
    assert not writable, writable[:3]


def large(w, path="data/set/large", size=LARGE, seed=1):
    w.write(path, b"".join(random.Random(f"{seed}{at}").randbytes(min(MIB, size - at)) for at in range(0, size, MIB)))
    return w.tree / path


def old(w):
    """Times of some seconds ago: what was changed just now is read again."""
    for path in (w.tree / "data/set").rglob("*"):
        if not path.is_symlink():
            os.utime(path, (time.time() - 100,) * 2)


def test_versions_share_what_they_have_in_common(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    fill(w)
    file = large(w)
    first = push(w)
    assert first["files_sent"] == first["files"] and not first["was_there"], first
    check(w, place)
    assert push(w)["was_there"]
    with open(file, "r+b") as out:
        out.seek(LARGE // 2)
        out.write(b"!")
    (w.tree / "data/set/run.sh").rename(w.tree / "data/set/moved.sh")
    (w.tree / "data/set/odd/plain").unlink()
    second = push(w)
    # One byte: one chunk, or two. The file with another name does not travel.
    assert 0 < second["bytes_sent"] <= 4 * MIB and second["files_sent"] == 1, second
    check(w, place)
    assert (place / ".dlrun" / first["version"] / "run.sh").samefile(place / ".dlrun" / second["version"] / "moved.sh")
    listed = json.loads(w.ok("data", "ls", "--json").out)["versions"]
    assert [(v["version"], v["current"]) for v in listed] == [(second["version"], True), (first["version"], False)], listed
    w.ok("data", "rm", f"data/set@{second['version'][:6]}")
    assert os.readlink(place / ".dlrun/current") == first["version"]
    for name in ("d-0", "latest", ""):
        w.refused("data", "rm", f"data/set@{name}", id="data.version", rc=5, says=[f"'{name}'", f"data/set@{first['version']}, the current"])
    w.ok("data", "rm", "data/set")
    assert not list(place.iterdir())
    w.refused("data", "rm", "data/set", id="data.version", rc=5)


def test_one_byte_of_a_large_file(w):
    if os.environ.get("DLRUN_TESTS") != "all":
        raise Skip("2 GiB, with DLRUN_TESTS=all")
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    blocks = [random.Random(n).randbytes(MIB) for n in range(64)]
    (w.tree / "data/set").mkdir(parents=True)
    with open(w.tree / "data/set/large", "wb") as out:
        for n in range(2048):
            out.write(n.to_bytes(8, "big") + blocks[n * 7919 % 64][8:])
    push(w, timeout=900)
    with open(w.tree / "data/set/large", "r+b") as out:
        out.seek(1 << 30)
        out.write(b"!")
    done = push(w, timeout=900)
    assert 0 < done["bytes_sent"] <= 4 * MIB, done
    check(w, place)


def test_inserted_bytes_do_not_move_the_rest(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    file = large(w)
    push(w)
    whole = file.read_bytes()
    file.write_bytes(whole[:5] + b"inserted" + whole[5:LARGE // 3] + whole[LARGE // 3 + 1000:])
    assert push(w)["bytes_sent"] <= 4 * MIB + 8
    check(w, place)


def test_a_list_that_lies_costs_a_transfer_only(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    file = large(w)
    first = push(w)
    there = place / ".dlrun" / first["version"] / "large"
    there.chmod(0o600)
    with open(there, "r+b") as out:
        out.write(b"damaged there")
    with open(file, "r+b") as out:
        out.seek(LARGE - 1)
        out.write(b"!")
    assert push(w)["bytes_sent"] == LARGE
    check(w, place)


def test_kinds_that_change_places(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    for path, text in (("a", "file"), ("b/x", "in a directory"), ("e/f/g", "deep")):
        w.write(f"data/set/{path}", text)
    os.symlink("a", w.tree / "data/set/c")
    push(w)
    top = w.tree / "data/set"
    (top / "a").unlink()
    (top / "b/x").unlink()
    (top / "b").rmdir()
    (top / "c").unlink()
    w.write("data/set/a/now", "a directory")
    w.write("data/set/b", "a file")
    w.write("data/set/c", "a file")
    push(w)
    check(w, place)


def test_places_that_are_not_ours(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    w.write("data/set/a", "a")
    place.mkdir()
    (place / "theirs").write_text("kept")
    w.refused("data", "push", "data/set", id="data.place", rc=1, says="theirs")
    assert [p.name for p in place.iterdir()] == ["theirs"]
    w.refused("data", "push", "data/other", id="run.data", rc=2, says="data/other")
    w.refused("data", "push", "data/set", "--from", "absent", id="run.data", rc=2, says="absent")
    w.refused("data", "pull", "data/set", id="usage", rc=2)
    w.refused("data", "push", id="usage", rc=2)


def script_text():
    return "".join((Path(__file__).parents[2] / "lib/node/runner" / name).read_text() for name in ("73-store.sh", "store.sh"))


def script(w, *words, **more):
    """The script of versions by itself, at the place."""
    place = more.pop("place", str(w.dir / "place"))
    return subprocess.Popen(["sh", "-c", script_text(), "dlrun", words[0], place, *words[1:]],
                            **{"env": w.env, "stderr": subprocess.PIPE, "stdout": subprocess.PIPE, **more})


def packed(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in members:
            item = tarfile.TarInfo(name)
            item.size, item.mode = len(data), 0o444
            tar.addfile(item, io.BytesIO(data))
    return out.getvalue()


ID = "d-0123456789abcdef"
LIST = b"dlrun-data 1 1 1 0 h\nf 444 1 " + b"0" * 64 + b" b\nend\n"


def ending(name, entries):
    return (f"{name}.in/list", LIST), (f"{name}.in/do", f"store_commit {ID} {entries} replace\n".encode())


def test_nothing_comes_of_a_transfer_that_another_took_over(w):
    place = w.dir / "place"
    script(w, "begin", "key", "one").communicate()
    first = script(w, "put", "key", "one", "-", "0", stdin=subprocess.PIPE)
    whole = packed(("part-key-one/a", b"x" * MIB), ("part-key-one/b", b"b"), *ending("part-key-one", 1))
    cut = whole.index(b"part-key-one/b")
    first.stdin.write(whole[:cut])
    first.stdin.flush()
    wait_for(lambda: (place / ".dlrun/part-key-one/a").exists(), "the first file", 20)
    second = script(w, "begin", "key", "two")
    said = second.communicate()[0]
    assert second.returncode == 0 and said.startswith(b"part -\n"), said
    first.communicate(whole[cut:])
    assert first.returncode == 46, first.returncode
    assert not list(place.glob(".dlrun/d-*"))


def test_ends_that_do_not_join_stop_nothing(w):
    """Of a transfer that was cut: there is no file that this is the end of, or none has come."""
    place = w.dir / "place"
    script(w, "begin", "key", "one").communicate()
    put = script(w, "put", "key", "one", "-", "0", stdin=subprocess.PIPE)
    put.communicate(packed(("part-key-one/a", b"123"), ("part-key-one.in/rest/3/a", b"45"), ("part-key-one.in/rest/9/none", b"x")))
    assert put.returncode == 46, put.returncode
    second = script(w, "begin", "key", "two")
    said = second.communicate()[0]
    assert second.returncode == 0 and said.startswith(b"part -\n"), (second.returncode, said)
    assert (place / ".dlrun/part-key-two/a").read_text() == "12345" and not list(place.glob(".dlrun/part-key-one*"))
    (place / ".dlrun/part-key-two.in/rest").mkdir(parents=True)
    third = script(w, "begin", "key", "three")
    assert third.communicate()[0].startswith(b"part -\n") and third.returncode == 0, third.returncode


def test_a_version_is_what_its_list_says(w):
    place = w.dir / "place"
    script(w, "begin", "key", "one").communicate()
    put = script(w, "put", "key", "one", "-", "0", stdin=subprocess.PIPE)
    put.communicate(packed(("part-key-one/a", b"a"), *ending("part-key-one", 2)))
    assert put.returncode == 45 and not list(place.glob(".dlrun/d-*")), put.returncode
    script(w, "begin", "key", "two").communicate()
    put = script(w, "put", "key", "two", "-", "0", stdin=subprocess.PIPE)
    put.communicate(packed(*ending("part-key-two", 1)))
    assert put.returncode == 0 and (place / ".dlrun/current/a").read_text() == "a", put.returncode


def is_consistent(place):
    """What has a list is there as the list says."""
    for made in (place / ".dlrun").glob("d-*.list"):
        lines = [line.split(" ") for line in made.read_text().splitlines() if line.startswith("f ")]
        for _, _, size, digest, path in lines:
            data = (made.with_suffix("") / path).read_bytes()
            assert len(data) == int(size) and hashlib.sha256(data).hexdigest() == digest, (made, path)


def stops_at(w, tool, argument):
    """An environment whose tool waits when it gets the argument: `at` tells, `go` releases it."""
    stop = w.dir / f"stop-{tool}"
    stop.mkdir()
    (stop / tool).write_text(f"""#!/bin/sh
case $1 in {argument}) : >{stop}/at; until [ -e {stop}/go ]; do sleep 0.05; done ;; esac
exec {shutil.which(tool)} "$@"
""")
    (stop / tool).chmod(0o755)
    return stop, {**w.env, "PATH": f"{stop}:{w.env['PATH']}"}


def test_a_removal_beside_a_push_of_the_same_version(w):
    place = w.dir / "place"
    for key in ("first", "second"):
        assert script(w, "begin", key, "one").wait() == 0
        put = script(w, "put", key, "one", "-", "0", stdin=subprocess.PIPE)
        stream = packed((f"part-{key}-one/b", b"b"), *ending(f"part-{key}-one", 1))
        if key == "second":
            # Between the steps of a removal.
            stop, env = stops_at(w, "mv", ID)
            rm = script(w, "rm", ID, env=env)
            wait_for(lambda: (stop / "at").exists(), "the list's end", 30)
        put.communicate(stream)
        assert put.returncode == 0 and (place / ".dlrun" / ID / "b").exists(), put.returncode
    (stop / "go").touch()
    assert rm.wait() == 0
    assert not list((place / ".dlrun").glob("d-*")), list((place / ".dlrun").iterdir())


def test_a_removal_of_all_beside_a_push(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    for number in range(20):
        w.write(f"data/set/{number}", str(number) * 1000)
    stop, env = stops_at(w, "sync", "*")
    child = subprocess.Popen([w.dlrun, "data", "push", "data/set", "-q"], cwd=w.tree, env=env)
    wait_for(lambda: (stop / "at").exists(), "the end of the push", 30)
    w.ok("data", "rm", "data/set")
    assert not list(place.iterdir()), list(place.rglob("*"))
    (stop / "go").touch()
    # It begins again.
    assert child.wait() == 0
    check(w, place)


def test_a_removal_of_all_takes_what_it_has_seen(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    w.write("data/set/a", "a")
    first = push(w)["version"]
    stop, env = stops_at(w, "rm", "-f")
    child = subprocess.Popen([w.dlrun, "data", "rm", "data/set"], cwd=w.tree, env=env, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: (stop / "at").exists(), "the removal", 30)
    w.write("data/set/b", "b")
    second = push(w)["version"]
    (stop / "go").touch()
    said = child.communicate()[0]
    assert child.returncode == 0 and said == f"removed data/set@{first}\n", said
    left = sorted(p.name for p in (place / ".dlrun").iterdir())
    assert left == sorted(["current", second, f"{second}.list"]), left
    check(w, place)


def test_a_version_that_goes_while_a_push_looks(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    w.write("data/set/a", "a")
    version = push(w)["version"]
    # It has seen that version, and builds on it or takes it.
    stop, env = stops_at(w, "head", "-n")
    child = subprocess.Popen([w.dlrun, "data", "push", "data/set"], cwd=w.tree, env=env, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: (stop / "at").exists(), "the look", 30)
    w.ok("data", "rm", f"data/set@{version}")
    (stop / "go").touch()
    assert version in child.communicate()[0] and child.returncode == 0, child.returncode
    check(w, place)


def test_removals_and_pushes_at_any_point(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    for number in range(60):
        w.write(f"data/set/{number}", os.urandom(10000))
    rng, over = random.Random(5), threading.Event()

    def remove():
        while not over.is_set():
            listed = json.loads(w.ok("data", "ls", "--json").out)["versions"]
            name = f"@{rng.choice(listed)['version']}" if listed and rng.random() < 0.7 else ""
            w.run("data", "rm", f"data/set{name}")
    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for number in range(KILLS):
            w.write(f"data/set/{number % 60}", os.urandom(rng.choice((10, 100000))))
            w.run("data", "push", "data/set")
    finally:
        over.set()
        remover.join()
    is_consistent(place)
    push(w)
    check(w, place)


def test_what_a_run_makes_in_a_version_is_in_no_other(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    w.write("data/set/sub/b", "b")
    version = push(w)["version"]
    sub = place / ".dlrun" / version / "sub"
    sub.chmod(0o755)
    (sub / "cache").write_text("made by a run")
    w.write("data/set/c", "c")
    push(w)
    check(w, place)
    (place / ".dlrun/current/sub").resolve().chmod(0o755)
    (place / ".dlrun/current/sub/b").unlink()
    w.write("data/set/c", "d")
    push(w)
    check(w, place)


def test_nobody_writes_to_a_version(w):
    w.as_nobody()
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    fill(w)
    large(w)
    first = push(w)
    assert w.ok("submit", "-f", "-t", "local", "--", "find", "data/set/", "!", "-type", "l", "-writable").out == ""
    w.write("data/set/odd/plain", "changed")
    second = push(w)
    assert second["files_sent"] == 1, second
    check(w, place)
    check_old = content(place / ".dlrun" / first["version"])
    w.ok("data", "rm", f"data/set@{second['version']}")
    assert content(place / ".dlrun/current") == check_old
    assert push_killed(w, place, (), lambda number: w.write(f"data/set/more/{number}", os.urandom(3 * MIB))) > 0
    w.ok("data", "rm", "data/set")
    assert not list(place.iterdir()), list(place.rglob('*'))[:20]


def test_a_version_that_was_changed_is_not_built_upon(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    fill(w)
    large(w)
    w.write("data/set/sub/large", os.urandom(3 * MIB))
    w.write("data/set/sub/removed", "removed there")
    for name in ("link", "same link"):
        (w.tree / "data/set/sub" / name).symlink_to("large\n")
    old(w)
    first = push(w)
    version = place / ".dlrun" / first["version"]
    for path in (version / "sub", version / "sub/large", version / "run.sh"):
        path.chmod(path.stat().st_mode | 0o200)
    (version / "run.sh").write_text("x" * (version / "run.sh").stat().st_size)
    (version / "sub/removed").unlink()
    (version / "sub/link").unlink()
    (version / "sub/link").symlink_to("elsewhere")
    (version / "sub/cache/deeper").mkdir(parents=True)
    (version / "sub/cache/deeper/file").write_text("made by a run")
    w.write("data/set/sub/new", "new")
    done = w.ok("data", "push", "data/set", "--json")
    second = json.loads(done.out)
    # What was changed, what was removed, what is new.
    assert second["files_sent"] == 3 and "was changed on local: 6 of its paths" in done.err, done
    check(w, place)
    # The same again, of the version itself: it is made anew, unless a run reads it.
    (w.tree / "data/set/sub/new").unlink()
    done = w.ok("data", "push", "data/set", "--json")
    assert json.loads(done.out)["version"] == first["version"] and not json.loads(done.out)["was_there"], done
    check(w, place)
    assert push(w)["was_there"]
    run = w.ok("submit", "-d", "-t", "local", "--", "sh", "-c", "until [ -e $DLRUN_OUTPUT_DIR/go ]; do sleep 0.1; done").out.strip()
    version.chmod(0o755)
    (version / "cache").write_text("made by a run")
    done = w.run("data", "push", "data/set")
    assert done.rc == 1 and "[data.place]" in done.err and run in done.err, done
    (w.state / "runs" / run / "outputs").mkdir(parents=True, exist_ok=True)
    (w.state / "runs" / run / "outputs/go").touch()
    w.ok("wait", run)
    done = push(w)
    assert done["files_sent"] == 0 and not done["was_there"], done
    check(w, place)


def test_another_user_goes_on_with_the_place(w):
    if os.getuid():
        raise Skip("only root is two users")
    place = w.dir / "place"
    place.mkdir()
    theirs = place / ".dlrun"

    def put(key, base, *members, name=ID, entries=1, **more):
        assert script(w, "begin", key, "one", **more).wait() == 0
        script_put = script(w, "put", key, "one", base, "0", stdin=subprocess.PIPE, **more)
        members = [(f"part-{key}-one/{path}", data) for path, data in members]
        list_, do = ending(f"part-{key}-one", entries)
        script_put.communicate(packed(*members, list_, (do[0], do[1].replace(ID.encode(), name.encode()))))
        assert script_put.returncode == 0, script_put.returncode

    put("key", "-", ("sub/b", b"b"), entries=2)
    for path in (w.dir, place, theirs):
        path.chmod(0o777)
    other = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    second = "d-" + "1" * 16
    put("other", ID, ("sub/c", b"c"), name=second, entries=3, **other)
    assert sorted(p.name for p in (theirs / second / "sub").iterdir()) == ["b", "c"]
    assert (theirs / second / "sub").stat().st_mode & 0o222 == 0
    assert script(w, "rm", ID, **other).wait() == 0 and not (theirs / ID).exists()
    put("key", second, ("sub/d", b"d"), entries=4)
    assert not list(theirs.glob(".gone*")) and (theirs / "current/sub/d").exists()
    assert script(w, "rm", "all", second, ID, **other).wait() == 0 and not list(theirs.glob("*.list"))
    put("key", "-", ("sub/b", b"b"), entries=2)
    assert sorted(p.name for p in theirs.iterdir()) == ["current", ID, f"{ID}.list"]


def test_a_version_that_was_changed_is_replaced_or_gone(w):
    version = w.dir / "place/.dlrun" / ID
    tool, count, path = w.dir / "tools/mv", w.dir / "count", w.env["PATH"]
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho >>{count}\n[ "$(wc -l <{count})" -ne "$KILLED" ] || {{ kill -9 $PPID; exit 1; }}\n'
                    f'exec {shutil.which("mv")} "$@"\n')
    tool.chmod(0o755)

    def put(killed=0):
        w.env["PATH"] = path
        script(w, "begin", "key", "one").communicate()
        count.write_text("")
        w.env.update(PATH=f"{tool.parent}:{path}", KILLED=str(killed))
        process = script(w, "put", "key", "one", "-", "0", stdin=subprocess.PIPE)
        process.communicate(packed(("part-key-one/b", b"b"), *ending("part-key-one", 1)))
        w.env["PATH"] = path
        return process.returncode

    for killed in range(1, 20):
        assert put() == 0
        (version / "b").chmod(0o644)
        (version / "b").write_bytes(b"x")
        os.utime(version / "b", (time.time() + 10,) * 2)
        if put(killed) == 0:
            break
        said = script(w, "begin", "other", "two").communicate()[0]
        assert (f"unchanged {ID}".encode() in said) == (version.exists() and (version / "b").read_bytes() == b"b"), (killed, said)
        script(w, "rm", "all", ID).communicate()
    assert killed > 4 and (version / "b").read_bytes() == b"b", killed


def test_a_version_that_is_changed_during_a_push_is_not_built_upon(w):
    place = w.dir / "place/.dlrun"

    def put(token, base, name, entries, *members):
        """Base is changed after the push has looked at it."""
        script(w, "begin", "key", token).communicate()
        if base != "-":
            (place / base / "b").chmod(0o644)
            (place / base / "b").write_bytes(b"x")
            os.utime(place / base / "b", (time.time() + 10,) * 2)
        process = script(w, "put", "key", token, base, "0", stdin=subprocess.PIPE)
        list_, do = ending(f"part-key-{token}", entries)
        process.communicate(packed(*((f"part-key-{token}/{path}", data) for path, data in members),
                                   list_, (do[0], do[1].replace(ID.encode(), name.encode()))))
        return process.returncode

    second = "d-" + "1" * 16
    assert put("one", "-", ID, 1, ("b", b"b")) == 0
    assert put("two", ID, second, 2, ("c", b"c")) == 45 and not (place / second).exists()
    script(w, "drop", "key").communicate()
    assert put("three", "-", second, 2, ("b", b"b"), ("c", b"c")) == 0 and (place / second / "b").read_bytes() == b"b"


def test_no_version_that_a_run_reads_is_replaced_under_another_name(w):
    """Its name is known only when all files have been sent."""
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    w.write("data/set/one", "one")
    first = push(w)["version"]
    run = w.ok("submit", "-d", "-t", "local", "--", "sh", "-c", "until [ -e $DLRUN_OUTPUT_DIR/go ]; do sleep 0.1; done").out.strip()
    (w.tree / "data/set/one").rename(w.tree / "one")
    w.write("data/set/two", "another size")
    push(w)
    (w.tree / "data/set/two").unlink()
    (w.tree / "one").rename(w.tree / "data/set/one")
    version = place / ".dlrun" / first
    (version / "cache").write_text("made by a run")

    def again(*words):
        for path in w.cache.glob("data/*.stat"):
            path.unlink()
        return w.run("data", "push", "data/set", *words)

    done = again()
    assert done.rc == 1 and "[data.place]" in done.err and run in done.err, done
    assert (version / "cache").exists()
    (w.state / "runs" / run / "outputs").mkdir(parents=True, exist_ok=True)
    (w.state / "runs" / run / "outputs/go").touch()
    w.ok("wait", run)
    done = again()
    assert done.rc == 0 and first in done.out, done
    check(w, place, first)


def test_what_only_root_may_read_is_not_built_upon(w):
    if os.getuid():
        raise Skip("only root is two users")
    w.repo({".gitignore": "data/\n"})
    w.as_nobody()
    place = here(w)
    fill(w)

    def file(version):
        (version / "secret").write_text("made by root")
        (version / "secret").chmod(0o600)

    def directory(version):
        (version / "sub/deep").mkdir(mode=0o700, parents=True)

    def mode(version):
        (version / "none").chmod(0)

    for number, change in enumerate((file, directory, mode)):
        version = push(w)["version"]
        change(place / ".dlrun" / version)
        w.write("data/set/new", str(number))
        again = push(w)
        assert again["version"] != version, again
        check(w, place)
        change(place / ".dlrun" / again["version"])
        assert not push(w)["was_there"]
        check(w, place)
        assert push(w)["was_there"]


def test_what_rm_may_not_remove_is_said(w):
    if os.getuid():
        raise Skip("only root is two users")
    w.repo({".gitignore": "data/\n"})
    w.as_nobody()
    place = here(w)
    w.write("data/set/a", "a")

    for whole in (False, True):
        version = push(w)["version"]
        (place / ".dlrun" / version / "theirs/deep").mkdir(parents=True)
        done = w.ok("data", "rm", "data/set" if whole else f"data/set@{version}")
        assert "another user remains" in done.err and f"removed data/set@{version}" in done.out, done
        assert not list(place.glob(".dlrun/*.list")) and list(place.glob(".dlrun/*/theirs/deep"))
        shutil.rmtree(place / ".dlrun")
    push(w)
    assert "remains" not in w.ok("data", "rm", "data/set").err and not list(place.iterdir())


def test_old_directories_make_no_old_transfer(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    w.write("data/set/sub/a", "a")
    version = push(w)["version"]
    os.utime(place / ".dlrun" / version, (time.time() - 40 * 86400,) * 2)
    script(w, "begin", "key", "one").communicate()
    script(w, "put", "key", "one", version, "0", stdin=subprocess.PIPE).communicate(packed(("part-key-one/sub/more", b"came")))
    kept, removed = place / ".dlrun/b", place / ".dlrun/part-a b *"
    for path in (kept, removed):
        path.write_text("a word of the name of another")
    os.utime(removed, (time.time() - 40 * 86400,) * 2)
    assert script(w, "begin", "other", "two").wait() == 0
    assert (place / ".dlrun/part-key-one/sub/more").exists() and kept.exists() and not removed.exists()


def test_what_a_kill_left_is_removed(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    w.write("data/set/a", "a")
    script(w, "begin", "key", "one").communicate()
    script(w, "put", "key", "one", "-", "0", stdin=subprocess.PIPE).communicate(packed(("part-key-one/a", b"half")))
    assert (place / ".dlrun/part-key-one/a").exists()
    w.ok("data", "rm", "data/set")
    assert not list(place.iterdir())
    first = push(w)["version"]
    w.write("data/set/a", "b")
    second = push(w)["version"]
    # A removal between its steps: a directory without its list, a list without its directory.
    (place / ".dlrun" / f"{first}.list").unlink()
    (place / ".dlrun" / f"{ID}.list").write_bytes(LIST)
    assert push(w)["was_there"]
    left = sorted(p.name for p in (place / ".dlrun").iterdir())
    assert left == sorted(["current", second, f"{second}.list"]), left


def test_a_file_that_goes_away_is_no_lost_connection(w):
    w.repo({".gitignore": "data/\n"})
    here(w)
    large(w, path="data/set/b", size=3 * MIB)
    w.write("data/set/c", "c")
    # The push waits in the middle of `b` until tar reads.
    slow = w.dir / "slow"
    slow.mkdir()
    (slow / "tar").write_text(f"#!/bin/sh\n: >{slow}/at\nuntil [ -e {slow}/go ]; do sleep 0.05; done\nexec {shutil.which('tar')} \"$@\"\n")
    (slow / "tar").chmod(0o755)
    child = subprocess.Popen([w.dlrun, "data", "push", "data/set"], cwd=w.tree, env={**w.env, "PATH": f"{slow}:{w.env['PATH']}"},
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (slow / "at").exists(), "tar", 30)
    (w.tree / "data/set/c").unlink()
    (slow / "go").touch()
    said = child.communicate()[1]
    assert child.returncode == 1 and "was cut" not in said and "data/set/c" in said, said


@contextlib.contextmanager
def small_place(w, size):
    """A place with room for so much, by the path that it has from here."""
    (w.dir / "place").mkdir()
    inside = f"mount -t tmpfs -o size={size} none {w.dir}/place && echo && exec cat"
    holder = subprocess.Popen([needs("unshare"), "--mount", "--map-root-user", "sh", "-c", inside], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline()
    yield Path(f"/proc/{holder.pid}/root{w.dir}/place")
    holder.communicate()


def test_a_full_place_gets_its_room_back(w):
    w.repo({".gitignore": "data/\n"})
    with small_place(w, "6m") as place:
        here(w, {"local": {"kind": "local", "data": {"data/set": str(place)}}})
        large(w, "data/set/first", MIB)
        first = push(w)["version"]
        whole = sorted(["current", first, f"{first}.list"])
        for number in range(9):
            large(w, f"data/set/more/{number}", MIB, seed=f"{number} ")
        w.refused("data", "push", "data/set", id="data.place", rc=1, says=["is full", "No space left on device", "data rm data/set@VERSION"])
        assert sorted(p.name for p in (place / ".dlrun").iterdir()) == whole
        shutil.rmtree(w.tree / "data/set/more")
        assert push(w)["was_there"]
        # What another push has left is not its own to remove: it is said.
        large(w, "data/set/second", 2 * MIB, seed="second")
        tools = w.dir / "tools"
        tools.mkdir()
        (tools / "sync").write_text("#!/bin/sh\nkill -9 $PPID\n")
        (tools / "sync").chmod(0o755)
        assert w.run("data", "push", "data/set", env={"PATH": f"{tools}:{w.env['PATH']}"}).rc == 1
        large(w, "other/third", 4 * MIB, seed="third")
        w.refused("data", "push", "data/set", "--from", "other", id="data.place", rc=1, says=["is full", "KiB of other unfinished pushes"])
        assert list(place.glob(".dlrun/part-*/second"))
        # It goes with the next push of that directory.
        (w.tree / "data/set/second").unlink()
        assert push(w)["was_there"]
        assert sorted(p.name for p in (place / ".dlrun").iterdir()) == whole
        large(w, "data/set/fourth", 3 * MIB, seed="fourth")
        push(w)
        assert content(place / ".dlrun/current") == content(w.tree / "data/set")


def test_what_a_kill_left_in_a_full_place(w):
    """There is no room to look at it."""
    with small_place(w, "6m") as there:
        place = str(there)
        script(w, "begin", "key", "one", place=place).communicate()
        put = script(w, "put", "key", "one", "-", "0", place=place, stdin=subprocess.PIPE)
        put.communicate(packed(("part-key-one/a", b"a" * 2 * MIB)))
        assert put.returncode == 46, put.returncode
        # Another push gives back what it took, by the tools of busybox, too.
        tools = w.dir / "tools"
        tools.mkdir()
        for tool in ("tar", "head", "dd", "du"):
            (tools / tool).symlink_to(needs("busybox"))
        for path in (w.env["PATH"], f"{tools}:{w.env['PATH']}"):
            put = script(w, "put", "big", "one", "-", "0", place=place, stdin=subprocess.PIPE, env={**w.env, "PATH": path})
            said = put.communicate(packed(("part-big-one/a", b"a" * 9 * MIB)))[1]
            assert put.returncode == 49 and b"KiB of other unfinished pushes" in said, (put.returncode, said)
            assert list(there.glob(".dlrun/part-*")) and not list(there.glob(".dlrun/part-big*"))
        (there / "lost+found").mkdir()
        with open(there / "lost+found/filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
            while filler.write(b"x" * 4096):
                pass
        begin = script(w, "begin", "key", "two", place=place)
        assert begin.communicate()[0] == b"" and begin.returncode == 0, begin.returncode
        assert not list(there.glob(".dlrun/part-*"))
        put = script(w, "put", "key", "two", "-", "0", place=place, stdin=subprocess.PIPE)
        put.communicate(packed(("part-key-two/b", b"b"), *ending("part-key-two", 1)))
        assert put.returncode == 0 and (there / ".dlrun/current/b").exists(), put.returncode


def test_a_place_without_hard_links(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    w.write("data/set/a", "a")
    w.write("data/set/b", "b")
    push(w)
    (w.tree / "data/set/a").rename(w.tree / "data/set/c")
    tools = w.dir / "tools"
    tools.mkdir()
    # As on a file system that has none: cp and tar fail at a link.
    (tools / "cp").write_text(f'#!/bin/sh\n[ "$1" != -al ] || exit 1\nexec {shutil.which("cp")} "$@"\n')
    (tools / "tar").write_text(f"""#!{sys.executable}
import sys, tarfile
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
    for item in tar:
        if item.islnk():
            print("tar: Cannot hard link", file=sys.stderr)
            sys.exit(2)
        tar.extract(item, filter="fully_trusted")
""")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    done = push(w, env={"PATH": f"{tools}:{w.env['PATH']}"})
    assert done["files_sent"] == 1, done
    check(w, place)


def test_hosts_that_share_the_place(w):
    with site(w, "gpu1", "gpu2", home=w.dir / "homes", files={".gitignore": "data/\n"}) as s:
        here(w, {"lab": {"kind": "ssh", "hosts": ["gpu1", "gpu2"], "data": {"data/set": "~/sets"}}})
        w.write("data/set/a", "a")
        first = push(w, "-t", "lab")
        assert first["files_sent"] == 1, first
        w.write("data/set/a", "b")
        push(w, "-t", "lab")
        w.ok("data", "rm", f"data/set@{first['version']}", "-t", "lab")
        w.ok("data", "rm", "data/set", "-t", "lab")
        assert not list((s["gpu1"].home / "sets").iterdir())
        w.refused("data", "rm", "data/set", "-t", "lab", id="data.version", rc=5)


def test_a_place_without_a_version_yet(w):
    with site(w, files={".gitignore": "data/\n"}) as s:
        place = here(w, {"local": {"kind": "local", "data": {"data/set": str(w.dir / "place")}},
                         "lab": {"kind": "ssh", "hosts": ["gpu1"], "data": {"data/set": "~/sets"}}})
        for made in (place, s["gpu1"].home / "sets"):
            (made / ".dlrun").mkdir(parents=True)
        w.refused("submit", "-d", "-t", "local", "--", "true", id="run.data", rc=2, says=".dlrun/current")
        run = w.ok("submit", "-d", "-t", "lab", "--", "true").out.strip()
        assert s.ended(run)["state"] == "failed"
        assert "no version" in json.dumps(w.show(run)), w.show(run)


def killed(w, args, after_s):
    """A push of a process that is killed after a while; whether it was in time."""
    who = {"user": w.user, "group": w.user, "extra_groups": []} if w.user else {}
    child = subprocess.Popen([w.dlrun, "data", "push", "data/set", *args], cwd=w.tree, env=w.env, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, **who)
    try:
        child.wait(after_s)
        return False
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return True


def push_killed(w, place, args, change):
    """KILLS pushes, each killed somewhere, then one that is not: what is there is whole, and never half."""
    begun = time.monotonic()
    push(w, *args)
    took = time.monotonic() - begun
    hits = 0
    for number in range(KILLS):
        change(number)
        hits += killed(w, args, took * (number + 1) / (KILLS + 1))
        for done in (place / ".dlrun").glob("d-*.list"):
            assert done.with_suffix("").is_dir(), done
    push(w, *args)
    check(w, place)
    return hits


def test_killed_at_any_point(w):
    w.repo({".gitignore": "data/\n"})
    place = here(w)
    fill(w)
    file = large(w)

    def change(number):
        w.write(f"data/set/more/{number}", os.urandom(3 * MIB))
        if number % 3 == 0:
            file.write_bytes(random.Random(number).randbytes(LARGE // 2))
        if number % 4 == 0 and number:
            (w.tree / f"data/set/more/{number - 1}").unlink()
            w.write(f"data/set/more/{number - 1}/x", "now a directory")

    assert push_killed(w, place, (), change) > 0


def test_a_transfer_that_was_cut_goes_on(w):
    with site(w, files={".gitignore": "data/\n"}) as s:
        here(w, {"lab": {"kind": "ssh", "hosts": ["gpu1"], "data": {"data/set": "/home/me/sets"}}})
        place = s["gpu1"].home / "sets"
        large(w)
        for number in range(30):
            w.write(f"data/set/small/{number}", os.urandom(MIB))
        child = subprocess.Popen([w.dlrun, "data", "push", "data/set", "-t", "lab"], cwd=w.tree, env=w.env,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: sum(p.stat().st_size for p in place.rglob("part-*/**/*") if p.is_file()) > 8 * MIB, "some of it there", 60)
        child.kill()
        child.wait()
        done = push(w, "-t", "lab")
        assert done["bytes_sent"] < done["bytes"] - 4 * MIB or not list(place.glob(".dlrun/part-*")), done
        check(w, place)
        assert not list(place.glob(".dlrun/part-*"))


def test_killed_on_the_way_to_a_host(w):
    """Behind so many bytes each time: what has arrived, but for the last file, does not travel again."""
    with site(w, files={".gitignore": "data/\n"}) as s, s.wire("gpu1") as relay:
        here(w, {"lab": {"kind": "ssh", "hosts": ["gpu1"], "data": {"data/set": "~/sets"}}})
        place = s["gpu1"].home / "sets"
        large(w, size=32 * MIB)
        for number in range(60):
            w.write(f"data/set/small/{number}", random.Random(number).randbytes(MIB))
        total, rng = 92 * MIB, random.Random(3)

        def arrived():
            return sum(p.stat().st_size for p in place.rglob(".dlrun/part-*/**/*") if p.is_file() and ".in" not in str(p.parent.name))

        have = kills = 0
        while kills < KILLS:
            child = subprocess.Popen([w.dlrun, "data", "push", "data/set", "-t", "lab", "-q"], cwd=w.tree, env=w.env,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            until = relay.up + rng.randrange(0, 2 * total // KILLS)
            wait_for(lambda: relay.up >= until or child.poll() is not None, "the next point", 120)
            child.kill()
            child.wait()
            kills += 1
            if list(place.glob(".dlrun/d-*.list")):
                break
            now = arrived()
            assert now >= have - MIB, (kills, have, now)
            have = max(have, now)
        done = push(w, "-t", "lab")
        check(w, place)
        assert done["was_there"] or done["bytes_sent"] <= total - have + MIB, (done, have)
        assert relay.up <= total + (kills + 1) * 3 * MIB, (relay.up / MIB, kills)


def test_on_a_host(w):
    with site(w, files={".gitignore": "data/\n"}) as s:
        here(w, {"lab": {"kind": "ssh", "hosts": ["gpu1"], "data": {"data/set": "~/sets"}}})
        place = s["gpu1"].home / "sets"
        fill(w)
        file = large(w)
        first = push(w, "-t", "lab")
        check(w, place)
        with open(file, "r+b") as out:
            out.seek(LARGE // 2)
            out.write(b"!")
        second = push(w, "-t", "lab")
        assert 0 < second["bytes_sent"] <= 4 * MIB and second["files_sent"] == 1, second
        check(w, place)
        assert push(w, "-t", "lab")["was_there"]
        run = w.ok("submit", "-d", "-t", "lab", "--", "sh", "-c", "sha256sum data/set/large; test -x data/set/run.sh; ! echo x >data/set/run.sh").out.strip()
        record = s.ended(run)
        assert record["state"] == "succeeded", w.run("logs", run)
        assert record["data"] == {"data/set": second["version"]}, record.get("data")
        assert hashlib.sha256(file.read_bytes()).hexdigest() in w.ok("logs", run).out
        assert second["version"] in w.ok("show", run).out
        # A version that the configuration names, and another place of the same data.
        here(w, {"lab": {"kind": "ssh", "hosts": ["gpu1"], "data": {"data/set": f"~/sets/.dlrun/{first['version']}"}}})
        run = w.ok("submit", "-d", "-t", "lab", "--", "true").out.strip()
        assert s.ended(run)["data"] == {"data/set": first["version"]}
        assert push(w, "-t", "lab")["was_there"]


def test_a_run_keeps_its_version(w):
    w.repo({".gitignore": "data/\n"})
    here(w)
    w.write("data/set/a", "one")
    first = push(w)
    run = w.ok("submit", "-d", "-t", "local", "--", "sh", "-c", "until [ -e $DLRUN_OUTPUT_DIR/go ]; do sleep 0.1; done; cat data/set/a").out.strip()
    w.write("data/set/a", "another")
    second = push(w)
    for name in (f"data/set@{first['version']}", "data/set"):
        done = w.run("data", "rm", name)
        assert done.rc == 1 and "[data.place]" in done.err and run in done.err, done
    (w.state / "runs" / run / "outputs").mkdir(parents=True, exist_ok=True)
    (w.state / "runs" / run / "outputs" / "go").touch()
    assert w.ok("logs", "-f", run).out == "one"
    assert w.show(run)["data"] == {"data/set": first["version"]}
    run = w.ok("submit", "-f", "-t", "local", "--", "cat", "data/set/a")
    assert run.out == "another" and w.show()["data"] == {"data/set": second["version"]}


if __name__ == "__main__":
    main()
