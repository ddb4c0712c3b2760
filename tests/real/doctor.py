#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`dlrun doctor`: it tells what is wrong, names the fix, changes nothing, and never waits for what
does not answer."""

from attempts import supervisors
from harness import *  # noqa: F403

IDS = ["home", "config", "access", "space", "network", "locks", "clock", "records", "leftovers", "tree", "proxy", "registry", "base", "kubeconfig", "cluster", "node",
       "git", "program", "gpu", "logout", "limits", "terminal"]


def doctor(w, **options):
    """Status and row of each check."""
    began = running_time()
    result = w.run("doctor", "--json", **options)
    assert running_time() - began < 20, "it took too long"
    doc = json.loads(result.out)
    assert doc["schema"] == "dlrun/doctor/v1" and [c["id"] for c in doc["checks"]] == IDS, doc
    for row in doc["checks"]:
        assert list(row) == ["id", "status", "found", "cause", "fix"] and row["found"], row
        assert row["status"] in ("ok", "warning", "problem")
        assert (row["cause"] is None) == (row["status"] == "ok"), row
    problems = [c["id"] for c in doc["checks"] if c["status"] == "problem"]
    assert result.rc == (1 if problems else 0), result
    return {c["id"]: c for c in doc["checks"]}


def a_run_that_is_over(w):
    """A worker of it may still prepare the next attempts."""
    w.ok("submit", "-f", "--", "true")
    run = w.show()["id"]
    wait_for(lambda: not supervisors(run), "its supervisor has ended")


def expect(rows, id, status, cause=""):
    assert rows[id]["status"] == status and cause in (rows[id]["cause"] or ""), rows[id]
    return rows[id]


def test_all_is_well(w):
    w.repo()
    rows = doctor(w)
    for id in ("home", "config", "access", "locks", "clock", "records", "leftovers", "tree", "git", "terminal"):
        expect(rows, id, "ok")
    assert "1 file" in rows["tree"]["found"] and "git version" in rows["git"]["found"]
    assert not (w.home / ".local").exists(), "looking made something"
    a_run_that_is_over(w)
    before = hash_dir(w.state)
    rows = doctor(w)
    assert rows["records"]["found"] == "1 run"
    expect(rows, "access", "ok")
    assert not [p for p in w.state.rglob("*") if "doctor" in p.name]
    changed = {k for k in before if before[k] != hash_dir(w.state).get(k)}
    assert not changed - {"runs.db", "gc.lock"}, changed


def test_for_people(w):
    w.repo({"dlrun.yaml": "imgae: x\n"})
    result = w.run("doctor")
    assert result.rc == 1 and "1 problem" in result.err, result
    lines = result.out.splitlines()
    assert any(line.startswith("problem  configuration") for line in lines), result
    assert any("dlrun.yaml:1" in line for line in lines) and any(line.strip().startswith("fix: ") for line in lines)


def test_no_home(w):
    w.repo()
    rows = doctor(w, env={"HOME": None})
    expect(rows, "home", "problem", "HOME is not set")
    assert rows["home"]["fix"].startswith("export HOME=")
    expect(rows, "space", "warning", "see home")
    for id in ("config", "tree", "git", "limits"):
        expect(rows, id, "ok")
    rows = doctor(w, env={"HOME": None, **{f"XDG_{n}_HOME": f"{w.dir}/{n}" for n in ("STATE", "CACHE", "DATA")}})
    expect(rows, "home", "ok")
    expect(rows, "access", "ok")


def test_state_that_cannot_be_written(w):
    w.repo()
    a_run_that_is_over(w)
    w.as_nobody()
    for path in [*w.state.rglob("*"), w.state]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    rows = doctor(w)
    expect(rows, "access", "problem", "cannot be written")
    assert rows["access"]["fix"].startswith("chmod 700 ")
    expect(rows, "tree", "ok")
    command = rows["access"]["fix"]
    w.command(["sh", "-c", command])
    expect(doctor(w), "access", "ok")


def test_state_that_cannot_be_made(w):
    w.repo()
    w.as_nobody()
    w.home.chmod(0o500)
    rows = doctor(w)
    expect(rows, "access", "problem", "cannot be made")
    assert "XDG_" in rows["access"]["fix"]
    expect(rows, "locks", "warning", "could not be checked")
    expect(rows, "tree", "ok")


def test_state_open_to_others(w):
    w.state.mkdir(parents=True)
    w.state.chmod(0o777)
    rows = doctor(w)
    assert expect(rows, "access", "problem", "others may write")["fix"] == f"chmod go-w {w.state}"
    w.state.chmod(0o755)
    assert expect(doctor(w), "access", "warning", "others may read")["fix"] == f"chmod 700 {w.state}"


def test_full_disk(w):
    there = w.dir / "full"
    there.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=20", "tmpfs", str(there)], capture_output=True).returncode:
        raise Skip("cannot mount a tmpfs here")
    try:
        try:
            (there / "fill").write_bytes(b"x" * (1 << 20))
        except OSError:
            pass
        w.repo()
        rows = doctor(w, env={"XDG_STATE_HOME": str(there)})
        expect(rows, "space", "problem", str(there))
        assert rows["space"]["fix"] == "dlrun gc"
        expect(rows, "tree", "ok")
        for i in range(20):
            try:
                (there / str(i)).touch()
            except OSError:
                break
        expect(doctor(w, env={"XDG_STATE_HOME": str(there)}), "space", "problem")
    finally:
        subprocess.run(["umount", "-l", str(there)])


def test_read_only_file_system(w):
    there = w.dir / "ro"
    there.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,ro", "tmpfs", str(there)], capture_output=True).returncode:
        raise Skip("cannot mount a tmpfs here")
    try:
        rows = doctor(w, env={"XDG_STATE_HOME": str(there)})
        assert "XDG_STATE_HOME" in expect(rows, "access", "problem", "Read-only")["fix"]
    finally:
        subprocess.run(["umount", "-l", str(there)])


def tool(w, name, script):
    path = w.write(w.dir / "bin" / name, f"#!/bin/sh\n{script}\n", 0o755)
    return {"PATH": f"{path.parent}:{w.env['PATH']}"}


def test_tools_that_hang(w):
    w.repo()
    env = tool(w, "nvidia-smi", "trap '' TERM; while :; do sleep 1; done")
    tool(w, "git", "sleep 1000")
    tool(w, "python", "sleep 1000")
    rows = doctor(w, env=env)
    assert expect(rows, "gpu", "problem", "nvidia-smi")["fix"]
    expect(rows, "git", "warning", "does not answer")
    expect(rows, "program", "warning", "does not answer")
    expect(rows, "tree", "ok")
    wait_for(lambda: not left_over(w), "no tool outlives the command")


def left_over(w):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(w.dir / "bin") in line:
                found.append(line)
    return found


def test_tool_that_fails(w):
    env = tool(w, "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    rows = doctor(w, env=env)
    assert "NVML" in expect(rows, "gpu", "problem")["cause"]


def test_gpus_are_listed(w):
    env = tool(w, "nvidia-smi", '''case "$1" in
--query-gpu=*) echo "0, GPU-aa, 00000000:01:00.0, 81920, NVIDIA A100"; echo "1, GPU-bb, 00000000:02:00.0, 81920, NVIDIA A100" ;;
--query-compute-apps=*) echo "GPU-bb, 00000000:02:00.0, 1, python" ;;
esac''')
    found = expect(doctor(w, env=env), "gpu", "ok")["found"]
    assert found == "2: 0 NVIDIA A100 80 GiB, 1 NVIDIA A100 80 GiB (in use)", found
    env = tool(w, "nvidia-smi", "echo No devices were found; exit 6")
    assert expect(doctor(w, env=env), "gpu", "ok")["found"].startswith("none")


def test_no_git_no_python(w):
    w.repo()
    (w.dir / "none").mkdir()
    rows = doctor(w, env={"PATH": f"{w.dir}/none"})
    expect(rows, "git", "warning", "newer formats")
    expect(rows, "program", "ok")
    expect(rows, "tree", "ok")


def test_damaged_records(w):
    w.repo()
    w.ok("submit", "-f", "--", "true")
    with open(w.state / "runs.db", "r+b") as file:
        file.seek(100)
        file.write(b"\x55" * 8000)
    rows = doctor(w)
    fix = expect(rows, "records", "problem")["fix"]
    assert w.command(["sh", "-c", fix]).rc == 0
    expect(doctor(w), "records", "ok")
    w.ok("submit", "-f", "--", "true")


def test_tree_that_is_refused(w):
    w.repo()
    w.write("id_rsa", "-----BEGIN OPENSSH PRIVATE KEY-----\n")
    expect(doctor(w), "tree", "problem")
    (w.tree / "id_rsa").unlink()
    w.write("dlrun.yaml", "limits: {files: 1}\n")
    expect(doctor(w), "tree", "problem")
    expect(doctor(w, cwd=w.home), "tree", "ok")
    (w.dir / "empty").mkdir()
    expect(doctor(w, cwd=w.dir / "empty"), "tree", "warning")


def test_wrong_clock(w):
    faketime = needs("faketime")
    w.repo()
    w.ok("submit", "-f", "--", "true")
    for when, status, cause in (("2003-01-01 00:00:00", "problem", "wrong"), ("-3d", "warning", ""), ("+3d", "warning", "behind")):
        result = w.command([faketime, "-f", when if when[0] in "+-" else "@" + when, w.dlrun, "doctor", "--json"])
        if not result.out:
            raise Skip("faketime does not run this build")
        rows = {c["id"]: c for c in json.loads(result.out)["checks"]}
        expect(rows, "clock", status, cause)


def test_limits(w):
    result = w.command(["sh", "-c", 'ulimit -n 256; ulimit -f 100000; exec "$0" doctor --json', w.dlrun])
    rows = {c["id"]: c for c in json.loads(result.out)["checks"]}
    assert expect(rows, "limits", "warning", "256 open files")["fix"].startswith("ulimit -n ")


def test_locale(w):
    assert expect(doctor(w, env={"LC_ALL": "C"}), "terminal", "warning")["fix"] == "export LC_ALL=C.UTF-8"


def test_interrupt(w):
    env = {**w.env, **tool(w, "nvidia-smi", "sleep 1000")}
    process = subprocess.Popen([w.dlrun, "doctor"], cwd=w.tree, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    wait_for(lambda: left_over(w), "the check has begun")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=15)
    assert process.returncode == 130, (process.returncode, err)


def test_names_that_would_move_the_cursor(w):
    w.env["XDG_STATE_HOME"] = f"{w.dir}/a\x1b[2J\nb"
    result = w.run("doctor")
    assert "\x1b" not in result.out and result.rc in (0, 1), result
    doctor(w)


if __name__ == "__main__":
    main()
