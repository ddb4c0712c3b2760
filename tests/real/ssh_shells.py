#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Login shells of nodes: whatever they are and whatever their profiles print, words and variables arrive unchanged.

DLRUN_STRINGS: through each of them (2,000). DLRUN_FULL=1: 100,000.
"""

import random

from harness import *  # noqa: F403
from ssh_logins import refused
from sshsite import SHELLS, SshSite
from ssh_submit import SHOW, shown

EACH = 1000
STRINGS = int(os.environ.get("DLRUN_STRINGS", "100000" if os.environ.get("DLRUN_FULL") else "2000"))
SEED = int(os.environ.get("DLRUN_SEED", "0")) or random.randrange(1 << 30)
SPECIAL = b"'\"\\$`!*?[]{}()<>|&;~#%^=,:@+-_/. \t\n\r\x01\x1b\x7f\xff\xc3\xa9aZ09"
NOISE = {"fish": "echo welcome\necho -n 'no newline'\n", "tcsh": "echo welcome\necho -n 'no newline'\n"}


def strings(rng, n):
    for _ in range(n):
        size = rng.choice((0, 1, 2, 3, 8, 30))
        yield bytes(rng.choice(SPECIAL) if rng.random() < 0.9 else rng.randrange(1, 256) for _ in range(size))


def through(w, shell, noise=None):
    """All of them, half as words and half as variables, in as many runs as it takes."""
    rng = random.Random(SEED)
    noise = NOISE.get(shell, "echo welcome\nprintf 'no newline'\n") if noise is None else noise
    with SshSite(w) as s:
        s.host("gpu1", shell=shell, noise=noise)
        w.repo({"show.py": SHOW})
        for _ in range(max(1, STRINGS // EACH)):
            words, values = list(strings(rng, EACH // 2)), list(strings(rng, EACH // 2))
            options = [part for i, value in enumerate(values) for part in (b"-e", b"V%d=" % i + value)]
            done = s.follow(*options, "--", "python3", "show.py", *words)
            assert done.rc == 0, (SEED, done.rc, done.err[-600:])
            argv, env, _ = shown(done.out)
            assert argv == words, (SEED, [(a, b) for a, b in zip(argv, words) if a != b][:5])
            wrong = [(value, env.get(f"V{i}")) for i, value in enumerate(values) if env.get(f"V{i}") != value]
            assert not wrong, (SEED, wrong[:5])
        run = s.submit("--", "sh", "-c", "echo out; exit 3")
        assert s.ended(run)["exit"]["code"] == 3 and w.ok("logs", run).out == "out\n"


def test_dash(w):
    through(w, "dash")


def test_bash(w):
    through(w, "bash")


def test_zsh(w):
    through(w, "zsh")


def test_fish(w):
    through(w, "fish")


def test_tcsh(w):
    through(w, "tcsh")


def test_busybox(w):
    through(w, "busybox")


def test_all_of_them_are_tried(w):
    assert {f"test_{shell}" for shell in SHELLS} <= set(globals())


def test_much_noise(w):
    """As much as may come, and a profile that ends with an error."""
    with SshSite(w) as s:
        s.host("gpu1", noise="head -c 200000 /dev/zero | tr '\\0' x; echo; false\n")
        w.repo()
        assert s.follow("--", "echo", "through").out == "through\n"
        s.host("gpu2", noise="yes | head -c 3000000\n")
        refused(s, "node.shell", 1, "gpu2", host="gpu2")
        s.host("gpu3", noise="echo your account has expired; exit 1\n")
        refused(s, "node.shell", 1, "gpu3", "expired", host="gpu3")


def test_a_hostile_environment(w):
    """Aliases, functions and settings of a profile change nothing."""
    noise = ("alias cd='echo no' tar='echo no' printf='echo no'\ncat() { echo no; }\nexport -f cat\nset -u\nexport IFS=x\n"
             "export TAR_OPTIONS=--totals GZIP=-v GREP_OPTIONS=-v ENV=$HOME/env BASH_ENV=$HOME/env\n"
             "export CDPATH=/tmp LC_ALL=nowhere POSIXLY_CORRECT=1\numask 077\n")
    with SshSite(w) as s:
        host = s.host("gpu1", noise=noise)
        (host.home / "env").write_text("echo from env\nalias mkdir='echo no'\n")
        w.repo({"a": "1\n"})
        done = s.follow("--", "sh", "-c", "command cat a; umask")
        assert done.rc == 0 and done.out.splitlines()[-2:] == ["1", "0077"], done


if __name__ == "__main__":
    main()
