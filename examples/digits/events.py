# SPDX-License-Identifier: Apache-2.0
"""Write TensorBoard event files with nothing but the standard library.

An event file is a row of TFRecord frames, and each frame holds one protobuf message `Event`
(tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto):

    frame:  u64 length | u32 masked crc32c of the length | bytes | u32 masked crc32c of the bytes
    Event:  double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5
    Summary: repeated Value value = 1;  Value: string tag = 1; float simple_value = 2
"""

import os
import socket
import struct
import time


def _crc32c_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C = _crc32c_table()


def masked_crc32c(data):
    """The checksum of a TFRecord. It is masked because the data may hold checksums itself."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC32C[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(number):
    """A whole number >= 0 as protobuf writes it: seven bits a byte, the lowest first."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _key(field, wire_type):
    return _varint(field << 3 | wire_type)


def _int64(field, number):
    return _key(field, 0) + _varint(number)


def _double(field, number):
    return _key(field, 1) + struct.pack("<d", number)


def _bytes(field, data):
    return _key(field, 2) + _varint(len(data)) + data


def _float(field, number):
    return _key(field, 5) + struct.pack("<f", number)


def _frame(data):
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", masked_crc32c(length)),
                     data, struct.pack("<I", masked_crc32c(data))))


class EventWriter:
    """One event file in `directory`. Every call reaches the file before it returns, so that a
    viewer sees a run that is still going, and a killed run keeps what it wrote."""

    def __init__(self, directory):
        # TensorBoard reads any file with "tfevents" in its name, and sorts them by this number.
        name = "events.out.tfevents.%010d.%s.%d" % (time.time(), socket.gethostname(), os.getpid())
        self._file = open(os.path.join(directory, name), "xb")
        self._write(_bytes(3, b"brain.Event:2"))  # the version record that must come first

    def scalars(self, step, **values):
        """Write numbers that belong to one step, each under the name of its argument."""
        summary = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value))
                           for tag, value in values.items())
        self._write(_int64(2, step) + _bytes(5, summary))

    def close(self):
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _write(self, fields):
        self._file.write(_frame(_double(1, time.time()) + fields))
        self._file.flush()
