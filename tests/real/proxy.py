#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every port of every run as a URL, and the pages beside it: what arrives, who is let in, what a page says when nobody answers.
DLRUN_TEST_OUT: where a picture of the page goes."""

import contextlib
import hashlib
import html
import http.client
import http.server
import json
import os
import socket
import sqlite3
import struct
import subprocess
import threading
import time
import urllib.parse
import zlib

import sshsite
from chromium import Chromium
from harness import *  # noqa: F403
from proxysite import SERVER, Proxy, WebSocket, proxy
from registries import free_port
from ssh_collect import TREE


def png():
    """A picture of one point."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)) + \
        chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")


PNG = png()


def serving(w, *words, target=(), env=None):
    """(id, port) of a run whose program listens."""
    run = w.ok("submit", "-d", *target, *words, "--", "python3", "server.py", env=env).out.strip()

    def port():
        found = re.search(r"port (\d+)", w.run("logs", run).out)
        return found and int(found[1])
    return run, wait_for(port, f"the server of {run}", 60)


def tree(w):
    w.repo({"server.py": SERVER})


def test_requests_reach_the_program(w):
    tree(w)
    run, port = serving(w)
    with proxy(w) as p:
        answer = p.get(f"{port}.{run}.localhost", "/a/b?c=d")
        assert answer.status == 200 and answer.text == f"one /a/b?c=d {port}.{run}.localhost:{p.port} 1 0", answer
        name = f"http://{port}.{run}.localhost:{p.port}"
        assert p.get(f"{port}.{run}.localhost", "/name", Origin=name).text == f"localhost:{port} http://localhost:{port}"
        assert p.get(f"{port}.{run}.localhost", "/away").headers["Location"] == f"{name}/there"
        body = os.urandom(3 << 20)
        answer = p.ask("POST", f"{port}.{run}.localhost", "/", body)
        assert answer.text == hashlib.sha256(body).hexdigest(), answer
        ws = p.websocket(f"{port}.{run}.localhost")
        assert ws.status == 101
        for text in (b"a", b"x" * 1000, b"b"):
            assert ws.ask(text) == b"one:" + text
        ws.close()
        # r0 is the same program; another rank there is not.
        assert p.get(f"{port}.r0.{run}.localhost").status == 200
        answer = p.get(f"{port}.r1.{run}.localhost")
        assert answer.status == 404 and f"{run} has only rank 0" in answer.text, answer


def test_roles_have_names(w):
    """The rank of a role by the role's name; what is no rank of it is said with those that are."""
    tree(w)
    ports = {"learner.0": free_port(), "actors.0": free_port(), "actors.1": free_port()}
    line = "case $DLRUN_ROLE.$DLRUN_ROLE_RANK in " + " ".join(f"{part}) PORT={port};;" for part, port in ports.items()) + " esac"
    w.write("dlrun.yaml", json.dumps({"roles": {"learner": {}, "actors": {"nodes": 2}}, "ports": [ports["learner.0"]]}))
    command = f"{line}; export PORT NAME=$DLRUN_ROLE.$DLRUN_ROLE_RANK; exec python3 server.py"
    run = w.ok("submit", "-d", "--", "sh", "-c", command).out.strip()
    with proxy(w) as p:
        for part, label in (("learner.0", "learner"), ("actors.0", "actors"), ("actors.0", "actors-0"), ("actors.1", "actors-1")):
            host = f"{ports[part]}.{label}.{run}.localhost"
            wait_for(lambda host=host: p.get(host).status == 200, f"the server of {part}", 60)
            assert p.get(host, "/x").text.startswith(f"{part} /x "), (part, p.get(host, "/x"))
        for label, says in (("actors-2", "has the ranks 0 to 1"), ("other-1", "learner, actors")):
            answer = p.get(f"7000.{label}.{run}.localhost")
            assert answer.status == 404 and says in html.unescape(answer.text), answer
        answer = p.get(f"{free_port()}.actors-1.{run}.localhost")
        assert answer.status == 502 and f"of {run}, actors.1: " in answer.text, answer
        page = p.get(f"{run}.localhost").text
        assert "actors.0 to actors.1" in page and f"http://{ports['learner.0']}.actors.{run}.localhost:{p.port}/" in page, page
    w.ok("cancel", run)


def test_connect_by_curl(w):
    tree(w)
    run, port = serving(w)
    with proxy(w) as p:
        for url in (f"http://{port}.{run}.localhost/x", f"http://{port}.{run}.localhost:1234/x", f"http://{run}.localhost:{port}/x"):
            done = w.command(["curl", "-sS", "--proxytunnel", "-x", f"http://dlrun:{p.token}@127.0.0.1:{p.port}", url])
            assert done.rc == 0 and done.out.startswith("one /x "), done
        status, line = p.tunnel(f"{port}.{run}.localhost:80")
        with line:
            assert status == 200
            line.sendall(b"GET /deep HTTP/1.0\r\nHost: any.where\r\n\r\n")
            assert b"one /deep any.where" in b"".join(iter(lambda: line.recv(1 << 16), b""))
        for authority, wanted in (("example.com:80", 403), ("localhost:80", 403), (f"files.{run}.localhost:80", 403),
                                  ("127.0.0.1:22", 403), ("[::1]:22", 403), ("nobody-22222.localhost:80", 404)):
            status, line = p.tunnel(authority)
            line.close()
            assert status == wanted, (authority, status)


