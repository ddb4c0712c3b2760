# SPDX-License-Identifier: Apache-2.0
# LOCK PREFIX LIST: what conda.sh does without a tool of conda. LIST: a file for the requirements of pip.
import asyncio, os, re, shlex, subprocess, sys
import rattler, yaml

lock, prefix, requirements = sys.argv[1:]
here = str(rattler.Subdir.current())


def end(status):
    """Not by the interpreter's end: threads of rattler that still run crash it there."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def fail(text):
    print(f"dlrun: {lock}: {text}", file=sys.stderr)
    end(1)


def pip_line(package):
    where = package.location
    if "://" in where:
        digest = package.hashes and package.hashes.sha256
        return f"{package.name} @ {where}" + (f"#sha256={digest.hex()}" if digest and "#" not in where else "")
    return f"-e {os.path.abspath(where)}" if os.path.isdir(where) else os.path.abspath(where)


async def locked():
    environment = dict(rattler.LockFile.from_path(lock).environments()).get("default")
    if not environment:
        fail("there is no environment of the name default in it")
    platforms = environment.platforms()
    for platform in platforms:
        if str(platform.subdir) == here:
            packages = environment.pypi_packages_for_platform(platform) or []
            return environment.conda_repodata_records_for_platform(platform) or [], ["--no-deps"], [pip_line(p) for p in packages]
    fail(f"it is for {', '.join(str(p.subdir) for p in platforms)}, and not for {here}: add that platform to it")


def channel(name):
    return [f"https://repo.anaconda.com/pkgs/{part}" for part in ("main", "r")] if name == "defaults" else [name]


def pip_wanted(line):
    """pip looks for the files of -r and -c beside the list, which is elsewhere."""
    found = re.match(r"(-r|-c|--requirement|--constraint)[\s=]*(?!\w+://)(\S.*)", line)
    return f"{found[1]} {shlex.quote(os.path.abspath(shlex.split(found[2], comments=True)[0]))}" if found else line


async def resolved():
    with open(lock) as file:
        document = yaml.safe_load(file)
    wanted = document.get("dependencies") or []
    channels = [c for name in document.get("channels") or ["conda-forge"] if name != "nodefaults" for c in channel(name)]
    virtual = rattler.VirtualPackage.detect(rattler.VirtualPackageOverrides.from_env())
    records = await rattler.solve(channels, [w for w in wanted if isinstance(w, str)], platforms=[here, "noarch"], virtual_packages=virtual)
    return records, [], [pip_wanted(line) for w in wanted if isinstance(w, dict) for line in w.get("pip") or []]


async def main():
    records, options, lines = await (resolved() if lock.startswith("environment.") else locked())
    await rattler.install(records, prefix, show_progress=False)
    return options, lines


try:
    options, lines = asyncio.run(main())
except Exception as error:
    fail(" ".join(str(error).split()))
if lines:
    with open(requirements, "w") as file:
        file.write("".join(line + "\n" for line in lines))
    pip = [sys.executable, "-m", "pip", "--python", f"{prefix}/bin/python", "install", "-q", *options, "-r", requirements]
    end(subprocess.run(pip).returncode)
end(0)
