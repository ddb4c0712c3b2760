#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The hosts of the SSH tests are what those tests take them for, as OpenSSH's own client sees them."""

import subprocess

from harness import *  # noqa: F403
from sshsite import SHELLS, SshSite, site


def test_each_host_is_a_machine_of_its_own(w):
    with site(w, "gpu1", "gpu2") as s:
        seen = [s.ssh(name, "hostname; cat /proc/sys/kernel/random/boot_id; pwd; touch /tmp/$(hostname); ls /tmp").out.split()
                for name in ("gpu1", "gpu2")]
        assert [line[0] for line in seen] == ["gpu1", "gpu2"] and seen[0][1] != seen[1][1], seen
        assert all(line[2:] == ["/home/me", line[0]] for line in seen), seen
        first = s["gpu1"].boot_id
        s.ssh("gpu1", "touch kept; setsid sleep 777 </dev/null >/dev/null 2>&1 &")
        s["gpu1"].reboot()
        assert s.ssh("gpu1", "cat /proc/sys/kernel/random/boot_id; ls").out.split() == [s["gpu1"].boot_id, "kept"] and \
            first != s["gpu1"].boot_id
        assert not s["gpu1"].processes("sleep", "777")


def test_a_network_and_a_shared_home(w):
    with SshSite(w) as s:
        one = s.host("gpu1", network=True)
        two = s.host("gpu2", network=True, home=one.homes)
        assert s.ssh("gpu1", f"touch x; : </dev/tcp/{two.address}/22").rc == 0
        assert s.ssh("gpu2", "hostname; ls").out == "gpu2\nx\n"
        jumped = s.host("gpu3", client={"ProxyJump": "gpu1"}, network=True)
        assert s.ssh("gpu3", "hostname").out == "gpu3\n" and one.logins() == 2 and jumped.logins() == 1


def test_shells(w):
    with SshSite(w) as s:
        for shell in SHELLS:
            s.host(shell, shell=shell, noise="echo noise\n")
            done = s.ssh(shell, "sh -c 'exit 5'")
            assert done.rc == 5 and done.out == ("" if shell in ("dash", "busybox") else "noise\n"), done


def test_who_is_known_and_who_may_log_in(w):
    with SshSite(w) as s:
        for known, says in {"plain": "", "hashed": "", "authority": "", "changed": "has changed", "revoked": "revoked", "": "verification"}.items():
            s.host(f"h{known}", known=known)
            done = s.ssh(f"h{known}", "true")
            assert done.rc == (255 if says else 0) and says in done.err, done
        s.host("rsa", host_keys=("rsa",), keys=("rsa",))
        s.host("dropbear", server="dropbear", host_keys=("rsa", "ecdsa", "ed25519"))
        s.host("locked", keys=("locked",))
        assert s.ssh("rsa", "true").rc == s.ssh("dropbear", "true").rc == 0 and s.ssh("locked", "true").rc == 255
        s.agent("locked")
        assert s.ssh("locked", "true").rc == 0


def test_disks_programs_and_gpus(w):
    with SshSite(w) as s:
        s.host("small", disk=1 << 20)
        assert "No space" in s.ssh("small", "head -c 2000000 /dev/zero >x").err
        s.host("fixed", read_only=True)
        assert "Read-only" in s.ssh("fixed", "touch x").err
        s.host("bare", without=("tar", "gzip"), gpus=2)
        assert s.ssh("bare", "command -v tar gzip").out == ""
        assert s.ssh("bare", "nvidia-smi --query-gpu=index").out.count("\n") == 2


def test_connections_and_servers_end(w):
    with site(w) as s:
        host = s["gpu1"]
        s.ssh("gpu1", "setsid sleep 777 </dev/null >/dev/null 2>&1 &")
        with subprocess.Popen([needs("ssh"), "-F", s.config, "gpu1", "sleep 888"], env=s.env, stderr=subprocess.DEVNULL) as client:
            wait_for(lambda: host.processes("sleep", "888"), "a command")
            host.restart()
            assert s.ssh("gpu1", "true").rc == 0 and client.poll() is None
            host.end_logins()
            assert client.wait() == 255
        wait_for(lambda: not host.processes("sleep", "888"), "the end of the command")
        assert host.processes("sleep", "777")
        host.freeze()
        try:
            s.ssh("gpu1", "true", timeout=1)
            raise AssertionError("a host that stands still answered")
        except subprocess.TimeoutExpired:
            pass
        host.freeze(False)
        assert s.ssh("gpu1", "true").rc == 0
        s.master("gpu1")
        before = host.logins()
        assert s.ssh("gpu1", "true").rc == 0 and host.logins() == before
        host.stop()
        s.change("gpu1", ControlPath=None)
        assert "refused" in s.ssh("gpu1", "true").err


def test_a_wire(w):
    with site(w) as s:
        with s.wire("gpu1", delay=0.05) as wire:
            assert s.ssh("gpu1", "true").rc == 0 and wire.up > 1000 and wire.accepted == 1
            wire.fault("rst", "response", 2500, times=1)
            assert s.ssh("gpu1", "true").rc == 255
        assert s.ssh("gpu1", "true").rc == 0


if __name__ == "__main__":
    main()  # noqa: F405
