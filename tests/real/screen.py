"""A dlrun command on a terminal of its own that draws until a key ends it."""

import fcntl
import os
import pty
import select
import struct
import termios


class Screen:
    def __init__(self, w, *words):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(w.tree)
            os.execve(w.dlrun, ["dlrun", *words], w.env | {"TERM": "xterm"})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = self.keys()
        self.shown = bytearray()

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
        _, code = os.waitpid(self.pid, 0)
        assert os.waitstatus_to_exitcode(code) == status
        assert self.keys() == self.before
        os.close(self.fd)