def test_pages_that_say_why(w):
    tree(w)
    run, port = serving(w, "--port", "7001", "--name", "needle")
    ended = w.ok("submit", "-d", "--", "sh", "-c", "exit 3").out.strip()
    w.run("wait", ended)
    with proxy(w) as p:
        answer = p.get("6006.needle-zzzzz.localhost")
        assert answer.status == 404 and "there is no run" in answer.text and f"there is {run}" in answer.text, answer
        answer = p.get(f"6006.{ended}.localhost")
        assert answer.status == 503 and f"{ended} failed" in answer.text and f"dlrun logs {ended}" in answer.text, answer
        broken = w.run("submit", "-f", "--", "python3", "-c", "import missing_module")
        broken, why = w.show()["id"], w.ok("why").out
        assert "missing_module" in why, why
        page = html.unescape(p.get(f"{broken}.localhost").text)
        for line in why.splitlines():
            assert line.strip().removeprefix("hint: ") in page, (line, page)
        begin = time.monotonic()
        answer = p.get(f"{free_port()}.{run}.localhost")
        assert answer.status == 502 and "nothing listens on port" in answer.text, answer
        assert f"http://7001.{run}.localhost:{p.port}/" in answer.text, answer
        assert time.monotonic() - begin > 8
        answer = p.get(f"{port}.{run}.localhost", "/silent")
        assert answer.status == 502 and "without an answer" in answer.text, answer
        for host in ("x.localhost.localhost", "0.a-22222.localhost", "a_b.localhost"):
            assert p.get(host).status == 404, host
        # The beginning of an id leads to the whole one.
        answer = p.get(f"{port}.needle.localhost", "/q?r=s")
        assert answer.status == 307 and p.plain(answer.headers["Location"]) == f"http://{port}.{run}.localhost:{p.port}/q?r=s", answer
        assert p.ask("POST", f"{port}.needle.localhost", "/", b"x").text == hashlib.sha256(b"x").hexdigest()
        w.ok("cancel", run)
        wait_for(lambda: p.get(f"{port}.{run}.localhost").status == 503, "the end of the run", 60)


def test_a_new_attempt_behind_the_same_name(w):
    tree(w)
    port = free_port()
    run, _ = serving(w, "-e", f"PORT={port}")
    with proxy(w) as p:
        host = f"{port}.{run}.localhost"
        assert p.get(host).text.split()[-2] == "1"
        w.ok("cancel", run)
        wait_for(lambda: p.get(host).status == 503, "its end", 60)
        w.ok("restart", run)
        wait_for(lambda: p.get(host).status == 200, "the next attempt", 60)
        assert p.get(host).text.split()[-2] == "2"


