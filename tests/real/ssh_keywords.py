#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All keywords of ssh_config(5), of OpenSSH 9 and 10: who carries a login whose configuration says each, and that dlrun gets
in exactly where `ssh` does."""

import gzip
import re

from harness import *  # noqa: F403
from sshsite import SshSite, needs, public

LIBSSH2, CLIENT = "libssh2", "openssh"

# Keyword, a value other than the default, who carries the login then. What the client here does not know yet is said by
# its -G all the same. "-": nothing that a value can be given for here; the text says why.
TABLE = {
    "AddKeysToAgent": ("no", LIBSSH2), "AddressFamily": ("inet", LIBSSH2), "BatchMode": ("yes", LIBSSH2),
    "BindAddress": ("127.0.0.1", CLIENT), "BindInterface": ("lo", CLIENT), "CanonicalDomains": ("lab.invalid", LIBSSH2),
    "CanonicalizeFallbackLocal": ("yes", LIBSSH2), "CanonicalizeHostname": ("no", LIBSSH2), "CanonicalizeMaxDots": ("3", LIBSSH2),
    "CanonicalizePermittedCNAMEs": ("*.a:*.b", LIBSSH2), "CASignatureAlgorithms": ("rsa-sha2-512", LIBSSH2),
    "CertificateFile": ("~/none-cert.pub", CLIENT), "ChannelTimeout": ("session=1d", CLIENT), "CheckHostIP": ("yes", CLIENT),
    "Ciphers": ("aes256-ctr", LIBSSH2), "ClearAllForwardings": ("yes", LIBSSH2), "Compression": ("yes", LIBSSH2),
    "ConnectionAttempts": ("2", CLIENT), "ConnectTimeout": ("7", LIBSSH2), "ControlMaster": ("auto", LIBSSH2),
    "ControlPath": ("~/none", LIBSSH2), "ControlPersist": ("yes", LIBSSH2), "DynamicForward": ("1", LIBSSH2),
    "EnableEscapeCommandline": ("yes", LIBSSH2), "EnableSSHKeysign": ("yes", LIBSSH2), "EscapeChar": ("none", LIBSSH2),
    "ExitOnForwardFailure": ("yes", LIBSSH2), "FingerprintHash": ("md5", LIBSSH2), "ForkAfterAuthentication": ("yes", LIBSSH2),
    "ForwardAgent": ("yes", LIBSSH2), "ForwardX11": ("yes", LIBSSH2), "ForwardX11Timeout": ("1", LIBSSH2),
    "ForwardX11Trusted": ("no", LIBSSH2), "GatewayPorts": ("yes", LIBSSH2), "GlobalKnownHostsFile": ("/nonexistent-known", LIBSSH2),
    "GSSAPIAuthentication": ("yes", LIBSSH2), "GSSAPIClientIdentity": ("me", LIBSSH2), "GSSAPIDelegateCredentials": ("yes", LIBSSH2),
    "GSSAPIKeyExchange": ("yes", CLIENT), "GSSAPIRenewalForcesRekey": ("yes", LIBSSH2), "GSSAPIServerIdentity": ("host", LIBSSH2),
    "GSSAPITrustDns": ("yes", LIBSSH2), "GSSAPIKexAlgorithms": ("gss-group14-sha256-", LIBSSH2), "HashKnownHosts": ("yes", LIBSSH2),
    "Host": "-", "HostbasedAcceptedAlgorithms": ("ssh-ed25519", LIBSSH2), "HostbasedAuthentication": ("yes", CLIENT),
    "HostKeyAlgorithms": ("ssh-ed25519", LIBSSH2), "HostKeyAlias": ("known-by-alias", LIBSSH2), "Hostname": ("127.0.0.1", LIBSSH2),
    "IdentitiesOnly": ("yes", LIBSSH2), "IdentityAgent": ("none", LIBSSH2), "IdentityFile": ("KEY", LIBSSH2),
    "IgnoreUnknown": ("Foo", LIBSSH2), "Include": "-", "IPQoS": ("none", LIBSSH2), "KbdInteractiveAuthentication": ("no", LIBSSH2),
    "KbdInteractiveDevices": ("pam", LIBSSH2), "KexAlgorithms": ("curve25519-sha256", LIBSSH2),
    "KnownHostsCommand": ("/bin/true", CLIENT), "LocalCommand": ("touch CANARY", LIBSSH2), "LocalForward": ("1 127.0.0.1:1", LIBSSH2),
    "LogLevel": ("DEBUG3", LIBSSH2), "LogVerbose": ("*:*:*", LIBSSH2), "MACs": ("hmac-sha2-512", LIBSSH2), "Match": "-",
    "NoHostAuthenticationForLocalhost": ("yes", CLIENT), "NumberOfPasswordPrompts": ("1", LIBSSH2),
    "ObscureKeystrokeTiming": ("no", LIBSSH2), "PasswordAuthentication": ("no", LIBSSH2), "PermitLocalCommand": ("yes", LIBSSH2),
    "PermitRemoteOpen": ("none", LIBSSH2), "PKCS11Provider": ("/nonexistent.so", CLIENT), "Port": ("PORT", LIBSSH2),
    "PreferredAuthentications": ("password,publickey", CLIENT), "ProxyCommand": ("PROXY", CLIENT), "ProxyJump": ("jump", CLIENT),
    "ProxyUseFdpass": ("no", LIBSSH2), "PubkeyAcceptedAlgorithms": ("ssh-ed25519", LIBSSH2),
    "PubkeyAuthentication": ("unbound", CLIENT), "RefuseConnection": ("closed for today", CLIENT), "RekeyLimit": ("1G 1h", CLIENT),
    "RemoteCommand": ("false", LIBSSH2), "RemoteForward": ("1 127.0.0.1:1", LIBSSH2), "RequestTTY": ("force", LIBSSH2),
    "RequiredRSASize": ("4096", LIBSSH2), "RevokedHostKeys": ("REVOKED", CLIENT), "SecurityKeyProvider": ("/nonexistent.so", LIBSSH2),
    "SendEnv": ("HOME", LIBSSH2), "ServerAliveCountMax": ("9", LIBSSH2), "ServerAliveInterval": ("20", LIBSSH2),
    "SessionType": ("none", LIBSSH2), "SetEnv": ("A=b", LIBSSH2), "StdinNull": ("yes", LIBSSH2),
    "StreamLocalBindMask": ("0777", LIBSSH2), "StreamLocalBindUnlink": ("yes", LIBSSH2), "StrictHostKeyChecking": ("yes", LIBSSH2),
    "SyslogFacility": ("AUTH", LIBSSH2), "Tag": ("work", LIBSSH2), "TCPKeepAlive": ("no", LIBSSH2), "Tunnel": ("ethernet", LIBSSH2),
    "TunnelDevice": ("1:1", LIBSSH2), "UpdateHostKeys": ("no", LIBSSH2), "User": ("me", LIBSSH2), "UserKnownHostsFile": ("KNOWN", LIBSSH2),
    "VerifyHostKeyDNS": ("yes", CLIENT), "VersionAddendum": ("lab", CLIENT), "VisualHostKey": ("yes", LIBSSH2),
    "WarnWeakCrypto": ("no", LIBSSH2), "XAuthLocation": ("/usr/bin/true", LIBSSH2),
}
# What ssh alone makes of these is no login: dlrun says otherwise on its command line.
NOT_FOR_SSH = {"ForkAfterAuthentication", "RemoteCommand", "SessionType", "Tunnel", "RequestTTY", "LocalForward", "RemoteForward",
               "DynamicForward", "ExitOnForwardFailure"}
NEWER = {"ChannelTimeout", "ObscureKeystrokeTiming", "RefuseConnection", "Tag", "VersionAddendum", "WarnWeakCrypto"}


def tool(s, *words, **more):
    program = Path(s.w.dlrun).parent / "tests/real/ssh_tool"
    return s.w.command([program, "--config", s.config, *words], **more)


def login(s, host="gpu1"):
    """Whether dlrun gets in, who carried it, and why."""
    done = tool(s, "login", host)
    who, _, why = done.out.strip().partition(": ")
    return done.rc == 0, who, why, done


def ssh_gets_in(s, host="gpu1"):
    return s.ssh("-T", host, "true").rc == 0


def says_in_addition(w, lines):
    """A client whose -G says more."""
    own, real = w.dir / "bin", needs("ssh")
    own.mkdir(exist_ok=True)
    (own / "ssh").write_text(f"#!/bin/sh\ncase \" $* \" in *' -G '*) printf '%s\\n' {' '.join(repr(x) for x in lines)};; esac\nexec {real} \"$@\"\n")
    (own / "ssh").chmod(0o755)
    w.env["PATH"] = f"{own}:{os.environ['PATH']}"


def known_to_the_client(s):
    return {line.split()[0].lower() for line in s.ssh("-G", "gpu1").out.splitlines()}


def test_the_table_is_whole(w):
    """Of the manual here, of what -G here prints, and of dlrun's own."""
    names = {name.lower() for name in TABLE}
    page = Path("/usr/share/man/man5/ssh_config.5.gz")
    if page.exists():
        manual = {word.lower() for word in re.findall(r"^\.It Cm ([A-Z]\w+)", gzip.decompress(page.read_bytes()).decode(), re.M)}
        assert len(manual) > 90 and manual <= names, manual - names
    with SshSite(w) as s:
        s.host("gpu1")
        assert known_to_the_client(s) <= names, known_to_the_client(s) - names
    source = (Path(__file__).resolve().parents[2] / "lib/net/ssh/ssh_config.c").read_text()
    rows = set(re.findall(r'^\t(?:\{|[A-Z_]+\()"(\w+)"', source, re.M))
    idle = source.partition("idle[] = {")[2].partition("};")[0]
    rows |= {name for words in re.findall(r'"([\w,]+)"', idle) for name in words.split(",") if name}
    old = {"challengeresponseauthentication", "hostbasedkeytypes", "pubkeyacceptedkeytypes", "rsaminsize", "usekeychain"}
    assert rows == names | old, rows ^ (names | old)


