#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Are the fakes what they say? Proxy, scripted server, registry, token server, certificates.

    tests/fake/test_fakes.py [NAME…]

CRANE names the crane command where it is not in the tests' cache or on PATH.
"""

import base64
import collections
import contextlib
import gzip
import http.client
import inspect
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "real"))

from certs import Certs
from faultproxy import FaultProxy, ProxyProcess
from registry import OCI_CONFIG, OCI_LAYER, OCI_MANIFEST, Basic, Bearer, Registry, compact, digest_of, layer
from scripted import Answer, ScriptedServer, that_hold
from stopwatch import running_time
from tokens import TokenServer

RTT_S = 0.05
SILENCE_S = 1.0
LATEST_S = 20  # What must come may be that late.


class Skip(Exception):
    """What the test needs is not there."""


# --- helpers


@contextlib.contextmanager
def echo_server(received=None):
    """Sends back what it gets; `received` collects (bytes, how it ended) per connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def serve(sock):
        data, end = b"", "eof"
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock:
            try:
                while piece := sock.recv(1 << 18):
                    if received is not None:
                        data += piece
                    sock.sendall(piece)
            except OSError:
                end = "reset"
        if received is not None:
            received.append((data, end))

    def accept():
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(sock,), daemon=True))
            threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        listener.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive(), "a connection to the server was left open"


def connect(proxy, timeout=10):
    return socket.create_connection((proxy.host, proxy.port), timeout)


def exactly(sock, size):
    data = b""
    while len(data) < size:
        piece = sock.recv(1 << 20)
        assert piece, f"ended after {len(data)} of {size} bytes"
        data += piece
    return data


def to_the_end(sock, whole=None):
    """(bytes, "eof" | "reset" | "silence"); silence is short once whole(bytes), and may be a long one before."""
    data = b""
    try:
        while True:
            sock.settimeout(SILENCE_S if whole and whole(data) else LATEST_S)
            piece = sock.recv(1 << 20)
            if not piece:
                return data, "eof"
            data += piece
    except TimeoutError:
        return data, "silence"
    except OSError:
        return data, "reset"


def until(condition, what, seconds=LATEST_S):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not happen: {what}"
        time.sleep(0.002)


def fetch(method, url, body=None, headers=None, context=None):
    """(status, headers, body) by urllib, redirects not followed."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_):
            return None

    handlers = [Stay(), urllib.request.ProxyHandler({})]
    if context:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(url, body, {"Content-Type": "application/octet-stream", **(headers or {})},
                                     method=method)
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code, answer.headers, answer.read()


def codes(body):
    return [error["code"] for error in json.loads(body)["errors"]]


def basic(user, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def session(registry, name="a/b", headers=None, query=""):
    """POST for an upload; the absolute Location."""
    url = f"{registry.url}/v2/{name}/blobs/uploads/"
    status, answer, _ = fetch("POST", url + query, b"", headers)
    assert status == 202, status
    return urllib.parse.urljoin(url, answer["Location"])


def and_digest(location, digest):
    return f"{location}{'&' if '?' in location else '?'}digest={digest}"


def upload(registry, data, name="a/b", headers=None, digest=None):
    return fetch("PUT", and_digest(session(registry, name, headers), digest or digest_of(data)), data, headers)


def image(layers):
    """(configuration, manifest) of an image over these gzip layers."""
    config = compact({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {
        "type": "layers", "diff_ids": [digest_of(gzip.decompress(each)) for each in layers]}})
    describe = lambda media_type, data: {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}
    return config, compact({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": describe(OCI_CONFIG, config),
                            "layers": [describe(OCI_LAYER, each) for each in layers]})


def put_manifest(registry, data, name="a/b", reference="t", headers=None):
    return fetch("PUT", f"{registry.url}/v2/{name}/manifests/{reference}", data,
                 {"Content-Type": OCI_MANIFEST, **(headers or {})})


def push(registry, name="a/b", tag="t", content=b"hello", headers=None):
    """A whole push by urllib; the digest of the manifest."""
    data = layer({"app/file": content})
    config, manifest = image([data])
    for blob in (data, config):
        status, answer, body = upload(registry, blob, name, headers)
        assert status == 201 and answer["Docker-Content-Digest"] == digest_of(blob), (status, body)
    status, answer, body = put_manifest(registry, manifest, name, tag, headers)
    assert status == 201 and answer["Docker-Content-Digest"] == digest_of(manifest), (status, body)
    registry.check_image(name, tag)
    return digest_of(manifest)


# --- the proxy


def round_trips(sock, count=10):
    found = []
    for _ in range(count):
        begin = time.monotonic()
        sock.sendall(b"x" * 100)
        exactly(sock, 100)
        found.append(time.monotonic() - begin)
    return sorted(found)


def test_proxy_passes_everything_and_counts():
    with echo_server() as address, FaultProxy(address) as proxy, connect(proxy) as sock:
        data = os.urandom(3 << 20)
        sender = threading.Thread(target=sock.sendall, args=(data,))
        sender.start()
        assert exactly(sock, len(data)) == data
        sender.join()
        with connect(proxy) as second:
            second.sendall(b"abc")
            assert exactly(second, 3) == b"abc"
        assert (proxy.accepted, proxy.up, proxy.down) == (2, len(data) + 3, len(data) + 3), proxy.counts()
        assert proxy.connections[1]["up"] == 3


def soonest(trips, least_s, most_s, count=400):
    """Some of trips() is over within [least_s, most_s): a busy machine makes each late by chance, and none early."""
    best = math.inf
    for _ in range(count):
        took = trips()
        assert took >= least_s, (took, least_s)
        best = min(best, took)
        if best < most_s:
            return
    raise AssertionError(f"{best:.4f} s at best, {most_s} expected")


@contextlib.contextmanager
def first_in_line():
    """Before all that is busy on this machine, where that is allowed; also what is started meanwhile."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_proxy_delay_is_exact():
    """Not one trip by chance, as where a proxy looks every few milliseconds only: enough of some trips in a row, none of them early."""
    enough, last = 6, collections.deque(maxlen=40)
    with first_in_line(), echo_server() as address, ProxyProcess(address, delay=RTT_S / 2) as proxy, connect(proxy) as sock:
        for _ in range(1200):
            time.sleep(0.01 * random.random())  # At no fixed time after what it has last done.
            took = round_trips(sock, 1)[0]
            assert took >= RTT_S, took
            last.append(took)
            if sum(each < RTT_S + 0.002 for each in last) >= enough:
                return
    raise AssertionError(f"{sorted(last)} s, {RTT_S} expected")


