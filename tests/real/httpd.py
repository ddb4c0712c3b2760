#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The server for the browser, net/httpd, with clients and programs that are not ours: what it relays, and whom it refuses."""

import base64
import concurrent.futures
import contextlib
import hashlib
import http.client
import http.server
import os
import random
import secrets
import socket
import subprocess
import threading
import time
from pathlib import Path

from harness import *  # noqa: F403
from sshsite import Network, call

OTHER = 3377  # nobody's uid
HEAD_S, PATIENCE_S = 10, 20
MEMORY_MAX = 96 << 20  # of 90 connections with readers that are slow
# What a connection that is still open at the end holds.
ENV = {"ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:detect_leaks=0"}


class Front:
    """httpd_tool over a program; `address` is HOST:PORT, `said` what it has noticed, `token` what it asks for where the system does not
    tell whose a connection is, and `fields` what shows that, for the client that takes it for a proxy as for any other."""

    def __init__(self, w, port, *words):
        tool = Path(w.dlrun).parent / "tests/real/httpd_tool"
        if not tool.exists():
            raise Skip("httpd_tool is not built")
        self.log = w.dir / f"front-{port}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([tool, str(port), *words], env={**w.env, **ENV}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=log)
        port, _, token = self.process.stdout.readline().decode().strip().partition(" ")
        self.port, self.token = int(port), token
        self.fields = {"Proxy-Authorization": "Basic " + base64.b64encode(f"dlrun:{token}".encode()).decode()} if token else {}
        # For curl of this test.
        w.shown = [word for name, value in self.fields.items() for option in ("-H", "--proxy-header") for word in (option, f"{name}: {value}")]
        self.address = f"localhost:{self.port}"

    @property
    def said(self):
        return self.log.read_text()

    def connect(self, timeout=PATIENCE_S):
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory(self):
        """The most bytes that it has had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) << 10

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(20) == 0, self.said


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body, **headers):
        self.send_response(200)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def do_GET(self):
        kind, _, rest = self.path[1:].partition("/")
        if kind == "bytes":
            self.answer(flood(int(rest)))
        elif kind == "close":
            self.answer(b"closed\n", Connection="close")
            self.close_connection = True
        elif kind == "chunks":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(int(rest)):
                self.wfile.write(b"5\r\nhello\r\n")
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.answer(f"{self.command} {self.path}\n{self.headers}".encode())

    def do_POST(self):
        self.answer(hashlib.sha256(self.body()).hexdigest().encode())

    do_HEAD, do_PUT = do_GET, do_POST

    def log_message(self, *_):
        self.server.seen.append(f"{self.command} {self.path}")


class OldHandler(Handler):
    protocol_version = "HTTP/1.0"


def flood(n):
    return hashlib.shake_128(b"flood").digest(n)


@contextlib.contextmanager
def program(w, *words, handler=Handler):
    """(front, what the program was asked)."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.seen = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        front = Front(w, server.server_port, *words)
        try:
            yield front, server.seen
        finally:
            front.close()
            server.shutdown()


@contextlib.contextmanager
def listener(w, serve=None):
    """(front, the bytes that came to the program): serve(connection, heard) or nothing but listening."""
    heard = bytearray()

    def take(one):
        with one, contextlib.suppress(OSError):
            if serve:
                serve(one, heard)
            while data := one.recv(65536):
                heard.extend(data)

    def accept(listening):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=take, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=500) as listening:
        threading.Thread(target=accept, args=(listening,), daemon=True).start()
        front = Front(w, listening.getsockname()[1])
        try:
            yield front, heard
        finally:
            front.close()


def curl(w, *argv, rc=0, **more):
    done = w.command([needs("curl"), "-sS", "--noproxy", "", "--max-time", str(PATIENCE_S), *w.shown, *argv], **more)
    assert done.rc == rc, done
    return done


def status(w, *argv):
    return int(curl(w, "-o", "/dev/null", "-w", "%{http_code}", *argv).out)


