#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""net/ssh.h without runs: what the OpenSSH client carries, which carrier it is, and what is said when neither gets in."""

import contextlib
import hashlib
import signal
import socket
import subprocess
import threading
import time

from harness import *  # noqa: F403
from sshsite import PASSPHRASE, SshSite, call, make_key, public

SOON_S = 10
CARRIERS = ("libssh2", "openssh")


def tool(s, *options):
    return [Path(s.w.dlrun).parent / "tests/real/ssh_tool", *options, "--config", s.config]


def execute(s, line, *options, host="gpu1", carrier="openssh", **more):
    return s.w.command([*tool(s, *(["--carrier", carrier] if carrier else []), *options), "exec", host, "--", line], **more)


def words(done):
    """stderr without what the tool itself says."""
    return "".join(x for x in done.err.splitlines(True) if not x.startswith(("detail: ", "say: ")))


def refused(s, id, *says, host="gpu1", carrier="openssh", line="echo never", options=()):
    done = in_time(lambda: execute(s, line, *options, host=host, carrier=carrier), SOON_S)
    assert done.rc == 125 and f"error: {id}: " in done.err and done.out == "", done
    for word in says:
        assert word in done.err, (word, done)
    assert "\n  hint: " in done.err, done
    return done


def leftovers(w):
    return [p.name for p in w.dir.glob("dlrun-ssh-*")]


@contextlib.contextmanager
def hosts(w, **options):
    with SshSite(w) as s:
        s.host("gpu1", **options)
        yield s
        assert not leftovers(w), leftovers(w)


@contextlib.contextmanager
def forwards(s, remote, carrier="openssh"):
    process = subprocess.Popen([str(x) for x in [*tool(s, "--carrier", carrier), "forward", "gpu1", "0", remote]],
                               env=s.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline()), process
    finally:
        process.terminate()
        process.communicate()
        for path in s.w.dir.glob("dlrun-ssh-*"):
            subprocess.run(["ssh", "-F", s.config, "-O", "exit", "-o", f"ControlPath={path}/master", "gpu1"], capture_output=True)
            shutil.rmtree(path)


# --- commands


def test_flows_and_exits(w):
    with hosts(w, settings={"Banner": "/run/node/banner"}) as s:
        (s["gpu1"].dir / "banner").write_text("keep out\n")
        for carrier in CARRIERS:
            for code in (0, 3, 255):
                done = execute(s, f"printf 'a\\r\\n'; echo oops >&2; exit {code}", carrier=carrier)
                assert done.rc == code and done.out_bytes == b"a\r\n" and words(done) == "oops\n", (carrier, done)
            done = execute(s, "echo said >&2; kill -9 $$", carrier=carrier)
            assert done.rc >= 128 and "signal: " in done.err and "said\n" in done.err, (carrier, done)


def test_much_in_and_out(w):
    data = os.urandom(5 << 20)
    path = w.write("data", data)
    with hosts(w) as s:
        for carrier in CARRIERS:
            with open(path or w.tree / "data", "rb") as stdin:
                done = execute(s, "cat", carrier=carrier, stdin=stdin)
            assert done.rc == 0 and hashlib.sha256(done.out_bytes).digest() == hashlib.sha256(data).digest(), (carrier, done.rc, done.err)


def test_words_that_look_like_options(w):
    canary = w.dir / "canary"
    with hosts(w) as s:
        for carrier in CARRIERS:
            done = execute(s, f"-oProxyCommand=touch {canary}", carrier=carrier)
            assert done.rc not in (0, 125), (carrier, done)
        assert not canary.exists()


