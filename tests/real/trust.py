#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whom dlrun believes: a tree of a stranger runs nothing but the command of a submit, and a file of
another user is not read."""

from harness import *  # noqa: F403

OTHER = 1234
# What an ssh configuration can run before or without a login.
PROGRAMS = {
    "ProxyCommand": "Host *\n  ProxyCommand {run}\n",
    "Match exec": "Match exec \"{run}\"\n  Port 1\n",
    "Match localnetwork": "Match originalhost * exec \"{run}\"\n  Port 1\n",
    "KnownHostsCommand": "Host *\n  Hostname 127.0.0.1\n  Port {port}\n  KnownHostsCommand /bin/sh {script}\n  ProxyCommand {run}\n",
}
READERS = (["ps"], ["ps", "-a"], ["targets"], ["doctor"], ["config"], ["config", "trust"], ["config", "trust", "--json"], ["gc", "--dry-run"],
           ["__complete", "submit", "-t", ""], ["__complete", "ssh", ""])
STARTERS = (["submit", "--", "true"], ["submit", "-t", "ssh:gpu1", "--", "true"], ["submit", "--dry-run", "--", "true"], ["ssh", "gpu1", "--", "true"], ["push", "--dry-run"])


def needs_root():
    if os.getuid() != 0:
        raise Skip("only root can make files of other users")


def canary(w, how):
    """An ssh configuration in the tree that leaves a file where it is used."""
    seen = w.dir / "canary"
    script = w.write("run.sh", f"touch {seen}\nexit 1\n", mode=0o755)
    w.write("ssh.conf", PROGRAMS[how].format(run=f"/bin/sh {script}", script=script, port=1))
    w.write("dlrun.yaml", "ssh_config: ssh.conf\ntarget: lab\ntargets: {lab: {kind: ssh, hosts: [gpu1]}}\n")
    return seen


def check_nothing_runs(w, seen, **options):
    for words in READERS:
        result = w.run(*words, **options)
        assert not seen.exists(), (words, result)
    for words in STARTERS:
        result = w.run(*words, **options)
        assert not seen.exists(), (words, result)


def each_program(how):
    def test(w):
        w.repo()
        seen = canary(w, how)
        check_nothing_runs(w, seen)
        w.refused("submit", "--", "true", id="config.trust", rc=2, says=("ssh_config", "dlrun config trust"))
        w.refused("config", "trust", id="config.trust", rc=2, says="dlrun config trust --yes")
        assert "ssh_config" in w.run("targets").err
        # The same when it is confirmed, so that the canary is one.
        w.ok("config", "trust", "--yes")
        w.run("targets")
        assert seen.exists(), how
        seen.unlink()
        # What was confirmed is a content.
        with open(w.tree / "ssh.conf", "a") as file:
            file.write("# more\n")
        check_nothing_runs(w, seen)
    test.__name__ = "test_" + re.sub(r"\W", "_", how).lower()
    return test


for each in PROGRAMS:
    globals()["test_" + re.sub(r"\W", "_", each).lower()] = each_program(each)


def test_json_of_trust(w):
    w.repo()
    canary(w, "ProxyCommand")
    before = json.loads(w.ok("config", "trust", "--json").out)
    assert before["schema"] == "dlrun/trust/v1" and not before["confirmed"] and not before["foreign"]
    assert [k["key"] for k in before["keys"]] == ["ssh_config"] and before["file"] == str(w.tree / "dlrun.yaml")
    assert json.loads(w.ok("config", "trust", "--json", "--yes").out)["confirmed"]
    assert json.loads(w.ok("config", "trust", "--json").out)["confirmed"]
    w.write("dlrun.yaml", "name: a\n")
    assert json.loads(w.ok("config", "trust", "--json").out)["keys"] == []


def test_own_configuration_needs_no_word(w):
    """The same keys where only the user can write them."""
    w.repo()
    seen = canary(w, "ProxyCommand")
    os.rename(w.tree / "dlrun.yaml", w.write("config.yaml", base=w.home / ".config/dlrun"))
    w.write("ssh.conf", (w.tree / "ssh.conf").read_text(), base=w.home / ".config/dlrun")
    result = w.run("targets")
    assert seen.exists() and "confirmed" not in result.err, result
    seen.unlink()
    (w.home / ".config/dlrun/config.yaml").unlink()
    w.run("targets", env={"DLRUN_SSH_CONFIG": "ssh.conf", "DLRUN_TARGET": "ssh:gpu1"})
    assert seen.exists()


def test_secrets_outside_of_the_tree(w):
    """A file of the tree may be named, what leads out of it not: not by .., by a link, or by ~."""
    w.repo()
    w.write("outside", "hidden\n", base=w.home)
    (w.tree / "link").symlink_to(w.home / "outside")
    (w.tree / "up").symlink_to(w.home)
    for name in (str(w.home / "outside"), "../home/outside", "link", "up/outside", "~/outside"):
        w.write("dlrun.yaml", f"secrets: {{TOKEN: \"@{name}\"}}\n")
        w.refused("submit", "-f", "--", "sh", "-c", "echo $TOKEN", id="config.trust", rc=2, says="secrets.TOKEN")
    w.ok("config", "trust", "--yes")
    assert "hidden" in w.ok("submit", "-f", "--", "sh", "-c", "echo $TOKEN").out
    w.write("token", "inside\n")
    w.write("dlrun.yaml", "secrets: {TOKEN: \"@token\"}\nallow: [token]\n")
    assert "inside" in w.ok("submit", "-f", "--", "sh", "-c", "echo $TOKEN").out


def shared(w):
    """A directory of all, as /tmp, in it a file of another user above a directory of ours."""
    needs_root()
    (w.home / ".gitconfig").write_text("")
    top = w.dir / "shared"
    mine = top / "mine"
    mine.mkdir(parents=True)
    top.chmod(0o1777)
    w.write("a.py", "print('a')\n", base=mine)
    seen = w.dir / "canary"
    w.write("ssh.conf", f"Host *\n  ProxyCommand touch {seen}\n", base=top)
    planted = w.write("dlrun.yaml", "name: planted\nssh_config: ssh.conf\ntarget: lab\ntargets: {lab: {kind: ssh, hosts: [gpu1]}}\n", base=top)
    os.chown(planted, OTHER, OTHER)
    return mine, planted, seen


def value(w, key, cwd):
    result = w.ok("config", "--json", cwd=cwd)
    return json.loads(result.out)["values"].get(key, {}).get("value")


def test_another_users_file_above(w):
    mine, planted, seen = shared(w)
    for words in READERS:
        w.run(*words, cwd=mine)
    assert not seen.exists() and value(w, "name", mine) is None
    result = w.run("config", cwd=mine)
    assert f"{planted} belongs to another user and is not read" in result.err, result
    # It stops nobody, and is not the root of the tree.
    assert w.ok("submit", "-f", "--", "python3", "a.py", cwd=mine).out == "a\n"
    assert w.show()["origin"]["root"] == str(mine)
    # In the directory itself, too.
    assert value(w, "name", planted.parent) is None


def test_another_users_file_that_is_believed(w):
    mine, planted, seen = shared(w)
    own = w.write("config.yaml", base=w.home / ".config/dlrun")
    for text in (f"safe_directories: [{planted.parent}]\n", f"safe_directories: [\"{planted.parent.parent}/*\"]\n", "safe_directories: [\"*\"]\n"):
        own.write_text(text)
        assert value(w, "name", mine) == "planted", text
        # It is read, but as a project's file.
        w.run("targets", cwd=mine)
        assert not seen.exists()
    own.write_text("safe_directories: [/elsewhere]\n")
    assert value(w, "name", mine) is None
    w.git("config", "--global", "--add", "safe.directory", str(planted.parent))
    assert value(w, "name", mine) == "planted"
    w.git("config", "--global", "--add", "safe.directory", "")
    assert value(w, "name", mine) is None
    w.ok("config", "trust", "--yes", cwd=mine)
    assert value(w, "name", mine) == "planted"
    w.run("targets", cwd=mine)
    assert seen.exists()
    with open(planted, "a") as file:
        file.write("# more\n")
    assert value(w, "name", mine) is None


def test_sudo(w):
    """Root by sudo works in the trees of the user who called it, and nobody else does."""
    mine, planted, seen = shared(w)
    assert json.loads(w.ok("config", "--json", cwd=mine, env={"SUDO_UID": str(OTHER)}).out)["values"]["name"]["value"] == "planted"
    for uid in ("1", "", "x", f"{OTHER} "):
        assert "name" not in json.loads(w.ok("config", "--json", cwd=mine, env={"SUDO_UID": uid}).out)["values"], uid
    assert not seen.exists()


def test_links_of_others(w):
    """Another user's link to a file of ours says what ours was not meant to say here."""
    mine, planted, _ = shared(w)
    own = w.write("own.yaml", "name: own\n", base=w.dir)
    planted.unlink()
    planted.symlink_to(own)
    assert value(w, "name", mine) == "own"
    os.chown(planted, OTHER, OTHER, follow_symlinks=False)
    assert value(w, "name", mine) is None


