#!/usr/bin/env python3
"""Commands as people type them, and what dlrun says: one process each. A row is a command line of a shell and
a line that must be on stderr as it stands here; ROOT is the tree."""

import shlex

from harness import *  # noqa: F403

# Words of other tools, and ours for them.
WORDS = {
    "submit": "run start launch sbatch qsub bsub train apply create deploy up",
    "submit -f": "srun qrsh",
    "ps": "list ls jobs job runs squeue qstat status stat queue get pods",
    "ps -a": "history sacct past",
    "ps --watch": "watch monitor",
    "cancel": "stop kill scancel qdel bkill terminate abort down cancel-all",
    "rm": "delete del remove rmi erase",
    "gc": "clean cleanup prune",
    "logs -f": "attach follow tail stream",
    "logs": "log output",
    "show": "describe inspect info details scontrol",
    "why": "events reason",
    "fetch": "cp copy scp rsync pull download results artifacts sync-down",
    "--version": "version",
    "tensorboard": "tb board tensorbord",
    "exec -it": "exec-it",
    "forward": "port-forward portforward expose tunnel forwrd",
    "proxy": "ui dashboard web",
    "targets": "sinfo nodes clusters hosts target",
    "top": "gpus gpustat nvidia-smi htop stats",
    "ssh": "salloc shell bash connect",
    "push": "build images image upload",
    "restart": "resume retry rerun requeue",
    "init": "new setup configure",
    "doctor": "check login test",
    "plot": "graph metrics",
    "checkout": "clone restore code",
    "diff": "compare",
    "help": "man hepl",
    "completion": "completions",
}

LINES = [
    ("dlrun nosuchword", 2, "  hint: dlrun help"),
    ("dlrun train.py --lr 0.1", 2, "  hint: did you mean dlrun submit -- train.py --lr 0.1?"),
    ("dlrun python3 train.py 'a b'", 2, "  hint: did you mean dlrun submit -- python3 train.py 'a b'?"),
    ("dlrun ./run.sh", 2, "  hint: did you mean dlrun submit -- ./run.sh?"),
    # Durations have a unit, wherever they are read.
    ("dlrun submit --timeout 5 -- true", 2, '  hint: --timeout 5m'),
    ("dlrun submit --timeout 5 -- true", 2, 'error: --timeout: "5" needs a unit: 5s (seconds), 5m (minutes), 5h or 5d   [usage]'),
    ("dlrun submit --grace 10 -- true", 2, 'error: --grace: "10" needs a unit: 10s (seconds), 10m (minutes), 10h or 10d   [usage]'),
    ("dlrun wait --timeout 30", 2, '  hint: --timeout 30m'),
    ("dlrun gc --keep 7", 2, '  hint: --keep 7m'),
    ("DLRUN_TIMEOUT=90 dlrun submit -- true", 2,
     'error: DLRUN_TIMEOUT: timeout: "90" needs a unit: 90s (seconds), 90m (minutes), 90h or 90d   [config]'),
    # Runs that are left out.
    ("dlrun exec nvidia-smi", 5, "  hint: dlrun exec -- nvidia-smi"),
    ("dlrun forward @", 2, "  hint: dlrun forward @ 6006"),
]


def tree(w):
    w.repo({"train.py": "import sys\nprint('train', *sys.argv[1:])\n", "run.sh": "echo run $*\n", "conf.yaml": "a: 1\n",
            "exp/b.py": "print('b')\n", "data/x": "1\n", ".gitignore": "left/\n.venv/\n"})
    (w.tree / "run.sh").chmod(0o755)
    (w.dir / "bin").mkdir()
    (w.dir / "bin/dlrun").symlink_to(w.dlrun)
    w.env["PATH"] = f"{w.dir / 'bin'}:{w.env['PATH']}"


def typed(w, line):
    return w.command(["sh", "-c", line])


def check_lines(w, rows):
    wrong = []
    for line, rc, said in rows:
        result = typed(w, line)
        if result.rc != rc or said.replace("ROOT", str(w.tree)) not in result.err.splitlines():
            wrong.append(f"$ {line}\n  exit {result.rc}, not {rc} with {said!r}:\n{result.err}")
    assert not wrong, "\n".join(wrong)


def test_words_of_other_tools(w):
    tree(w)
    rows = [(f"dlrun {word}", 2, f"  hint: did you mean dlrun {ours}?") for ours, words in WORDS.items() for word in words.split()]
    check_lines(w, rows)
    answer = json.loads(typed(w, "dlrun squeue --me --json").out)
    assert answer["error"]["id"] == "usage.command" and answer["error"]["hint"] == "did you mean dlrun ps?", answer


def test_lines_and_what_is_said(w):
    tree(w)
    check_lines(w, LINES)
    assert not w.traces(), "what was refused has left something"


def test_a_run_that_is_left_out_is_the_newest(w):
    tree(w)
    assert w.run("wait").rc == 5 and w.run("diff").rc == 5
    w.ok("submit", "-d", "--", "true")
    run = w.ok("submit", "-d", "--", "sh", "-c", "sleep 600").out.strip()
    wait_for(lambda: w.show(run)["state"] == "running", "the run is running")
    assert w.ok("exec", "--", "sh", "-c", "echo $DLRUN_RUN_ID").out.strip() == run
    result = w.run("exec", run)
    assert result.rc == 2 and f"  hint: dlrun exec {run} -- nvidia-smi" in result.err, result
    w.write("new.py", "1\n")
    assert "new.py" in w.ok("diff").out
    result = w.run("restart")
    assert run in result.err and "run.running" in result.err, result
    w.ok("cancel", run)
    assert w.run("wait").rc == 143
    assert f"{run}, attempt 2" in w.ok("restart").err
    w.ok("cancel", run)


if __name__ == "__main__":
    main()
