#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Public kinds of projects, unchanged and without a dlrun.yaml: what they write is found, fetched, drawn and known.

The programs (tests/real/projects/) use the real libraries: Debian's torch, and what PyPI has for it."""

import csv
import io
import json
import re
import shutil
import subprocess
from collections import namedtuple
from fnmatch import fnmatch

from harness import *  # noqa: F403
from pypi import CACHE, activated, build, only_one, pip_install, tools
from sshsite import SshSite
import sweep

SOURCES = Path(__file__).with_name("projects")
PYTHON = "/usr/bin/python3"  # that Debian's torch is for
THERE = "/opt/projects"      # where hosts have the environment
# With Debian 12's torch, which is older than what pip would choose.
FOR_TORCH_1 = ["numpy<2", "pytorch-lightning==2.0.9", "torchmetrics==1.1.2", "transformers==4.33.3", "accelerate==0.23.0",
               "hydra-core==1.3.2", "scikit-learn==1.3.2", "papermill==2.4.0", "ipykernel", "tensorboardX", "tensorboard==2.15.2",
               "wandb", "jax==0.4.20", "jaxlib==0.4.20", "setuptools<70"]
FOR_TORCH_2 = ["pytorch-lightning", "transformers[torch]", "accelerate", "hydra-core", "scikit-learn", "papermill", "ipykernel",
               "tensorboardX", "tensorboard", "wandb", "jax", "setuptools<81"]
# FSDP of torch 1.13, which Lightning imports, has defaults that Python 3.11 refuses.
OLD_TORCH = """import dataclasses

get_field = dataclasses._get_field


def lenient(cls, name, *args):
    try:
        return get_field(cls, name, *args)
    except ValueError:
        default = getattr(cls, name)
        type(getattr(default, "default", default)).__hash__ = object.__hash__
        return get_field(cls, name, *args)


dataclasses._get_field = lenient
"""
# Which Debian's package leaves out; the last but one line is for an enumeration that Python 3.11 does not list wholly.
TORCHRUN = """#!/usr/bin/env python
from torch.distributed.elastic.multiprocessing.api import Std
from torch.distributed.run import main

Std.from_str = classmethod(lambda cls, text: cls(int(text)))
main()
"""
# What Python 3.11 does not list of an enumeration of torch 1.13, which torchrun looks through.
OLD_LAUNCHER = """import importlib.util
import sys


class Late:
    def find_spec(self, name, path, target=None):
        if name != "torch.distributed.elastic.multiprocessing.api":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            if 0 not in [int(each) for each in module.Std]:
                module.Std.from_str = classmethod(lambda cls, text: cls(int(text)))

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Late())
"""
# Set where a program is quicker or quieter with it; none of them says where results go.
QUIET = {"PYTHONWARNINGS": "ignore", "WANDB_MODE": "offline", "WANDB_SILENT": "true", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
         "JAX_PLATFORMS": "cpu", "JUPYTER_PLATFORM_DIRS": "1"}

Project = namedtuple("Project", "command results tag params", defaults=[None, {}])
PROJECTS = {
    "lightning": Project("python train.py", ["lightning_logs/version_0/checkpoints/*.ckpt", "lightning_logs/version_0/hparams.yaml"],
                         "train_loss", {"lr": "0.05", "hidden": "8"}),
    "hf_trainer": Project("python run.py", ["out/checkpoint-8/optimizer.pt", "out/final/config.json", "out/runs/*/events*"], "train/loss"),
    "accelerate": Project("python train.py", ["checkpoint/optimizer.bin", "logs/tiny/events*"], "loss",
                          {"lr": "0.1", "epochs": "4"}),
    "hydra": Project("python train.py lr=0.2", ["outputs/*/*/model.pt", "outputs/*/*/.hydra/config.yaml"], None,
                     {"lr": "0.2", "seed": "3", "model.width": "4"}),
    "jax": Project("python train.py --lr 0.3", ["params.npz"], None, {"lr": "0.3"}),
    "sklearn": Project("python fit.py", ["model.joblib", "metrics.json"]),
    "papermill": Project("papermill in.ipynb out.ipynb -p lr 0.5", ["out.ipynb", "loss.txt"]),
    "torch_save": Project("python train.py", ["model.pt"]),
    "makemore": Project("python makemore.py -i names.txt --work-dir names", ["names/model.pt", "names/events*"], "Loss/train",
                        {"work-dir": "names"}),
    "tensorboardx": Project("python train.py", ["runs/*/events*"], "loss"),
    "makefile": Project("make", ["results/metrics.csv"]),
    "src_layout": Project("PYTHONPATH=src python -m tinynet.train", ["experiments/001/net.pt", "experiments/001/log.txt"]),
    "wandb_offline": Project("python train.py", ["wandb/offline-run-*/run-*.wandb"]),
    "cleanrl": Project("python ppo.py --seed 2", ["runs/CartPole-v1__ppo__2__*/events*"], "charts/episodic_return",
                       {"seed": "2", "env_id": "CartPole-v1"}),
}
CACHES = ("__pycache__", ".git")