def rest_of(one):
    """All that still comes, and whether its end is an orderly one."""
    found = b""
    try:
        while data := one.recv(65536):
            found += data
    except ConnectionResetError:
        return found, False
    return found, True


def head(front, line, *fields):
    return "\r\n".join([line, f"Host: {front.address}", *(f"{k}: {v}" for k, v in front.fields.items()), *fields, "", ""]).encode()


# --- what goes through


def test_curl(w):
    with program(w) as (front, seen):
        url = f"http://{front.address}"
        assert curl(w, f"{url}/own/hello").out == "hello\n"
        assert curl(w, "-4", f"http://127.0.0.1:{front.port}/own/hello").out == "hello\n"
        assert curl(w, "-g", "-6", f"http://[::1]:{front.port}/own/hello").out == "hello\n"
        assert curl(w, f"http://a.b.localhost:{front.port}/own/hello").out == "hello\n"
        assert curl(w, "-0", f"{url}/own/hello").out == "hello\n"
        assert "content-length: 7" in curl(w, "-I", f"{url}/bytes/7").out.lower()
        many = curl(w, "-v", *[f"{url}/a{i}" for i in range(5)])
        assert len(re.findall(r"Re-using existing connection", many.err)) == 4, many.err
        assert seen[-5:] == [f"GET /a{i}" for i in range(5)]
        assert curl(w, f"{url}/chunks/1000").out == "hello" * 1000
        assert curl(w, "-o", "/dev/null", "-w", "%{size_download}", f"{url}/own/stream").out == str(10 << 20)
        whole = w.write("body", flood(20 << 20))
        digest = hashlib.sha256(flood(20 << 20)).hexdigest()
        for words in ((), ("-H", "Transfer-Encoding: chunked"), ("-H", "Expect: 100-continue"), ("-H", "Expect:"), ("-0",)):
            assert curl(w, *words, "-T", whole, f"{url}/").out == digest, words
        assert curl(w, f"{url}/bytes/{20 << 20}", "-o", "got").rc == 0
        assert (w.tree / "got").read_bytes() == flood(20 << 20)


def test_connect_leads_through(w):
    with program(w) as (front, seen):
        for proxy in ("--proxy", "--proxy1.0"):
            said = curl(w, "-p", proxy, f"http://{front.address}", "http://6006.run.localhost/a").out
            assert said.startswith("GET /a\n") and "Host: 6006.run.localhost\n" in said, said
        curl(w, "-p", "--proxy", f"http://{front.address}", "http://evil.example/", rc=56)
        assert len(seen) == 2


def test_old_programs(w):
    """As TensorBoard: each answer ends the connection. The browser's connection stays."""
    for handler in (Handler, OldHandler):
        with program(w, handler=handler) as (front, seen):
            one = http.client.HTTPConnection("localhost", front.port, timeout=PATIENCE_S)
            one.connect()
            own = one.sock
            for _ in range(300):
                one.request("GET", "/close", headers=front.fields)
                assert one.getresponse().read() == b"closed\n"
                assert one.sock is own, "the connection was closed"
            one.close()
            assert len(seen) == 300


def test_prefix(w):
    with program(w, "/secret") as (front, seen):
        curl(w, f"http://{front.address}/secret/a?b")
        curl(w, f"http://{front.address}/secret")
        assert seen == ["GET /a?b", "GET /"], seen


def accept_of(key):
    return base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())


