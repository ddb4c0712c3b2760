#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Secrets with random values, given in every way that dlrun takes: a value is found nowhere but in the
environment of the program."""

import base64
import contextlib
import os
import resource
import signal
import subprocess

from harness import *  # noqa: F403
from local import ended, pids_with

WRITES = "execve,execveat,write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,sendmmsg"
# Its arguments: NAME=SHA256 of the value that it must have; a code to end with for each attempt.
CHECK = """
import hashlib, os, sys
for pair in sys.argv[2:]:
    name, _, digest = pair.partition("=")
    value = os.environ.get(name, "").encode()
    print(name, "right" if hashlib.sha256(value).hexdigest() == digest else "WRONG", flush=True)
if os.path.exists("gate"):
    open(os.readlink("gate")).read()
sys.exit(int(sys.argv[1].split(",")[int(os.environ["DLRUN_ATTEMPT"]) - 1]))
"""


def canary():
    return "cnry" + os.urandom(16).hex()


def digest(name, value):
    return f"{name}={hashlib.sha256(value.encode()).hexdigest()}"


def forms(value):
    """The value as it is and as programs like to write it; base64 in its three alignments."""
    raw = value.encode()
    found = [raw, raw.hex().encode(), raw.hex().upper().encode()]
    for shift in range(3):
        text = base64.b64encode(b"\0" * shift + raw)
        found.append(text[4 if shift else 0:-4])
    return found


def seen_in(data, values):
    return [v for v in values if any(form in data for form in forms(v))]


def opened(data):
    """What is packed in a file, too."""
    yield data
    if data[:2] == b"\x1f\x8b" or data[:4] == b"\x28\xb5\x2f\xfd":
        yield decompress(data)


def nowhere(w, values, but=()):
    """No file below the world's directory holds a value, packed or not, nor does an object of git."""
    bad = []
    for base, _, names in os.walk(w.dir):
        for name in names:
            path = Path(base, name)
            try:
                # What is made ahead behind a command has temporary files.
                data = path.read_bytes() if path not in but and stat.S_ISREG(path.lstat().st_mode) else None
            except FileNotFoundError:
                continue
            if data is None:
                continue
            for data in opened(data):
                bad += [(str(path), v) for v in seen_in(data, values)]
            bad += [(str(path), v) for v in seen_in(os.fsencode(path), values)]
    objects = w.git("cat-file", "--batch-all-objects", "--batch", check=False).out_bytes
    refs = w.git("for-each-ref", "--format=%(refname)", check=False)
    bad += [("objects of git", v) for v in seen_in(objects, values)]
    bad += [("processes", v) for v in values if pids_with(v)]
    assert not bad, f"found: {bad}"
    return refs.out


def said_nowhere(w, values, *commands):
    for words in commands:
        result = w.run(*words)
        assert not seen_in(result.out_bytes + result.err_bytes, values), (words, result)


EVERY = (["show", "@", "--json"], ["show", "@"], ["config", "--json"], ["config", "--show-origin"], ["why", "@"],
         ["ps", "--json"], ["ps", "-a"], ["logs", "@"], ["logs", "--json", "@"], ["diff", "@"], ["diff", "@", "--json"],
         ["explain", "secret"], ["targets", "--json"], ["doctor", "--json"], ["top", "--json"], ["-v", "show", "@"])


class Places:
    """One secret in each place. Files and shells that the user keeps them in are in `but`."""

    def __init__(self, w):
        new = {name: canary() for name in ("LISTED", "FILED", "OPTION", "OPTFILE", "LATE_TOKEN", "SET_PASSWORD",
                                           "CONF_API_KEY", "USER_SECRET", "INHERITED_TOKEN")}
        self.values = new
        w.write("filed", new["FILED"] + "\n", 0o600, base=w.dir / "keys")
        w.write("optfile", new["OPTFILE"], 0o600, base=w.dir / "keys")
        w.write("dlrun.yaml", f"secrets: {{LISTED: , FILED: \"@{w.dir}/keys/filed\"}}\n"
                              "env: {CONF_API_KEY: , PLAIN: seen}\n")
        w.ok("config", "trust", "--yes")
        user = w.write(".config/dlrun/config.yaml", f"group: study\nenv: {{USER_SECRET: {new['USER_SECRET']}}}\n",
                       0o600, base=w.home)
        self.but = {w.dir / "keys/filed", w.dir / "keys/optfile", user}
        self.env = {n: new[n] for n in ("LISTED", "OPTION", "LATE_TOKEN", "CONF_API_KEY", "INHERITED_TOKEN")}
        # Those with a value in argv: the user has shown it to everybody.
        self.options = ["--secret", "OPTION", "--secret", f"OPTFILE=@{w.dir}/keys/optfile", "-e", "LATE_TOKEN"]
        self.argv_options = ["--env", f"SET_PASSWORD={new['SET_PASSWORD']}"]
        self.expected = [digest(n, v) for n, v in new.items() if n != "SET_PASSWORD"]
        self.all = list(new.values())