def test_proxy_delay_by_direction_and_at_run_time():
    with echo_server() as address, FaultProxy(address, delay=(0.03, 0)) as proxy, connect(proxy) as sock:
        trip = lambda: round_trips(sock, 1)[0]
        soonest(trip, 0.03, 0.06)
        proxy.set(delay=(0, 0.06))
        soonest(trip, 0.06, 0.09)
        proxy.set(delay=0)
        soonest(trip, 0, 0.03)


def test_proxy_delay_is_not_serialisation():
    pieces, size = 50, 1 << 18
    with echo_server() as address, FaultProxy(address, delay=0.1) as proxy, connect(proxy) as sock:

        def trip():
            begin = time.monotonic()
            sender = threading.Thread(target=lambda: [sock.sendall(b"y" * size) for _ in range(pieces)])
            sender.start()
            exactly(sock, pieces * size)
            sender.join()
            return time.monotonic() - begin

        soonest(trip, 0.2, 1.5, 5)


def test_proxy_connect_delay():
    with echo_server() as address, FaultProxy(address, connect_delay=0.1) as proxy:

        def first_trip():
            begin = time.monotonic()
            with connect(proxy) as sock:
                sock.sendall(b"x")
                exactly(sock, 1)
                took = time.monotonic() - begin
                soonest(lambda: round_trips(sock, 1)[0], 0, 0.05)
            return took

        soonest(first_trip, 0.1, 0.15)


def test_proxy_rate():
    with echo_server() as address, FaultProxy(address, rate=(1e6, None)) as proxy, connect(proxy) as sock:

        def trip():
            begin = time.monotonic()
            sock.sendall(b"z" * 200_000)
            exactly(sock, 200_000)
            return time.monotonic() - begin

        soonest(trip, 0.19, 0.4)


def sent_and_got(proxy, data):
    try:
        with connect(proxy) as sock:
            with contextlib.suppress(OSError):
                sock.sendall(data)
            return to_the_end(sock)
    except ConnectionResetError:
        return b"", "reset"


def test_proxy_cuts_at_the_byte():
    """The side gets exactly k bytes, then the end; k = all of them too."""
    for how, end in (("fin", "eof"), ("rst", "reset")):
        for side in ("request", "response"):
            for after in (0, 1, 7, 99, 100):
                received = []
                with echo_server(received) as address, FaultProxy(address) as proxy:
                    fault = proxy.fault(how, side, after, connection=1)
                    got = sent_and_got(proxy, b"q" * 100)
                    assert got[1] == end and fault.fired == 1, (how, side, after, got)
                    if side == "response":
                        assert len(got[0]) == after, (how, after, got)
                    if (side, after) == ("request", 0):
                        continue
                    until(lambda: received, "the server saw the end")
                wanted = after if side == "request" else 100
                # a reset may overtake what the server has not read
                assert len(received[0][0]) == wanted or (how == "rst" and len(received[0][0]) < wanted), received


def test_proxy_faults_only_the_wanted_connection_and_exchange():
    with echo_server() as address, FaultProxy(address) as proxy:
        proxy.fault("fin", "request", 0, connection=2)
        flip = proxy.fault("flip", "response", 1, exchange=3, bit=2)
        with connect(proxy) as first:
            round_trips(first, 2)
            with connect(proxy) as second:
                assert to_the_end(second) == (b"", "eof")
            first.sendall(b"abc")
            assert exactly(first, 3) == b"afc" and flip.fired == 1
            first.sendall(b"abc")
            assert exactly(first, 3) == b"abc" and proxy.exchanges == 4


def test_proxy_every_exchange_and_times():
    with echo_server() as address, FaultProxy(address) as proxy, connect(proxy) as sock:
        fault = proxy.fault("flip", "request", 0, exchange=0, times=2)
        got = []
        for _ in range(3):
            sock.sendall(b"abc")
            got.append(exactly(sock, 3))
        assert got == [b"`bc", b"`bc", b"abc"] and fault.fired == 2, got


def test_proxy_swallows_a_reply():
    received = []
    with echo_server(received) as address, FaultProxy(address) as proxy:
        proxy.swallow(2)
        with connect(proxy) as sock:
            round_trips(sock, 1)
            sock.sendall(b"second")
            assert to_the_end(sock) == (b"", "eof")
        with connect(proxy) as sock:
            round_trips(sock, 1)
    assert received[0][0].endswith(b"second")


