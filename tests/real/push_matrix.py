#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every kind of request of a push, answered in every wrong way, always or once.

    tests/real/push_matrix.py DLRUN [KIND…] [--answer NAME] [--all] [--show]
"""

import argparse
import concurrent.futures
import fnmatch
import os
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path

from pushsite import SECRETS, Answer, Site, digest_of, large_layout, outcome, that_hold

GIVEN_S = 3
GIVEN_PIECES_S = 12
LATE_S = 1.0
PATIENT_S = 30  # Given to what can only end well, which is no less soon for that.
TRIES = 4       # Of a push that was late, or came to no more than that: a busy machine is so by chance.
TIMEOUTS = ("registry.timeout", "http.timeout")
WORKERS = 24
HTML = b"<html><head><title>Sign in</title></head><body><h1>Welcome to the network</h1></body></html>"
JSON = (("Content-Type", "application/json"),)


# --- answers

def error(status, code, *headers):
    body = f'{{"errors":[{{"code":"{code}","message":"scripted","detail":null}}]}}'
    return lambda site, request: Answer(status, [*JSON, *headers], body)


def plain(status, *headers, body=b"", **more):
    return lambda site, request: Answer(status, list(headers), body, **more)


def to(status, where):
    """With a Location; {evil}: the listener beside the registry, {here}: the request's own URL."""
    def answer(site, request):
        here = f"http://{request.headers.get('Host')}{request.target}"
        return Answer(status, [("Location", where.format(evil=site.evil.url, here=here))])
    return answer


def retry_after(text):
    return error(429, "TOOMANYREQUESTS", ("Retry-After", text))