def test_websocket(w):
    def echo(one, heard):
        request = b""
        while b"\r\n\r\n" not in request:
            request += one.recv(65536)
        key = re.search(rb"(?i)sec-websocket-key: (\S+)", request).group(1)
        one.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Accept: " + accept_of(key) + b"\r\n\r\n")
        while data := one.recv(65536):
            one.sendall(data)
        one.sendall(b"the end")
        one.close()

    with listener(w, echo) as (front, heard):
        with front.connect() as one:
            key = base64.b64encode(secrets.token_bytes(16))
            one.sendall(head(front, "GET /ws HTTP/1.1", "Connection: keep-alive, Upgrade", "Upgrade: websocket",
                             f"Origin: http://{front.address}", f"Sec-WebSocket-Key: {key.decode()}", "Sec-WebSocket-Version: 13"))
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += one.recv(65536)
            assert answer.startswith(b"HTTP/1.1 101 ") and accept_of(key) in answer, answer
            sent = flood(8 << 20)
            threading.Thread(target=lambda: (one.sendall(sent), one.shutdown(socket.SHUT_WR)), daemon=True).start()
            got, orderly = rest_of(one)
            assert got == sent + b"the end" and orderly, len(got)


def test_a_program_that_breaks(w):
    """The client is never told that a part was the whole."""
    def breaks(one, heard):
        one.recv(65536)
        one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
        one.close()

    with listener(w, breaks) as (front, heard):
        assert "18" in curl(w, f"http://{front.address}/", rc=18).err

    with listener(w, lambda one, heard: one.close()) as (front, heard):
        page = curl(w, "-i", f"http://{front.address}/").out
        assert page.startswith("HTTP/1.1 502 ") and "ended the connection without an answer" in page, page
        assert "Content-Security-Policy: default-src 'none'" in page, page
    with socket.create_server(("127.0.0.1", 0)) as taken:
        front = Front(w, taken.getsockname()[1])
    page = curl(w, "-i", f"http://{front.address}/").out
    front.close()
    assert page.startswith("HTTP/1.1 502 ") and "cannot connect to port" in page, page


# --- who is refused


