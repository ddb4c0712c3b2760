#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs in containers of a node's own podman, and what becomes of them.

The podman is the real one of this machine: with a storage of its own, an image that needs no network,
and a user who is root on the node. A docker that writes down what it is asked for stands for the other one.
"""

import contextlib
import json

from harness import *  # noqa: F403
from sshsite import UID, site

NAME = "localhost/tool:1"
TARGET = {"kind": "ssh", "hosts": ["gpu1"], "runtime": "podman"}
APPLETS = ("sh", "ls", "cat", "id", "sleep", "env", "echo", "kill", "mkdir", "touch", "true", "false", "test", "head", "tail", "readlink", "tr")
# Neither limits that only a machine's administrator may raise, nor an overlay.
PODMAN = f"""#!/bin/sh
echo "$*" >>/run/node/asked
verb=$1
shift
case $verb in
run) set -- --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 "$@" ;;
pull)
	sleep 1
	[ "$1" = localhost/pulled:1 ] || {{ echo 'Error: no such host: nowhere.example' >&2; exit 125; }}
	verb=import
	set -- /run/node/image.tar "$1"
	;;
esac
exec {shutil.which("podman")} --root /run/node/pods/root --runroot /run/node/pods/run --storage-driver vfs --cgroup-manager cgroupfs \\
	--runtime runc $verb "$@"
