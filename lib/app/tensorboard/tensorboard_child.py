# SPDX-License-Identifier: Apache-2.0
# Runs TensorBoard for dlrun, in TensorBoard's own interpreter.
#
# This text comes in the first line of standard input, what is wanted in the second, because
# everybody on this machine can read the arguments of a process: the secret path is in none. The end
# of standard input is the end of dlrun, and of this.
import array
import atexit
import io
import json
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time

UNSHARE_USER_AND_NET = 0x10000000 | 0x40000000
SET_INTERFACE_FLAGS = 0x8914
UP = 0x41


def leave_network():
    """Into a network that nobody else is in: only descriptors that are handed out lead there."""
    import ctypes
    import fcntl

    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(UNSHARE_USER_AND_NET):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", "%d %d 1" % (user, user)),
                       ("gid_map", "%d %d 1" % (group, group))):
        with open("/proc/self/" + name, "w") as file:
            file.write(text)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SET_INTERFACE_FLAGS, struct.pack("16sH22x", b"lo", UP))
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        client.connect(listener.getsockname())


def may_leave_network():
    """Systems refuse it at any step, and there is no way back: a child tries."""
    if sys.platform != "linux":
        return False
    child = os.fork()
    if child == 0:
        try:
            leave_network()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def hand_out_sockets(reader, link):
    """One of this network for each byte that comes."""
    while reader.read(1):
        try:
            with socket.socket() as one:
                fds = array.array("i", [one.fileno()])
                link.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        except OSError:
            link.sendall(b"-")


def serve(reader, link):
    try:
        hand_out_sockets(reader, link)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)


def version():
    try:
        from importlib.metadata import version as version_of

        return version_of("tensorboard")
    except Exception:
        return ""


def make_scratch():
    """TensorBoard tells everybody its path in the directory for temporary files."""
    scratch = tempfile.mkdtemp(prefix="dlrun-tensorboard-")
    atexit.register(shutil.rmtree, scratch, True)
    os.environ["TMPDIR"] = tempfile.tempdir = scratch


def main():
    os.umask(0o077)
    reader = io.open(os.dup(0), "rb", 0)
    wanted = json.loads(reader.readline().decode())
    link = socket.socket(fileno=os.dup(0)) if wanted["link"] else None
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.path[:] = [path for path in sys.path if path]
    alone = bool(link) and may_leave_network()
    if alone:
        leave_network()
    if not wanted["scratch"]:
        make_scratch()
    if link:
        link.sendall(json.dumps({"alone": alone, "version": version()}).encode() + b"\n")
    thread = threading.Thread(target=serve, args=(reader, link))
    thread.daemon = True
    thread.start()
    words = ["--logdir", wanted["logdir"] or os.environ["DLRUN_OUTPUT_DIR"]] + wanted["words"]
    # Its data server answers everybody who can connect, without any secret.
    if not alone and not wanted["fast"]:
        words += ["--load_fast=false", "--reload_multifile=true"]
    from tensorboard.main import run_main

    sys.argv = ["tensorboard"] + words
    sys.exit(run_main())


main()
