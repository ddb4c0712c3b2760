#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attempts that wait on several nodes with one home, in each shell that a node may have.

    tests/real/runner_pool.py - [NAME…]
"""

import copy
import secrets
import signal
import contextlib
import subprocess
import time

from harness import *  # noqa: F403
from runner import RUNNER, Failed, coded, each_shell, end_of, is_gone

NAMES = ("one", "two", "three")


def nodes(node, gpus=1):
    """Nodes with names of their own and GPUs that nobody else knows, on one root."""
    if os.getuid():
        raise Skip("names of their own need root")
    node.runner.write_bytes(RUNNER.replace(b"dgpu_dir=''", f"dgpu_dir={node.w.dir}/gpus-$(cat /proc/sys/kernel/hostname)".encode(), 1))
    made = []
    for name in NAMES:
        each = copy.copy(node)
        each.name, each.launcher = name, (needs("unshare"), "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh")
        rows = "".join(f"echo '{i}, GPU-{secrets.token_hex(8)}, 00000000:0{i + 1}:00.0, 1, x';" for i in range(gpus))
        node.w.write(f"smi-{name}/nvidia-smi", f"#!/bin/sh\ncase $* in *query-gpu*) {rows} ;; esac\n", 0o755, base=node.w.dir)
        each.env = {**node.env, "PATH": f"{node.w.dir}/smi-{name}:{node.env['PATH']}"}
        each.local = node.root / "on" / name
        made.append(each)
    made[0].state("nobody")
    return made


def submit(node, run, *words, secret=None, **job):
    """Its ticket, which the node keeps."""
    parts = [("job", node.job(run, *words, **{"more": "j_gpus=1\n", **job}))] + ([("secrets", secret)] if secret else [])
    lines, payload = node.transfer(parts, run)
    answer = node.ask(f"submit {run} 1", *lines, f"pool {coded('called ' + node.name)}", payload=payload)
    assert answer == ["accepted 0 0"], answer


def join(node, run):
    line, = node.ask(f"state {run}/1:{coded('called ' + node.name)}")
    return line


def told(node, run):
    return node.state(run)


def everywhere(all_nodes, run):
    for node in all_nodes:
        join(node, run)


def begins(all_nodes, run):
    """The node that has it, and what the others say."""
    def where():
        states = [node.state(run) for node in all_nodes]
        return [node for node, state in zip(all_nodes, states) if "pool" not in state and state["state"] == "running"]
    return wait_for(where, f"{run} begins")[0]


def held(all_nodes):
    """What has the GPU of each node."""
    for node in all_nodes:
        node.submit(f"held-{node.name}", "sleep", "600", more="j_gpus=1\n", grace_ms=500)
        node.running(f"held-{node.name}")


def line(node):
    return sorted(path.name.split(".")[1] for path in (node.root / "pool/line").glob("[0-9]*"))


@each_shell
def each_first_that_is_free(node):
    one, two, three = every = nodes(node)
    held(every)
    submit(one, "a", "sh", "-c", "echo here; sleep 600", grace_ms=500)
    everywhere(every, "a")
    assert [told(each, "a")["state"] for each in every] == ["queued"] * 3 and line(one) == ["a"]
    two.ask("cancel held-two 1")
    assert begins(every, "a") is two
    for other in (one, three):
        state = told(other, "a")
        assert (state["state"], state["pool"], state["claimed"]) == ("queued", "1", "called two"), state
        assert not other.dir("a").exists()
    wait_for(lambda: not line(one), "no ticket waits")
    assert [path.name for path in (node.root / "pool/tickets").glob("*/*") if path.name in ("job", "secrets", "record")] == []
    # Asked again, as after a lost answer: nothing begins anew.
    submit(one, "a", "echo", "twice")
    assert line(one) == [] and told(one, "a")["claimed"] == "called two"
    for other in (one, three):
        try:
            other.ask("cancel a 1")
        except Failed as e:
            assert e.kind == "gone" and "called two has taken it" in e.text, e
        else:
            raise AssertionError("another node said that it had cancelled it")
    two.ask("cancel a 1")
    assert end_of(two.wait("a"))[0] == "cancelled"


@each_shell
def each_order_and_words(node):
    one, two, three = every = nodes(node)
    held(every)
    for run in ("a", "b", "c"):
        submit(one, run, "sh", "-c", f"echo {run} >> {node.w.dir}/order", secret=b"export S='cnry-5e'\n")
        everywhere(every, run)
    assert "2 runs are before it" in told(three, "c")["text"] and "1 run is before it" in told(two, "b")["text"]
    one.ask("cancel held-one 1")
    for run in ("a", "b", "c"):
        assert end_of(one.wait(run))[0] == "succeeded", run
    assert (node.w.dir / "order").read_text() == "a\nb\nc\n"
    assert not [path for path in node.root.rglob("*") if path.is_file() and b"cnry-5e" in path.read_bytes()]
    for each in every:
        wait_for(lambda: not list((each.local / "pool/joined").iterdir()), "nothing is waited for")
    for each in (two, three):
        each.ask(f"cancel held-{each.name} 1")


@each_shell
def each_end_before_it_begins(node):
    """Asked for at a node that does not keep the ticket; all know it."""
    one, two, three = every = nodes(node)
    held(every)
    for run, verb, said in (("a", "cancel", []), ("b", "withdraw", ["withdrawn yes"])):
        submit(one, run, "true")
        everywhere(every, run)
        assert three.ask(f"{verb} {run} 1") == said and two.ask(f"{verb} {run} 1") == said, run
        ends = {end_of(each.wait(run)) for each in every}
        assert ends == {("cancelled", 143, 0, "Cancelled") if verb == "cancel" else ("failed", 125, 0, "Interrupted")}, ends
        assert not list((node.root / "pool/tickets").glob("*/job")) and line(one) == []
    assert one.ask("withdraw a 1") == ["withdrawn no"], "it was cancelled"
    for each in every:
        each.ask(f"cancel held-{each.name} 1")
        each.wait(f"held-{each.name}")
        assert not each.dir("a").exists() and not each.dir("b").exists()


@each_shell
def each_who_takes_it_is_killed(node):
    """After its claim, before there is anything of the attempt: the node finds that, and nobody else does."""
    one, two, three = every = nodes(node)
    held(every)
    submit(one, "a", "echo", "once")
    everywhere(every, "a")
    ticket, = (node.root / "pool/tickets").iterdir()
    gone = subprocess.Popen(["sleep", "600"])
    start = (Path("/proc") / str(gone.pid) / "stat").read_text().rpartition(")")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    me = (two.local / "pool/self").read_text().strip()
    (ticket / "claim.1").write_text(f"{me} {boot} {gone.pid} {start} called two\n")
    assert {told(each, "a")["claimed"] for each in every} == {"called two"}
    one.ask("cancel held-one 1")
    one.wait("held-one")
    time.sleep(2)
    assert told(one, "a")["state"] == "queued" and not (ticket / "void.1").exists(), "who claimed it lives"
    gone.send_signal(signal.SIGKILL)
    gone.wait()
    wait_for(lambda: (ticket / "void.1").exists(), "it gives it back")
    assert end_of(one.wait("a"))[0] == "succeeded" and one.log("a") == b"once\n"
    for each in (two, three):
        each.ask(f"cancel held-{each.name} 1")


def killed_before_its_program(node, every_process):
    one, two, three = every = nodes(node)
    held((two, three))
    setup = f"j_gpus=1\nj_setup_run='test -e {node.w.dir}/go || exec sleep 600'\nj_setup_key=00ff\nj_setup_cwd=.\n"
    submit(one, "a", "sh", "-c", "echo once; sleep 600", more=setup, grace_ms=500)
    everywhere(every, "a")
    pid = int(wait_for(lambda: told(one, "a").get("supervisor"), "it is taken").split(":")[0])
    wait_for(lambda: not list((one.local / "pool").glob("try.*")), "nothing else is tried")
    def workers():
        return [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/environ") if reads(p, f"{one.local}/runs/a/1/")]
    at_setup = wait_for(lambda: [p for p in workers() if reads(Path(f"/proc/{p}/cmdline"), "sleep\x00600")], "its setup")
    for each in {pid, *(workers() if every_process else ())}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    wait_for(lambda: is_gone(pid), "it is gone")
    (node.w.dir / "go").write_text("")
    where = begins(every, "a")
    assert where.log("a") == b"once\n" and list((node.root / "pool/tickets").glob("*/void.1"))
    wait_for(lambda: all(is_gone(each) for each in at_setup), "nothing of it is left")
    where.ask("cancel a 1")
    assert end_of(where.wait("a"))[0] == "cancelled"
    for each in (two, three):
        each.ask(f"cancel held-{each.name} 1")


@each_shell
def each_killed_before_its_program(node):
    """It has the GPU and its directory: all that works there is killed while it makes its setup, and it waits again."""
    killed_before_its_program(node, True)


@each_shell
def each_supervisor_killed_before_its_program(node):
    """Its setup has the GPU still: that is ended."""
    killed_before_its_program(node, False)


def reads(path, text):
    try:
        return text.encode() in path.read_bytes()
    except OSError:
        return False


@each_shell
def each_login_of_the_user(node):
    """The program has the login's umask and language, as one that was not given to several."""
    def said(each, run, give, lc):
        each.env = {key: value for key, value in each.env.items() if key != "LC_ALL"} | ({"LC_ALL": lc} if lc else {})
        # Until its end: each conversation may be the one that begins what takes the attempts.
        old = os.umask(0o027)
        try:
            give(each, run, "sh", "-c", "umask; echo ${LC_ALL-none}")
            assert end_of(each.wait(run))[0] == "succeeded"
        finally:
            os.umask(old)
        return each.log(run)
    one, *others = nodes(node)
    # What takes the attempts of a node has the login that began it.
    for each, lc in zip(others, (None, "C.UTF-8")):
        plain = said(one, f"plain-{each.name}", lambda each, *words: each.submit(*words), lc)
        pooled = said(each, f"pooled-{each.name}", submit, lc)
        assert pooled == plain == f"0027\n{lc or 'none'}\n".encode(), (pooled, plain)