def test_pages_of_others(w):
    with program(w) as (front, seen):
        url, rows = f"http://{front.address}/", []
        for host in ("evil.example", f"evil.example:{front.port}", "localhost", "localhost:1", f"0.0.0.0:{front.port}",
                     f"localhost.evil.example:{front.port}", f"127.0.0.1.nip.io:{front.port}", f"192.168.1.2:{front.port}", " "):
            rows += [("-H", f"Host: {host}")]
        for origin in ("null", "http://evil.example", f"http://evil.example:{front.port}", f"https://{front.address}", "http://localhost",
                       f"http://127.0.0.1:{front.port}", f"http://{front.address}.evil.example", f"http://other.{front.address}"):
            for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
                rows += [("-X", method, "-H", f"Origin: {origin}")]
            rows += [("-H", f"Origin: {origin}", "-H", "Connection: Upgrade", "-H", "Upgrade: websocket")]
        for mode in ("navigate", "no-cors", "cors", "websocket"):
            rows += [("-H", "Sec-Fetch-Site: cross-site", "-H", f"Sec-Fetch-Mode: {mode}")]
            rows += [("-H", "Sec-Fetch-Site: cross-site", "-H", f"Sec-Fetch-Mode: {mode}", "-H", "Referer: http://evil.example/")]
        for words in rows:
            assert status(w, *words, url) in (400, 403), words
        assert seen == [], seen
        for words in (("-H", f"Origin: http://{front.address}"), ("-X", "POST", "-H", f"Origin: http://{front.address}"),
                      ("-H", "Sec-Fetch-Site: same-origin"), ("-H", "Sec-Fetch-Site: none"),
                      ("-H", "Sec-Fetch-Site: cross-site", "-H", "Sec-Fetch-Mode: navigate", "-H", "Sec-Fetch-Dest: document",
                       "-H", f"Referer: http://a.{front.address}/")):
            assert status(w, *words, url) == 200, words
        assert len(seen) == 5
        assert "a request for the host evil.example is refused" in front.said, front.said
        assert "a request from a page of http://evil.example is refused" in front.said


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: @\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: @\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
FRAMINGS = [
    b"Content-Length: 5\r\n" + CHUNKED, CHUNKED + b"Content-Length: 5\r\n", b"Content-Length: 0\r\n" + CHUNKED,
    b"Content-Length: 5\r\nContent-Length: 6\r\n", b"Content-Length: 5\r\nContent-Length: 5\r\n", b"Content-Length: 5, 6\r\n",
    b"Content-Length: 5,5\r\n", b"Content-Length: +5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 5 \r\nContent-Length: 0\r\n",
    b"Content-Length: 5 0\r\n", b"Content-Length: 0x5\r\n", b"Content-Length: 5.\r\n", b"Content-Length:\r\n", b"Content-Length: 05\r\n",
    b"Content-Length: 5\x00\r\n", b"Content-Length: \xc2\xa05\r\n", b"Content-Length: 99999999999999999999\r\n",
    b"Content-Length: 18446744073709551617\r\n", b"Content-Length : 5\r\n", b"Content-Length\t: 5\r\n", b" Content-Length: 5\r\n",
    b"Content_Length: 5\r\n", b"Content-Length\x00: 5\r\n", b"X: y\r\n Content-Length: 5\r\n", b"X: y\nContent-Length: 5\r\n",
    b"X: y\rContent-Length: 5\r\n", b"X: y\r\rContent-Length: 5\r\n", b"X: y\x0bContent-Length: 5\r\n", b"X: y\x00\r\nContent-Length: 5\r\n",
    CHUNKED + CHUNKED, b"Transfer-Encoding: chunked, chunked\r\n", b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding: identity, chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: xchunked\r\n", b"Transfer-Encoding: chunkedx\r\n", b"Transfer-Encoding: x chunked\r\n",
    b"Transfer-Encoding:\tchunked\r\n", b"Transfer-Encoding: \tchunked\r\n", b"Transfer-Encoding: chunked\t\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n", b"Transfer-Encoding: \x0cchunked\r\n", b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding\t: chunked\r\n", b" Transfer-Encoding: chunked\r\n", b"\tTransfer-Encoding: chunked\r\n",
    b"X: y\r\n Transfer-Encoding: chunked\r\n", b"Transfer-Encoding:\r\n chunked\r\n", b"Transfer-Encoding\r\n: chunked\r\n",
    b"Transfer-Encoding: \"chunked\"\r\n", b"Transfer-Encoding: 'chunked'\r\n", b"Transfer-Encoding: chunked;q=1\r\n",
    b"Transfer-Encoding: chunked\r\r\n", b"Transfer-Encoding: chunked\x00\r\n", b"Transfer-Encoding: chunk\xc4\x93d\r\n",
    b"Transfer-Encoding: ,chunked\r\n", b"Transfer-Encoding: chunked,\r\n", b"Transfer_Encoding: chunked\r\n", b"Transfer-Encoding:\r\n",
    b"X: y\nTransfer-Encoding: chunked\r\n", b"X: y\rTransfer-Encoding: chunked\r\n", b"Connection: content-length\r\nContent-Length: 5\r\n",
    b"Connection: transfer-encoding\r\n" + CHUNKED, b"Connection: Host\r\n", b"Host: evil.example\r\n", b"Host : @\r\n", b"\tHost: @\r\n",
    b"Expect: 100-continue, x\r\nContent-Length: 5\r\n", b"X\r\n", b": x\r\n", b"X y: z\r\n", b"X\x80: z\r\n", b"X: \x7f\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n", b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + CHUNKED,
    b"X: " + b"y" * (65 << 10) + b"\r\n", b"X: y\r\n" * 12000,
]
LINES = [
    b"GET /\r\n", b"GET / HTTP/0.9\r\n", b"GET / HTTP/2.0\r\n", b"GET / HTTP/1.2\r\n", b"GET / HTTP/1.1 \r\n", b"GET / HTTP/1.1\n",
    b"GET / http/1.1\r\n", b"GET / HTTP/01.1\r\n", b"GET / HTTP/1.1x\r\n", b"GET  / HTTP/1.1\r\n", b"GET /  HTTP/1.1\r\n",
    b"GET\t/ HTTP/1.1\r\n", b" GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\r\n", b"GET /\x00 HTTP/1.1\r\n", b"GET /\x0b HTTP/1.1\r\n",
    b"GET /a b HTTP/1.1\r\n", b"GET /#a HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n\x00", b"G\x00T / HTTP/1.1\r\n", b"G(T / HTTP/1.1\r\n",
    b"TRACE / HTTP/1.1\r\n", b"OPTIONS * HTTP/1.1\r\n", b"GET http://evil.example/ HTTP/1.1\r\n", b"GET //evil.example HTTP/2\r\n",
    b"GET http://evil.example@@/ HTTP/1.1\r\n", b"GET https://@/ HTTP/1.1\r\n", b"GET file:///etc/passwd HTTP/1.1\r\n", b"GET evil HTTP/1.1\r\n",
    b"CONNECT evil.example:80 HTTP/1.1\r\n", b"CONNECT / HTTP/1.1\r\n", b"GET /\xc3\xa4 HTTP/1.1\r\n", b"\r\nGET / HTTP/1.1\r\n",
    b"GET /" + b"a" * (65 << 10) + b" HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"SSH-2.0-x\r\n",
]
BODIES = [
    b"5;a=b\r\nhello\r\n0\r\n\r\n", b"5 \r\nhello\r\n0\r\n\r\n", b" 5\r\nhello\r\n0\r\n\r\n", b"+5\r\nhello\r\n0\r\n\r\n", b"-5\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n", b"5\nhello\r\n0\r\n\r\n", b"5\rhello\r\n0\r\n\r\n", b"5\r\nhello0\r\n\r\n", b"5\r\nhello\n0\r\n\r\n",
    b"5\r\nhellox\r\n0\r\n\r\n", b"\r\n5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\nX: y\r\n\r\n", b"5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\n", b"5\r\nhello\r\n0\n\r\n", b"10000000000000005\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    b"5\x00\r\nhello\r\n0\r\n\r\n", b"g\r\nhello\r\n0\r\n\r\n", b"5\r\r\nhello\r\n0\r\n\r\n", b"0\x0b\r\n\r\n", b"0;\r\n\r\n", b"0 \r\n\r\n",
]