ANSWERS = {
    "200": plain(200),
    "200 html": plain(200, ("Content-Type", "text/html"), body=HTML),
    "200 json": plain(200, *JSON, body=b'{"schemaVersion": [[[2, "manifests": }'),
    "200 other json": plain(200, *JSON, body=b'{"errors": {"config": "layers"}, "manifests": 3}'),
    "200 short": plain(200, *JSON, body=b'{"a":', how="short"),
    "200 cut chunks": plain(200, *JSON, body=b'{"a":', how="cut-chunks"),
    "200 hang body": plain(200, *JSON, body=b'{"a":', how="hang-body"),
    "200 endless": plain(200, *JSON, body=b" " * 16384, how="endless"),
    "200 1 GB": plain(200, *JSON, body=b" " * 16384, how="fill", length=1 << 30),
    "200 gzip": plain(200, *JSON, ("Content-Encoding", "gzip"), body=b"\x1f\x8b\x08\0\0\0\0\0\0\3" + b"\0" * 20),
    "201": plain(201),
    "201 wrong digest": plain(201, ("Docker-Content-Digest", digest_of(b"wrong"))),
    "202": plain(202),
    "202 evil": to(202, "{evil}/v2/x/blobs/uploads/1?a=b"),
    "202 metadata": to(202, "http://169.254.169.254/latest/meta-data/"),
    "202 bad url": to(202, "http://[::1/%zz"),
    "202 relative": to(202, "nowhere"),
    "204": plain(204),
    "301 itself": to(301, "{here}"),
    "307 itself": to(307, "{here}"),
    "307 evil": to(307, "{evil}/elsewhere"),
    "307 metadata": to(307, "http://169.254.169.254/latest/meta-data/"),
    "307 file": to(307, "file:///etc/passwd"),
    "302 nowhere": plain(302),
    "304": plain(304),
    "400": plain(400),
    "400 digest": error(400, "DIGEST_INVALID"),
    "400 manifest": error(400, "MANIFEST_INVALID"),
    "400 upload": error(400, "BLOB_UPLOAD_INVALID"),
    "401": plain(401),
    "401 basic": error(401, "UNAUTHORIZED", ("WWW-Authenticate", 'Basic realm="x"')),
    "401 garbage": error(401, "UNAUTHORIZED", ("WWW-Authenticate", 'Bearer realm="http://[,,,="", ,')),
    "403": error(403, "DENIED"),
    "403 html": plain(403, ("Content-Type", "text/html"), body=HTML),
    "404": error(404, "NAME_UNKNOWN"),
    "404 blob": error(404, "MANIFEST_BLOB_UNKNOWN"),
    "404 upload": error(404, "BLOB_UPLOAD_UNKNOWN"),
    "405": error(405, "UNSUPPORTED"),
    "409": error(409, "CONFLICT"),
    "412": error(412, "DENIED"),
    "413": plain(413, body=HTML),
    "416": error(416, "RANGE_INVALID"),
    "418": plain(418),
    "429": error(429, "TOOMANYREQUESTS"),
    "429 in 1 s": retry_after("1"),
    "429 date": retry_after("Sat, 01 Jan 2050 00:00:00 GMT"),
    "429 absurd": retry_after("99999999999999999999999"),
    "429 negative": retry_after("-5"),
    "500": error(500, "UNKNOWN"),
    "502 html": plain(502, ("Content-Type", "text/html"), body=HTML),
    "503": plain(503, ("Retry-After", "0")),
    "504 empty": plain(504),
    "507": error(507, "DENIED"),
    "599": plain(599),
    "stall": plain(200, how="hang"),
    "fin": plain(200, how="fin"),
    "rst": plain(200, how="rst"),
    "half head": plain(200, how="raw", body=b"HTTP/1.1 200 OK\r\nContent-Le"),
    "no http": plain(200, how="raw", body=b"SSH-2.0-OpenSSH_9.9\r\n"),
    "two lengths": plain(200, how="raw", body=b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\n12345"),
    "endless head": plain(200, how="endless-head"),
    "escapes": plain(400, *JSON, body=b'{"errors":[{"code":"X\\u001b[31m","message":"\\u0007\\u202e\\u009b2J"}]}'),
}


# --- requests

class Kind:
    """A request of a push.

    line     regular expression of "METHOD TARGET"; body: of how its body begins.
    site     arguments of Site; args: of the push (function of the site); tag: of the destination.
    before   what happens before (function of the site and the arguments).
    at       which server of the site is asked.
    """

    def __init__(self, line, body=None, site=None, args=None, before=None, at="registry", tag=""):
        self.pattern, self.body, self.site = re.compile(line), body, site or {}
        self.args = args or (lambda site: ["--image", site.base])
        self.before, self.at, self.tag = before, at, tag

    def matches(self, request):
        return bool(self.pattern.search(request.line)) and (self.body is None or request.body.startswith(self.body))

    def server(self, site):
        return site.registry.other if self.at == "other" else getattr(site, self.at)


def warm(site, args):
    site.right(*args)
    site.edit()


def old(site, args):
    site.right(*args)
    site.age()


def old_edit(site, args):
    old(site, args)
    site.edit()


def base_is_there(site, args):
    """The base's layers are in the repository already, and mounts are not done."""
    for digest in site.layers:
        site.registry.repo("me/code").blobs[digest] = site.source.repo("base/py").blobs[digest]


def tag_cannot_move(site, args):
    site.right(*args, tag=":v1")
    site.forget()
    site.registry.rule(r"PUT \S+/manifests/v1", error(409, "TAG_INVALID")(None, None))


def first_put_is_cut(site, args):
    site.registry.rule(r"PUT \S+/blobs/uploads/", Answer(how="raw", body=b"HTTP/1.1 201 Created\r\nX: "), nth=1, stage="after")


def first_patch_is_cut(site, args):
    """The registry has a part of it, and the client does not know how much."""
    site.registry.rule(r"PATCH ", Answer(how="raw", body=b"HTTP/1.1 202 Accepted\r\nX: "), nth=2, stage="after")


def scratch(site):
    return ["--image", "scratch"]


def in_pieces(site):
    return ["--image", f"oci:{LARGE}:v1"]


def copied(site):
    return ["--image", site.base, "--copy-base"]


GZIP, CONFIG = b"\x1f\x8b", b"{"
UPLOAD = r"/v2/me/code/blobs/uploads/"
KINDS = {
    "token by password": Kind(r"^GET /token", site={"login": "token"}, at="tokens"),
    "token by oauth": Kind(r"^POST /token", site={"login": "oauth"}, at="tokens"),
    "base by tag": Kind(r"^GET /v2/base/py/manifests/3$"),
    "base by tag, with login": Kind(r"^GET /v2/base/py/manifests/3$", site={"login": "basic"}),
    "base by digest": Kind(r"^GET /v2/base/py/manifests/sha256:",
                           args=lambda site: ["--image", f"{site.via}/base/py@{site.base_digest}"]),
    "base index": Kind(r"^GET /v2/base/multi/manifests/3$", args=lambda site: ["--image", f"{site.via}/base/multi:3"]),
    "base of a platform": Kind(r"^GET /v2/base/multi/manifests/sha256:", args=lambda site: ["--image", f"{site.via}/base/multi:3"]),
    "base tag of old": Kind(r"^HEAD /v2/base/py/manifests/3$", before=old_edit),
    "base config": Kind(r"^GET /v2/base/py/blobs/"),
    "base config, redirected": Kind(r"^GET /v2/base/py/blobs/", site={"redirect_blobs": True}, at="other"),
    "mount": Kind(r"^POST \S+mount="),
    "look after no mount": Kind(r"^GET /v2/me/code/blobs/", site={"mount": 202}, before=base_is_there),
    "close after no mount": Kind(r"^DELETE ", site={"mount": 202}, before=base_is_there),
    "open": Kind(rf"^POST {UPLOAD}$", args=scratch),
    "open, with token": Kind(rf"^POST {UPLOAD}$", site={"login": "token"}),
    "open ahead": Kind(rf"^POST {UPLOAD}$", before=warm),
    "one post": Kind(rf"^POST {UPLOAD}\?digest=", site={"single_post": True}, before=warm),
    "one post, to find out": Kind(rf"^POST {UPLOAD}\?digest=", args=scratch),
    "put layer": Kind(rf"^PUT {UPLOAD}", body=GZIP),
    "put layer, with login": Kind(rf"^PUT {UPLOAD}", body=GZIP, site={"login": "basic"}),
    "put layer elsewhere": Kind(rf"^PUT {UPLOAD}", body=GZIP, site={"location": "other"}, at="other"),
    "put config": Kind(rf"^PUT {UPLOAD}", body=CONFIG, before=warm),
    "look after a cut": Kind(r"^HEAD /v2/me/code/blobs/", before=first_put_is_cut, args=scratch),
    "first piece": Kind(r"^PATCH ", args=in_pieces),
    "a later piece": Kind(r"^PATCH ", args=in_pieces),
    "where is it": Kind(rf"^GET {UPLOAD}", args=in_pieces, before=first_patch_is_cut),
    "end of pieces": Kind(rf"^PUT {UPLOAD}", body=b"", args=in_pieces),
    "proof": Kind(r"^GET /v2/me/code/blobs/", before=old_edit),
    "manifest of old": Kind(r"^HEAD /v2/me/code/manifests/", before=old),
    "manifest": Kind(r"^PUT /v2/me/code/manifests/dlrun-"),
    "manifest of an edit": Kind(r"^PUT /v2/me/code/manifests/dlrun-", before=warm),
    "manifest under a tag": Kind(r"^PUT /v2/me/code/manifests/v1", tag=":v1"),
    "tag that cannot move": Kind(r"^HEAD /v2/me/code/manifests/v1", tag=":v1", before=tag_cannot_move),
    "copy: read": Kind(r"^GET /v2/base/py/blobs/", body=None, args=copied, site={"source": True}, at="source"),
    "copy: look": Kind(r"^GET /v2/me/code/blobs/", args=copied, site={"source": True}),
    "copy: open": Kind(rf"^POST {UPLOAD}$", args=copied, site={"source": True}),
    "copy: put": Kind(rf"^PUT {UPLOAD}", body=None, args=copied, site={"source": True}),
}
PIECES = ("first piece", "a later piece", "where is it", "end of pieces")
# Which may be gone at the next try.
PASSING = ("200 short", "200 cut chunks", "307 evil", "401", "401 basic", "404 blob", "404 upload", "400 digest", "400 upload", "416", "429",
           "429 in 1 s", "429 date", "429 negative", "500", "502 html", "503", "504 empty", "stall", "fin", "rst", "half head", "no http")
SAMPLE = ("200", "200 html", "201", "202", "202 evil", "202 metadata", "204", "307 metadata", "400 digest", "400 upload", "401", "403", "404",
          "404 upload", "405", "413", "416", "429", "429 absurd", "500", "503", "507", "stall", "rst", "half head", "no http")
SAMPLE_OF_PIECES = ("200 html", "202", "202 metadata", "400 upload", "403", "404 upload", "416", "429 absurd", "500", "507", "rst", "half head")
ONCE = ("307 evil", "401", "404 blob", "500", "503", "fin", "rst", "half head")
LARGE = None
VERBOSE = False


def is_of_kind(name, kind, site):
    def matches(request):
        if not kind.matches(request):
            return False
        if name == "copy: read":
            return request.path.rsplit("/", 1)[1] in site.layers
        if name == "copy: put":
            return request.arg("digest") in site.layers
        if name == "end of pieces":
            return not request.body
        return True
    return matches


# --- what is right
#
# KINDS | ANSWERS | OUTCOMES | why: patterns of names, and what the push may come to when these requests always get such an
# answer; the last line that fits counts. "lied": the push ends well without an image, as the registry claims in the words of the
# specification that it has it.

EXPECTED = """
* | * | registry.answer | nothing else is known
* | 200 short; 200 cut chunks; fin; rst; half head | registry.unreachable http.closed registry.timeout | tried again, some by those who upload
* | 200 hang body; stall | registry.timeout http.timeout
* | 200 endless; 200 1 GB; endless head | http.limit
* | no http; two lengths | http.protocol http.tls | a host of this machine may speak https instead
* | 301 itself; 307 itself | http.redirect registry.answer | only what has no body follows a 301
* | 307 evil | registry.not_found | followed without the login; 404 is said there
* | 307 metadata | http.zone
* | 307 file | http.url
* | 401* | registry.auth registry.answer registry.denied | as the challenge can be read, and whether there was a login
* | 403* | registry.denied
* | 404* | registry.not_found
* | 413; 507 | registry.full
* | 429*; 500; 502 *; 503; 504 * | registry.unreachable registry.answer registry.timeout | tried again as long as there is time

token * | 307 *; 301 * | registry.answer | tokens are not fetched by redirects
token * | 4?? *; 413; 404; 400; 405 | registry.answer registry.auth | of a token server; OAuth2 says 400 for a bad login
token * | 401*; escapes | registry.auth registry.answer
token * | 403* | registry.denied
token * | 429*; 5* | registry.unreachable registry.timeout

base * | 404*; 307 evil | image.base
base by tag*; base index | 200 other json | image | an object, but no image
base tag of old | 2*; 400*; 403*; 404*; 405; 409; 412; 416; escapes; 307 evil | ok | HEAD is not known there, or says nothing: GET does
base tag of old | 413; 507 | registry.full

mount | 2*; 3*; 400*; 403*; 404*; 405; 409; 412; 413; 416; 418; 507; 599; escapes | registry.mount | refused: then it has to be there, and is not
mount | 307 itself | http.redirect
mount | 307 metadata | http.zone
mount | 307 file | http.url
mount | 200 short; 200 cut chunks | registry.unreachable registry.timeout
mount | 200 hang body | registry.timeout http.timeout
mount | 200 endless; 200 1 GB | http.limit
mount | 201* | image | lies: the manifest finds it out
look after no mount | 2*; 4*; 507; 599; escapes; 302*; 304; 307 evil | registry.mount | is not there
look after no mount | 200* | ok registry.mount | a byte of the body is what counts
look after no mount | 200 hang body | registry.timeout http.timeout ok
look after no mount | 401* | registry.auth registry.answer registry.mount
look after no mount | 429* | registry.unreachable registry.answer registry.timeout
close after no mount | * | ok | the registry closes it some day

open* | 202 metadata | http.zone
open* | 202 bad url | http.url
open* | 202 evil; 202 relative | registry.not_found registry.timeout | goes on there, where nothing is
open, with token | 202 relative | registry.timeout registry.not_found registry.answer
one post* | * | ok | not taken in one: in two
one post* | 201 | image | lies: the manifest finds it out
one post* | 201 wrong digest; 202 | registry.answer | a session without a Location
one post* | 202 metadata; 307 metadata | http.zone
one post* | 202 bad url; 307 file | http.url
one post* | 200 short; 200 cut chunks; fin; rst; half head | ok registry.unreachable http.closed registry.timeout http.tls
one post* | 200 hang body; stall | registry.timeout http.timeout
one post* | 200 endless; 200 1 GB; endless head | http.limit
one post* | no http; two lengths | http.protocol http.tls
one post* | 307 itself | http.redirect
one post* | 401* | registry.auth registry.answer
one post* | 403* | registry.denied
one post* | 429*; 500; 502 *; 503; 504 * | ok registry.answer registry.timeout

put * | 200; 200 html; 200 *json; 200 gzip; 201; 202*; 204 | image | lies: the manifest finds it out
put * | 404*; 416; 400 upload; 307 evil | registry.not_found registry.answer registry.timeout | a new session each time
put * | fin | http.closed registry.timeout registry.unreachable
look after a cut | * | ok | it is sent again
look after a cut | 401* | ok registry.auth registry.answer
look after a cut | stall; half head; fin; rst | ok registry.timeout registry.unreachable | as long as there is time, of which there are two limits

first piece; a later piece | 2*; 400*; 404*; 405; 416 | ok | in one piece then
where is it | * | ok | from the beginning
where is it | stall; half head; rst | registry.timeout registry.unreachable ok
*piece* | 307 metadata | http.zone
where is it | 307 metadata | ok
end of pieces | 200*; 201; 202*; 204 | image | lies: the manifest finds it out
end of pieces | 404*; 416; 400* | registry.timeout registry.answer registry.not_found | 64 MiB again each time

proof | * | ok | not proved is not there
proof | stall | registry.timeout
proof | 401* | ok registry.auth registry.answer | the login is needed for the rest, too

manifest of old; tag that cannot move | 2*; 302 *; 304; 307 evil; 400*; 403*; 404*; 405; 409; 41*; 429*; 5*; escapes | ok | HEAD says nothing: it is put
manifest of old | 404*; 307 evil | registry.answer | still 404 when it was put: a registry that only remembers it
manifest of old | 200 hang body | registry.timeout ok
manifest | 404 blob | image
manifest of an edit; manifest under a tag | 404 blob | image
manifest; manifest of an edit; manifest under a tag | 201 | lied | lies
manifest | 201 wrong digest | registry.answer
tag that cannot move | * | registry.answer registry.timeout | the refusal is what is said

copy: read | 200; 200 html; 200 *json; 200 gzip; 200 endless; 200 1 GB; 201*; 202*; 204 | image | not the layer
copy: look | 200* | image ok registry.timeout | lies
copy: look | 201*; 202*; 204; 302 *; 304; 307 evil; 4*; 507; 599; escapes | ok | is copied
copy: look | 401* | registry.auth registry.answer
copy: look | 429* | registry.unreachable registry.answer registry.timeout
copy: open | 202 metadata | http.zone
copy: open | 202 bad url | http.url
copy: open | 202 evil; 202 relative | registry.not_found registry.timeout
copy: put | 200; 200 html; 200 *json; 200 gzip; 201; 202*; 204 | image | lies: the manifest finds it out
copy: put | 30* | registry.answer | what is read once cannot follow
copy: put | 404*; 416; 400* | registry.not_found registry.answer registry.timeout"""
# Gone at the next try: the push ends well. Other answers that come once may be fatal or not.
PASSES = ("200 short", "200 cut chunks", "429", "429 in 1 s", "429 negative", "500", "502 html", "503", "504 empty", "fin", "rst",
          "half head")
FINAL = ("tag that cannot move",)


def expected(kind, answer, once):
    """What the push may come to."""
    rows = [[part.strip() for part in line.split("|")] for line in EXPECTED.splitlines() if "|" in line]
    fits = [row for row in rows if among(kind, row[0]) and among(answer, row[1])]
    always = set(fits[-1][2].split())
    if not once:
        return always
    return {"ok"} if answer in PASSES and kind not in FINAL else always | {"ok"}


def among(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern.strip()) for pattern in patterns.split(";"))


