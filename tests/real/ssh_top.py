#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What runs on hosts and the hosts themselves use, as top shows it, and what of it is in the record afterwards."""

import json

from harness import *  # noqa: F403
from sshsite import site

LOAD = "memory = bytearray(100 << 20)\nfor i in range(0, len(memory), 4096): memory[i] = 1\nwhile True: sum(range(1000))\n"
MIB = 1 << 20


def smi(host, meters):
    """An nvidia-smi whose GPUs are as busy as meters says: lines "PERCENT, MIB, WATTS"."""
    rows = "".join(f"echo '{i}, GPU-{i}{host.name}, 00000000:{i + 1:02X}:00.0, 81559, Fake A100'\n" for i in range(len(meters)))
    of_all = "".join(f"echo '{i}, {line}'\n" for i, line in enumerate(meters))
    of_one = "".join(f"*GPU-{i}{host.name}*) echo '{line}' ;;\n" for i, line in enumerate(meters))
    host.program("nvidia-smi", f"#!/bin/sh\ncase \"$*\" in\n*query-compute*) ;;\n*=index,utilization*)\n{of_all};;\n"
                               f"*=utilization*) case \"$*\" in {of_one}esac ;;\n*query-gpu*)\n{rows};;\nesac\n")


def top(w, word):
    return json.loads(w.ok("top", "--json", word).out)


def test_a_run_on_a_host(w):
    with site(w, gpus=1) as s:
        smi(s["gpu1"], ["50, 1024, 100.50"])
        w.write("load.py", LOAD)
        run = s.submit("--grace", "1s", "-g", "1", "--", "python3", "load.py")
        s.running(run)

        def whole():
            [seen] = top(w, run)["runs"]
            return seen if seen["now"] and None not in (seen["now"].get(k) for k in ("cpu", "gpu_busy")) and seen["usage"].get("energy_j") else None
        seen = wait_for(whole, "all that is known of it", 60)
        now = seen["now"]
        assert 0.05 < now["cpu"] < 1.5 and 100 * MIB < now["memory_bytes"] < 200 * MIB, now
        assert now["gpu_busy"] == 0.5 and now["gpu_memory_bytes"] == 1024 * MIB and now["power_w"] == 100.5, now
        table = w.ok("top", run).out
        assert re.search(rf"^{run} +running +\S+ \S+ +\d+ % +1\d\d MiB +50 % +1.0 GiB +10[01] W", table, re.M), table
        smi(s["gpu1"], ["30, 512, 50"])
        wait_for(lambda: top(w, run)["runs"][0]["now"]["gpu_busy"] == 0.3, "the next look", 40)
        w.ok("cancel", run)
        usage = s.ended(run)["usage"]
        assert usage["cpu_s"] > 1 and usage["memory_peak_bytes"] > 100 * MIB and 0.3 < usage["gpu_busy"] <= 0.5, usage
        assert usage["gpu_memory_peak_bytes"] == 1024 * MIB and usage["energy_j"] > 100, usage
        [after] = top(w, run)["runs"]
        assert after["now"] is None and after["usage"]["cpu_s"] == usage["cpu_s"], after


def test_a_short_run_has_numbers_or_none(w):
    """What was over before anybody looked did not use nothing."""
    with site(w) as s:
        assert s.follow("-g", "0", "--", "true").rc == 0
        usage = w.show("@")["usage"]
        assert usage["cpu_s"] is None or usage["memory_peak_bytes"] > 0, usage


def test_metrics_of_a_host_are_known(w):
    with site(w) as s:
        w.write("events.py", (Path(__file__).parents[2] / "examples/digits/events.py").read_bytes())
        w.write("train.py", "import os\nfrom events import EventWriter\nwith EventWriter(os.environ['DLRUN_OUTPUT_DIR']) as w:\n"
                            "    for step in range(100): w.scalars(step, acc=0.5, loss=1 / (step + 1))\n")
        run = s.submit("-g", "0", "--", "python3", "train.py")
        assert s.ended(run)["state"] == "succeeded"
        assert w.show(run)["metrics"]["loss"] == {"value": 0.01, "step": 99, "min": 0.01, "min_step": 99, "max": 1, "max_step": 0}, w.show(run)
        table = w.ok("ps", "--offline").out
        assert re.search(rf"^{run} .* 99 +loss 0.01 ", table, re.M), table
        shown = w.ok("show", run, env={"LC_ALL": "C.UTF-8"}).out
        assert re.search("^ +█[▁-█]{31}  loss: 1 to 0.01, steps 0 to 99$", shown, re.M), shown
        assert re.search(rf"^{run} +succeeded .*loss 0.01 @99 · acc 0.5 @99$", w.ok("top", run).out, re.M)