def values(s):
    host = s["gpu1"]
    revoked = s.dir / "revoked"
    revoked.write_text("")
    return {"KEY": str(s.key()), "PORT": str(host.port), "KNOWN": str(s.known_hosts), "REVOKED": str(revoked),
            "PROXY": f"ssh -F {s.config} -W %h:%p jump", "CANARY": str(s.w.dir / "canary")}


def test_each_of_them(w):
    with SshSite(w) as s:
        s.host("gpu1")
        s.host("jump")
        # Both are known by what HostKeyAlias says, too.
        known, replaced, wrong = s.known_hosts, values(s), []
        for name, row in TABLE.items():
            if row == "-":
                continue
            value, carrier = row
            for word, real in replaced.items():
                value = value.replace(word, real)
            if name in NEWER:
                says_in_addition(w, [f"{name.lower()} {value}"])
                ssh_in = True
            else:
                w.env["PATH"] = os.environ["PATH"]
                s.change("gpu1", **{name: value})
                with known.open("a") as file:
                    file.write(f"known-by-alias {public(s['gpu1'].dir / 'host_ed25519')}\n")
                ssh_in = True if name in NOT_FOR_SSH else ssh_gets_in(s)
            got_in, who, why, done = login(s)
            if (got_in, who) != (ssh_in, carrier) or (who == CLIENT and not why):
                wrong.append((name, value, f"ssh: {ssh_in}", f"dlrun: {got_in} by {who}, because {why}", done.err))
            print(f"    {name} {value}: {who}{', because ' + why.removeprefix('the OpenSSH client: ') if who == CLIENT else ''}")
            s.change("gpu1", **{name: {"HostName": "127.0.0.1", "User": "me", "IdentityFile": [str(s.key())]}.get(name)})
            for leftover in ("Hostname", "User", "IdentityFile", "Port"):
                s["gpu1"].client.pop(leftover, None)
            s.write()
        assert not wrong, wrong
        assert not (w.dir / "canary").exists()


