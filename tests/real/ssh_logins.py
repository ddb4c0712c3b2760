#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `ssh HOST true` can do, dlrun can do; and what it cannot is said within seconds, with what to do about it."""

import contextlib
import re
import time

from cluster_forward import forward
from harness import *  # noqa: F403
from sshsite import SshSite, call, make_key, needs, site

SOON_S = 10


def works(s, host="gpu1", *options):
    begin = running_time()
    done = s.follow(*options, "--", "sh", "-c", "echo on $(hostname)", to=host)
    assert done.rc == 0 and done.out == f"on {host}\n", done
    return running_time() - begin


def refused(s, id, rc, *says, host="gpu1", options=()):
    """In the stated form, soon, with a hint, before there is a run."""
    before = [r["id"] for r in s.w.runs()]
    done = in_time(lambda: s.w.run("submit", "-d", "-t", f"ssh:{host}", *options, "--", "true"), SOON_S)
    assert done.rc == rc and not done.out, f"exit {rc} was expected: {done!r}"
    check_error_form(done.err, id)
    assert all(text in done.err for text in says), f"{says} are not all said: {done!r}"
    assert "\n  hint: " in done.err, f"no hint: {done!r}"
    assert [r["id"] for r in s.w.runs()] == before, s.w.runs()
    return done


@contextlib.contextmanager
def hosts(w):
    with SshSite(w) as s:
        w.repo()
        yield s


# --- what works


def test_kinds_of_keys(w):
    """Of hosts and of users; RSA goes by the OpenSSH client where libssh2 is too old for it."""
    with hosts(w) as s:
        for name, options in {"ed25519": {}, "ecdsa": {"keys": ("ecdsa",), "host_keys": ("ecdsa",)}, "rsa-user": {"keys": ("rsa",)},
                              "rsa-host": {"host_keys": ("rsa",)}, "rsa-only": {"keys": ("rsa",), "host_keys": ("rsa",)}}.items():
            s.host(name, **options)
            works(s, name)
        done = s.follow("-v", "--", "true", to="rsa-only")
        by_client = "OpenSSH" in done.err and "RSA" in done.err
        assert done.rc == 0 and (by_client or "agreed: " in done.err and ", rsa-sha2-512, " in done.err), done


def test_an_agent_has_the_key(w):
    with site(w, keys=("locked",)) as s:
        s.agent("locked")
        works(s)
        for path in s.dir.glob("id_locked*"):
            path.rename(path.with_name("away-" + path.name))
        s.change("gpu1", IdentityFile=None, IdentitiesOnly="no")
        works(s)


def test_logins_of_several_steps(w):
    """What stands here for second factors: a second key is asked for after the first."""
    with site(w, keys=("ed25519", "ecdsa"), settings={"AuthenticationMethods": "publickey,publickey"}) as s:
        works(s)
        s.change("gpu1", IdentityFile=str(s.key("ed25519")))
        refused(s, "ssh.login", 4, "gpu1")


def test_a_certificate_of_the_user(w):
    with site(w, settings={"TrustedUserCAKeys": "/run/node/users.pub"}) as s:
        authority, key = make_key(s.dir / "users"), s.key("ecdsa")
        shutil.copy(f"{authority}.pub", s["gpu1"].dir / "users.pub")
        call("ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", "me", f"{key}.pub")
        s.change("gpu1", IdentityFile=str(key))
        works(s)


def test_ways_there(w):
    """Jump hosts, proxy commands, and a master that lives: no further login then."""
    with hosts(w) as s:
        jump = s.host("jump")
        s.host("gpu1", client={"ProxyJump": "jump"})
        works(s)
        assert jump.logins() >= 1
        s.change("gpu1", ProxyJump=None, ProxyCommand=f"ssh -F {s.config} -W %h:%p jump")
        works(s)
        s.change("gpu1", ProxyCommand=None)
        works(s)
        s.master("gpu1")
        before = s["gpu1"].logins()
        assert works(s) < SOON_S and s["gpu1"].logins() == before