def traced(w, *words, env):
    """A submit under strace, to the end of its supervisor: what it executed and wrote."""
    needs("strace")
    trace = w.dir / "trace"
    argv = ["strace", "-f", "-qq", "-s", "100000", "-e", f"trace={WRITES}", "-e", "signal=none", "-o", str(trace)]
    result = w.command([*argv, w.dlrun, *words], env={**env, "ASAN_OPTIONS": "detect_leaks=0"})
    text = trace.read_bytes()
    trace.unlink()
    assert text.count(b"execve(") >= 3, "strace saw the program start"
    return result, text


def test_every_place_under_strace(w):
    """With a retry, so that the values have to outlive an attempt."""
    w.repo({"check.py": CHECK})
    p = Places(w)
    result, trace = traced(w, "-v", "submit", "-d", "-n", "first", "--retries", "1", *p.options,
                           "--", "python3", "check.py", "1,0", *p.expected, env=p.env)
    assert result.rc == 0, result
    said = w.ok("logs", "@").out
    assert said.count("right") == len(p.expected) and "WRONG" not in said, said
    doc = ended(w)
    assert doc["state"] == "succeeded" and len(doc["attempts"]) == 2, doc
    lines = [line[:300] for line in trace.splitlines() if seen_in(line, p.all)]
    assert not lines, lines
    refs = nowhere(w, p.all, p.but)
    assert doc["snapshot"]["ref"] in refs.split()
    said_nowhere(w, p.all, *EVERY)
    assert not seen_in(result.out_bytes + result.err_bytes, p.all)


def test_values_in_the_command_line_of_submit(w):
    """The user's own argv has it; nothing that dlrun starts or writes does. The same from a user's file."""
    w.repo({"check.py": CHECK})
    p = Places(w)
    (w.tree / "dlrun.yaml").unlink()
    words = [digest(n, p.values[n]) for n in ("SET_PASSWORD", "USER_SECRET")]
    result, trace = traced(w, "submit", "-d", *p.argv_options, "--", "python3", "check.py", "0", *words, env={})
    assert result.rc == 0, result
    ended(w)
    assert w.ok("logs").out == "SET_PASSWORD right\nUSER_SECRET right\n"
    lines = [line[:300] for line in trace.splitlines()[1:] if seen_in(line, p.all)]
    assert not lines, lines
    assert "SET_PASSWORD" in result.err and "USER_SECRET" in result.err, f"that it hides them: {result!r}"
    nowhere(w, p.all, p.but)
    said_nowhere(w, p.all, *EVERY)


def test_processes_while_it_runs(w):
    w.repo({"check.py": CHECK})
    p = Places(w)
    os.mkfifo(w.dir / "gate")
    (w.tree / "gate").symlink_to(w.dir / "gate")
    w.ok("submit", "-d", *p.options, "--", "python3", "check.py", "0", *p.expected, env=p.env)
    wait_for(lambda: w.ok("logs").out.count("\n") == len(p.expected), "it runs")
    nowhere(w, p.all, p.but)
    said_nowhere(w, p.all, *EVERY)
    with open(w.dir / "gate", "w"):
        pass
    assert ended(w)["state"] == "succeeded"


