#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The client of S3 and what sends results from a pod, with a server that checks signatures, and connections that break."""

import contextlib
import fcntl
import hashlib
import html
import random
import re
import signal
import socket
import subprocess
import threading

from harness import *  # noqa: F403
from s3site import PROGRAMS, S3Server, fill

NAMES = ["plain", "with space", "a+b", "umläut/ñ", "per%cent", "q?a&b=c", "quo'te\"", "back\\slash", "dots/..a/.b", "<&>"]


class Cutter:
    """A relay that breaks each connection behind so many bytes; `spoil` may respond to a request instead of the server, and is asked
    about one after the other."""

    def __init__(self, server, after, spoil=None):
        self.target, self.after, self.cuts, self.spoil, self.lock = server.port, after, 0, spoil, threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.endpoint = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.relay, args=(self.listener.accept()[0],), daemon=True).start()

    def relay(self, near):
        """What fails here is the end of one connection, not of the relay."""
        with near, contextlib.suppress(OSError):
            first = near.recv(65536) if self.spoil else b""
            with self.lock:
                response = self.spoil(first) if first else None
            if response:
                near.sendall(response)
                return
            with socket.create_connection(("127.0.0.1", self.target)) as far:
                far.sendall(first)
                left = [self.after]
                back = threading.Thread(target=self.pump, args=(far, near, left), daemon=True)
                back.start()
                self.pump(near, far, left)
                back.join()

    def pump(self, a, b, left):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                left[0] -= len(data)
                if left[0] < 0:
                    self.cuts += 1
                    break
                b.sendall(data)
        for s in (a, b):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.close()


def tool(w, s3, *words, **env):
    path = Path(w.dlrun).parent / "tests/real/s3_tool"
    if not path.exists():
        raise Skip("s3_tool is not built")
    return w.command([path, *words], env={**s3.env, **env}, timeout=120)


def good(done):
    assert done.rc == 0, done
    return done


def test_names_of_any_kind(w):
    with S3Server(w.dir) as s3:
        source = w.write("file", b"content")
        for name in NAMES:
            good(tool(w, s3, "put", source, f"s3://{s3.bucket}/n/{name}"))
        listed = good(tool(w, s3, "list", f"s3://{s3.bucket}/n")).out
        assert all(f"7 n/{name}\n" in listed for name in NAMES), listed
        for name in NAMES:
            assert good(tool(w, s3, "get", f"s3://{s3.bucket}/n/{name}")).out == "content"
            good(tool(w, s3, "rm", f"s3://{s3.bucket}/n/{name}"))
        assert tool(w, s3, "list", f"s3://{s3.bucket}/n").out == ""


def test_refusals_say_what_is_wrong(w):
    with S3Server(w.dir) as s3:
        place = f"s3://{s3.bucket}/k"
        for env, address, want in (({"AWS_SECRET_ACCESS_KEY": "other"}, place, "SignatureDoesNotMatch"),
                                   ({"AWS_ACCESS_KEY_ID": "AKIAOTHER"}, place, "bucket.auth"),
                                   ({"AWS_ACCESS_KEY_ID": ""}, place, "bucket.credentials"),
                                   ({}, "s3://not-there/k", "bucket.not_found"), ({}, place, "bucket.not_found")):
            done = tool(w, s3, "get", address, **env)
            assert done.rc == 1 and want in done.err and s3.secret not in done.err, done


def test_large_objects_go_on_where_they_were_cut(w):
    """Killed and cut anywhere, the object is whole in the end, and what had arrived is not sent again."""
    data = random.Random(3).randbytes(40 << 20)
    source = w.write("big", data)
    with S3Server(w.dir) as s3:
        place, notes = f"s3://{s3.bucket}/big", w.dir / "notes"
        path = Path(w.dlrun).parent / "tests/real/s3_tool"
        if not path.exists():
            raise Skip("s3_tool is not built")
        killed = subprocess.Popen([path, "put", source, place, notes], env={**w.env, **s3.env}, stdout=subprocess.PIPE)
        for _ in range(3):
            assert killed.stdout.readline() == b"noted\n"
        killed.kill()
        killed.wait()
        there = len(json.loads(notes.read_text())["parts"])
        assert there >= 1, there
        done = good(tool(w, s3, "put", source, place, notes))
        assert done.out.count("noted") == 5 - there, (done, there)
        assert tool(w, s3, "list", place).out.split()[0] == str(len(data))
        etag = html.unescape(re.search("<ETag>([^<]*)", s3.signed("GET", "", {"list-type": "2", "prefix": "big"}))[1])
        cutter = Cutter(s3, 3 << 20)
        got = subprocess.run([path, "get", place], env={**w.env, **s3.env, "AWS_ENDPOINT_URL_S3": cutter.endpoint, "S3_TOOL_ETAG": etag},
                             capture_output=True, timeout=120)
        assert got.returncode == 0 and hashlib.sha256(got.stdout).digest() == hashlib.sha256(data).digest(), got.stderr
        assert cutter.cuts >= 10, cutter.cuts
        cutter.close()