def test_a_terminal(w):
    with hosts(w) as s:
        for carrier in CARRIERS:
            done = execute(s, "tty >/dev/null && stty size; exit 5", "--pty", carrier=carrier)
            assert done.rc == 5 and done.out.strip() == "17 91", (carrier, done)
            line = "trap 'stty size; exit 6' WINCH; echo up; for i in 1 2 3 4 5 6 7 8 9; do sleep 1; done"
            process = subprocess.Popen([str(x) for x in [*tool(s, "--carrier", carrier, "--pty"), "exec", "gpu1", "--", line]],
                                       env=s.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert process.stdout.readline() == "up\n"
            process.send_signal(signal.SIGWINCH)
            out = process.stdout.read()
            process.wait(60)
            assert process.returncode == 6 and out.strip() == "40 120", (carrier, process.returncode, out)


def test_typed_before_the_login(w):
    """Nothing is echoed twice, whenever it is written."""
    with hosts(w) as s:
        for carrier in CARRIERS:
            with open(w.dir / "typed", "w+b") as stdin:
                stdin.write(b"word\n")
                stdin.seek(0)
                done = execute(s, "stty -echo; read x; echo got $x", "--pty", carrier=carrier, stdin=stdin)
            assert done.rc == 0 and done.out.count("got word") == 1 and done.out.count("word") <= 2, (carrier, done)


def test_begun_without_the_loop(w):
    """The login and the first command go on while the process does something else."""
    with hosts(w) as s:
        for carrier in CARRIERS:
            mark = s["gpu1"].home / f"mark-{carrier}"
            process = subprocess.Popen([str(x) for x in [*tool(s, "--carrier", carrier, "--early", "--wait"), "exec", "gpu1", "--",
                                                         f"echo first; touch {mark.name}; cat"]],
                                       env=s.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            wait_for(mark.exists, f"the command by {carrier}")
            assert process.poll() is None
            out, err = process.communicate("typed\n", timeout=60)
            assert process.returncode == 0 and out == "first\ntyped\n", (carrier, out, err)


def test_one_login_for_many(w):
    with hosts(w) as s:
        done = execute(s, "echo one; sleep 0.3; echo two", "--parallel", "6")
        assert done.rc == 0 and done.out.count("one\n") == 6 and done.out.count("two\n") == 6, done
        assert s["gpu1"].logins() == 1, s["gpu1"].log()


def test_one_session_only(w):
    with hosts(w, settings={"MaxSessions": 1}) as s:
        for carrier in CARRIERS:
            done = execute(s, "echo one; sleep 1; echo two", "--parallel", "4", carrier=carrier)
            assert done.rc == 0 and done.out.count("two\n") == 4, (carrier, done)


def test_a_first_command_that_nobody_takes(w):
    with hosts(w, settings={"MaxSessions": 1}) as s:
        for carrier in CARRIERS:
            done = execute(s, "echo out", "--first", "echo first; sleep 1000", carrier=carrier)
            assert done.rc == 0 and done.out == "out\n", (carrier, done)


def test_a_login_that_is_given_up(w):
    """The next one that waits for it logs in instead."""
    with hosts(w) as s:
        s.host("jump")
        s.change("gpu1", ProxyCommand=f"sh -c 'sleep 1; exec ssh -F {s.config} -W %h:%p jump'")
        done = execute(s, "echo out", "--parallel", "3", "--drop", "300")
        assert done.rc == 0 and done.out == "out\nout\n", done
        assert s["gpu1"].logins() == 1, s["gpu1"].log()


def test_a_kept_login(w):
    """On a terminal the login serves later processes."""
    control = w.dir / "control"
    control.mkdir(mode=0o700)
    with hosts(w) as s:
        for _ in range(3):
            done = execute(s, "echo here", "--terminal", "--control-dir", str(control))
            assert done.rc == 0 and done.out == "here\n", done
        assert s["gpu1"].logins() == 1, s["gpu1"].log()
        done = s.w.command([*tool(s, "--terminal", "--control-dir", str(control)), "login", "gpu1"])
        assert done.out.startswith("openssh: ") and "kept" in done.out and s["gpu1"].logins() == 1, done
        sockets = list(control.iterdir())
        assert len(sockets) == 1, sockets
        s.ssh("-O", "exit", "-o", f"ControlPath={sockets[0]}", "gpu1")


def test_variables(w):
    """SendEnv and SetEnv, as far as the server takes them (AcceptEnv), with and without a terminal."""
    line = "printf '<%s|%s|%s|%s|%s>' \"$A_SET\" \"$A_SENT\" \"$LC_ANY\" \"$B_NOT\" \"$A_EMPTY\""
    w.env.update(A_SENT="sent 'so'", LC_ANY="any", B_NOT="refused", OTHER="kept back")
    with hosts(w, settings={"AcceptEnv": "A_* LC_*"}) as s:
        for carrier in (*CARRIERS, None):
            for client, want in (({}, "<||||>"),
                                 ({"SendEnv": "LC_*"}, "<||any||>"),
                                 ({"SendEnv": "B_NOT"}, "<||||>"),
                                 ({"SetEnv": '"A_SET=a b"'}, "<a b||||>"),
                                 ({"SendEnv": "A_SENT", "SetEnv": "A_EMPTY="}, "<|sent 'so'|||>"),
                                 ({"SendEnv": ["A_* B_NOT", "LC_*"], "SetEnv": "A_SET=x"}, "<x|sent 'so'|any||>")):
                s.change("gpu1", **client)
                done = execute(s, line, carrier=carrier)
                assert done.rc == 0 and done.out == want, (carrier, client, done)
                s.change("gpu1", **{name: None for name in client})
            s.change("gpu1", SendEnv="A_SENT LC_*")
            done = execute(s, "test -t 0; echo $?$A_SENT$LC_ANY; exit 4", "--pty", carrier=carrier)
            assert done.rc == 4 and done.out.strip() == "0sent 'so'any", (carrier, done)
            done = execute(s, "echo $A_SENT$LC_ANY; sleep 0.3", "--parallel", "5", carrier=carrier)
            assert done.rc == 0 and done.out == "sent 'so'any\n" * 5, (carrier, done)
            # What comes behind a variable is the command's own fault.
            assert execute(s, "exit 7", carrier=carrier).rc == 7
            s.change("gpu1", SendEnv=None)
        w.env.update({f"LC_{i}": "x" for i in range(5)})
        s.change("gpu1", SendEnv="LC_*")
        done = w.command([*tool(s), "login", "gpu1"])
        assert done.out.startswith("openssh: ") and "SendEnv" in done.out, done


def test_what_is_said_for_people_at_a_terminal(w):
    """It must not get in the way of streams and exits."""
    canary = w.dir / "canary"
    with hosts(w) as s, contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        serve(lambda got: got[::-1], server)
        for client in ({"ForkAfterAuthentication": "yes"}, {"RequestTTY": "force"}, {"RequestTTY": "yes", "ForkAfterAuthentication": "yes"},
                       {"RemoteCommand": "echo never"}, {"RemoteCommand": "echo never", "RequestTTY": "force", "ForkAfterAuthentication": "yes"},
                       {"StdinNull": "yes"}, {"SessionType": "none"}, {"SessionType": "subsystem"},
                       {"SessionType": "none", "ForkAfterAuthentication": "yes", "StdinNull": "yes"},
                       {"PermitLocalCommand": "yes", "LocalCommand": f"touch {canary}"}, {"EscapeChar": "a"}, {"LogLevel": "QUIET"},
                       {"LogLevel": "DEBUG3"}, {"VisualHostKey": "yes"}, {"Tunnel": "yes"}, {"ControlMaster": "ask"},
                       {"LocalForward": "1 127.0.0.1:1", "ExitOnForwardFailure": "yes"}, {"ForwardX11": "yes", "ForwardAgent": "yes"}):
            s.change("gpu1", **client)
            for carrier in CARRIERS:
                (w.dir / "typed").write_bytes(b"~.\na.\n")
                with open(w.dir / "typed", "rb") as stdin:
                    done = execute(s, "cat; tty >&2; exit 5", carrier=carrier, stdin=stdin)
                assert done.rc == 5 and done.out_bytes == b"~.\na.\n" and words(done) == "not a tty\n", (client, carrier, done)
            with forwards(s, f"127.0.0.1:{server.getsockname()[1]}") as (port, _):
                assert ask(port, b"abc") == b"cba", client
            s.change("gpu1", **{name: None for name in client})
        assert not canary.exists()


# --- programs that ask


def askpass(w, answer):
    """A program that answers, and notes what it was asked."""
    program, asked = w.dir / "askpass", w.dir / "asked"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$1\" >>'{asked}'\necho '{answer}'\n")
    program.chmod(0o755)
    asked.write_text("")
    return program, asked


def test_a_program_asks(w):
    program, asked = askpass(w, PASSPHRASE)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE"):
        w.env.pop(name, None)
    with hosts(w, keys=("locked",)) as s:
        s.host("jump", keys=("locked",))
        # Who does not say that it may be asked is not asked.
        for env in ({"SSH_ASKPASS": program}, {"SSH_ASKPASS": program, "DISPLAY": ":9", "SSH_ASKPASS_REQUIRE": "never"},
                    {"DISPLAY": ":9"}, {"SSH_ASKPASS": program, "SSH_ASKPASS_REQUIRE": "prefer"}, {"SSH_ASKPASS": program, "DISPLAY": ""}):
            done = execute(s, "echo out", carrier=None, env={k: str(v) for k, v in env.items()})
            assert done.rc == 125 and "error: ssh.login: " in done.err and asked.read_text() == "", (env, done)
        for env in ({"SSH_ASKPASS_REQUIRE": "force"}, {"DISPLAY": ":9"}, {"DISPLAY": ":9", "SSH_ASKPASS_REQUIRE": "prefer"}):
            env |= {"SSH_ASKPASS": str(program)}
            for parallel in (1, 3):
                asked.write_text("")
                done = execute(s, "echo out", "--parallel", str(parallel), carrier=None, env=env)
                assert done.rc == 0 and done.out == "out\n" * parallel, (env, done)
                assert asked.read_text().count("id_locked") == 1, (env, asked.read_text())
        s.change("gpu1", BatchMode="yes")
        asked.write_text("")
        assert execute(s, "true", carrier=None, env=env).rc == 125 and not asked.read_text()
        s.change("gpu1", BatchMode=None, ProxyJump="jump")
        done = execute(s, "echo out", carrier=None, env=env)
        assert done.rc == 0 and asked.read_text().count("id_locked") == 2, (done, asked.read_text())


def test_a_program_asks_about_a_host(w):
    for answer, rc in (("no", 125), ("yes", 0)):
        program, asked = askpass(w, answer)
        with hosts(w, known="") as s:
            done = execute(s, "echo out", carrier=None, env={"SSH_ASKPASS": str(program), "SSH_ASKPASS_REQUIRE": "force"})
            assert done.rc == rc and "authenticity of host" in asked.read_text(), (answer, done, asked.read_text())
            assert (str(s["gpu1"].port) in s.known_hosts.read_text()) == (rc == 0), (answer, done)
            s.change("gpu1", StrictHostKeyChecking="yes")
            s.known_hosts.write_text("")
            asked.write_text("")
            done = execute(s, "echo out", carrier=None, env={"SSH_ASKPASS": str(program), "SSH_ASKPASS_REQUIRE": "force"})
            assert done.rc == 125 and "ssh.unknown_host" in done.err and not asked.read_text(), done
        shutil.rmtree(s.dir)


# --- which carrier


def test_the_carrier_and_why(w):
    with hosts(w) as s:
        jump = s.host("jump")

        def login(why, **client):
            s.change("gpu1", **client)
            done = w.command([*tool(s), "login", "gpu1"])
            assert done.rc == 0 and done.out.startswith(why), (client, done)
            s.change("gpu1", **{key: None for key in client})
            return done

        login("libssh2")
        assert "jump host" in login("openssh: ", ProxyJump="jump").out and jump.logins()
        assert "ProxyCommand" in login("openssh: ", ProxyCommand=f"ssh -F {s.config} -W %h:%p jump").out
        call("ssh-keygen", "-q", "-s", make_key(s.dir / "users"), "-I", "me", "-n", "me", f"{s.key('ecdsa')}.pub")
        assert "certificate" in login("openssh: ", IdentityFile=[str(s.key()), str(s.key("ecdsa"))]).out


def test_words_of_a_proxy_are_not_the_commands(w):
    with hosts(w) as s:
        s.host("jump")
        s.change("gpu1", ProxyCommand=f"sh -c 'echo proxied >&2; sleep 0.5; exec ssh -F {s.config} -W %h:%p jump'")
        done = execute(s, "echo out; echo err >&2", carrier=None)
        assert done.rc == 0 and done.out == "out\n" and words(done) == "err\n", done


def test_an_older_client(w):
    """Before 8.5 it cannot be asked for its words without the server's banner, and tells nothing of exits."""
    own = w.dir / "bin"
    own.mkdir()
    (own / "ssh").write_text("#!/bin/sh\ncase \" $* \" in *LogVerbose*) echo 'Bad configuration option: logverbose' >&2; exit 255;; *' -G '*) "
                             f"{shutil.which('ssh')} \"$@\" | grep -v logverbose; exit;; esac\nexec {shutil.which('ssh')} \"$@\"\n")
    (own / "ssh").chmod(0o755)
    with hosts(w, settings={"Banner": "/run/node/banner"}) as s:
        (s["gpu1"].dir / "banner").write_text("keep out\n")
        w.env["PATH"] = f"{own}:{w.env['PATH']}"
        for code in (0, 3, 255):
            done = execute(s, f"echo out; echo oops >&2; exit {code}")
            assert done.rc == code and done.out == "out\n" and "oops\n" in words(done), done
        done = execute(s, "kill -9 $$")
        assert done.rc not in (0, 125), done
        done = execute(s, "echo one; sleep 0.2", "--parallel", "3")
        assert done.rc == 0 and done.out == "one\n" * 3 and s["gpu1"].logins() == 5, done
        s.change("gpu1", User="nobody-here")
        refused(s, "ssh.login", "nobody-here")
        s["gpu1"].stop()
        refused(s, "ssh.unreachable", "refused")


def test_a_live_master_is_used(w):
    with hosts(w) as s:
        path = s.master("gpu1")
        before = s["gpu1"].logins()
        done = execute(s, "echo out; exit 9", carrier=None)
        assert done.rc == 9 and done.out == "out\n", done
        done = w.command([*tool(s), "login", "gpu1"])
        assert "ControlMaster" in done.out and s["gpu1"].logins() == before, done
        done = execute(s, "kill -TERM $$", carrier=None)
        assert done.rc >= 128 and done.rc != 255 and "signal: " in done.err, done
        assert path.exists() and s.ssh("-O", "check", "gpu1").rc == 0


def test_without_an_ssh_client(w):
    with hosts(w, network=True, keys=("ed25519", "rsa")) as s:
        (w.home / ".ssh").mkdir()
        shutil.copy(s.key(), w.home / ".ssh/id_ed25519")
        shutil.copy(s.known_hosts, w.home / ".ssh/known_hosts")
        name = f"me@{s['gpu1'].address}"
        program = Path(w.dlrun).parent / "tests/real/ssh_tool"
        done = w.command([program, "exec", name, "--", "echo out"], env={"PATH": str(w.dir)})
        assert done.rc == 0 and done.out == "out\n", done
        (w.home / ".ssh/id_ed25519").unlink()
        done = w.command([program, "exec", name, "--", "echo out"], env={"PATH": str(w.dir)})
        assert done.rc == 125 and "error: ssh.login: " in done.err and "no ssh client on PATH" in done.err, done


# --- what is said


def test_logins_that_fail(w):
    with hosts(w) as s:
        for carrier in ("openssh", None):
            s.change("gpu1", User="nobody-here")
            refused(s, "ssh.login", "gpu1", "nobody-here", carrier=carrier)
            s.change("gpu1", User="me", IdentityFile=str(s.key("locked")))
            refused(s, "ssh.login", "gpu1", carrier=carrier)
            s.change("gpu1", User=None, IdentityFile=None)
            s.change("gpu1", User="me", IdentityFile=str(s.key()))


def test_hosts_that_are_not_known(w):
    with hosts(w) as s:
        for known, id, says in (("changed", "ssh.host_key", "changed"), ("revoked", "ssh.host_key", "revoked"), ("", "ssh.unknown_host", "not known")):
            name = f"gpu-{known or 'new'}"
            s.host(name, known=known)
            before = s.known_hosts.read_text()
            for carrier in CARRIERS:
                refused(s, id, says, host=name, carrier=carrier)
            assert s.known_hosts.read_text() == before
        done = execute(s, "echo never", "--accept-new-host", host="gpu-changed")
        assert done.rc == 125 and "ssh.host_key" in done.err, done
        done = execute(s, "echo out", "--accept-new-host", host="gpu-new")
        assert done.rc == 0 and done.out == "out\n", done
        assert str(s["gpu-new"].port) in s.known_hosts.read_text()


def test_keys_that_are_revoked(w):
    """However that is told, it is said; nobody is to take such a key."""
    with hosts(w) as s:
        key, listed, krl = f"{s['gpu1'].dir}/host_ed25519.pub", w.dir / "listed", w.dir / "krl"
        listed.write_text("".join(f"{public(s['gpu1'].dir / f'host_{kind}')}\n" for kind in s["gpu1"].host_keys))
        call("ssh-keygen", "-q", "-k", "-f", krl, key, key.replace("ed25519", "ecdsa"))
        command = w.dir / "keys"
        command.write_text(f"#!/bin/sh\nsed 's/^/@revoked * /' {listed}\n")
        command.chmod(0o755)
        marked = w.dir / "marked"
        marked.write_text("".join(f"@revoked * {line}\n" for line in listed.read_text().splitlines()))
        for client in ({"RevokedHostKeys": listed}, {"RevokedHostKeys": krl}, {"KnownHostsCommand": command}, {"GlobalKnownHostsFile": marked},
                       {"UserKnownHostsFile": marked}):
            s.change("gpu1", **client)
            for options in ((), ("--accept-new-host",)):
                done = refused(s, "ssh.host_key", "has been revoked", "ask who runs gpu1", carrier=None, options=options)
                assert "not known" not in done.err and "accept-new" not in done.err, (client, done)
            s.change("gpu1", **{name: None for name in client})
        s.change("gpu1", RevokedHostKeys=w.dir / "absent")
        refused(s, "ssh.config", "absent", carrier=None)


def test_hosts_that_do_not_answer(w):
    with hosts(w) as s:
        s["gpu1"].stop()
        refused(s, "ssh.unreachable", "gpu1", "refused")
        s.change("gpu1", HostName="no-such-host.invalid")
        refused(s, "ssh.unreachable", "no-such-host.invalid")
        s.change("gpu1", HostName="127.0.0.1", ProxyCommand="sh -c 'echo broken >&2; exit 9'")
        refused(s, "ssh.unreachable", "broken")
        s.change("gpu1", ProxyCommand=None, ProxyJump="nowhere.invalid")
        refused(s, "ssh.unreachable", "nowhere.invalid")
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
            s.change("gpu1", ProxyJump=None, Port=silent.getsockname()[1])
            refused(s, "ssh.unreachable", "gpu1")


def test_a_connection_that_is_lost(w):
    with hosts(w) as s:
        for parallel in (1, 3):
            def lose(parallel=parallel):
                wait_for(lambda: len(list(s["gpu1"].home.glob(f"up-{parallel}-*"))) == parallel, "all commands")
                s["gpu1"].restart(sessions=True)
            losing = threading.Thread(target=lose)
            losing.start()
            done = execute(s, f"touch ~/up-{parallel}-$$; sleep 100", "--parallel", str(parallel))
            losing.join()
            assert done.rc == 125 and done.err.count("error: ssh.lost: ") == parallel, done


def test_a_configuration_that_is_off(w):
    with hosts(w) as s:
        s.config.write_text("Host gpu1\n    NoSuchWord yes\n")
        refused(s, "ssh.config", "nosuchword", carrier=None)


def test_names_that_are_none(w):
    canary = w.dir / "canary"
    with hosts(w) as s:
        for name in (f"-oProxyCommand=touch {canary}", f"-F{canary}", "a b", "a\nb", "", "x@-oProxyCommand=id", "$(id)", "a;b"):
            for carrier in CARRIERS:
                done = execute(s, "true", host=name, carrier=carrier)
                assert done.rc == 125 and "error: usage: " in done.err, (name, done)
        assert not canary.exists() and not s["gpu1"].logins()


# --- connections from there


def serve(answer, server):
    """Each connection: everything until its end, then the answer."""
    def one(peer):
        with peer:
            got = b""
            while piece := peer.recv(65536):
                got += piece
            peer.sendall(answer(got))
    def loop():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(server.accept()[0],), daemon=True).start()
    threading.Thread(target=loop, daemon=True).start()