def test_only_who_may(w):
    tree(w)
    run, port = serving(w)
    host = f"{port}.{run}.localhost"
    with proxy(w) as p:
        here = f"http://{host}:{p.port}"
        for name in (host, "localhost", f"{run}.localhost", f"files.{run}.localhost"):
            # DNS rebinding: another name, or another port.
            for other in ("evil.example", f"evil.example:{p.port}", f"{name}:{p.port + 1}", f"{name}:80", f"{name}.evil.example:{p.port}",
                          "127.0.0.2", "0.0.0.0", "10.0.0.1"):
                assert p.get(other).status == 403, (name, other)
            assert p.get(name, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors").status == 403, name
            assert p.get(name, Origin="http://evil.example").status in (403, 404), name
            assert p.ask("POST", name, "/", b"x", {"Origin": "http://evil.example"}).status == 403
            assert p.ask("POST", name, "/", b"x", {"Origin": "null"}).status == 403
            # One program is another site for the next one.
            assert p.ask("POST", name, "/", b"x", {"Origin": f"http://1.{run}.localhost:{p.port}"}).status == 403
        for path in ("/", "/runs.json"):
            assert p.get("localhost", path, Origin="http://evil.example").status == 403
            assert p.get("localhost", path, Origin=here).status == 403
        assert p.ask("POST", host, "/", b"x", {"Origin": here}).status == 200
        for origin, wanted in ((here, 101), ("http://evil.example", 403), ("null", 403), (f"http://localhost:{p.port}", 403)):
            ws = p.websocket(host, Origin=origin)
            assert ws.status == wanted, (origin, ws.status)
            ws.close()
        assert p.ask("POST", "localhost", "/", b"x").status == 405
        # A link on the first page leads to another name, which is another site for browsers.
        link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
        for dest, referer, wanted in (("document", f"localhost:{p.port}", 200), ("iframe", f"localhost:{p.port}", 403),
                                      ("document", "evil.example", 403), ("document", "localhost:1", 403)):
            assert p.get(host, **link, Sec_Fetch_Dest=dest, Referer=f"http://{referer}/").status == wanted, (dest, referer)
        for smuggled in (b"GET / HTTP/1.1\r\nHost: localhost:%d\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % p.port,
                         b"GET / HTTP/1.1\r\nHost: localhost:%d\r\nHost: evil.example\r\n\r\n" % p.port):
            assert p.raw(smuggled).startswith(b"HTTP/1.1 400 "), smuggled


def test_other_users_and_machines(w):
    tree(w)
    if os.getuid() != 0:
        raise Skip("needs root to become another user")
    with proxy(w) as own:
        addresses = set(w.command(["hostname", "-I"]).out.split()) - {"127.0.0.1", "::1"}
        for address in addresses:
            with contextlib.suppress(OSError), own.connect(address):
                raise AssertionError(f"{address} answers")
    w.as_nobody()
    with proxy(w, "--port", "0", user=NOBODY, group=NOBODY, extra_groups=[]) as p:
        if p.token:
            raise Skip("the system does not tell whose a connection is: see test_without_the_token")
        ask = ["curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", f"http://localhost:{p.port}/"]
        assert w.command(ask).out == "200"
        done = subprocess.run(ask, capture_output=True, text=True, user=OTHER, group=OTHER, extra_groups=[], cwd="/")
        assert done.returncode != 0 and done.stdout in ("", "000"), done
        assert w.command(ask).out == "200"


OTHER = 3999  # nobody's uid
WEBSOCKET = ["-H", "Connection: Upgrade", "-H", "Upgrade: websocket", "-H", "Sec-WebSocket-Version: 13", "-H", "Sec-WebSocket-Key: " + "A" * 22 + "=="]
# A server that has written a text, too.
WRITER = SERVER.replace("server = Server(", "open(os.environ['DLRUN_OUTPUT_DIR'] + '/t.txt', 'w').write('text')\nserver = Server(")


def asked(*argv):
    """(status, what came) of curl by another user, if there can be one."""
    who = {"user": OTHER, "group": OTHER, "extra_groups": []} if os.getuid() == 0 else {}
    done = subprocess.run(["curl", "-sSi", "-m", "20", *argv], capture_output=True, text=True, cwd="/", env={"PATH": os.environ["PATH"]}, **who)
    found = re.search(r"^HTTP/1.1 (\d+)", done.stdout)
    return int(found[1]) if found else done.stderr, done.stdout


@contextlib.contextmanager
def without_names(w):
    """(a proxy where the system does not tell whose a connection is, a run, its port)."""
    if os.environ.get("DLRUN_OS") != "portable":
        raise Skip("for a build that cannot know whose a connection is")
    w.repo({"server.py": WRITER})
    run, port = serving(w, "--port", "7001")
    with proxy(w) as p:
        yield p, run, port


def test_without_the_token(w):
    """Whatever is asked, nothing is told, and the program is not asked."""
    with without_names(w) as (p, run, port):
        host, here = f"{port}.{run}.localhost", f"127.0.0.1:{p.port}"
        wrong = ("", "0" * 32, *((p.token[:-1], f"{p.token}0", p.token.upper() + "x") if p.token else ()))
        for url in (f"localhost:{p.port}/", f"localhost:{p.port}/runs.json", f"localhost:{p.port}/run/{run}", f"{run}.localhost:{p.port}/",
                    f"files.{run}.localhost:{p.port}/t.txt", f"{host}:{p.port}/x", f"{here}/", f"nobody-22222.localhost:{p.port}/"):
            for more in ([], *[["-b", f"dlrun-token-{p.port}={value}"] for value in (*wrong, p.token)], ["-X", "POST", "-d", "x"], WEBSOCKET,
                         ["-u", f"dlrun:{p.token}"]):
                status, text = asked(*more, f"http://{url}")
                assert status == 403 and "open the URL that dlrun has printed" in text, (url, more, status, text)
                assert run not in text and str(p.token) not in text, text
            for value in wrong:
                status, text = asked(f"http://{url}?dlrun_token={value}")
                assert status == 403 and "Set-Cookie" not in text, (url, value, status, text)
                for tunnel in ([], ["-p"]):
                    status, text = asked(*tunnel, "-x", f"http://dlrun:{value}@{here}", f"http://{url}")
                    assert status == 407 and 'Proxy-Authenticate: Basic realm="dlrun"' in text, (url, value, status, text)
        status, text = asked("-p", "-x", f"http://{here}", f"http://{host}/")
        assert status == 407, (status, text)


def test_with_the_token(w):
    """Once by a URL, then by its cookie, or as a proxy; and nothing of it reaches the program."""
    with without_names(w) as (p, run, port):
        host, cookie = f"{port}.{run}.localhost", f"dlrun-token-{p.port}"
        kept = {}
        for name, path, wanted in (("localhost", "/", run), (f"{run}.localhost", "/", "t.txt"), (f"files.{run}.localhost", "/t.txt", "text"),
                                   (host, "/x?a=b", "one /x?a=b "), ("127.0.0.1", "/runs.json", run)):
            url = f"http://{name}:{p.port}{path}"
            status, text = asked(f"{url}{'&' if '?' in path else '?'}dlrun_token={p.token}")
            assert status == 307 and f"\nLocation: {url}\n" in text and "HttpOnly; SameSite=Lax" in text and "Domain" not in text, text
            kept[name] = re.search(rf"^Set-Cookie: ({cookie}=[0-9a-f]{{32}}); Path=/;", text, re.M)[1]
            status, text = asked("-b", f"a=b; {kept[name]}", url)
            assert status == 200 and wanted in text, (url, text)
            # The token of all names is on the pages of dlrun alone, as the form of what others are called.
            assert text.count(p.token) == (2 if path == "/" and name == "localhost" else 1 if path == "/" else 0), text
        assert len(set(kept.values())) == len(kept)
        for name, other in ((host, "localhost"), ("localhost", host)):
            assert asked("-b", kept[other], f"http://{name}:{p.port}/")[0] == 403, (name, other)
        # Links lead to where they say, with a token of theirs.
        page = html.unescape(asked("-b", kept["localhost"], f"http://localhost:{p.port}/")[1])
        links = re.findall(r'href="(http://[^"]*)"', page)
        assert f"http://7001.{run}.localhost:{p.port}/" in {link.partition("?")[0] for link in links}, links
        assert all(asked(link.partition("#")[0])[0] == 307 for link in links), links
        # What the program sees.
        for more in (["-b", f"a=b; {kept[host]}; dlrun-token-1=x; c=d"], ["-x", f"http://any:{p.token}@127.0.0.1:{p.port}", "-b", "a=b; c=d"],
                     ["-p", "-x", f"http://any:{p.token}@127.0.0.1:{p.port}", "-b", "a=b; c=d"]):
            status, text = asked(*more, f"http://{host}:{p.port}/seen?q=1")
            assert status == 200, (more, text)
            seen = text.rpartition("/seen?q=1\n")[2].lower()
            assert "cookie: a=b; c=d\n" in seen and "token" not in seen and "authorization" not in seen, text
        for name, path in ((f"{port}.needle.localhost", ""), (host, "")):
            status, text = asked("-X", "POST", "-d", "x", "-b", kept[host], f"http://{name}:{p.port}/{path}")
            assert status == (200 if name == host else 403), text
        # WebSocket, by its cookie.
        with contextlib.closing(WebSocket(p.connect(), f"{host}:{p.port}", "/", [("Cookie", kept[host])])) as ws:
            assert ws.status == 101 and ws.ask(b"a") == b"one:a"
        ws = WebSocket(p.connect(), f"{host}:{p.port}", f"/?dlrun_token={p.token}")
        assert ws.status == 403
        ws.close()
        # Nobody else can read it where it is.
        for file in ("cmdline", "environ"):
            assert p.token.encode() not in Path(f"/proc/{p.process.pid}/{file}").read_bytes()
        for file in w.state.rglob("*"):
            assert not file.is_file() or p.token.encode() not in file.read_bytes(), file
    with proxy(w, "--port", "0", "-v") as p:
        asked(f"http://localhost:{p.port}/?dlrun_token={p.token}")
        asked(f"http://localhost:{p.port}/?dlrun_token={p.token[:-1]}x")
        # In its two notes; in no line of -v.
        wait_for(lambda: "without the token" in p.said.read_text(), "the line of -v")
        assert p.said.read_text().count(p.token[:-1]) == 2, p.said.read_text()


HOSTILE = ["a\"><script>alert(1)</script>.png", "x\n\r\x1b]0;t\x07.txt", "ü%41&amp;.txt", "..a", " b ", "\u202egnp.exe", "#?.txt",
           "page.html", "pic.svg"]
PAGE = b"<html><script>document.title='owned'</script><svg onload=alert(1)>"


def test_what_a_program_has_written(w):
    w.repo({"write.py": "import os, json\nout = os.environ['DLRUN_OUTPUT_DIR']\nnames = json.load(open('names.json'))\n"
            "for name, data in names.items():\n"
            "    path = os.path.join(out, name)\n    os.makedirs(os.path.dirname(path), exist_ok=True)\n"
            "    open(path, 'wb').write(bytes.fromhex(data))\n"
            "os.symlink('/etc/passwd', os.path.join(out, 'link.txt'))\nos.mkfifo(os.path.join(out, 'fifo.txt'))\n"
            "print('<script>alert(1)</script>\\x1b]0;x\\x07 1%\\r100%')\n"})
    files = {"img/one.png": PNG, "video.mp4": os.urandom(9 << 20), "t.txt": b"<b>text</b>", "model.bin": b"\0\1", "empty.txt": b"",
             **{name: PAGE for name in HOSTILE}}
    w.write("names.json", json.dumps({name: data.hex() for name, data in files.items()}))
    run = w.ok("submit", "-d", "--", "python3", "write.py", "--lr", "<script>0.1").out.strip()
    assert w.run("wait", run).rc == 0, w.run("logs", run)
    with proxy(w) as p:
        page = p.get(f"{run}.localhost")
        assert page.status == 200 and page.headers["Content-Type"] == "text/html; charset=utf-8", page
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src" not in policy and f"img-src http://files.{run}.localhost:{p.port};" in policy
        for text in ("<script", "\x1b", "\u202e", "passwd", "fifo"):
            assert text not in page.text, text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;^[]0;x^G" in page.text or "100%" in page.text
        plain = p.plain(page.text)
        assert f'<img loading="lazy" alt="" src="http://files.{run}.localhost:{p.port}/img/one.png">' in plain, page
        host = f"files.{run}.localhost"
        sources = set(re.findall(rf'(?:src|href)="http://{host}:{p.port}(/[^"]*)"', plain))
        assert len(sources) == len(files), (len(sources), sources)
        found = {}
        for source in sources:
            answer = p.get(host, source)
            assert answer.status == 200, (source, answer)
            assert answer.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none';"), answer
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            kind = answer.headers["Content-Type"]
            assert kind in ("image/png", "video/mp4", "text/plain; charset=utf-8", "application/octet-stream"), kind
            found[answer.body] = kind
        assert set(found) == set(files.values())
        assert found[PNG] == "image/png" and found[b"\0\1"] == "application/octet-stream"
        for path in ("/", "/nothing", "/link.txt", "/fifo.txt", "/../outputs/t.txt", "/%2e%2e/t.txt", "/img", "/img/", "//t.txt",
                     "/img/../t.txt", "/t.txt%00", "/etc/passwd", "/%2fetc/passwd"):
            assert p.get(host, path).status == 404, path
        assert p.ask("POST", host, "/t.txt", b"x").status == 405
        video = files["video.mp4"]
        for value, status, part in (("bytes=0-0", 206, video[:1]), ("bytes=5000000-", 206, video[5000000:]), ("bytes=-7", 206, video[-7:]),
                                    (f"bytes={len(video)}-", 416, b""), ("bytes=3-1", 200, video)):
            answer = p.get(host, "/video.mp4", Range=value)
            assert answer.status == status and (status == 416 or answer.body == part), (value, answer.status, len(answer.body))
        answer = p.get(host, "/video.mp4", Range="bytes=2-5")
        assert answer.headers["Content-Range"] == f"bytes 2-5/{len(video)}" and answer.headers["Content-Length"] == "4"
        etag = answer.headers["ETag"]
        assert p.get(host, "/video.mp4", If_None_Match=etag).status == 304
        assert p.get(host, "/video.mp4", Range="bytes=2-5", If_Range='"other"').status == 200
        answer = p.ask("HEAD", host, "/video.mp4")
        assert answer.status == 200 and answer.headers["Content-Length"] == str(len(video)) and not answer.body, answer
        # Who leaves in the middle does no harm.
        for _ in range(20):
            with p.connect() as line:
                line.sendall(f"GET /video.mp4 HTTP/1.1\r\nHost: {host}:{p.port}\r\n{p.head}\r\n".encode())
                assert line.recv(100)
        assert p.get(host, "/t.txt").body == files["t.txt"]


def test_files_in_directories(w):
    """By their addresses alone, whoever has opened the page of the run or not."""
    names = ["top.txt", "a/b/c/deep.txt", "runs/exp 1/loss 100%.txt", "ü/ö.txt", "a/b/-x.txt", "a/top.txt", *(f"many/{i}/top.txt" for i in range(1100))]
    program = ("import json, os\nfor name in json.load(open('names.json')):\n"
               "    os.makedirs(os.path.dirname(name) or '.', exist_ok=True)\n    open(name, 'w').write(name)\n")
    with sshsite.site(w, "gpu1", files={"write.py": program}), proxy(w) as p:
        for target in ("local", "ssh:gpu1"):
            w.write("names.json", json.dumps(names if target == "local" else names[:20]))
            run = w.ok("submit", "-d", "-t", target, "--", "python3", "write.py").out.strip()
            assert w.run("wait", run).rc == 0, w.run("logs", run)
            for name in (*names[:8], *names[-1:]) if target == "local" else names[:8]:
                answer = p.get(f"files.{run}.localhost", "/" + urllib.parse.quote(name))
                assert answer.status == 200 and answer.text == name, (target, name, answer)
            for name in ("a", "a/b", "deep.txt", "b/c/deep.txt", "a/b/c", "a/b/c/deep", "many/0"):
                assert p.get(f"files.{run}.localhost", f"/{name}").status == 404, name


def test_a_cluster_that_is_not_configured(w):
    w.repo()
    run = w.ok("submit", "-d", "--port", "6006", "--", "true").out.strip()
    assert w.run("wait", run).rc == 0
    with contextlib.closing(sqlite3.connect(w.state / "runs.db")) as db, db:
        doc = json.loads(db.execute("SELECT doc FROM runs WHERE id = ?", (run,)).fetchone()[0])
        doc["target"] = {"kind": "kubernetes", "name": "kube:research", "context": "research", "namespace": "me"}
        db.execute("UPDATE runs SET doc = ?, target = 'kube:research' WHERE id = ?", (json.dumps(doc), run))
    with proxy(w) as p:
        why = "there is no ~/.kube/config, and KUBECONFIG is not set"
        page = p.get(f"{run}.localhost")
        assert page.status == 200 and "<h2>Record</h2>" in page.text and page.text.count(why) == 2, page
        for host in (f"6006.{run}.localhost", f"files.{run}.localhost"):
            answer = p.get(host, "/x")
            assert answer.status == 502 and why in answer.text, answer
        assert p.get("localhost").status == 200 and p.get("gone-22222.localhost").status == 404


def test_the_first_page(w):
    w.repo({"train.py": "print('ok')\n"})
    ids = [w.ok("submit", "-d", "--name", "n", "--", "python3", "train.py", "--lr", lr, "--same", "1").out.strip() for lr in ("0.1", "0.25")]
    for run in ids:
        assert w.run("wait", run).rc == 0
    live = w.ok("submit", "-d", "--port", "6006", "--", "sleep", "600").out.strip()
    with proxy(w) as p:
        for host in ("localhost", "127.0.0.1"):
            page = p.get(host)
            at = [page.text.index(f">{run}</a>") for run in (live, *reversed(ids))]
            assert at == sorted(at), page
            assert re.search(r'<th scope="col"[^>]*><a [^>]*>lr</a></th>', page.text) and "0.25</td>" in page.text, page
            assert f"http://6006.{live}.localhost:{p.port}/" in page.text
            # The one script is a file of its own, and none may come from elsewhere or stand in the page.
            assert re.findall(r"<script[^>]*>", page.text) == ['<script src="/live.js" defer>'], page
            policy = page.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'") and "script-src 'self';" in policy and "unsafe" not in policy, policy
            assert p.get(host, "/live.js").headers["Content-Type"].startswith("text/javascript")
        assert "script-src" not in p.get(f"{live}.localhost").headers["Content-Security-Policy"]
        style = p.get("localhost", "/style.css")
        assert style.status == 200 and style.headers["Content-Type"].startswith("text/css")
        assert sorted(r["id"] for r in p.runs()) == sorted([live, *ids])
        assert p.get("localhost", "/nothing").status == 404
        answer = p.get("localhost", f"/run/{live}")
        assert answer.status == 307 and p.plain(answer.headers["Location"]) == f"http://{live}.localhost:{p.port}/", answer
        assert p.get("localhost", "/run/<script>").status == 404
        w.ok("rm", ids[0])
        wait_for(lambda: p.get(f"{ids[0]}.localhost").status == 404, "the removed run")
        wait_for(lambda: ids[0] not in p.get("localhost").text, "the list without it")
        assert p.end() == 0
        assert "runs go on" in p.said.read_text()
        p.process = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE)


