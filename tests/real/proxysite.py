# SPDX-License-Identifier: Apache-2.0
"""`dlrun proxy` in a test, and what is asked of it: requests with any head, WebSockets, CONNECT.

    with proxy(w) as p:
        p.get("6006.a-22222.localhost", "/")
"""

import base64
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
from pathlib import Path

from harness import Serving

ANSWER_S = 30

# Echoes requests and WebSocket messages; writes its port into its output.
SERVER = '''
import base64, hashlib, http.server, os, struct, sys, threading

NAME = os.environ.get("NAME", "one")

def read_frame(f):
    first, second = f.read(2)
    n = second & 127
    n = struct.unpack(">H", f.read(2))[0] if n == 126 else struct.unpack(">Q", f.read(8))[0] if n == 127 else n
    mask = f.read(4)
    return first & 15, bytes(b ^ mask[i % 4] for i, b in enumerate(f.read(n)))

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_):
        pass
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.websocket()
        if self.path == "/silent":
            self.close_connection = True
            return
        if self.path.startswith("/seen"):
            return self.answer(f"{self.path}\\n{self.headers}".encode())
        if self.path == "/name":
            return self.answer(f"{self.headers['Host']} {self.headers['Origin']}".encode())
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", f"http://{self.headers['Host']}/there")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        text = f"{NAME} {self.path} {self.headers['X-Forwarded-Host'] or self.headers['Host']} {os.environ.get('DLRUN_ATTEMPT')} {os.environ.get('NODE_RANK')}"
        self.answer(text.encode())
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(hashlib.sha256(body).hexdigest().encode())
    def websocket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            kind, data = read_frame(self.rfile)
            if kind == 8:
                return
            data = NAME.encode() + b":" + data
            head = struct.pack(">BB", 0x80 | kind, len(data)) if len(data) < 126 else struct.pack(">BBH", 0x80 | kind, 126, len(data))
            self.wfile.write(head + data)
            self.wfile.flush()

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

server = Server(("127.0.0.1", int(os.environ.get("PORT", "0"))), Handler)
print("port", server.server_address[1], flush=True)
server.serve_forever()
'''


class Answer:
    def __init__(self, response):
        self.status, self.headers = response.status, response.headers
        self.body = response.read()
        self.text = self.body.decode("utf-8", "replace")

    def __repr__(self):
        return f"{self.status} {dict(self.headers)}\n{self.text[:2000]}"


class WebSocket:
    """A client that checks nothing but the handshake."""

    def __init__(self, line, host, path="/", headers=()):
        self.line = line
        key = base64.b64encode(os.urandom(16)).decode()
        extra = "".join(f"{k}: {v}\r\n" for k, v in headers)
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                     f"Sec-WebSocket-Key: {key}\r\n{extra}\r\n".encode())
        self.file = line.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        while self.file.readline() not in (b"\r\n", b""):
            pass

    def send(self, data, kind=1):
        mask = os.urandom(4)
        n = len(data)
        head = struct.pack(">BB", 0x80 | kind, 0x80 | n) if n < 126 else struct.pack(">BBH", 0x80 | kind, 0x80 | 126, n) if n < 1 << 16 else \
            struct.pack(">BBQ", 0x80 | kind, 0x80 | 127, n)
        self.line.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def receive(self):
        """The next whole message; None at the end."""
        whole = b""
        while True:
            head = self.file.read(2)
            if len(head) < 2:
                return None
            n = head[1] & 127
            n = struct.unpack(">H", self.file.read(2))[0] if n == 126 else struct.unpack(">Q", self.file.read(8))[0] if n == 127 else n
            data = self.file.read(n)
            if head[0] & 15 in (1, 2, 0):
                whole += data
                if head[0] & 0x80:
                    return whole
            elif head[0] & 15 == 8:
                return None

    def ask(self, data):
        self.send(data)
        return self.receive()

    def close(self):
        self.file.close()
        self.line.close()


class Proxy(Serving):
    def __init__(self, w, *words, **options):
        self.said = Path(tempfile.mkstemp(prefix="said-", dir=w.dir)[1])
        with open(self.said, "wb") as err:
            self.process = subprocess.Popen([w.dlrun, "proxy", *words], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE, stderr=err, **options)
        self.line = self.process.stdout.readline().decode()
        found = re.search(r"http://localhost:(\d+)/(?:\?dlrun_token=([0-9a-f]{32}))?", self.line)
        assert found, (self.line, self.said.read_text())
        self.port, self.token = int(found[1]), found[2]
        # What a URL needs where the system does not tell whose a connection is, and what a request needs there.
        self.query = f"?dlrun_token={self.token}" if self.token else ""
        self.fields = {"Proxy-Authorization": "Basic " + base64.b64encode(f"dlrun:{self.token}".encode()).decode()} if self.token else {}
        self.head = "".join(f"{k}: {v}\r\n" for k, v in self.fields.items())

    def connect(self, address="127.0.0.1"):
        line = socket.create_connection((address, self.port), timeout=ANSWER_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line

    def ask(self, method, host, path="/", body=None, headers=None, **more):
        """One request; host without the port of the proxy, unless it has one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            host = host if ":" in host else f"{host}:{self.port}"
            connection.request(method, path, body, {"Host": host, **self.fields, **(headers or {})})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, host, path="/", **headers):
        return self.ask("GET", host, path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def raw(self, data):
        """All that comes for these bytes."""
        with self.connect() as line:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := line.recv(1 << 16):
                    answer += piece
            return answer

    def websocket(self, host, path="/", **headers):
        fields = {**self.fields, **{k.replace("_", "-"): v for k, v in headers.items()}}
        return WebSocket(self.connect(), f"{host}:{self.port}", path, fields.items())

    def tunnel(self, authority):
        """(status, the connection) of a CONNECT."""
        line = self.connect()
        line.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{self.head}\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            piece = line.recv(1)
            if not piece:
                break
            head += piece
        return int(head.split()[1]), line

    def plain(self, text):
        """Without the tokens of its URLs."""
        return re.sub(r"[?&]dlrun_token=[0-9a-f]{32}", "", text) if self.token else text

    def runs(self):
        return json.loads(self.get("localhost", "/runs.json").text)["runs"]


@contextlib.contextmanager
def proxy(w, *words, **options):
    there = Proxy(w, *(words or ("--port", "0")), **options)
    try:
        try:
            yield there
        except (OSError, http.client.HTTPException) as wrong:
            raise AssertionError(f"{wrong!r}: {there.said.read_text()[-3000:]}") from wrong
        assert there.process.poll() is None, there.said.read_text()
    finally:
        there.end(signal.SIGKILL)
