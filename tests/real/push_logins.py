#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Repositories of one registry that have logins of their own, as GitLab's deploy tokens are.

    tests/real/push_logins.py DLRUN [NAME…]
"""

import base64
import json
import re

from harness import main
from pushsite import Basic, Bearer, Site, TokenServer, outcome

USERS = {"reader": "cnry-reads", "writer": "cnry-writes", "stranger": "cnry-of-the-host"}
OWN = {"reader": "base", "writer": "me"}


def own(user, repository, action):
    """Each may do everything below its prefix, and nothing else."""
    return repository.startswith(OWN.get(user, "nobody's") + "/")


def and_mount(user, repository, action):
    """The writer may read the base, too."""
    return own(user, repository, action) or (user == "writer" and action == "pull")


class Logins(Site):
    """base/ and me/ have logins of their own below a third one for the whole host, which is good for nothing.

    allow    function (user, repository, action) -> bool.
    tokens   None: passwords go to the registry; else arguments of TokenServer.
    names    {prefix: user}.
    """

    def __init__(self, dlrun, allow, tokens=None, names=None):
        super().__init__(dlrun)
        if tokens is None:
            self.registry.auth = Basic(USERS, allow=allow)
        else:
            self.tokens = self.server(TokenServer, users=USERS, allow=allow, **tokens)
            self.registry.auth = Bearer(self.tokens)
        if names is None:
            names = {"": "stranger", **{f"/{prefix}": user for user, prefix in OWN.items()}}
        (self.home / ".docker").mkdir()
        (self.home / ".docker/config.json").write_text(json.dumps({"auths": {
            self.via + name: {"auth": base64.b64encode(f"{user}:{USERS[user]}".encode()).decode()} for name, user in names.items()}}))

    def who(self, authorization):
        if self.tokens:
            token = self.tokens.lookup(authorization)
            return token and (token.user or "anonymous")
        _, _, text = (authorization or "").partition(" ")
        return base64.b64decode(text).decode().partition(":")[0] or None

    def keep_apart(self, mounts=()):
        """Each login was used below its prefix alone; forgets what was seen. mounts: the statuses of the mounts."""
        seen, statuses = set(), []
        for request in self.registry.requests:
            prefix = request.path.split("/")[2]
            user = self.who(request.authorization)
            if user:
                seen.add((prefix, user))
            if request.arg("mount") and user:
                statuses.append(request.status)
        assert seen == {(prefix, user) for user, prefix in OWN.items()}, f"{seen}{self.seen()}"
        assert sorted(set(statuses)) == sorted(mounts), f"{statuses}{self.seen()}"
        for grant in self.tokens.grants if self.tokens else ():
            assert grant.scopes[0].startswith(f"repository:{OWN[grant.user]}/"), grant
        self.registry.clear()

    def later(self):
        """What comes after the first push: the base's layers are there."""
        self.edit()
        self.right("--image", self.base)
        self.age()
        self.edit()
        self.right("--image", self.base)
        self.forget()
        self.registry.clear()
        self.right("--image", self.base)


SCHEMES = (None, {}, {"all_or_none": True})


def test_base_is_mounted_where_that_is_allowed(w):
    for tokens in SCHEMES:
        with Logins(w.dlrun, and_mount, tokens) as site:
            site.right("--image", site.base)
            site.keep_apart(mounts=[201])
            site.later()


def test_base_is_copied_where_it_is_not(w):
    for tokens in SCHEMES:
        with Logins(w.dlrun, own, tokens) as site:
            done = site.push("--image", site.base)
            assert outcome(done) == "registry.mount" and "--copy-base" in done.err, done
            site.keep_apart(mounts=[403 if tokens is None else 401])
            site.right("--image", site.base, "--copy-base")
            site.keep_apart(mounts=[403 if tokens is None else 401])
            site.later()
            site.keep_apart(mounts=[403 if tokens is None else 401])


def test_base_that_anybody_may_read(w):
    """It has no login, and gets none."""
    with Logins(w.dlrun, own, {"anonymous": {"pull"}}, names={"/me": "writer"}) as site:
        site.right("--image", site.base, "--copy-base")
        assert {grant.user for grant in site.tokens.grants} == {"writer", None}
        for request in site.registry.requests:
            assert not request.path.startswith("/v2/base/") or site.who(request.authorization) in (None, "anonymous"), site.seen()
        site.later()


def test_prefix_that_is_longer_wins(w):
    with Logins(w.dlrun, own, {}, names={"/base": "stranger", "/base/py": "reader", "/me/code": "writer", "/me": "stranger"}) as site:
        site.right("--image", site.base, "--copy-base")
        site.keep_apart(mounts=[401])


def test_one_login_for_both_has_one_token(w):
    for names in ({"": "writer"}, {"/me": "writer", "": "writer"}):
        with Logins(w.dlrun, lambda *_: True, {}, names=names) as site:
            site.right("--image", site.base)
            assert [grant.scopes for grant in site.tokens.grants] == [["repository:me/code:pull,push", "repository:base/py:pull"]]


def test_trace_shows_the_push_and_no_secret(w):
    for tokens in SCHEMES:
        with Logins(w.dlrun, and_mount, tokens) as site:
            trace = site.dir / "trace"
            done = site.right("--image", site.base, env={"DLRUN_TRACE": f"http,oci,store:{trace}"})
            text = trace.read_text()
            assert trace.stat().st_mode & 0o777 == 0o600 and "http " not in done.err, done
            for line in text.splitlines():
                assert re.fullmatch(r" *\d+ (http|oci  |store) .+", line), line
            for shown in (rf"http  POST https?://{site.via}/v2/me/code/blobs/uploads/\?…: status 201, up 0, down 0, \d+ ms, \w+ connection",
                          rf"http  PUT https?://{site.via}/v2/me/code/manifests/\S+: status 201",
                          r"reused connection", r"oci   blob sha256:\w{64}: mounted from base/py", r"oci   manifest sha256:\w{64}: sent"):
                assert re.search(shown, text), f"{shown}: {text}"
            sent = {request.authorization.partition(" ")[2] for request in site.registry.requests if request.authorization}
            secrets = [*USERS.values(), *sent, *(base64.b64encode(f"{u}:{p}".encode()).decode() for u, p in USERS.items())]
            assert sent and not [secret for secret in secrets if secret in text], text
            assert not re.search(r"\?(?!…)", text), text


if __name__ == "__main__":
    main()