def environment():
    """A virtual environment over the system's torch, made once; its scripts run wherever it is mounted."""
    done = subprocess.run([PYTHON, "-c", "from torch.version import __version__ as v; print(v)"], capture_output=True, text=True)
    if done.returncode:
        raise Missing("python3-torch is not installed")
    torch = done.stdout.strip()
    old = torch.startswith("1.")
    there = CACHE / f"projects-{torch}"
    with only_one("projects"):
        if not (there / "whole").exists():
            shutil.rmtree(there, ignore_errors=True)
            tools()
            build(PYTHON, "-m", "venv", "--system-site-packages", "--without-pip", there)
            site, = there.glob("lib/python3*/site-packages")
            (CACHE / "torch.txt").write_text(f"torch=={torch}\n")
            pip_install(there, "-c", CACHE / "torch.txt", *(FOR_TORCH_1 if old else FOR_TORCH_2), timeout=1800)
            if old:
                (site / "old_torch.py").write_text(OLD_TORCH)
                (site / "old_torch.pth").write_text("import old_torch\n")
            for script in (there / "bin").iterdir():
                first, _, rest = script.read_bytes().partition(b"\n") if script.is_file() and not script.is_symlink() else (b"", b"", b"")
                if first == f"#!{there}/bin/python".encode():
                    script.write_bytes(b"#!/usr/bin/env python\n" + rest)
            if not (there / "bin/torchrun").exists():
                (there / "bin/torchrun").write_text(TORCHRUN)
                (there / "bin/torchrun").chmod(0o755)
            (there / "whole").touch()
    return there


def project(w, name):
    """The tree, as somebody would have cloned it."""
    shutil.copytree(SOURCES / name, w.tree, dirs_exist_ok=True)
    w.repo({})


def here(w):
    w.env.update(activated(w, environment(), **QUIET))
    w.env.pop("PIP_CACHE_DIR", None)


def new_files(w, tree):
    """What a program has left in its tree: {path: content}."""
    code = set(w.git("ls-files", "-z").out.split("\0"))
    return {str(p.relative_to(tree)): p.read_bytes() for p in sorted(Path(tree).rglob("*"))
            if p.is_file() and not p.is_symlink() and str(p.relative_to(tree)) not in code and not set(p.parts) & set(CACHES)}


def check_results(w, name, run, tree):
    """Whatever lies in the tree comes back as it is; tree: None where it ended with its pod."""
    wanted = PROJECTS[name]
    listed = {f["path"]: f["bytes"] for f in json.loads(w.ok("fetch", "--list", "--json", run).out)["files"]}
    w.ok("fetch", run, "-o", str(w.dir / run))
    fetched = {str(p.relative_to(w.dir / run)): p.read_bytes() for p in (w.dir / run).rglob("*")
               if p.is_file() and not p.is_symlink() and ".dlrun-fetch" not in p.parts and p.name != ".gitignore"}
    assert not [p for p in fetched if "__pycache__" in p], sorted(fetched)
    assert listed == {p: len(content) for p, content in fetched.items()}, (listed, sorted(fetched))
    for pattern in wanted.results:
        assert any(fnmatch(path, pattern) for path in fetched), f"{pattern} is not in {sorted(fetched)}"
    if tree:
        left = new_files(w, tree)
        assert left and left == {p: fetched.get(p) for p in left}, sorted(set(left) ^ set(fetched))
    record = w.show(run)
    for key, value in wanted.params.items():
        assert str(record["params"].get(key)) == value, record["params"]
    if wanted.tag:
        assert wanted.tag in record["metrics"], record["metrics"]
        drawn = list(csv.reader(io.StringIO(w.ok("plot", "--csv", "--tag", wanted.tag, run).out)))
        assert len(drawn) > 4, drawn
        listed_run = next(r for r in w.runs() if r["id"] == run)
        assert wanted.tag in listed_run["metrics"], listed_run
    return fetched