"""
CHANGES = ("--change", 'ENTRYPOINT ["/bin/env", "FRONT=entrypoint"]', "--change", "ENV NNODES=of-the-image")


def make_image(host):
    """A busybox whose ENTRYPOINT sets a variable."""
    root = host.dir / "image"
    for name in ("bin", "tmp", "etc", "root"):
        (root / name).mkdir(parents=True)
    shutil.copy(needs("busybox"), root / "bin/busybox")
    for name in APPLETS:
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc/where").write_text("in the image\n")
    with tarfile.open(host.dir / "image.tar", "w") as tar:
        tar.add(root, ".")
    done = host.command("podman", "import", *CHANGES, "/run/node/image.tar", NAME)
    if not done.rc:
        done = host.command("podman", "run", "--rm", "--network=host", NAME, "true")
    if done.rc:
        raise Skip(f"podman runs nothing here: {' '.join(done.err.split())[-200:]}")


@contextlib.contextmanager
def box(w, target=TARGET, **options):
    config = {"image": NAME, "targets": {"box": target}, **options}
    for program in ("podman", "conmon", "runc"):
        if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
            raise Missing(f"{program} is not installed")
    with site(w, settings={"PermitRootLogin": "yes"}) as s:
        host = s["gpu1"]
        for file in ("passwd", "group"):
            path = host.dir / "etc" / file
            path.write_text(path.read_text().replace(f":{UID}", ":0"))
        host.program("podman", PODMAN)
        make_image(host)
        w.write("dlrun.yaml", json.dumps(config))
        try:
            yield s
        finally:
            host.command("podman", "rm", "-f", "-a", "-t", "0")


def submit(w, *words):
    return w.ok("submit", "-d", "-t", "box", *words).out.strip()


def follow(w, *words, **more):
    return w.run("submit", "-f", "-t", "box", *words, **more)


def left(s):
    """Containers that are there."""
    return s["gpu1"].ok("podman", "ps", "-a", "--format", "{{.Names}}").split()


def test_a_program_in_a_container(w):
    with box(w, env={"WORDS": "a  'b' $c\nd", "PATH": "/bin:/extra"}, secrets=["TOKEN"], outputs=["out"], resources={"shm": "64Mi"}) as s:
        w.env["TOKEN"] = "cnry-99ab"
        w.write("exp/x", "from the tree\n")
        script = """cat /etc/where x; pwd; echo "$FRONT|$NNODES|$MASTER_ADDR|$WORDS|$PATH"; env | grep -c TOKEN=cnry-99ab
        mkdir -p "$DLRUN_OUTPUT_DIR" ../out/sub; echo kept >../out/sub/r; echo made >in-the-tree; echo it >"$DLRUN_ATTEMPT_DIR/a"; id -u; exit 3"""
        done = w.run("submit", "-f", "-t", "box", "--", "sh", "-c", script.replace("grep -c TOKEN=cnry-99ab", "cat"), cwd=w.tree / "exp")
        assert done.rc == 3, done
        for text in ("in the image\nfrom the tree\n/dlrun/src/exp\n", "entrypoint|of-the-image|127.0.0.1|a  'b' $c\nd|/bin:/extra\n",
                     "TOKEN=cnry-99ab\n", "\n0\n"):
            assert text in done.out, (text, done)
        run = w.runs()[0]
        assert run["exit"]["origin"] == "job" and run["exit"]["code"] == 3, run["exit"]
        assert (s.there(run["id"]).parent / "outputs/out/sub/r").read_text() == "kept\n"
        assert (s.there(run["id"]).parent / "outputs/exp/in-the-tree").read_text() == "made\n"
        assert (s.there(run["id"]) / "files/a").read_text() == "it\n"
        asked = (s["gpu1"].dir / "asked").read_text()
        assert "cnry-99ab" not in asked and "--shm-size=67108864b" in asked and "--ipc=host" not in asked, asked
        assert not left(s)


def test_caches_are_shared(w):
    """A directory of the node, in containers and beside them; made where it is not there."""
    there = "/run/node/scratch/caches"
    both = {"box": {**TARGET, "caches": there}, "bare": {"kind": "ssh", "hosts": ["gpu1"], "caches": there}}
    with box(w) as s:
        w.write("dlrun.yaml", json.dumps({"image": NAME, "targets": both}))
        script = 'mkdir -p "$HF_HOME" && cat "$HF_HOME"/* 2>/dev/null; echo $HF_HOME; echo {} >"$HF_HOME/model"'
        assert follow(w, "--", "sh", "-c", script.format("one")).out == f"{there}/huggingface\n"
        assert w.ok("submit", "-f", "-t", "bare", "--", "sh", "-c", script.format("two")).out == f"one\n{there}/huggingface\n"
        assert follow(w, "--env", "HF_HOME=/tmp", "--", "sh", "-c", "echo $HF_HOME $UV_CACHE_DIR").out == f"/tmp {there}/uv\n"
        assert (s["gpu1"].dir / "scratch/caches/huggingface/model").read_text() == "two\n"
        both["box"]["caches"] = "/dev/null/caches"
        w.write("dlrun.yaml", json.dumps({"image": NAME, "targets": both}))
        assert follow(w, "--", "true").rc == 125
        assert "the directory of caches: cannot be made: /dev/null/caches" in json.dumps(w.show()), w.show()


def test_limits_of_a_container(w):
    """Passed on where podman says that it has the controllers; else that is said, and the run goes on."""
    with box(w) as s:
        done = follow(w, "--memory", "64Mi", "--cpus", "0.5", "--", "cat", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
        doc, asked = w.show(), (s["gpu1"].dir / "asked").read_text()
        said = [text for text in doc["warnings"] if "not enforced" in text]
        assert doc["exit"]["code"] in (0, 1) and doc["exit"]["origin"] == "job", (doc["exit"], done)
        if said:
            assert "--memory" in said[0] and "--memory=" not in asked, (said, asked)
        else:
            assert "--memory=67108864b --memory-swap=67108864b" in asked and "--cpus=0.500" in asked, asked
            assert "67108864" in done.out, done


def test_before_and_the_entrypoint(w):
    with box(w, entrypoint="none", before="export SAID=before; test -e /run/node || SAID=$SAID-inside") as s:
        done = follow(w, "--", "sh", "-c", "echo [$FRONT] $SAID")
        assert done.out == "[] before-inside\n", done
        w.write("dlrun.yaml", json.dumps({"image": NAME, "command": "echo $SAID $FRONT | tr a-z A-Z", "targets": {
            "box": {**TARGET, "before": "export SAID=lines"}}}))
        done = follow(w)
        assert done.out == "LINES ENTRYPOINT\n", done
        assert follow(w, "--", "nowhere").rc in (125, 127) and not left(s)


def test_signals_and_cancel(w):
    with box(w) as s:
        done = follow(w, "--", "sh", "-c", "kill -9 $$")
        assert done.rc == 137 and w.runs()[0]["exit"]["signal"] in (9, "SIGKILL"), (done, w.runs()[0]["exit"])
        run = submit(w, "--grace", "20s", "--", "sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done")
        s.said_by(run, "up")
        w.ok("cancel", run)
        ended = s.ended(run)
        assert ended["state"] == "cancelled" and "bye" in w.ok("logs", run).out, (ended, w.ok("logs", run))
        run = submit(w, "--grace", "1s", "--", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done")
        s.said_by(run, "up")
        w.ok("cancel", run)
        assert s.ended(run)["state"] == "cancelled"
        done = follow(w, "--timeout", "2s", "--grace", "1s", "--", "sleep", "600")
        assert done.rc == 124, done
        wait_for(lambda: not left(s), "the end of all containers")


def test_stop_signal(w):
    """Once, though the tool and the init of the container pass on what they get."""
    line = "n=0; trap 'n=$((n + 1))' INT; trap 'echo term' TERM; echo up; while [ $n = 0 ]; do sleep 0.1; done; sleep 1; echo int $n"
    with box(w, stop_signal="INT") as s:
        run = submit(w, "--grace", "60s", "--", "sh", "-c", line)
        s.said_by(run, "up")
        w.ok("cancel", run, timeout=120)
        assert s.ended(run)["state"] == "cancelled", w.show(run)
        assert w.ok("logs", run).out == "up\nint 1\n", w.ok("logs", run)
        assert "--stop-signal=INT" in (s["gpu1"].dir / "asked").read_text()
        wait_for(lambda: not left(s), "the end of its container")


def test_programs_without_their_environment(w):
    """What a program knows nothing of, its processes are found by: SIGTERM comes before SIGKILL."""
    line = 'trap "echo got; exit 0" TERM; echo up; while true; do sleep 0.1; done'
    with box(w) as s:
        words = "--grace", "60s", "--", "env", "-i", "/bin/sh", "-c", line
        run = submit(w, *words)
        s.said_by(run, "up")
        w.ok("cancel", run, timeout=120)
        assert s.ended(run)["state"] == "cancelled", w.show(run)
        assert "got" in w.ok("logs", run).out, w.show(run)
        done = within_limit(lambda limit_s: follow(w, "--timeout", f"{limit_s}s", *words), lambda: "up" in w.ok("logs").out)
        assert done.rc == 124 and w.show()["state"] == "failed", (done, w.show())
        assert "up" in done.out and "got" in w.ok("logs").out, (done, w.show())
        wait_for(lambda: not left(s), "the end of all containers")


def cancel_in_time(w, run):
    """A busy machine may take longer to begin and end a container than the command waits; asked again, it waits again."""
    for _ in range(3):
        done = w.run("cancel", run)
        if done.rc == 0:
            return
        assert done.rc == 1 and "has not ended after" in done.err, done
    raise AssertionError(done)


def test_a_cancel_while_it_begins(w):
    with box(w) as s:
        runs = []
        for _ in range(4):
            runs.append(submit(w, "--grace", "1s", "--", "sleep", "600"))
            cancel_in_time(w, runs[-1])
        for run in runs:
            assert s.ended(run)["state"] == "cancelled"
        wait_for(lambda: not left(s), "the end of all containers")


def test_a_killed_client_leaves_nothing(w):
    with box(w) as s:
        run = submit(w, "--grace", "1s", "--", "sleep", "600")
        s.running(run)
        wait_for(lambda: left(s), "its container")
        s["gpu1"].kill(*(pid for pid, words in s["gpu1"].processes(f"dlrun-{run}-1") if " run " in words and "conmon" not in words))
        assert s.ended(run)["state"] == "failed"
        wait_for(lambda: not left(s), "the end of its container")


def test_commands_beside_it(w):
    with box(w) as s:
        run = submit(w, "--grace", "1s", "--", "sh", "-c", "echo up; sleep 600")
        s.said_by(run, "up")
        assert w.ok("exec", run, "--", "cat", "/etc/where").out == "in the image\n"
        assert w.run("exec", run, "--", "sh", "-c", "echo $DLRUN_RUN_ID; pwd; exit 7").out == f"{run}\n/dlrun/src\n"
        assert w.run("exec", run, "--", "sh", "-c", "exit 7").rc == 7
        with open(w.write("in", "words\n")) as given:
            assert w.run("exec", "-i", run, "--", "tr", "a-z", "A-Z", stdin=given).out == "WORDS\n"
        w.ok("cancel", run)
        s.ended(run)


def test_images_that_are_not_there(w):
    with box(w) as s:
        config = {"image": "localhost/pulled:1", "targets": {"box": TARGET}}
        w.write("dlrun.yaml", json.dumps(config))
        assert follow(w, "--", "cat", "/etc/where").out == "in the image\n"
        assert "pull localhost/pulled:1" in (s["gpu1"].dir / "asked").read_text()
        w.write("dlrun.yaml", json.dumps({**config, "image": "nowhere.example/x:1"}))
        done = follow(w, "--", "true")
        assert done.rc == 125 and "no such host: nowhere.example" in done.err + done.out, done
        w.write("dlrun.yaml", json.dumps({**config, "image": "scratch"}))
        n = len(w.runs())
        done = follow(w, "--", "true")
        assert done.rc == 2 and "needs an image" in done.err and len(w.runs()) == n, done
        w.write("dlrun.yaml", json.dumps({**config, "setup": {"run": "true"}}))
        done = follow(w, "--", "true")
        assert done.rc and "setup:" in done.err and len(w.runs()) == n, done
        w.write("dlrun.yaml", json.dumps({"image": NAME, "targets": {"box": {**TARGET, "runtime": "docker"}}}))
        s["gpu1"].program("docker", "")
        (s["gpu1"].dir / "bin/docker").unlink()
        done = follow(w, "--", "true")
        assert done.rc == 2 and "[node.tool]" in done.err and "docker" in done.err, done


DOCKER = """#!/bin/sh
for word; do printf '%s\\n' "$word" >>~/asked; done
case $1 in
image) echo PATH=/bin ;;
run) while [ "$1" != localhost/tool:1 ]; do shift; done; shift; exec "$@" ;;
esac
"""


def test_what_docker_is_asked_for(w):
    """Not a docker: only its words are looked at."""
    with site(w, gpus=3) as s:
        w.write("dlrun.yaml", json.dumps({"image": NAME, "targets": {"box": {**TARGET, "runtime": "docker"}}}))
        s["gpu1"].program("docker", DOCKER)
        done = follow(w, "-g", "2", "--memory", "64Mi", "--cpus", "1.5", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert done.out == "0,1\n", done
        asked = (s["gpu1"].home / "asked").read_text().splitlines()
        run = w.runs()[0]["id"]
        for words in (["--gpus", '"device=0,1"'], ["--user", f"{UID}:{UID}"], ["--name", f"dlrun-{run}-1"], ["--init"], ["--network=host"],
                      ["--ipc=host"], ["-w", "/dlrun/src"], ["-e", "CUDA_VISIBLE_DEVICES=0,1"],
                      ["--memory=67108864b", "--memory-swap=67108864b", "--cpus=1.500"], ["rm", "-f", f"dlrun-{run}-1"]):
            assert any(asked[at:at + len(words)] == words for at in range(len(asked))), (words, asked)


if __name__ == "__main__":
    main()