# --- one cell

class Cell:
    """What has happened: what the push came to, how often the answer was given, seconds, and what is wrong."""

    def __init__(self, kind, answer, once):
        self.kind, self.answer, self.once = kind, answer, once
        self.came_to, self.fired, self.seconds, self.wrong, self.late, self.said = "?", 0, 0.0, [], [], ""
        self.given = 1  # Times as long as others, of one that came to no more than a timeout before.

    @property
    def name(self):
        return f"{self.kind} / {self.answer} / {'once' if self.once else 'always'}"

    def run(self, dlrun):
        for _ in range(TRIES):
            self.late = []
            self.run_once(dlrun)
            if self.wrong or not self.late:
                break
        self.wrong += self.late
        return self

    def run_once(self, dlrun):
        kind = KINDS[self.kind]
        try:
            with Site(dlrun, **kind.site) as site:
                self.push(site, kind)
        except Exception:
            self.wrong.append(traceback.format_exc(limit=-3)[-6000:] if VERBOSE else traceback.format_exc(limit=-1)[-400:])

    def push(self, site, kind):
        args = kind.args(site)
        if kind.before:
            kind.before(site, args)
        site.registry.clear()
        server, answer = kind.server(site), ANSWERS[self.answer]
        nth = {1} if self.once else None
        if self.kind == "a later piece":
            nth = {2} if self.once else range(2, 1000)
        rule = server.rule(is_of_kind(self.kind, kind, site), lambda request: answer(site, request), nth=nth)
        right = expected(self.kind, self.answer, self.once)
        given_s = (GIVEN_PIECES_S if self.kind in PIECES else GIVEN_S) * self.given
        done = site.push(*args, timeout_s=PATIENT_S if right == {"ok"} else given_s, tag=kind.tag)
        self.fired, self.seconds, self.said = rule.fired, done.seconds, repr(done) + site.seen()
        self.came_to = outcome(done)
        self.judge(site, done)
        for each in site.servers + [site.registry.other]:
            each.drop_rules()
        if self.came_to not in right:
            self.complain(f"came to {self.came_to}, and not {sorted(right)}")
        if self.came_to == "lied":
            site.edit()
        # Whatever makes the right push slow here and now does the same to the other.
        allowed_s = given_s + LATE_S + site.right(*args, tag=kind.tag).seconds
        if done.seconds > allowed_s:
            self.late.append(f"took {done.seconds:.1f} s, and not {allowed_s:.1f}")

    def complain(self, text):
        is_late = self.came_to in TIMEOUTS
        (self.late if is_late else self.wrong).append(text)
        self.given *= 2 if is_late else 1

    def judge(self, site, done):
        if not self.fired:
            self.complain("the push made no such request")
        if any(that_hold(site.evil.requests, secret) for secret in SECRETS):
            self.wrong.append("a secret was sent elsewhere")
        for server in site.servers:
            if server.violations:
                self.wrong.append(f"a request that is none: {server.violations}")
        if done.rc == 0:
            try:
                site.holds(done)
            except AssertionError as why:
                self.came_to = "lied"
                self.said += f"\n{why}"


