#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pushes on a bad line, and to registries that lose things: each ends well, and so does the next.

    tests/real/push_cuts.py DLRUN [NAME…]

DLRUN_CUTS=all: cut after every byte of the first 4 KiB of each exchange, not after some.
"""

import concurrent.futures
import os
import re
import threading

from harness import ALL, in_time, main, wait_for
from pushsite import FaultProxy, Site, ended, outcome

FIRST_BYTES = 4096
STRIDE = 1 if os.environ.get("DLRUN_CUTS") == "all" else 29 if ALL else 61
LANES = 6
GIVEN_S = 10


class Line:
    """A site behind a fault proxy."""

    def __init__(self, w, **registry):
        self.site = Site(w.dlrun, **registry)
        self.proxy = FaultProxy(self.site.registry.address)
        self.site.via = self.proxy.address

    def __enter__(self):
        return self.site, self.proxy

    def __exit__(self, *_):
        self.proxy.close()
        self.site.close()


# --- cuts

def first_push(site):
    if (site.home / ".cache/dlrun").exists():
        site.forget()
    site.registry.repositories.pop("me/code", None)


def an_edit(site):
    site.edit()


def cut_lane(w, before, how, side, exchange, registry):
    """Cut this exchange after one more byte each time, as far as it goes. Returns (cuts, what is wrong)."""
    wrong, cuts = [], 0
    with Line(w, **registry) as (site, proxy):
        site.right("--image", site.base)
        first = 0 if STRIDE == 1 else (exchange * 7 + len(how) * 5 + len(side)) % STRIDE
        for after in sorted({0, *range(first, FIRST_BYTES, STRIDE)}):
            before(site)
            fault = proxy.fault(how, side, after, exchange=proxy.exchanges + exchange, times=1)
            done = site.push("--image", site.base, timeout_s=GIVEN_S)
            proxy.clear()
            if not fault.fired:
                break
            cuts += 1
            try:
                came_to = outcome(done)
                assert came_to == "ok", f"one cut is no reason to fail: {done!r}"
                site.holds(done)
                site.right("--image", site.base)
            except AssertionError as why:
                wrong.append(f"{how} of the {side} of exchange {exchange} after {after} bytes: {why}{site.seen()}")
            site.registry.clear()
    return cuts, wrong


def cut_everywhere(w, before, exchanges, **registry):
    lanes = [(how, side, n) for n in range(1, exchanges + 1) for side in ("request", "response") for how in ("fin", "rst")]
    with concurrent.futures.ThreadPoolExecutor(LANES) as pool:
        done = list(pool.map(lambda lane: cut_lane(w, before, *lane, registry), lanes))
    cuts, wrong = sum(n for n, _ in done), [text for _, texts in done for text in texts]
    print(f"{before.__name__}: {cuts} cuts", flush=True)
    assert not wrong, f"{len(wrong)} of {cuts}: " + "\n".join(wrong[:3])
    assert cuts > exchanges * 4 * 200 / STRIDE, f"only {cuts} cuts"


def test_cuts_of_a_first_push(w):
    cut_everywhere(w, first_push, 9)


def test_cuts_of_an_edit(w):
    cut_everywhere(w, an_edit, 5)


def test_cuts_with_one_post(w):
    cut_everywhere(w, an_edit, 3, single_post=True)


# --- bytes on the way

def test_flipped_bits(w):
    """A bit of a body is another one on the way: the registry says so, and it is sent again."""
    with Line(w) as (site, proxy):
        site.right("--image", site.base)
        for after in (450, 500, 550, 600, 700):
            site.edit()
            fault = proxy.fault("flip", "request", after, exchange=0, times=1, bit=3)
            done = site.push("--image", site.base, timeout_s=GIVEN_S)
            proxy.clear()
            assert fault.fired, (after, site.seen())
            if done.rc == 0:
                site.holds(done)
            else:
                outcome(done)
            site.right("--image", site.base)


def test_swallowed_answers(w):
    with Line(w) as (site, proxy):
        site.right("--image", site.base)
        for how in ("fin", "rst"):
            for exchange in range(1, 6):
                site.edit()
                fault = proxy.swallow(proxy.exchanges + exchange, how)
                done = site.push("--image", site.base, timeout_s=GIVEN_S)
                proxy.clear()
                assert fault.fired and done.rc == 0, f"{how} {exchange}: {done!r}{site.seen()}"
                site.holds(done)
                site.registry.clear()


def stalled(site, proxy, side, exchange):
    site.edit()
    proxy.fault("stall", side, 30, exchange=proxy.exchanges + exchange)
    # The trace has something to say of each failure, too.
    done = site.push("--image", site.base, timeout_s=2, env={"DLRUN_TRACE": f"all:{site.dir}/trace"})
    assert outcome(done) in ("registry.timeout", "http.timeout"), f"{side} {exchange}: {done!r}"
    proxy.clear()


def test_stalls_end_in_time(w):
    for side in ("request", "response"):
        for exchange in range(1, 6):
            with Line(w) as (site, proxy):
                site.right("--image", site.base)
                in_time(lambda: stalled(site, proxy, side, exchange), 3)
                site.right("--image", site.base)


def test_slow_line(w):
    with Line(w) as (site, proxy):
        proxy.set(rate=(20000, 20000), delay=0.02)
        site.right("--image", site.base)
        site.edit()
        site.right("--image", site.base)


def push_among_mounts(w):
    """The requests of a first push over a base of 100 layers; whether its own blobs were before the mounts from the 61st on."""
    with Line(w) as (site, proxy):
        # Packing is to be short beside a round trip, also on a busy machine.
        proxy.set(delay=0.1, connect_delay=0.2)
        site.registry.add_image("base/many", "1", layers=100)
        site.right("--image", site.base.replace("base/py:3", "base/many:1"))
        lines = [request.line for request in site.registry.find("")]
        mounts = [i for i, line in enumerate(lines) if "mount=" in line]
        own = [i for i, line in enumerate(lines) if line.startswith("PUT ") and "/blobs/uploads/" in line]
        assert len(mounts) == 100 and own, lines
        return lines, max(own) < mounts[60]


def test_own_blobs_among_mounts(w):
    """What is needed of the base for more to follow, and what is our own, does not wait behind all layers of the base."""
    # A machine that stands still while it is packed says nothing of that.
    for _ in range(3):
        lines, among = push_among_mounts(w)
        if among:
            return
    raise AssertionError(lines)


def test_line_that_is_gone_for_a_second(w):
    with Line(w) as (site, proxy):
        site.right("--image", site.base)
        site.edit()
        proxy.set(refuse=True)
        proxy.cut_all()
        timer = threading.Timer(1.0, proxy.set, kwargs={"refuse": False})
        timer.start()
        site.right("--image", site.base)
        timer.join()


# --- registries that lose things

def test_sessions_are_lost(w):
    for pattern in (r"^PUT \S+/blobs/uploads/", r"^PUT \S+/manifests/", r"^POST \S+/blobs/uploads/"):
        with Site(w.dlrun) as site:
            site.right("--image", site.base)
            site.edit()
            site.registry.rule(pattern, lambda request: site.registry.lose_sessions(), nth={1, 2})
            site.right("--image", site.base)


def test_piece_that_does_not_fit(w):
    """The registry still writes what a connection had held when it was cut: it is asked again where it is."""
    with Site(w.dlrun) as site:
        (site.tree / "noise").write_bytes(os.urandom(70 << 20))
        rule = site.registry.rule(r"^PATCH ", 416, nth={2, 4})
        done = site.push("--image", "scratch")
        assert outcome(done) == "ok" and rule.fired == 2, done
        site.registry.check_image("me/code", re.search(r"sha256:[0-9a-f]{64}", done.out)[0])
        sent = sum(request.length or 0 for request in site.registry.find(r"^(PATCH|PUT|POST) "))
        assert sent < (70 + 40) << 20, f"{sent >> 20} MiB"
        assert not site.registry.find("^DELETE "), site.seen()


def test_upload_in_pieces_is_lost_again_and_again(w):
    """The last piece is not taken, then none is, and the upload is not known any more: an error, not a wait."""
    with Site(w.dlrun) as site:
        (site.tree / "noise").write_bytes(os.urandom(70 << 20))
        last = site.registry.rule(lambda request: request.line.startswith("PUT ") and not request.length, 503, nth=1)
        pieces = site.registry.rule(r"^PATCH ", lambda request: 503 if last.fired else None)
        site.registry.rule(r"^GET \S+/blobs/uploads/", lambda request: 404 if last.fired else None)
        done = site.push("--image", "scratch", timeout_s=120)
        assert outcome(done) == "registry.answer" and pieces.fired, (done, site.seen())


def test_restarts(w):
    for pattern in (r"^GET ", r"^PUT \S+/blobs/uploads/", r"^PUT \S+/manifests/", r"^POST "):
        for nth in (1, 2):
            with Site(w.dlrun) as site:
                site.registry.rule(pattern, lambda request: site.registry.restart(), nth=nth)
                site.right("--image", site.base)
                site.edit()
                site.right("--image", site.base)


def test_garbage_is_collected_between_blob_and_manifest(w):
    """Once: what is lacking is sent again. Always: a clear error, and no image that cannot be pulled."""
    with Site(w.dlrun) as site:
        site.registry.rule(r"^PUT \S+/manifests/", lambda request: site.registry.collect_garbage() and None, nth=1)
        site.right("--image", site.base)
        site.edit()
        rule = site.registry.rule(r"^PUT \S+/manifests/", lambda request: site.registry.collect_garbage() and None)
        done = site.push("--image", site.base)
        assert done.rc and outcome(done) == "image" and rule.fired == 2, done
        site.registry.drop_rules()
        site.right("--image", site.base)


def test_everything_was_deleted(w):
    """The registry is as new, and the memory of it is fresh."""
    with Site(w.dlrun) as site:
        site.right("--image", site.base)
        site.registry.repositories.pop("me/code")
        site.edit()
        site.right("--image", site.base)


def test_blob_whose_bytes_are_gone(w):
    """The registry takes manifests with it: found by the proof, once what is remembered is old."""
    with Site(w.dlrun) as site:
        site.right("--image", site.base)
        for digest in list(site.registry.repo("me/code").blobs):
            if digest not in site.layers:
                site.registry.make_ghost("me/code", digest)
        site.age()
        site.edit()
        site.right("--image", site.base)


def test_manifest_accepted_without_its_blobs(w):
    """Such a registry is believed for a while; then the proofs tell."""
    with Site(w.dlrun, check_blobs=False) as site:
        site.right("--image", site.base)
        for digest in list(site.registry.repo("me/code").blobs):
            site.registry.drop_blob("me/code", digest)
        site.age()
        site.edit()
        site.right("--image", site.base)


def test_two_pushes_at_once(w):
    with Site(w.dlrun) as site:
        for _ in range(20):
            both = [site.start("--image", site.base) for _ in range(3)]
            for done in [ended(process) for process in both]:
                assert done.rc == 0, done
                site.holds(done)
            site.edit()


def test_disk_is_full_then_not(w):
    with Site(w.dlrun) as site:
        rule = site.registry.rule(r"^PUT \S+/blobs/uploads/", 507)
        done = site.push("--image", site.base)
        assert outcome(done) == "registry.full", done
        assert rule.fired
        site.registry.drop_rules()
        site.right("--image", site.base)


def test_no_sessions_are_left(w):
    """What was opened ahead and is not needed is closed, after failures, too."""
    with Site(w.dlrun) as site:
        site.right("--image", site.base)
        site.edit()
        site.right("--image", site.base)
        wait_for(lambda: site.registry.sessions() == 0, "none is left of a push that went well")
        site.edit()
        site.registry.rule(r"^PUT \S+/manifests/", 403)
        done = site.push("--image", site.base)
        assert outcome(done) == "registry.denied", done
        wait_for(lambda: site.registry.sessions() == 0, "none is left of one that did not")


if __name__ == "__main__":
    main()
