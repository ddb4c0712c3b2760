#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Commands as people type them, and what dlrun says: one process each. A row is a command line of a shell and
a line that must be on stderr as it stands here; ROOT is the tree."""

import shlex

from harness import *  # noqa: F403

# Words of other tools, and ours for them.
WORDS = {
    "submit": "run start launch sbatch qsub bsub train apply create deploy up",
    "submit -f": "srun qrsh",
    "ps": "list ls jobs job runs squeue qstat status stat get pods",
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
    "bake": "bak baek",
    "warm": "prefetch prepull warmup",
    "autoscale": "autoscaler",
    "data": "dataset datasets volumes",
    "restart": "resume retry rerun requeue",
    "init": "new setup configure",
    "doctor": "check login test",
    "plot": "graph metrics",
    "checkout": "clone restore code",
    "help": "man hepl",
    "completion": "completions",
}

LINES = [
    ("dlrun nosuchword", 2, "  hint: dlrun help"),
    ("dlrun train.py --lr 0.1", 2, "  hint: did you mean dlrun submit -- train.py --lr 0.1?"),
    ("dlrun python3 train.py 'a b'", 2, "  hint: did you mean dlrun submit -- python3 train.py 'a b'?"),
    ("dlrun ./run.sh", 2, "  hint: did you mean dlrun submit -- ./run.sh?"),
    ("dlrun submit --dependency afterok:1234 -- true", 2, "  --dependency: to begin after a run: --after RUN, or --after RUN:any"),
    ("dlrun submit --after nosuch -- true", 5, "error: --after: there is no run 'nosuch'   [run.not_found]"),
    # Durations have a unit, wherever they are read.
    ("dlrun submit --timeout 5 -- true", 2, '  hint: --timeout 5m'),
    ("dlrun submit --timeout 5 -- true", 2, 'error: --timeout: "5" needs a unit: 5s (seconds), 5m (minutes), 5h or 5d   [usage]'),
    ("dlrun submit --grace 10 -- true", 2, 'error: --grace: "10" needs a unit: 10s (seconds), 10m (minutes), 10h or 10d   [usage]'),
    ("dlrun submit -t local,kube --wait-for kube=30 -- true", 2,
     'error: --wait-for kube=30: "30" needs a unit: 30s (seconds), 30m (minutes), 30h or 30d   [usage]'),
    ("dlrun submit -t local --wait-for local=5m -- true", 2,
     "error: --wait-for requires several targets: there is only local   [usage]"),
    ("dlrun submit -t local,locla -- true", 2, "  hint: did you mean local?"),
    ("dlrun submit -t local,local -- true", 2, "error: 'local,local' names target local twice   [usage]"),
    ("dlrun submit -t local, -- true", 2, "error: 'local,' names no target before or after a comma   [usage]"),
    ("dlrun targets --gpus --offline", 2, "error: --gpus and --offline cannot be used together   [usage]"),
    ("dlrun targets --recipe ansible", 2, "error: --recipe ansible is for SSH hosts, and target local is not one   [usage]"),
    ("dlrun targets --diff --offline", 2, "error: --diff and --offline cannot be used together   [usage]"),
    ("dlrun wait --timeout 30", 2, '  hint: --timeout 30m'),
    ("dlrun gc --keep 7", 2, '  hint: --keep 7m'),
    ("DLRUN_TIMEOUT=90 dlrun submit -- true", 2,
     'error: DLRUN_TIMEOUT: timeout: "90" needs a unit: 90s (seconds), 90m (minutes), 90h or 90d   [config]'),
    # Runs that are left out.
    ("dlrun exec nvidia-smi", 5, "  hint: dlrun exec -- nvidia-smi"),
    ("dlrun forward @", 2, "  hint: dlrun forward @ 6006"),
]


# What only a shell understands is refused, with the line to paste.
SHELL = [
    ("'python train.py --lr 1'", "python train.py --lr 1"),
    ("'CUDA_VISIBLE_DEVICES=0 python train.py'", "CUDA_VISIBLE_DEVICES=0 python train.py"),
    ("'./run.sh a'", "./run.sh a"),
    ("' python  train.py'", "python  train.py"),
    ("'python train.py' --lr 1", "python train.py --lr 1"),
    ("'python train.py' 'a b'", "python train.py 'a b'"),
    ("'/usr/bin/env python train.py'", "/usr/bin/env python train.py"),
    ("'cd exp && python b.py'", "sh -c 'cd exp && python b.py'"),
    ("'source venv/bin/activate && python train.py'", "bash -c 'source venv/bin/activate && python train.py'"),
    ("'python train.py | tee log'", "sh -c 'python train.py | tee log'"),
    ("'python train.py > log 2>&1'", "sh -c 'python train.py > log 2>&1'"),
    ("'echo \"a b\"'", "sh -c 'echo \"a b\"'"),
    ("'echo $HOME'", "sh -c 'echo $HOME'"),
    ("'for i in 1 2; do echo $i; done'", "sh -c 'for i in 1 2; do echo $i; done'"),
    ("'[[ -f x ]] && echo y'", "bash -c '[[ -f x ]] && echo y'"),
    ("'cd exp'", "sh -c 'cd exp'"),
    ("cd exp '&&' python b.py", "sh -c 'cd exp && python b.py'"),
    ("python a.py '&&' python b.py", "sh -c 'python a.py && python b.py'"),
    ("python a.py '||' true", "sh -c 'python a.py || true'"),
    ("python3 train.py '|' tee log.txt", "sh -c 'python3 train.py | tee log.txt'"),
    ("python3 train.py '|&' tee log.txt", "bash -c 'python3 train.py |& tee log.txt'"),
    ("python3 train.py '>' log.txt", "sh -c 'python3 train.py > log.txt'"),
    ("python3 train.py '>>' log.txt", "sh -c 'python3 train.py >> log.txt'"),
    ("python3 train.py '<' conf.yaml", "sh -c 'python3 train.py < conf.yaml'"),
    ("python3 train.py '2>&1'", "sh -c 'python3 train.py 2>&1'"),
    ("python3 train.py '2>' err.txt", "sh -c 'python3 train.py 2> err.txt'"),
    ("python3 train.py '&>' all.txt", "bash -c 'python3 train.py &> all.txt'"),
    ("python3 train.py '>' log.txt '2>&1'", "sh -c 'python3 train.py > log.txt 2>&1'"),
    ("python3 train.py '2>/dev/null'", "sh -c 'python3 train.py 2>/dev/null'"),
    ("python3 train.py '&'", "sh -c 'python3 train.py &'"),
    ("python3 a.py ';' python3 b.py", "sh -c 'python3 a.py ; python3 b.py'"),
    ("python3 a.py --name 'x y' '&&' echo ok", r"sh -c 'python3 a.py --name '\''x y'\'' && echo ok'"),
    ("cd exp", "sh -c 'cd exp && python3 train.py'"),
    ("source venv/bin/activate", "bash -c 'source venv/bin/activate && python3 train.py'"),
    (". ./env.sh", "sh -c '. ./env.sh && python3 train.py'"),
    ("export LR=0.1", "sh -c 'export LR=0.1 && python3 train.py'"),
    ("set -e", "sh -c 'set -e && python3 train.py'"),
    ("ulimit -n 4096", "sh -c 'ulimit -n 4096 && python3 train.py'"),
    ("alias py=python3", "sh -c 'alias py=python3 && python3 train.py'"),
    ("unset CUDA_VISIBLE_DEVICES", "sh -c 'unset CUDA_VISIBLE_DEVICES && python3 train.py'"),
    ("pushd exp", "bash -c 'pushd exp && python3 train.py'"),
    ("eval echo a", "sh -c 'eval echo a'"),
    ("exec python3 train.py", "sh -c 'exec python3 train.py'"),
    ("'[[' -f x ']]'", "bash -c '[[ -f x ]]'"),
    ("conda activate ml", "conda run -n ml python3 train.py"),
    ("LR=0.1 cd exp", "sh -c 'cd exp && python3 train.py'"),
]

# These are no lines for a shell.
PLAIN = ["[ 1 -lt 2 ]", "'a b.sh'", "'./a b.sh'", "sh -c 'cd exp && ls > /dev/null'", "cut -d '|' -f1 conf.yaml",
         "cut -d ';' -f1 conf.yaml", "find . -name x -exec echo {} ';'", "expr 1 '<' 2", "test a '<' b", "grep -c '>' run.sh",
         "tr ';' ','", "echo '>=1.0'", "echo '<s>'", "echo 'a && b'", "echo a=b", "python3 -c 'a = 1; b = 2'", "python3 -c ';' ';'",
         "awk -F '|' '{print $1}' conf.yaml", "sort -t '&' conf.yaml", "printf '%s' '|'", "env A=b true",
         "true ''", "echo '*'", "echo '$HOME'", "echo '~'", "grep '|' conf.yaml"]

# What has one meaning is done, and said: the command that runs, and the note.
STARTS = [
    ("train.py --lr 0.1", "python3 train.py --lr 0.1", "train.py is a file of the working tree: it runs as python3 train.py"),
    ("./train.py", "python3 ./train.py", "./train.py is a file of the working tree: it runs as python3 ./train.py"),
    ("exp/b.py", "python3 exp/b.py", "exp/b.py is a file of the working tree: it runs as python3 exp/b.py"),
    ("run.sh a", "./run.sh a", "run.sh is a file of the working tree: it runs as ./run.sh"),
    ("plain.sh a", "sh plain.sh a", "plain.sh is a file of the working tree: it runs as sh plain.sh"),
    ("bang.sh", "/usr/bin/env bash bang.sh", "bang.sh is a file of the working tree: it runs as /usr/bin/env bash bang.sh"),
    ("words", "/bin/sh -e words", "words is a file of the working tree: it runs as /bin/sh -e words"),
    ("'a b.sh' c", "'./a b.sh' c", "a b.sh is a file of the working tree: it runs as './a b.sh'"),
    ("nobang.py", "python3 nobang.py", "nobang.py is a file of the working tree: it runs as python3 nobang.py"),
    ("model.R", "Rscript model.R", "model.R is a file of the working tree: it runs as Rscript model.R"),
    ("ROOT/train.py", "python3 train.py", "ROOT/train.py is a file of the working tree: it runs as python3 ROOT/train.py"),
    ("LR=0.1 python3 train.py", "python3 train.py", "LR: set for the program, as a shell does"),
    ("LR=0.1 B='a b' train.py", "python3 train.py", "LR, B: set for the program, as a shell does"),
    ("LR= train.py --x", "python3 train.py --x", "LR: set for the program, as a shell does"),
    ("./run.sh a", "./run.sh a", None),
    ("python3 train.py lr=0.1", "python3 train.py lr=0.1", None),
    ("/bin/echo a", "/bin/echo a", None),
    ("echo train.py", "echo train.py", None),
]


def tree(w):
    w.repo({"train.py": "import sys\nprint('train', *sys.argv[1:])\n", "run.sh": "echo run $*\n", "conf.yaml": "a: 1\n",
            "exp/b.py": "print('b')\n", "data/x": "1\n", ".gitignore": "left/\n.venv/\n", "a b.sh": "#!/bin/sh\n",
            "plain.sh": "echo plain $*\n", "bang.sh": "#!/usr/bin/env bash\n", "words": "#! /bin/sh -e\n", "model.R": "1\n",
            "nobang.py": "print(1)\n"})
    for path in ("run.sh", "a b.sh", "nobang.py"):
        (w.tree / path).chmod(0o755)
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


# Options of other tools in front of the command, and the whole line as ours. None: no such line.
FOREIGN = [
    ("--gres=gpu:2 -- python3 train.py", "-g 2 -- python3 train.py"),
    ("--gres gpu -- python3 train.py", "-g 1 -- python3 train.py"),
    ("--gres=gpu:a100:4 --mem=16G --time=01:30:00 -- python3 train.py",
     "-g 4 --gpu-type a100 --memory 16G --timeout 90m -- python3 train.py"),
    ("--gpus-per-node=h100:8 --num-nodes 2 -- python3 train.py", "-g 8 --gpu-type h100 -N 2 -- python3 train.py"),
    ("--gpus A100:2 -- python3 train.py", "-g 2 --gpu-type A100 -- python3 train.py"),
    ("--gpus all -- python3 train.py", "-- python3 train.py"),
    ("--gpu 2 -- python3 train.py", "-g 2 -- python3 train.py"),
    ("-G 2 train.py", "-g 2 -- train.py"),
    ("--num-gpus 1 train.py", "-g 1 -- train.py"),
    ("--ntasks 4 -- python3 train.py", "-- python3 train.py"),
    ("--ntasks-per-node=4 -- python3 train.py", "-- python3 train.py"),
    ("--cpus-per-task=8 -- python3 train.py", "--cpus 8 -- python3 train.py"),
    ("-c 8 train.py", "--cpus 8 -- train.py"),
    ("-c8 train.py", "--cpus 8 -- train.py"),
    ("--mem-per-cpu 4G -- true", "-- true"),
    ("--mem 16000 --rm -- true", "--memory 16000Mi -- true"),
    ("--job-name=a -- true", "-n a -- true"),
    ("-J a -- true", "-n a -- true"),
    ("--time 90 -- true", "--timeout 90m -- true"),
    ("--time=1-12 -- true", "--timeout 36h -- true"),
    ("--time=1-00:30:00 -- true", "--timeout 1470m -- true"),
    ("--time=30:15 -- true", "--timeout 1815s -- true"),
    ("--walltime 02:00:00 -- true", "--timeout 2h -- true"),
    ("--partition gpu -- true", "--queue gpu -- true"),
    ("-p gpu -- true", "--queue gpu -- true"),
    ("-p 8080:80 -- true", "--port 80 -- true"),
    ("--publish=6006 -- true", "--port 6006 -- true"),
    ("--qos=high -- true", "--priority high -- true"),
    ("--nodelist gpu1,gpu2 -- true", "-t ssh:gpu1,gpu2 -- true"),
    ("--constraint=a100 -- true", "--gpu-type a100 -- true"),
    ("--error err.txt -- true", "-- true"),
    ("--array=0-9 -- true", "-- true"),
    ("--dependency=afterok:1 -- true", "-- true"),
    ("--export=ALL,LR=0.1 -- true", "-e 'LR=0.1' -- true"),
    ("--account=me -- true", "-- true"),
    ("--exclusive -- true", "-- true"),
    ("--requeue -- true", "--retries 1 -- true"),
    ("--parsable -- true", "-d -- true"),
    ("--wrap 'python3 train.py'", "-- sh -c 'python3 train.py'"),
    ("--chdir=exp -- python3 b.py", "-C exp -- python3 b.py"),
    ("-D exp -- python3 b.py", "-C exp -- python3 b.py"),
    ("--cluster gpu -- true", "-t gpu -- true"),
    ("--cloud aws -- true", "-- true"),
    ("--idle-minutes-to-autostop 10 -- true", "-- true"),
    ("--detach-run -- true", "-d -- true"),
    ("--env-file .env -- true", "-- true"),
    ("--it -- true", "-f -- true"),
    ("-it -- true", "-f -- true"),
    ("-it --rm -v /data:/data -- python3 train.py", "-f -- python3 train.py"),
    ("--rm -- true", "-- true"),
    ("-v /data:/data -- true", "-- true"),
    ("-v ./data:/data true", "-- true"),
    ("-v ~/data:/data:ro true", "-- true"),
    ("--volume a:/b -- true", "-- true"),
    ("--mount type=bind,src=/a,dst=/b -- true", "-- true"),
    ("-w /src -- true", "-C /src -- true"),
    ("--shm-size=8g -- true", "-- true"),
    ("--entrypoint sh -- true", "-- true"),
    ("--restart on-failure:5 -- true", "--retries 5 -- true"),
    ("--restart=Never -- true", "-- true"),
    ("--restart=OnFailure -- true", "--retries 3 -- true"),
    ("--limits=nvidia.com/gpu=1,memory=4Gi,cpu=2 -- true", "-g 1 --memory 4Gi --cpus 2 -- true"),
    ("--requests cpu=500m -- true", "--cpus 500m -- true"),
    ("--labels a=b,c=d -- true", "--tag 'a=b' --tag 'c=d' -- true"),
    ("--namespace me -- true", "-- true"),
    ("--working-dir exp -- python3 b.py", "-C exp -- python3 b.py"),
    ("--submission-id a -- true", "-n a -- true"),
    ("--no-wait -- true", "-d -- true"),
    ("--entrypoint-num-gpus 1 -- true", "-g 1 -- true"),
    ("--nproc_per_node=4 train.py --lr 0.1", "-- torchrun --nproc_per_node=4 train.py --lr 0.1"),
    ("--nproc-per-node 4 --nnodes 2 -- torchrun train.py", "-N 2 -- torchrun --nproc-per-node=4 train.py"),
    ("--standalone --nproc_per_node=gpu -- python3 train.py", "-- torchrun --nproc_per_node=gpu train.py"),
    ("--num_processes 4 --mixed_precision bf16 train.py", "-- accelerate launch --num_processes=4 --mixed_precision=bf16 train.py"),
    ("-e A=1 --gres=gpu:1 -n 'a b' -- echo 'a  b'", "-e 'A=1' -g 1 -n 'a b' -- echo 'a  b'"),
    ("-dn x --gres gpu:1 -- true", "-dn x -g 1 -- true"),
    ("--frobnicate 1 -- true", None),
    ("--gres=gpu:2 --frobnicate 1 -- true", None),
    ("--timeout 5 -- true", None),
    ("--gres", None),
]

# What has no option here is said, beside the line.
FOREIGN_SAID = [
    ("--ntasks 4 -- true", "  --ntasks: one program is started on each node (-N); torchrun --nproc_per_node starts more"),
    ("--rm -- true", "  --rm is not needed"),
    ("--gpus all -- true", "  --gpus all: -g N says how many"),
    ("-v /data:/data -- true", "error: -v makes dlrun verbose, it does not mount /data:/data   [usage.option]"),
    ("-v /data:/data -- true", "  -v: data: in dlrun.yaml names data of the tree, volumes: those of a cluster"),
    ("--env-file .env -- true", "  --env-file: set -a; . ./.env; set +a, then -e NAME or --secret NAME takes it from this shell"),
    ("--array 1-3 -- true", "  --array: a run is one program: submit once for each"),
    ("--output log.txt -- true", "error: --output is a format of --dry-run, yaml or json, not 'log.txt'   [usage]"),
    ("--memory 16000 -- true", "  hint: dlrun submit --memory 16000Mi -- true"),
    ("--mem=16000 -- true", "error: --memory: 16000 bytes are less than any program needs   [usage]"),
]


def test_options_of_other_tools(w):
    tree(w)
    wrong = []
    for line, ours in FOREIGN:
        result = typed(w, f"dlrun submit {line}")
        hint = f"  hint: did you mean dlrun submit {ours}?".replace("~", w.env["HOME"])
        if result.rc != 2 or (hint not in result.err.splitlines() if ours else "did you mean dlrun submit" in result.err):
            wrong.append(f"$ {line}\n  not {ours!r}:\n{result.err}")
    assert not wrong, "\n".join(wrong)
    check_lines(w, [(f"dlrun submit {line}", 2, said) for line, said in FOREIGN_SAID])
    assert not w.traces(), "what was refused has left something"
    # What is pasted is accepted, and what stands behind the command is the program's.
    line = "--job-name=a --nproc_per_node=2 --rm -- train.py"
    hint = typed(w, f"dlrun submit {line}").err.split("did you mean ")[1].replace("?\n", "")
    assert "command   torchrun --nproc_per_node=2 train.py\n" in typed(w, hint.replace("submit", "submit --dry-run")).out, hint
    assert w.ok("submit", "-f", "echo", "--gres=gpu:2", "-v", "/data:/data").out == "--gres=gpu:2 -v /data:/data\n"
    # A file of the tree that is called so is a program.
    assert w.ok("submit", "--dry-run", "-v", "./run.sh").rc == 0


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


def test_what_is_typed_behind_from(w):
    """As without it: paths are those of the earlier code, which the live tree does not have any more."""
    w.repo({"train.py": PRINT, "exp/b.sh": "echo b $*\n", "exp/x": "1", "run.sh": "#!/bin/sh\necho run $*\n"})
    (w.tree / "run.sh").chmod(0o755)
    run = w.ok("submit", "-d", "--", "true").out.strip()
    w.ok("wait", run)
    image = w.show(run)["image"]["ref"]
    for path in ("train.py", "exp/b.sh", "run.sh"):
        (w.tree / path).unlink()
    w.write("new.py", "print('the live tree')\n")
    for source in (run, image):
        for words, out in (((f"python3", f"{w.tree}/train.py", f"--x={w.tree}/exp"), "--x=OWN/exp\nOWN/train.py|None|OWN\n"),
                           (("train.py", "a"), "a\nOWN/train.py|None|OWN\n"), ((f"{w.tree}/train.py",), "OWN/train.py|None|OWN\n"),
                           (("exp/b.sh", "1"), "b 1\n"), (("run.sh", f"{w.tree}/exp"), "run OWN/exp\n")):
            result = w.ok("submit", "-f", "--from", source, "--", *words)
            own = str(w.state / "runs" / w.show()["id"] / "attempts/1/tree")
            assert result.out.replace(own, "OWN") == out and "warning" not in result.err, (source, words, result)
        result = w.ok("submit", "-f", "--from", source, "-e", f"CONF={w.tree}/exp", "--", "sh", "-c", "echo $CONF")
        assert result.out.endswith("/attempts/1/tree/exp\n"), result
        result = w.ok("submit", "--dry-run", "--from", source, "--", "cat", f"{w.tree}/new.py")
        assert f"warning: {w.tree}/new.py is not in the snapshot" in result.err and f"code      that of {source}\n" in result.err, result
        assert "command   cat " in result.out, result
    assert w.run("submit", "-f", "--from", run, "--", "new.py").rc == 127


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


def test_lines_for_a_shell_are_refused(w):
    tree(w)
    check_lines(w, [(f"dlrun submit -- {line}", 2, f"  hint: dlrun submit -- {hint}") for line, hint in SHELL])
    assert not w.traces(), "what was refused has left something"
    # What is pasted is accepted, and means that.
    for line in ("'cd exp && python3 b.py'", "cd exp '&&' python3 b.py '|' cat"):
        hint = typed(w, f"dlrun submit -- {line}").err.split("hint: ")[1]
        assert typed(w, hint.replace("submit", "submit -f")).out == "b\n", hint


def test_words_that_only_look_like_those_of_a_shell(w):
    tree(w)
    wrong = [(line, result) for line in PLAIN if (result := typed(w, f"dlrun submit --dry-run -- {line}")).rc]
    assert not wrong, wrong


def test_commands_as_they_are_typed(w):
    tree(w)
    wrong = []
    for line, runs, note in STARTS:
        result = typed(w, f"dlrun submit --dry-run -- {line.replace('ROOT', str(w.tree))}")
        notes = [text.split("note ", 1)[1].strip() for text in result.err.splitlines() if " note " in text]
        said = (note or "").replace("ROOT", str(w.tree))
        if f"command   {runs}\n" not in result.out or (said not in notes if note else notes):
            wrong.append(f"$ {line}\n{result!r}")
    assert not wrong, "\n".join(wrong)
    assert w.ok("submit", "-f", "--", "LR=0.1", "sh", "-c", "echo $LR").out == "0.1\n"
    assert w.ok("submit", "-f", "--", "train.py", "--lr", "1").out == "train --lr 1\n"


def test_the_python_of_the_tree(w):
    tree(w)
    for place in (".venv", "other"):
        w.write(f"{place}/pyvenv.cfg", "")
        w.write(f"{place}/bin/python", f"#!/bin/sh\necho {place} \"$@\"\n", 0o755)
    assert w.ok("submit", "-f", "train.py", "a").out == ".venv train.py a\n"
    assert w.ok("submit", "-f", ".venv/bin/python", "b").out == ".venv b\n"
    assert w.ok("submit", "-f", "b.py", cwd=w.tree / "exp").out == ".venv b.py\n"
    assert w.ok("submit", "-f", "train.py", env={"VIRTUAL_ENV": str(w.tree / "other")}).out == "other train.py\n"
    answer = w.ok("submit", "--dry-run", "-t", "ssh:nowhere", "train.py")
    assert "command   python3 train.py\n" in answer.out, answer


GPUS = ["NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 PCIe"]

# What this machine does with options: the exit status and a line on stderr, or the GPUs that the run may have.
OPTIONS = [
    ("--gpu-type a100", [0, 2]),
    ("--gpu-type A100 -g 2", [0, 2]),
    ("--gpu-type a100-80gb", [0, 2]),
    ("--gpu-type rtx4090", [1]),
    ("--gpu-type 'RTX 4090'", [1]),
    ("--gpu-type h100", [3]),
    ("--gpu-type 'nvidia h100'", [3]),
    ("--gpu-type v100,h100", [3]),
    ("--gpu-type v100,a100 -g 2", [0, 2]),
    ("--gpu-type a10", "error: --gpu-type a10: this machine has NVIDIA A100-SXM4-80GB, NVIDIA GeForce RTX 4090, "
     "NVIDIA A100-SXM4-80GB, NVIDIA H100 PCIe   [gpu.count]"),
    ("--gpu-type h100 -g 2", "error: requested 2 h100 GPUs, this machine has 1   [gpu.count]"),
    ("--gpu-type a100 -g 3", "  hint: dlrun submit -g 2 --gpu-type a100 --dry-run -- true"),
    ("--gpu-type a100 -g 0", "error: --gpu-type a100 cannot be used together with -g 0   [usage]"),
    ("-e CUDA_VISIBLE_DEVICES=2,3 --gpu-type a100", [2]),
    ("-e CUDA_VISIBLE_DEVICES=1 --gpu-type a100", "error: --gpu-type a100: this machine has"),
    ("--queue gpu", "error: --queue gpu: target local has no queues   [target.unsupported]"),
    ("--queue gpu", "  hint: dlrun submit -t kube --dry-run --queue gpu"),
    ("--priority high", "error: --priority high: target local has no priorities   [target.unsupported]"),
    ("--image reg.example.com/a:b", "error: --image reg.example.com/a:b: target local runs programs on the machine itself, "
     "without an image   [target.unsupported]"),
    ("--image reg.example.com/a:b", "  hint: dlrun submit -t kube --dry-run --image reg.example.com/a:b"),
    ("-t ssh:nowhere --image reg.example.com/a:b", "  hint: runtime: podman   # of the target: programs run in the image there"),
    ("-t ssh:nowhere --queue gpu", "error: --queue gpu: target ssh:nowhere has no queues   [target.unsupported]"),
    ("--same zone", "error: --same zone: target local has no zones   [target.unsupported]"),
    ("-t ssh:nowhere --same a/b", "error: --same a/b: target ssh:nowhere has no zones   [target.unsupported]"),
    *((f"-t ssh:nowhere --same {key}/x", f"error: --same: '{key}/x' is neither zone nor the key of a label   [usage]")
      for key in ("a..b", "a.-b", "a-.b", "a.", ".a", "")),
    ("-t ssh:nowhere --same a-1.b/x", "error: --same a-1.b/x: target ssh:nowhere has no zones   [target.unsupported]"),
    ("-t ssh:nowhere --same a/b/c", "error: --same: 'a/b/c' is neither zone nor the key of a label   [usage]"),
    ("-t ssh:nowhere --priority low", "error: --priority low: target ssh:nowhere has no priorities   [target.unsupported]"),
    ("--cpus 90000", "error: --cpus 90000: this machine has NCPUS"),
    ("--cpus 90000", "  hint: dlrun submit --cpus NCPUS --dry-run -- true"),
    ("--memory 900Ti", "error: --memory 900 TiB: this machine has "),
    ("-N 65", "error: requested 65 nodes, and this machine plays 64 at most   [target.unsupported]"),
    ("-N 65", "  hint: dlrun submit -t kube -N 65 --dry-run -- true"),
]


def test_options_that_a_machine_cannot_honour(w):
    """Honoured, or an error with the fix: never dropped."""
    tree(w)
    tag = os.urandom(14).hex()
    rows = "".join(f"echo '{i}, GPU-{i:04x}{tag}, 00000000:{i + 1:02X}:00.0, 81559, {model}'\n" for i, model in enumerate(GPUS))
    w.write("smi/nvidia-smi", f"#!/bin/sh\ncase \"$*\" in\n*query-gpu*)\n{rows};;\nesac\n", 0o755, base=w.dir)
    w.env["PATH"] = f"{w.dir}/smi:{w.env['PATH']}"
    cpus, wrong = str(os.cpu_count()), []
    for options, said in OPTIONS:
        result = typed(w, f"dlrun submit --dry-run {options} -- true")
        if isinstance(said, str):
            said = said.replace("NCPUS", cpus)
            if result.rc != 2 or not any(line.startswith(said) for line in result.err.splitlines()):
                wrong.append((options, said, result))
        elif result.rc:
            wrong.append((options, said, result))
    assert not wrong, wrong
    for options, allowed in (row for row in OPTIONS if not isinstance(row[1], str)):
        result = typed(w, f"dlrun submit -f {options} -- sh -c 'echo $CUDA_VISIBLE_DEVICES; cat $DLRUN_ATTEMPT_DIR/../gpus.json'")
        models = {gpu["model"] for gpu in json.loads(result.out.splitlines()[1])["list"]}
        assert result.rc == 0 and models == {GPUS[allowed[0]]}, (options, result)


def test_settings_of_other_targets_are_said(w):
    """A file serves several targets: what does not count on this one is said, and nothing fails."""
    tree(w)
    w.write("dlrun.yaml", "queue: gpu\npriority: low\nresources: {shm: 8Gi, disk: 50Gi, cpus: 90000, memory: 900Ti}\n")
    result = w.ok("submit", "--dry-run", "--", "true")
    for line in ("queue: target local has no queues, so it does not count here",
                 "resources.shm: target local has no limit on shared memory, so it does not count here"):
        assert f"note      {line}\n" in result.err, result
    assert "warning: resources.cpus: 90000: this machine has " in result.err, result
    result = w.ok("submit", "--dry-run", "--cpus", "0.5", "--memory", "64Mi", "--", "true")
    assert "--memory" not in result.err and "--cpus" not in result.err, result


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
