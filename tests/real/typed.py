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


PRINT = "import os, sys\nfor a in sys.argv[1:]: print(a)\nprint(os.path.realpath(__file__), os.environ.get('CONF'), os.getcwd(), sep='|')\n"

# What is typed, and what the program sees: ROOT is the live tree, OWN the run's. None: the same.
PATHS = [
    ("ROOT/conf.yaml", "OWN/conf.yaml"),
    ("--config=ROOT/conf.yaml", "--config=OWN/conf.yaml"),
    ("-cROOT/conf.yaml", "-cOWN/conf.yaml"),
    ("-IROOT/exp", "-IOWN/exp"),
    ("data.path=ROOT/exp", "data.path=OWN/exp"),
    ("+a.b=ROOT/exp/b.py", "+a.b=OWN/exp/b.py"),
    ("ROOT", "OWN"),
    ("ROOT/", "OWN"),
    ("ROOT/exp/", "OWN/exp/"),
    ("ROOT//exp/../exp/./b.py", "OWN/exp/b.py"),
    ("--list=ROOT/exp:/usr:ROOT/conf.yaml", "--list=OWN/exp:/usr:OWN/conf.yaml"),
    ("ROOT/exp,ROOT/conf.yaml", "OWN/exp,OWN/conf.yaml"),
    ("file://ROOT/conf.yaml", "file://OWN/conf.yaml"),
    ("@ROOT/conf.yaml", "@OWN/conf.yaml"),
    ("ROOT/exp/*.py", "OWN/exp/*.py"),
    ("../tree/conf.yaml", "OWN/conf.yaml"),
    ("./../tree/exp", "OWN/exp"),
    ("ALIAS/conf.yaml", "OWN/conf.yaml"),
    ("~/../tree/conf.yaml", "OWN/conf.yaml"),
    ("ROOT/link/b.py", "OWN/link/b.py"),
    ("ROOT/a b.txt", "OWN/a b.txt"),
    ("ROOT/a=b,c:d", "OWN/a=b,c:d"),
    ("ROOT/new/made.pt", "OWN/new/made.pt"),
    ("--out=ROOT/out", "--out=OWN/out"),
    # What is not below the root stays as it is.
    ("conf.yaml", None),
    ("./conf.yaml", None),
    ("exp/../conf.yaml", None),
    ("/etc/passwd", None),
    ("../other", None),
    ("ROOTs/conf.yaml", None),
    ("/", None),
    ("//", None),
    ("..", None),
    ("=", None),
    (":::", None),
    ("~", None),
    ("", None),
    ("--lr=0.1", None),
    ("https://example.com/a:b", None),
    ("${DLRUN}", None),
]


def test_paths_of_the_live_tree_are_the_runs_own(w):
    tree(w)
    w.repo({"train.py": PRINT, "a b.txt": "1", "a=b,c:d": "1"})
    (w.tree / "link").symlink_to("exp")
    (w.dir / "alias").symlink_to(w.tree)

    def real(text, own=None):
        return text.replace("ROOT", str(w.tree)).replace("ALIAS", str(w.dir / "alias")).replace("OWN", own or "")

    result = w.ok("submit", "-f", "-e", real("CONF=/usr/bin:ROOT/exp:ROOT"), "--", "python3", real("ROOT/train.py"),
                  *(real(typed) for typed, _ in PATHS))
    *seen, last = result.out.split("\n")[:-1]
    own = last.split("|")[2]
    assert own.endswith("/tree") and own != str(w.tree), last
    wrong = [(typed, got) for (typed, wanted), got in zip(PATHS, seen, strict=True)
             if got != real(typed if wanted is None else wanted, own)]
    assert not wrong, wrong
    assert last == f"{own}/train.py|/usr/bin:{own}/exp:{own}|{own}", last
    assert f"paths below {w.tree} are the run's own: train.py, conf.yaml, exp, exp/b.py, . and " in result.err, result
    assert "warning" not in result.err, result
    assert w.show()["command"][:4] == ["python3", "train.py", "conf.yaml", "--config=conf.yaml"], w.show()["command"]


def test_the_own_paths_of_each_attempt(w):
    """A restart runs in another tree, and --from the same code again."""
    w.repo({"train.py": PRINT + "sys.exit(3)\n", "exp/x": "1"})
    args = ["python3", f"{w.tree}/train.py", f"{w.tree}/exp"]
    assert w.run("submit", "-f", "-e", f"CONF={w.tree}/exp", "--", *args).rc == 3
    run = w.show()["id"]
    w.write("train.py", "print('the live tree')\n")
    for argv, tree in ((("restart", "-f", run), f"{run}/attempts/2/tree"), (("submit", "-f", "--from", run), "attempts/1/tree")):
        result = w.run(*argv)
        path, script = result.out.splitlines()
        assert result.rc == 3 and path.endswith(tree + "/exp") and script.startswith(path[:-4] + "/train.py|" + path + "|"), result


def test_paths_that_the_snapshot_lacks(w):
    w.repo({"a": "1", "exp/b": "1", ".gitignore": "left/\n.venv/\n/data\n"})
    w.write("left/x", "1")
    w.write("data/d", "1")
    w.write(".venv/pyvenv.cfg", "1")
    (w.dir / "bin").mkdir()
    missing = "is not in the snapshot, so the run would use your working tree: name it in dlrun.yaml as `data: [%s]`"
    for word in ("left/x", "left", "left/new/y", "data/d"):
        result = w.ok("submit", "-f", "--", "echo", f"--in={w.tree}/{word}")
        assert f"warning: {w.tree}/{word} {missing % word}" in result.err and result.out == f"--in={w.tree}/{word}\n", result
    w.write("dlrun.yaml", "data: [data]\noutputs: [out]\n")
    result = w.ok("submit", "-f", "--", "sh", "-c", 'ls "$0" && echo "$1"', f"{w.tree}/data", f"{w.tree}/out/m.pt")
    first, second = result.out.splitlines()
    assert first == "d" and second.endswith("/attempts/1/tree/out/m.pt") and "warning" not in result.err, result
    result = w.ok("submit", "-f", "--", "echo", f"{w.tree}/.venv/lib")
    assert result.out == f"{w.tree}/.venv/lib\n" and "warning" not in result.err, result
    line = f"names your working tree ({w.tree}), which the run would go back to: use relative paths"
    for words in (("sh", "-c", f"cd {w.tree} && ls"), ("python3", "-c", f"import sys; sys.path.insert(0, '{w.tree}')"),
                  ("echo", f'{{"path": "{w.tree}/exp"}}')):
        assert f"warning: the command {line}" in w.ok("submit", "--dry-run", "--", *words).err, words
    w.write("dlrun.yaml", f"command: cd {w.tree} && ls\nbefore: export PYTHONPATH={w.tree}\n")
    result = w.ok("submit", "--dry-run")
    assert f"warning: the command line {line}" in result.err and f"warning: before: {line}" in result.err, result


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