def test_what_known_hosts_may_look_like(w):
    with hosts(w) as s:
        for known in ("hashed", "authority"):
            s.host(f"gpu-{known}", known=known)
            works(s, f"gpu-{known}")
        # Only one of its keys is known: the host must show that one.
        host = s.host("gpu1")
        lines = s.known_hosts.read_text().splitlines(True)
        s.known_hosts.write_text("".join(line for line in lines if f":{host.port} ssh-ed25519" not in line))
        works(s)


def test_servers_that_allow_less(w):
    with hosts(w) as s:
        s.host("one-session", settings={"MaxSessions": 1}, network=True)
        works(s, "one-session")
        s.master("one-session")
        works(s, "one-session")
        s.change("one-session", ControlPath=None)
        s.host("no-forward", settings={"AllowTcpForwarding": "no"}, network=True)
        works(s, "no-forward")
        s.host("rekey", settings={"RekeyLimit": "1M"})
        w.write("big.bin", os.urandom(8 << 20))
        works(s, "rekey")
        run = s.submit("--grace", "1s", "--", "sleep", "600", to="one-session")
        s.running(run)
        assert w.run("exec", run, "--", "echo", "beside").out == "beside\n"
        w.ok("cancel", run)
        run = s.submit("--grace", "1s", "--", "python3", "-m", "http.server", "8123", to="no-forward")
        s.running(run)
        with forward(w, run, 8123) as ports:
            with contextlib.suppress(OSError):
                assert not ports.ask(8123, b"GET / HTTP/1.0\r\n\r\n")
            wait_for(lambda: "AllowTcpForwarding" in ports.said.read_text(), "what is said of forwards that are not allowed", SOON_S)
        w.ok("cancel", run)


def test_dropbear(w):
    with site(w, server="dropbear") as s:
        works(s)
        run = s.submit("--", "sh", "-c", "seq 1 5000; kill -9 $$")
        assert w.run("wait", run).rc == 137 and w.ok("logs", run).out.endswith("5000\n")


def test_a_host_is_accepted_when_that_is_said(w):
    with site(w, known="") as s:
        works(s, "gpu1", "--accept-new-host")
        works(s)
        assert s["gpu1"].log().count("Accepted") >= 2 and str(s["gpu1"].port) in s.known_hosts.read_text()


# --- what does not


def test_hosts_that_are_not_who_they_were(w):
    with hosts(w) as s:
        for known, id, says in (("changed", "ssh.host_key", "changed"), ("revoked", "ssh.host_key", "revoked"), ("", "ssh.unknown_host", "known")):
            name = f"gpu-{known or 'new'}"
            s.host(name, known=known)
            refused(s, id, 4, name, says, host=name)
        before = s.known_hosts.read_text()
        refused(s, "ssh.host_key", 4, host="gpu-changed", options=["--accept-new-host"])
        assert s.known_hosts.read_text() == before


def test_logins_that_are_refused(w):
    with site(w) as s:
        s.change("gpu1", User="nobody-here")
        refused(s, "ssh.login", 4, "nobody-here", "gpu1", f"tried: {s.key()}", "hint: ssh-copy-id gpu1 ")
        s.change("gpu1", User="me", IdentityFile=str(make_key(s.dir / "id_stranger")))
        refused(s, "ssh.login", 4, "gpu1", "login of me ", "tried: ", "id_stranger", "hint: ssh-copy-id gpu1 ")
        s.change("gpu1", IdentityFile=None, IdentitiesOnly="no")
        refused(s, "ssh.login", 4, "gpu1", "there is no key", "hint: ssh-keygen ")
        s.change("gpu1", IdentityFile=str(s.key("locked")))
        refused(s, "ssh.login", 4, "gpu1", "1 encrypted", f"&& ssh-add {s.key('locked')}\n")
        s.change("gpu1", IdentityFile=str(s.dir / "id_absent"))
        s.env["SSH_AUTH_SOCK"] = str(s.dir / "no-agent")
        refused(s, "ssh.login", 4, "gpu1", "there is no key", "no-agent: No such file", "hint: ssh-keygen ")
        readable = s.dir / "id_readable"
        shutil.copy(s.key(), readable)
        readable.chmod(0o644)
        s.change("gpu1", IdentityFile=str(readable))
        refused(s, "ssh.login", 4, "gpu1", "readable by others", f"hint: chmod 600 {readable}\n")


