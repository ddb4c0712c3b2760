#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Versions of data in a bucket (`dlrun data` for places in S3): what travels, what is there after a kill, what a pod reads.

DLRUN_DATA_KILLS: how many pushes are killed (20; 100 in DLRUN_TESTS=all).
"""

import functools
import random
import re
import signal
import subprocess
import time

from data import content, fill, large, old, push
from harness import *  # noqa: F403
from certs import Certs
from s3 import Cutter, Reader
from s3site import RcloneServer, S3Server

KILLS = int(os.environ.get("DLRUN_DATA_KILLS", 100 if os.environ.get("DLRUN_TESTS") == "all" else 20))
MIB = 1 << 20
# Nobody listens there: pushes speak with the bucket alone.
KUBECONFIG = """apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
"""


def place(w, s3, endpoint=None):
    config = w.dir / "kubeconfig"
    config.write_text(KUBECONFIG)
    w.env.update(s3.env, KUBECONFIG=str(config), AWS_ENDPOINT_URL_S3=endpoint or s3.endpoint)
    address = f"s3://{s3.bucket}/sets/set"
    w.write("dlrun.yaml", json.dumps({"data": ["data/set"], "target": "lab", "targets": {
        "lab": {"kind": "kubernetes", "data": {"data/set": {"s3": address}}}}}))
    return address


def keys(s3):
    """Of all objects."""
    text = s3.signed("GET", "", {"list-type": "2", "prefix": "sets/"})
    return re.findall("<Key>([^<]*)", text)


def versions(w):
    return json.loads(w.ok("data", "ls", "data/set", "--json").out)["versions"]


def check(w, s3, pod, address):
    """A pod reads what is here."""
    reader = Reader(w, s3, pod, address, 0)
    said = reader.end()
    # Who may execute a file is told by its version.
    assert content(reader.top / "runs" / pod / "0") == content(w.tree / "data/set")
    return said


def test_versions_in_a_bucket(w):
    with S3Server(w.dir) as s3:
        address = place(w, s3)
        fill(w)
        # Moto has no object of that name.
        (w.tree / "data/set/odd/new\nline").unlink()
        path = large(w, size=40 * MIB)
        w.write("data/set/other", random.Random(4).randbytes(3 * MIB))
        old(w)
        first = push(w)
        assert first["bytes_sent"] == first["bytes"] and not first["was_there"], first
        assert check(w, s3, "one", address).count(first["version"]) == 1
        assert push(w)["was_there"]
        assert s3.secret not in json.dumps(first)
        # One byte of a large file, and another name for a small one.
        with open(path, "r+b") as f:
            f.seek(21 * MIB)
            f.write(bytes([f.read(1)[0] ^ 1]) if not f.seek(21 * MIB) else bytes([1]))
        os.rename(w.tree / "data/set/other", w.tree / "data/set/renamed")
        w.write("data/set/new", "new")
        os.utime(path, (time.time() - 50,) * 2)
        second = push(w)
        assert second["version"] != first["version"] and second["files_sent"] == 2, second
        assert second["bytes_sent"] <= 8 * MIB, second
        said = check(w, s3, "two", address)
        assert "2 of them" in said, said
        assert [(v["version"], v["current"]) for v in versions(w)] == [(second["version"], True), (first["version"], False)], versions(w)
        Reader(w, s3, "three", f"{address}@{first['version']}", 0).end()
        w.ok("data", "rm", f"data/set@{second['version']}")
        assert [(v["version"], v["current"]) for v in versions(w)] == [(first["version"], True)]
        assert not [key for key in keys(s3) if second["version"] in key]
        gone = Reader(w, s3, "four", f"{address}@{second['version']}", 0)
        assert "is no version that is there" in gone.end(1)
        w.ok("data", "rm", "data/set")
        assert not versions(w) and not keys(s3), keys(s3)


def lose(s3, version, *names):
    for name in names:
        key = f"sets/set@{version}{name}"
        assert key in keys(s3)
        s3.signed("DELETE", key, {})


def test_objects_that_were_lost(w):
    """A push of the version mends it, and one that builds upon it sends what cannot be copied."""
    with S3Server(w.dir) as s3:
        address = place(w, s3)
        path = large(w, size=40 * MIB)
        w.write("data/set/middle", random.Random(3).randbytes(18 * MIB))
        w.write("data/set/small", "content")
        w.write("data/set/stays", "stays")
        old(w)
        first = push(w)
        lose(s3, first["version"], "/small", "/large")
        mended = push(w)
        assert mended["version"] == first["version"] and mended["files_sent"] == 2 and not mended["was_there"], mended
        check(w, s3, "mended", address)
        assert push(w)["was_there"]
        lose(s3, first["version"], "/small", "/large", "/middle")
        for name in ("middle", "small"):
            os.rename(w.tree / "data/set" / name, w.tree / "data/set" / f"new-{name}")
        with open(path, "r+b") as f:
            f.seek(21 * MIB)
            f.write(b"!!")
        second = push(w)
        assert second["files_sent"] == 3 and second["bytes_sent"] == 58 * MIB + 7, second
        check(w, s3, "second", address)


def test_removals_that_were_cut(w):
    """What is left goes by the whole name of the version."""
    with S3Server(w.dir) as s3:
        place(w, s3)
        for name in "abc":
            w.write(f"data/set/{name}", name)
        first = push(w)
        w.write("data/set/d", "d")
        second = push(w)
        lose(s3, first["version"], ".list")
        w.refused("data", "rm", f"data/set@{first['version'][:-1]}", id="data.version", rc=5)
        w.ok("data", "rm", f"data/set@{first['version']}")
        assert len(keys(s3)) == 6 and not [key for key in keys(s3) if first["version"] in key], keys(s3)
        assert [(v["version"], v["current"]) for v in versions(w)] == [(second["version"], True)]
        w.refused("data", "rm", f"data/set@{first['version']}", id="data.version", rc=5)
        # One without a list, of a place that has none.
        lose(s3, second["version"], ".list")
        w.ok("data", "rm", f"data/set@{second['version']}")
        assert not keys(s3), keys(s3)


def noted_uploads(w):
    """What is noted of parts that have arrived; not the files that are about to replace such a note."""
    return [json.loads(p.read_text().partition("\n")[2]) for p in w.dir.rglob("*.uploads/[!.]*")]


def test_a_server_that_is_too_busy(w):
    """A part that has arrived is not sent again, also where a try that continues fails in its turn."""
    good, sent = 1, []

    def noted(part):
        return any(str(part - 1) in note["parts"] for note in noted_uploads(w))

    def spoil(request):
        nonlocal good
        # Each try begins with it, and gets one part further.
        good += b"delimiter=" in request
        part = int((re.match(rb"PUT \S*partNumber=(\d+)", request) or [0, 0])[1])
        if part <= good:
            sent.append(part)
            return None
        if good in sent:
            wait_for(lambda: noted(good), "the part before", 60)
        return b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    with S3Server(w.dir) as s3:
        cutter = Cutter(s3, 1 << 40, spoil)
        address = place(w, s3, cutter.endpoint)
        large(w, size=40 * MIB)
        old(w)
        push(w)
        # Five tries; before its list and behind it the push looks for its mark.
        assert good == 5 + 2 and [sent.count(n) for n in range(1, 6)] == [1] * 5, (good, sent)
        check(w, s3, "pod", address)
        cutter.close()


def test_files_that_change_while_they_are_sent(w):
    """What is sent is what was read before, or it is no version."""
    path, left = None, []

    def spoil(request):
        if left and re.match(left[0], request):
            left.clear()
            times = path.stat()
            with open(path, "r+b") as f:
                f.seek(-1, os.SEEK_END)
                f.write(b"!")
            # Times are no witness of a small file.
            if path.name == "z-last":
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    with S3Server(w.dir) as s3:
        cutter = Cutter(s3, 1 << 40, spoil)
        address = place(w, s3, cutter.endpoint)
        for n in range(60):
            w.write(f"data/set/many/{n}", random.Random(n).randbytes(20000))
        for path, when in ((w.write("data/set/z-last", "x" * 1000), b"PUT [^?]* "), (large(w, size=40 * MIB), rb"PUT \S*partNumber=")):
            old(w)
            left.append(when)
            w.refused("data", "push", "data/set", id="io.changed", rc=1, says="changed while it was read")
            assert not left and not [key for key in keys(s3) if key.endswith((".list", path.name))], keys(s3)
            push(w)
            check(w, s3, path.name, address)
            w.ok("data", "rm", "data/set")
        cutter.close()


def test_what_has_arrived_is_not_sent_again(w):
    puts = []

    def spoil(request):
        if found := re.match(rb"PUT (\S+)", request):
            puts.append(found[1].decode())

    with S3Server(w.dir) as s3:
        cutter = Cutter(s3, 1 << 40, spoil)
        address = place(w, s3, cutter.endpoint)
        for n in range(200):
            w.write(f"data/set/many/{n}", random.Random(n).randbytes(20000))
        path = large(w, size=40 * MIB)
        old(w)
        rng, parts = random.Random(9), set()
        for _ in range(KILLS // 2):
            there, before = {key for key in keys(s3) if "/many/" in key or key.endswith("/large")}, len(puts)
            process = subprocess.Popen([w.dlrun, "data", "push", "data/set", "-q"], cwd=w.tree, env=w.env, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
            until = before + rng.randrange(1, 900 // KILLS)
            wait_for(lambda: len(puts) >= until or process.poll() is not None, "the next point", 120)
            process.kill()
            process.wait()
            again = [put for put in puts[before:] if any(put.endswith(key.partition("@")[2].partition("/")[2]) for key in there)]
            assert not again, again
            assert not parts & {part for put in puts[before:] for part in re.findall(r"partNumber=(\d+)", put)}, puts[before:]
            parts = {str(int(n) + 1) for note in noted_uploads(w) for n in note["parts"]}
        there = {key for key in keys(s3) if "/many/" in key}
        done = push(w)
        assert done["was_there"] or done["bytes_sent"] <= path.stat().st_size + (200 - len(there)) * 20000, (done, len(there))
        check(w, s3, "pod", address)
        cutter.close()


def check_name(s3, version):
    assert s3.signed("GET", "sets/set@current", {}) == version


def test_a_version_that_another_push_makes_behind_a_removal(w):
    """It stays: a push that has lost its mark does not touch it."""
    made = []

    def spoil(request):
        if not made and re.match(rb"PUT \S*/c ", request):
            mark = [key for key in keys(s3) if ".push-" in key][0]
            made.append(mark.partition(".push-")[0] + ".list")
            s3.signed("DELETE", mark, {})
            s3.signed("PUT", made[0], {})

    with S3Server(w.dir) as s3:
        cutter = Cutter(s3, 1 << 40, spoil)
        place(w, s3, cutter.endpoint)
        for name in "abc":
            w.write(f"data/set/{name}", name)
        w.refused("data", "push", "data/set", id="data.place", rc=1, says="was removed while it was pushed")
        assert made and made[0] in keys(s3) and "sets/set@current" not in keys(s3), (made, keys(s3))
        cutter.close()


def test_a_push_that_ends_beside_a_removal(w):
    """Between the list that the removal has made and the end of the push's mark: no version without files remains."""
    ended = []

    def spoil(request):
        if re.match(rb"DELETE \S*push-", request):
            ended.append(version)
            s3.signed("PUT", f"sets/set@{version}.list", {})
        # Another removal of the same begins, and does not end.
        if len(ended) == 3 and re.match(rb"DELETE \S*/c ", request):
            s3.signed("PUT", other, {})

    with S3Server(w.dir) as s3:
        cutter = Cutter(s3, 1 << 40, spoil)
        place(w, s3, cutter.endpoint)
        for name in "abc":
            w.write(f"data/set/{name}", name)
        version = push(w, env={"AWS_ENDPOINT_URL_S3": s3.endpoint})["version"]
        other = f"sets/set@{version}.rm-{0:016x}"
        for n, name in enumerate(("data/set", f"data/set@{version}", f"data/set@{version}"), 1):
            lose(s3, version, ".list")
            s3.signed("PUT", f"sets/set@{version}.push-other", {})
            w.ok("data", "rm", name)
            assert ended == [version] * n, ended
            # A removal of all takes what it has seen: there was no such version yet.
            assert n == 1 or keys(s3) == ([other] if n == 3 else []), keys(s3)
            if n < 3:
                assert push(w, env={"AWS_ENDPOINT_URL_S3": s3.endpoint})["was_there"] == (n == 1)
        cutter.close()


