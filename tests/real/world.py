#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program's world: projects as people have them, each run first in the tree and then as a run,
without a change, with the same result."""

import json
import os
import zipfile

from harness import *  # noqa: F403
from local import ended, pids_with, submit
from pypi import activated, network, pip_install, tools, uv, venv

IGNORED = "__pycache__/\n*.egg-info/\n*.dist-info/\n.venv/\nbuild/\n"


def tree(w, files, ignored=IGNORED):
    w.repo({".gitignore": ignored, **files})


def in_tree(w, *argv, **options):
    result = w.command(argv, **options)
    assert result.rc == 0 and not result.err, f"{argv} in the tree: {result!r}"
    return result


def same(w, *argv, options=(), **more):
    """The program as it is, then the same words behind `dlrun submit`."""
    first = in_tree(w, *argv, **more)
    second = w.run("submit", "-f", *options, "--", *argv, **more)
    assert second.rc == 0, second
    assert first.out == second.out, f"in the tree:\n{first.out}\nas a run: {second!r}"
    return second


def outputs(w, run="@"):
    return w.state / "runs" / w.show(run)["id"] / "outputs"


def held(w, *argv, change, env=None, cwd=None):
    """The run waits, the live tree changes, the run goes on: what it printed, and what submit said."""
    gate = w.dir / "gate"
    os.mkfifo(gate)
    said = w.ok("submit", "-d", "--", "sh", "-c", f'read x < {gate}; exec "$@"', "sh", *argv, env=env, cwd=cwd)
    change()
    with open(gate, "w") as file:
        file.write("go\n")
    gate.unlink()
    run = said.out.strip()
    assert ended(w, run)["state"] == "succeeded", w.ok("logs", run)
    return w.ok("logs", run).out, said.err


# --- editable installs

PACKAGE = """
import importlib.metadata, importlib.resources, os
import nets
from tabulate import tabulate

def main():
    default = importlib.resources.files("nets").joinpath("default.txt").read_text().strip()
    rows = [[nets.LR, default, importlib.metadata.version("nets"), os.path.relpath(nets.__file__)]]
    print(tabulate(rows, headers=["lr", "default", "version", "from"]))

if __name__ == "__main__":
    main()
"""


def package(where):
    return {f"{where}/__init__.py": "LR = 0.1\n", f"{where}/cli.py": PACKAGE, f"{where}/default.txt": "sgd\n",
            "train.py": "from nets.cli import main\nmain()\n"}


def project(more):
    return ('[build-system]\nrequires = ["setuptools>=64"]\nbuild-backend = "setuptools.build_meta"\n'
            '[project]\nname = "nets"\nversion = "0.1"\ndependencies = ["tabulate"]\n'
            '[project.scripts]\nnets-train = "nets.cli:main"\n' + more)


def check_editable(w, where, env):
    """Every way to start it imports the run's own package, whatever the live tree has become."""
    for argv in (["nets-train"], ["python", "-m", "nets.cli"], ["python", "train.py"]):
        said = same(w, *argv, env=env)
    assert f"{where}/__init__.py" in said.out
    assert [line for line in said.err.splitlines() if "editable" in line], f"it is not said: {said!r}"
    then = in_tree(w, "nets-train", env=env).out

    def edit():
        w.write(f"{where}/__init__.py", "LR = 'live tree'\n")
        w.write(f"{where}/default.txt", "live tree\n")
        w.write(f"{where}/cli.py", "raise SystemExit('live tree')\n")

    now, _ = held(w, "nets-train", change=edit, env=env)
    assert now == then, f"the live tree came in: {now}"


def test_src_layout_installed_editable(w):
    tree(w, {"pyproject.toml": project('[tool.setuptools.packages.find]\nwhere = ["src"]\n'), **package("src/nets")})
    prefix = venv(w.dir / "venv")
    pip_install(prefix, "-e", w.tree)
    check_editable(w, "src/nets", activated(w, prefix))


def test_flat_layout_installed_editable(w):
    """Its packages are found by a finder of setuptools, not by a .pth."""
    tree(w, {"pyproject.toml": project('[tool.setuptools]\npackages = ["nets"]\n'), **package("nets")})
    prefix = venv(w.dir / "venv")
    uv("pip", "install", "-q", "--python", prefix, "-e", w.tree, cwd=w.tree)
    assert list(prefix.glob("lib/python*/site-packages/__editable__*finder.py"))
    check_editable(w, "nets", activated(w, prefix))


