# SPDX-License-Identifier: Apache-2.0
"""An HTTP/1.1 server of which every byte of every answer can be scripted.

It knows nothing of registries: a subclass gives ordinary answers in handle(), tests override them
with rules. Malformed or unclear requests are refused and noted in `violations`.
"""

import dataclasses
import http.client
import re
import socket
import ssl
import struct
import threading
import time
import urllib.parse

HEAD_BYTES = 1 << 16
KEEP_BYTES = 1 << 16
DRAIN_BYTES = 1 << 18
STAGES = ("head", "before", "after")
WAYS = ("plain", "chunked", "close", "short", "hang-body", "fill", "endless", "cut-chunks", "drip", "endless-head",
        "raw", "hang", "fin", "rst")


class Headers:
    """Header fields in order; names compare without case."""

    def __init__(self, fields=()):
        self.fields = list(fields.items() if isinstance(fields, dict) else fields)

    def get(self, name, default=None):
        values = self.all(name)
        return values[0] if values else default

    def all(self, name):
        return [v for n, v in self.fields if n.lower() == name.lower()]

    def __contains__(self, name):
        return bool(self.all(name))

    def __iter__(self):
        return iter(self.fields)

    def __repr__(self):
        return repr(self.fields)


class Request:
    """One request as it came.

    number      from 1, in the order in which heads arrived; connection: number of its connection.
    method, target (as sent), path (unquoted, without query), query (name -> list of values).
    headers     Headers; authorization: that field or None.
    body        bytes; from the answer on None if longer than 64 KiB. length: its bytes.
    complete    the whole body arrived.
    time, done  monotonic seconds: head complete, answer sent or connection lost (None before).
    status      what was answered (None: nothing); sent: bytes of the answer.
    """

    def __init__(self, method, target, headers, connection):
        self.method, self.target, self.headers, self.connection = method, target, headers, connection
        path, _, query = target.partition("?")
        self.path = urllib.parse.unquote(path)
        self.query = urllib.parse.parse_qs(query, keep_blank_values=True)
        self.number = 0
        self.body, self.length, self.complete = b"", 0, False
        self.time, self.done, self.status, self.sent = time.monotonic(), None, None, 0

    @property
    def line(self):
        return f"{self.method} {self.target}"

    @property
    def authorization(self):
        return self.headers.get("Authorization")

    def arg(self, name, default=None):
        return self.query.get(name, [default])[0]

    def __repr__(self):
        return f"<{self.number}: {self.line} -> {self.status}, {self.length} up, {self.sent} down>"


@dataclasses.dataclass
class Answer:
    """An answer and how it is sent.

    headers  dict or list of pairs, sent as they are. Content-Length is added where `how` wants one
             and headers have none; HEAD gets no body, 1xx, 204 and 304 neither body nor length.
    interim  status codes, or (status, headers) pairs, sent before (100, 103, …).
    delay    seconds before the first byte; pause: seconds between the bytes of "drip".
    close    the connection ends in order after the answer; this is said by "Connection: close"
             unless the headers have that field.
    length   for "fill": bytes announced and sent; for "short" and "hang-body": bytes announced
             (default: 1000 more than the body has).
    how      "plain"; "chunked"; "close": body delimited by the end of the connection;
             "short": too few bytes, then the end; "hang-body": too few bytes, then silence;
             "fill": the body is repeated up to `length` bytes; "endless": chunks of the body for
             ever; "cut-chunks": chunked, ends without the last chunk; "drip": the whole answer one
             byte at a time; "endless-head": header fields for ever; "raw": the body is every byte
             of the answer; "hang": silence; "fin", "rst": no answer, the connection ends.
    """

    status: int = 200
    headers: object = ()
    body: bytes = b""
    how: str = "plain"
    reason: str | None = None
    interim: tuple = ()
    delay: float = 0.0
    pause: float = 0.0
    close: bool = False
    length: int | None = None

    def __post_init__(self):
        if self.how not in WAYS:
            raise ValueError(f"no such way to answer: {self.how}")
        if isinstance(self.body, str):
            self.body = self.body.encode()


class Rule:
    """See ScriptedServer.rule. hits: requests that matched; fired: those among them it was for."""

    def __init__(self, match, answer, nth, stage):
        if stage not in STAGES:
            raise ValueError(f"no such stage: {stage}")
        self.match = match if callable(match) else self._pattern(match)
        self.answer, self.stage = answer, stage
        self.nth = {nth} if isinstance(nth, int) else nth
        self.hits = self.fired = 0

    @staticmethod
    def _pattern(text):
        pattern = re.compile(text)
        return lambda request: pattern.search(request.line)

    def strikes(self, request):
        if not self.match(request):
            return False
        self.hits += 1
        if self.nth is not None and self.hits not in self.nth:
            return False
        self.fired += 1
        return True