def test_what_is_not_in_the_table(w):
    with SshSite(w) as s:
        s.host("gpu1")
        for line, carrier in (("newthing yes", CLIENT), ("newthing 3 4", CLIENT), ("newthing no", LIBSSH2), ("newthing none", LIBSSH2),
                              ("newalgorithms a,b", CLIENT), ("newthing", LIBSSH2)):
            says_in_addition(w, [line])
            got_in, who, why, done = login(s)
            assert got_in and who == carrier and (who == LIBSSH2 or "newthing" in why or "newalgorithms" in why), (line, done)


def agreed(s, host="gpu1"):
    """What libssh2's carrier and `ssh -v` agree on with the host: key exchange, key of the host, cipher, MAC."""
    done = tool(s, "login", host)
    ours = re.search(r"agreed: (.*)", done.err)
    said = s.ssh("-v", "-T", host, "true").err
    theirs = [re.search(pattern, said) for pattern in (r"kex: algorithm: (\S+)", r"kex: host key algorithm: (\S+)",
                                                       r"kex: client->server cipher: (\S+)", r"kex: client->server .* MAC: (\S+)")]
    return ours and ours[1].strip().split(", "), [found and found[1] for found in theirs], done


def test_algorithms_are_those_of_ssh(w):
    with SshSite(w) as s:
        s.host("gpu1")
        for lines in ({"Ciphers": "aes192-ctr", "MACs": "hmac-sha2-512", "KexAlgorithms": "ecdh-sha2-nistp384"},
                      {"Ciphers": "aes256-ctr,aes128-ctr", "MACs": "hmac-sha2-256,hmac-sha2-512", "KexAlgorithms": "ecdh-sha2-nistp521,curve25519-sha256"},
                      {"Ciphers": "aes128-ctr", "MACs": "hmac-sha2-256", "KexAlgorithms": "ecdh-sha2-nistp256", "HostKeyAlgorithms": "ecdsa-sha2-nistp256"},
                      {"Ciphers": "aes128-ctr", "MACs": "hmac-sha2-256", "KexAlgorithms": "curve25519-sha256", "HostKeyAlgorithms": "ecdsa-sha2-nistp256,ssh-ed25519"}):
            s.change("gpu1", **lines)
            ours, theirs, done = agreed(s)
            assert ours == theirs and all(ours), (lines, ours, theirs, done)
            s.change("gpu1", **{name: None for name in lines})