# --- all of them

def cells(words=(), answers=(), every=False):
    """Answers that come always, and once where the next try may go better. every: all of them, but of blobs in pieces,
    which cost most, a part. Otherwise each request gets each second answer of the sample, and each answer comes to each second one."""
    for i, kind in enumerate(KINDS):
        def chosen(sample, i=i):
            return answer in sample and (bool(words) or (i + sample.index(answer)) % 2 == 0)
        for answer in ANSWERS:
            if words and not any(w in kind for w in words) or answers and answer not in answers:
                continue
            sample = SAMPLE_OF_PIECES if kind in PIECES and not every else SAMPLE
            if chosen(sample) or answers or every and (kind not in PIECES or answer in sample):
                yield Cell(kind, answer, False)
            if kind not in PIECES and (answer in PASSING if every or answers else chosen(ONCE)):
                yield Cell(kind, answer, True)


def run_some(dlrun, large, some, verbose):
    global LARGE, VERBOSE
    LARGE, VERBOSE = large, verbose
    with concurrent.futures.ThreadPoolExecutor(2 if some[0].kind in PIECES else WORKERS) as pool:
        return list(pool.map(lambda cell: cell.run(dlrun), some))


def run_all(dlrun, chosen, verbose=False):
    """In several processes, each with many at a time, which mostly wait."""
    processes = os.cpu_count() or 2
    chosen.sort(key=lambda cell: cell.kind in PIECES, reverse=True)
    with tempfile.TemporaryDirectory() as directory:
        large = large_layout(Path(directory))
        parts = [[c for c in chosen if c.kind in PIECES], [c for c in chosen if c.kind not in PIECES]]
        with concurrent.futures.ProcessPoolExecutor(processes) as pool:
            some = [part[i:i + size] for part, size in zip(parts, (6, 200)) for i in range(0, len(part), size)]
            for done in pool.map(run_some, *zip(*((dlrun, large, one, verbose) for one in some))):
                yield from done


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dlrun")
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--answer", action="append")
    parser.add_argument("--all", action="store_true", default=os.environ.get("DLRUN_TESTS") == "all", help="all answers, not a sample")
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    begin = time.monotonic()
    chosen = list(cells(args.kinds, args.answer, args.all))
    failed = 0
    for cell in run_all(os.path.abspath(args.dlrun), chosen, bool(args.answer)):
        if args.show:
            print(f"{cell.name}: {cell.came_to} ({cell.seconds:.1f} s, {cell.fired}x)")
        failed += bool(cell.wrong)
        for text in cell.wrong:
            print(f"failed: {cell.name}: {text}" + (f"\n{cell.said}" if args.answer else ""), flush=True)
    print(f"{len(KINDS)} kinds of request, {len(ANSWERS)} answers, {len(chosen)} cells in {time.monotonic() - begin:.0f} s")
    print(f"{len(chosen) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed or not chosen else 0)


if __name__ == "__main__":
    main()
