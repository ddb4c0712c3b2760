# SPDX-License-Identifier: Apache-2.0
# In front of upload.py, and of all that takes time: TERM means that the program is told to end, and its last files are
# yet to come.
import signal
for name in ("SIGTERM", "SIGINT", "SIGQUIT"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