def test_proxy_stalls_and_holes():
    for fault, passed in ((("stall", "response", 2), b"ab"), (("stall", "request", 1), b""), (("hole",), b"")):
        with echo_server() as address, FaultProxy(address) as proxy:
            proxy.fault(*fault)
            with connect(proxy) as sock:
                sock.sendall(b"abc")
                until(lambda: [c["state"] for c in proxy.connections] == ["stalled"], f"{fault} has struck")
                assert to_the_end(sock, passed.__eq__) == (passed, "silence"), fault
                assert proxy.connections[0]["state"] == "stalled"


def test_proxy_stall_is_kept_while_others_go_on():
    with echo_server() as address, FaultProxy(address, delay=0.001) as proxy:
        proxy.fault("stall", "request", 10, connection=1)
        with connect(proxy) as stalled, connect(proxy) as fine:
            stalled.sendall(b"x" * 100)
            round_trips(fine, 5)
            until(lambda: proxy.connections[0]["state"] == "stalled", "it is stalled")
            assert to_the_end(stalled, b"".__eq__) == (b"", "silence")
            assert proxy.connections[0]["up"] == 10 and proxy.connections[1]["down"] == 500


def test_proxy_delayed_cut_keeps_its_place():
    with echo_server() as address, FaultProxy(address, delay=0.03) as proxy, connect(proxy) as sock:
        proxy.fault("rst", "response", 50)
        begin = time.monotonic()
        sock.sendall(b"x" * 100)
        assert to_the_end(sock) == (b"x" * 50, "reset")
        assert time.monotonic() - begin >= 0.06


def test_proxy_refuses_and_comes_back():
    with echo_server() as address, FaultProxy(address) as proxy, connect(proxy) as old:
        round_trips(old, 1)
        proxy.set(refuse=True)
        try:
            connect(proxy).close()
            raise AssertionError("it was accepted")
        except ConnectionRefusedError:
            pass
        round_trips(old, 1)
        proxy.set(refuse=False)
        with connect(proxy) as sock:
            round_trips(sock, 1)
        proxy.cut_all()
        assert to_the_end(old)[1] == "reset"


def test_proxy_half_close_passes():
    with echo_server() as address, FaultProxy(address, delay=0.01) as proxy, connect(proxy) as sock:
        sock.sendall(b"abc")
        sock.shutdown(socket.SHUT_WR)
        assert to_the_end(sock) == (b"abc", "eof")
        until(lambda: proxy.connections[0]["state"] == "closed", "the connection is closed")


def test_proxy_server_that_is_down_or_resets():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with FaultProxy(address) as proxy:
        assert sent_and_got(proxy, b"x") == (b"", "reset")
    with ScriptedServer() as server, FaultProxy(server.address, delay=0.02) as proxy, connect(proxy) as sock:
        server.rule("", Answer(how="rst"))
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert to_the_end(sock) == (b"", "reset")


def test_proxy_process_obeys():
    with echo_server() as address, ProxyProcess(address) as proxy:
        proxy.fault("fin", "response", 1, connection=1)
        with connect(proxy) as sock:
            sock.sendall(b"abc")
            assert to_the_end(sock) == (b"a", "eof")
        proxy.clear()
        with connect(proxy) as sock:
            round_trips(sock, 1)
        counts = proxy.counts()
        assert counts == {"accepted": 2, "exchanges": 2, "up": 103, "down": 101}, counts
        try:
            proxy.set(nonsense=1)
            raise AssertionError("it was taken")
        except ValueError:
            pass


def test_proxy_ends_at_once_whatever_is_open():
    with echo_server() as address:

        def life():
            begin = time.monotonic()
            with FaultProxy(address, delay=10) as proxy:
                proxy.fault("stall", "request", 1, connection=1)
                socks = [connect(proxy) for _ in range(5)]
                for sock in socks:
                    sock.sendall(b"abc")
            for sock in socks:
                sock.close()
            return time.monotonic() - begin

        soonest(life, 0, 2, 5)


# --- the scripted server


