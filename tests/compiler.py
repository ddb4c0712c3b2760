# SPDX-License-Identifier: Apache-2.0
"""How the tests set up and build: with ccache where it is installed, whose hits do not depend on where the clone lies, and with the linker
mold where the compiler takes it: there are as many programs as unit tests."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def environment(compiler=None, own_linker=True):
    """What to add to the environment of meson and ninja. compiler: the one to use, else the caller's $CC or cc; own_linker: not the
    one that the compiler would take by itself."""
    found = {"CC": compiler or os.environ.get("CC") or ("gcc" if shutil.which("gcc") else "cc")}
    if own_linker and "CC_LD" not in os.environ and shutil.which("mold"):
        asked = subprocess.run([*found["CC"].split(), "-fuse-ld=mold", "-Wl,--version"], capture_output=True)
        found |= {"CC_LD": "mold"} if asked.returncode == 0 else {}
    if shutil.which("ccache"):
        if not is_ccache(found["CC"]):
            found["CC"] = f"ccache {found['CC']}"
        # Paths below the clone are taken as relative ones, and the directory of a compilation is no part of its key.
        found |= {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
    return found


def is_ccache(command):
    """It may stand before a compiler, or be what a compiler's name is a link to."""
    program = shutil.which(command.split()[0])
    return bool(program) and os.path.basename(os.path.realpath(program)) == "ccache"


def stamp_of(options, env):
    native = [Path(ROOT / word).read_text() for word in options if word.endswith(".ini")]
    return repr((options, env["CC"], env.get("CC_LD"), native))


def set_up(where, options, env):
    """Configure a build directory; one that was configured with the same options stays, ninja brings it up to date."""
    stamp = where / "options"
    if (where / "build.ninja").exists() and stamp.exists() and stamp.read_text() == stamp_of(options, env):
        return
    shutil.rmtree(where, ignore_errors=True)
    subprocess.run(["meson", "setup", *options, str(where)], cwd=ROOT, env={**os.environ, **env}, check=True)
    stamp.write_text(stamp_of(options, env))