def check_said(done, run, name):
    """The last line names what there is, and none names an empty directory."""
    first = PROJECTS[name].results[0].split("/")[0].split("*")[0]
    last = [line for line in done.err.splitlines() if line.strip()][-3:]
    assert any("results" in line and first in "\n".join(last) for line in last), done


def at_one_of(turn):
    """Each runs here (turn 0), on a host (1), or in a pod (2); with --all at all three."""
    return [name for i, name in enumerate(PROJECTS) if ALL or i % 3 == turn]


def run_here(name):
    def test(w):
        here(w)
        project(w, name)
        done = w.run("submit", "-f", "-g", "0", "--", *PROJECTS[name].command.split(), timeout=600)
        assert done.rc == 0, done
        run = w.show()["id"]
        check_results(w, name, run, w.state / f"runs/{run}/attempts/1/tree")
        check_said(done, run, name)
    return test


def has_begun(w, run):
    """A checkpoint of the run's program is there."""
    wait_for(lambda: "epoch 3" in w.run("logs", run).out, "some epochs", 240)


def check_resumed(w, run):
    """The next attempt of train.py has found the newest checkpoint in lightning_logs, and ends by itself."""
    first = w.ok("logs", run).out
    w.ok("restart", run)
    assert w.run("wait", run, timeout=400).rc == 0, w.ok("logs", run).out
    assert w.show(run)["attempts"][-1]["number"] == 2
    second = w.ok("logs", run).out
    found = re.search(r"from lightning_logs/version_0/checkpoints/epoch=(\d+)-step=\d+.ckpt", second)
    assert found and "from None" in first, (first, second)
    epochs = [int(n) for n in re.findall(r"^epoch (\d+)", second, re.M)]
    assert epochs[0] == int(found.group(1)) + 1 and len(epochs) <= 3, (first, second)


def test_lightning_goes_on_here(w):
    here(w)
    project(w, "resume")
    run = w.ok("submit", "-d", "-g", "0", "--", "python", "train.py").out.strip()
    has_begun(w, run)
    w.ok("cancel", run)
    check_resumed(w, run)


# Of one more step each time, as long as nobody stops it; the directory is the library's default.
SGD = """import sys, time, torch
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(0)
x = torch.randn(256, 4)
y = x @ torch.tensor([1.0, -2.0, 0.5, 3.0])
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
writer = SummaryWriter()
for step in range(1, 41):
    loss = ((model(x).squeeze() - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    writer.add_scalar("val_loss", loss.item(), step)
    writer.flush()
    time.sleep(0.1)
"""
# Points of a curve as TensorBoard reads them.
READ = """import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps([(e.wall_time, e.step, e.value) for e in events.Scalars("val_loss")]))
"""


@left_to_all("sweep")
def test_losers_among_torch_runs_are_stopped(w):
    """--stop decides by the files of torch's own writer as a reference does by what TensorBoard reads in them."""
    here(w)
    w.repo({"train.py": SGD})
    study = sweep.sweep(w, "-g", "0", "--over", "lr=0.3,0.1,0.03,0.01,0.003,0.001", "--parallel", "6",
                        "--stop", "metric=val_loss,halving=3,from=3", "--", "python", "train.py", "{lr}", timeout=120)
    runs = sweep.ended(w, study)
    curves = []
    for run in runs:
        there, = (w.state / f"runs/{run['id']}/attempts/1/tree").glob("**/runs/*/")
        curves.append([tuple(point) for point in json.loads(w.command(["python", "-c", READ, there], timeout=120).out.splitlines()[-1])])
    said = sweep.judged(w, study)
    expected = sweep.judged_by_halving(curves, (3, 9, 27), 3, said)
    assert said == expected, (said, expected)
    stopped = {member for member, _, stops in said if stops}
    assert stopped and len(stopped) < len(runs), said
    assert {run["study"]["index"] for run in runs if run["state"] == "cancelled"} <= stopped, said
    assert all(run["state"] in ("succeeded", "cancelled") for run in runs), runs
    assert any(run["state"] == "cancelled" for run in runs), said


def with_environment(host, there):
    """The host sees it at a place that each of its accounts can read."""
    host.ok("sh", "-c", f"mount -t tmpfs -o mode=755 tests /opt && mkdir {THERE} && mount --bind {there} {THERE}")