def test_a_removal_that_another_one_has_stopped(w):
    """It deletes nothing of what is pushed behind the other one, and says so in the end."""
    ended = []

    def spoil(request):
        if not ended and re.match(asks, request):
            # The server tells times in seconds.
            second = int(time.time())
            wait_for(lambda: time.time() >= second + 1, "the next second")
            w.ok("data", "rm", name, env=direct)
            ended.append(push(w, env=direct)["version"] if asks.startswith(b"GET") else None)

    with S3Server(w.dir) as s3:
        cutter, direct = Cutter(s3, 1 << 40, spoil), {"AWS_ENDPOINT_URL_S3": s3.endpoint}
        address = place(w, s3, cutter.endpoint)
        for name in "abc":
            w.write(f"data/set/{name}", name)
        version = push(w, env=direct)["version"]
        # What there is to be deleted is listed; or the last of it is deleted.
        for name, asks in ((f"data/set@{version}", rb"GET \S*prefix=\S*(?:@|%40)d-\w+(?:/|%2F)[& ]"),
                           ("data/set", rb"GET \S*prefix=\S*(?:@|%40)d-[& ]"), ("data/set", rb"DELETE \S*/c ")):
            ended.clear()
            w.refused("data", "rm", name, id="data.place", rc=1, says="another removal of s3://")
            assert ended and not [key for key in keys(s3) if "rm-" in key or ".push-" in key], keys(s3)
            if ended[0]:
                assert ended == [version]
                check(w, s3, f"pod-{len(name)}", address)
        assert not keys(s3), keys(s3)
        cutter.close()