def raw_exchange(server, whole, request=b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
    with socket.create_connection(("127.0.0.1", server.port), LATEST_S) as sock:
        sock.sendall(request)
        return to_the_end(sock, whole)


def one_head(data):
    return b"\r\n\r\n" in data


def test_scripted_ways_to_answer():
    ways = {
        "plain": ("silence", lambda b: b.endswith(b"Content-Length: 2\r\n\r\nhi")),
        "chunked": ("silence", lambda b: b.endswith(b"chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")),
        "close": ("eof", lambda b: b.endswith(b"\r\n\r\nhi") and b"Length" not in b),
        "short": ("eof", lambda b: b"Content-Length: 1002\r\n" in b and b.endswith(b"\r\n\r\nhi")),
        "hang-body": ("silence", lambda b: b"Content-Length: 1002\r\n" in b and b.endswith(b"\r\n\r\nhi")),
        "cut-chunks": ("eof", lambda b: b.endswith(b"2\r\nhi\r\n")),
        "drip": ("silence", lambda b: b.endswith(b"\r\n\r\nhi")),
        "raw": ("eof", lambda b: b == b"hi"),
        "hang": ("silence", lambda b: b == b""),
        "fin": ("eof", lambda b: b == b""),
        "rst": ("reset", lambda b: b == b""),
    }
    with ScriptedServer() as server:
        for how, (end, right) in ways.items():
            server.drop_rules()
            server.rule("GET /", Answer(body="hi", how=how))
            data, ended = raw_exchange(server, right if end == "silence" else None)
            assert ended == end and right(data), (how, ended, data)
        server.rule("GET /", Answer(body=b"ab", how="fill", length=300_001))
        data, _ = raw_exchange(server, lambda b: len(b.partition(b"\r\n\r\n")[2]) >= 300_001)
        assert len(data.partition(b"\r\n\r\n")[2]) == 300_001
        server.rule("GET /", Answer(interim=(100, (103, {"Link": "x"})), body="hi"))
        data, _ = raw_exchange(server, lambda b: b.endswith(b"\r\n\r\nhi"))
        assert data.startswith(b"HTTP/1.1 100 Continue\r\n\r\n"
                               b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK")


def test_scripted_endless_answers_end_with_the_client_or_the_server():
    with ScriptedServer() as server:
        for how in ("endless", "endless-head"):
            server.rule("GET /", Answer(body=b"x" * 100, how=how))
            for _ in range(2):
                sock = socket.create_connection(("127.0.0.1", server.port), 10)
                sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                exactly(sock, 1 << 20)
                if how == "endless":
                    sock.close()


def test_scripted_rules():
    with ScriptedServer() as server:
        acted = []
        second = server.rule("GET /a", 503, nth=2)
        server.rule("GET /b", Answer(200, body="b"), nth=range(2, 4))
        server.rule(lambda r: r.path == "/c", lambda r: acted.append(r.path))
        server.rule("GET /d", lambda request, answer: Answer(answer.status + 6), stage="after")
        get = lambda path: fetch("GET", server.url + path)[0]
        assert [get("/a") for _ in range(3)] == [404, 503, 404] and (second.hits, second.fired) == (3, 1)
        assert [get("/b") for _ in range(4)] == [404, 200, 200, 404]
        assert get("/c") == 404 and acted == ["/c"]
        assert get("/d") == 410
        assert server.count("GET /a") == 3 and server.lines()[1] == "GET /a 503"


def test_scripted_answers_before_the_body():
    with ScriptedServer() as server:
        server.rule("PUT", 413, stage="head")
        data, end = raw_exchange(server, one_head, b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert data.startswith(b"HTTP/1.1 413 ") and end in ("eof", "silence"), (data, end)
        assert server.requests[0].length == 0


def test_scripted_records_and_forgets():
    with ScriptedServer() as server:
        fetch("POST", server.url + "/x%20y?a=1&b", b"z" * 100, {"X-Key": "hunter2"})
        fetch("POST", server.url + "/big", b"z" * 100_000)
        small, big = server.requests
        server.wait(count=2, done=True)
        assert (small.path, small.target, small.arg("a"), small.arg("b")) == ("/x y", "/x%20y?a=1&b", "1", "")
        assert small.body == b"z" * 100 and small.length == 100 and small.complete
        assert big.body is None and big.length == 100_000
        assert small.connection != big.connection and server.connections == 2 and small.done >= small.time
        assert that_hold(server.requests, "hunter2") == [small]
        server.clear()
        assert server.requests == []


def test_scripted_refuses_what_is_unclear():
    bad = (b"GET / HTTP/1.1\r\n\r\n", b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
           b"PUT / HTTP/1.1\r\nHost: x\r\n\r\n",
           b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
           b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
           b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
           b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n",
           b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000)
    with ScriptedServer() as server:
        for count, request in enumerate(bad, 1):
            data, _ = raw_exchange(server, one_head, request)
            assert data.startswith(b"HTTP/1.1 400 "), (request[:100], data)
            until(lambda: len(server.violations) == count, "the violation is noted")


def test_scripted_keeps_connections_and_says_continue():
    with ScriptedServer() as server:
        server.rule("", Answer(200, body="ok"))
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        for _ in range(3):
            connection.request("PUT", "/", b"body")
            assert connection.getresponse().read() == b"ok"
        connection.close()
        assert server.connections == 1 and {r.connection for r in server.requests} == {1}
        expects = b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"
        assert raw_exchange(server, one_head, expects)[0] == b"HTTP/1.1 100 Continue\r\n\r\n"
        server.continues = False
        assert raw_exchange(server, b"".__eq__, expects) == (b"", "silence")


def test_scripted_chunked_request_and_restart():
    with ScriptedServer() as server:
        data, _ = raw_exchange(server, one_head, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                                                 b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n")
        assert data.startswith(b"HTTP/1.1 404") and server.requests[0].body == b"abcde"
        with socket.create_connection(("127.0.0.1", server.port), 10) as sock:
            sock.sendall(b"GET /2 HTTP/1.1\r\nHost: x\r\n\r\n")
            sock.recv(10)
            server.drop_connections()
            assert to_the_end(sock)[1] in ("eof", "reset")


# --- the registry


def test_registry_takes_a_push():
    with Registry() as registry:
        digest = push(registry)
        assert registry.count() == 5 and not registry.violations and registry.sessions() == 0
        for reference in ("t", digest):
            status, headers, body = fetch("GET", f"{registry.url}/v2/a/b/manifests/{reference}")
            assert status == 200 and digest_of(body) == headers["Docker-Content-Digest"] == digest
            assert headers["Content-Type"] == OCI_MANIFEST
            status, headers, empty = fetch("HEAD", f"{registry.url}/v2/a/b/manifests/{reference}")
            assert (status, empty, headers["Content-Length"]) == (200, b"", str(len(body)))
        assert json.loads(fetch("GET", registry.url + "/v2/a/b/tags/list")[2]) == {"name": "a/b", "tags": ["t"]}
        assert fetch("GET", registry.url + "/v2/")[0] == 200


def test_registry_refuses_what_is_wrong():
    with Registry() as registry:
        status, _, body = upload(registry, b"data", digest=digest_of(b"other"))
        assert (status, codes(body)) == (400, ["DIGEST_INVALID"]) and registry.sessions() == 0
        location = session(registry)
        assert fetch("PUT", location, b"data")[0] == 400
        stale = location
        fetch("PATCH", location, b"da")
        status, _, body = fetch("PUT", and_digest(stale, digest_of(b"data")), b"data")
        assert (status, codes(body)) == (400, ["BLOB_UPLOAD_INVALID"]), body
        registry.lose_sessions()
        status, _, body = fetch("PATCH", stale, b"da")
        assert (status, codes(body)) == (404, ["BLOB_UPLOAD_UNKNOWN"])
        config, manifest = image([layer({"a": b"b"})])
        upload(registry, config)
        status, _, body = put_manifest(registry, manifest)
        missing = [error["detail"]["digest"] for error in json.loads(body)["errors"]]
        assert (status, codes(body)) == (404, ["MANIFEST_BLOB_UNKNOWN"])
        assert missing == [json.loads(manifest)["layers"][0]["digest"]]
        for bad in (b"<html>", b"[]", b"{}", manifest.replace(b'"schemaVersion":2', b'"schemaVersion":1')):
            status, _, body = put_manifest(registry, bad)
            assert (status, codes(body)) == (400, ["MANIFEST_INVALID"]), bad
        assert put_manifest(registry, manifest, reference=digest_of(b""))[0] == 400
        for path, code in (("a/b/blobs/" + digest_of(b""), "BLOB_UNKNOWN"), ("a/b/manifests/no", "MANIFEST_UNKNOWN"),
                           ("no/manifests/no", "NAME_UNKNOWN"), ("no/tags/list", "NAME_UNKNOWN"),
                           ("Bad/manifests/x", "NAME_INVALID")):
            status, _, body = fetch("GET", f"{registry.url}/v2/{path}")
            assert (status, codes(body)) == (404, [code]), path
        assert not registry.repo("a/b").tags


def test_registry_chunks_and_ranges():
    with Registry() as registry:
        location = session(registry)
        patch = lambda data, first: fetch("PATCH", location, data, {
            "Content-Range": f"{first}-{first + len(data) - 1}"})
        status, headers, _ = patch(b"abc", 0)
        assert (status, headers["Range"]) == (202, "0-2")
        location = headers["Location"]
        status, headers, _ = patch(b"xyz", 5)
        assert (status, headers["Range"]) == (416, "0-2")
        location = headers["Location"]
        status, headers, _ = fetch("GET", location)
        assert (status, headers["Range"]) == (204, "0-2")
        location = headers["Location"]
        location = patch(b"def", 3)[1]["Location"]
        assert fetch("PUT", and_digest(location, digest_of(b"abcdef")), b"")[0] == 201
        blob = f"{registry.url}/v2/a/b/blobs/{digest_of(b'abcdef')}"
        for field, wanted in (("bytes=0-0", (206, b"a")), ("bytes=2-", (206, b"cdef")), ("bytes=9-", (416, b""))):
            status, _, body = fetch("GET", blob, headers={"Range": field})
            assert (status, body) == wanted, field
        location = session(registry)
        assert fetch("DELETE", location)[0] == 204 and registry.sessions() == 0
        assert fetch("DELETE", blob)[0] == 202 and fetch("HEAD", blob)[0] == 404


def test_registry_switches_of_uploads():
    data = b"abcdef"
    with Registry() as registry:
        url = f"{registry.url}/v2/a/b/blobs/uploads/"
        assert fetch("POST", f"{url}?digest={digest_of(data)}", data)[0] == 202 and not registry.repo("a/b").blobs
        registry.single_post = True
        assert fetch("POST", f"{url}?digest={digest_of(b'')}", data)[0] == 400
        assert fetch("POST", f"{url}?digest={digest_of(data)}", data)[0] == 201
        for location in ("relative", "bare", "other", "absolute"):
            for state in (True, False):
                registry.location, registry.state = location, state
                blob = f"{location} {state}".encode()
                where = session(registry)
                assert ("_state" in where) == state
                assert (urllib.parse.urlsplit(where).port == registry.other.port) == (location == "other")
                status, headers, _ = fetch("PATCH", where, blob[:3])
                assert status == 202, location
                where = urllib.parse.urljoin(where, headers["Location"])
                assert fetch("PUT", and_digest(where, digest_of(blob)), blob[3:])[0] == 201, location
        assert registry.other.count("PUT") == 2
        registry.location = "http://169.254.169.254"
        assert session(registry).startswith("http://169.254.169.254/v2/a/b/blobs/uploads/")
        registry.location, registry.chunked = "absolute", False
        assert fetch("PATCH", session(registry), data)[0] == 416
        registry.chunked, registry.chunk_max = True, 3
        assert fetch("PATCH", session(registry), data)[0] == 416
        registry.chunk_max, registry.chunk_min = None, 100
        assert fetch("POST", url, b"")[1]["OCI-Chunk-Min-Length"] == "100"
        location = fetch("PATCH", session(registry), data)[1]["Location"]
        assert fetch("PATCH", location, data)[0] == 416


def test_registry_keeps_or_loses_a_cut_chunk():
    for resume, kept in ((True, 204), (False, 404)):
        with Registry(resume=resume) as registry, FaultProxy(registry.address) as proxy:
            location = session(registry)
            target = location.partition(registry.address)[2]
            head = f"PATCH {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n".encode()
            proxy.fault("fin", "request", len(head) + 100)
            with connect(proxy) as sock:
                sock.sendall(head + b"x" * 5000)
                to_the_end(sock)
            registry.wait("PATCH", done=True)
            status, headers, _ = fetch("GET", location)
            assert status == kept and (not resume or headers["Range"] == "0-99"), (status, headers)
            assert not registry.requests[1].complete


def test_registry_mounts():
    with Registry() as registry:
        registry.add_image("base", "1", layers=2)
        digest = next(iter(registry.repo("base").blobs))
        url = f"{registry.url}/v2/a/b/blobs/uploads/?mount={digest}&from="
        assert fetch("POST", url + "nowhere", b"")[0] == 202
        for status in (202, 400, 401, 403, 404, 405):
            registry.mount = status
            assert fetch("POST", url + "base", b"")[0] == status
            assert digest not in registry.repo("a/b").blobs
        registry.mount = 201
        assert fetch("POST", url + "base", b"")[0] == 201 and digest in registry.repo("a/b").blobs


def test_registry_switches_of_manifests():
    with Registry(immutable_tags=409) as registry:
        first = push(registry, content=b"1")
        again = fetch("GET", f"{registry.url}/v2/a/b/manifests/{first}")[2]
        assert put_manifest(registry, again)[0] == 201
        config, other = image([layer({"app/file": b"2"})])
        upload(registry, config), upload(registry, layer({"app/file": b"2"}))
        assert put_manifest(registry, other)[0] == 409 and registry.repo("a/b").tags["t"] == first
        registry.immutable_tags = None
        registry.digest_header["put-manifest"] = "wrong"
        assert put_manifest(registry, other)[1]["Docker-Content-Digest"] not in (digest_of(other), None)
        registry.digest_header["put-manifest"] = "missing"
        assert put_manifest(registry, other)[1]["Docker-Content-Digest"] is None
        registry.check_blobs = False
        assert put_manifest(registry, image([layer({"x": b"y"})])[1], reference="broken")[0] == 201
        try:
            registry.check_image("a/b", "broken")
        except AssertionError:
            pass
        else:
            raise Exception("a broken image was found whole")
        for switch, path in (("head_manifest", "manifests/t"), ("head_blob", f"blobs/{digest_of(config)}")):
            for status in (403, 405):
                setattr(registry, switch, status)
                assert fetch("HEAD", f"{registry.url}/v2/a/b/{path}")[0] == status
                assert fetch("GET", f"{registry.url}/v2/a/b/{path}")[0] == 200
        assert fetch("DELETE", f"{registry.url}/v2/a/b/manifests/t")[0] == 202
        assert fetch("GET", f"{registry.url}/v2/a/b/manifests/t")[0] == 404
        assert fetch("DELETE", f"{registry.url}/v2/a/b/manifests/{first}")[0] == 202


def test_registry_pages_tags():
    with Registry() as registry:
        for tag in "abcde":
            registry.add_manifest("a/b", tag, {"schemaVersion": 2, "mediaType": OCI_MANIFEST})
        status, headers, body = fetch("GET", registry.url + "/v2/a/b/tags/list?n=2")
        assert json.loads(body)["tags"] == ["a", "b"] and "last=b" in headers["Link"]
        _, headers, body = fetch("GET", registry.url + "/v2/a/b/tags/list?n=3&last=b")
        assert json.loads(body)["tags"] == ["c", "d", "e"] and headers["Link"] is None


def test_registry_garbage_ghosts_and_redirects():
    with Registry() as registry:
        registry.rule("PUT /v2/a/b/manifests", lambda request: registry.collect_garbage() and None)
        config, manifest = image([layer({"a": b"b"})])
        for blob in (config, layer({"a": b"b"})):
            assert upload(registry, blob)[0] == 201
        assert codes(put_manifest(registry, manifest)[2]) == ["MANIFEST_BLOB_UNKNOWN"] * 2
        registry.drop_rules()
        push(registry, content=b"b")
        digest = digest_of(layer({"app/file": b"b"}))
        blob = f"{registry.url}/v2/a/b/blobs/{digest}"
        registry.make_ghost("a/b", digest)
        assert fetch("HEAD", blob)[0] == 200
        try:
            assert fetch("GET", blob, headers={"Range": "bytes=0-0"})[2] == b"", "a ghost has bytes"
        except http.client.IncompleteRead as read:
            assert read.partial == b""
        assert upload(registry, layer({"app/file": b"b"}))[0] == 201
        assert digest_of(fetch("GET", blob)[2]) == digest
        registry.redirect_blobs = True
        status, headers, _ = fetch("GET", blob)
        assert status == 307 and digest_of(fetch("GET", headers["Location"])[2]) == digest


def test_registry_makes_images():
    with Registry() as registry:
        amd = registry.add_image("base", "amd", layers=30, layer_bytes=1000, files={"etc/x": b"y"})
        arm = registry.add_image("base", "arm", layers=1, platform=("linux", "arm64"))
        manifest, _ = registry.check_image("base", "amd")
        registry.check_image("base", arm)
        assert len(manifest["layers"]) == 30 and all(entry["size"] > 1000 for entry in manifest["layers"])
        registry.add_index("base", "latest", {("linux", "amd64"): amd, ("linux", "arm64", "v8"): arm})
        index = json.loads(fetch("GET", registry.url + "/v2/base/manifests/latest")[2])
        assert [e["digest"] for e in index["manifests"]] == [amd, arm]
        assert index["manifests"][1]["platform"]["variant"] == "v8"


def test_registry_with_basic():
    users = {"ann": "pa:ss wörd", "bob": "x"}
    with Registry(auth=Basic(users, allow=lambda user, name, action: user == "ann")) as registry:
        status, headers, body = fetch("GET", registry.url + "/v2/")
        assert (status, codes(body)) == (401, ["UNAUTHORIZED"])
        assert headers["WWW-Authenticate"].startswith("Basic realm=")
        assert fetch("GET", registry.url + "/v2/", headers=basic("ann", "wrong"))[0] == 401
        assert fetch("POST", registry.url + "/v2/a/blobs/uploads/", b"", basic("bob", "x"))[0] == 403
        push(registry, headers=basic("ann", "pa:ss wörd"))


# --- tokens


def token(server, *scopes, user=("u", "p"), **query):
    words = urllib.parse.urlencode([("service", "s"), *(("scope", s) for s in scopes), *query.items()])
    status, _, body = fetch("GET", f"{server.realm}?{words}", headers=basic(*user) if user else None)
    return status, json.loads(body)


def bearer(text):
    return {"Authorization": f"Bearer {text}"}


def test_tokens_push_and_expire():
    with TokenServer({"u": "p"}) as server, Registry(auth=Bearer(server)) as registry:
        status, headers, _ = fetch("POST", registry.url + "/v2/a/b/blobs/uploads/", b"")
        assert status == 401 and headers["WWW-Authenticate"] == \
            f'Bearer realm="{server.realm}",service="registry.test",scope="repository:a/b:pull,push"'
        status, headers, _ = fetch("POST", registry.url + f"/v2/a/b/blobs/uploads/?mount={digest_of(b'')}&from=c", b"")
        assert status == 401 and 'scope="repository:a/b:pull,push repository:c:pull"' in headers["WWW-Authenticate"]
        status, words = token(server, "repository:a/b:pull,push")
        assert status == 200 and words["expires_in"] == 300
        push(registry, headers=bearer(words["token"]))
        status, headers, _ = fetch("GET", registry.url + "/v2/other/tags/list", headers=bearer(words["token"]))
        assert status == 401 and 'error="insufficient_scope"' in headers["WWW-Authenticate"]
        server.expire_all()
        status, headers, _ = fetch("GET", registry.url + "/v2/", headers=bearer(words["token"]))
        assert status == 401 and 'error="invalid_token"' in headers["WWW-Authenticate"]
        grant = server.grants[0]
        assert (grant.how, grant.user, grant.scopes) == ("GET", "u", ["repository:a/b:pull,push"])


def test_tokens_live_for_their_seconds():
    with TokenServer({"u": "p"}, life=300, expires_in=7) as server, Registry(auth=Bearer(server)) as registry:
        begin = time.monotonic()
        words = token(server)[1]
        given = server.grants[-1].token
        assert words["expires_in"] == 7 and begin + 300 <= given.expires <= time.monotonic() + 300
        assert fetch("GET", registry.url + "/v2/", headers=bearer(words["token"]))[0] == 200
        begin = time.monotonic()
        given.expires = begin + 0.3
        until(lambda: fetch("GET", registry.url + "/v2/", headers=bearer(words["token"]))[0] == 401, "it expires")
        assert time.monotonic() - begin > 0.25


def test_tokens_answers():
    allow = lambda user, name, action: action == "pull" or name == "mine"
    with TokenServer({"u": "p"}, allow=allow, field="access_token", expires_in=None) as server:
        assert token(server, user=None)[0] == 401 and token(server, user=("u", "no"))[0] == 401
        status, words = token(server, "repository:mine:pull,push", "repository:its:pull,push repository:x/y:pull")
        assert status == 200 and set(words) == {"access_token"}
        good = server.grants[-1].token.scopes
        assert good == {"mine": {"pull", "push"}, "its": {"pull"}, "x/y": {"pull"}}, good
        server.only_first = True
        token(server, "repository:mine:push", "repository:its:pull")
        assert server.grants[-1].token.scopes == {"mine": {"push"}}
        server.anonymous, server.field = {"pull"}, "both"
        status, words = token(server, "repository:mine:pull,push", user=None)
        assert status == 200 and words["token"] == words["access_token"]
        assert server.grants[-1].user is None and server.grants[-1].token.scopes == {"mine": {"pull"}}
        server.wait_s = 0.1
        begin = time.monotonic()
        token(server)
        assert time.monotonic() - begin >= 0.1


def test_tokens_by_oauth():
    with TokenServer({"u": "p"}, refresh={"secret": "u"}) as server:
        def post(**form):
            body = urllib.parse.urlencode({"service": "s", "client_id": "c", **form}).encode()
            status, _, data = fetch("POST", server.realm, body, {"Content-Type": "application/x-www-form-urlencoded"})
            return status, data
        status, data = post(grant_type="refresh_token", refresh_token="secret",
                            scope="repository:a:pull repository:b:pull")
        assert status == 200 and json.loads(data)["refresh_token"] == "secret"
        assert server.grants[-1].scopes == ["repository:a:pull", "repository:b:pull"]
        assert post(grant_type="password", username="u", password="p")[0] == 200
        assert post(grant_type="password", username="x", password="")[0] == 400
        assert post(grant_type="refresh_token", refresh_token="no")[0] == 400
        refresh = token(server, offline_token="true")[1]["refresh_token"]
        assert post(grant_type="refresh_token", refresh_token=refresh)[0] == 200
        server.post = 404
        assert post(grant_type="refresh_token", refresh_token="secret")[0] == 404


# --- certificates


def test_certificates_are_wrong_in_one_thing():
    says = {"good": "", "client": "", "wrong-name": "doesn't match|mismatch|not valid for", "expired": "expired",
            "not-yet": "not yet valid", "self-signed": "self.signed", "unknown-ca": "unable to get local issuer"}
    with tempfile.TemporaryDirectory() as place:
        certs = Certs(place)
        for kind in certs.KINDS:
            with Registry(tls=certs.context(kind), name="localhost") as registry:
                trusting = ssl.create_default_context(cafile=certs.ca)
                try:
                    assert fetch("GET", registry.url + "/v2/", context=trusting)[0] == 200 and kind in ("good", "client"), kind
                except urllib.error.URLError as error:
                    assert says[kind] and re.search(says[kind], str(error.reason)), (kind, error)
                    until(lambda: registry.tls_failures, "the failure is noted")


def test_certificates_and_old_tls():
    with tempfile.TemporaryDirectory() as place:
        certs = Certs(place)
        limits = {"oldest": ssl.TLSVersion.TLSv1_1, "newest": ssl.TLSVersion.TLSv1_1}
        with Registry(tls=certs.context("good", **limits), name="localhost") as registry:
            modern = ssl.create_default_context(cafile=certs.ca)
            try:
                fetch("GET", registry.url + "/v2/", context=modern)
                raise AssertionError("TLS 1.1 was taken")
            except urllib.error.URLError:
                pass


def test_tls_push_through_the_proxy():
    with tempfile.TemporaryDirectory() as place:
        certs = Certs(place)
        trusting = ssl.create_default_context(cafile=certs.ca)
        with Registry(tls=certs.context(), name="localhost") as registry, FaultProxy(registry.address) as proxy:
            url = f"https://localhost:{proxy.port}/v2/"
            assert fetch("GET", url, context=trusting)[0] == 200
            proxy.fault("flip", "response", 3000, exchange=None)
            registry.rule("GET", Answer(200, body=b"x" * 10000))
            try:
                fetch("GET", url, context=trusting)
                raise AssertionError("a flipped bit went through TLS")
            except (OSError, http.client.HTTPException):
                pass


# --- a client that others wrote


def crane():
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlrun-tests/bin/crane"
    found = os.environ.get("CRANE") or (str(cached) if cached.exists() else shutil.which("crane"))
    if not found:
        raise Skip("crane is not installed")
    return found


def crane_appends(registry, place, context=None):
    (place / "layer.tar.gz").write_bytes(layer({"app/file": b"1"}))
    address = registry.address
    auth = base64.b64encode(b"u:p").decode()
    (place / "config.json").write_text(json.dumps({"auths": {address: {"auth": auth}}}))
    env = {"PATH": os.environ["PATH"], "HOME": str(place), "DOCKER_CONFIG": str(place),
           **({"SSL_CERT_FILE": str(context.ca)} if context else {})}
    for words in (["append", "-b", f"{address}/base:1", "-t", f"{address}/a/b:t", "-f", str(place / "layer.tar.gz")],
                  ["validate", "--remote", f"{address}/a/b:t"]):
        done = subprocess.run([crane(), *words], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (words[0], done.stderr, registry.lines())


def test_crane_pushes():
    crane()
    kinds = [{}, {"location": "relative"}, {"location": "bare"}, {"location": "other"}, {"mount": 202},
             {"state": False}, {"redirect_blobs": True}, {"auth": Basic({"u": "p"})}]
    with TokenServer({"u": "p"}) as server, tempfile.TemporaryDirectory() as place:
        certs = Certs(Path(place) / "certs")
        for words in [*kinds, {"auth": Bearer(server)}, {"tls": certs.context(), "name": "localhost"}]:
            with Registry(**words) as registry:
                registry.add_image("base", "1", layers=30)
                crane_appends(registry, Path(place), certs if "tls" in words else None)
                manifest, _ = registry.check_image("a/b", "t")
                assert len(manifest["layers"]) == 31 and not registry.violations, (words, registry.violations)
        assert server.grants and all(g.user == "u" for g in server.grants)


# --- the stopwatch of the tests


def test_stopwatch_leaves_out_standstills():
    script = ("import sys; sys.path.append(sys.argv[1]); from stopwatch import Stopwatch; watch = Stopwatch();"
              "print('begun', flush=True); sys.stdin.readline(); print(watch.between(3.5, 2), watch.between(4, 99), flush=True)")
    with subprocess.Popen([sys.executable, "-c", script, Path(__file__).resolve().parents[1] / "real"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as watched:
        assert watched.stdout.readline() == "begun\n"
        watched.send_signal(signal.SIGSTOP)
        time.sleep(4)  # The standstill.
        watched.send_signal(signal.SIGCONT)
        assert watched.communicate("\n", timeout=20)[0] == "True True\n"


# --- all of them


def main():
    wanted = sys.argv[1:]
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    tests = [(n, f) for n, f in globals().items() if n.startswith("test_") and inspect.isfunction(f)]
    running_time()  # The thread behind it stays.
    threads = threading.enumerate()
    for name, function in tests:
        if wanted and not any(word in name for word in wanted):
            continue
        try:
            function()
            verdict, text = "passed", ""
        except Skip as reason:
            verdict, text = ("failed" if os.environ.get("CI") else "skipped"), str(reason)
        except Exception:
            verdict, text = "failed", traceback.format_exc(limit=-4)
        counts[verdict] += 1
        if verdict != "passed":
            print(f"{verdict}: {name}: {text}", flush=True)
    left = [t.name for t in threading.enumerate() if t not in threads]
    if left:
        counts["failed"] += 1
        print(f"failed: threads are left: {left}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not sum(counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