def ask(port, data):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        got = b""
        while piece := peer.recv(65536):
            got += piece
        return got


def test_forwards(w):
    data = os.urandom(3 << 20)
    with hosts(w) as s, contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        serve(lambda got: hashlib.sha256(got).digest() + got[:1 << 20], server)
        want = hashlib.sha256(data).digest() + data[:1 << 20]
        for carrier in CARRIERS:
            with forwards(s, f"127.0.0.1:{server.getsockname()[1]}", carrier) as (port, _):
                answers = []
                threads = [threading.Thread(target=lambda: answers.append(ask(port, data))) for _ in range(5)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert answers == [want] * 5, (carrier, [len(a) for a in answers])


@contextlib.contextmanager
def deaf_port():
    """A port that takes no connections, and does not refuse them either."""
    with contextlib.ExitStack() as stack, socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        with contextlib.suppress(TimeoutError):
            while True:
                stack.enter_context(socket.create_connection(server.getsockname(), timeout=0.5))
        yield server.getsockname()[1]


def test_a_port_that_does_not_answer_holds_nothing_up(w):
    with hosts(w) as s, deaf_port() as deaf:
        with forwards(s, f"127.0.0.1:{deaf}", "libssh2") as (port, process), contextlib.ExitStack() as stack:
            watch = Stopwatch()
            for _ in range(2):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            # The second is opened on a connection of its own before the first is given up.
            wait_for(lambda: s["gpu1"].logins() == 2, "another connection", 9)
            said = [next(x for x in process.stderr if x.startswith("error: ")) for _ in range(2)]
            assert all(x.startswith("error: ssh.port: ") for x in said), said
            assert watch.between(8, 25), said


def test_forwards_that_are_not_allowed(w):
    with hosts(w, settings={"AllowTcpForwarding": "no"}) as s:
        for carrier in CARRIERS:
            with forwards(s, "127.0.0.1:9", carrier) as (port, process):
                with contextlib.suppress(OSError):
                    assert ask(port, b"x") == b""
                said = iter(process.stderr.readline, "")
                assert any("error: ssh.refused: " in line for line in said), carrier


if __name__ == "__main__":
    main()