def program(parts, places):
    """A program of pods, with other directories."""
    text = "".join((PROGRAMS / part).read_text() for part in parts)
    for a, b in places.items():
        assert f'"{a}"' in text
        text = text.replace(f'"{a}"', repr(str(b)))
    return text


class Pod:
    """upload.py in directories of the test instead of a pod's, and a pipe as a program's script holds it open."""

    def __init__(self, w, s3, seconds=20, bucket=None, **env):
        self.output, self.attempt, self.message = w.dir / "outputs", w.dir / "attempt", w.dir / "message"
        for path in (self.output, self.attempt):
            path.mkdir(exist_ok=True)
        text = program(("calm.py", "s3.py", "upload.py"),
                       {"/dlrun/attempt": self.attempt, "/dlrun/outputs": self.output, "/dev/termination-log": self.message})
        alive = self.attempt / "alive"
        alive.unlink(missing_ok=True)
        os.mkfifo(alive)
        self.pipe = os.open(alive, os.O_RDWR)
        self.process = subprocess.Popen(["python3", "-ESc", text, f"s3://{bucket or s3.bucket}/runs/r1", "0", str(seconds)],
                                        env={**w.env, **s3.env, **env}, stderr=subprocess.PIPE)

    def write(self, name, data):
        path = self.output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def end(self):
        os.close(self.pipe)
        _, said = self.process.communicate(timeout=90)
        assert self.process.returncode == 0, said
        return said.decode()


