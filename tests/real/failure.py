#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong: each gives a clear error in the stated form, the stated exit status, and leaves
nothing behind."""

import contextlib
import os
import resource
import subprocess

from harness import *  # noqa: F403


def test_root_and_home_are_no_trees(w):
    w.refused("push", cwd="/", id="snapshot.root", rc=2, says="/")
    w.refused("push", cwd=w.home, id="snapshot.root", rc=2)
    (w.dir / "link").symlink_to(w.home)
    w.refused("submit", "-d", "--", "true", cwd=w.dir / "link", id="snapshot.root", rc=2)


def test_no_home(w):
    w.repo()
    result = w.run("submit", "-d", "--", "true", env={"HOME": None})
    assert result.rc == 1
    check_error_form(result.err, "io.home")
    w.ok("--version", env={"HOME": None})
    w.ok("push", "--to", f"oci:{w.dir}/out",
         env={"HOME": None, "XDG_STATE_HOME": f"{w.dir}/s", "XDG_CACHE_HOME": f"{w.dir}/c", "XDG_DATA_HOME": f"{w.dir}/d"})


def test_usage(w):
    w.repo()
    for args, id, says in ((["submti"], "usage.command", "submit"), (["submit", "--imgae", "x", "--", "a"], "usage.option", "--image"),
                           (["submit", "-t", "nowhere", "--", "true"], "target", "nowhere"),
                           (["submit", "--timeout", "soon", "--", "true"], "usage", "soon"),
                           (["submit"], "run.command", ""), (["logs", "--tail"], "usage", "--tail"),
                           (["ps", "extra"], "usage", "extra"), (["submit", "-n", "!!!", "--", "true"], "run.name", "!!!")):
        w.refused(*args, id=id, rc=2, says=says)


def test_unknown_run(w):
    w.repo()
    for command in ("show", "logs", "why", "wait", "cancel", "rm", "diff"):
        w.refused(command, "nobody-23456", id="run.not_found", rc=5, says="nobody-23456")
    w.refused("logs", "@", id="run.not_found", rc=5)


def test_configuration_errors(w):
    w.repo()
    for text, id, says in (("imgae: x\n", "config.key", ["dlrun.yaml:1:1", "image"]), ("limits: 5\n", "config", "dlrun.yaml:1"),
                           ("a: [\n", "config.syntax", "dlrun.yaml:"), ("name: x\nname: y\n", "config.syntax", "dlrun.yaml:2:1"),
                           ("x: &a 1\ny: *a\n", "config.syntax", "dlrun.yaml:"), ("[" * 60000, "config.syntax", "dlrun.yaml")):
        w.write("dlrun.yaml", text)
        w.refused("submit", "-d", "--", "true", id=id, rc=2, says=says, timeout=20)


def test_json_is_valid_whatever_happens(w):
    w.repo()
    for args in (["submti"], ["submit", "--bad"], ["show", "nobody-23456"], ["ps"], ["push", "--image", "oci:/nowhere"],
                 ["config"], ["explain", "nope"], ["explain", "io.full"], ["gc"], ["targets"], ["why", "x"], ["help"],
                 ["submit", "-d", "--", "true"], ["wait", "@"], ["show", "@"], ["why", "@"], ["diff", "@"], ["rm", "@"]):
        result = w.run(*args, "--json") if args[0] != "submit" else w.run("--json", *args)
        for line in result.out.splitlines() or ["(nothing)"]:
            doc = json.loads(line)
            assert doc["schema"].startswith("dlrun/") and doc["schema"].endswith("/v1"), doc
        if result.rc not in (0,):
            assert doc["schema"] == "dlrun/error/v1" and doc["error"]["exit"] == result.rc, (args, doc)


def test_state_directory_that_cannot_be_written(w):
    w.repo()
    w.as_nobody()
    (w.home / ".local/state").mkdir(parents=True)
    subprocess.run(["chown", "-R", "65534", str(w.home)], check=False)
    (w.home / ".local/state").chmod(0o500)
    result = w.run("submit", "-d", "--", "true")
    assert result.rc == 4, result
    check_error_form(result.err, "io.permission")
    assert str(w.home / ".local/state") in result.err


def test_state_directory_open_to_others(w):
    w.repo()
    w.state.mkdir(parents=True)
    w.state.chmod(0o777)
    result = w.run("submit", "-d", "--", "true")
    assert result.rc == 4, result
    check_error_form(result.err, "io.permission")


def small_disk(w, name, size):
    there = w.dir / name
    there.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(there)], capture_output=True).returncode:
        raise Skip("cannot mount a tmpfs here")
    return there


def test_full_disk(w):
    w.repo({"a": os.urandom(300_000).hex()})
    disks = []
    try:
        for i, variable in enumerate(("XDG_DATA_HOME", "XDG_STATE_HOME")):
            disks.append(small_disk(w, f"disk{i}", "256k" if variable == "XDG_DATA_HOME" else "16k"))
            result = w.run("submit", "-d", "--", "true", env={variable: str(disks[-1])})
            assert result.rc == 1, result
            check_error_form(result.err, "io.full")
            left = [p for p in disks[-1].rglob("*") if "tmp" in p.name or p.name.startswith(".")]
            assert not [p for p in left if p.is_file() and p.stat().st_size], left
        disks.append(small_disk(w, "cache", "8k"))
        w.ok("push", "--to", f"oci:{w.dir}/out", env={"XDG_CACHE_HOME": str(disks[-1])})
    finally:
        for disk in disks:
            subprocess.run(["umount", "-l", str(disk)])


FILL = """import os, sys, time
print("up", flush=True)
with open(os.environ["DLRUN_OUTPUT_DIR"] + "/big", "wb", buffering=0) as f:
    try:
        while True:
            for size in (1 << 16, 4096, 1):
                while True:
                    try:
                        f.write(b"x" * size)
                    except OSError:
                        break
            f.write(b"x")
    finally:
        if sys.argv[1] == "stays":
            time.sleep(600)
