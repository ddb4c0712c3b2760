#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Commands in what a run has left, and lists of many runs on small terminals."""

import contextlib
import json
import re

from cluster_forward import Terminal
from harness import *  # noqa: F403


def ended(w, *words, **more):
    run = w.ok("submit", "-d", *words, **more).out.strip()
    w.run("wait", run)
    return run


def test_commands_that_cannot_be_executed(w):
    w.repo({"plain": "", "odd": "#!/nonexistent/interpreter\n"})
    (w.tree / "odd").chmod(0o755)
    run = ended(w, "--", "true")
    for word, code, id in (("no-such-program", 127, "exec.not_found"), ("./no-such-file", 127, "exec.not_found"),
                           ("./odd", 127, "exec.not_found"), ("./plain", 126, "exec.not_executable"),
                           (".", 126, "exec.not_executable"), ("./plain/x", 126, "exec.not_executable")):
        w.refused("exec", run, "--", word, id=id, rc=code, says=word)
    error = json.loads(w.run("exec", "--json", run, "--", "./plain").out)["error"]
    assert error["exit"] == 126, error


def test_commands_in_the_tree_of_a_run_that_has_ended(w):
    w.repo({"exp/train.py": "open('made', 'w').write('by the program\\n'); raise SystemExit(3)\n",
            "dlrun.yaml": "before: export FROM_BEFORE=lines\nsecrets: [CANARY]\n"})
    run = ended(w, "-e", "OWN=mine", "--", "python3", "train.py", cwd=w.tree / "exp", env={"CANARY": "tweet"})
    assert w.show(run)["exit"]["code"] == 3
    w.write("exp/train.py", "another\n")
    line = "echo $OWN $FROM_BEFORE $DLRUN_RUN_ID ${CANARY-none}; ls; cat made"
    assert w.ok("exec", run, "--", "sh", "-c", line).out == f"mine lines {run} none\nmade\ntrain.py\nby the program\n"
    told = w.ok("exec", run, "--", "sh", "-c", line, env={"CANARY": "again"})
    assert told.out.startswith(f"mine lines {run} again\n"), told
    assert w.run("exec", run, "--", "sh", "-c", "exit 9").rc == 9
    for word, code in ("no-such-program", 127), ("./train.py", 126):
        assert w.run("exec", run, "--", word).rc == code
    assert w.ok("ssh", run, "--", "cat", "made").out == "by the program\n"
    # What it changes there is the tree's, and the program's own results are as they were.
    w.ok("exec", run, "--", "sh", "-c", "echo more >>made")
    assert w.show(run)["state"] == "failed"
    w.ok("gc", "--keep", "0s")
    w.refused("exec", run, "--", "true", id="run.ended", rc=1, says=["its tree is gone", f"dlrun checkout {run} {run}"])
    w.ok("checkout", run, w.dir / "code")
    assert (w.dir / "code/exp/train.py").read_text().startswith("open('made'")


def test_commands_have_the_environment_of_a_setup(w):
    w.repo({"setup.sh": "mkdir -p .venv/bin && echo 'home = /usr/bin' >.venv/pyvenv.cfg && printf '#!/bin/sh\\necho tool\\n' >.venv/bin/tool"
                        " && chmod +x .venv/bin/tool && ln -s \"$(command -v python3)\" .venv/bin/python\n",
            "dlrun.yaml": "setup:\n  run: sh setup.sh\n  key: [setup.sh]\n", ".gitignore": ".venv/\n"})
    run = ended(w, "--", "sh", "-c", "tool; exit 1")
    assert w.ok("logs", run).out == "tool\n"
    shown = w.ok("exec", run, "--", "sh", "-c", "tool; echo $VIRTUAL_ENV").out.split("\n")
    assert shown[0] == "tool" and shown[1].endswith("/.venv"), shown


def test_a_list_that_is_watched_keeps_its_heading(w):
    w.repo({"a.txt": "a\n"})
    w.ok("submit", "-d", "--", "sleep", "600")
    for _ in range(9):
        ended(w, "--", "true")
    with contextlib.closing(Terminal(w, w.dlrun, "ps", "--watch", "-a", size=(10, 50))) as terminal:
        wait_for(lambda: terminal.seen.count(b"\x1b[H\x1b[J") >= 2, "the second drawing")
        frame = terminal.seen.split(b"\x1b[H\x1b[J")[1].decode()
        lines = re.sub(r"\x1b\[[0-9;]*m", "", frame).split("\r\n")
        assert lines[0].startswith("ID ") and len(lines) <= 10, lines
        assert all(len(line) <= 50 for line in lines), lines
        assert any("sleep 600" in line for line in lines), "what runs is not left out"
        terminal.type(b"\x03")
        assert terminal.process.wait(30) == 130
    w.ok("cancel", "@-9")


def answered(w, answer, *args):
    with contextlib.closing(Terminal(w, w.dlrun, "rm", *args)) as terminal:
        terminal.wait_for(b"[y/N]")
        terminal.type(answer)
        status = terminal.process.wait(30)
        terminal.wait_for(b"removed")
        return status, terminal.seen


def test_large_results_are_not_removed_unasked(w):
    w.repo({"a.txt": "a\n"})
    large = 'dd if=/dev/zero of="$DLRUN_OUTPUT_DIR/big" bs=1048576 count=120 2>/dev/null && ln "$DLRUN_OUTPUT_DIR/big" "$DLRUN_OUTPUT_DIR/same"'
    run, small = ended(w, "--", "sh", "-c", large), ended(w, "--", "true")
    w.refused("rm", run, small, id="usage", rc=2, says=["2 runs with", "MiB", f"dlrun rm --force {run} {small}"])
    status, seen = answered(w, b"n\n", run)
    assert status == 1 and b"remove 1 run and 120 MiB of results?" in seen and b"nothing was removed" in seen, seen
    assert len(w.runs()) == 2
    status, seen = answered(w, b"y\n", run)
    assert status == 0 and b"record, log and 120 MiB of results" in seen, seen
    assert w.ok("rm", small).err == f"removed {small}: record, log and outputs\n"
    run = ended(w, "--", "sh", "-c", large)
    assert "120 MiB" in w.ok("rm", "-f", run).err and not w.runs()


if __name__ == "__main__":
    main()