def test_restart_takes_them_from_the_new_shell(w):
    w.repo({"check.py": CHECK})
    p = Places(w)
    old = dict(p.values)
    w.ok("submit", "-d", "--retries", "0", *p.options, "--", "python3", "check.py", "1,1,0", *p.expected, env=p.env)
    run = ended(w)["id"]
    again = {n: canary() for n in p.env}
    w.write("filed", canary(), 0o600, base=w.dir / "keys")
    restart = w.run("restart", run, env={**again, "OPTFILE": old["OPTFILE"]})
    assert restart.rc == 0, restart
    doc = ended(w, run)
    said = w.ok("logs", run).out.split("\n")[-len(p.expected) - 1:]
    wrong = [line.split()[0] for line in said if line.endswith("WRONG")]
    assert len(doc["attempts"]) == 2, doc
    assert sorted(wrong) == sorted([*again, "FILED"]), f"other values were to be seen: {said}"
    everything = p.all + list(again.values())
    nowhere(w, everything, p.but)
    said_nowhere(w, everything, *EVERY)
    bare = w.run("restart", run)
    assert not seen_in(bare.out_bytes + bare.err_bytes, everything)
    if bare.rc:
        assert bare.rc == 2 and len(w.show(run)["attempts"]) == 2, bare
        check_error_form(bare.err, "secret")
    else:
        assert "OPTION" in bare.err, f"a value that is not there any more is said: {bare!r}"
        ended(w, run)


def test_from_and_dry_run(w):
    w.repo({"check.py": CHECK})
    p = Places(w)
    dry = w.ok("submit", "--dry-run", "--json", *p.options, *p.argv_options, "--", "python3", "check.py", env=p.env)
    json.loads(dry.out)
    more = [w.run("submit", "--dry-run", *extra, *p.options, *p.argv_options, "--", "true", env=p.env)
            for extra in ([], ["-o", "yaml"], ["--list-files"])]
    for result in (dry, *more):
        assert not seen_in(result.out_bytes + result.err_bytes, p.all), result
    assert not (w.state / "runs").exists() or not list((w.state / "runs").iterdir())
    w.ok("submit", "-d", *p.options, "--", "python3", "check.py", "0", *p.expected, env=p.env)
    first = ended(w)["id"]
    result, trace = traced(w, "submit", "-d", "--from", first, env={**p.env, "OPTFILE": p.values["OPTFILE"]})
    assert result.rc == 0, result
    ended(w)
    assert w.ok("logs").out.count("right") == len(p.expected), w.ok("logs").out
    lines = [line[:300] for line in trace.splitlines() if seen_in(line, p.all)]
    assert not lines, lines
    nowhere(w, p.all, p.but)
    said_nowhere(w, p.all, *EVERY, ["diff", first, "@"], ["diff", first, "@", "--json"])


def test_errors_do_not_show_them(w):
    w.repo()
    value = canary()
    key = w.write("key", value, 0o600, base=w.dir / "keys")
    nul = w.write("nul", value.encode() + b"\0" + value.encode(), 0o600, base=w.dir / "keys")
    large = w.write("large", value * 5000, 0o600, base=w.dir / "keys")
    cases = [["--secret", f"K=@{key}", "--imgae", "x"], ["-e", f"MY_TOKEN={value}", "--timeout", "soon"],
             ["-e", f"MY TOKEN={value}"], ["--secret", f"K={value}"], ["--secret", f"BAD NAME={value}"],
             ["--secret", f"=@{key}"], ["-e", f"={value}"],
             ["--secret", f"K=@{nul}"], ["--secret", f"K=@{large}"], ["-e", f"MY_TOKEN={value}", "--retries", "no"],
             ["-e", f"MY_TOKEN={value}", "-t", "nowhere"], ["-e", f"MY_TOKEN={value}", "--gpus", "-1"],
             [f"-eTOKEN={value}==", "--ntasks", "2"], [f"--env=TOKEN={value}", "--nodelist", "a"], ["--secret", f"K={value}", "--gres", "gpu:2"],
             [f"--secret=K={value}", "-g", "3", "--partition", "a"]]
    before = w.traces()
    for options in cases:
        for more in ([], ["--json"]):
            result = w.run(*more, "submit", "-d", *options, "--", "true", env={"K": value})
            assert result.rc == 2 or str(large) in str(options) and result.rc, (options, result)
            assert not seen_in(result.out_bytes + result.err_bytes, [value]), (options, result)
    for text in (f"env: {{A_TOKEN: {value}\nname: x\n", f"env: {{A_TOKEN: [{value}]}}\n", f"secrets: {{K: {value}}}\n",
                 f"env: {{A_TOKEN: {value}}}\nnmae: x\n", f"env: {{A_TOKEN: {value}, A_TOKEN: {value}}}\n",
                 f"secrets: {{K: [{value}]}}\n", f"env:\n  A_TOKEN: {value}\n\tB: {value}\n"):
        user = w.write(".config/dlrun/config.yaml", text, 0o600, base=w.home)
        for words in (["submit", "-d", "--", "true"], ["--json", "submit", "-d", "--", "true"],
                      ["config", "--json"], ["config"]):
            result = w.run(*words)
            assert result.rc == 2, (text, words, result)
            assert not seen_in(result.out_bytes + result.err_bytes, [value]), (text, words, result)
    assert w.traces() == before
    nowhere(w, [value], {key, nul, large, user})