def refused(front, text):
    with front.connect() as one:
        # A refusal may come before all was sent.
        with contextlib.suppress(ConnectionError):
            shown = "".join(f"{k}: {v}\r\n" for k, v in front.fields.items()).encode()
            one.sendall(text.replace(b"Host: @\r\n", b"Host: @\r\n" + shown, 1).replace(b"@", front.address.encode()))
        answer, _ = rest_of(one)
    found = re.findall(rb"^HTTP/1.1 (\d+) ", answer, re.M)
    assert len(found) == 1 and 400 <= int(found[0]) <= 505, (text[:200], answer[:300])


def test_smuggling(w):
    with listener(w) as (front, heard):
        for framing in FRAMINGS:
            refused(front, POST + framing + b"\r\n0\r\n\r\n" + SMUGGLED)
        for line in LINES:
            refused(front, line + b"Host: @\r\n\r\n" + SMUGGLED)
        for text in (b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"POST / HTTP/1.0\r\nHost: @\r\n" + CHUNKED + b"\r\n0\r\n\r\n"):
            refused(front, text + SMUGGLED)
        assert bytes(heard) == b"", bytes(heard[:500])
        for body in BODIES:
            refused(front, POST + CHUNKED + b"\r\n" + body + SMUGGLED)
        assert b"smuggled" not in heard and b"hello" not in heard, bytes(heard[-500:])


