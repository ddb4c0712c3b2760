#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that delays, throttles, cuts, stalls and corrupts what passes through it.

    tests/fake/faultproxy.py [--listen HOST[:PORT]] [--delay S] [--connect-delay S] [--rate B/S]
                             [--fault JSON]… [--control] HOST:PORT

prints its address as the first line and runs until SIGTERM or SIGINT. With --control each line of
standard input is a JSON object of switches (see FaultProxy.set), {"fault": {…}} or {"clear": true},
each is answered with a line of counts, and end of input ends the proxy.

One thread serves all connections. In a test's own process it shares the interpreter with the test:
where milliseconds matter, use ProxyProcess.
"""

import argparse
import collections
import dataclasses
import errno
import heapq
import json
import select
import socket
import struct
import subprocess
import sys
import threading
import time

READ_BYTES = 1 << 18
QUEUE_BYTES = 64 << 20
LINGER_S = 0.2
# Of a process of its own.
AWAKE_S = 0.0003
SIDES = ("request", "response")
WAYS = ("fin", "rst", "stall", "hole", "flip")


@dataclasses.dataclass(eq=False)
class Fault:
    """Something that goes wrong at one byte of one direction.

    how         "fin": both connections end in order; "rst": both are reset; "stall": nothing passes
                in either direction from here on, nothing is closed; "hole": the connection is
                accepted, the server never hears of it and nothing is ever said; "flip": bit `bit` of
                byte number `after` is inverted and everything goes on.
    side        "request" (client to server) or "response".
    after       this many bytes of the side are passed on first (flip: that precede the byte). A cut
                of a response after 0 bytes happens when its first byte comes, so the server has
                done its work: the answer is swallowed. A cut of a request after 0 bytes happens
                when the connection is accepted, or with `exchange` at that request's first byte.
    connection  the number, from 1, of the connection in the order of accepting; None: any.
    exchange    None: bytes count from the start of the connection. A number, from 1: bytes count
                from the start of that exchange, numbered over all connections of the proxy in the
                order in which they begin; 0: from the start of every exchange. An exchange begins
                with the first bytes from a client that the server has answered all earlier ones of
                (so a protocol that takes turns; an answer that comes before the end of the request
                splits it).
    times       how often at most; None: always.
    fired       how often it has happened (`taken` counts those that are still under way too).
    """

    how: str
    side: str = "request"
    after: int = 0
    connection: int | None = None
    exchange: int | None = None
    times: int | None = None
    bit: int = 0
    fired: int = 0
    taken: int = 0

    def __post_init__(self):
        if self.how not in WAYS or self.side not in SIDES or self.after < 0 or not 0 <= self.bit < 8:
            raise ValueError(f"no such fault: {self}")

    @property
    def spent(self):
        return self.times is not None and self.taken >= self.times

    def take(self):
        """It is on its way: behind the bytes before it, which may be delayed."""
        self.taken += 1
        return self

    def wants(self, flow):
        """The offset in the flow's stream where it strikes, or None if it is not for this flow."""
        link = flow.link
        if self.spent or self.side != flow.side or self.connection not in (None, link.number):
            return None
        if self.exchange is None:
            return self.after
        if not link.exchange or self.exchange not in (0, link.exchange):
            return None
        return flow.exchange_start + self.after


class Flow:
    """One direction of a connection: what was read, when it may go out, what is being written."""

    def __init__(self, link, side, source, target):
        self.link, self.side, self.source, self.target = link, side, source, target
        self.queue = collections.deque()  # (release time, bytes | None for end | Fault)
        self.queued = 0
        self.out = memoryview(b"")
        self.read_bytes = 0
        self.exchange_start = 0
        self.passed = 0
        self.struck = {}  # fault -> offset of its last strike
        self.ended = False  # nothing more is read
        self.shut = False   # the end was passed on

    @property
    def up(self):
        return self.side == "request"


class Link:
    """A connection of a client and the one to the server that belongs to it."""

    def __init__(self, number, client):
        self.number, self.client, self.server = number, client, None
        self.accepted = time.monotonic()
        self.exchange = 0
        self.exchanges = 0
        self.turn = "response"
        self.connected = False
        self.state = "open"  # "stalled", "lingering", "closed"
        self.flows = ()

    def counts(self):
        up, down = (flow.passed for flow in self.flows) if self.flows else (0, 0)
        return {"number": self.number, "up": up, "down": down, "exchanges": self.exchanges, "state": self.state}