class Gone(Exception):
    """The client has left, or the server is closing."""


class Malformed(Exception):
    """Not a request that may be acted upon."""


class TlsOnPlain(Malformed):
    """Clients that try https first do this, and expect to be told at once."""


class Connection:
    """A socket with a read buffer."""

    def __init__(self, sock, number):
        self.sock, self.number, self.buffer = sock, number, b""
        self.abrupt = False

    def more(self):
        try:
            data = self.sock.recv(1 << 18)
        except (OSError, ValueError) as error:
            raise Gone from error
        if not data:
            raise Gone
        return data

    def head(self):
        """The next head without its empty line; None at the end of the connection."""
        while b"\r\n\r\n" not in self.buffer:
            if len(self.buffer) > HEAD_BYTES:
                raise Malformed("a head of more than 64 KiB")
            if self.buffer[:1] == b"\x16":
                raise TlsOnPlain("a TLS handshake on a plain port")
            try:
                self.buffer += self.more()
            except Gone:
                if self.buffer:
                    raise
                return None
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        return head

    def exactly(self, size, sink):
        while size:
            data = self.buffer or self.more()
            sink += data[:size]
            self.buffer = data[size:]
            size -= min(size, len(data))

    def line(self):
        while b"\r\n" not in self.buffer:
            if len(self.buffer) > HEAD_BYTES:
                raise Malformed("a line of more than 64 KiB")
            self.buffer += self.more()
        line, _, self.buffer = self.buffer.partition(b"\r\n")
        return line

    def chunks(self, sink):
        while True:
            word = self.line().split(b";")[0].strip()
            if not re.fullmatch(rb"[0-9a-fA-F]{1,15}", word):
                raise Malformed(f"a chunk of size {word[:20]!r}")
            if int(word, 16) == 0:
                while self.line():
                    pass
                return
            self.exactly(int(word, 16), sink)
            if self.line():
                raise Malformed("a chunk without its end")

    def send(self, data):
        try:
            self.sock.sendall(data)
        except (OSError, ValueError) as error:
            raise Gone from error

    def silence(self):
        """Until the other side or the server ends the connection."""
        while True:
            self.more()

    def end(self, reset=False):
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self._linger()
        self.sock.close()

    def _linger(self):
        # A close with bytes unread would be a reset, which can overtake the answer
        end = time.monotonic() + 2
        try:
            if isinstance(self.sock, ssl.SSLSocket):
                self.sock.settimeout(0.2)
                self._say_end_of_tls()
                self.sock = socket.socket(fileno=self.sock.detach())
            self.sock.shutdown(socket.SHUT_WR)
            self.sock.settimeout(0.5)
            while self.sock.recv(DRAIN_BYTES) and time.monotonic() < end:
                pass
        except (OSError, ValueError):
            pass

    def _say_end_of_tls(self):
        if self.abrupt:
            return
        try:
            self.sock.unwrap()
        except (OSError, ValueError):
            pass