def test_missing_secrets(w):
    w.repo()
    w.write("dlrun.yaml", "secrets: [NOT_HERE]\n")
    w.refused("submit", "-d", "--", "true", id="secret", rc=2, says="NOT_HERE")
    w.write("dlrun.yaml", f"secrets: {{FILED: \"@{w.dir}/none\"}}\n")
    w.ok("config", "trust", "--yes")
    result = w.run("submit", "-d", "--", "true")
    assert result.rc in (1, 2, 5) and "FILED" in result.err and not w.traces(), result
    w.write("dlrun.yaml", "")
    w.refused("submit", "-d", "--secret", "NOT_HERE", "--", "true", id="secret", rc=2, says="NOT_HERE")
    w.write("empty", "", base=w.dir)
    w.refused("submit", "-d", "--secret", f"K=@{w.dir}/empty", "--", "true", id="secret", rc=2, says="K")
    w.refused("submit", "-d", "-e", "MY_TOKEN", "--", "true", id="usage", rc=2, says="MY_TOKEN")
    assert not (w.state / "runs").exists() or not list((w.state / "runs").iterdir())
    assert w.git("for-each-ref", "refs/dlrun").out == ""


def test_what_the_program_prints_is_its_own(w):
    """A log keeps every byte of the program's; the record does not repeat it."""
    w.repo()
    value = canary()
    urls = ("https://wandb.ai/me/p/runs/abc?apiKey=", "https://me:%s@wandb.ai/me/p/runs/def#")
    script = 'echo "$K"; echo "Error: no such key: $K"; ' + "".join(f'printf "%s\\n" "{u}$K"; ' for u in
                                                                  (urls[0], urls[1].replace("%s", "$K")))
    w.ok("submit", "-d", "--secret", "K", "--", "sh", "-c", script + "exit 3", env={"K": value})
    doc = ended(w)
    assert w.ok("logs").out.count(value) == 5
    assert value not in json.dumps(doc), doc
    said_nowhere(w, [value], *[words for words in EVERY if words[0] != "logs"])
    nowhere(w, [value], {w.state / "runs" / doc["id"] / "attempts/1/log"})


def test_no_core_holds_one(w):
    """The supervisor and a following submit keep values in memory; neither leaves it on a disk, and the
    program may dump its core as everywhere else."""
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY:
        raise Skip("core files are limited here")
    if os.environ.get("DLRUN_OS") == "portable":
        raise Skip("needs /proc")
    w.repo({"run.sh": f'ulimit -c; cat {w.dir}/gate\n'})
    os.mkfifo(w.dir / "gate")
    w.as_nobody()
    value = canary()
    who = {"user": w.user, "group": w.user, "extra_groups": []} if w.user else {}
    follow = subprocess.Popen(
        [w.dlrun, "submit", "-f", "--secret", "K", "--", "sh", "run.sh"], cwd=w.tree,
        env={**w.env, "K": value, "ASAN_OPTIONS": "disable_coredump=0"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **who,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2))
    try:
        assert follow.stdout.readline() == b"unlimited\n", follow.stderr.read1()
        # Two of them while the tree of the next run is still to be made.
        supervisors = wait_for(lambda: pids_with(f"{w.show()['id']}/attempts/1"), "the supervisor")
        owners = {os.stat(f"/proc/{follow.pid}/environ").st_uid}
        for pid in supervisors:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                owners.add(os.stat(f"/proc/{pid}/environ").st_uid)
                os.kill(pid, signal.SIGABRT)
        follow.send_signal(signal.SIGABRT)
        follow.wait(30)
        wait_for(lambda: not pids_with(f"{w.show()['id']}/attempts/1"), "the supervisor is gone")
    finally:
        follow.kill()
        follow.communicate()
    nowhere(w, [value])
    if os.getuid() == 0:
        assert owners == {0}, f"supervisor and submit are closed to other processes of their user: {owners}"


if __name__ == "__main__":
    main()