def test_removals_that_begin_together(w):
    """Both see the other's mark: one goes on."""
    begun, lists, stops = set(), [], []

    def spoil(n, request):
        if re.match(rb"PUT \S*\.rm-\w{16} ", request):
            begun.add(n)
        elif n in begun and re.match(rb"GET \S*list-type=2", request):
            lists.append(n)
            if lists.count(n) == 1:
                wait_for(lambda: len(set(lists)) == 2, "the other's mark", 120)
            else:
                # The one that goes on has stopped the other one.
                wait_for(lambda: len([key for key in keys(s3) if ".rm-" in key]) < 2, "the end of a mark", 120)
        elif re.match(rb"DELETE \S*\.rm-\w{16} ", request):
            stops.append(n)
            # Both have the answer.
            wait_for(lambda: len(lists) > 2 or len(set(stops)) == 2, "the other one", 120)

    with S3Server(w.dir) as s3:
        place(w, s3)
        for name in "abc":
            w.write(f"data/set/{name}", name)
        version = push(w)["version"]
        cutters = [Cutter(s3, 1 << 40, functools.partial(spoil, n)) for n in range(2)]
        both = [subprocess.Popen([w.dlrun, "data", "rm", f"data/set@{version}"], cwd=w.tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, env={**w.env, "AWS_ENDPOINT_URL_S3": cutter.endpoint}) for cutter in cutters]
        said = [process.communicate(timeout=busy_s(120))[0] for process in both]
        codes = [process.returncode for process in both]
        assert sorted(codes) == [0, 1] and "another removal of s3://" in said[codes.index(1)], (codes, said)
        assert not keys(s3), keys(s3)
        for cutter in cutters:
            cutter.close()


