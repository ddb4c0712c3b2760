# SPDX-License-Identifier: Apache-2.0
"""Real SSH servers as the nodes of a test, each a machine of its own as far as it can see.

    with site(w) as s:                            one host, gpu1, with one account
    with site(w, "gpu1", "gpu2", gpus=2) as s:    s["gpu2"] is the second
    with SshSite(w) as s:                         hosts that differ:
        s.host("gpu1", settings={"MaxSessions": 1}, shell="fish")

A host has a mount, a PID and a UTS namespace: its own name, accounts, homes, /tmp, /var/tmp, boot id and
/usr/local/bin. It listens on a free loopback port, or with network=True on port 22 of an address of its own.
All of it ends with the test, however that ends: PID 1 of a host reads a pipe that the test holds.

The client's side is one file, `s.config`, of which the world's DLRUN_SSH_CONFIG tells. Needs root.
"""

import base64
import contextlib
import hmac
import json
import os
import random
import secrets
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import uuid
from pathlib import Path

from harness import Result, Skip, needs, wait_for
from registries import free_port, listens

sys.path.append(str(Path(__file__).resolve().parents[1] / "fake"))
from faultproxy import FaultProxy  # noqa: E402

START_S = 20
END_S = 60
ACCOUNT = "me"
UID = 3001
PASSPHRASE = "cnry-41c7 pass"
NAMESPACES = ("mnt", "pid_for_children", "uts", "net", "ipc")
SETTINGS = {"StrictModes": "no", "UsePAM": "no", "PrintMotd": "no", "PrintLastLog": "no", "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no", "MaxStartups": "1000", "MaxSessions": "100", "UseDNS": "no", "LogLevel": "VERBOSE",
            "PidFile": "/run/sshd.pid", "AuthorizedKeysFile": "/run/node/accounts/%u", "Subsystem": "sftp internal-sftp"}
SHELLS = ("dash", "bash", "zsh", "fish", "tcsh", "busybox")
# Where a shell that is started for one command finds something to say all the same.
PROFILES = {"bash": (".bashrc", ".bash_profile"), "zsh": (".zshenv", ".zprofile"), "fish": (".config/fish/config.fish",),
            "tcsh": (".cshrc", ".login"), "dash": (".profile",), "busybox": (".profile",)}
ENDED = ("succeeded", "failed", "cancelled", "lost")


def sshd():
    return shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin") or needs("sshd")


def call(*argv, **more):
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, argv))}: {done.stderr[-500:]}")
    return done.stdout


def make_key(path, kind="ed25519", passphrase=""):
    """A key pair that is made once; path of the private half."""
    if not path.exists():
        bits = ["-b", "2048"] if kind == "rsa" else []
        call(needs("ssh-keygen"), "-q", "-t", kind, *bits, "-N", passphrase, "-C", path.name, "-f", path)
    return path


def make_fido_key(path):
    """A key pair whose private half is in a device that is not here (PROTOCOL.key, PROTOCOL.u2f of OpenSSH)."""
    def string(data):
        return struct.pack(">I", len(data)) + data

    kind, point = b"sk-ssh-ed25519@openssh.com", base64.b64decode(public(make_key(path.with_name(path.name + "-point"))).split()[1])[-32:]
    shown = string(kind) + string(point) + string(b"ssh:")
    check = b"\x12\x34\x56\x78" * 2
    hidden = check + shown + b"\x01" + string(b"h" * 64) + string(b"") + string(b"fido")
    hidden += bytes(range(1, 1 + -len(hidden) % 8))
    whole = b"openssh-key-v1\0" + string(b"none") * 2 + string(b"") + struct.pack(">I", 1) + string(shown) + string(hidden)
    lines = base64.encodebytes(whole).decode()
    path.write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}-----END OPENSSH PRIVATE KEY-----\n")
    path.chmod(0o600)
    path.with_name(path.name + ".pub").write_text(f"{kind.decode()} {base64.b64encode(shown).decode()} fido\n")
    return path