def both(s, host, gets_in, **client):
    s.change(host, **client)
    ssh_in = ssh_gets_in(s, host)
    got_in, who, why, done = login(s, host)
    assert ssh_in == gets_in and got_in == ssh_in, (host, client, f"ssh: {ssh_in}", done)
    s.change(host, **{name: None for name in client})
    return who


def test_nobody_gets_in_where_ssh_does_not(w):
    with SshSite(w) as s:
        s.host("gpu1", settings={"Ciphers": "aes128-ctr", "MACs": "hmac-sha2-256", "KexAlgorithms": "curve25519-sha256"})
        for lines in ({"Ciphers": "aes256-ctr"}, {"Ciphers": "aes256-gcm@openssh.com"}, {"Ciphers": "-aes128-ctr"}, {"MACs": "hmac-sha2-512"},
                      {"MACs": "umac-64@openssh.com"}, {"KexAlgorithms": "ecdh-sha2-nistp256"}, {"KexAlgorithms": "sntrup761x25519-sha512@openssh.com"},
                      {"HostKeyAlgorithms": "rsa-sha2-512"}, {"HostKeyAlgorithms": "ecdsa-sha2-nistp384"},
                      {"HostKeyAlgorithms": "ssh-ed25519-cert-v01@openssh.com"}, {"PubkeyAcceptedAlgorithms": "ecdsa-sha2-nistp256"},
                      {"PubkeyAcceptedAlgorithms": "-ssh-ed25519"}, {"PubkeyAcceptedAlgorithms": "rsa-sha2-512"}):
            both(s, "gpu1", False, **lines)
        for lines in ({"Ciphers": "aes256-gcm@openssh.com,aes128-ctr"}, {"MACs": "umac-64@openssh.com,hmac-sha2-256"},
                      {"KexAlgorithms": "sntrup761x25519-sha512@openssh.com,curve25519-sha256"}, {"PubkeyAcceptedAlgorithms": "ssh-ed25519"},
                      {"HostKeyAlgorithms": "-rsa-sha2-256"}, {"HostKeyAlgorithms": "+ssh-rsa"}):
            assert both(s, "gpu1", True, **lines) == LIBSSH2, lines
        # A list of which libssh2 has nothing, and the server has.
        s.host("gcm", settings={"Ciphers": "aes256-gcm@openssh.com"})
        assert both(s, "gcm", True, Ciphers="aes256-gcm@openssh.com") == CLIENT


def test_the_key_of_the_host_is_asked_for_as_ssh_does(w):
    """An order of the user's own is kept, even where another of the host's keys is the one that is known."""
    with SshSite(w) as s:
        host = s.host("gpu1")
        s.known_hosts.write_text("".join(x for x in s.known_hosts.read_text().splitlines(True) if "ssh-ed25519" not in x))
        known = s.known_hosts.read_text()

        def one(gets_in, **client):
            s.change("gpu1", UserKnownHostsFile=str(w.dir / "known"), **client)
            (w.dir / "known").write_text(known)
            return both(s, "gpu1", gets_in, **client)

        assert known.count(str(host.port)) == 1
        assert one(True) == LIBSSH2
        one(False, HostKeyAlgorithms="ssh-ed25519,ecdsa-sha2-nistp256")
        assert one(True, HostKeyAlgorithms="ecdsa-sha2-nistp256,ssh-ed25519") == LIBSSH2
        one(True, HostKeyAlgorithms="^ecdsa-sha2-nistp256")


def test_small_rsa_keys(w):
    with SshSite(w) as s:
        s.host("user", keys=("rsa",))
        s.host("host", host_keys=("rsa",))
        for host in ("user", "host"):
            both(s, host, True)
            both(s, host, True, RequiredRSASize=2048)
            both(s, host, False, RequiredRSASize=3072)


def test_signatures_of_authorities(w):
    """Also of a host of which a plain key is known: it shows its certificate first."""
    with SshSite(w) as s:
        s.host("signed", known="authority")
        both(s, "signed", True)
        both(s, "signed", False, CASignatureAlgorithms="rsa-sha2-512")
        both(s, "signed", True, CASignatureAlgorithms="ssh-ed25519")
        host, known = s["signed"], w.dir / "known"
        known.write_text(s.known_hosts.read_text() + f"signed {public(host.dir / 'host_ecdsa')}\n")
        assert both(s, "signed", True, UserKnownHostsFile=known) == CLIENT


if __name__ == "__main__":
    main()