class Reader:
    """download.py for a pod, in a directory of the test that pods share; `holds` as its program does then."""

    def __init__(self, w, s3, pod, *data, **env):
        self.top, self.message, self.pod = w.dir / "shared", w.dir / f"message-{pod}", pod
        (self.top / "runs").mkdir(parents=True, exist_ok=True)
        text = program(("s3.py", "download.py"), {"/dlrun/s3/s3": self.top, "/dev/termination-log": self.message})
        self.process = subprocess.Popen(["python3", "-ESc", text, "shared", pod, "data/set", *map(str, data)], env={**w.env, **s3.env, **env},
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def end(self, code=0):
        said = self.process.communicate(timeout=120)[0].decode()
        assert self.process.returncode == code, said
        return said

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # Its children have the lock, too, until they have ended.
        with open(self.top / "runs" / self.pod / "state/lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)

    def holds(self):
        state = self.top / "runs" / self.pod / "state"
        lock = open(state / "lock")
        fcntl.flock(lock, fcntl.LOCK_SH)
        (state / "started").touch()
        return lock

    def files(self, n=0):
        top = self.top / "runs" / self.pod / str(n)
        return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def listed(w, s3):
    lines = good(tool(w, s3, "list", f"s3://{s3.bucket}/runs/r1/")).out.splitlines()
    return {path.removeprefix("runs/r1/"): int(size) for size, _, path in (line.partition(" ") for line in lines)}


def test_results_of_a_pod_are_there(w):
    """What is closed comes while the program runs, the rest behind its end; TERM changes nothing of that."""
    big = random.Random(5).randbytes(20 << 20)
    with S3Server(w.dir) as s3:
        pod = Pod(w, s3)
        pod.write("model/a b+ü.pt", b"m" * 1000)
        pod.write("passing", b"x")
        pod.write(".dlrun-collected/rank-0", b"a note")
        os.symlink("/etc/passwd", pod.output / "link")
        wait_for(lambda: listed(w, s3) == {"model/a b+ü.pt": 1000, "passing": 1}, "what is closed", 60)
        (pod.output / "passing").unlink()
        pod.write("big", big)
        pod.write("empty", b"")
        pod.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert pod.process.poll() is None
        pod.write("last", b"written at TERM")
        said = pod.end()
        assert listed(w, s3) == {"model/a b+ü.pt": 1000, "big": len(big), "empty": 0, "last": 15}, (listed(w, s3), said)
        assert not pod.message.exists() and s3.secret not in said
        got = subprocess.run([Path(w.dlrun).parent / "tests/real/s3_tool", "get", f"s3://{s3.bucket}/runs/r1/big"],
                             env={**w.env, **s3.env}, capture_output=True, check=True)
        assert got.stdout == big


def test_results_come_over_bad_connections(w):
    with S3Server(w.dir) as s3:
        cutter = Cutter(s3, 12 << 20)
        pod = Pod(w, s3, AWS_ENDPOINT_URL_S3=cutter.endpoint)
        for i in range(30):
            pod.write(f"d{i % 3}/f{i}", random.Random(i).randbytes(i * 50000))
        pod.write("big", random.Random(5).randbytes(20 << 20))
        pod.end()
        assert listed(w, s3) == {**{f"d{i % 3}/f{i}": i * 50000 for i in range(30)}, "big": 20 << 20}
        cutter.close()


def test_responses_that_are_broken(w):
    """More of them than one try bears; a file that was removed is removed there, too."""
    seen = []

    def spoil(request):
        method = request.split(b" ")[0]
        seen.append(method)
        if seen.count(method) > 7:
            return None
        return b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc" if method == b"PUT" else b"nonsense\r\n"

    with S3Server(w.dir) as s3:
        cutter = Cutter(s3, 1 << 20, spoil)
        # Secrets that were made of files end with a newline.
        pod = Pod(w, s3, AWS_ENDPOINT_URL_S3=cutter.endpoint, AWS_SECRET_ACCESS_KEY=s3.secret + "\n")
        pod.write("stays", b"12")
        pod.write("passing", b"x")
        wait_for(lambda: listed(w, s3) == {"stays": 2, "passing": 1}, "both files", 90)
        (pod.output / "passing").unlink()
        wait_for(lambda: listed(w, s3) == {"stays": 2}, "the removal", 90)
        pod.end()
        assert not pod.message.exists() and seen.count(b"DELETE") == 8, seen
        cutter.close()


def test_a_part_that_fails_costs_no_other(w):
    """More failures than one try bears: what came of the file stays."""
    seen = []

    def spoil(request):
        number = request.partition(b"partNumber=")[2][:1]
        seen.append(number)
        return b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n" if number == b"2" and seen.count(number) < 8 else None

    with S3Server(w.dir) as s3:
        cutter = Cutter(s3, 1 << 30, spoil)
        pod = Pod(w, s3, seconds=600, AWS_ENDPOINT_URL_S3=cutter.endpoint)
        pod.write("big", random.Random(5).randbytes(20 << 20))
        pod.end()
        assert listed(w, s3) == {"big": 20 << 20} and not pod.message.exists()
        assert [seen.count(n) for n in (b"1", b"2", b"3")] == [1, 8, 1], seen
        cutter.close()


def test_results_that_cannot_be_sent_are_said_to_be_lost(w):
    """At once where no retry mends it, else when the time is over."""
    with S3Server(w.dir) as s3:
        for env, want in (({"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch"), ({"AWS_ACCESS_KEY_ID": ""}, "no keys for S3"),
                          ({"bucket": "no-such-bucket"}, "NoSuchBucket"), ({"AWS_ACCESS_KEY_ID": "AKIANONE"}, "InvalidAccessKeyId"),
                          ({"AWS_SESSION_TOKEN": s3.secret + "\nx"}, "not plain text")):
            pod = Pod(w, s3, seconds=3600, **env)
            for i in range(200):
                pod.write(f"a{i}", b"1")
            assert s3.secret not in pod.end()
            message = pod.message.read_text()
            assert want in message and "no retry mends" in message and s3.secret not in message, message
        pod = Pod(w, s3, seconds=1, AWS_ENDPOINT_URL_S3="http://127.0.0.1:1")
        pod.end()
        assert "refused" in pod.message.read_text() and "retry" not in pod.message.read_text(), pod.message.read_text()


def test_a_file_that_is_refused_for_its_name(w):
    """The others are there, and the pod ends at once."""
    name = "deep/" + "/".join(["x" * 200] * 6) + "/refused"
    refusal = b"<Error><Code>InvalidURI</Code><Message>no such name</Message></Error>"

    def spoil(request):
        if b"/refused " in request.split(b"\r\n")[0] and request.startswith(b"PUT"):
            return b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s" % (len(refusal), refusal)
        return None

    with S3Server(w.dir) as s3:
        cutter = Cutter(s3, 1 << 30, spoil)
        pod = Pod(w, s3, seconds=3600, AWS_ENDPOINT_URL_S3=cutter.endpoint)
        for path in ("a", "b", name):
            pod.write(path, b"1")
        pod.end()
        message = pod.message.read_text()
        assert "1 of 3 files are missing or old: 'deep/" in message and "InvalidURI: no such name, which no retry mends" in message, message
        assert listed(w, s3) == {"a": 1, "b": 1}
        cutter.close()


SETS = {**{name: name.encode() for name in NAMES}, "empty": b"", "dir/marker/": b"", "big": random.Random(1).randbytes(40 << 20),
        **{f"many/{i}": b"%d" % i for i in range(60)}}
TREE = {name: data for name, data in SETS.items() if not name.endswith("/")}


def gets(s3, path=""):
    """How many objects, or ranges of one, were fetched."""
    return len(re.findall(rf"GET /{s3.bucket}/[^?@ ]*{path}[^?@ ]* HTTP", s3.log.read_text()))


def test_data_of_a_pod(w):
    """All names, resumed after a kill, and shared with the next pod."""
    with S3Server(w.dir) as s3:
        fill(w, s3, "sets/a", SETS)
        place = f"s3://{s3.bucket}/sets/a"
        reader = Reader(w, s3, "first", place, 0)
        wait_for(lambda: any(p.stat().st_size for p in reader.top.rglob("*.got")), "a part of the large object", 60)
        reader.kill()
        came = sum(len(p.read_text().split()) for p in reader.top.rglob("*.got"))
        wait_for(lambda: gets(s3, "/big") == 2, "the end of what was requested", 60)
        reader = Reader(w, s3, "first", place, 100 << 20)
        reader.end()
        assert reader.files() == TREE and gets(s3, "/big") == 4 - came, came
        before = gets(s3)
        second = Reader(w, s3, "second", place, 100 << 20)
        assert "0 of them" in second.end()
        assert second.files() == TREE and gets(s3) == before


def test_pods_that_begin_at_once_fetch_each_object_once(w):
    with S3Server(w.dir) as s3:
        fill(w, s3, "sets/a", SETS)
        readers = [Reader(w, s3, f"pod-{i}", f"s3://{s3.bucket}/sets/a", 100 << 20) for i in range(3)]
        for reader in readers:
            reader.end()
            assert reader.files() == TREE
        # The empty one is not, and the large one comes in two pieces.
        assert gets(s3) == len(TREE), gets(s3)


def test_the_cache_keeps_what_pods_read(w):
    def put(n):
        files = {name: random.Random(f"{name} {n}").randbytes(1 << 20) for name in ("a", "b/c", "d")}
        fill(w, s3, "sets", files)
        return files

    with S3Server(w.dir) as s3:
        place = f"s3://{s3.bucket}/sets"
        first = put(1)
        one = Reader(w, s3, "one", place, 4 << 20)
        one.end()
        lock = one.holds()
        second = put(2)
        two = Reader(w, s3, "two", place, 4 << 20)
        assert "2.0 MiB too small" in two.end(1) and "2.0 MiB too small" in two.message.read_text()
        assert one.files() == first
        lock.close()
        two = Reader(w, s3, "two", place, 4 << 20)
        two.end()
        assert two.files() == second
        used = sum(p.stat().st_size for p in two.top.glob("*/objects/*/*"))
        assert used <= 4 << 20, used
        assert not (two.top / "runs/one").exists()
        assert "which is more than cache: 2.0 MiB" in Reader(w, s3, "three", place, 2 << 20).end(1)


def test_a_pod_that_is_killed_while_it_fetches(w):
    """The next one has its room, unlike that of one whose program is about to begin."""
    asked, go = threading.Event(), threading.Event()

    def spoil(request):
        if b"/sets/a " in request and not go.is_set():
            asked.set()
            go.wait(120)

    with S3Server(w.dir) as s3:
        cutter = Cutter(s3, 1 << 40, spoil)
        place, env = f"s3://{s3.bucket}/sets", {"AWS_ENDPOINT_URL_S3": cutter.endpoint}
        fill(w, s3, "sets", {"a": random.Random(1).randbytes(2 << 20)})
        killed = Reader(w, s3, "killed", place, 3 << 20, **env)
        wait_for(asked.is_set, "a request", 60)
        killed.kill()
        go.set()
        files = {"a": random.Random(2).randbytes(2 << 20)}
        fill(w, s3, "sets", files)
        second = Reader(w, s3, "second", place, 3 << 20, **env)
        second.end()
        assert second.files() == files and not (second.top / "runs/killed").exists()
        fill(w, s3, "sets", {"a": random.Random(3).randbytes(2 << 20)})
        assert "1.0 MiB too small" in Reader(w, s3, "third", place, 3 << 20, **env).end(1)
        second.holds().close()
        fourth = Reader(w, s3, "fourth", place, 3 << 20, **env)
        fourth.end()
        assert [p.name for p in (fourth.top / "runs").iterdir()] == ["fourth"]
        cutter.close()


def test_what_is_left_of_others(w):
    """What can be removed is; what cannot fails nobody."""
    with S3Server(w.dir) as s3:
        fill(w, s3, "sets", {"a": b"1"})
        runs = w.dir / "shared/runs"
        (runs / "old/0").mkdir(parents=True)
        (runs / "old/0/a").touch()
        (runs / "new/0").mkdir(parents=True)
        os.utime(runs / "old", (0, 0))
        (runs / "file").touch()
        (runs / "odd/state/lock").mkdir(parents=True)
        pod = Reader(w, s3, "pod", f"s3://{s3.bucket}/sets", 0)
        pod.end()
        assert pod.files() == {"a": b"1"} and sorted(p.name for p in runs.iterdir()) == ["file", "new", "odd", "pod"], list(runs.iterdir())


def test_data_that_cannot_be_fetched(w):
    with S3Server(w.dir) as s3:
        fill(w, s3, "sets", {"a": b"1"})
        for env, place, want in (({"AWS_SECRET_ACCESS_KEY": "wrong"}, f"s3://{s3.bucket}/sets", "SignatureDoesNotMatch"),
                                 ({"AWS_ACCESS_KEY_ID": ""}, f"s3://{s3.bucket}/sets", "no keys for S3"),
                                 ({}, "s3://not-there/sets", "NoSuchBucket"), ({}, f"s3://{s3.bucket}/set", "has no objects"),
                                 ({"AWS_ENDPOINT_URL_S3": "127.0.0.1:9"}, f"s3://{s3.bucket}/set", "is not a URL")):
            reader = Reader(w, s3, "pod", place, 0, **env)
            said = reader.end(1)
            assert want in said and want in reader.message.read_text() and s3.secret not in said, said


def test_lists_that_lead_elsewhere(w):
    """What a list says never makes, changes or removes a file that is not of the data."""
    whole = hashlib.sha256(b"x" * 9).hexdigest()
    other = w.dir / "shared/other"
    other.mkdir(parents=True)
    (other / "a").write_bytes(b"theirs")
    out = os.path.relpath(other, w.dir / "shared/runs/pod/0")
    with S3Server(w.dir) as s3:
        for i, lines in enumerate((f"l {out} up\nf 644 9 {whole} up/a", f"l {out} up\nf 644 0 {whole} up/b", f"f 644 9 {'../' * 20}{'a' * 4} a",
                                   f"f 644 -1 {whole} a", f"f 644 9 {whole} ../a", f"f 644 9 {whole} a/../../b", f"l {out}/b a\nf 644 0 {whole} a")):
            version = f"d-{i:016x}"
            fill(w, s3, "sets", {f"a@{version}/up/a": b"x" * 9, f"a@{version}/a": b"x" * 9, f"a@{version}.list": f"{lines}\nend\n".encode()})
            said = Reader(w, s3, "pod", f"s3://{s3.bucket}/sets/a@{version}", 0).end(1)
            assert "no version" not in said and "Traceback" not in said, said
            assert {p.name: p.read_bytes() for p in other.iterdir()} == {"a": b"theirs"}, lines
        assert not (w.dir / "shared/runs/pod").exists()


def test_data_come_over_bad_connections(w):
    """Too busy, cut, another object than was listed, other bytes than it has: whole in the end."""
    bad = [b"HTTP/1.1 503 Slow Down\r\nContent-Length: 34\r\n\r\n<Error><Code>SlowDown</Code></Error>"[:-2], b"nonsense\r\n",
           b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nxyz",
           b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"]

    def spoil(request):
        return bad.pop(0) if b"/sets/a " in request and bad else None

    with S3Server(w.dir) as s3:
        files = {"a": b"abc", "b": random.Random(2).randbytes(3 << 20)}
        fill(w, s3, "sets", files)
        cutter = Cutter(s3, 4 << 20, spoil)
        reader = Reader(w, s3, "pod", f"s3://{s3.bucket}/sets", 0, AWS_ENDPOINT_URL_S3=cutter.endpoint)
        assert "it is listed again" in reader.end()
        assert reader.files() == files and not bad
        cutter.close()


if __name__ == "__main__":
    main()