# Logs a loss that depends on what it was given.
LOGGER = TREE["events.py"].partition("import os")[0] + """
import os
lr = float(sys.argv[2])
with open(os.environ['DLRUN_OUTPUT_DIR'] + '/events.out.tfevents.1.host', 'wb') as f:
    f.write(record(b'\\x09' + struct.pack('<d', time.time()) + b'\\x1a\\x0dbrain.Event:2'))
    for step in range(1, 50):
        value = b'\\x0a\\x04loss\\x15' + struct.pack('<f', lr + 1 / step)
        f.write(record(b'\\x09' + struct.pack('<d', time.time()) + bytes([0x10, step]) + b'\\x2a' + bytes([len(value) + 2]) + b'\\x0a' +
                       bytes([len(value)]) + value))
"""

# Parts of the page without a name for those who do not see it, and texts that lack contrast.
CHECKS = """
const named = e => e.getAttribute('aria-label') || e.querySelector?.('img')?.alt || e.labels?.length || e.textContent.trim() || e.type == 'hidden';
const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b; };
const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\\)$/.test(c) && !/, 0\\.\\d+\\)$/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
const wrong = [];
if (document.querySelectorAll('h1').length != 1) wrong.push('h1');
if (!document.documentElement.lang || document.querySelectorAll('main').length != 1) wrong.push('lang, main');
for (const e of document.querySelectorAll('input,select,button,a')) if (!named(e)) wrong.push('no name: ' + e.outerHTML);
for (const e of document.querySelectorAll('th')) if (!e.scope) wrong.push('no scope: ' + e.outerHTML);
for (const e of document.querySelectorAll('svg:not(svg svg)')) if (!e.getAttribute('aria-label')) wrong.push('no label: svg');
const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
if (new Set(ids).size != ids.length) wrong.push('ids');
for (const e of document.querySelectorAll('a,th,td,span,button,label,p,h1,h2,summary')) {
  if (!e.textContent.trim() || !e.getClientRects().length) continue;
  const a = light(getComputedStyle(e).color), b = light(ground(e)), contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (contrast < 4.5) wrong.push(contrast.toFixed(1) + ': ' + e.outerHTML.slice(0, 80));
}
return wrong;
"""