def test_a_request_behind_a_body_is_one_of_its_own(w):
    """What a body holds is no request, and what stands behind it is one."""
    with program(w) as (front, seen):
        with front.connect() as one:
            inner = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
            one.sendall(head(front, "POST /1 HTTP/1.1", f"Content-Length: {len(inner)}") + inner +
                        head(front, "POST /2 HTTP/1.1", "Transfer-Encoding: chunked") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner) +
                        head(front, "GET /3 HTTP/1.1", "Connection: close"))
            answer, orderly = rest_of(one)
        assert seen == ["POST /1", "POST /2", "GET /3"] and orderly, seen
        assert answer.count(b"HTTP/1.1 200 ") == 3


def test_another_user(w):
    if os.getuid() != 0:
        raise Skip("not root")
    with listener(w) as (front, heard):
        setpriv = [needs("setpriv"), f"--reuid={OTHER}", "--regid=65534", "--clear-groups", "--"]
        for url in (f"http://127.0.0.1:{front.port}/own/hello", f"http://[::1]:{front.port}/own/hello"):
            done = w.command([*setpriv, "curl", "-sSi", "-g", "--noproxy", "*", "--max-time", "10", url], cwd="/")
            if front.token:
                assert done.out.startswith("HTTP/1.1 403 ") and "needs a token" in done.out, done
            else:
                assert done.rc in (52, 56) and done.out == "", done
        # One that has gone before anybody could ask for its name, so that the kernel knows no owner any more.
        send = ("import socket, sys\nfor _ in range(200):\n s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
                " s.sendall(sys.argv[2].encode())\n s.close()\n")
        text = f"POST / HTTP/1.1\r\nHost: {front.address}\r\nContent-Length: 0\r\n\r\n"
        front.process.send_signal(signal.SIGSTOP)
        try:
            done = w.command([*setpriv, sys.executable, "-c", send.replace("200", "20"), str(front.port), text], cwd="/")
        finally:
            front.process.send_signal(signal.SIGCONT)
        assert done.rc == 0, done
        w.command([*setpriv, sys.executable, "-c", send, str(front.port), text], cwd="/")
        wait_for(lambda: status(w, f"http://{front.address}/own/hello") == 200, "an answer for this user")
        assert bytes(heard) == b"", bytes(heard[:300])
        assert ("a request without the token is refused" if front.token else f"another user of this machine ({OTHER})") in front.said


def test_another_machine(w):
    """Nothing listens where others could come from."""
    if os.getuid() != 0:
        raise Skip("not root")
    with program(w) as (front, seen):
        listening = [line.split() for path in ("tcp", "tcp6") for line in Path(f"/proc/net/{path}").read_text().splitlines()[1:]]
        own = {words[1].rpartition(":")[0] for words in listening if words[3] == "0A" and words[1].endswith(f":{front.port:04X}")}
        assert own <= {"0100007F", "00000000000000000000000001000000"} and "0100007F" in own, own
        network = Network(w.dir)
        try:
            holder = subprocess.Popen([needs("unshare"), "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            wait_for(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") not in (os.readlink("/proc/self/ns/net"),
                                                                              os.readlink(f"/proc/{network.process.pid}/ns/net")), "a machine")
            network.join(holder.pid)
            outside = ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "curl", "-sS", "--noproxy", "*", "--max-time", "10"]
            # What does listen there is reached, so that the refusal is no missing road.
            with http.server.ThreadingHTTPServer((f"{network.net}.1", 0), Handler) as open_one:
                open_one.seen = []
                threading.Thread(target=open_one.serve_forever, daemon=True).start()
                done = w.command([*outside, f"http://{network.net}.1:{open_one.server_port}/"])
                open_one.shutdown()
                assert done.rc == 0, done
            done = w.command([*outside, "-H", f"Host: {front.address}", f"http://{network.net}.1:{front.port}/own/hello"])
            assert done.rc == 7, done
            holder.stdin.close()
            holder.wait()
        finally:
            network.close()
        assert seen == []


# --- limits


