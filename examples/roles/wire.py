# SPDX-License-Identifier: Apache-2.0
"""JSON messages on a socket, each behind its length."""

import json
import struct

LIMIT = 16 << 20


def send(sock, value):
    data = json.dumps(value).encode()
    sock.sendall(struct.pack(">I", len(data)) + data)


def receive(sock):
    """The next message, or None when the other side has closed."""
    head = read(sock, 4)
    if head is None:
        return None
    size, = struct.unpack(">I", head)
    if size > LIMIT:
        raise ValueError(f"a message of {size} bytes")
    data = read(sock, size)
    return None if data is None else json.loads(data)


def read(sock, n):
    data = b""
    while len(data) < n:
        part = sock.recv(n - len(data))
        if not part:
            return None
        data += part
    return data