def study(w):
    """Three runs of a group that log, as their ids."""
    w.repo({"log.py": LOGGER})
    ids = [w.ok("submit", "-d", "--group", "tiger", "--tag", "arm=<b>", "--note", "<script>alert(1)</script>", "--name", "t", "--",
                "python3", "log.py", "--lr", lr).out.strip() for lr in ("0.1", "0.5", "0.02")]
    for run in ids:
        assert w.run("wait", run).rc == 0, w.run("logs", run).out
    return ids


def rows(answer):
    return re.findall(r'name="run" value="([^"]*)"', answer.text)


def test_a_view_is_in_its_url(w):
    ids = study(w)
    other = w.ok("submit", "-d", "--name", "other", "--", "true").out.strip()
    assert w.run("wait", other).rc == 0
    with proxy(w) as p:
        assert rows(p.get("localhost")) == [other, *reversed(ids)]
        by_loss = [ids[2], ids[0], ids[1]]
        for path, wanted in (("/?group=tiger&sort=metrics.loss", by_loss), ("/?group=tiger&sort=-params.lr", by_loss[::-1]),
                             ("/?q=lr%3D0.5", [ids[1]]), (f"/compare?run={ids[0]}&run={other}", [other, ids[0]]), ("/?q=%3Cscript", ids[::-1]),
                             ("/?sort=%00&q=%FF&columns=%zz&run=" + "x" * 600, [other, *reversed(ids)])):
            answer = p.get("localhost", path)
            assert answer.status == 200 and rows(answer) == wanted, (path, rows(answer), wanted)
            assert "<script>alert" not in answer.text and "<b>" not in answer.text, path
        answer = p.get("localhost", f"/?run={ids[0]}&run={ids[1]}")
        assert answer.text.count("<title>t-") == 2 and 'role="img" aria-label="loss"' in answer.text, answer.text[:4000]
        answer = p.get("localhost", "/?group=tiger")
        assert answer.text.count("<circle ") == 3 and answer.text.count('<a class="v') == 6, answer.text[:4000]
        assert 'role="alert"' in p.get("localhost", "/?sort=nosuch").text
        assert p.get("localhost", "/compare/x").status == 404
        for host in ("evil.example", f"{ids[0]}.localhost"):
            assert p.get(host, "/compare?group=tiger").status in (403, 404), host