def test_a_removal_that_is_denied(w):
    """It keeps nobody from pushing, as one that is interrupted before it begins."""
    denied = rb"DELETE "
    process = None

    def spoil(request):
        if denied and re.match(denied, request):
            text = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
            return b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(text), text)
        if process and b"list-type" in request and [key for key in keys(s3) if "rm-" in key]:
            process.send_signal(signal.SIGINT)
            time.sleep(1)
        return None

    with S3Server(w.dir) as s3:
        cutter = Cutter(s3, 1 << 40, spoil)
        address = place(w, s3, cutter.endpoint)
        direct = {"AWS_ENDPOINT_URL_S3": s3.endpoint}
        w.write("data/set/a", "a")
        first = push(w, env=direct)
        before = keys(s3)
        for denied in (rb"DELETE ", rb"DELETE \S*\.list "):
            for name in ("data/set", f"data/set@{first['version']}"):
                w.refused("data", "rm", name, id="bucket.denied", rc=4)
                assert [key for key in keys(s3) if not key.endswith("current")] == [key for key in before if not key.endswith("current")], keys(s3)
        denied = None
        process = subprocess.Popen([w.dlrun, "data", "rm", "data/set"], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL)
        assert process.wait(60) != 0
        process = None
        assert not [key for key in keys(s3) if "rm-" in key], keys(s3)
        w.write("data/set/a", "b")
        push(w, env=direct)
        check(w, s3, "pod", address)
        cutter.close()


