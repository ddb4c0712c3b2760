#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A certificate authority for tests, and server certificates that are good or bad in one way.

    tests/fake/certs.py DIRECTORY [NAME…]
"""

import ipaddress
import ssl
import subprocess
import sys
from pathlib import Path

CONFIG = """
[ca]
default_ca = own
[own]
database = {dir}/{ca}.index
new_certs_dir = {dir}
rand_serial = yes
default_md = sha256
policy = any
unique_subject = no
email_in_dn = no
[any]
commonName = supplied
[server]
basicConstraints = critical, CA:false
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = {names}
[root]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""
ALWAYS = ("20200101000000Z", "20491231235959Z")
LONG_AGO = ("20200101000000Z", "20200201000000Z")
TO_COME = ("20490101000000Z", "20491231235959Z")


class Certs:
    """Files below a directory (made if absent), with the `openssl` command.

    names        names and addresses of the server.
    ca           the PEM file of the authority that clients should trust.
    pair(kind)   (certificate, key) PEM files; made at the first call.
    context(kind, oldest, newest)   an ssl.SSLContext of a server with that certificate; oldest and
                 newest: ssl.TLSVersion limits, for example both TLSv1_1 to be refused.

    Kinds: "good"; "wrong-name" (for elsewhere.invalid); "expired"; "not-yet"; "self-signed";
    "unknown-ca" (of an authority that nobody trusts); "client" (for a client).
    """

    KINDS = {"good": ("ca", ALWAYS), "wrong-name": ("ca", ALWAYS), "expired": ("ca", LONG_AGO),
             "not-yet": ("ca", TO_COME), "self-signed": (None, ALWAYS), "unknown-ca": ("stranger", ALWAYS), "client": ("ca", ALWAYS)}

    def __init__(self, directory, names=("localhost", "127.0.0.1", "::1")):
        self.dir = Path(directory).resolve()
        self.dir.mkdir(parents=True, exist_ok=True)
        self.names = tuple(names)
        self.ca = self._authority("ca")

    def pair(self, kind="good"):
        authority, (begin, end) = self.KINDS[kind]
        certificate, key = self.dir / f"{kind}.pem", self.dir / f"{kind}.key"
        if not certificate.exists():
            names = ("elsewhere.invalid",) if kind == "wrong-name" else self.names
            if authority:
                self._authority(authority)
                request = self._request(kind, names[0])
                sign = ["-cert", self.dir / f"{authority}.pem", "-keyfile", self.dir / f"{authority}.key"]
            else:
                request = self._request(kind, names[0])
                sign = ["-selfsign", "-keyfile", key]
            self._sign(authority or kind, names, "server", [
                *sign, "-in", request, "-out", certificate, "-startdate", begin, "-enddate", end])
        return certificate, key

    def context(self, kind="good", oldest=None, newest=None):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.pair(kind))
        if oldest:
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            context.minimum_version = oldest
        if newest:
            context.maximum_version = newest
        return context

    def _authority(self, name):
        certificate = self.dir / f"{name}.pem"
        if not certificate.exists():
            request = self._request(name, f"dlrun tests {name}")
            self._sign(name, ("unused.invalid",), "root", [
                "-selfsign", "-keyfile", self.dir / f"{name}.key", "-in", request, "-out", certificate,
                "-startdate", ALWAYS[0], "-enddate", ALWAYS[1]])
        return certificate

    def _request(self, name, subject):
        request = self.dir / f"{name}.csr"
        self._openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                      self.dir / f"{name}.key", "-out", request, "-subj", f"/CN={subject}")
        return request

    def _sign(self, authority, names, extensions, arguments):
        (self.dir / f"{authority}.index").touch()
        config = self.dir / f"{authority}.cnf"
        config.write_text(CONFIG.format(dir=self.dir, ca=authority, names=", ".join(map(alternative, names))))
        self._openssl("ca", "-batch", "-notext", "-config", config, "-extensions", extensions, *arguments)

    @staticmethod
    def _openssl(*arguments):
        done = subprocess.run(["openssl", *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True)
        if done.returncode:
            raise RuntimeError(f"openssl {arguments[0]}: {done.stderr}")


def alternative(name):
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"


def main():
    certs = Certs(sys.argv[1], sys.argv[2:] or ("localhost", "127.0.0.1", "::1"))
    print(certs.ca)
    for kind in certs.KINDS:
        print(*certs.pair(kind))


if __name__ == "__main__":
    main()