def test_a_study_in_a_browser(w):
    ids = study(w)
    with proxy(w) as p, Chromium(w.dir / "browser") as page:
        page.open(f"http://localhost:{p.port}/{p.query}")
        if p.query:
            page.wait_for("return location.search", lambda text: not text, "the page without its token")
        page.run("window.same = 1")
        page.run("[...document.querySelectorAll('th a')].find(a => a.textContent == 'lr').click()")
        shown = "return [...document.querySelectorAll('tbody input')].map(e => e.value)"
        page.wait_for(shown, lambda seen: seen == [ids[2], ids[0], ids[1]], "the table by lr")
        assert page.run("return location.search") == "?sort=params.lr" and page.run("return window.same") == 1
        page.run("document.querySelectorAll('tbody input').forEach(e => e.checked = true)")
        # A run that comes is shown without a reload, and what was chosen stays so.
        new = w.ok("submit", "-d", "--name", "new", "--", "true").out.strip()
        page.wait_for(shown, lambda seen: new in seen, "the new run")
        assert page.run("return document.querySelectorAll('tbody input:checked').length") == 3 and page.run("return window.same") == 1
        page.run("[...document.querySelectorAll('button')].find(e => e.textContent == 'Compare chosen').click()")
        page.wait_for("return document.querySelectorAll('circle').length", lambda n: n == 3, "the points")
        assert page.run("return document.querySelectorAll('.plot path.c').length") >= 6
        assert page.run("return location.pathname") == "/compare" and page.run(shown) == [ids[2], ids[0], ids[1]]
        wrong = page.run(CHECKS)
        assert not wrong, wrong
        page.screenshot(SHOTS / "proxy-compare.png")
        page.run("document.querySelector('tbody a').focus()")
        assert page.run("return getComputedStyle(document.activeElement).outlineStyle") != "none"
        page.dark()
        wrong = page.run(CHECKS)
        assert not wrong, wrong
        page.screenshot(SHOTS / "proxy-compare-dark.png")
        page.here("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride",
                                                "params": {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}})
        page.open(f"http://localhost:{p.port}/?group=tiger")
        assert page.run("return document.documentElement.scrollWidth") <= 360
        page.run("const e = document.querySelector('.runs'); e.scrollLeft = 200")
        assert page.run("return document.querySelector('tbody th').getBoundingClientRect().left") >= 0
        page.screenshot(SHOTS / "proxy-phone.png")
        assert not page.errors()
        # Where there are no scripts.
        page.here("POST", "/goog/cdp/execute", {"cmd": "Emulation.setScriptExecutionDisabled", "params": {"value": True}})
        page.open(f"http://localhost:{p.port}/?sort=params.lr")
        link, = page.here("POST", "/element", {"using": "link text", "value": "lr"}).values()
        page.here("POST", f"/element/{link}/click", {})
        wait_for(lambda: page.here("GET", "/url").endswith("?sort=-params.lr"), "the other order")


PAINTER = """import os, sys, time
out = os.environ['DLRUN_OUTPUT_DIR']
os.makedirs(out + '/samples')
picture = open('one.png', 'rb').read()
def paint(name, data=picture):
    with open(f'{out}/{name}.part', 'wb') as f:
        f.write(data)
    os.rename(f'{out}/{name}.part', f'{out}/{name}')
for step in range(int(sys.argv[1])):
    paint(f'samples/epoch_{step:04}.png')
    os.utime(f'{out}/samples/epoch_{step:04}.png', (step + 1e9, step + 1e9))
paint('play.webm')
paint('tone.wav')
paint('a "><b>.png')
paint('page.png', open('page.html', 'rb').read())
paint('pic.svg', open('page.html', 'rb').read())
paint('notes.txt', b'<b>text</b>')
while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
paint('samples/epoch_9999.png')
"""


def painters(w, n, *words):
    """Runs that have written pictures, as their ids."""
    w.repo({"paint.py": PAINTER, "one.png": PNG, "page.html": PAGE})
    ids = [w.ok("submit", "-d", "--group", "tiger", "--name", "p", "--", "python3", "paint.py", "30", *words).out.strip() for _ in range(n)]
    for run in ids:
        assert words or w.run("wait", run).rc == 0, w.run("logs", run).out
    return ids