"""


@contextlib.contextmanager
def small_state(w, name="state"):
    disk = small_disk(w, name, "4m")
    w.env["XDG_STATE_HOME"] = str(disk)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)])


def free(disk):
    st = os.statvfs(disk)
    return st.f_bavail * st.f_frsize


def test_a_program_fills_the_disk_of_its_log(w):
    """Its last words are kept, its end is known and told, and its space comes back."""
    w.repo({"fill.py": FILL})
    with small_state(w) as disk:
        before = free(disk)
        done = w.run("submit", "-f", "--", "python3", "fill.py", "ends")
        assert done.rc == 1, done
        run = w.show()["id"]
        assert "No space left on device" in w.ok("logs", run).out, w.run("logs", run)
        why = w.ok("why", run).out
        assert "a disk is full" in why and "No space left" in why, why
        assert w.show(run)["state"] == "failed"
        w.ok("rm", run)
        assert free(disk) > before - 300_000 and w.runs() == []


def test_one_that_stays_on_a_full_disk_is_removed(w):
    """Stopped and removed, by either order of commands."""
    w.repo({"fill.py": FILL})
    for words in (["rm", "-f"], ["cancel"]):
        with small_state(w, f"state-{words[0]}") as disk:
            w.ok("submit", "-d", "--", "python3", "fill.py", "stays")
            run = w.show()["id"]
            wait_for(lambda d=disk: free(d) == 0, "a full disk", 30)
            w.ok(*words, run)
            if words == ["cancel"]:
                assert w.show(run)["state"] == "cancelled"
                w.ok("rm", run)
            assert free(disk) > 2 << 20 and w.runs() == []
            w.ok("submit", "-f", "--", "true")


def test_limit_on_file_size(w):
    w.repo({"a": os.urandom(300_000).hex()})
    result = w.run("push", "--to", f"oci:{w.dir}/out",
                   preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))
    assert result.rc != 0
    assert not any(p.is_file() and p.stat().st_size > 65536 for p in w.dir.rglob("*") if "tree" not in str(p) and ".git" not in str(p))


def test_few_descriptors(w):
    w.repo({f"a/b{i}/c{i}": "x" for i in range(300)})
    result = w.run("submit", "-f", "--", "true", preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)))
    if result.rc:
        assert result.err.startswith("error: ") or "error: " in result.err, result


def test_closed_streams(w):
    w.repo()
    for close in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = w.command(["sh", "-c", f"{w.dlrun} submit -d -- true {close}"])
        assert done.rc in (0, 1), done
    assert w.git("status", "--porcelain").out == ""
    assert w.ok("ps", "-a", "--json")


def test_damaged_store(w):
    w.repo()
    w.ok("submit", "-d", "--", "true")
    w.ok("wait", "@")
    (w.state / "runs.db").write_bytes(b"this is no database" * 500)
    result = w.run("ps")
    assert result.rc == 1
    check_error_form(result.err, "store")
    assert "runs.db" in result.err


def test_hostile_names_reach_no_terminal(w):
    w.repo()
    w.write(b"\x1b]0;evil\x07.env", "SECRET=1")
    w.write(b".wh.\x1b[2Jx", "1")
    result = w.run("push")
    assert result.rc == 1 and "\x1b" not in result.err and "\x07" not in result.err, result


def test_help_and_version_need_nothing(w):
    for args in (["--version"], ["--help"], ["help"], ["-h"], ["submit", "-h"], ["explain", "io.full"]):
        result = w.ok(*args, env={"HOME": None, "PATH": None}, cwd="/")
        assert result.out
    assert not w.state.exists() and not w.cache.exists()


if __name__ == "__main__":
    main()
