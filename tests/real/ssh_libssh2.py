#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Connections by libssh2 to real servers: logins, keys of hosts, commands, many channels, lost connections."""

import base64
import contextlib
import hashlib
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

from harness import *  # noqa: F403
from sshsite import PASSPHRASE, SshSite, call, make_key, public

FALLBACK, FAILED = 126, 125
# libssh2 1.10 keeps a little of each ecdsa key and of each further key exchange.
ENV = {"ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:detect_leaks=0"}


def tool(w):
    path = Path(w.dlrun).parent / "tests/real/ssh_libssh2_tool"
    if not path.exists():
        raise Skip("ssh_libssh2_tool is not built")
    return path


def words_for(s, name, *, key="ed25519", known=True):
    host = s[name]
    words = [f"host={host.address}", f"port={host.port}", f"user={host.accounts[0]}"]
    words += [f"id={s.key(key)}"] if key else []
    return words + ([f"known={s.known_hosts}"] if known else [])


def connect(s, name, *words, key="ed25519", known=True, **more):
    return s.w.command([tool(s.w), *words_for(s, name, key=key, known=known), *words], env=ENV, **more)


def begin(s, name, *words):
    return subprocess.Popen([tool(s.w), *words_for(s, name), *words], env={**s.w.env, **ENV}, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def says(done, rc, *texts):
    assert done.rc == rc and all(re.search(text, done.err) for text in texts), (texts, done)


@contextlib.contextmanager
def server(answer):
    """A TCP server here, and its port; answer(connection) is called for each connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=500) as listening:
        def accept():
            while True:
                try:
                    one, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(one,), daemon=True).start()

        def serve(one):
            with one, contextlib.suppress(OSError):
                answer(one)
        threading.Thread(target=accept, daemon=True).start()
        yield str(listening.getsockname()[1])
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


# One response, before the connection ends.
AGENT_NONSENSE = [b"", b"\0\0", b"\0\0\0\0\x0c", b"\xff\xff\xff\xff\x0c", b"\0\0\0\1\5", b"\0\0\0\1\x0c", b"\0\0\0\5\x0c\0\0\0\1",
                  b"\0\0\0\x09\x0c\0\0\0\1\xff\xff\xff\xff", b"\0\0\0\x40\x0c\0\0\0\1", b"\0\0\0\x10\x0c\0\0\0\1\0\0\0\3abc\0\0\0\0"]


@contextlib.contextmanager
def agent_that_says(path, answer):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    with listening.accept()[0] as one, contextlib.suppress(OSError):
                        if one.recv(5):
                            one.sendall(answer)
        threading.Thread(target=serve, daemon=True).start()
        yield path
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def agent_that_never_signs(path, key, seconds):
    """An agent that has one key, and goes away when nobody confirmed that it may be used."""
    blob = base64.b64decode(Path(f"{key}.pub").read_text().split()[1])
    keys = b"\x0c\0\0\0\1" + struct.pack(">I", len(blob)) + blob + b"\0\0\0\0"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    with listening.accept()[0] as one, contextlib.suppress(OSError):
                        if one.recv(5):
                            one.sendall(struct.pack(">I", len(keys)) + keys)
                            if one.recv(5):
                                time.sleep(seconds)
        threading.Thread(target=serve, daemon=True).start()
        yield path
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


def echo(one):
    while data := one.recv(1 << 16):
        one.sendall(data)
    one.shutdown(socket.SHUT_WR)


def digest_at_end(one):
    """The client's end comes first, then the answer: half-closed connections."""
    seen = hashlib.sha256()
    while data := one.recv(1 << 16):
        seen.update(data)
    one.sendall(seen.hexdigest().encode())


def test_how_commands_end(w):
    with SshSite(w) as s:
        s.host("gpu1")
        says(connect(s, "gpu1", "exec", "echo out; echo err >&2; exit 3"), 3, "\nerr\n", "exit 3")
        says(connect(s, "gpu1", "exec", "true"), 0, "exit 0")
        says(connect(s, "gpu1", "exec", "kill -9 $$"), 128, "signal KILL")
        says(connect(s, "gpu1", "exec", "kill -TERM $$"), 128, "signal TERM")
        done = connect(s, "gpu1", "exec", "-t", "stty size; exit 255")
        assert done.rc == 255 and done.out.split() == ["24", "80"], done
        # The server's process of this login dies: how the command ended is not known.
        says(connect(s, "gpu1", "exec", "kill -9 $PPID; sleep 9"), FAILED, "ssh.lost")


def test_the_first_command_is_begun_without_the_loop(w):
    with SshSite(w) as s:
        s.host("gpu1")
        done = connect(s, "gpu1", "first=date +%s.%N", "late=1500", "exec", "date +%s.%N; date +%s.%N")
        other = float(done.out.split()[0])
        done = connect(s, "gpu1", "first=date +%s.%N", "late=10000", "exec", "date +%s.%N")
        assert done.rc == 0 and time.time() - float(done.out) > 2 and time.time() - other < 60, done
        assert connect(s, "gpu1", "first=exit 5", "late=300", "exec", "exit 5").rc == 5


def test_bytes_arrive_unchanged(w):
    with SshSite(w) as s:
        s.host("gpu1")
        data = os.urandom(1 << 20) * 100
        want = hashlib.sha256(data).hexdigest()
        source = w.dir / "data"
        source.write_bytes(data)
        with source.open("rb") as stdin:
            done = connect(s, "gpu1", "exec", "sha256sum", stdin=stdin)
            assert done.rc == 0 and done.out.split()[0] == want, done.err
        with source.open("rb") as stdin:
            done = connect(s, "gpu1", "exec", "cat", stdin=stdin)
            assert done.rc == 0 and hashlib.sha256(done.out_bytes).hexdigest() == want, done.err
        # A reader that sleeps first; both flows at once.
        done = connect(s, "gpu1", "pause=1500", "exec", "head -c 50000000 /dev/zero | tee /dev/stderr")
        assert done.rc == 0 and len(done.out_bytes) == 50000000 and done.err_bytes.count(b"\0") == 50000000


def test_many_connections_and_key_exchanges(w):
    with SshSite(w) as s, server(echo) as port, server(digest_at_end) as digests:
        s.host("gpu1", settings={"RekeyLimit": "1M"})
        says(connect(s, "gpu1", "many", "100", "127.0.0.1", port, "1000000", timeout=300), 0)
        size = 1 << 30 if ALL else 1 << 27
        data = w.dir / "data"
        with data.open("wb") as file:
            block, want = os.urandom(1 << 20), hashlib.sha256()
            for i in range(size >> 20):
                file.write(block)
                want.update(block)
        with data.open("rb") as stdin:
            done = connect(s, "gpu1", "port", "127.0.0.1", digests, stdin=stdin, timeout=600)
        assert done.out == want.hexdigest(), done
        with data.open("rb") as stdin:
            done = connect(s, "gpu1", "port", "127.0.0.1", port, stdin=stdin, timeout=600)
        assert hashlib.sha256(done.out_bytes).hexdigest() == want.hexdigest(), done.err


def test_what_the_server_does_not_open(w):
    with SshSite(w) as s, server(echo) as port:
        s.host("one", settings={"MaxSessions": 1})
        done = connect(s, "one", "commands", "3", "sleep 8")
        assert done.out == "1 of 3\n" and done.err.count("ssh.refused: ") == 2 and "MaxSessions" in done.err, done
        s.host("closed", settings={"AllowTcpForwarding": "no"})
        says(connect(s, "closed", "port", "127.0.0.1", port), FAILED, "ssh.refused: .*AllowTcpForwarding")
        assert connect(s, "closed", "exec", "echo still").out == "still\n"
        s.host("open")
        says(connect(s, "open", "port", "127.0.0.1", "1"), FAILED, "ssh.port: nothing answers at 127.0.0.1 port 1")
        says(connect(s, "open", "commands", "50", "echo hi; sleep 0.2"), 0)


def test_keys_of_users(w):
    with SshSite(w) as s:
        s.host("gpu1", keys=("ed25519", "ecdsa", "rsa", "locked"))
        for kind in ("ed25519", "ecdsa"):
            says(connect(s, "gpu1", "exec", "true", key=kind), 0, f"logged in with .*id_{kind}")
        says(connect(s, "gpu1", "exec", "true", key=None), FALLBACK, "there is no key", "ssh.login")
        done = connect(s, "gpu1", "exec", "true", key="rsa")
        assert done.rc == 0 or (done.rc == FALLBACK and "none of the keys (1 RSA)" in done.err), done
        says(connect(s, "gpu1", "exec", "true", key="locked"), FALLBACK, "1 encrypted")
        says(connect(s, "gpu1", f"answer={PASSPHRASE}", "exec", "true", key="locked"), 0, "secret.*Passphrase of .*id_locked")
        says(connect(s, "gpu1", "answer=other", "exec", "true", key="locked"), FALLBACK, "1 encrypted")
        other = make_key(w.dir / "other")
        says(connect(s, "gpu1", f"id={other}", "answer=x", "exec", "true", key=None), FALLBACK, "none of 1 keys is accepted",
             "tried: .*other")
        other.chmod(0o644)
        says(connect(s, "gpu1", f"id={other}", "exec", "true", key=None), FALLBACK, "1 readable by others")
        says(connect(s, "gpu1", "user=nobodyhere", "exec", "true"), FALLBACK, "ssh.login.*nobodyhere")
        agent = s.agent("locked", "rsa")
        says(connect(s, "gpu1", f"agent={agent}", "exec", "true", key=None), 0, "logged in with the agent's key id_locked")
        says(connect(s, "gpu1", f"agent={agent}", "only=1", "exec", "true", key=None), FALLBACK, "there is no key")
        says(connect(s, "gpu1", f"agent={agent}", "only=1", "exec", "true", key="locked"), 0, "the agent's key")
        says(connect(s, "gpu1", f"agent={w.dir}/none", "exec", "true"), 0)
        # An agent that does not answer is not waited for for long.
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(f"{w.dir}/silent")
            silent.listen()
            says(connect(s, "gpu1", f"agent={w.dir}/silent", "exec", "true"), 0)
        for i, answer in enumerate(AGENT_NONSENSE):
            with agent_that_says(f"{w.dir}/agent{i}", answer) as path:
                says(connect(s, "gpu1", f"agent={path}", "exec", "true"), 0, "logged in with .*id_ed25519")
        s.host("words", settings={"PubkeyAuthentication": "no", "PasswordAuthentication": "yes"})
        says(connect(s, "words", "exec", "true"), FALLBACK, "accepts no keys, but password")


def test_agent_that_never_signs(w):
    """What a person took to confirm is not taken from the time for other keys (SSH_LOGIN_MS)."""
    with SshSite(w) as s:
        s.host("gpu1", keys=("ed25519", "ecdsa"))
        with agent_that_never_signs(f"{w.dir}/agent", s.key("ecdsa"), 16) as path:
            says(connect(s, "gpu1", f"agent={path}", "exec", "true"), 0, "logged in with .*id_ed25519")


def test_keys_of_hosts(w):
    with SshSite(w) as s:
        for known, rc, text in (("plain", 0, "exit 0"), ("hashed", 0, "exit 0"), ("changed", FAILED, "ssh.host_key.*has changed"),
                                ("revoked", FAILED, "ssh.host_key.*revoked"), ("", FAILED, "ssh.unknown_host.*not known yet")):
            s.host(f"h{known}", known=known)
            says(connect(s, f"h{known}", "exec", "true"), rc, text)
        s.host("signed", known="authority")
        says(connect(s, "signed", "alias=signed", "exec", "true"), FALLBACK, "certificate authority")
        s.host("rsa", host_keys=("rsa",))
        done = connect(s, "rsa", "exec", "true")
        assert done.rc == 0 or (done.rc == FALLBACK and "RSA key only" in done.err), done
        done = connect(s, "rsa", "strict=accept-new", "exec", "true", known=False)
        assert done.rc == 0 or (done.rc == FALLBACK and "RSA" in done.err), done
        # Of several keys the one that is known is asked for.
        host = s.host("both", host_keys=("ed25519", "ecdsa"))
        one = w.dir / "one"
        one.write_text(f"[{host.address}]:{host.port} {public(host.dir / 'host_ecdsa')}\n")
        says(connect(s, "both", f"known={one}", "exec", "true", known=False), 0, "ecdsa-sha2-nistp256")


def test_new_hosts(w):
    with SshSite(w) as s:
        host = s.host("new", known="")
        known, name = w.dir / "deep/known_hosts", f"[{s['new'].address}]:{s['new'].port}"
        new = dict(known=False)
        says(connect(s, "new", f"known={known}", "exec", "true", **new), FAILED, "ssh.unknown_host")
        says(connect(s, "new", f"known={known}", "answer=no", "exec", "true", **new), FAILED, "ssh.unknown_host")
        says(connect(s, "new", f"known={known}", "strict=yes", "answer=yes", "exec", "true", **new), FAILED, "ssh.unknown_host")
        assert not known.exists()
        done = connect(s, "new", f"known={known}", "answer=YES", "exec", "true", **new)
        says(done, 0, "question: .*SHA256:", "is known from now on")
        assert known.stat().st_mode & 0o777 == 0o600 and known.read_text() == f"{name} {public(host.dir / 'host_ed25519')}\n"
        says(connect(s, "new", f"known={known}", "strict=yes", "exec", "true", **new), 0)
        known.unlink()
        print_of = call("ssh-keygen", "-lf", host.dir / "host_ed25519.pub").split()[1]
        says(connect(s, "new", f"known={known}", f"answer={print_of}", "exec", "true", **new), 0)
        known.unlink()
        says(connect(s, "new", f"known={known}", "strict=accept-new", "hash=1", "exec", "true", **new), 0)
        assert name not in known.read_text() and "found" in call("ssh-keygen", "-F", name, "-f", known)
        # What OpenSSH has written is understood, and the other way round.
        assert w.command([needs("ssh"), "-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-i", s.key(), "-o",
                          f"UserKnownHostsFile={known}", "-p", str(host.port), f"me@{host.address}", "true"]).rc == 0


def test_nobody_there(w):
    with SshSite(w) as s:
        s.host("gpu1")
        start = running_time()
        says(connect(s, "gpu1", "port=1", "exec", "true"), FAILED, "ssh.unreachable.*no ssh server listens")
        says(connect(s, "gpu1", "host=no-such-host.invalid", "exec", "true"), FAILED, "ssh.unreachable.*no-such-host.invalid")
        with server(lambda one: one.sendall(b"HTTP/1.0 400 no\r\n\r\n")) as port:
            says(connect(s, "gpu1", f"port={port}", "exec", "true"), FAILED, "ssh.unreachable")
        with server(lambda one: None) as port:
            says(connect(s, "gpu1", f"port={port}", "exec", "true"), FAILED, "ssh.unreachable.*before it says")
        assert running_time() - start < 10
        with server(lambda one: one.recv(1000) and one.recv(1000)) as port:
            start = running_time()
            says(connect(s, "gpu1", f"port={port}", "exec", "true"), FAILED, "ssh.unreachable.*says nothing")
            assert running_time() - start < 12
            # A login that is not wanted any more ends at once.
            start = running_time()
            assert connect(s, "gpu1", f"port={port}", "cancel", "300").rc == 0 and running_time() - start < 6


def test_lost_connections(w):
    with SshSite(w) as s:
        host = s.host("gpu1")
        waits = begin(s, "gpu1", "keepalive=1000", "exec", "echo begun; sleep 99")
        assert waits.stdout.readline() == "begun\n"
        host.freeze()
        start = running_time()
        _, err = waits.communicate(timeout=30)
        took = running_time() - start
        host.freeze(stop=False)
        assert "ssh.lost" in err and waits.returncode == FAILED and took < 12, (took, err)
        # One that is only quiet is kept.
        quiet = connect(s, "gpu1", "keepalive=2000", "exec", "sleep 20; echo done")
        assert quiet.rc == 0 and quiet.out == "done\n", quiet


def test_a_machine_that_has_slept(w):
    def sleeps(one):
        one.send_signal(signal.SIGSTOP)
        time.sleep(7)  # The loop takes that for a sleep.
        one.send_signal(signal.SIGCONT)

    with SshSite(w) as s:
        host = s.host("gpu1")
        lives = begin(s, "gpu1", "keepalive=60000", "exec", "echo begun; sleep 15; echo done")
        assert lives.stdout.readline() == "begun\n"
        sleeps(lives)
        out, err = lives.communicate(timeout=30)
        assert out == "done\n" and lives.returncode == 0, err
        dies = begin(s, "gpu1", "keepalive=60000", "exec", "echo begun; sleep 99")
        assert dies.stdout.readline() == "begun\n"
        host.freeze()
        sleeps(dies)
        start = running_time()
        _, err = dies.communicate(timeout=50)
        took = running_time() - start
        host.freeze(stop=False)
        assert "ssh.lost" in err and dies.returncode == FAILED and took < 12, (took, err)


def test_an_idle_connection_answers_the_server(w):
    with SshSite(w) as s:
        host = s.host("gpu1", settings={"ClientAliveInterval": 1, "ClientAliveCountMax": 2})
        idle = begin(s, "gpu1", "many", "0", "nowhere", "1", "1")
        wait_for(lambda: host.logins() == 1, "the login")
        time.sleep(6)  # The server gives up after 2 to 3 s.
        assert host.processes("sshd", ": me")
        idle.terminate()
        idle.wait()


if __name__ == "__main__":
    main()