@each_shell
def each_made_and_not_in_the_line(node):
    """Who made the ticket was killed before it stood in the line."""
    one, two, three = every = nodes(node)
    held(every)
    submit(one, "a", "echo", "once")
    for path in (node.root / "pool/line").iterdir():
        path.unlink()
    everywhere(every, "a")
    wait_for(lambda: line(one) == ["a"], "it stands in the line")
    two.ask("cancel held-two 1")
    assert end_of(two.wait("a"))[0] == "succeeded" and two.log("a") == b"once\n"
    for each in (one, three):
        each.ask(f"cancel held-{each.name} 1")


@each_shell
def each_killed_at_its_directory(node):
    """After its claim and mkdir, before there is anything in the directory: it waits again."""
    one, two, three = every = nodes(node)
    held(every)
    submit(one, "a", "echo", "once")
    everywhere(every, "a")
    ticket, = (node.root / "pool/tickets").iterdir()
    me = (two.local / "pool/self").read_text().strip()
    two.dir("a").mkdir(parents=True)
    (ticket / "claim.1").write_text(f"{me} boot-before 1 1 called two\n")
    wait_for(lambda: (ticket / "void.1").exists(), "it gives it back", 60)
    one.ask("cancel held-one 1")
    assert end_of(one.wait("a"))[0] == "succeeded" and one.log("a") == b"once\n"
    assert not two.dir("a").exists()
    for each in (two, three):
        each.ask(f"cancel held-{each.name} 1")


