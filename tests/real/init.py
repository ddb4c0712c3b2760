#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`dlrun init` in projects of every kind: what it writes is a configuration that dlrun takes, and
says what the project says."""

import base64
import fcntl
import pty
import select
import termios

from carry import Api
from harness import *  # noqa: F403

sys.path.append(str(Path(__file__).resolve().parents[1] / "fake"))
from registry import Registry  # noqa: E402


def tools(w, *names):
    """Programs on PATH that do nothing: what is proposed must not depend on this machine."""
    for name in ("git", "sh", *names):
        path = w.dir / "bin" / name
        path.parent.mkdir(exist_ok=True)
        if name in ("git", "sh"):
            path.symlink_to(shutil.which(name))
        else:
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)
    w.env["PATH"] = str(w.dir / "bin")


def value(w, key, cwd=None):
    values = json.loads(w.ok("config", "--json", cwd=cwd).out)["values"]
    return values.get(key, {}).get("value") if key in values else None


def init(w, *args, cwd=None, **options):
    """Writes the file; every line of it has a comment."""
    said = json.loads(w.ok("init", "--json", *args, cwd=cwd, **options).out)
    assert said["schema"] == "dlrun/init/v1" and said["written"], said
    assert Path(said["path"]).read_text() == said["text"]
    for line in said["text"].splitlines():
        assert "# " in line, line
    assert not list(Path(said["path"]).parent.glob(".dlrun*")), "a temporary file was left"
    return said["text"]


def test_uv(w):
    tools(w, "uv", "python")
    w.repo({"pyproject.toml": '[project]\nname = "Great_Net"\n[project.scripts]\nfit = "net:main"\n', "uv.lock": "version = 1\n",
            "train.py": "", ".gitignore": "/data\nruns/\n.python-version\n"})
    w.write("data/a/b.bin", b"x" * 5000)
    w.write(".python-version", "3.12\n")
    text = init(w)
    w.ok("submit", "--dry-run")  # what init writes is valid, and what git ignores is no key
    assert value(w, "name") == "great-net"
    assert value(w, "command") == ["uv", "run", "--no-sync", "python", "train.py"]
    assert value(w, "environment.lock") == "uv.lock"
    assert value(w, "data") == ["data"] and "4.9 KiB" in text
    assert value(w, "outputs") is None  # collected without being named


def test_uv_that_is_not_installed(w):
    tools(w, "python3")
    w.repo({"pyproject.toml": "[tool.uv]\n", "uv.lock": "", "main.py": ""})
    assert "# environment: {lock: uv.lock}" in init(w)
    assert value(w, "command") == ["python3", "main.py"] and value(w, "environment.lock") is None


def test_uv_lock_that_git_ignores(w):
    """A key must be in the snapshot."""
    tools(w, "uv", "python")
    w.repo({"pyproject.toml": "[tool.uv]\n", ".gitignore": "uv.lock\n", "main.py": ""})
    w.write("uv.lock", "")
    assert "uv.lock" not in init(w)
    assert value(w, "command") == ["uv", "run", "python", "main.py"]


def test_poetry(w):
    tools(w, "poetry", "python")
    w.repo({"sub/poetry.lock": "", "sub/main.py": ""})
    assert "# setup: {run: poetry install --no-interaction, key: [sub/poetry.lock]}" in init(w, cwd=w.tree / "sub")


def test_requirements_and_venv(w):
    tools(w, "python", "python3")
    w.repo({"requirements.txt": "torch\n", "run.py": "", "setup.py": "from setuptools import setup\nsetup(name='thing')\n",
            ".gitignore": ".venv/\n"})
    w.write(".venv/bin/python", "")
    text = init(w)
    assert value(w, "name") == "thing" and value(w, "command") == ["python", "run.py"]
    assert "# environment: {lock: requirements.txt}" in text and value(w, "data") is None


def test_conda(w):
    tools(w, "python")
    w.repo({"environment.yml": "name: vision\ndependencies: [python=3.11]\n", "src/train.py": ""})
    text = init(w)
    assert "# environment: {lock: environment.yml}" in text and value(w, "environment.lock") is None
    assert value(w, "command") == ["python", "src/train.py"]


def test_dockerfile(w):
    w.repo({"Dockerfile": "ARG TAG=2.5\nFROM pytorch/pytorch:${TAG} AS Base\nRUN x\nFROM base AS app\nFROM app\n", "train.sh": "#!/bin/sh\n"})
    (w.tree / "train.sh").chmod(0o755)
    text = init(w)
    assert '# image: "docker.io/pytorch/pytorch:2.5"' in text and value(w, "image") == "scratch"
    assert value(w, "command") == ["./train.sh"]


def test_image_of_the_projects_python(w):
    """Proposed as a comment where there is no cluster; a Dockerfile knows better."""
    tools(w, "python3")
    w.repo({"train.py": ""})
    for name, text, version in ((".python-version", "3.11.4\n", "3.11"), (".python-version", "cpython-3.10\n", "3.10"),
                                (".python-version", "system\n", None), ("pyproject.toml", '[project]\nrequires-python = "~=3.9"\n', "3.9"),
                                ("pyproject.toml", '[project]\nrequires-python = ">=3.8"\n', "3.12"),
                                ("pyproject.toml", '[project]\nrequires-python = ">=3.8,<3.11"\n', "3.8"),
                                ("pyproject.toml", '[project]\nrequires-python = ">=3.13"\n', "3.13"),
                                ("pyproject.toml", '[project]\nrequires-python = "*"\n', None)):
        w.write(name, text)
        said = init(w, "--force")
        found = re.findall(r"(?m)^# image: \"?docker.io/library/python:([0-9.]+)-slim\"? +# the Python of (\S+):", said)
        assert found == ([(version, name)] if version else []), (text, said)
        (w.tree / name).unlink()
    w.write(".python-version", "3.11\n")
    w.write("Dockerfile", "FROM python:3.9-slim\n")
    assert "python:3.9-slim" in init(w, "--force") and "python:3.11" not in init(w, "--force")


def test_base_with_the_interpreter(w):
    """With a cluster: an image is proposed in any case, and one that has no Python is not."""
    tools(w, "python3")
    w.repo({"train.py": ""})
    w.write(".kube/config", json.dumps({"contexts": [{"name": "lab"}], "current-context": "lab"}), base=w.home)

    def proposed(*words):
        w.ok("init", "--force", "--target", "kube", *words)
        return value(w, "image")

    assert proposed() == "docker.io/library/python:3.12-slim"
    w.write(".python-version", "3.11\n")
    assert proposed() == "docker.io/library/python:3.11-slim"
    w.write(".config/dlrun/config.yaml", "bases: [mirror.example/python]\n", base=w.home)
    assert proposed() == "mirror.example/python:3.11-slim"
    (w.home / ".config/dlrun/config.yaml").unlink()
    with Registry() as registry:
        for name, layers, history, env, has in (
                ("python", 4, "x", ["PYTHON_VERSION=3.12.7"], True), ("own", 4, "COPY x /", [], True),
                ("conda", 3, "x", ["PATH=/opt/conda/bin:/bin"], True), ("apt", 2, "RUN apt-get install -y python3", [], True),
                ("debian", 1, "# debian.sh --arch 'amd64'", [], False), ("one", 1, "ADD file:1 in / ", [], False)):
            registry.add_image(f"base/{name}", "1", layers=layers,
                               config={"config": {"Env": env}, "history": [{"created_by": history}] * layers})
            there = f"{registry.address}/base/{name}:1"
            w.write("Dockerfile", f"FROM {there}\nRUN x\n")
            assert proposed() == (there if has else "docker.io/library/python:3.11-slim"), name
            text = (w.tree / "dlrun.yaml").read_text()
            assert (f"{there} has no python3" in text) == (not has) and ("its Env has PYTHON_VERSION" in text) == (name == "python"), text
        # Who asks for no more than the text asks nobody.
        mark = len(registry.find("GET"))
        assert f"{registry.address}/base/one:1" in w.ok("init", "--print", "--target", "kube").out
        assert len(registry.find("GET")) == mark
        # A program of its own says what it runs in.
        (w.tree / "train.py").unlink()
        w.write("train.sh", "#!/bin/sh\n")
        (w.tree / "train.sh").chmod(0o755)
        assert proposed() == f"{registry.address}/base/one:1" and value(w, "command") == ["./train.sh"]
    w.write("train.py", "")
    said = w.ok("init", "--force", "--target", "kube").err
    assert "base/one:1: not checked: " in said and value(w, "image").endswith("/base/one:1"), said


def test_base_with_uv(w):
    tools(w, "uv", "python3")
    w.repo({"pyproject.toml": "[project]\nname = 'net'\nrequires-python = '>=3.10'\n", "uv.lock": "version = 1\n", "train.py": ""})
    assert '# image: "ghcr.io/astral-sh/uv:python3.12-bookworm"' in init(w)


def test_makefile_and_package(w):
    w.repo({"Makefile": "train: data\n\techo\n", "package.json": '{"name": "@scope/app", "scripts": {"start": "node ."}}'})
    init(w)
    assert value(w, "command") == ["make", "train"] and value(w, "name").endswith("app")


def test_part_of_a_repository(w):
    tools(w, "python")
    w.repo({"README": "", "exp/vision/pyproject.toml": '[project]\nname = "vision"\n', "exp/vision/train.py": "",
            ".gitignore": "data/\noutputs\n"})
    w.write("exp/vision/data/x", "1")
    w.write("exp/other/data/x", "1")
    (w.tree / "exp/vision/deep/er").mkdir(parents=True)
    init(w, cwd=w.tree / "exp/vision/deep/er")
    there = w.tree / "exp/vision"
    assert (there / "dlrun.yaml").exists() and not (w.tree / "dlrun.yaml").exists()
    assert value(w, "name", there) == "vision" and value(w, "paths", there) is None
    assert value(w, "data", there) == ["exp/vision/data", "exp/other/data"] and value(w, "outputs", there) is None
    (w.tree / "dlrun.yaml").write_text("name: all\n")
    (there / "dlrun.yaml").unlink()
    assert "does not count" in w.ok("init", cwd=there).err


def test_empty_directory(w):
    text = init(w)
    assert "# command:" in text and value(w, "command") is None


def test_what_is_written_can_be_run(w):
    tools(w, "python3")
    (w.dir / "bin/python3").unlink()
    (w.dir / "bin/python3").symlink_to("/bin/sh")
    w.repo({"main.py": "cat data/x; mkdir -p runs; echo new >runs/y; echo done\n", ".gitignore": "data\nruns\n"})
    w.write("data/x", "seen\n")
    w.env["PATH"] += ":/bin:/usr/bin"
    w.write(w.dir / "bin/python", "#!/bin/sh\nexec sh \"$@\"\n", 0o755)
    init(w)
    result = w.ok("submit", "-f")
    assert result.out == "seen\ndone\n", result
    assert not (w.tree / "runs").exists()


HOSTILE = ["a b", "#c", "- d", "e: f", "g\nimage: evil", "h\u2028image: evil", "\u202ei", "j\"k'l", "m\\n", "%TAG", "[n]", "{o}", "\x1b[31mp", "~", "null"]


def test_hostile_names(w):
    w.repo({".gitignore": "/data/*\n!/data/.keep\n", "data/.keep": ""})
    for i, name in enumerate(HOSTILE):
        for old in (w.tree / "data").iterdir():
            if old.name != ".keep":
                shutil.rmtree(old)
        w.write(f"data/{name}/x", "1")
        w.write("pyproject.toml", f"[project]\nname = {json.dumps(name)}\n")
        w.write("Dockerfile", f"FROM {name.split(chr(10))[0]}\n")
        w.write(".ssh/config", f"Host {name}\n", base=w.home)
        w.write(".kube/config", json.dumps({"contexts": [{"name": name}], "current-context": name}), base=w.home)
        init(w, "--force")
        assert value(w, "data") == [f"data/{name}"], name
        assert value(w, "image") == "scratch" and value(w, "target") == "local"
        for text in (w.ok("init", "--print").out, w.ok("init", "--force").err):
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u2028\u202e]", text), (name, text)


def test_a_name_that_is_no_text(w):
    w.repo({".gitignore": "/data\n"})
    there = os.path.join(os.fsencode(w.tree), b"sub\xff")
    os.mkdir(there)
    w.write(b"sub\xff/train.py", b"")
    os.mkdir(os.path.join(there, b"runs"))
    said = json.loads(w.ok("init", "--json", cwd=there).out)
    assert base64.b64decode(said["path_b64"]) == there + b"/dlrun.yaml"
    assert value(w, "name", there) == "sub" and value(w, "outputs", there) is None


def test_files_that_make_no_sense(w):
    """Unknown is not an error."""
    w.repo()
    for name in ("pyproject.toml", "setup.cfg", "setup.py", "package.json", "environment.yml", "Dockerfile", "Makefile", "requirements.txt", "uv.lock"):
        w.write(name, os.urandom(3000))
    w.write(".kube/config", "x: &a [*a]\n", base=w.home)
    w.write(".ssh/config", os.urandom(3000), base=w.home)
    init(w)
    for name in ("pyproject.toml", "Dockerfile"):
        w.write(name, b"[" * (2 << 20))
    (w.tree / "package.json").unlink()
    os.mkfifo(w.tree / "package.json")
    (w.tree / "setup.cfg").unlink()
    (w.tree / "setup.cfg").mkdir()
    (w.tree / "setup.py").unlink()
    (w.tree / "setup.py").symlink_to("/dev/zero")
    init(w, "--force", timeout=60)


def test_ssh_configurations_that_include_each_other(w):
    w.repo()
    for i in range(20):
        w.write(f".ssh/config{i or ''}", "Include config*\n" + (f"Host gpu{i}\n" if i < 3 else ""), base=w.home)
    assert "gpu1" in w.ok("init", "--print", timeout=30).out


def test_much_data(w):
    w.repo({".gitignore": "data\n"})
    for i in range(200):
        (w.tree / f"data/{i}").mkdir(parents=True)
        for k in range(50):
            (w.tree / f"data/{i}/{k}").write_bytes(b"x" * 100)
    began = running_time()
    init(w)
    assert running_time() - began < 20
    assert value(w, "data") == ["data"]


def test_data_that_is_a_link(w):
    w.repo({".gitignore": "data\n"})
    w.write("x", b"x" * 5000, base=w.dir / "elsewhere")
    (w.tree / "data").symlink_to(w.dir / "elsewhere")
    assert "4.9 KiB" in init(w) and value(w, "data") == ["data"]
    (w.tree / "data").unlink()
    (w.tree / "data").symlink_to(w.dir / "nowhere")
    init(w, "--force")


def test_tracked_results_are_no_outputs(w):
    w.repo({"results/table.csv": "1\n", "runs/x": "", ".gitignore": "runs\nlogs\nwandb\n"}, commit=False)
    w.git("add", "-f", "-A")
    w.git("commit", "-qm", "start")
    (w.dir / "elsewhere").mkdir()
    (w.tree / "logs").symlink_to(w.dir / "elsewhere")
    init(w)
    assert value(w, "outputs") is None
    w.write(".kube/config", json.dumps({"contexts": [{"name": "lab"}], "current-context": "lab"}), base=w.home)
    init(w, "--force", "--target", "kube")
    assert value(w, "outputs") == ["wandb"]


def test_what_programs_wrote_is_no_data(w):
    w.repo({"train.py": "", ".gitignore": "/data/*\nruns\nout/\nlightning_logs\n/models\n__pycache__\n"})
    for path in ("runs/a", "data/runs/a", "out/a", "lightning_logs/a", "models/run1/events.out.tfevents.1.host", "data/__pycache__/x.pyc", "data/set/x"):
        w.write(path, "1")
    init(w)
    assert value(w, "data") == ["data/set"] and value(w, "outputs") is None


def test_active_environment(w):
    """The run has that of the shell: nothing is installed beside it."""
    tools(w, "uv", "python")
    w.repo({"pyproject.toml": "[project]\nname = 'net'\n", "uv.lock": "version = 1\n", "train.py": ""})
    w.env["VIRTUAL_ENV"] = str(w.tree / ".venv")
    assert "# environment:" in init(w) and value(w, "environment.lock") is None
    assert value(w, "command") == ["python", "train.py"]


def test_existing_file(w):
    w.repo({"dlrun.yaml": "name: mine\n"})
    w.refused("init", id="init.exists", rc=1, says="dlrun.yaml")
    w.refused("init", "--yes", id="init.exists", rc=1)
    assert (w.tree / "dlrun.yaml").read_text() == "name: mine\n"
    w.ok("init", "--print")
    w.ok("init", "--force")
    assert (w.tree / "dlrun.yaml~").read_text() == "name: mine\n" and value(w, "name") == "tree"


def test_broken_file_is_replaced(w):
    w.repo({"dlrun.yaml": "imgae: [\n"})
    w.refused("init", id="init.exists", rc=1)
    w.ok("init", "--force")
    w.ok("config")


def test_many_at_once(w):
    w.repo()
    workers = [subprocess.Popen([w.dlrun, "init"], cwd=w.tree, env=w.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE) for _ in range(8)]
    codes = sorted(p.wait(timeout=60) for p in workers)
    for p in workers:
        p.stdout.close(), p.stderr.close()
    assert codes == [0] + [1] * 7, codes
    assert sorted(p.name for p in w.tree.iterdir()) == [".git", "a.py", "dlrun.yaml"]


def storage_class(name, default):
    note = {"storageclass.kubernetes.io/is-default-class": default} if default else {}
    return {"metadata": {"name": name, "annotations": note}, "provisioner": "x"}


def test_storage_for_results(w):
    """A claim for each run where the cluster would serve it, and a comment everywhere else."""
    default = [storage_class("slow", None), storage_class("no", "false"), storage_class("fast\nkind: evil", "true"), storage_class("b", "true")]
    w.write("train.py", "1\n")
    with Api() as api:
        api.configure(w)
        for classes, forbidden, claims in ((default, (), True), (default[:2], (), False), ([], (), False), ("x", (), False),
                                           (default, ("storageclasses",), False), (default, ("persistentvolumeclaims",), False)):
            api.items, api.forbidden, api.asked = {"storageclasses": classes}, set(forbidden), []
            text = init(w, "--force", "--target", "kube", "--registry", "reg.lab/me")
            lines = [line for line in text.splitlines() if "results:" in line and "{" in line]
            wanted = "    results: {claim: 20Gi}" if claims else "#     results: {pvc: results}"
            assert len(lines) == 1 and lines[0].startswith(wanted), (classes, forbidden, text)
            assert "\nkind: evil" not in text and ("fast" in lines[0]) == claims, text
            assert ("claim" in w.ok("config", "targets").out) == claims
            # Who may make no claim has no use for their classes.
            assert api.asked.count("storageclasses") == ("persistentvolumeclaims" not in forbidden), api.asked


def test_nowhere(w):
    w.refused("init", cwd="/", id="snapshot.root", rc=2)
    w.refused("init", cwd=w.home, id="snapshot.root", rc=2)


def test_directory_that_cannot_be_written(w):
    w.as_nobody()
    w.tree.chmod(0o555)
    w.refused("init", id="io.permission", rc=4, says=str(w.tree))


# --- a terminal


class Terminal:
    """dlrun on a terminal of its own."""

    def __init__(self, w, *args, cwd=None):
        self.fd, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, b"\x18\x00\x50\x00\x00\x00\x00\x00")
        self.process = subprocess.Popen([w.dlrun, *args], cwd=cwd or w.tree, env={**w.env, "NO_COLOR": "1"}, stdin=other, stdout=other,
                                        stderr=other, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(other)
        self.said = ""

    def wait_for(self, text):
        end = time.monotonic() + 30
        while text not in self.said:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"{text!r} is not said: {self.said!r}"
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            assert data, f"the end came before {text!r}: {self.said!r}"
            self.said += data.decode()
        before, _, self.said = self.said.partition(text)
        return before

    def answer(self, question, keys):
        before = self.wait_for(question)
        os.write(self.fd, keys)
        return before

    def end(self):
        while select.select([self.fd], [], [], 30)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            if not data:
                break
            self.said += data.decode()
        try:
            return self.process.wait(timeout=30)
        finally:
            os.close(self.fd)
            self.process.kill()


def project_with_questions(w):
    tools(w, "python")
    w.repo({"exp/a/train.py": "", "exp/a/main.py": "", ".gitignore": "data\n"})
    w.write("exp/a/data/x", "1")
    return w.tree / "exp/a"


def test_answers(w):
    there = project_with_questions(w)
    terminal = Terminal(w, "init", cwd=there)
    terminal.answer("What runs? [python train.py] or python main.py ", b"make it # now\n")
    terminal.answer("Send only exp/a, not the whole repository? [y/N] ", b"maybe\n")
    terminal.answer("[y/N] ", b"y\n")
    terminal.answer("Let runs use exp/a/data, which git ignores? [Y/n] ", b"n\n")
    assert terminal.end() == 0, terminal.said
    assert value(w, "command", there) == "make it # now" or value(w, "command", there) == ["make it # now"]
    assert value(w, "paths", there) == ["exp/a"] and value(w, "data", there) is None


def test_enter_takes_what_is_proposed(w):
    there = project_with_questions(w)
    terminal = Terminal(w, "init", cwd=there)
    for question in ("What runs?", "repository?", "ignores?"):
        terminal.answer(question, b"\n")
    assert terminal.end() == 0, terminal.said
    typed = (there / "dlrun.yaml").read_text()
    (there / "dlrun.yaml").unlink()
    terminal = Terminal(w, "init", cwd=there)
    terminal.answer("What runs?", b"\x04")
    assert terminal.end() == 0, terminal.said
    assert (there / "dlrun.yaml").read_text() == typed
    (there / "dlrun.yaml").unlink()
    terminal = Terminal(w, "init", "--yes", cwd=there)
    assert terminal.end() == 0 and "What runs?" not in terminal.said
    assert (there / "dlrun.yaml").read_text() == typed
    (there / "dlrun.yaml").unlink()
    w.ok("init", cwd=there)
    assert (there / "dlrun.yaml").read_text() == typed


def test_interrupt_leaves_nothing(w):
    there = project_with_questions(w)
    for question in ("What runs?", "repository?", "ignores?"):
        terminal = Terminal(w, "init", cwd=there)
        for earlier in ("What runs?", "repository?", "ignores?"):
            terminal.wait_for(earlier)
            if earlier == question:
                break
            os.write(terminal.fd, b"\n")
        os.write(terminal.fd, b"\x03")
        assert terminal.end() == 130, terminal.said
        assert sorted(p.name for p in there.iterdir()) == ["data", "main.py", "train.py"]


def test_existing_file_is_said_before_questions(w):
    there = project_with_questions(w)
    (there / "dlrun.yaml").write_text("name: mine\n")
    terminal = Terminal(w, "init", cwd=there)
    assert terminal.end() == 1
    assert "What runs?" not in terminal.said and "init.exists" in terminal.said


if __name__ == "__main__":
    main()
