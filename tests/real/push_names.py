#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pushes to registries that have names, not only addresses: looked up, reached, and not mixed up.

    tests/real/push_names.py DLRUN [NAME…]
"""

import os
import shlex

from harness import main, needs
from pushsite import Answer, FaultProxy, Site

NAME, OTHER = "registry.test", "other.test"
# The hosts file of a mount namespace of the push alone.
LAUNCH = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'


class Named(Site):
    """The registry is called NAME; `hosts` says where that is."""

    def __init__(self, dlrun, **more):
        super().__init__(dlrun, **more)
        self.port = self.registry.address.rpartition(":")[2]
        self.via = f"{NAME}:{self.port}"
        self.hosts = self.dir / "hosts"
        (self.home / ".config/dlrun").mkdir(parents=True)
        (self.home / ".config/dlrun/config.yaml").write_text(f"registry: {{push: '{self.via}/me/code', insecure: true}}\n")
        namespace = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
        argv = [needs("unshare"), *namespace, "sh", "-c", LAUNCH, "sh", self.hosts, dlrun]
        launcher = self.dir / "launcher"
        launcher.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, argv))} "$@"\n')
        launcher.chmod(0o755)
        self.dlrun = str(launcher)

    def named(self, *lines):
        self.hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{line}\n" for line in lines))


def test_name(w):
    with Named(w.dlrun) as site:
        site.named(f"127.0.0.1 {NAME}")
        site.right("--image", site.base)
        site.edit()
        site.right("--image", site.base)


def test_first_address_is_closed(w):
    """That of the other family answers."""
    with Named(w.dlrun) as site:
        for lines in ((f"::1 {NAME}", f"127.0.0.1 {NAME}"), (f"127.0.0.1 {NAME}", f"::1 {NAME}"), (f"127.0.0.3 {NAME}", f"127.0.0.1 {NAME}")):
            site.named(*lines)
            site.edit()
            site.right("--image", site.base)


def test_redirect_to_another_name(w):
    """Its address is another one, though the first name's has just been told to libcurl."""
    with Named(w.dlrun) as site, FaultProxy(site.registry.address, listen=f"127.0.0.2:{site.port}") as other:
        site.named(f"127.0.0.1 {NAME}", f"127.0.0.2 {OTHER}")

        def elsewhere(request):
            host = request.headers.get("Host", "")
            return Answer(307, [("Location", f"http://{OTHER}:{site.port}{request.target}")]) if host.startswith(NAME) else None

        # That it speaks without TLS is known from the push before.
        site.right("--image", site.base)
        site.age()
        site.registry.rule("^(GET|HEAD) ", elsewhere)
        site.right("--image", site.base)
        assert other.accepted > 0, site.seen()


def test_no_such_name(w):
    with Named(w.dlrun) as site:
        site.named()
        done = site.push("--image", site.base)
        assert done.rc == 3 and "[http.resolve]" in done.err, done
        site.named(f"127.0.0.1 {NAME}")
        site.right("--image", site.base)


if __name__ == "__main__":
    main()