@each_shell
def each_killed_at_its_directory_and_ended(node):
    """The same, and its end is asked for at that node before anybody finds it: no node begins it."""
    one, two, three = every = nodes(node)
    held(every)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for run, verb, said in (("a", "cancel", []), ("b", "withdraw", ["withdrawn yes"])):
        submit(one, run, "echo", "never")
        everywhere(every, run)
        ticket, = {path.parent for path in (node.root / "pool/tickets").glob("*/job")}
        me = (two.local / "pool/self").read_text().strip()
        for path in (two.local / "pool/joined").iterdir():
            path.unlink()
        two.dir(run).mkdir(parents=True)
        (two.dir(run) / "lock").write_text("")
        (ticket / "claim.1").write_text(f"{me} {boot} 1 1 called two\n")
        assert two.ask(f"{verb} {run} 1") == said, run
        ends = {end_of(each.wait(run)) for each in every}
        assert ends == {("cancelled", 143, 0, "Cancelled") if verb == "cancel" else ("failed", 125, 0, "Interrupted")}, ends
        assert not two.dir(run).exists() and line(one) == [] and not list((node.root / "pool/tickets").glob("*/job"))
    for each in every:
        each.ask(f"cancel held-{each.name} 1")


@each_shell
def each_taken_back_before_it_came(node):
    """A node that saw no ticket yet has promised that it does not begin: no node begins it, and nobody waits for it."""
    one, two, three = every = nodes(node)
    held(every)
    submit(one, "a", "echo", "never", secret=b"export S='cnry-5e'\n")
    names = node.root / "pool/names"
    names.rename(node.root / "pool/hidden")
    assert two.ask("withdraw a 1") == ["withdrawn absent"]
    (node.root / "pool/hidden").rename(names)
    everywhere(every, "a")
    for each in every:
        assert end_of(each.wait("a")) == ("failed", 125, 0, "Interrupted")
    assert one.ask("withdraw a 1") == ["withdrawn yes"] and line(one) == []
    assert not [path for path in (node.root / "pool").rglob("*") if path.is_file() and b"cnry-5e" in path.read_bytes()]
    for each in every:
        wait_for(lambda: not list((each.local / "pool").glob("joined/*")), "nothing is waited for")
        each.ask(f"cancel held-{each.name} 1")


@each_shell
def each_crowd(node):
    """Many attempts on three nodes with two GPUs each: once each, and no GPU has two."""
    every = nodes(node, gpus=2)
    base = node.w.dir
    line = f"g=$(hostname)-$CUDA_VISIBLE_DEVICES; mkdir {base}/on-$g || echo $DLRUN_RUN_ID >> {base}/doubled; echo $DLRUN_RUN_ID >> {base}/begun; sleep 0.2; rmdir {base}/on-$g"
    runs = [f"r{i}" for i in range(24)]
    for i, run in enumerate(runs):
        submit(every[i % 3], run, "sh", "-c", line)
        everywhere(every, run)
    wait_for(lambda: (base / "begun").exists() and len((base / "begun").read_text().split()) >= len(runs), "all of them", 180)
    assert sorted((base / "begun").read_text().split()) == sorted(runs) and not (base / "doubled").exists()


if __name__ == "__main__":
    main()