def test_time_limits(w):
    with listener(w) as (front, heard):
        watch = Stopwatch()
        with front.connect() as one, front.connect() as quiet:
            one.sendall(b"GET / HTTP/1.1\r\n")
            quiet.settimeout(HEAD_S + 5)
            answer, _ = rest_of(one)
            assert answer.startswith(b"HTTP/1.1 408 "), answer
            assert watch.between(HEAD_S - 1, HEAD_S + 5)
            # One that has sent nothing yet may wait longer: browsers open them ahead of time.
            quiet.sendall(head(front, "GET /own/hello HTTP/1.1", "Connection: close"))
            assert rest_of(quiet)[0].endswith(b"hello\n")


def test_memory_and_descriptors(w):
    """Slow readers, silent programs, clients that leave: nothing grows, nothing stays."""
    piece = flood(1 << 20)

    def much(one, heard):
        one.recv(65536)
        one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
        while True:
            one.sendall(piece)

    with listener(w, much) as (front, heard):
        before = front.files()
        ones = [front.connect() for _ in range(50)]
        for one in ones:
            one.sendall(head(front, "GET / HTTP/1.1"))
        for one in ones[::2]:
            one.recv(1 << 20)
        for path in ("stream", "silence") * 20:
            ones.append(front.connect())
            ones[-1].sendall(head(front, f"GET /own/{path} HTTP/1.1"))
        for one in ones[:50:2]:
            one.recv(1 << 20)
        wait_for(lambda: front.files() >= before + 50 + 90, "all connections are there")
        for one in ones:
            one.close()
        wait_for(lambda: front.files() == before, "all connections are gone")
        assert front.memory() < MEMORY_MAX, front.memory()
        assert curl(w, f"http://{front.address}/own/hello").out == "hello\n"


def test_random_cuts(w):
    """Whatever part of a conversation comes, in whatever pieces, the next one is served."""
    with program(w) as (front, seen):
        before = front.files()
        whole = (head(front, "POST /1 HTTP/1.1", "Content-Length: 5") + b"hello" +
                 head(front, "POST /2 HTTP/1.1", "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n" +
                 head(front, "GET /bytes/100000 HTTP/1.1") + head(front, "GET /own/hello HTTP/1.1"))
        for at in range(0, len(whole), 7):
            with front.connect() as one:
                one.sendall(whole[:at])
                if at % 2:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        with front.connect() as one:
            for at in range(len(whole)):
                one.sendall(whole[at:at + 1])
            answer = b""
            while not answer.endswith(b"hello\n"):
                answer += one.recv(65536)
        assert answer.count(b"HTTP/1.1 200 ") == 4 and flood(100000) in answer
        wait_for(lambda: front.files() == before, "all connections are gone")


def test_many_at_once(w):
    """Answers and bodies of all sizes, with readers and writers of all speeds: nothing stands still, nothing is mixed up."""
    def visit(seed):
        dice = random.Random(seed)
        one = http.client.HTTPConnection("localhost", front.port, timeout=60)
        for _ in range(12):
            n = dice.choice((0, 1, 65535, 65536, 131072, 200000, 700000, 3000000))
            if dice.random() < 0.5:
                one.request("POST", "/", body=slowly(flood(n), dice), headers={"Content-Length": str(n), **front.fields})
                found, wanted = one.getresponse().read(), hashlib.sha256(flood(n)).hexdigest().encode()
            else:
                one.request("GET", f"/bytes/{n}", headers=front.fields)
                answer, found, wanted = one.getresponse(), b"", flood(n)
                while piece := answer.read(dice.choice((1000, 65536, 1 << 20))):
                    found += piece
                    time.sleep(dice.choice((0, 0, 0.001)))
            assert found == wanted, (n, len(found))
        one.close()

    def slowly(data, dice):
        while data:
            n = dice.choice((100, 65536, 300000))
            yield data[:n]
            data = data[n:]
            time.sleep(dice.choice((0, 0, 0.001)))

    with program(w) as (front, seen):
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            list(pool.map(visit, range(48)))
        assert len(seen) == 48 * 12


if __name__ == "__main__":
    main()
