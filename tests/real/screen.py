# SPDX-License-Identifier: Apache-2.0
"""A dlrun command on a terminal of its own that draws until a key ends it."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios


class Screen:
    def __init__(self, w, *words):
        self.fd, terminal = pty.openpty()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = self.keys()
        self.shown = bytearray()
        self.process = subprocess.Popen([w.dlrun, *words], cwd=w.tree, env=w.env | {"TERM": "xterm"}, stdin=terminal, stdout=terminal,
                                        stderr=terminal, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(terminal)

    def keys(self):
        return termios.tcgetattr(self.fd)[3] & (termios.ICANON | termios.ECHO)

    def read(self, seconds=0.1):
        """What has come since."""
        ready, _, _ = select.select([self.fd], [], [], seconds)
        try:
            more = os.read(self.fd, 65536) if ready else b""
        except OSError:
            more = b""
        self.shown.extend(more)
        return more

    def look(self):
        """All that ever came until now."""
        self.read()
        return bytes(self.shown)

    def press(self, key):
        os.write(self.fd, key)

    def leave(self, key, status):
        """It ends by that key, with the terminal as it was."""
        self.press(key)
        rest = b""
        while b"\x1b[?1049l" not in rest:
            more = self.read(10)
            assert more, rest
            rest += more
        assert self.process.wait(30) == status
        assert self.keys() == self.before
        os.close(self.fd)