def test_the_hosts_of_a_pool(w):
    with site(w, "gpu1", "gpu2", gpus=0) as s:
        smi(s["gpu1"], ["97, 2048, 300", "0, 3, 50.25"])
        run = s.submit("--grace", "1s", "-g", "1", "--", "sleep", "600")
        s.running(run)
        found = top(w, "ssh:gpu1,gpu2")
        one, two = found["machines"]
        assert [r["id"] for r in found["runs"]] == [] and (one["host"], two["host"]) == ("gpu1", "gpu2"), found
        assert one["reachable"] and one["cpus"] >= 1 and one["load"] >= 0 and 0 < one["memory_used_bytes"] < one["memory_bytes"], one
        held, free = one["gpus"]
        assert (held["holder"], held["busy"], held["memory_used_bytes"], held["power_w"]) == (run, 0.97, 2048 * MIB, 300), held
        assert (free["holder"], free["busy"], free["memory_bytes"], free["power_w"]) == (None, 0, 81559 * MIB, 50.25), free
        assert (one["gpus_all"], one["gpus_free"], one["gpu_model"]) == (2, 1, "Fake A100") and two["gpus"] == [], found
        table = w.ok("top", "ssh:gpu1,gpu2").out
        assert re.search(r"^gpu1 +\d+ +[\d.]+ +\S+ [MG]iB of \S+ [MG]iB +1 of 2 free \(Fake A100\)$", table, re.M), table
        assert re.search(rf"^gpu1 +0 +97 % +2.0 GiB of 80 GiB +300 W +{run} +Fake A100$", table, re.M), table
        assert re.search(r"^gpu2 .* none$", table, re.M), table
        # Without words: its runs, and the host that one is on.
        found = top_of_all(w)
        assert [r["id"] for r in found["runs"]] == [run] and [m["host"] for m in found["machines"]] == ["gpu1"], found
        w.ok("cancel", run)


def top_of_all(w):
    return json.loads(w.ok("top", "--json").out)


def test_hosts_that_lie_or_do_not_answer(w):
    with site(w, "gpu1", "gpu2", gpus=1) as s:
        s["gpu1"].program("nvidia-smi", "#!/bin/sh\nprintf '0, \\033[2J, x, 99999999999999999999, \\377\\n'; head -c 3000000 /dev/zero | tr '\\0' x\n")
        s["gpu2"].program("nvidia-smi", "#!/bin/sh\ncase $* in *index,util*) printf '0, 1e9, -5, nan\\n1, 101, 0x10, inf\\n\\033[2J,,,\\n' ;;\n"
                                        "*compute*) ;; *) printf '0, GPU-0, 00000000:01:00.0, 5, \\033[31mred\\n' ;; esac\n")
        found = w.ok("top", "--json", "ssh:gpu1,gpu2")
        one, two = json.loads(found.out)["machines"]
        assert one["reachable"] and "nvidia-smi" in one["error"] and one["cpus"] >= 1 and one["gpus_all"] is None, one
        assert [two["gpus"][0][k] for k in ("busy", "power_w", "memory_used_bytes")] == [None] * 3, two
        table = w.ok("top", "ssh:gpu1,gpu2").out
        assert "\x1b" not in table and "nvidia-smi does not list" in table, table
        s["gpu1"].stop()
        done = w.ok("top", "--json", "ssh:gpu1,gpu2", timeout=60)
        one, two = json.loads(done.out)["machines"]
        assert not one["reachable"] and one["error"] and two["reachable"], done


if __name__ == "__main__":
    main()