def public(path):
    return " ".join(path.with_name(path.name + ".pub").read_text().split()[:2])


class Network:
    """A switch in a namespace of its own, with a leg to this machine."""

    def __init__(self, directory):
        self.process = subprocess.Popen([needs("unshare"), "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                        cwd=directory)
        own, self.hosts = os.readlink("/proc/self/ns/net"), 0
        wait_for(lambda: os.readlink(f"/proc/{self.process.pid}/ns/net") != own, "a network namespace")
        link, routes = f"dls{secrets.token_hex(4)}", call("ip", "route")
        self.net = next(n for n in (f"198.{random.choice((18, 19))}.{random.randrange(256)}" for _ in range(999)) if n + "." not in routes)
        self.inside("link add switch type bridge")
        call("ip", "link", "add", link, "type", "veth", "peer", "name", "uplink", "netns", self.process.pid)
        call("ip", "address", "add", f"{self.net}.1/24", "dev", link)
        call("ip", "link", "set", link, "up")
        for words in ("link set uplink master switch", "link set uplink up", "link set switch up"):
            self.inside(words)

    def inside(self, words):
        call(needs("nsenter"), f"--net=/proc/{self.process.pid}/ns/net", "ip", *words.split())

    def join(self, pid):
        """The address that the network namespace of that process gets."""
        self.hosts += 1
        port, address = f"port{self.hosts}", f"{self.net}.{self.hosts + 1}"
        self.inside(f"link add {port} type veth peer name eth0 netns {pid}")
        self.inside(f"link set {port} master switch")
        self.inside(f"link set {port} up")
        for words in (f"address add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            call("nsenter", f"--net=/proc/{pid}/ns/net", "ip", *words.split())
        return address

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Host:
    """One node.

    server      "sshd" or "dropbear"
    settings    lines of sshd_config, over SETTINGS
    host_keys   kinds of its host keys
    accounts    names of those who may log in; `shell`, `noise` (what its profile prints), `keys` (kinds of the
                keys that are accepted) are for all of them
    gpus        how many an nvidia-smi there tells of
    without     programs that are not there
    home        a directory whose subdirectories are the homes, for hosts that share them
    disk        bytes of a small disk of its own for the homes; read_only: nothing can be written there
    network     it has an address of its own
    client      lines of the client's configuration for it: a value, or None to leave out what is there by default
    known       how known_hosts knows it: "plain", "hashed", "changed", "revoked", "authority", "" not at all
    """

    def __init__(self, site, name, *, server="sshd", settings=None, host_keys=("ed25519", "ecdsa"), accounts=(ACCOUNT,),
                 shell="bash", noise="", keys=("ed25519",), gpus=0, without=(), home=None, disk=None, read_only=False,
                 network=False, client=None, known="plain", boot=None):
        self.site, self.name, self.server, self.settings = site, name, server, dict(settings or {})
        self.host_keys, self.accounts, self.shell, self.keys = host_keys, accounts, shell, keys
        self.without, self.disk, self.read_only, self.network = without, disk, read_only, network
        self.client, self.known = dict(client or {}), known
        self.dir = site.dir / name
        self.homes = Path(home or self.dir / "homes")
        self.boot_id = boot or str(uuid.uuid4())
        self.address, self.port, self.wire = "127.0.0.1", 22 if network else free_port(), None
        self.root = self.daemon = None
        self.prepare(noise)
        self.gpus(gpus)

    # --- files

    def prepare(self, noise):
        for part in ("bin", "accounts", "tmp", "var-tmp", "etc"):
            (self.dir / part).mkdir(parents=True, exist_ok=True)
        for part in ("tmp", "var-tmp"):
            (self.dir / part).chmod(0o1777)
        for kind in self.host_keys:
            make_key(self.dir / f"host_{kind}", kind)
        self.certify()
        for uid, name in enumerate(self.accounts, UID):
            self.make_home(name, uid, noise)
        self.write_accounts()
        local = Path("/usr/local/bin")
        for program in local.iterdir() if local.is_dir() else ():
            (self.dir / "bin" / program.name).symlink_to(f"/run/local/{program.name}")
        if self.without:
            self.leave_out()
        if self.shell == "busybox":
            (self.dir / "bin/ash").symlink_to(needs("busybox"))

    def leave_out(self):
        """A /usr/bin that lacks some programs."""
        (self.dir / "programs").mkdir()
        for program in os.listdir("/usr/bin"):
            if program not in self.without:
                (self.dir / "programs" / program).symlink_to(f"/run/programs/{program}")
        for program in self.without:
            (self.dir / "bin" / program).unlink(missing_ok=True)

    def certify(self):
        if self.known != "authority":
            return
        authority = make_key(self.site.dir / "authority")
        for kind in self.host_keys:
            call("ssh-keygen", "-q", "-s", authority, "-h", "-I", self.name, "-n", self.name, self.dir / f"host_{kind}.pub")

    def make_home(self, name, uid, noise):
        home = self.homes / name
        home.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{public(self.site.key(kind))}\n" for kind in self.keys)
        (self.dir / "accounts" / name).write_text(text)
        files = {".ssh/authorized_keys": text} if self.server == "dropbear" else {}
        files |= {path: noise for path in PROFILES[self.shell]} if noise else {}
        for path, content in files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(content)
        home.chmod(0o755)
        call("chown", "-R", f"{uid}:{uid}", home)

    def shell_path(self):
        return "/usr/local/bin/ash" if self.shell == "busybox" else needs(self.shell)

    def write_accounts(self):
        shell = self.shell_path()
        lines = ["root:*:0:0::/root:/bin/sh", "sshd:*:105:65534::/run/sshd:/usr/sbin/nologin", "nobody:*:65534:65534::/:/usr/sbin/nologin"]
        lines += [f"{name}:*:{uid}:{uid}:{name}:/home/{name}:{shell}" for uid, name in enumerate(self.accounts, UID)]
        (self.dir / "etc/passwd").write_text("\n".join(lines) + "\n")
        groups = ["root:*:0:", "tty:*:5:", "nogroup:*:65534:", *(f"{name}:*:{uid}:" for uid, name in enumerate(self.accounts, UID))]
        (self.dir / "etc/group").write_text("\n".join(groups) + "\n")

    def program(self, name, text):
        """A script of that name is on everybody's PATH there."""
        path = self.dir / "bin" / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def gpus(self, n, busy=(), models=()):
        """An nvidia-smi that tells of n GPUs; on those in busy somebody else's process computes."""
        tag = self.boot_id.replace("-", "")[:28]
        ids = [f"GPU-{i:04x}{tag}" for i in range(n)]
        rows = "".join(f"echo '{i}, {ids[i]}, 00000000:{i + 1:02X}:00.0, 81559, {models[i] if models else 'Fake'}'\n" for i in range(n))
        apps = "".join(f"echo '{ids[i]}, 1, python, 4000'\n" for i in busy)
        text = f"#!/bin/sh\ncase \"$*\" in\n*query-gpu*)\n{rows};;\n*query-compute*)\n{apps};;\nesac\n"
        if n:
            self.program("nvidia-smi", text)
        else:
            self.program("nvidia-smi", "#!/bin/sh\necho 'No devices were found'\nexit 6\n")

    @property
    def home(self):
        """That of the first account, as it lies here."""
        return self.homes / self.accounts[0]

    # --- the machine

    def script(self):
        """What PID 1 does before it waits for the end of the test."""
        q = shlex.quote
        lines = ["set -e", f"hostname {q(self.name)}", "mount -t tmpfs -o mode=755 tests /run",
                 "mkdir -m 755 /run/sshd /run/node /run/local", "mkdir -m 1777 /run/screen",
                 "mount --bind . /run/node", "mkdir -p /usr/local/bin",
                 "mount --bind /usr/local/bin /run/local", "mount --bind bin /usr/local/bin", "mkdir /run/homes",
                 f"mount --bind {q(str(self.homes))} /run/homes", "mount -t tmpfs -o mode=755 tests /home"]
        for uid, name in enumerate(self.accounts, UID):
            lines.append(f"mkdir /home/{name}")
            if self.disk:
                lines.append(f"mount -t tmpfs -o size={self.disk},mode=755,uid={uid},gid={uid} tests /home/{name}")
            else:
                lines.append(f"mount --bind /run/homes/{name} /home/{name}")
            if self.read_only:
                lines.append(f"mount -o remount,bind,ro /home/{name}")
        lines += ["mount --bind tmp /tmp", "mount --bind var-tmp /var/tmp", "mount -t tmpfs -o mode=755 tests /var/log",
                  "mount -t tmpfs -o mode=1777 tests /dev/shm"]
        lines += [f"mount --bind etc/{file} /etc/{file}" for file in ("passwd", "group")]
        lines.append("mount --bind etc/boot_id /proc/sys/kernel/random/boot_id")
        if self.without:
            lines += ["mkdir /run/programs", "mount --bind /usr/bin /run/programs", "mount --bind programs /usr/bin"]
        # What is left without a parent is reaped by the kernel itself.
        return "\n".join([*lines, "echo ready", "exec env --ignore-signal=CHLD cat"])

    def boot(self):
        (self.dir / "etc/boot_id").write_text(self.boot_id + "\n")
        own = ["--net"] if self.network else []
        with open(self.dir / "boot.log", "ab") as log:
            self.root = subprocess.Popen(
                [needs("unshare"), "--mount", "--pid", "--uts", "--ipc", *own, "--fork", "--kill-child", "--mount-proc", "--",
                 "sh", "-c", self.script()], cwd=self.dir, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0)
        if self.root.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{self.name} does not start: {(self.dir / 'boot.log').read_text()[-800:]}")
        if self.network:
            self.address = self.site.network().join(self.root.pid)
        return self.start()

    def enter(self):
        words = [needs("nsenter")]
        for kind in NAMESPACES:
            option = {"mnt": "mount", "pid_for_children": "pid"}.get(kind, kind)
            words.append(f"--{option}=/proc/{self.root.pid}/ns/{kind}")
        return [*words, "--wd=/", "--"]

    def command(self, *argv, user=None, stdin=subprocess.DEVNULL, timeout=60):
        """What root, or one of the accounts, does there."""
        who = []
        if user:
            uid = UID + self.accounts.index(user)
            who = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "env", f"HOME=/home/{user}"]
        done = subprocess.run([*self.enter(), *who, *map(str, argv)], stdin=stdin, capture_output=True, timeout=timeout,
                              env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"})
        return Result(done.returncode, done.stdout, done.stderr)

    def ok(self, *argv, **more):
        done = self.command(*argv, **more)
        assert done.rc == 0, f"{' '.join(map(str, argv))} on {self.name}: {done!r}"
        return done.out

    def has_ended(self):
        """nsenter, which may have stopped with what it started, has to take note of its end."""
        if self.daemon:
            self.daemon.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.root.wait(0.1)
        return self.root.poll() is not None

    def shut_down(self):
        """All processes end at once; the disk stays."""
        if self.root:
            self.root.stdin.close()
            while not self.has_ended():
                pass
            self.root.stdout.close()
            self.root = None
        if self.daemon:
            wait_for(self.server_has_ended, "the end of the server", END_S)
            self.daemon = None

    def reboot(self):
        self.shut_down()
        self.boot_id = str(uuid.uuid4())
        shutil.rmtree(self.dir / "tmp")
        (self.dir / "tmp").mkdir()
        (self.dir / "tmp").chmod(0o1777)
        self.boot()

    # --- the server

    def configuration(self):
        keys = [f"HostKey /run/node/host_{kind}" for kind in self.host_keys]
        if self.known == "authority":
            keys += [f"HostCertificate /run/node/host_{kind}-cert.pub" for kind in self.host_keys]
        wanted = {"ListenAddress": self.address, "Port": self.port, **SETTINGS, **self.settings}
        if openssh_version() >= (9, 8):
            wanted.setdefault("PerSourcePenalties", "no")
        lines = [f"{key} {value}" for key, value in wanted.items() if key != "Match"]
        return "\n".join([*keys, *lines, *([f"Match {wanted['Match']}"] if "Match" in wanted else [])]) + "\n"

    def argv(self):
        if self.server == "sshd":
            (self.dir / "sshd_config").write_text(self.configuration())
            return [sshd(), "-D", "-e", "-f", "/run/node/sshd_config"]
        words = [needs("dropbear"), "-F", "-E", "-s", "-P", "/run/sshd.pid", "-p", f"{self.address}:{self.port}"]
        for kind in self.host_keys:
            key = self.dir / f"dropbear_{kind}"
            if not key.exists():
                call(needs("dropbearconvert"), "openssh", "dropbear", self.dir / f"host_{kind}", key)
            words += ["-r", f"/run/node/dropbear_{kind}"]
        return words

    def start(self):
        argv = self.argv()
        with open(self.dir / "log", "ab") as log:
            self.daemon = subprocess.Popen([*self.enter(), *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(lambda: self.reachable() or self.daemon.poll() is not None, f"the server of {self.name}", START_S)
        if self.daemon.poll() is not None:
            raise RuntimeError(f"the server of {self.name} does not start: {self.log()[-800:]}")
        return self

    def reachable(self):
        if not self.network:
            return listens(self.port)
        return subprocess.run(["bash", "-c", f": </dev/tcp/{self.address}/{self.port}"], capture_output=True).returncode == 0

    def servers(self):
        """Names of its processes: OpenSSH 10 has programs of their own for sessions and logins."""
        return f"{self.server}(-session|-auth)?"

    def stop(self, sessions=False):
        """No new logins; with sessions all connections end, too."""
        if sessions:
            self.command("pkill", "-KILL", "-x", self.servers())
        else:
            self.command("sh", "-c", "kill $(cat /run/sshd.pid)")
        wait_for(self.server_has_ended, "the end of the server", END_S)

    def server_has_ended(self):
        # nsenter may have seen late that what it has started stood still, and stands still since.
        self.daemon.send_signal(signal.SIGCONT)
        return self.daemon.poll() is not None

    def restart(self, sessions=False):
        self.stop(sessions)
        self.start()

    def end_logins(self):
        """What a session manager does at the end of a login: all processes of its sessions are killed."""
        who = ",".join(self.accounts)
        self.ok("sh", "-c", f"s=; for p in $(pgrep -u {who} -x '{self.servers()}'); do s=\"$s $(pgrep -P $p)\"; done; "
                            f"for p in $s; do pkill -KILL -s $p; done; pkill -KILL -u {who} -x '{self.servers()}'; true")

    def freeze(self, stop=True):
        """The whole machine stands still, or goes on."""
        sign = "-STOP" if stop else "-CONT"
        self.command("sh", "-c", f"for p in /proc/[0-9]*; do p=${{p#/proc/}}; [ $p = 1 ] || [ $p = $$ ] || kill {sign} $p; done")
        # nsenter stops with what it has started, but does not go on with it.
        self.daemon.send_signal(signal.SIGSTOP if stop else signal.SIGCONT)

    def log(self):
        return (self.dir / "log").read_text(errors="replace")

    def logins(self):
        return self.log().count("Accepted publickey") if self.server == "sshd" else self.log().count("Pubkey auth succeeded")

    # --- processes of runs there

    def processes(self, *words):
        """(pid there, words) of those whose command line or environment has all the words, but for our own."""
        script = ("for p in /proc/[0-9]*; do printf '%s\\0' \"${p#/proc/}\"; cat $p/cmdline; "
                  "printf '\\0\\0\\1'; cat $p/environ; printf '\\2'; done 2>/dev/null")
        found = []
        for entry in self.command("sh", "-c", script).out.split("\2"):
            pid, _, rest = entry.partition("\0")
            argv, _, environ = rest.partition("\0\0\1")
            if pid and all(str(word) in argv + environ for word in words):
                found.append((int(pid), argv.replace("\0", " ").strip()))
        return found

    def kill(self, *pids):
        """All at once; some may have ended by themselves."""
        self.command("sh", "-c", f"kill -KILL {' '.join(map(str, pids))}")

    def files(self, pattern):
        """What of the first home matches."""
        return sorted(self.home.glob(pattern))

    def close(self):
        self.shut_down()


def openssh_version():
    words = subprocess.run([needs("ssh"), "-V"], capture_output=True, text=True).stderr
    digits = words.partition("OpenSSH_")[2][:6].replace("p", ".").split(".")
    return int(digits[0]), int(digits[1])


class SshSite:
    """Hosts, and the client's configuration that knows them. `env` is the world's."""

    def __init__(self, world):
        if os.getuid():
            raise Skip("hosts of their own need root")
        for program in ("ssh", "ssh-keygen", "unshare", "nsenter", "setpriv"):
            needs(program)
        sshd()
        self.w, self.dir = world, world.dir / "ssh"
        self.dir.mkdir()
        self.config, self.known_hosts = self.dir / "config", self.dir / "known_hosts"
        self.hosts, self.switch, self.agents, self.masters = {}, None, [], []
        self.env = world.env
        self.env["DLRUN_SSH_CONFIG"] = str(self.config)
        self.write()

    def __getitem__(self, name):
        return self.hosts[name]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def host(self, name, **options):
        host = Host(self, name, **options)
        self.hosts[name] = host
        host.boot()
        self.write()
        return host

    def network(self):
        self.switch = self.switch or Network(self.dir)
        return self.switch

    def close(self):
        for process in (*self.masters, *self.agents):
            process.kill()
            process.wait()
        for host in self.hosts.values():
            host.close()
        if self.switch:
            self.switch.close()

    # --- the client

    def key(self, kind="ed25519"):
        """The user's key of that kind; "locked": one with PASSPHRASE, "fido": one whose device is not here."""
        if kind == "fido":
            return make_fido_key(self.dir / "id_fido")
        return make_key(self.dir / f"id_{kind}", "ed25519" if kind == "locked" else kind, PASSPHRASE if kind == "locked" else "")

    def lines(self, host):
        name, port = (host.wire.host, host.wire.port) if host.wire else (host.address, host.port)
        wanted = {"HostName": name, "Port": port, "User": host.accounts[0],
                  "IdentityFile": [str(self.key(kind)) for kind in host.keys], **host.client}
        if host.known == "authority":
            wanted.setdefault("HostKeyAlias", host.name)
        for key, value in wanted.items():
            for each in value if isinstance(value, list) else [value] if value is not None else []:
                yield f"    {key} {each}"

    def write(self):
        """The configuration and known_hosts, as the hosts are now."""
        text = ""
        for host in self.hosts.values():
            text += "\n".join([f"Host {host.name}", *self.lines(host)]) + "\n"
        text += f"Host *\n    UserKnownHostsFile {self.known_hosts}\n    GlobalKnownHostsFile /dev/null\n    IdentitiesOnly yes\n"
        self.config.write_text(text)
        self.known_hosts.write_text("".join(line for host in self.hosts.values() for line in self.known_lines(host)))

    def known_lines(self, host):
        if not host.known:
            return
        if host.known == "authority":
            yield f"@cert-authority {host.name} {public(self.dir / 'authority')}\n"
            return
        name, port = (host.wire.host, host.wire.port) if host.wire else (host.address, host.port)
        name = name if port == 22 else f"[{name}]:{port}"
        name = hashed(name) if host.known == "hashed" else name
        for kind in host.host_keys:
            key = make_key(self.dir / f"other_{kind}", kind) if host.known == "changed" else host.dir / f"host_{kind}"
            yield f"{'@revoked ' if host.known == 'revoked' else ''}{name} {public(key)}\n"

    def change(self, name, **client):
        """Further lines of the client's configuration for a host; None takes one out."""
        self.hosts[name].client.update(client)
        self.write()

    def ssh(self, *words, **more):
        """The user's own ssh."""
        return self.w.command([needs("ssh"), "-F", self.config, "-o", "BatchMode=yes", *words], **more)

    @contextlib.contextmanager
    def wire(self, name, cls=FaultProxy, **switches):
        """A proxy before the host, which clients meet instead of it."""
        host = self.hosts[name]
        with cls((host.address, host.port), **switches) as host.wire:
            self.write()
            try:
                yield host.wire
            finally:
                host.wire = None
                self.write()

    def agent(self, *kinds):
        """An agent that has these keys, which the client does not read from files any more."""
        path = self.dir / "agent"
        self.agents.append(subprocess.Popen([needs("ssh-agent"), "-D", "-a", path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        # Its socket is there before it listens.
        wait_for(lambda: agent_listens(path), "the agent")
        self.env["SSH_AUTH_SOCK"] = str(path)
        helper = self.dir / "askpass"
        helper.write_text(f"#!/bin/sh\necho '{PASSPHRASE}'\n")
        helper.chmod(0o755)
        for kind in kinds:
            call(needs("ssh-add"), "-q", self.key(kind), env={**self.env, "SSH_ASKPASS": str(helper), "SSH_ASKPASS_REQUIRE": "force"})
        return path

    def master(self, name):
        """A ControlMaster of the user's that lives, and its socket."""
        path = self.dir / f"m-{name}"
        self.change(name, ControlPath=path)
        process = subprocess.Popen([needs("ssh"), "-F", self.config, "-o", "BatchMode=yes", "-M", "-N", name], env=self.env,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.masters.append(process)
        wait_for(lambda: self.ssh("-O", "check", name).rc == 0, "the master", START_S)
        return path

    # --- dlrun

    def submit(self, *words, to="gpu1", **options):
        """The id of a run that was accepted."""
        done = self.w.ok("submit", "-d", "-t", f"ssh:{to}", *words, **options)
        self.said = done.err
        return done.out.strip()

    def follow(self, *words, to="gpu1", **options):
        """What `submit -f` came to."""
        return self.w.run("submit", "-f", "-t", f"ssh:{to}", *words, **options)

    def there_is(self, *words):
        """Submits with these words may not be there yet: then the test is skipped, visibly."""
        done = self.w.run("submit", "--dry-run", *words, "--", "true")
        if "[target.unsupported]" in done.err:
            raise Skip(done.err.splitlines()[0])

    def state(self, run):
        return self.w.show(run)["state"]

    def ended(self, run, seconds=60):
        """The record once the run has ended."""
        wait_for(lambda: self.state(run) in ENDED, f"the end of {run}", seconds)
        return self.w.show(run)

    def running(self, run, seconds=30):
        """The record once its program runs."""
        wait_for(lambda: self.state(run) not in ("preparing", "queued", "starting"), f"the start of {run}", seconds)
        shown = self.w.show(run)
        assert shown["state"] == "running", shown
        return shown

    def said_by(self, run, text, seconds=30):
        """Its output, once the text is in it."""
        wait_for(lambda: text in self.w.run("logs", run).out, f"{text!r} in the output of {run}", seconds)
        return self.w.ok("logs", run).out

    def why(self, run="@"):
        return json.loads(self.w.ok("why", "--json", run).out)

    def there(self, run, attempt=1, host="gpu1"):
        """The directory of an attempt, as it lies here."""
        return next(self[host].homes.glob(f"*/.dlrun/on/{host}/runs/{run}/{attempt}"))


def agent_listens(path):
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def hashed(name):
    """As ssh-keygen -H hides a name (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""
    salt = os.urandom(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@contextlib.contextmanager
def site(world, *names, files=None, **options):
    """Hosts that are alike, and a repository in the world's tree."""
    with SshSite(world) as here:
        for name in names or ("gpu1",):
            here.host(name, **options)
        world.repo(files)
        yield here
