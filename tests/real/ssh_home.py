#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run that waits in a pool of hosts with one home: the first that has a free GPU takes it, once, whoever dies meanwhile.

DLRUN_RUNS: how many (100; 24 without DLRUN_FULL=1). DLRUN_REBOOTS: how many hosts end meanwhile (6; 3).
"""

import contextlib
import json
import os
import random
import shlex
import shutil
import statistics
import threading
import time

from harness import *  # noqa: F403
from sshsite import SshSite

FULL = bool(os.environ.get("DLRUN_FULL"))
RUNS = int(os.environ.get("DLRUN_RUNS", "100" if FULL else "24"))
REBOOTS = int(os.environ.get("DLRUN_REBOOTS", "6" if FULL else "3"))
GPUS = 2
# Lines "b|e RUN HOST BOOT GPU TIME" of the home that all share; two on one GPU find each other's directory.
PROGRAM = """g=$(hostname)-$(cut -c1-8 /proc/sys/kernel/random/boot_id)-$CUDA_VISIBLE_DEVICES
mkdir ~/on-$g || { echo $DLRUN_RUN_ID $g >> ~/doubled; exit 9; }
echo b $DLRUN_RUN_ID $g $(date +%s.%N) >> ~/lines; sleep {seconds}; echo e $DLRUN_RUN_ID $g $(date +%s.%N) >> ~/lines; rmdir ~/on-$g"""


@contextlib.contextmanager
def pool(w, n=4, gpus=GPUS, shared=True):
    with SshSite(w) as s:
        for i in range(1, n + 1):
            s.host(f"gpu{i}", gpus=gpus, **({"home": s["gpu1"].homes} if shared and i > 1 else {}))
        if shared:
            s["gpu1"].ok("sh", "-c", "mkdir -m 700 -p ~/.dlrun && : > ~/.dlrun/shared", user="me")
        s.pool = ",".join(f"gpu{i}" for i in range(1, n + 1))
        w.repo()
        yield s


def host_of(s, run):
    return s.w.show(run)["target"]["hosts"]


def program(seconds):
    return ["sh", "-c", PROGRAM.replace("{seconds}", str(seconds))]


def lines(s):
    path = s["gpu1"].home / "lines"
    found = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(what, run, gpu, float(at)) for what, run, gpu, at in found]


def cancel(w, *runs):
    """On a machine that stalls a run may end later than the command waits."""
    done = w.run("cancel", *runs)
    assert done.rc == 0 or (done.rc == 1 and "has not ended after" in done.err), done
    wait_for(lambda: all(w.show(run)["state"] in ("succeeded", "failed", "cancelled", "lost") for run in runs), f"the end of {runs}")
    return done


def holders(s, n, *where):
    """Runs that hold all GPUs of the hosts, until they are cancelled."""
    runs = [s.submit("--grace", "1s", "-g", str(n), "--", "sleep", "600", to=host) for host in where]
    for run in runs:
        s.running(run)
    return runs


def test_the_first_that_is_free(w):
    with pool(w, 3) as s:
        held = holders(s, GPUS, "gpu1", "gpu2", "gpu3")
        run = s.submit("-g", "1", "--", "sh", "-c", "hostname", to=s.pool)
        assert "gpu1, gpu2 and gpu3 have one home: the first that has its GPUs takes it, also while this machine is away" in s.said, s.said
        assert s.state(run) == "queued" and host_of(s, run) == ["gpu1", "gpu2", "gpu3"], w.show(run)
        assert "waits for the first of gpu1, gpu2 and gpu3" in json.dumps(s.why(run)), s.why(run)
        cancel(w, held[2])
        assert s.ended(run)["state"] == "succeeded" and host_of(s, run) == ["gpu3"], w.show(run)
        assert w.ok("logs", run).out == "gpu3\n" and w.show(run)["attempts"][0]["handle"] == f"ssh:gpu3/{run}/1"
        for one in held[:2]:
            cancel(w, one)
        assert not s["gpu1"].files(".dlrun/pool/line/*") and not s["gpu1"].files(".dlrun/pool/tickets/*/job")


def test_followed_until_it_has_begun(w):
    with pool(w, 2, gpus=1) as s:
        held = holders(s, 1, "gpu1", "gpu2")
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            followed = threads.submit(s.follow, "-g", "1", "--", "sh", "-c", "hostname; exit 3", to=s.pool)
            wait_for(lambda: len(w.runs()) == 3, "its row")
            wait_for(lambda: s["gpu1"].files(".dlrun/pool/line/*"), "its ticket")
            cancel(w, held[1])
            done = followed.result()
        assert done.rc == 3 and done.out == "gpu2\n" and "waits for the first of gpu1 and gpu2" in done.err, done
        cancel(w, held[0])


def test_cancel_and_restart(w):
    """One that nobody has taken ends at once, and whoever is asked knows it; its next attempt waits on all again."""
    with pool(w, 2, gpus=1) as s:
        held = holders(s, 1, "gpu1", "gpu2")
        run = s.submit("-g", "1", "--", "hostname", to=s.pool)
        s["gpu1"].stop()
        done = cancel(w, run)
        shown = s.ended(run)
        assert shown["state"] == "cancelled" and shown["exit"]["reason"] == "Cancelled", (shown, done)
        s["gpu1"].start()
        w.ok("restart", run)
        assert s.state(run) == "queued", w.show(run)
        cancel(w, held[1])
        assert s.ended(run)["state"] == "succeeded" and host_of(s, run) == ["gpu2"] and w.ok("logs", run).out == "gpu2\n", w.show(run)
        assert w.ok("rm", run).rc == 0
        cancel(w, held[0])


def test_secrets_go_with_it_and_nowhere_else(w):
    with pool(w, 2, gpus=1) as s:
        held = holders(s, 1, "gpu1", "gpu2")
        w.env["TOKEN"] = "cnry-77ab-pool"
        run = s.submit("-g", "1", "--secret", "TOKEN", "--", "sh", "-c", "echo ${#TOKEN}", to=s.pool)
        cancel(w, held[1])
        assert s.ended(run)["state"] == "succeeded" and w.ok("logs", run).out == "14\n", w.show(run)
        for place in (s["gpu1"].home, s["gpu1"].dir, s["gpu2"].dir):
            for path in Path(place).rglob("*"):
                assert not path.is_file() or b"cnry-77ab-pool" not in path.read_bytes(), path
        cancel(w, held[0])


def test_a_host_restarts_while_it_waits(w):
    """The others keep it, also the one with the ticket; what restarted takes part again when somebody looks."""
    with pool(w, 3, gpus=1) as s:
        held = holders(s, 1, "gpu1", "gpu2", "gpu3")
        runs = [s.submit("--grace", "1s", "-g", "1", "--", "sh", "-c", f"hostname; sleep {n}", to=s.pool) for n in (600, 0)]
        s["gpu1"].reboot()
        assert s.ended(held[0])["state"] == "lost"
        first = s.running(runs[0])
        assert first["target"]["hosts"] == ["gpu1"] and s.state(runs[1]) == "queued", first
        s["gpu1"].shut_down()
        cancel(w, held[1])
        second = s.ended(runs[1])
        assert second["state"] == "succeeded" and second["target"]["hosts"] == ["gpu2"], second
        s["gpu1"].boot()
        w.run("cancel", held[2])


def test_a_host_that_dies_before_it_has_begun(w):
    """It has claimed the run: only it can tell that nothing has begun, and does when it is there again."""
    with pool(w, 2, gpus=1) as s:
        held = holders(s, 1, "gpu2")
        w.write("dlrun.yaml", json.dumps({"setup": {"run": "test -e ~/go || sleep 600"}}))
        run = s.submit("-g", "1", "--", "hostname", to=s.pool)
        wait_for(lambda: s["gpu1"].files(".dlrun/pool/tickets/*/claim.1"), "its claim")
        wait_for(lambda: s.state(run) == "starting", "its setup")
        s["gpu1"].shut_down()
        wait_for(lambda: "gpu1 has taken it, and does not answer" in json.dumps(s.why(run)), "what is known of it")
        (s["gpu1"].home / "go").write_text("")
        cancel(w, held[0])
        s["gpu1"].boot_id = s["gpu2"].boot_id[::-1][:8] + s["gpu1"].boot_id[8:]
        s["gpu1"].boot()
        assert s.ended(run)["state"] == "succeeded" and w.show(run)["target"]["hosts"][0] in ("gpu1", "gpu2"), w.show(run)
        assert len(w.show(run)["attempts"]) == 1 and s["gpu1"].files(".dlrun/pool/tickets/*/void.1"), w.show(run)


def empty_local_disk(host):
    """The machine begins with nothing but the home that all share."""
    host.shut_down()
    shutil.rmtree(host.dir / "var-tmp")
    (host.dir / "var-tmp").mkdir()
    (host.dir / "var-tmp").chmod(0o1777)
    host.reboot()


def test_a_host_whose_local_disk_is_emptied(w):
    """It is known by what the home says of it: what it had claimed and not begun is free again, what it had begun is lost."""
    with pool(w, 2, gpus=1) as s:
        cancel(w, *holders(s, 1, "gpu2"))
        first = s.submit("--grace", "1s", "-g", "1", "--", "sh", "-c", "hostname; sleep 600", to="gpu1,gpu2")
        s.running(first)
        lost = host_of(s, first)[0]
        other = "gpu2" if lost == "gpu1" else "gpu1"
        held = holders(s, 1, other)
        empty_local_disk(s[lost])
        end = s.ended(first)
        assert end["state"] == "lost" and lost in end["text"], end
        w.write("dlrun.yaml", json.dumps({"setup": {"run": "test -e ~/go || sleep 600"}}))
        run = s.submit("-g", "1", "--", "hostname", to=s.pool)
        wait_for(lambda: s.state(run) == "starting", "its setup")
        empty_local_disk(s[lost])
        (s["gpu1"].home / "go").write_text("")
        assert s.ended(run)["state"] == "succeeded" and host_of(s, run) == [lost] and len(w.show(run)["attempts"]) == 1, w.show(run)
        assert s["gpu1"].files(".dlrun/pool/tickets/*/void.1") and len(s["gpu1"].files(".dlrun/pool/hosts/*")) == 2
        cancel(w, *held)


def test_homes_that_are_not_the_same(w):
    """A copy of a disk tells the same id: no ticket is seen there, and it has no part in it."""
    with pool(w, 2, gpus=1, shared=False) as s:
        held = holders(s, 1, "gpu1", "gpu2")
        s.submit("-g", "0", "--", "true", to="gpu1,gpu2")
        ids = [(s[name].home / ".dlrun/pool/id") for name in ("gpu1", "gpu2")]
        assert ids[0].read_text() != ids[1].read_text()
        ids[1].write_text(ids[0].read_text())
        run = s.submit("-g", "1", "--", "hostname", to="gpu1,gpu2")
        kept = [name for name in ("gpu1", "gpu2") if s[name].files(".dlrun/pool/line/*")]
        assert len(kept) == 1 and "has no part in it: it does not see the home of the others" in s.said, (kept, s.said)
        cancel(w, *held)
        assert s.ended(run)["state"] == "succeeded" and host_of(s, run) == kept


def test_submits_that_are_killed(w):
    """Anywhere: what has begun has begun once, and what has a row ends as what became of it."""
    chance, killed = random.Random(3), 40 if FULL else 12
    with pool(w, 3, gpus=1) as s:
        first = s.submit("-g", "1", "--", "true", to=s.pool)
        s.ended(first)
        begin = running_time()
        s.submit("-g", "1", "--", *program(0), to=s.pool)
        whole = running_time() - begin
        for _ in range(killed):
            process = subprocess.Popen([w.dlrun, "submit", "-d", "-t", f"ssh:{s.pool}", "-g", "1", "--", *program(0)], cwd=w.tree, env=w.env,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.7, 1.5) * whole)
            process.kill()
            process.wait()
        runs = [row["id"] for row in w.runs() if row["id"] != first]
        states = {run: s.ended(run)["state"] for run in runs}
        begun = [run for what, run, _, _ in lines(s) if what == "b"]
        assert len(begun) == len(set(begun)) and not (s["gpu1"].home / "doubled").exists(), begun
        assert all((states[run] == "succeeded") == (run in begun) for run in runs), (states, begun)
        print(f"{killed} submits killed: {len(runs) - 1} rows, {len(begun) - 1} ran", flush=True)


def looked(s, run, state):
    """Whoever looks moves it."""
    def there():
        s.w.ok("ps")
        return s.state(run) == state
    wait_for(there, f"{run} is {state}", 60)


def test_moved_where_homes_are_apart(w):
    """It waits on one host, and goes to the one that gets free when somebody looks; it is the same run."""
    with pool(w, 3, gpus=1, shared=False) as s:
        held = dict(zip(("gpu1", "gpu2", "gpu3"), holders(s, 1, "gpu1", "gpu2", "gpu3")))
        w.write("own", "cnry-4e\n")
        runs = [s.submit("--grace", "1s", "-g", "1", "--", "sh", "-c", "hostname; cat own; sleep 600", to=s.pool) for _ in range(3)]
        assert "the hosts have no home in common. Whenever dlrun looks (dlrun ps), it goes to one that is free" in s.said, s.said
        where = [host_of(s, run)[0] for run in runs]
        assert all(w.show(run)["target"]["pool"] == ["gpu1", "gpu2", "gpu3"] for run in runs), w.show(runs[0])
        other = next(name for name in held if name != where[0])
        cancel(w, held.pop(other))
        looked(s, runs[0], "running")
        shown = w.show(runs[0])
        assert shown["target"]["hosts"] == [other] and len(shown["attempts"]) == 2, shown
        assert shown["attempts"][0]["exit"]["reason"] == "Withdrawn" and shown["attempts"][1]["number"] == 2, shown
        assert w.ok("logs", runs[0]).out == f"{other}\ncnry-4e\n"
        assert [s.state(run) for run in runs[1:]] == ["queued"] * 2, [w.show(run) for run in runs[1:]]
        assert not any((s[name].home / f".dlrun/on/{name}/runs/{runs[0]}/1/begun").exists() for name in held)
        cancel(w, *runs, *held.values())


def test_no_host_gets_free(w):
    with pool(w, 2, gpus=1, shared=False) as s:
        held = holders(s, 1, "gpu1", "gpu2")
        run = s.submit("--grace", "1s", "-g", "1", "--", "hostname", to=s.pool)
        for _ in range(4):
            w.ok("ps")
            time.sleep(1)
        assert s.state(run) == "queued" and len(w.show(run)["attempts"]) == 1, w.show(run)
        cancel(w, run)
        assert s.ended(run)["state"] == "cancelled"
        cancel(w, *held)


def test_seen_from_another_machine(w):
    """One that waits is in the list of each of its hosts, and is found where it runs."""
    with pool(w, 2, gpus=1) as s:
        held = holders(s, 1, "gpu1", "gpu2")
        run = s.submit("--grace", "1s", "-g", "1", "--", "sh", "-c", "hostname; sleep 600", to=s.pool)
        elsewhere = {"XDG_STATE_HOME": str(w.dir / "elsewhere")}
        assert json.loads(w.ok("show", f"ssh:{s.pool}:{run}", "--json", env=elsewhere).out)["state"] == "queued"
        cancel(w, held[1])
        s.running(run)
        shown = json.loads(w.ok("show", f"ssh:{s.pool}:{run}", "--json", env=elsewhere).out)
        assert shown["state"] == "running" and shown["target"]["hosts"] == ["gpu2"], shown
        cancel(w, run, held[0])


def test_layers_of_what_waits_are_kept(w):
    with pool(w, 2, gpus=1) as s:
        held = holders(s, 1, "gpu1", "gpu2")
        w.write("own", "cnry-1c\n")
        run = s.submit("-g", "1", "--", "cat", "own", to=s.pool)
        names = s["gpu1"].files(".dlrun/pool/names/*")
        for path in (*names, *s["gpu1"].files(".dlrun/layers/*")):
            os.utime(path, (1, 1))
        w.ok("gc", "--node", "gpu2", "--keep", "1d")
        cancel(w, held[0])
        assert s.ended(run)["state"] == "succeeded" and w.ok("logs", run).out == "cnry-1c\n", w.show(run)
        os.utime(names[0], (1, 1))
        w.ok("gc", "--node", "gpu2", "--keep", "1d")
        assert not s["gpu1"].files(".dlrun/pool/names/*") and not s["gpu1"].files(".dlrun/pool/tickets/*")
        cancel(w, held[1])


def idle(found, since):
    """Seconds for which a GPU stood still between two programs while others waited."""
    gaps, last = [], {}
    for what, _, gpu, at in sorted(found, key=lambda line: line[3]):
        host, _, number = gpu.partition("-")
        key = (host, number.rpartition("-")[2])
        if what == "b" and key in last and at > since:
            gaps.append(at - max(last[key], since))
        last[key] = at
    return gaps


def idle_after(found, host, at):
    """Seconds until a host that has booted began a program, or there was none left for it."""
    begun = [(gpu.partition("-")[0], when) for what, _, gpu, when in found if what == "b" and when > at]
    here = [when for name, when in begun if name == host]
    return min(here or [max([when for _, when in begun], default=at)]) - at


def test_many_runs_and_hosts_that_die(w):
    """No GPU has two, no run is run twice; the laptop looks only now and then."""
    chance = random.Random(7)
    with pool(w) as s:
        held = holders(s, GPUS, *s.pool.split(","))
        begin = running_time()
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            runs = list(threads.map(lambda _: s.submit("-g", "1", "--", *program(2), to=s.pool), range(RUNS)))
        accepted = running_time() - begin
        cancel(w, *held)
        since, booted = time.time(), []
        for _ in range(REBOOTS):
            done = len([1 for line in lines(s) if line[0] == "b"])
            wait_for(lambda: len([1 for line in lines(s) if line[0] == "b"]) >= min(done + RUNS // (REBOOTS + 2), RUNS - 8), "some more", 300)
            host = f"gpu{chance.randrange(4) + 1}"
            s[host].reboot()
            booted.append((host, time.time()))
            w.ok("ps", timeout=120)
        assert w.run("wait", *runs, timeout=900).rc is not None
        took = running_time() - begin - accepted
        states = [s.ended(run, 120)["state"] for run in runs]
        found = lines(s)
        begun = [run for what, run, _, _ in found if what == "b"]
        assert not (s["gpu1"].home / "doubled").exists(), (s["gpu1"].home / "doubled").read_text()
        assert len(begun) == len(set(begun)), [run for run in begun if begun.count(run) > 1]
        assert set(states) <= {"succeeded", "lost"} and states.count("lost") <= REBOOTS * GPUS, states
        ended = {run for what, run, _, _ in found if what == "e"}
        assert all(run in ended for run, state in zip(runs, states) if state == "succeeded") and len(ended) >= RUNS - REBOOTS * GPUS, states
        gaps, joined = idle(found, since), [idle_after(found, host, at) for host, at in booted]
        print(f"{RUNS} runs of 2 s on 4 hosts with {GPUS} GPUs, {REBOOTS} reboots: accepted in {accepted:.0f} s, all ended after {took:.0f} s "
              f"({states.count('lost')} lost); a GPU stood still for {statistics.median(gaps):.1f} s in the median, {max(gaps):.1f} s at most; "
              f"a host took part again {', '.join(f'{one:.1f}' for one in joined)} s after it had booted", flush=True)
        # A host that nobody asks to begin has been seen to wait for the next program's end, and longer: 15 s and more on an
        # idle machine. One with other work is given as much more as it has.
        assert max(joined) < 10 + 2 * os.getloadavg()[0], (joined, os.getloadavg())


def test_beside_a_shell_loop(w):
    with pool(w) as s:
        count = min(RUNS, 40)
        begin = running_time()
        subprocess.run(["xargs", "-P", str(4 * GPUS), "-n", "1", "sh", "-c", "sleep 2"], input="x\n" * count, text=True, check=True)
        loop = running_time() - begin
        held = holders(s, GPUS, *s.pool.split(","))
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            runs = list(threads.map(lambda _: s.submit("-g", "1", "--", *program(2), to=s.pool), range(count)))
        cancel(w, *held)
        wait_for(lambda: len([1 for line in lines(s) if line[0] == "e"]) == count, "all of them", 600)
        found = lines(s)
        took = max(line[3] for line in found) - min(line[3] for line in found)
        print(f"{count} programs of 2 s on {4 * GPUS} GPUs: {took:.1f} s in the pool, {loop:.1f} s by xargs -P {4 * GPUS}", flush=True)
        assert all(s.ended(run)["state"] == "succeeded" for run in runs)


if __name__ == "__main__":
    main()