def test_a_key_in_a_device_that_is_not_here(w):
    with site(w, keys=("fido", "ed25519")) as s:
        works(s)
        s.change("gpu1", IdentityFile=str(s.key("fido")))
        refused(s, "ssh.login", 4, "gpu1", "1 FIDO")


def test_hosts_on_the_way(w):
    """Which of them it is that fails."""
    with hosts(w) as s:
        jump = s.host("jump")
        s.host("gpu1", client={"ProxyJump": "jump"})
        s["gpu1"].stop()
        refused(s, "ssh.unreachable", 3, "gpu1 cannot be reached")
        s["gpu1"].start()
        jump.stop()
        refused(s, "ssh.unreachable", 3, "on the way to gpu1", "refused")
        jump.start()
        s.change("jump", User="nobody-here")
        refused(s, "ssh.login", 4, "on the way to gpu1", "nobody-here@")
        for known, id in (("", "ssh.unknown_host"), ("changed", "ssh.host_key")):
            s.host(f"jump-{known or 'new'}", known=known)
            s.change("gpu1", ProxyJump=f"jump-{known or 'new'}")
            refused(s, id, 4, "on the way to gpu1")


def test_without_an_ssh_client_that_is_said(w):
    with site(w) as s:
        w.env["PATH"] = "/nowhere"
        refused(s, "ssh.unreachable", 3, "gpu1", "no ssh client on PATH", "hint: command -v ssh")


def test_hosts_that_do_not_answer(w):
    with site(w) as s:
        s["gpu1"].stop()
        refused(s, "ssh.unreachable", 3, "gpu1", "refuse")
        s["gpu1"].start()
        s.change("gpu1", HostName="no-such-host.invalid")
        refused(s, "ssh.unreachable", 3, "no-such-host.invalid", f"hint: ssh -F {s.config} -v gpu1 true\n")
        s.change("gpu1", HostName="127.0.0.1")
        with s.wire("gpu1") as wire:
            wire.fault("hole")
            refused(s, "ssh.unreachable", 3, "gpu1")
        s.change("gpu1", ProxyCommand="exit 9")
        refused(s, "ssh.unreachable", 3, "gpu1")
        s.change("gpu1", ProxyCommand=None, ProxyJump="nowhere.invalid")
        refused(s, "ssh.unreachable", 3, "gpu1")


def test_names_that_are_none(w):
    canary = w.dir / "canary"
    with site(w) as s:
        for name in (f"-oProxyCommand=touch {canary}", "a b", "a\nb", "", "x@-oProxyCommand=id"):
            done = w.run("submit", "-d", "-t", f"ssh:{name}", "--", "true")
            assert done.rc == 2 and not w.runs(), (name, done)
        assert not canary.exists() and not s["gpu1"].logins()


def test_configurations_that_are_none(w):
    with site(w) as s:
        s.config.write_text("Host gpu1\n    NoSuchWord yes\n")
        assert "nosuchword" in refused(s, "ssh.config", 2).err.lower()


def shell(host, path):
    passwd = host.dir / "etc/passwd"
    passwd.write_text(re.sub(r":/home/me:.*", f":/home/me:{path}", passwd.read_text()))