def pair(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def split_address(address):
    if not isinstance(address, str):
        return tuple(address)
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class FaultProxy:
    """A proxy in a thread of this process, from construction until close() or the end of `with`.

    target         "HOST:PORT" or (HOST, PORT) of the server.
    listen         the address to listen on; port 0: a free one.
    delay          seconds that every byte is under way, (up, down) or one number for each of both:
                   half of the round trip that is added. Bytes are stamped when they come and
                   released later, so it limits no bandwidth (64 MiB may be under way).
    connect_delay  seconds before the first bytes of a new connection are taken: one round trip
                   stands for the TCP handshake, which the listening kernel does at once.
    rate           bytes per second of all connections together, (up, down) or one number; None:
                   unlimited. What the sender's kernel buffers (64 KiB here) seems sent to it.
    refuse         True: the port is closed, so connecting is refused; connections that exist go on.
    faults         Fault objects; see fault().

    address "HOST:PORT", host, port; accepted: connections so far; exchanges: so far, of all
    connections; up and down: bytes passed on to the server and to the client.
    """

    SWITCHES = ("delay", "connect_delay", "rate", "refuse")
    # The last part of a delay that is waited for awake: who sleeps is woken too late.
    awake_s = 0.0

    def __init__(self, target, listen=("127.0.0.1", 0), delay=0.0, connect_delay=0.0, rate=None, refuse=False,
                 faults=()):
        host, port = split_address(target)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._family, self._target = found[0], found[4]
        self._listener = None
        self._epoll = select.epoll()
        self._handlers = {}
        self._masks = {}
        self._timers = []
        self._timer_serial = 0
        self._lock = threading.RLock()
        self._free_at = {side: 0.0 for side in SIDES}
        self._links = []
        self._closing = False
        self.exchanges = 0
        self.faults = list(faults)
        self.delay = self.connect_delay = 0.0
        self.rate, self.refuse = None, False
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_in.setblocking(False)
        self._watch(self._wake_in, select.EPOLLIN, lambda _: self._woken())
        self._holder = self._bind(split_address(listen))  # the port is nobody else's while no listener has it
        self._listen = self.host, self.port = self._holder.getsockname()[:2]
        self._open_listener()
        self.address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        self.set(delay=delay, connect_delay=connect_delay, rate=rate, refuse=refuse)
        self._thread = threading.Thread(target=self._run, name="faultproxy", daemon=True)
        self._thread.start()

    # --- for tests

    def set(self, **switches):
        """Change switches of the constructor; bytes already under way keep their time."""
        unknown = set(switches) - set(self.SWITCHES)
        if unknown:
            raise TypeError(f"no such switch: {sorted(unknown)}")
        with self._lock:
            for name, value in switches.items():
                setattr(self, name, pair(value) if name in ("delay", "rate") else value)
            if self.refuse and self._listener:
                self._forget(self._listener)
                self._listener = None
            elif not self.refuse and not self._listener:
                self._open_listener()
        self._wake()

    def fault(self, how, side="request", after=0, **more):
        """Add a Fault (same arguments) and return it; its `fired` tells whether it has happened."""
        fault = Fault(how, side, after, **more)
        with self._lock:
            self.faults.append(fault)
        return fault

    def swallow(self, exchange, how="fin"):
        """The server gets this exchange's request, the client never its answer."""
        return self.fault(how, "response", 0, exchange=exchange, times=1)

    def clear(self):
        """No faults from now on; what is stalled stays so."""
        with self._lock:
            self.faults.clear()

    def cut_all(self, how="rst"):
        """End every connection that is open now ("fin" or "rst")."""
        with self._lock:
            for link in self._links:
                self._cut(link, how)

    @property
    def connections(self):
        """One dict per connection ever accepted: number, up, down (bytes), exchanges, state."""
        with self._lock:
            return [link.counts() for link in self._links]

    @property
    def accepted(self):
        return len(self._links)

    @property
    def up(self):
        return self.counts()["up"]

    @property
    def down(self):
        return self.counts()["down"]

    def counts(self):
        """accepted, exchanges, up and down of one moment: what a peer has read is counted."""
        links = self.connections
        up, down = (sum(link[side] for link in links) for side in ("up", "down"))
        return {"accepted": len(links), "exchanges": sum(link["exchanges"] for link in links), "up": up, "down": down}

    def close(self):
        if self._closing:
            return
        self._closing = True
        self._wake()
        self._thread.join()
        for link in self._links:
            self._close(link)
        if self._listener:
            self._listener.close()
        self._holder.close()
        self._wake_in.close()
        self._wake_out.close()
        self._epoll.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # --- the loop

    def _run(self):
        poller = select.poll()
        poller.register(self._epoll.fileno(), select.POLLIN)
        fine = self._epoll.fileno() < 1024
        while not self._closing:
            timeout = self._next_timer()
            if timeout is not None:
                timeout = max(0.0, timeout - self.awake_s)
            if timeout != 0:
                # epoll waits whole milliseconds, select does not
                if fine:
                    select.select([self._epoll], [], [], timeout)
                else:
                    poller.poll(None if timeout is None else timeout * 1000)
            with self._lock:
                for fd, events in self._epoll.poll(0):
                    handler = self._handlers.get(fd)
                    if handler:
                        handler(events)
                self._run_timers()

    def _next_timer(self):
        with self._lock:
            return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _at(self, when, action):
        self._timer_serial += 1
        heapq.heappush(self._timers, (when, self._timer_serial, action))

    def _run_timers(self):
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()

    def _wake(self):
        try:
            self._wake_out.send(b"x")
        except OSError:
            pass

    def _woken(self):
        self._wake_in.recv(4096)
        for link in self._links:
            self._look(link)

    def _watch(self, sock, events, handler):
        fd = sock.fileno()
        self._handlers[fd] = handler
        self._masks[fd] = events
        self._epoll.register(fd, events)

    def _want(self, sock, events):
        fd = sock.fileno()
        if fd in self._masks and self._masks[fd] != events:
            self._masks[fd] = events
            self._epoll.modify(fd, events)

    def _unwatch(self, sock):
        """Hang-ups are told for ever, wanted or not."""
        fd = sock.fileno()
        if self._handlers.pop(fd, None):
            del self._masks[fd]
            self._epoll.unregister(fd)

    def _forget(self, sock):
        self._unwatch(sock)
        sock.close()

    # --- connections

    def _bind(self, address):
        bound = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        return bound

    def _open_listener(self):
        self._listener = self._bind(self._listen)
        self._listener.listen(512)
        self._listener.setblocking(False)
        self._watch(self._listener, select.EPOLLIN, lambda _: self._accept())

    def _accept(self):
        while self._listener:
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.ECONNABORTED, errno.EINTR):
                    continue
                return
            self._new_link(client)

    def _new_link(self, client):
        link = Link(len(self._links) + 1, client)
        self._links.append(link)
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.rate != (None, None):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        fault = self._at_accept(link)
        if fault and fault.how == "hole":
            fault.fired += 1
            link.state = "stalled"
            return
        link.server = socket.socket(self._family, socket.SOCK_STREAM)
        link.server.setblocking(False)
        link.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.flows = (Flow(link, "request", client, link.server), Flow(link, "response", link.server, client))
        if link.server.connect_ex(self._target) not in (0, errno.EINPROGRESS):
            self._cut(link, "rst")
            return
        self._watch(client, 0, lambda events: self._ready(link, link.flows[0], link.flows[1], events))
        self._watch(link.server, select.EPOLLOUT,
                    lambda events: self._ready(link, link.flows[1], link.flows[0], events))
        if fault:
            self._strike(link.flows[0], fault)
        elif self.connect_delay:
            self._at(link.accepted + self.connect_delay, lambda: self._look(link))
        self._look(link)

    def _at_accept(self, link):
        for fault in self.faults:
            early = fault.how == "hole" or (fault.how in ("fin", "rst", "stall") and fault.side == "request"
                                            and fault.after == 0 and fault.exchange is None)
            if early and not fault.spent and fault.connection in (None, link.number):
                return fault.take()
        return None

    def _ready(self, link, reads, writes, events):
        """A socket is the source of one flow and the target of the other."""
        lost = events & (select.EPOLLHUP | select.EPOLLERR)
        if link.state == "lingering":
            self._drain(reads.source)
        elif link.state == "stalled" and lost:
            self._unwatch(reads.source)
        if link.state != "open":
            return
        if reads.source is link.server and not link.connected:
            if link.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._cut(link, "rst")
                return
            link.connected = True
        if reads.ended and lost:
            self._unwatch(reads.source)
            if events & select.EPOLLERR:
                self._cut(link, "rst")
        elif lost or (events & select.EPOLLIN and self._may_read(reads)):
            self._read(reads)
        if link.state == "open":
            self._pump(writes)
        self._look(link)

    def _may_read(self, flow):
        if flow.ended or flow.link.state != "open" or flow.queued >= self._limit(flow):
            return False
        return not flow.up or time.monotonic() >= flow.link.accepted + self.connect_delay

    def _limit(self, flow):
        rate = self.rate[not flow.up]
        return max(4096, int(rate * (self.delay[not flow.up] + 0.05))) if rate else QUEUE_BYTES

    def _look(self, link):
        """Ask the kernel for what this connection can do now."""
        if link.state != "open" or not link.flows:
            return
        request, response = link.flows
        for reads, writes in ((request, response), (response, request)):
            events = select.EPOLLIN if self._may_read(reads) else 0
            if writes.out or (reads.source is link.server and not link.connected):
                events |= select.EPOLLOUT
            self._want(reads.source, events)

    def _read(self, flow):
        rate = self.rate[not flow.up]
        size = min(READ_BYTES, max(1, int(rate * 0.01))) if rate else READ_BYTES
        try:
            data = flow.source.recv(size)
        except BlockingIOError:
            return
        except OSError:
            data = None
        now = time.monotonic()
        if not data:
            flow.ended = True
            self._enqueue(flow, now + self.delay[not flow.up], Fault("rst") if data is None else None)
            return
        self._turn(flow)
        release = now
        if rate:
            release = max(now, self._free_at[flow.side]) + len(data) / rate
            self._free_at[flow.side] = release
        self._inject(flow, data, release + self.delay[not flow.up])

    def _turn(self, flow):
        link = flow.link
        if flow.up and link.turn == "response":
            self.exchanges += 1
            link.exchange = self.exchanges
            link.exchanges += 1
            for each in link.flows:
                each.exchange_start = each.read_bytes
        link.turn = flow.side

    def _inject(self, flow, data, release):
        """Queue the bytes up to the first fault among them, and the fault."""
        start, end = flow.read_bytes, flow.read_bytes + len(data)
        cut = None
        for fault in self.faults:
            at = fault.wants(flow)
            if at is None or flow.struck.get(fault) == at:
                continue
            if fault.how == "flip":
                if start <= at < end:
                    data = bytearray(data)
                    data[at - start] ^= 1 << fault.bit
                    fault.take().fired += 1
                    flow.struck[fault] = at
            elif fault.how != "hole" and start <= at <= end and (cut is None or at < cut[0]):
                cut = (at, fault)
        if cut:
            data = data[:cut[0] - start]
            flow.struck[cut[1]] = cut[0]
            flow.ended = True
        flow.read_bytes += len(data)
        if data:
            self._enqueue(flow, release, data)
        if cut:
            self._enqueue(flow, release, cut[1].take())

    def _enqueue(self, flow, release, item):
        flow.queue.append((release, item))
        if isinstance(item, (bytes, bytearray)):
            flow.queued += len(item)
        if release <= time.monotonic():
            self._pump(flow)
        else:
            self._at(release, lambda: self._due(flow))

    def _due(self, flow):
        if flow.link.state == "open":
            self._pump(flow)
            self._look(flow.link)

    def _pump(self, flow):
        """Write what is due; a fault or the end comes after all bytes before it."""
        if not flow.link.connected and flow.up:
            return
        while flow.link.state == "open":
            if flow.out:
                if not self._write(flow):
                    return
                continue
            if not flow.queue or flow.queue[0][0] > time.monotonic():
                return
            item = flow.queue.popleft()[1]
            if isinstance(item, Fault):
                self._strike(flow, item)
            elif item is None:
                self._pass_end(flow)
            else:
                flow.out = memoryview(item)

    def _write(self, flow):
        try:
            sent = flow.target.send(flow.out)
        except BlockingIOError:
            return False
        except OSError:
            self._cut(flow.link, "rst")
            return False
        flow.out = flow.out[sent:]
        flow.queued -= sent
        flow.passed += sent
        return True

    def _pass_end(self, flow):
        flow.shut = True
        try:
            flow.target.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        if all(each.shut for each in flow.link.flows):
            self._close(flow.link)

    # --- ends

    def _strike(self, flow, fault):
        fault.fired += 1
        if fault.how == "stall":
            flow.link.state = "stalled"
            self._want(flow.source, 0)
            self._want(flow.target, 0)
        else:
            self._cut(flow.link, fault.how)

    def _cut(self, link, how):
        if link.state in ("closed", "lingering"):
            return
        if how == "fin" and link.flows:
            # A close with bytes unread would be a reset
            link.state = "lingering"
            for sock in (link.client, link.server):
                try:
                    sock.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
                self._want(sock, select.EPOLLIN)
            self._at(time.monotonic() + LINGER_S, lambda: self._close(link))
            return
        for sock in (link.client, link.server):
            if sock and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._close(link)

    def _drain(self, sock):
        try:
            if sock.recv(READ_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._unwatch(sock)

    def _close(self, link):
        if link.state == "closed":
            return
        link.state = "closed"
        for sock in (link.client, link.server):
            if sock and sock.fileno() >= 0:
                self._forget(sock)
        for flow in link.flows:
            flow.queue.clear()
            flow.out = memoryview(b"")


class ProxyProcess:
    """A FaultProxy in a process of its own, for exact times: same arguments (no Fault objects).

    set(**switches), fault(**arguments), clear() and counts() return the counts of that moment.
    """

    def __init__(self, target, **switches):
        target = target if isinstance(target, str) else f"{target[0]}:{target[1]}"
        self._process = subprocess.Popen([sys.executable, __file__, "--control", target], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            self.close()
            raise RuntimeError("the proxy did not start")
        self.host, self.port = split_address(self.address)
        if switches:
            self.set(**switches)

    def _ask(self, words):
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer

    def set(self, **switches):
        return self._ask(switches)

    def fault(self, how, side="request", after=0, **more):
        return self._ask({"fault": {"how": how, "side": side, "after": after, **more}})

    def clear(self):
        return self._ask({"clear": True})

    def counts(self):
        return self._ask({})

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def obey(proxy, line):
    try:
        words = json.loads(line)
        fault, clear = words.pop("fault", None), words.pop("clear", False)
        if clear:
            proxy.clear()
        if fault:
            proxy.fault(**fault)
        proxy.set(**words)
        return proxy.counts()
    except (ValueError, TypeError, AttributeError) as error:
        return {"error": str(error)}


def main():
    parser = argparse.ArgumentParser(description="A TCP proxy with faults.")
    parser.add_argument("target", metavar="HOST:PORT")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT")
    parser.add_argument("--delay", type=float, default=0.0, metavar="S", help="each way: half of the round trip")
    parser.add_argument("--connect-delay", type=float, default=0.0, metavar="S")
    parser.add_argument("--rate", type=float, metavar="BYTES/S")
    parser.add_argument("--fault", action="append", default=[], type=json.loads, metavar="JSON")
    parser.add_argument("--control", action="store_true", help="read switches from standard input")
    args = parser.parse_args()
    faults = [Fault(**fault) for fault in args.fault]
    FaultProxy.awake_s = AWAKE_S
    with FaultProxy(args.target, args.listen, args.delay, args.connect_delay, args.rate, faults=faults) as proxy:
        print(proxy.address, flush=True)
        try:
            if args.control:
                for line in sys.stdin:
                    print(json.dumps(obey(proxy, line)), flush=True)
            else:
                threading.Event().wait()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