def test_media_beside_each_other(w):
    ids = painters(w, 3)
    with proxy(w) as p:
        answer = p.get("localhost", "/compare?" + "&".join(f"run={run}" for run in ids))
        policy = answer.headers["Content-Security-Policy"]
        assert "img-src 'self'; media-src 'self'; " in policy and "default-src 'none'" in policy, policy
        grid = answer.text[answer.text.index('class="runs media"'):]
        rows = re.findall(r'<tr><th scope="row" title="([^"]*)">', grid[:grid.index("</table>")])
        assert sorted(rows) == sorted(["samples/epoch_#.png", "play.webm", "tone.wav", "a &quot;&gt;&lt;b&gt;.png", "page.png"]), rows
        assert rows[-1] != "samples/epoch_#.png", "the newest first"
        assert "<b>" not in grid and "<script" not in grid and "pic.svg" not in grid and "notes.txt" not in grid
        steps = re.findall(r'src="(/media/([^/]*)/samples/epoch_([0-9]*)\.png\?v=[0-9a-f-]*)"', grid)
        assert [(run, int(step)) for _, run, step in steps] == \
            [(run, step) for run in ids for step in (9999, 29, 28, 27, 26, 25, 24, 23)], steps
        assert grid.count("<p class=\"note\">and 23 before</p>") == 3
        # All steps of one run.
        alone = p.get("localhost", f"/compare?run={ids[0]}").text
        assert len(re.findall(r'src="/media/[^"]*epoch_', alone)) == 24 and "and 7 before" in alone
        assert 'class="runs media"' not in p.get("localhost", f"/?run={ids[0]}").text
        for path, kind in ((steps[0][0], "image/png"), (f"/media/{ids[0]}/play.webm", "video/webm"), (f"/media/{ids[0]}/tone.wav", "audio/wav"),
                           (f"/media/{ids[0]}/page.png", "image/png"), (f"/media/{ids[0]}/a%20%22%3E%3Cb%3E.png", "image/png")):
            answer = p.get("localhost", path)
            assert answer.status == 200 and answer.headers["Content-Type"] == kind, (path, answer)
            assert answer.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none';"), answer
            assert answer.headers["Content-Security-Policy"].endswith("frame-ancestors 'none'"), answer
            assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
            # A file that is named as it is now is not asked for again.
            assert ("immutable" in answer.headers["Cache-Control"]) == ("?v=" in path), answer
        assert p.get("localhost", steps[0][0].split("?")[0] + "?v=1-1").headers["Cache-Control"] == "no-cache"
        assert p.get("localhost", f"/media/{ids[0]}/play.webm", Range="bytes=1-3").body == PNG[1:4]
        for path in (f"/media/{ids[0]}/notes.txt", f"/media/{ids[0]}/pic.svg", f"/media/{ids[0]}/nothing.png", f"/media/{ids[0]}", f"/media/{ids[0]}/",
                     f"/media/{ids[0]}/../../x.png", f"/media/{ids[0]}/%2e%2e/x.png", "/media/", "/media//x.png", "/media/nobody-22222/x.png",
                     f"/media/{'a' * 600}/x.png", f"/media/{ids[0]}?/x.png"):
            assert p.get("localhost", path).status == 404, path
        assert p.get(f"{ids[0]}.localhost", f"/media/{ids[0]}/page.png").status == 404
        assert p.ask("POST", "localhost", f"/media/{ids[0]}/page.png", b"x").status == 405
        w.ok("rm", ids[2])
        wait_for(lambda: p.get("localhost", steps[-1][0]).status == 404, "the end of the removed one")


def test_media_in_a_browser(w):
    """Pictures that come while the page is looked at; those that are there stay what they are."""
    go = w.dir / "go"
    ids = painters(w, 2, str(go))
    with proxy(w) as p, Chromium(w.dir / "browser") as page:
        page.open(f"http://localhost:{p.port}/{p.query}")
        page.open(f"http://localhost:{p.port}/compare?" + "&".join(f"run={run}" for run in ids))
        # page.png is none: two of each run are.
        shown = "return [...document.querySelectorAll('.media img')].filter(e => e.complete && e.naturalWidth == 1).length"
        run, path = ids[0], "samples/epoch_0029.png"
        page.wait_for(f"return document.querySelectorAll('.media img[src*=\"{run}/{path}\"]').length", lambda n: n == 1, "the newest picture")
        page.run("document.querySelectorAll('.media img').forEach(e => e.loading = 'eager')")
        page.wait_for(shown, lambda n: n >= 24, "the pictures")
        page.run("document.querySelector('.media img').same = 1; window.same = 1")
        wrong = page.run(CHECKS)
        assert not wrong, wrong
        page.screenshot(SHOTS / "proxy-media.png")
        go.write_text("")
        page.wait_for("return [...document.querySelectorAll('.media figcaption')].map(e => e.textContent)",
                      lambda texts: texts.count("9999") == 2, "the pictures that came", 60)
        assert page.run("return [...document.querySelectorAll('.media img')].some(e => e.same) && window.same == 1")
        evil = Evil(EVIL.replace("HOST", f"localhost:{p.port}").replace("FILES/one.png", f"localhost:{p.port}/media/{run}/{path}"))
        with contextlib.closing(evil):
            page.open(evil.url)
            assert "image false" in page.wait_for("return window.seen", bool, "the end of what another site tries")


SHOTS = Path(os.environ.get("DLRUN_TEST_OUT", Path(__file__).resolve().parents[2] / "build-test/out"))
# What a page of another site can try: each ends without an answer that it could read, and nothing happens.
EVIL = """<title>evil</title><script>
const url = "http://HOST/", seen = [];
const note = (what, ok) => seen.push(what + " " + ok);
const tries = [
  fetch(url).then(() => note("fetch", true), () => note("fetch", false)),
  fetch(url, {method: "POST", body: "x"}).then(() => note("post", true), () => note("post", false)),
  fetch(url, {mode: "no-cors"}).then(() => note("no-cors", true), () => note("no-cors", false)),
  new Promise(done => { const ws = new WebSocket("ws://HOST/"); ws.onopen = () => { note("ws", true); done(); };
    ws.onerror = () => { note("ws", false); done(); } }),
  new Promise(done => { const i = new Image(); i.onload = () => { note("image", true); done(); };
    i.onerror = () => { note("image", false); done(); }; i.src = "http://FILES/one.png"; }),
];
Promise.all(tries).then(() => { window.seen = seen; });
</script>"""


