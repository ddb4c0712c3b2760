#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""States of a tree and its repository: each gives an exact image or an exact refusal."""

import ctypes
import os
import socket
import subprocess
import threading
import time

from harness import *  # noqa: F403


# --- what counts as part of the tree ---------------------------------------------------------------

def test_clean_repository(w):
    w.repo({"a.py": "a", "pkg/b.py": "b"})
    same_tree(w.push(), w.tree, ["a.py", "pkg/b.py"])


def test_edited_untracked_and_ignored(w):
    w.repo({"a.py": "old", ".gitignore": "*.log\nout/\n"})
    w.write("a.py", "new")
    w.write("new.py", "untracked")
    w.write("x.log", "ignored")
    w.write("out/y", "ignored")
    image = w.push()
    same_tree(image, w.tree, ["a.py", "new.py", ".gitignore"])
    assert image.tree[b"a.py"][2] == b"new"


def test_tracked_but_ignored(w):
    w.repo({"keep.log": "tracked", "out/keep": "tracked"})
    w.write(".gitignore", "*.log\nout/\n")
    w.write("out/drop", "x")
    w.write("drop.log", "x")
    same_tree(w.push(), w.tree, ["keep.log", "out/keep", ".gitignore"])


def test_exec_bit_is_the_owners(w):
    """As in git, which is asked: what it calls clean is clean."""
    modes = {0o654: False, 0o645: False, 0o611: False, 0o755: True, 0o700: True, 0o744: True, 0o600: False}
    w.repo({f"f{mode:o}": "x" for mode in modes})
    for mode, exec_bit in modes.items():
        (w.tree / f"f{mode:o}").chmod(0o755 if exec_bit else 0o644)
    w.commit()
    for mode in modes:
        (w.tree / f"f{mode:o}").chmod(mode)
    assert w.git("status", "--porcelain").out == ""
    image = w.push()
    same_tree(image, w.tree, [f"f{mode:o}" for mode in modes])
    assert {name: entry[1] for name, entry in image.tree.items()} == {b"f%o" % m: e for m, e in modes.items()}
    run = w.ok("submit", "-d", "--", "true").out.strip()
    w.run("wait", run)
    assert w.show(run)["snapshot"]["dirty"] is False


def test_deleted_and_renamed(w):
    w.repo({"a": "1", "b": "2", "d/c": "3"})
    first = w.push()
    (w.tree / "a").unlink()
    (w.tree / "b").rename(w.tree / "bb")
    second = w.push()
    same_tree(second, w.tree, ["bb", "d/c"])
    assert second.roles() == ["full", "delta"] and first.roles() == ["full"]
    assert "dlrun/src/.wh.a" in second.names(1)
    w.commit()
    shutil.rmtree(w.dir / "out")
    fresh = w.push("--full")
    same_tree(fresh, w.tree, ["bb", "d/c"])
    assert [n for n in fresh.names(0) if ".wh." in n] == ["dlrun/src/.wh..wh..opq"]


def test_kinds_change_in_a_delta(w):
    w.repo({"file-dir": "1", "dir-file/a": "2", "dir-file/b": "3", "file-link": "4", "stay": "5" * 3000})
    (w.tree / "link-dir").symlink_to("stay")
    w.commit()
    w.push()
    (w.tree / "file-dir").unlink()
    w.write("file-dir/x", "6")
    shutil.rmtree(w.tree / "dir-file")
    w.write("dir-file", "7")
    (w.tree / "file-link").unlink()
    (w.tree / "file-link").symlink_to("stay")
    (w.tree / "link-dir").unlink()
    w.write("link-dir/y", "8")
    image = w.push()
    assert image.roles()[-1] == "delta"
    same_tree(image, w.tree, ["file-dir/x", "dir-file", "file-link", "link-dir/y", "stay"])


def test_removed_directory_is_one_whiteout(w):
    w.repo({f"gone/deep/{i}": str(i) for i in range(50)} | {"a": "x"})
    w.push()
    shutil.rmtree(w.tree / "gone")
    image = w.push()
    same_tree(image, w.tree, ["a"])
    assert [n for n in image.names(1) if ".wh." in n] == ["dlrun/src/.wh.gone"]


def test_exec_bit_alone(w):
    w.repo({"run.sh": "#!/bin/sh\n"})
    w.push()
    (w.tree / "run.sh").chmod(0o755)
    image = w.push()
    assert image.tree[b"run.sh"][1] is True
    same_tree(image, w.tree, ["run.sh"])


def test_touch_alone_gives_the_same_image(w):
    w.repo()
    first = w.push()
    os.utime(w.tree / "a.py")
    assert w.push().digest == first.digest