def test_a_removal_beside_a_push(w):
    """What it counts on may be deleted: it makes no version, nor begins beside a removal."""
    removed = []

    def spoil(request):
        if len(removed) < 2 and re.match(rb"PUT \S*\.list ", request):
            env = {"AWS_ENDPOINT_URL_S3": s3.endpoint}
            name = re.search(rb"set(?:@|%40)(d-\w+)", request)[1].decode()
            w.ok("data", "rm", f"data/set@{name}" if removed else "data/set", env=env)
            removed.append(name)

    with S3Server(w.dir) as s3:
        cutter = Cutter(s3, 1 << 40, spoil)
        address = place(w, s3, cutter.endpoint)
        for name in "abc":
            w.write(f"data/set/{name}", name)
        old(w)
        for n in (1, 2):
            w.refused("data", "push", "data/set", id="data.place", rc=1, says="was removed while it was pushed")
            assert len(removed) == n and not keys(s3), keys(s3)
        done = push(w)
        check(w, s3, "pod", address)
        # The other version becomes the current one again.
        del removed[1:]
        w.write("data/set/d", "d")
        w.refused("data", "push", "data/set", id="data.place", rc=1, says="was removed while it was pushed")
        assert len(removed) == 2 and [(v["version"], v["current"]) for v in versions(w)] == [(done["version"], True)], (removed, versions(w))
        check_name(s3, done["version"])
        (w.tree / "data/set/d").unlink()
        # A removal that was cut.
        one, mark = f"data/set@{done['version']}", f"rm-{0:016x}"
        for key, said, name in ((mark, "data/set", "data/set"), (f"{done['version']}.{mark}", one, one), (f"{done['version']}.{mark}", one, "data/set")):
            lose(s3, done["version"], ".list")
            s3.signed("PUT", f"sets/set@{key}", {})
            w.refused("data", "push", "data/set", id="data.place", rc=1, says=["is being removed", f"dlrun data rm {said}"])
            w.ok("data", "rm", name)
            assert push(w)["files_sent"] == 3
        # Nobody's mark.
        other = f"sets/set@{mark}.tar"
        s3.signed("PUT", other, {})
        assert push(w)["was_there"]
        w.ok("data", "rm", "data/set")
        assert push(w)["files_sent"] == 3
        w.ok("data", "rm", "data/set")
        assert keys(s3) == [other], keys(s3)
        cutter.close()


def test_a_version_that_goes_while_a_push_looks(w):
    """It is not said to be there, but made again."""
    gone = []

    def spoil(request):
        if not gone and re.match(rb"GET \S*prefix=\S*(?:@|%40)d-\w+(?:/|%2F)[& ]", request):
            gone.append(lose(s3, version, ".list"))

    with S3Server(w.dir) as s3:
        cutter = Cutter(s3, 1 << 40, spoil)
        place(w, s3, cutter.endpoint)
        w.write("data/set/a", "a")
        version = push(w, env={"AWS_ENDPOINT_URL_S3": s3.endpoint})["version"]
        done = push(w)
        assert gone and [v["version"] for v in versions(w)] == [version] and not done["was_there"], (gone, done)
        cutter.close()


def test_a_server_of_an_own_issuer(w):
    certs = Certs(w.dir / "certs")
    with RcloneServer(w.dir, certs.pair()) as s3:
        address = place(w, s3)
        w.write("data/set/a", "1")
        refused = w.run("data", "push", "data/set")
        assert refused.rc == 3 and "trying again" not in refused.err and "unable to get local issuer certificate" in refused.err, refused
        w.env["AWS_CA_BUNDLE"] = str(certs.ca)
        push(w)
        check(w, s3, "pod", address)


def test_pushes_that_are_killed(w):
    """A version is whole or not there, and what has arrived is not sent again."""
    with S3Server(w.dir) as s3:
        address = place(w, s3)
        for n in range(30):
            w.write(f"data/set/many/{n}", random.Random(n).randbytes(20000))
        large(w, size=24 * MIB)
        old(w)
        rng, left = random.Random(7), KILLS
        argv = [w.dlrun, "data", "push", "data/set", "-q"]
        while left:
            process = subprocess.Popen(argv, cwd=w.tree, env=w.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                process.wait(rng.random() * 1.2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                left -= 1
            found = [key for key in keys(s3) if key.endswith(".list")]
            # The reader compares each file with the list.
            for key in found:
                Reader(w, s3, f"pod-{left}", f"s3://{s3.bucket}/{key.removesuffix('.list')}", 0).end()
            if found:
                if rng.random() < 0.7:
                    w.ok("data", "rm", "data/set")
                else:
                    w.write("data/set/many/0", random.Random(str(left)).randbytes(20000))
        done = push(w)
        check(w, s3, "last", address)
        # The bucket knows times by the second.
        assert [v["version"] for v in versions(w) if v["current"]] == [done["version"]], versions(w)


if __name__ == "__main__":
    main()