def test_borders(w):
    """The search for dlrun.yaml ends at another file system and at a directory of somebody else."""
    needs_root()
    (w.home / ".gitconfig").write_text("")
    w.write("dlrun.yaml", "name: above\n")
    inner = w.tree / "inner/deep"
    inner.mkdir(parents=True)
    assert value(w, "name", inner) == "above"
    # Ours in a directory of another user: what lies above that is theirs.
    os.chown(w.tree, OTHER, OTHER)
    assert value(w, "name", inner) is None
    os.chown(w.tree, 0, 0)
    done = w.command(["mount", "-t", "tmpfs", "none", str(inner.parent)])
    if done.rc != 0:
        raise Skip("no file system can be mounted here")
    try:
        inner.mkdir(exist_ok=True)
        assert value(w, "name", inner) is None
        w.write("dlrun.yaml", "name: on it\n", base=inner.parent)
        assert value(w, "name", inner) == "on it"
    finally:
        w.command(["umount", str(inner.parent)], cwd="/")


def test_foreign_repository(w):
    """CVE-2022-24765: a repository above that another user has made."""
    mine, planted, seen = shared(w)
    w.git("init", "-q", cwd=planted.parent)
    subprocess.run(["chown", "-R", f"{OTHER}:{OTHER}", planted.parent / ".git"], check=True)
    os.chown(planted.parent, OTHER, OTHER)
    for words in READERS:
        w.run(*words, cwd=mine)
    assert not seen.exists() and value(w, "name", mine) is None
    w.refused("submit", "--", "true", cwd=mine, id="snapshot.owner", rc=4, says="safe.directory")


if __name__ == "__main__":
    main()