def test_racy_edits_are_seen(w):
    """Same size, within one tick of the clock, and with the old time restored."""
    w.repo({"a": "0000"})
    for i in range(1, 20):
        before = os.stat(w.tree / "a")
        (w.tree / "a").write_text(f"{i:04}")
        if i % 2:
            os.utime(w.tree / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
        assert w.push().tree[b"a"][2] == f"{i:04}".encode()


def test_assume_unchanged_and_skip_worktree(w):
    w.repo({"a": "1", "b": "2"})
    w.git("update-index", "--assume-unchanged", "a")
    w.git("update-index", "--skip-worktree", "b")
    w.write("a", "new-a")
    w.write("b", "new-b")
    image = w.push()
    assert (image.tree[b"a"][2], image.tree[b"b"][2]) == (b"new-a", b"new-b")


def test_bytes_as_on_disk_with_crlf(w):
    w.repo({".gitattributes": "* text=auto\n", "a.txt": "x\n"})
    w.git("config", "core.autocrlf", "true")
    w.write("a.txt", b"one\r\ntwo\r\n")
    assert w.push().tree[b"a.txt"][2] == b"one\r\ntwo\r\n"


def test_lfs_pointer_is_shipped_and_said(w):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 5\n"
    w.repo({".gitattributes": "*.bin filter=lfs\n", "m.bin": pointer})
    image = w.push()
    assert image.tree[b"m.bin"][2] == pointer.encode()
    assert "m.bin" in image.said.err and "LFS" in image.said.err


def test_filters_hooks_and_fsmonitor_of_the_repository_do_not_run(w):
    w.repo({"a": "x", ".gitattributes": "* filter=evil\n"})
    canary = w.dir / "canary"
    for key in ("filter.evil.clean", "filter.evil.smudge", "core.fsmonitor", "core.sshCommand",
                "diff.external", "core.pager"):
        w.git("config", key, f"touch {canary}; cat")
    hooks = w.tree / ".git/hooks"
    for hook in ("pre-commit", "post-index-change", "reference-transaction", "post-checkout"):
        w.write(hook, f"#!/bin/sh\ntouch {canary}\n", 0o755, base=hooks)
    w.write("a", "y")
    w.push()
    w.ok("submit", "-d", "--", "true")
    w.ok("wait", "@")
    assert not canary.exists()


# --- states of a repository ----------------------------------------------------------------------------

def test_staged_only_change_does_not_count(w):
    w.repo({"a": "disk"})
    w.write("a", "staged")
    w.git("add", "a")
    w.write("a", "disk again")
    assert w.push().tree[b"a"][2] == b"disk again"


def test_conflict(w):
    w.repo({"a": "base\n"})
    w.git("checkout", "-qb", "other")
    w.write("a", "other\n")
    w.commit()
    w.git("checkout", "-q", "main")
    w.write("a", "main\n")
    w.commit()
    w.git("merge", "other", check=False)
    assert b"<<<<<<<" in w.push().tree[b"a"][2]


def test_unborn_and_detached_and_rebase(w):
    w.repo({"a": "1"}, commit=False)
    same_tree(w.push(), w.tree, ["a"])
    w.commit()
    w.git("checkout", "-q", "--detach")
    same_tree(w.push(), w.tree, ["a"])
    w.write("b", "2")
    w.commit()
    w.git("rebase", "--exec", "false", "HEAD~1", check=False)
    assert (w.tree / ".git/rebase-merge").exists()
    same_tree(w.push(), w.tree, ["a", "b"])


def test_linked_worktree(w):
    w.repo({"a": "1"})
    w.git("worktree", "add", "-q", str(w.dir / "wt"))
    w.write("new", "2", base=w.dir / "wt")
    same_tree(w.push(cwd=w.dir / "wt"), w.dir / "wt", ["a", "new"])


def test_relative_worktree(w):
    """As git 2.48 writes one with worktree.useRelativePaths: its paths are relative, and an extension says so."""
    w.repo({"a": "1", "ig/tracked": "2", ".gitignore": "ig\n*.o\n"})
    w.git("add", "-f", "ig/tracked")
    w.commit()
    there = w.dir / "wt"
    w.git("worktree", "add", "-q", str(there))
    (there / ".git").write_text("gitdir: ../tree/.git/worktrees/wt\n")
    (w.tree / ".git/worktrees/wt/gitdir").write_text("../../../../wt/.git\n")
    w.write("a", "edited", base=there)
    w.write("new", "3", base=there)
    w.write("x.o", "no", base=there)
    w.write("ig/no", "no", base=there)
    wanted = ["a", "ig/tracked", ".gitignore", "new"]
    image = w.push(cwd=there)
    same_tree(image, there, wanted)
    run = w.ok("submit", "-d", "--", "true", cwd=there).out.strip()
    assert w.show(run)["snapshot"]["record"], "the run has no record in git"
    w.git("config", "core.repositoryformatversion", "1")
    w.git("config", "extensions.relativeWorktrees", "true")
    for base, paths in ((there, wanted), (w.tree, ["a", "ig/tracked", ".gitignore"])):
        for env in ({}, {"PATH": "/nonexistent"}):
            image = w.push(cwd=base, env=env)
            same_tree(image, base, paths)
    assert w.ok("submit", "-f", "--", "cat", "a", cwd=there).out == "edited"


def submodule(w):
    lib = w.dir / "lib"
    lib.mkdir()
    w.git("init", "-q", cwd=lib)
    w.write("lib.py", "lib", base=lib)
    w.write(".gitignore", "*.tmp\n", base=lib)
    w.git("add", "-A", cwd=lib)
    w.git("commit", "-qm", "lib", cwd=lib)
    w.repo()
    w.git("submodule", "add", "-q", str(lib), "sub")
    w.commit()


def test_submodule_with_changes(w):
    submodule(w)
    w.git("config", "submodule.sub.ignore", "all")
    w.write("sub/lib.py", "changed")
    w.write("sub/new.py", "new")
    w.write("sub/x.tmp", "ignored")
    image = w.push()
    same_tree(image, w.tree, ["a.py", ".gitmodules", "sub/lib.py", "sub/new.py", "sub/.gitignore"])


def test_submodule_without_content(w):
    submodule(w)
    w.git("submodule", "deinit", "-q", "-f", "sub")
    same_tree(w.push(), w.tree, ["a.py", ".gitmodules"])


def test_nested_repository(w):
    w.repo({"a": "1"})
    nested = w.tree / "nested"
    nested.mkdir()
    w.git("init", "-q", cwd=nested)
    w.write("n.py", "n", base=nested)
    w.write(".gitignore", "junk\n", base=nested)
    w.write("junk", "x", base=nested)
    image = w.push()
    same_tree(image, w.tree, ["a", "nested/n.py", "nested/.gitignore"])


def test_sparse_checkout_and_sparse_index(w):
    w.repo({"in/a": "1", "out/b": "2", "top": "3"})
    w.git("sparse-checkout", "set", "--cone", "in")
    same_tree(w.push(), w.tree, ["in/a", "top"])
    w.git("sparse-checkout", "set", "--cone", "--sparse-index", "in")
    same_tree(w.push(), w.tree, ["in/a", "top"])


def test_split_index_skip_hash_and_version_4(w):
    w.repo({f"d{i}/f": str(i) for i in range(30)})
    wanted = [f"d{i}/f" for i in range(30)]
    w.git("update-index", "--index-version", "4")
    same_tree(w.push(), w.tree, wanted)
    w.git("-c", "index.skipHash=true", "update-index", "--force-write-index", check=False)
    same_tree(w.push(), w.tree, wanted)
    w.git("update-index", "--split-index")
    same_tree(w.push(), w.tree, wanted)


def odd_repository(w, *init):
    w.git("init", "-q", *init)
    w.write("a", "1")
    w.write("ig/tracked", "2")
    w.git("add", "-A")
    w.git("commit", "-qm", "x")
    w.write(".gitignore", "ig\n*.o\n")
    w.write("x.o", "no")
    w.write("ig/no", "no")
    listed = w.git("ls-files", "-z", "-co", "--exclude-standard").out_bytes.split(b"\0")[:-1]
    same_tree(w.push(), w.tree, listed)


def test_sha256_repository(w):
    odd_repository(w, "--object-format=sha256")


def test_worktree_config_extension(w):
    odd_repository(w)
    w.git("config", "extensions.worktreeConfig", "true")
    w.git("config", "--worktree", "core.ignorecase", "false")
    same_tree(w.push(), w.tree, ["a", "ig/tracked", ".gitignore"])


def test_unknown_extension_without_git(w):
    """Nothing can open it and there is no git: the walk alone, and it is said."""
    w.repo({"a": "1", ".gitignore": "*.o\n"})
    w.git("config", "core.repositoryformatversion", "1")
    w.git("config", "extensions.fromthefuture", "true")
    w.write("b.o", "x")
    image = w.push(env={"PATH": "/nonexistent"})
    same_tree(image, w.tree, ["a", ".gitignore"])
    assert "warning: " in image.said.err


def test_partial_clone(w):
    w.repo({"a": "1", "b": "2"})
    w.git("config", "uploadpack.allowFilter", "true")
    w.git("clone", "-q", "--filter=blob:none", f"file://{w.tree}", str(w.dir / "partial"))
    same_tree(w.push(cwd=w.dir / "partial"), w.dir / "partial", ["a", "b"])


def test_foreign_owner(w):
    if os.getuid() != 0:
        raise Skip("needs root to give files away")
    w.repo()
    (w.home / ".gitconfig").write_text("")
    subprocess.run(["chown", "-R", "12345", str(w.tree)], check=True)
    w.refused("push", "--to", f"oci:{w.dir}/out", id="snapshot.owner", rc=4,
              says=["git config --global --add safe.directory", str(w.tree)])


def test_from_a_subdirectory(w):
    w.repo({"a": "1", "exp/b.py": "print('hi')"})
    same_tree(w.push(cwd=w.tree / "exp"), w.tree, ["a", "exp/b.py"])
    out = w.ok("submit", "-f", "--", "sh", "-c", "pwd; ls", cwd=w.tree / "exp").out
    assert out.splitlines()[0].endswith("/tree/exp") and out.splitlines()[1:] == ["b.py"]


def test_git_dir_and_work_tree_variables(w):
    w.repo({"a": "1"})
    (w.tree / ".git").rename(w.dir / "elsewhere.git")
    env = {"GIT_DIR": str(w.dir / "elsewhere.git"), "GIT_WORK_TREE": str(w.tree)}
    w.write(".gitignore", "*.o\n")
    w.write("x.o", "x")
    same_tree(w.push(env=env), w.tree, ["a", ".gitignore"])


def test_no_repository(w):
    w.write("a.py", "1")
    w.write(".gitignore", "*.o\n")
    w.write("x.o", "x")
    w.write("sub/b.py", "2")
    same_tree(w.push(), w.tree, ["a.py", ".gitignore", "sub/b.py"])
    w.write("dlrun.yaml", "name: x\n")
    same_tree(w.push(cwd=w.tree / "sub"), w.tree, ["a.py", ".gitignore", "sub/b.py", "dlrun.yaml"])


def test_bare_repository(w):
    w.git("init", "-q", "--bare")
    w.refused("push", id="snapshot.bare", rc=2)


def test_git_is_never_part_of_it(w):
    w.repo({"a": "1"})
    w.git("worktree", "add", "-q", "wt")
    image = w.push()
    assert not any(b".git" in p.split(b"/") for p in image.tree)


def test_ignore_sources(w):
    w.repo({".gitignore": "bk.d/*\n!bk.d/*/\n\\#hash\ntrail\\ \n**/deep/*.x\nspace  \n", "a": "1"})
    w.write("info/exclude", "by-info\n", base=w.tree / ".git")
    (w.home / ".config/git").mkdir(parents=True)
    (w.home / ".config/git/ignore").write_text("by-global\n")
    for path in ("bk.d/x", "bk.d/y/z", "#hash", "trail ", "p/q/deep/k.x", "space", "by-info", "by-global",
                 "p/kept"):
        w.write(path, "x")
    listed = w.git("ls-files", "-z", "-co", "--exclude-standard").out_bytes.split(b"\0")[:-1]
    assert b"bk.d/y/z" in listed and b"by-global" not in listed
    same_tree(w.push(), w.tree, listed)


def test_dlrunignore_include_and_paths(w):
    w.repo({"a": "1", "tracked/secretless": "2", "mono/x": "3", ".gitignore": "data/\n"})
    w.write("data/vocab.txt", "v")
    w.write("data/huge", "h")
    w.write(".dlrunignore", "tracked/\n")
    same_tree(w.push(), w.tree, ["a", "mono/x", ".gitignore", ".dlrunignore"])
    same_tree(w.push("--include", "data/vocab.txt"), w.tree,
              ["a", "mono/x", ".gitignore", ".dlrunignore", "data/vocab.txt"])
    w.write("dlrun.yaml", "paths: [mono]\n")
    same_tree(w.push(), w.tree, ["mono/x"])
    w.refused("push", "--include", "data/vocab.tx", id="snapshot.include", rc=2, says="data/vocab.tx")


# --- names, links, kinds, modes --------------------------------------------------------------------------

def test_odd_names(w):
    w.git("init", "-q")
    names = [b"space name", b"new\nline", b"tab\tname", b"quote'\"", b"\xff\xfe", "\U0001f600".encode(),
             "caf\u00e9".encode(), "cafe\u0301".encode(), b"c" * 255, b"-dash", b"Case", b"case", b"back\\slash",
             b"\x1b[31mred", b"[a]*?", b"a/" * 100 + b"deep"]
    for name in names:
        w.write(name, name)
    same_tree(w.push(), w.tree, names)
    same_tree(w.push("--full", env={"LC_ALL": "C"}), w.tree, names)


def test_long_paths(w):
    """A path of 4,000 bytes goes; one that no program can open is refused by name."""
    w.git("init", "-q")
    here = os.open(w.tree, os.O_RDONLY)
    part, length = b"d" * 199, 0
    while length + 200 < 3900:
        os.mkdir(part, dir_fd=here)
        here, old = os.open(part, os.O_RDONLY, dir_fd=here), here
        os.close(old)
        length += 200
    os.close(os.open(b"f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    image = w.push()
    assert [len(p) for p in image.tree] == [length + 1]
    for _ in range(3):
        os.mkdir(part, dir_fd=here)
        here, old = os.open(part, os.O_RDONLY, dir_fd=here), here
        os.close(old)
    os.close(os.open(b"g", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    w.refused("push", "--to", f"oci:{w.dir}/out", id="snapshot.name", rc=1, says="d" * 20)
    subprocess.run(["rm", "-rf", str(w.tree / part.decode())])


def test_whiteout_names_are_refused(w):
    w.repo()
    w.write("sub/.wh.x", "1")
    w.refused("push", id="snapshot.name", rc=1, says="sub/.wh.x")
    (w.tree / "sub/.wh.x").rename(w.tree / "sub/.wh..wh..opq")
    w.refused("push", id="snapshot.name", rc=1, says="sub/.wh..wh..opq")


def test_symbolic_links(w):
    w.repo({"dir/a": "1"})
    for name, target in {"dangling": "nowhere", "absolute": "/etc/passwd", "parent": "..", "loop": "loop",
                         "long": "x" * 4000, "to-dir": "dir"}.items():
        (w.tree / name).symlink_to(target)
    image = w.push()
    same_tree(image, w.tree, ["dir/a", "dangling", "absolute", "parent", "loop", "long", "to-dir"])
    assert "absolute" in image.said.err


def test_hard_links_are_separate_files(w):
    w.repo({"a": "same"})
    os.link(w.tree / "a", w.tree / "b")
    same_tree(w.push(), w.tree, ["a", "b"])
    (w.tree / "b").unlink()
    w.write("b", "other")
    same_tree(w.push(), w.tree, ["a", "b"])


def test_special_files_are_left_out_and_said(w):
    w.repo({"a": "1"})
    os.mkfifo(w.tree / "fifo")
    sock = socket.socket(socket.AF_UNIX)
    here = os.open(w.tree, os.O_RDONLY)
    sock.bind(f"/proc/self/fd/{here}/sock")
    image = w.push(timeout=30)
    same_tree(image, w.tree, ["a"])
    assert "fifo" in image.said.err
    sock.close()
    os.close(here)


def test_special_files_of_the_repository_are_refused(w):
    """Whoever opens one of these waits for ever: libgit2, and git in its turn."""
    w.repo({"a": "1"})
    w.git("worktree", "add", "-q", w.dir / "linked")
    head = w.git("symbolic-ref", "HEAD").out.strip()
    for name in ("index", "packed-refs", "config", head, "info/exclude", "shallow", "objects/info/alternates"):
        path = w.tree / ".git" / name
        kept = path.read_bytes() if path.exists() else None
        for make in (os.mkfifo, lambda p: os.symlink("/dev/tty", p)):
            path.unlink(missing_ok=True)
            make(path)
            said = w.refused("push", id="snapshot.repo", rc=1, timeout=30)
            assert f"{name}' of the repository is not a regular file" in said.err, said
        assert w.run("doctor", timeout=30).rc in (0, 1), name
        if name == "packed-refs":
            w.refused("push", id="snapshot.repo", rc=1, timeout=30, cwd=w.dir / "linked")
        path.unlink()
        if kept is not None:
            path.write_bytes(kept)
    w.push()


def test_unreadable_file_and_directory(w):
    w.repo({"a": "1", "b": "2"})
    w.as_nobody()
    w.refused_path = w.tree / "b"
    w.refused_path.chmod(0)
    w.refused("push", id="io.read", rc=1, says="b")
    w.refused_path.chmod(0o644)
    (w.tree / "closed").mkdir(mode=0o755)
    w.write("closed/x", "1")
    (w.tree / "closed").chmod(0)
    w.refused("push", id="io.read", rc=1, says="closed")
    w.write(".gitignore", "closed/\n")
    same_tree(w.push(to=w.dir / "home/out"), w.tree, ["a", "b", ".gitignore"])


def test_empty_files_and_directories(w):
    w.repo({"empty": ""})
    (w.tree / "nothing").mkdir()
    w.write(".gitignore", "*.o\n")
    w.write("only-ignored/x.o", "x")
    same_tree(w.push(), w.tree, ["empty", ".gitignore"])


def test_nothing_at_all(w):
    w.git("init", "-q")
    w.refused("push", id="snapshot.empty", rc=2)


def test_modes_become_two(w):
    w.repo()
    for mode in (0o600, 0o666, 0o444, 0o755, 0o700, 0o4755, 0o1777, 0o777):
        w.write(f"m{mode:o}", "x", mode)
    image = w.push(preexec=lambda: os.umask(0o077))
    for mode in (0o600, 0o666, 0o444):
        assert image.tree[f"m{mode:o}".encode()][1] is False
    for mode in (0o755, 0o700, 0o4755, 0o1777, 0o777):
        assert image.tree[f"m{mode:o}".encode()][1] is True
    with tarfile.open(fileobj=io.BytesIO(image.tars[0])) as archive:
        assert {(m.isdir(), m.mode) for m in archive} == {(True, 0o775), (False, 0o664), (False, 0o775)}


def test_extended_attributes_do_not_matter(w):
    w.repo()
    first = w.push()
    try:
        os.setxattr(w.tree / "a.py", "user.x", b"1")
    except OSError as failure:
        raise Skip(f"no extended attributes here: {failure}")
    assert w.push().digest == first.digest


def test_times_do_not_matter(w):
    w.repo()
    digests = set()
    for seconds in (0, -86400 * 365 * 10, 4294967296, 1.5):
        os.utime(w.tree / "a.py", (seconds, seconds))
        shutil.rmtree(w.dir / "out", ignore_errors=True)
        digests.add(w.push("--full").digest)
    assert len(digests) == 1


# --- the tree changes while it is read --------------------------------------------------------------------

def test_log_writer_at_full_speed(w):
    """Every image holds the bytes of one moment, or the file is named."""
    w.repo({"a": "1"})
    stop = threading.Event()

    def writer():
        with open(w.tree / "grow.log", "ab", buffering=0) as file:
            i = 0
            while not stop.is_set():
                file.write(b"%08d\n" % i)
                i += 1
                time.sleep(0.001)

    thread = threading.Thread(target=writer)
    thread.start()
    try:
        for _ in range(10):
            result = w.run("push", "--to", f"oci:{w.dir}/out")
            if result.rc != 0:
                check_error_form(result.err, "io.changed")
                assert "grow.log" in result.err
                continue
            image = Image(w.dir / "out", result.out.strip().split("@")[1])
            lines = image.tree.get(b"grow.log", ("", "", b""))[2].splitlines()
            assert lines == [b"%08d" % i for i in range(len(lines))]
    finally:
        stop.set()
        thread.join()


def test_files_replaced_truncated_and_deleted_meanwhile(w):
    w.repo({f"f{i}": "A" * 5000 for i in range(200)})
    stop = threading.Event()

    def churn():
        i = 0
        while not stop.is_set():
            path = w.tree / f"f{i % 200}"
            temporary = w.tree / ".git/tmp-churn"
            temporary.write_bytes(bytes([65 + i % 26]) * (4000 + i % 1000))
            os.replace(temporary, path)
            if i % 7 == 0:
                path.unlink()
                path.write_bytes(b"Z" * 100)
            i += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(8):
            result = w.run("push", "--to", f"oci:{w.dir}/out")
            if result.rc != 0:
                check_error_form(result.err, "io.changed")
                continue
            image = Image(w.dir / "out", result.out.strip().split("@")[1])
            for path, (_, _, content) in image.tree.items():
                assert len(set(content)) <= 1, f"{path!r} mixes two moments"
    finally:
        stop.set()
        thread.join()


def test_checkout_during_snapshot(w):
    w.repo({f"f{i}": "main" for i in range(300)})
    w.git("checkout", "-qb", "other")
    for i in range(300):
        w.write(f"f{i}", "side")
    w.commit()
    stop = threading.Event()

    def switch():
        while not stop.is_set():
            for branch in ("main", "other"):
                w.git("checkout", "-q", branch, check=False)

    thread = threading.Thread(target=switch)
    thread.start()
    try:
        for _ in range(6):
            result = w.run("push", "--to", f"oci:{w.dir}/out")
            if result.rc == 0:
                image = Image(w.dir / "out", result.out.strip().split("@")[1])
                assert {c for _, _, c in image.tree.values()} <= {b"main", b"side", b""}
            else:
                check_error_form(result.err, "io.changed")
    finally:
        stop.set()
        thread.join()


def test_two_at_once_in_one_repository(w):
    w.repo({f"f{i}": str(i) for i in range(100)})
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        images = list(pool.map(lambda i: w.push(), range(12)))
    assert len({image.digest for image in images}) == 1


# --- caches -----------------------------------------------------------------------------------------------

def test_damaged_caches_are_ignored(w):
    w.repo({f"f{i}": str(i) for i in range(50)})
    time_back = time.time() - 100
    for i in range(50):
        os.utime(w.tree / f"f{i}", (time_back, time_back))
    first = w.push("--full")
    files = [p for p in w.cache.rglob("*") if p.is_file() and p.stat().st_size]
    assert files, "there is no cache to damage"
    for harm in ("truncate", "flip", "version", "garbage", "empty"):
        for path in files:
            data = bytearray(path.read_bytes())
            if harm == "truncate":
                data = data[: len(data) // 2]
            elif harm == "flip":
                data[len(data) // 2] ^= 0x40
            elif harm == "version":
                data[4] ^= 0xFF
            elif harm == "garbage":
                data = bytearray(os.urandom(len(data)))
            else:
                data = bytearray()
            path.write_bytes(data)
        w.write("f0", harm)
        image = w.push()
        same_tree(image, w.tree, [f"f{i}" for i in range(50)])
    w.write("f0", "0")
    assert w.push("--full").digest == first.digest


def test_cache_directory_that_cannot_be_written(w):
    w.repo()
    w.env["XDG_CACHE_HOME"] = str(w.dir / "cache")
    (w.dir / "cache").mkdir()
    w.as_nobody()
    (w.dir / "cache").chmod(0o500)
    same_tree(w.push(to=w.home / "out"), w.tree, ["a.py"])


def test_clock_that_jumps_back(w):
    needs("faketime")
    w.repo({"a": "0"})
    for i, offset in enumerate(("+1d", "-1d", "+0d", "-30d", "+2d")):
        w.write("a", str(i))
        result = w.command(["faketime", "-f", offset, w.dlrun, "push", "--to", f"oci:{w.dir}/out"])
        assert result.rc == 0, result
        image = Image(w.dir / "out", result.out.strip().split("@")[1])
        assert image.tree[b"a"][2] == str(i).encode()


def test_inode_numbers_that_change_with_every_process(w):
    """As on NFS, 9p and FUSE: it costs time, but no file is missed or taken for an older one."""
    shim = Path(w.dlrun).parent / "tests/real/inode_shim.so"
    if not shim.exists():
        raise Missing(f"{shim} is not built")
    env = {"LD_PRELOAD": str(shim)}
    assert w.command(["stat", "-c%i", "."], env=env).out != w.command(["stat", "-c%i", "."], env=env).out
    w.repo({f"d{i % 5}/e{i % 3}/f{i}": f"{i:04}" for i in range(60)} | {"d0/d0/d0/deep": "x", ".gitignore": "*.o\n"})
    (w.tree / "link").symlink_to("d0")
    w.commit()
    time_back = time.time() - 100
    for path in all_files(w.tree):
        os.utime(os.path.join(os.fsencode(w.tree), path), (time_back, time_back), follow_symlinks=False)
    for i in range(6):
        path = w.tree / f"d{i % 5}/e{i % 3}/f{i}"
        before = path.stat()
        path.write_text(f"x{i:03}")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        w.write(f"new/{i}", str(i))
        (w.tree / f"d{(i + 15) % 5}/e{(i + 15) % 3}/f{i + 15}").unlink()
        image = w.push(env=env)
        same_tree(image, w.tree, all_files(w.tree))
        assert w.push().digest == image.digest, "the numbers show in the image"
    w.commit()
    run = w.ok("submit", "-d", "--", "sh", "-c", "cat new/5; find . -type f | wc -l", env=env).out.strip()
    assert w.run("wait", run, env=env).rc == 0
    assert w.ok("logs", run, env=env).out.split() == ["5" + str(len(all_files(w.tree)) - 1)]
    assert w.show(run)["snapshot"]["dirty"] is False
    assert json.loads(w.ok("diff", run, "--json", env=env).out)["files"] == []
    w.ok("gc", "--keep", "0s", env=env)
    w.ok("rm", run, env=env)


# --- limits -----------------------------------------------------------------------------------------------

def test_huge_checkpoint_is_refused_at_once(w):
    w.repo()
    (w.tree / "ckpt").mkdir()
    with open(w.tree / "ckpt/model.bin", "wb") as file:
        file.truncate(10 << 30)
    begin = running_time()
    w.refused("push", "--to", f"oci:{w.dir}/out", id="snapshot.limit", rc=1, says=["ckpt/model.bin", "10"])
    assert running_time() - begin < 5


def test_total_and_number_of_files(w):
    w.repo({f"d/f{i}": "x" * 1000 for i in range(40)})
    w.write("dlrun.yaml", "limits: {files: 20}\n")
    w.refused("push", id="snapshot.limit", rc=1, says="d/")
    w.write("dlrun.yaml", "limits: {size: 10Ki}\n")
    w.refused("push", id="snapshot.limit", rc=1, says="d/")
    w.write("dlrun.yaml", "limits: {file: 500}\nallow: [d]\n")
    w.push()


def test_deep_and_wide_directories(w):
    w.git("init", "-q")
    here = os.open(w.tree, os.O_RDONLY)
    for _ in range(1900):
        os.mkdir("d", dir_fd=here)
        here, old = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(old)
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    (w.tree / "wide").mkdir()
    for i in range(20000):
        (w.tree / f"wide/{i}").touch()
    image = w.push()
    assert len(image.tree) == 20001 and b"d/" * 1900 + b"f" in image.tree
    subprocess.run(["rm", "-rf", str(w.tree / "d")])


# --- secrets ----------------------------------------------------------------------------------------------

def test_untracked_secrets_are_refused(w):
    w.repo({"a": "1", "tracked.env": "A=1"})
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"
    for path, content in {".env": "TOKEN=1", "id_ed25519": key, "deploy.pem": key.replace("OPENSSH ", ""),
                          ".netrc": "machine a login b password c\n",
                          "kube/config.kubeconfig": "apiVersion: v1\nkind: Config\nusers:\n- user: {token: x}\n",
                          ".aws/credentials": "[default]\naws_secret_access_key = x\n"}.items():
        w.write(path, content)
        w.refused("push", id="snapshot.secret", rc=1, says=path)
        w.push("--allow", path)
        (w.tree / path).unlink()
    for path, content in {".env.example": "TOKEN=", "id_ed25519.pub": "ssh-ed25519 AAAA",
                          "cert.pem": "-----BEGIN CERTIFICATE-----\n"}.items():
        w.write(path, content)
    w.push()


def test_allow_that_matches_nothing_is_said(w):
    """No error, as what it allowed may be gone; with a secret that is refused it stands beside it."""
    w.repo({"a": "1", "mono/key.pem": "x", ".gitignore": "out/\n"})
    w.write("out/x", "ignored")
    assert "allow" not in w.push("--allow", "mono", "--allow", "mono/key.pem", "--allow", ".").said.err
    for entry, says in (("mono/kye.pem", "did you mean \"mono/key.pem\"?"), ("nowhere", "matches nothing"),
                        ("out", "holds no file"), ("out/x", "is ignored by git"), ("a/b", "leads through a file")):
        said = w.push("--allow", entry).said.err
        assert f'allow: "{entry}"' in said and "warning: " in said, said
        assert says in said, said
    w.write("dlrun.yaml", "paths: [mono]\nallow: [a, mono/gone]\n")
    said = w.push().said.err
    assert '"mono/gone" matches nothing' in said and '"a"' not in said, said
    (w.tree / "dlrun.yaml").unlink()
    w.write(".env", "TOKEN=1")
    w.refused("push", "--allow", ".evn", id="snapshot.secret", rc=1, says=['allow: ".evn" matches nothing', ".env: "])


# --- the user's repository ------------------------------------------------------------------------------------

def test_git_directory_stays_as_it_was(w):
    w.repo({"a": "1", "b": "2"})
    w.write("a", "edited")
    w.git("stash", "push", "-q", "b", check=False)
    w.write("new", "untracked")
    before = hash_dir(w.tree / ".git")
    run = w.ok("submit", "-d", "--", "true").out.strip()
    w.ok("wait", run)
    after = hash_dir(w.tree / ".git")
    changed = {p for p in before if before[p] != after.get(p)}
    added = set(after) - set(before)
    assert not changed, changed
    allowed = re.compile(r"refs/dlrun(/.*)?|logs/refs/dlrun(/.*)?|logs/refs|objects/[0-9a-f]{2}(/[0-9a-f]{38})?|"
                         r"objects/pack/pack-[0-9a-f]+\.(pack|idx|rev)")
    assert all(allowed.fullmatch(p) for p in added), [p for p in added if not allowed.fullmatch(p)]
    ref = f"refs/dlrun/{run}"
    assert w.git("show", f"{ref}:a").out == "edited"
    assert w.git("show", f"{ref}:new").out == "untracked"
    assert w.git("rev-parse", f"{ref}^").out == w.git("rev-parse", "HEAD").out
    assert w.git("fsck", "--full", "--strict").rc == 0
    w.ok("rm", run)
    assert w.git("rev-parse", "-q", "--verify", ref, check=False).rc != 0


def test_index_lock_is_neither_needed_nor_taken(w):
    w.repo()
    (w.tree / ".git/index.lock").write_text("")
    w.push()
    assert (w.tree / ".git/index.lock").read_text() == ""


if __name__ == "__main__":
    main()