class ScriptedServer:
    """A server in threads of this process, from construction until close() or the end of `with`.

    listen  (host, port); port 0: a free one. name: the host in url and address (default: the
            listen host), for example the name of a certificate. tls: an ssl.SSLContext or None.
    continues  False: never says 100 to "Expect: 100-continue".

    url, address ("NAME:PORT"), port. requests: every Request so far; violations: texts;
    tls_failures: texts; connections: how many were accepted.
    """

    def __init__(self, listen=("127.0.0.1", 0), name=None, tls=None, continues=True):
        self.tls, self.continues = tls, continues
        self.requests, self.violations, self.tls_failures = [], [], []
        self.connections = 0
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._rules = []
        self._live = {}
        self._closing = threading.Event()
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self._listener = socket.create_server(listen, family=family, backlog=256)
        self.port = self._listener.getsockname()[1]
        host = name or listen[0]
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self.url = f"{'https' if tls else 'http'}://{self.address}"
        self._acceptor = threading.Thread(target=self._accept, name="scripted", daemon=True)
        self._acceptor.start()

    # --- for subclasses

    def handle(self, request):
        """The ordinary Answer to a complete request; called by many threads."""
        return Answer(404, body=b"nothing here\n")

    def cut_short(self, request):
        """The connection ended within the body; request.body is what arrived."""

    def error(self, status):
        """The Answer that a rule's bare status means."""
        return Answer(status)

    # --- for tests

    def rule(self, match, answer, nth=None, stage="before"):
        """Override answers; the newest rule that matches and returns an answer wins.

        match   a regular expression, searched in "METHOD TARGET", or a function of the request.
        answer  an Answer, a status, or a function that returns one of them or None: None leaves the
                ordinary answer, so that the function only acts (collects garbage, loses sessions).
        nth     which of the matching requests, from 1: a number, a set or range; None: all.
        stage   "head": before the body is read, and it is not; "before": instead of the ordinary
                handling; "after": the ordinary handling is done, the function gets (request,
                answer) and may change or replace the answer.
        Returns the Rule.
        """
        rule = Rule(match, answer, nth, stage)
        with self.lock:
            self._rules.insert(0, rule)
        return rule

    def drop_rules(self):
        with self.lock:
            self._rules.clear()

    def find(self, pattern=""):
        """The requests whose "METHOD TARGET" contains the regular expression."""
        with self.lock:
            return [r for r in self.requests if re.search(pattern, r.line)]

    def count(self, pattern=""):
        return len(self.find(pattern))

    def lines(self):
        """"METHOD TARGET STATUS" of every request, for messages."""
        with self.lock:
            return [f"{r.line} {r.status}" for r in self.requests]

    def wait(self, pattern="", count=1, seconds=30, done=False):
        """Until that many such requests have come (done: and are answered or lost); returns them."""
        def found():
            return [r for r in self.find(pattern) if r.done or not done]

        with self.changed:
            if not self.changed.wait_for(lambda: len(found()) >= count, seconds):
                raise AssertionError(f"no {count} requests {pattern!r} in {seconds} s: {self.lines()}")
            return found()

    def clear(self):
        """Forget the requests, violations and TLS failures so far."""
        with self.lock:
            self.requests, self.violations, self.tls_failures = [], [], []

    def drop_connections(self):
        """End every connection that is open now, as a restart would."""
        with self.lock:
            live = list(self._live.values())
        for connection, _ in live:
            try:
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
            except (OSError, ValueError):
                pass

    def close(self):
        if self._closing.is_set():
            return
        self._closing.set()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._acceptor.join()
        self._listener.close()
        self.drop_connections()
        for _, thread in list(self._live.values()):
            thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # --- connections

    def _accept(self):
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                continue
            with self.lock:
                self.connections += 1
                connection = Connection(sock, self.connections)
                thread = threading.Thread(target=self._connection, args=(connection,), daemon=True)
                self._live[connection.number] = connection, thread
            thread.start()

    def _connection(self, connection):
        reset = False
        try:
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls:
                self._handshake(connection)
            while not self._closing.is_set() and self._exchange(connection):
                pass
        except Malformed as error:
            self._refuse(connection, error)
        except ConnectionResetError:
            reset = True
        except (Gone, OSError):
            pass
        finally:
            connection.end(reset)
            with self.lock:
                self._live.pop(connection.number, None)

    def _handshake(self, connection):
        try:
            connection.sock = self.tls.wrap_socket(connection.sock, server_side=True)
        except OSError as error:
            with self.changed:
                self.tls_failures.append(str(error))
                self.changed.notify_all()
            raise

    def _refuse(self, connection, error):
        with self.lock:
            (self.tls_failures if isinstance(error, TlsOnPlain) else self.violations).append(str(error))
        try:
            connection.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        except Gone:
            pass

    # --- one exchange

    def _exchange(self, connection):
        """True if the connection goes on."""
        head = connection.head()
        if head is None:
            return False
        request = self._parse(head, connection.number)
        length, chunked = self._framing(request)
        with self.changed:
            self.requests.append(request)
            request.number = len(self.requests)
            self.changed.notify_all()
        answer = self._scripted("head", request)
        unread = answer and (chunked or length)
        if not answer:
            self._read_body(connection, request, length, chunked)
            answer = self._answer(request)
            if request.length > KEEP_BYTES:
                request.body = None
        try:
            goes_on = self._send(connection, request, answer)
        finally:
            self._done(request)
        return goes_on and not unread and (request.headers.get("Connection") or "").lower() != "close"

    def _parse(self, head, number):
        lines = head.decode("latin-1").split("\r\n")
        first = re.fullmatch(r"([A-Z]+) (/[\x21-\x7e]*|\*) HTTP/1\.1", lines[0])
        if not first:
            raise Malformed(f"request line {lines[0][:200]!r}")
        fields = []
        for line in lines[1:]:
            field = re.fullmatch(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*", line)
            if not field:
                raise Malformed(f"header line {line[:200]!r}")
            fields.append(field.groups())
        headers = Headers(fields)
        if len(headers.all("Host")) != 1:
            raise Malformed(f"{len(headers.all('Host'))} Host fields")
        if len(headers.all("Authorization")) > 1:
            raise Malformed("several Authorization fields")
        return Request(first[1], first[2], headers, number)

    @staticmethod
    def _framing(request):
        lengths, encodings = request.headers.all("Content-Length"), request.headers.all("Transfer-Encoding")
        if len(lengths) + len(encodings) > 1:
            raise Malformed(f"length {lengths} and encoding {encodings} together")
        if encodings and encodings[0].lower() != "chunked":
            raise Malformed(f"Transfer-Encoding {encodings[0]!r}")
        if lengths and not re.fullmatch(r"\d{1,18}", lengths[0]):
            raise Malformed(f"Content-Length {lengths[0]!r}")
        if request.method in ("POST", "PUT", "PATCH") and not lengths and not encodings:
            raise Malformed(f"{request.method} without a length")
        return int(lengths[0]) if lengths else 0, bool(encodings)

    def _read_body(self, connection, request, length, chunked):
        if (request.headers.get("Expect") or "").lower() == "100-continue" and self.continues and not connection.buffer:
            connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray()
        try:
            if chunked:
                connection.chunks(body)
            else:
                connection.exactly(length, body)
            request.complete = True
        finally:
            request.body, request.length = bytes(body), len(body)
            if not request.complete:
                self.cut_short(request)
                self._done(request)

    def _done(self, request):
        with self.changed:
            request.done = time.monotonic()
            self.changed.notify_all()

    def _answer(self, request):
        answer = self._scripted("before", request) or self.handle(request)
        return self._scripted("after", request, answer) or answer

    def _scripted(self, stage, request, *more):
        with self.lock:
            rules = [r for r in self._rules if r.stage == stage and r.strikes(request)]
        for rule in rules:
            answer = rule.answer(request, *more) if callable(rule.answer) else rule.answer
            if answer is not None:
                return self.error(answer) if isinstance(answer, int) else answer
        return None

    # --- sending

    def _send(self, connection, request, answer):
        if answer.delay and self._closing.wait(answer.delay):
            raise Gone
        if answer.how == "hang":
            connection.silence()
        if answer.how == "fin":
            connection.abrupt = True
            return False
        if answer.how == "rst":
            raise ConnectionResetError
        request.status = answer.status

        def send(data):
            request.sent += len(data)
            connection.send(data)

        if answer.how == "raw":
            send(answer.body)
            return False
        for interim in answer.interim:
            send(head_bytes(*(interim if isinstance(interim, tuple) else (interim, ()))))
        bodiless = request.method == "HEAD" or answer.status in (204, 304) or answer.status < 200
        return self._send_final(connection, answer, bodiless, send)

    def _send_final(self, connection, answer, bodiless, send):
        headers = Headers(answer.headers)
        chunked = answer.how in ("chunked", "endless", "cut-chunks")
        announced = announced_length(answer)
        ends = answer.close or answer.how in ("close", "short", "cut-chunks")
        if chunked and not bodiless:
            headers.fields.append(("Transfer-Encoding", "chunked"))
        elif "Content-Length" not in headers and answer.how != "close" and answer.status not in (204, 304):
            headers.fields.append(("Content-Length", str(announced)))
        if ends and "Connection" not in headers:
            headers.fields.append(("Connection", "close"))
        head = head_bytes(answer.status, headers, answer.reason)
        if answer.how == "endless-head":
            self._endless_head(head, send)
        body = b"" if bodiless else answer.body
        if answer.how == "drip":
            self._drip(head + body, answer.pause, send)
        elif chunked and not bodiless:
            send(head)
            self._chunked(answer, send)
        elif answer.how == "fill" and not bodiless:
            send(head)
            fill(body, announced, send)
        else:
            send(head + body)
        if answer.how == "hang-body":
            connection.silence()
        return not ends

    def _endless_head(self, head, send):
        send(head[:-2])
        line = b"X-Filler: " + b"x" * 4000 + b"\r\n"
        while True:
            send(line)

    def _drip(self, data, pause, send):
        for byte in data:
            send(bytes((byte,)))
            if pause and self._closing.wait(pause):
                raise Gone

    def _chunked(self, answer, send):
        body = answer.body or (b"x" if answer.how == "endless" else b"")
        chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
        while answer.how == "endless":
            send(chunk)
        send(chunk if answer.how == "cut-chunks" else chunk + b"0\r\n\r\n")


def announced_length(answer):
    if answer.length is not None:
        return answer.length
    return len(answer.body) + (1000 if answer.how in ("short", "hang-body") else 0)


def head_bytes(status, headers=(), reason=None):
    reason = http.client.responses.get(status, "Unknown") if reason is None else reason
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{n}: {v}" for n, v in Headers(headers).fields)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def fill(piece, length, send):
    """Send `length` bytes that repeat the piece."""
    piece = piece or b"\0"
    block = piece * max(1, (1 << 16) // len(piece))
    while length > 0:
        send(block[:length])
        length -= min(length, len(block))


def that_hold(requests, secret):
    """The requests in which a secret occurs, in head or kept body: for canaries."""
    secret = secret.encode() if isinstance(secret, str) else secret
    return [r for r in requests if secret in (r.line + repr(r.headers)).encode() + (r.body or b"")]