def lab(w, s, *names, there=None, **options):
    """A target of the user's own configuration: hosts with the environment; the first of them."""
    there = there or environment()
    hosts = [s.host(name, **options) for name in names]
    for host in hosts:
        with_environment(host, there)
    if options.get("network"):
        # torchrun tells the other hosts the name of the first one.
        table = "127.0.0.1 localhost\n" + "".join(f"{h.address} {h.name}\n" for h in hosts)
        for host in hosts:
            host.ok("sh", "-c", 'printf %s "$1" >/run/hosts && mount --bind /run/hosts /etc/hosts', "sh", table)
    lines = "".join(f"      export {k}={v}\n" for k, v in QUIET.items())
    config = w.home / ".config/dlrun/config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(f"targets:\n  lab:\n    kind: ssh\n    hosts: [{', '.join(names)}]\n    before: |\n"
                      f"      export VIRTUAL_ENV={THERE} PATH={THERE}/bin:$PATH\n{lines}")
    return hosts[0]


def run_on_host(name):
    def test(w):
        project(w, name)
        with SshSite(w) as s:
            host = lab(w, s, "gpu1")
            done = w.run("submit", "-f", "-t", "lab", "-g", "0", "--", *PROJECTS[name].command.split(), timeout=600)
            assert done.rc == 0, done
            run = w.show()["id"]
            tree = s.there(run) / "tree"
            check_results(w, name, run, tree)
            check_said(done, run, name)
    return test


@left_to_all("test_lightning_goes_on_here; cluster_projects: test_lightning_goes_on_in_a_pod")
def test_lightning_goes_on_on_a_host(w):
    project(w, "resume")
    with SshSite(w) as s:
        host = lab(w, s, "gpu1")
        run = w.ok("submit", "-d", "-t", "lab", "-g", "0", "--", "python", "train.py").out.strip()
        has_begun(w, run)
        host.reboot()
        with_environment(host, environment())
        wait_for(lambda: w.show(run)["state"] == "lost", "the loss of the run", 60)
        check_resumed(w, run)


# --- torchrun


def launched(w, launcher):
    """Options of a submit that has torchrun as a module, in a tree that mends an old one."""
    w.write("sitecustomize.py", OLD_LAUNCHER)
    return "-e", "PYTHONPATH=.", "--launcher", launcher


def check_sum(w, done, n):
    assert done.rc == 0, done
    said = w.ok("logs", "--rank", "all", "@").out
    for rank in range(n):
        assert f"rank {rank} of {n}: sum {n * (n + 1) // 2}" in said, said


def test_torchrun_here(w):
    here(w)
    project(w, "torchrun")
    done = w.run("submit", "-f", "-g", "0", "--", "torchrun", "--standalone", "--nproc_per_node", "2", "reduce.py", timeout=400)
    check_sum(w, done, 2)
    there = w.dir / "there"
    w.ok("fetch", "-o", str(there), "@")
    assert {(there / f"rank{r}.txt").read_text() for r in range(2)} == {"3.0"}


@left_to_all("test_launcher_on_two_hosts; ssh_run_roles: test_torchrun_in_two_roles; cluster_projects: test_torchrun_in_two_pods")
def test_torchrun_on_two_hosts(w):
    project(w, "torchrun")
    with SshSite(w) as s:
        lab(w, s, "gpu1", "gpu2", network=True)
        line = "torchrun --nnodes $NNODES --node_rank $NODE_RANK --nproc_per_node 1 --master_addr $MASTER_ADDR --master_port $MASTER_PORT reduce.py"
        check_sum(w, w.run("submit", "-f", "-t", "lab", "-g", "0", "-N", "2", "--", "sh", "-c", line, timeout=400), 2)
        # PET_* say the same to torchrun.
        check_sum(w, w.run("submit", "-f", "-t", "lab", "-g", "0", "-N", "2", "--", "torchrun", "reduce.py", timeout=400), 2)


def test_launcher_on_two_hosts(w):
    project(w, "torchrun")
    with SshSite(w) as s:
        lab(w, s, "gpu1", "gpu2", network=True)
        options = launched(w, "torchrun:2")
        check_sum(w, w.run("submit", "-f", "-t", "lab", "-g", "0", "-N", "2", *options, "--", "python", "reduce.py", timeout=400), 4)


for _name in at_one_of(0):
    globals()[f"test_{_name}_here"] = run_here(_name)
for _name in at_one_of(1):
    globals()[f"test_{_name}_on_a_host"] = run_on_host(_name)


if __name__ == "__main__":
    main()
