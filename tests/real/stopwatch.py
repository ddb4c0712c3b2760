# SPDX-License-Identifier: Apache-2.0
"""The time that this machine gave to its processes.

A virtual machine that is paused, or one that gives nobody a turn for a while, makes every program late. What a test says
about limits of dlrun must not depend on that, so such standstills are left out: seen by a thread that wakes up often.
"""

import threading
import time

TICK_S = 0.02
STANDSTILL_S = 0.25  # A tick that comes so much too late.


class _Standstills:
    def __init__(self):
        self.left_out_s, self.last, self.lock = 0.0, time.monotonic(), threading.Lock()
        threading.Thread(target=self._tick, daemon=True).start()

    def look(self):
        """Seconds that were left out until now."""
        with self.lock:
            now = time.monotonic()
            late = now - self.last - TICK_S
            if late > STANDSTILL_S:
                self.left_out_s += late
            self.last = now
            return self.left_out_s, now

    def _tick(self):
        while True:
            time.sleep(TICK_S)
            self.look()


_standstills, _making = None, threading.Lock()


def running_time():
    """Like time.monotonic(), without the standstills since the first call."""
    global _standstills
    with _making:
        _standstills = _standstills or _Standstills()
    left_out, now = _standstills.look()
    return now - left_out


class Stopwatch:
    """How long something takes: not less by any clock, and not longer than this machine is to blame for."""

    def __init__(self):
        self.began, self.began_running = time.monotonic(), running_time()

    def between(self, least_s, most_s):
        return time.monotonic() - self.began >= least_s and running_time() - self.began_running < most_s