def test_package_of_another_name_installed_editable(w):
    """The directory is not named like the package: putting a path in front is not enough."""
    tree(w, {"pyproject.toml": project('[tool.setuptools]\npackages = ["nets"]\npackage-dir = {nets = "code"}\n'),
             **package("code")})
    prefix = venv(w.dir / "venv")
    uv("pip", "install", "-q", "--python", prefix, "-e", w.tree, cwd=w.tree)
    env = activated(w, prefix)
    then = in_tree(w, "nets-train", env=env).out

    def edit():
        w.write("code/__init__.py", "LR = 'live tree'\n")
        w.write("code/cli.py", "raise SystemExit('live tree')\n")

    now, said = held(w, "nets-train", change=edit, env=env)
    assert now.split()[-4:-1] == then.split()[-4:-1], f"the live tree came in: {now}"
    assert "packages/nets" in now


# --- environments


def count(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_uv_project(w):
    """uv's own template for a package: locked, installed editable into what setup makes."""
    uv("init", "-q", "--package", "--name", "nets", "--vcs", "none", w.tree, cwd=w.dir)
    tree(w, {"src/nets/__init__.py": "LR = 0.1\n", "src/nets/cli.py": PACKAGE, "src/nets/default.txt": "sgd\n",
             "train.py": "from nets.cli import main\nmain()\n"})
    uv("add", "-q", "tabulate", cwd=w.tree)
    w.commit()
    done = w.dir / "setups"
    w.write("dlrun.yaml", f"setup: {{run: \"uv sync -q --frozen && echo x >> {done}\", key: [uv.lock]}}\n")
    env = {**network(), "PATH": f"{tools()}:{w.env['PATH']}"}
    said = same(w, ".venv/bin/python", "train.py", env=env)
    assert "warning" not in said.err, f"setup brings .venv: {said!r}"
    same(w, ".venv/bin/python", "-m", "nets.cli", env=env)
    assert count(done) == 1, "one key, one setup"

    w.write("src/nets/__init__.py", "LR = 0.2\n")
    same(w, ".venv/bin/python", "train.py", env=env)
    same(w, "uv", "run", "-q", "--frozen", "train.py", env=env)
    assert count(done) == 1, "an edit of the code is no new key"
    assert "0.2" in w.ok("logs").out

    uv("add", "-q", "iniconfig", cwd=w.tree)
    w.write("train.py", "import iniconfig\nfrom nets.cli import main\nmain()\n")
    same(w, ".venv/bin/python", "train.py", env=env)
    assert count(done) == 2, "another lock, another setup"
    shutil.rmtree(w.tree / ".venv")
    last = w.ok("submit", "-f", "--", ".venv/bin/python", "train.py", env=env)
    assert "0.2" in last.out and count(done) == 2, "the live tree's .venv plays no part"


def test_setup_is_run_once_for_many_at_once(w):
    done, running = w.dir / "setups", w.dir / "running"
    w.write("setup.sh", f"mkdir {running} || exit 9\necho x >> {done}\n[ -e pyproject ] || exit 8\nsleep 0.3\n"
                        f"mkdir env && cp lock env/made\nrmdir {running}\necho noise\n")
    tree(w, {"lock": "1\n", "pyproject": "", "dlrun.yaml": "setup: {run: sh setup.sh, key: [lock]}\n"}, "env/\n")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        runs = list(pool.map(lambda i: w.run("submit", "-f", "--", "cat", "env/made"), range(6)))
    assert [(r.rc, r.out) for r in runs] == [(0, "1\n")] * 6, runs
    assert count(done) == 1
    w.write("lock", "2\n")
    assert w.ok("submit", "-f", "--", "cat", "env/made").out == "2\n" and count(done) == 2
    w.write("lock", "1\n")
    assert w.ok("submit", "-f", "--", "cat", "env/made").out == "1\n" and count(done) == 2
    assert not (w.tree / "env").exists(), "the tree stays as it is"


def test_setup_of_a_part(w):
    """It is run where its dlrun.yaml lies, and what it makes appears there."""
    part = w.tree / "projects/vision"
    tree(w, {"projects/vision/lock": "1\n", "projects/vision/dlrun.yaml":
             "paths: [projects/vision]\nsetup: {run: mkdir env && cp lock env/made, key: [projects/vision/lock]}\n",
             "projects/vision/sub/x": "", "other": ""}, "env/\n")
    assert w.ok("submit", "-f", "--", "cat", "env/made", cwd=part).out == "1\n"
    assert w.ok("submit", "-f", "--", "cat", "../env/made", cwd=part / "sub").out == "1\n"
    assert not (part / "env").exists()


def small_wheel(w, version):
    """A package of one module."""
    info = f"small-{version}.dist-info"
    with zipfile.ZipFile(w.tree / f"wheels/small-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("small.py", f"V = {version}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: small\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_what_a_lock_file_includes_is_in_the_key(w):
    tree(w, {"wheels/.keep": "", "requirements.txt": "-r base.txt\n", "base.txt": "./wheels/small-1-py3-none-any.whl\n",
             "dlrun.yaml": "environment: {lock: requirements.txt}\nsetup: {key: [driver.txt]}\n"})
    w.write("driver.txt", "what only the project knows of")
    for version, line in (2, "./wheels/small-2-py3-none-any.whl"), (3, "-f wheels\nsmall"), (4, "-f wheels\nsmall"):
        small_wheel(w, version)
        w.write("base.txt", f"--no-index\n{line}\n")
        assert w.ok("submit", "-f", "--", "python", "-c", "import small; print(small.V)").out == f"{version}\n"
    job = json.loads(next(w.home.rglob(f"{w.show()['id']}/attempts/1/job.json")).read_text())
    assert job["setup"]["key"] == ["requirements.txt", "base.txt", "wheels", "driver.txt"], job["setup"]
    w.write("base.txt", "numpy\n.\n")
    assert "base.txt:2 installs a copy of the project" in w.ok("submit", "--dry-run", "--", "true").err
    # What was named must be in the snapshot, what was not need not.
    w.write(".git/info/exclude", "local/\n")
    w.write("local/x.whl", "")
    w.write("base.txt", "-f local\n")
    w.ok("submit", "--dry-run", "--", "true")
    w.write("dlrun.yaml", "environment: {lock: requirements.txt}\nsetup: {key: [local]}\n")
    assert "dlrun.yaml:2:14: setup.key: 'local' is not in the snapshot" in w.run("submit", "--dry-run", "--", "true").err
    w.write("dlrun.yaml", "environment: {lock: requirements.txt}\n")
    w.write(".gitignore", ".venv/\nsetup.cfg\n")
    w.write("setup.cfg", "")
    w.write("base.txt", "-e .\n")
    w.ok("submit", "--dry-run", "--", "true")


CONDA = """
import os, sys, tabulate, shared
print(tabulate.tabulate([[sys.prefix == os.environ["CONDA_PREFIX"], os.environ["CONDA_DEFAULT_ENV"]]]))
print(os.path.relpath(shared.__file__), shared.VALUE)
"""


def test_conda_prefix(w):
    """bin/python, conda-meta and a conda.pth, as `conda develop` writes it."""
    prefix = venv(w.dir / "miniforge/envs/lab")
    w.write("conda-meta/history", "==> 2026-01-01 00:00:00 <==\n", base=prefix)
    pip_install(prefix, "tabulate")
    tree(w, {"train.py": CONDA, "lib/shared.py": "VALUE = 1\n"})
    next(prefix.glob("lib/python*/site-packages")).joinpath("conda.pth").write_text(f"{w.tree}/lib\n")
    env = {"CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": "lab", "CONDA_SHLVL": "1",
           "PATH": f"{prefix}/bin:{w.env['PATH']}"}
    then = same(w, "python", "train.py", env=env).out
    now, _ = held(w, "python", "train.py", env=env, change=lambda: w.write("lib/shared.py", "VALUE = 'live tree'\n"))
    assert now == then and "lib/shared.py 1\n" in now


def test_requirements_and_venv(w):
    """The usual .venv inside of the tree, ignored and active."""
    tree(w, {"requirements.txt": "tabulate==0.9.0\niniconfig>=2\n", "exp/train.py":
             "import sys, tabulate, iniconfig, importlib.metadata as m\n"
             "print(sys.argv[1:], m.version('tabulate'), sys.prefix)\n"})
    prefix = venv(w.tree / ".venv")
    pip_install(prefix, "-r", "requirements.txt", cwd=w.tree)
    said = same(w, "python", "train.py", "--lr", "0.1", env=activated(w, prefix), cwd=w.tree / "exp")
    assert "0.9.0" in said.out and str(prefix) in said.out and "editable" not in said.err
    assert w.show()["params"]["lr"] == "0.1" and w.show()["origin"]["cwd"] == "exp"

    w.write("dlrun.yaml", "before: . ./.venv/bin/activate\ndata: [.venv]\n")
    bare = w.ok("submit", "-f", "--", "python", "exp/train.py")
    assert "0.9.0" in bare.out and "/.venv\n" in bare.out, bare


def test_driver_that_is_a_makefile(w):
    needs("make")
    needs("cc")
    tree(w, {"Makefile": "train: build/sum results/table.txt\n\tcat results/table.txt\n"
                         "results/table.txt: build/sum train.py\n\tmkdir -p results\n\tpython3 train.py > $@\n"
                         "build/sum: sum.c\n\tmkdir -p build\n\tcc -O1 -o $@ $<\n",
             "sum.c": "#include <stdio.h>\n#include <stdlib.h>\nint main(int c, char **v) {\n\tint s = 0;\n"
                      "\twhile (--c > 0)\n\t\ts += atoi(v[c]);\n\tprintf(\"%d\\n\", s);\n\treturn 0;\n}\n",
             "train.py": "import subprocess\nprint(subprocess.check_output(['build/sum', '3', '4']).decode())\n",
             "dlrun.yaml": "outputs: [results]\n"}, "build/\nresults/\n")
    in_tree(w, "make", "-s", "train")
    shutil.rmtree(w.tree / "build")
    shutil.rmtree(w.tree / "results")
    said = same(w, "make", "train")
    assert said.out.endswith("7\n\n") and (outputs(w) / "results/table.txt").read_text() == "7\n\n"


def test_part_of_a_monorepo(w):
    w.git("init", "-q")
    part = w.tree / "projects/vision"
    tree(w, {"libs/common/common.py": "NAME = 'common'\n", "libs/unused/x": "x\n", "projects/speech/big": "x" * 1000,
             "projects/vision/train.py": "import os, sys\nsys.path.insert(0, '../../libs/common')\nimport common\n"
                                         "os.makedirs('out', exist_ok=True)\n"
                                         "open('out/name', 'w').write(common.NAME)\nprint(common.NAME, os.listdir())\n",
             "projects/vision/dlrun.yaml": "name: vision\npaths: [libs/common, projects/vision]\n"
                                           "outputs: [projects/vision/out]\ncommand: [python3, train.py]\n"},
         "out/\n__pycache__/\n")
    part.joinpath("out").mkdir()
    same(w, "python3", "train.py", cwd=part)
    doc = w.show()
    assert doc["id"].startswith("vision-") and doc["origin"]["cwd"] == "projects/vision"
    assert (outputs(w) / "projects/vision/out/name").read_text() == "common"
    code = w.state / "runs" / doc["id"] / "attempts/1/tree"
    assert sorted(p.name for p in code.iterdir()) == ["libs", "projects"] and not (code / "libs/unused").exists()
    assert sorted(p.name for p in (code / "projects").iterdir()) == ["vision"]
    assert w.ok("submit", "-f", cwd=part).out.startswith("common ")


HYDRA = """
import os, hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    print(OmegaConf.to_yaml(cfg, resolve=True))
    here = HydraConfig.get().runtime.output_dir
    with open(os.path.join(here, "result.txt"), "w") as file:
        file.write(str(cfg.model.width * cfg.lr))

main()
"""


def test_hydra(w):
    prefix = venv(w.dir / "venv")
    pip_install(prefix, "hydra-core")
    tree(w, {"app.py": HYDRA, "conf/config.yaml": "defaults: [model: small, _self_]\nlr: 0.5\n",
             "conf/model/small.yaml": "width: 8\n", "conf/model/large.yaml": "width: 64\n",
             "dlrun.yaml": "outputs: [outputs, multirun]\n"}, "outputs/\nmultirun/\n__pycache__/\n")
    env = activated(w, prefix)
    said = same(w, "python", "app.py", "model=large", "lr=0.25", env=env)
    # The words of the command, and what Hydra has composed beside them.
    params = {k: str(v) for k, v in w.show()["params"].items()}
    assert "width: 64" in said.out and params == {"model": "large", "lr": "0.25", "model.width": "64"}, params

    def kept(base):
        """By their names below DATE/TIME, but those that say where and when it was."""
        return {p.relative_to(base).parts[2:]: p.read_bytes() for p in base.rglob("*")
                if p.is_file() and p.name not in ("hydra.yaml", "app.log")}

    assert kept(outputs(w) / "outputs") == kept(w.tree / "outputs") != {}
    result = w.ok("submit", "-f", "--", "python", "app.py", "-m", "model=small,large", env=env)
    assert {p.read_text() for p in (outputs(w) / "multirun").rglob("result.txt")} == {"4.0", "32.0"}, result


PROCESSES = """
import multiprocessing as mp, os, signal, sys, time

def square(x):
    return x * x

def leave(code):
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)

def linger():
    print("left", flush=True)
    open(f"lingers-{os.getpid()}", "w").close()
    time.sleep(600)

if __name__ == "__main__":
    for method in ("spawn", "fork", "forkserver"):
        context = mp.get_context(method)
        with context.Pool(2) as pool:
            print(method, pool.map(square, range(10)))
        family = [context.Process(target=leave, args=(code,)) for code in (0, 3, -9)]
        for process in family:
            process.start()
        for process in family:
            process.join()
        print(method, [process.exitcode for process in family], flush=True)
    if "--leave" in sys.argv:
        left = [mp.get_context(method).Process(target=linger) for method in ("fork", "spawn")]
        for process in left:
            process.start()
        end = time.monotonic() + float(sys.argv[sys.argv.index("--leave") + 1])
        while sum(name.startswith("lingers-") for name in os.listdir()) < len(left) and time.monotonic() < end:
            time.sleep(0.02)
        os._exit(5)
"""


def test_processes(w):
    tree(w, {"pool.py": PROCESSES})
    same(w, "python3", "pool.py")
    mark = f"mark-{w.dir.name}"
    result = w.run("submit", "-f", "--", "python3", "pool.py", "--leave", "30", mark)
    assert result.rc == 5 and "left" in result.out, result
    assert w.show()["exit"]["code"] == 5
    wait_for(lambda: not pids_with(mark), "nothing of it is left")
    wait_for(lambda: not [p for p in pids_with("multiprocessing") if w.dir.name in cwd_of(p)], "nothing spawned is")


def cwd_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


# --- data and results

READER = """
import csv, os
rows = list(csv.reader(open("data/train.csv"))) + list(csv.reader(open("data/sets/more.csv")))
print(len(rows), open("data/README").read().strip(), sorted(os.listdir("runs")))
os.makedirs("runs/exp1", exist_ok=True)
with open("runs/exp1/metrics.csv", "w") as out:
    csv.writer(out).writerows([a, int(b) * 2] for a, b in rows)
os.symlink("exp1", "runs/latest")
"""


CACHES = ("HF_HOME", "PIP_CACHE_DIR", "TORCH_HOME", "UV_CACHE_DIR")


def test_caches_of_a_target(w):
    """Where nothing else is said; runs of the target share them."""
    tree(w, {"show.py": f"import os\nfor name in {CACHES}:\n    print(name, os.environ.get(name), flush=True)\n",
             "dlrun.yaml": "targets: {local: {kind: local, caches: ~/shared}}\nenv: {TORCH_HOME: /mine}\n"})
    w.env["UV_CACHE_DIR"] = "/of/the/shell"
    for name in CACHES[:3]:
        w.env.pop(name, None)
    said = w.ok("submit", "-f", "-t", "local", "--", "python3", "show.py").out
    assert said.split() == ["HF_HOME", f"{w.home}/shared/huggingface", "PIP_CACHE_DIR", f"{w.home}/shared/pip", "TORCH_HOME", "/mine",
                            "UV_CACHE_DIR", "/of/the/shell"], said
    w.write("dlrun.yaml", "targets: {local: {kind: local, caches: relative}}\n")
    refused = w.run("submit", "-f", "-t", "local", "--", "true")
    assert refused.rc and "caches must be an absolute path" in refused.err, refused


def test_data_and_results_in_the_tree(w):
    """data/ is ignored but for a README; a part of it is a link to a large disk; runs/ holds a tracked file."""
    disk = w.dir / "disk/sets"
    w.write("more.csv", "c,3\n", base=disk)
    tree(w, {"train.py": READER, "data/README": "where it is from\n", "runs/.gitkeep": "",
             "dlrun.yaml": "data: [data/train.csv, ./data/sets/]\noutputs: [runs/]\n"},
         "/data/*\n!/data/README\nruns/*\n!runs/.gitkeep\n")
    w.write("data/train.csv", "a,1\nb,2\n")
    (w.tree / "data/sets").symlink_to(disk)
    said = same(w, "python3", "train.py")
    assert said.out == "3 where it is from ['.gitkeep']\n"
    wanted = hash_dir(w.tree / "runs")
    run = w.show()["id"]
    assert hash_dir(outputs(w) / "runs") == wanted
    w.ok("fetch", run, "-o", str(w.dir / "got"))
    assert hash_dir(w.dir / "got/runs") == wanted, hash_dir(w.dir / "got")
    w.ok("fetch", run, "runs/exp1/metrics.csv", "-o", str(w.dir / "one"))
    found = [p for p in (w.dir / "one").rglob("*") if p.is_file() and ".dlrun" not in str(p)]
    assert [p.read_bytes() for p in found] == [(w.tree / "runs/exp1/metrics.csv").read_bytes()], found
    assert w.git("status", "--porcelain").out == ""
    blobs = b"".join(p.read_bytes() for p in disk.rglob("*") if p.is_file())
    assert blobs == b"c,3\n", "data is not touched"


def test_names_of_all_kinds(w):
    """Spaces, other scripts, shell signs and names that look like options are paths like others."""
    names = ["a b", "größe", "$HOME", "-rf", "it's", "x\ty", "*", "#1", "Ω/\\n"]
    tree(w, {"go.py": "import os, sys\nfor i, line in enumerate(sys.argv[1:]):\n"
                      "    name = bytes.fromhex(line)\n    print(open(b'data/' + name).read())\n"
                      "    os.makedirs(b'out/' + name, exist_ok=True)\n"
                      "    open(b'out/' + name + b'/got', 'w').write(str(i))\n"}, "/data\n/out\n")
    for i, name in enumerate(names):
        w.write(f"data/{name}", f"{i}\n")
    w.write("dlrun.yaml", json.dumps({"data": [f"data/{n}" for n in names], "outputs": [f"out/{n}" for n in names]}))
    same(w, "python3", "go.py", *[n.encode().hex() for n in names])
    for i, name in enumerate(names):
        assert (outputs(w) / f"out/{name}/got").read_text() == str(i), name
    first = w.show()["id"]
    w.write("data/a b", "later\n")
    result = w.ok("submit", "-f", "--from", first)
    assert result.out.startswith("later\n"), "data is where it was, with what it is now"
    assert w.show()["id"] != first and (outputs(w) / "out/größe/got").exists()


def test_what_is_left_out_is_the_hint(w):
    tree(w, {"train.py": "print(open('data/train.csv').read())\n"}, "data/\n")
    w.write("data/train.csv", "1\n")
    result = w.run("submit", "-f", "--", "python3", "train.py")
    assert result.rc == 1, result
    check_error_form(result.err, "run.failed")
    assert re.search(r"hint: .*data", result.err) or "data/train.csv" in result.err, result
    w.write("dlrun.yaml", "data: [data]\n")
    assert w.ok("submit", "-f", "--", "python3", "train.py").out == "1\n\n"


def test_program_that_makes_its_outputs_anew(w):
    """`rm -r out; mkdir out` takes away what leads to the outputs: what is written then is moved there."""
    tree(w, {"go.sh": "rm -rf out\nmkdir out\necho $DLRUN_ATTEMPT > out/number\nmkdir -p out/deep\n"
                      "touch out/deep/$DLRUN_ATTEMPT\n[ $DLRUN_ATTEMPT = 2 ]\n",
             "dlrun.yaml": "outputs: [out]\nretries: 1\n"}, "out/\n")
    result = w.run("submit", "-f", "--", "sh", "go.sh")
    assert result.rc == 0, result
    assert (outputs(w) / "out/number").read_text() == "2\n"
    assert sorted(os.listdir(outputs(w) / "out/deep")) == ["1", "2"], "results of an attempt that failed are kept"
    w.ok("fetch", "@", "-o", str(w.dir / "got"))
    assert (w.dir / "got/out/number").read_text() == "2\n"


# --- attempts

TRAINER = """
import json, os, random, signal, sys
place = os.environ.get("DLRUN_OUTPUT_DIR", "local")
os.makedirs(place, exist_ok=True)
checkpoint = os.path.join(place, "checkpoint.json")
state = {"step": 0, "weight": 0.0, "lives": 0}
if os.path.exists(checkpoint):
    state = json.load(open(checkpoint))
state["lives"] += 1
for step in range(state["step"], 40):
    noise = random.Random(step).random()
    state["weight"] += 0.1 * (noise - state["weight"])
    state["step"] = step + 1
    with open(checkpoint + ".new", "w") as file:
        json.dump(state, file)
    os.replace(checkpoint + ".new", checkpoint)
    if "--fatal" in sys.argv and state["lives"] < 3 and step % 13 == 12:
        os.kill(os.getpid(), signal.SIGKILL)
print("weight", state["weight"], flush=True)
json.dump(state["weight"], open(os.path.join(place, "result.json"), "w"))
"""


def test_trainer_that_is_killed_resumes(w):
    tree(w, {"train.py": TRAINER}, "local/\n")
    wanted = in_tree(w, "python3", "train.py").out
    result = w.run("submit", "-f", "--retries", "2", "--", "python3", "train.py", "--fatal")
    assert result.rc == 0 and result.out.endswith(wanted), (wanted, result)
    doc = w.show()
    assert doc["state"] == "succeeded" and len(doc["attempts"]) == 3, doc
    assert [a["exit"]["signal"] for a in doc["attempts"]] == [9, 9, None]
    assert (outputs(w) / "result.json").read_bytes() == (w.tree / "local/result.json").read_bytes()
    assert json.loads((outputs(w) / "checkpoint.json").read_text())["lives"] == 3
    dirs = [w.state / "runs" / doc["id"] / "attempts" / str(n) for n in (1, 2, 3)]
    assert all(d.is_dir() for d in dirs), "each attempt has a directory of its own"

    result = w.run("submit", "-f", "--retries", "1", "--", "python3", "train.py", "--fatal")
    assert result.rc == 137 and len(w.show()["attempts"]) == 2, "one retry is not enough"
    check_error_form(result.err, "run.failed")
    run = w.show()["id"]
    w.write("train.py", "raise SystemExit('live tree')\n")
    w.ok("restart", run)
    doc = ended(w, run)
    assert doc["state"] == "succeeded" and len(doc["attempts"]) == 3, doc
    assert w.ok("logs", run).out.endswith(wanted)


def test_time_limit_with_a_signal_before_it(w):
    """USR1 some time before the limit: it saves, is ended by the limit, and restart goes on from there."""
    tree(w, {"train.sh": 'cd "$DLRUN_OUTPUT_DIR"\n[ -e saved ] && echo resumed && exit 0\n'
                         'trap "touch saved" USR1\necho up\nwhile :; do sleep 0.05; done\n'})
    result = w.run("submit", "-f", "--timeout", "9s", "--signal", "USR1@4", "--grace", "300ms", "--", "sh", "train.sh")
    assert result.rc == 124, result
    check_error_form(result.err, "run.timeout")
    assert (outputs(w) / "saved").exists()
    run = w.show()["id"]
    w.ok("restart", run)
    assert ended(w, run)["state"] == "succeeded" and w.ok("logs", run).out.endswith("resumed\n")


def test_results_of_a_path_outlive_attempts(w):
    """The same for a program that knows nothing of $DLRUN_OUTPUT_DIR."""
    tree(w, {"train.sh": "ls ckpt\nif [ -e ckpt/1 ]; then touch ckpt/2; else touch ckpt/1 scratch; exit 3; fi\nls\n",
             "ckpt/.gitkeep": "", "dlrun.yaml": "outputs: [ckpt]\nretries: 1\n"}, "ckpt/*\n!ckpt/.gitkeep\n")
    assert w.run("submit", "-f", "--", "sh", "train.sh").rc == 0
    assert sorted(os.listdir(outputs(w) / "ckpt")) == [".gitkeep", "1", "2"]
    assert "scratch" in w.ok("logs").out.split(), "what was collected from an attempt is there in the next"
    assert sorted(os.listdir(w.tree / "ckpt")) == [".gitkeep"]


if __name__ == "__main__":
    main()