def test_login_shells_that_allow_less(w):
    """They work, or it is said what they said; the hint shows the same."""
    with hosts(w) as s:
        host = s.host("gpu1")
        host.program("banner", '#!/bin/sh\necho "Welcome to the lab."\necho quota >&2\nexec /bin/bash "$@"\n')
        shell(host, "/usr/local/bin/banner")
        works(s)
        shell(host, "/bin/csh" if Path("/bin/csh").exists() else needs("tcsh"))
        works(s)
        host.program("menu", "#!/bin/sh\necho 'This host offers file transfer only.'\nexit 0\n")
        (host.dir / "bin/rbash").symlink_to("/bin/bash")
        for path, says in (("/usr/local/bin/rbash", "restricted"), ("/usr/sbin/nologin", "not available"),
                           ("/usr/local/bin/menu", "file transfer only"), ("/usr/bin/git-shell", "unrecognized command")):
            if path.startswith("/usr/bin") and not Path(path).exists():
                continue
            shell(host, path)
            done = refused(s, "node.shell", 1, "the login shell of gpu1 ran no command", says)
            hint = re.search(r"\n  hint: (.*)", done.err)[1]
            again = w.command(["sh", "-c", hint + " </dev/null"])
            assert says in again.out + again.err, (hint, again)


def test_hosts_without_flock(w):
    """Locks are taken by perl or python3 there; without any of them the host is refused, and the hint shows what is not there."""
    languages = {kind: [name for name in {*os.listdir("/usr/bin"), *os.listdir("/usr/local/bin")} if name.startswith(kind)]
                 for kind in ("perl", "python")}
    with hosts(w) as s:
        s.host("perls", without=("flock", *languages["python"]))
        works(s, "perls")
        s.host("pythons", without=("flock", *languages["perl"]))
        works(s, "pythons")
        s.host("nothing", without=("flock", *languages["perl"], *languages["python"]))
        done = refused(s, "node.tool", 2, "host nothing has no flock, perl or python3", host="nothing")
        hint = re.search(r"\n  hint: (.*)", done.err)[1]
        there = w.command(["sh", "-c", hint + " </dev/null"]).out
        assert "/tar\n" in there and "flock" not in there and "perl" not in there and "python" not in there, (hint, there)


def test_nodes_that_cannot_take_a_run(w):
    with hosts(w) as s:
        s.host("fixed", read_only=True)
        refused(s, "node.root", 2, "fixed", ".dlrun", host="fixed")
        s.host("full", disk=2 << 20)
        works(s, "full")
        s.ssh("full", "head -c 5000000 /dev/zero > fill")
        refused(s, "node.disk", 1, "full", host="full")
        s.host("never", disk=1 << 20)
        s.ssh("never", "head -c 5000000 /dev/zero > fill")
        refused(s, "node.root", 2, "never", "No space left on device", host="never")
        theirs = s.host("theirs").home / ".dlrun"
        theirs.mkdir(mode=0o777)
        theirs.chmod(0o777)
        refused(s, "node.root", 2, "/home/me/.dlrun belongs to somebody else", host="theirs")
        theirs.rmdir()
        theirs.symlink_to("/tmp")
        refused(s, "node.root", 2, "/home/me/.dlrun belongs to somebody else", host="theirs")
        s.host("bare", without=("tar",))
        refused(s, "node.tool", 2, "bare", "tar", host="bare")
        s.host("no-gzip", without=("gzip",))
        done = s.follow("--", "echo", "went", to="no-gzip")
        if done.rc:
            refused(s, "node.tool", 2, "no-gzip", "gzip", host="no-gzip")
        s.host("no-shell", shell="dash")
        shell(s["no-shell"], "/bin/false")
        refused(s, "node.shell", 1, "no-shell", host="no-shell")
        shell(s["no-shell"], "/usr/sbin/nologin")
        refused(s, "node.shell", 1, "no-shell", "not available", "hint: ssh ", host="no-shell")
        s.host("mute", noise="exec sleep 600\n")
        refused(s, "node.shell", 1, "mute", "has run no command within", "hint: ssh ", host="mute")
        s.host("forced", settings={"ForceCommand": "echo this account is for mail only"})
        assert "for mail only" in refused(s, "node.shell", 1, "forced", host="forced").err


if __name__ == "__main__":
    main()
