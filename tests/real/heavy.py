#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Results that are many, large or mostly holes, on this machine and on a real SSH server; and what a fetch of them takes of memory.

DLRUN_TEST_LARGE=1: files of 5 GB instead of 300 MB (and 20 GB of disk for them), 50,000 files from a host instead of 5,000."""

import filecmp

from harness import *  # noqa: F403
from sshsite import site

LARGE = 5 * 10 ** 9 if os.environ.get("DLRUN_TEST_LARGE") else 300 * 10 ** 6
RSS_MAX = 64 << 20
MANY = 50000
# A host's shell starts two programs for each file that it sends.
MANY_FROM_HOST = MANY if os.environ.get("DLRUN_TEST_LARGE") else 5000
LARGE_PROGRAM = f"dd if=/dev/urandom of=block bs=1M count=8 2>/dev/null; n=0; while [ $n -lt {LARGE // (8 << 20)} ]; do cat block; " \
                "n=$((n + 1)); done >model.bin; rm block"
# A place to say how much the command took of memory at most, which a child of this process would share.
PEAK = "import os,sys\np=os.posix_spawn(sys.argv[2],sys.argv[2:],os.environ)\n_,s,u=os.wait4(p,0)\n" \
       "open(sys.argv[1],'w').write(str(u.ru_maxrss))\nsys.exit(os.waitstatus_to_exitcode(s)&255)"
# The sanitizers have memory of their own.
IS_BOUNDED = "ASAN_OPTIONS" not in os.environ


def many_program(n):
    return f"""import os
for i in range({n}):
    if i % 500 == 0: os.makedirs(f'names/{{i // 500}}', exist_ok=True)
    with open(f'names/{{i // 500}}/{{i}}.txt', 'w') as f: f.write(f'value {{i}}')
"""


def small(w, *words):
    """A command of dlrun that succeeds within the limit of memory."""
    result = w.command([sys.executable, "-c", PEAK, w.dir / "peak", w.dlrun, *words], timeout=600)
    assert result.rc == 0, result
    peak = int((w.dir / "peak").read_text()) << 10
    print(f"dlrun {' '.join(map(str, words))[:60]}: peak {peak / (1 << 20):.1f} MiB", flush=True)
    assert not IS_BOUNDED or peak <= RSS_MAX, (words, peak)
    return result


def check_many(w, run, n=MANY, to="many"):
    listed = small(w, "fetch", run, "--list")
    assert listed.out.count(".txt") == n, (listed.out[:200], listed.err)
    small(w, "fetch", run, "-o", to)
    got = [p for p in (w.tree / to / "names").rglob("*.txt")]
    assert len(got) == n and all(p.read_text() == f"value {p.stem}" for p in got), len(got)


def fetched_same(w, run, source, name, to):
    small(w, "fetch", run, "-o", to)
    assert filecmp.cmp(source, w.tree / to / name, shallow=False), name


def test_many_files_here(w):
    w.repo({"many.py": many_program(MANY)})
    small(w, "submit", "-f", "--", "python3", "many.py")
    check_many(w, w.show()["id"])


def test_many_files_from_a_host(w):
    with site(w, files={"many.py": many_program(MANY_FROM_HOST)}):
        small(w, "submit", "-f", "-t", "ssh:gpu1", "--", "python3", "many.py")
        check_many(w, w.show()["id"], MANY_FROM_HOST)


def test_a_large_file_here(w):
    w.repo({"large.sh": LARGE_PROGRAM})
    small(w, "submit", "-f", "--", "sh", "large.sh")
    run = w.state / "runs" / w.show()["id"]
    made, kept = run / "attempts/1/tree/model.bin", run / "outputs/model.bin"
    assert made.samefile(kept) and kept.stat().st_size >= LARGE - (8 << 20), "a copy, or cut"
    fetched_same(w, run.name, made, "model.bin", "here")


def test_a_large_file_from_a_host(w):
    with site(w, files={"large.sh": LARGE_PROGRAM}) as s:
        small(w, "submit", "-f", "-t", "ssh:gpu1", "--", "sh", "large.sh")
        run = w.show()["id"]
        made = s.there(run) / "tree/model.bin"
        assert made.samefile(made.parents[2] / "outputs/model.bin"), "a copy"
        fetched_same(w, run, made, "model.bin", "there")


def test_holes_stay_holes(w):
    """4 GiB of which nearly nothing is written, in the tree's file system and behind a fetch; from a host, where all of it travels,
    2 GiB if not all is tested."""
    def check(to, size):
        file = w.dir / to / "holes"
        assert file.stat().st_size == size and file.stat().st_blocks * 512 < 64 << 20, file.stat()
        with open(file, "rb") as f:
            f.seek(1 << 30)
            assert f.read(6) == b"middle"

    holes = "import sys\nwith open('holes', 'wb') as f:\n    f.truncate(int(sys.argv[1]))\n    f.seek(1 << 30); f.write(b'middle')\n"
    with site(w, files={"holes.py": holes}):
        for target, to, size in (("local", "here", 4 << 30), ("ssh:gpu1", "there", 4 << 30 if ALL else (2 << 30) + 1)):
            small(w, "submit", "-f", "-t", target, "--", "python3", "holes.py", str(size))
            small(w, "fetch", "@", "-o", w.dir / to)
            check(to, size)


def test_full_disk_at_home(w):
    """What a host has is not lost when the disk here is full: the fetch says so, and goes on elsewhere."""
    here = w.dir / "small"
    here.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(here)], capture_output=True).returncode:
        raise Skip("cannot mount a tmpfs here")
    try:
        with site(w, files={"w.py": "open('a', 'w').write('a')\nopen('b', 'wb').write(b'b' * (5 << 20))\n"}):
            w.ok("submit", "-f", "-t", "ssh:gpu1", "--", "python3", "w.py")
            result = w.run("fetch", "@", "-o", str(here / "got"))
            assert result.rc == 1, result
            check_error_form(result.err, "io.full")
            assert not (here / "got/b").exists()
            w.ok("fetch", "@", "-o", "elsewhere")
            assert (w.tree / "elsewhere/a").read_text() == "a" and (w.tree / "elsewhere/b").stat().st_size == 5 << 20
    finally:
        subprocess.run(["umount", "-l", str(here)])


if __name__ == "__main__":
    main()