class Evil:
    """Another site, at a port of its own."""

    def __init__(self, page):
        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):  # noqa: N802
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(page.encode())
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def test_in_a_browser(w):
    program = SERVER.replace("server = Server(", "out = os.environ['DLRUN_OUTPUT_DIR']\nfor n in ('one.png', 'page.html', 'pic.svg'):\n"
                             "    open(out + '/' + n, 'wb').write(open(n, 'rb').read())\nserver = Server(")
    w.repo({"server.py": program, "one.png": PNG, "page.html": PAGE, "pic.svg": PAGE})
    port = free_port()
    run, _ = serving(w, "-e", f"PORT={port}", "--port", str(port))
    with proxy(w) as p, Chromium(w.dir / "browser") as page:
        page.open(f"http://localhost:{p.port}/{p.query}")
        assert page.run("return location.href") == f"http://localhost:{p.port}/"
        assert page.run("return document.title") == "dlrun: runs"
        # Between names, which are different sites for the browser, by links.
        page.run(f"[...document.links].find(a => a.textContent == '{run}').click()")
        page.wait_for("return document.title", lambda title: title == run, "the page of the run")
        page.wait_for("return [...document.images].map(i => i.naturalWidth)", lambda widths: widths == [1], "the picture")
        page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        page.wait_for("return document.querySelectorAll('iframe').length", lambda n: n == 2, "the texts")
        assert page.run("return getComputedStyle(document.querySelector('main')).padding") != "0px"
        page.screenshot(SHOTS / "proxy-run.png")
        assert not page.errors()
        # Its texts can be read in the dark, too.
        page.dark()
        page.run("document.querySelector('iframe').scrollIntoView({block: 'center'})")
        wait_for(lambda: max(shades := page.shades("iframe")) - min(shades) > 120, "a text that stands out")
        page.run(f"[...document.links].find(a => a.textContent == '{port}').click()")
        page.wait_for("return document.body.textContent", lambda text: text.startswith(f"one / {port}.{run}.localhost"), "the program")
        assert "token" not in page.run("return location.href + document.cookie + document.referrer")
        for name in ("page.html", "pic.svg"):
            page.open(f"http://files.{run}.localhost:{p.port}/{name}")
            assert page.run("return document.contentType") == "text/plain" and page.run("return document.title") != "owned"
        for host in ("localhost", f"{run}.localhost", f"{port}.{run}.localhost"):
            evil = Evil(EVIL.replace("HOST", f"{host}:{p.port}").replace("FILES", f"files.{run}.localhost:{p.port}"))
            with contextlib.closing(evil):
                page.open(evil.url)
                seen = page.wait_for("return window.seen", bool, "the end of what another site tries")
                # An answer without a word of the program's counts as one for a page that does not ask to read it.
                assert sorted(seen) == ["fetch false", "image false", "no-cors true", "post false", "ws false"], (host, seen)


def test_many_runs(w):
    tree(w)
    runs = [serving(w, "-e", f"NAME=n{i}") for i in range(6)]
    with proxy(w) as p, contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(contextlib.closing(p.websocket(f"{port}.{run}.localhost"))) for run, port in runs for _ in range(10)]
        for turn in range(3):
            for i, ws in enumerate(sockets):
                assert ws.ask(b"%d" % turn) == b"n%d:%d" % (i // 10, turn)
        for i, (run, port) in enumerate(runs):
            assert p.get(f"{port}.{run}.localhost").text.startswith(f"n{i} ")


OPEN_MAX = 64


def copies(w, run, n):
    """Other records of the same program."""
    letters = "23456789abcdefghjkmnpqrstuvwxyz"
    ids = [f"copy-{letters[i // 31]}{letters[i % 31]}222" for i in range(n)]
    with contextlib.closing(sqlite3.connect(w.state / "runs.db")) as db:
        row = db.execute("SELECT submitted_ms, state, target, root, user, revision, doc, spec FROM runs WHERE id = ?", (run,)).fetchone()
        for id in ids:
            doc = json.dumps({**json.loads(row[6]), "id": id})
            db.execute("INSERT INTO runs (id, submitted_ms, state, target, root, user, revision, doc, spec) VALUES (?,?,?,?,?,?,?,?,?)",
                       (id, *row[:6], doc, row[7]))
        db.commit()
    return ids


def test_more_runs_than_may_be_open(w):
    tree(w)
    run, port = serving(w)
    ids = copies(w, run, OPEN_MAX + 6)
    with proxy(w) as p, contextlib.ExitStack() as stack:
        # One that nobody uses makes room for the next one.
        for id in ids:
            assert p.get(f"{id}.localhost", "/style.css").status == 200, id
        sockets = []
        for id in ids[:OPEN_MAX]:
            sockets.append(stack.enter_context(contextlib.closing(p.websocket(f"{port}.{id}.localhost"))))
            assert sockets[-1].ask(b"a") == b"one:a", id
        answer = p.get(f"{port}.{ids[-1]}.localhost")
        assert answer.status == 503 and f"{OPEN_MAX} runs are in use" in answer.text, answer
        assert all(ws.ask(b"b") == b"one:b" for ws in sockets)
        sockets[0].close()
        wait_for(lambda: p.get(f"{port}.{ids[-1]}.localhost").status == 200, "room for another one")


def test_a_node(w):
    with sshsite.site(w, "gpu1", files={"server.py": SERVER}) as s:
        run, port = serving(w, target=("-t", "ssh:gpu1"))
        with s.wire("gpu1") as wire, proxy(w) as p:
            host = f"{port}.{run}.localhost"
            assert p.get(host, "/x").text.startswith("one /x "), p.said.read_text()
            ws = p.websocket(host)
            assert ws.ask(b"a") == b"one:a"
            ws.close()
            for turn in range(5):
                wire.cut_all("rst" if turn % 2 else "fin")

                def answers():
                    with contextlib.suppress(OSError, http.client.HTTPException):
                        return p.get(host).status == 200
                wait_for(answers, "an answer after a cut", 60)
            page = p.get(f"{run}.localhost")
            assert page.status == 200 and f"port {port}" in page.text, page


def test_a_silent_host_holds_up_nobody(w):
    """Neither what is asked of other runs, nor Ctrl-C."""
    with sshsite.site(w, "gpu1", files={"server.py": SERVER}) as s:
        far, _ = serving(w, target=("-t", "ssh:gpu1"))
        near, port = serving(w, target=("-t", "local"))
        p = Proxy(w, "--port", "0")
        s["gpu1"].freeze()
        try:
            with socket.create_connection(("127.0.0.1", p.port)) as waits:
                waits.sendall(f"GET /style.css HTTP/1.1\r\nHost: {far}.localhost:{p.port}\r\n{p.head}\r\n".encode())
                assert p.get(f"{port}.{near}.localhost", "/x").text.startswith("one /x "), p.said.read_text()
                p.end()
                try:
                    answer = waits.recv(1000)
                except ConnectionResetError:
                    answer = b""
                assert answer == b"", answer
        finally:
            p.end()
            s["gpu1"].freeze(False)


def test_the_port_of_the_proxy(w):
    w.repo()
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        w.refused("proxy", "--port", str(taken), id="listen.taken", rc=1, says=str(taken))
    with proxy(w, "--port", str(taken)) as p:
        assert p.port == taken
    with proxy(w, "--port", "0", "--json") as p:
        said = json.loads(p.line)
        assert said["schema"] == "dlrun/proxy/v1" and said["template"] == f"http://{{port}}.{{run}}.localhost:{p.port}/{p.query}", said
        assert said["proxy"] == f"http://{f'dlrun:{p.token}@' if p.token else ''}127.0.0.1:{p.port}", said


if __name__ == "__main__":
    main()
