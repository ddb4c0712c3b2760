#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random trees: does the walk of lib/snap find what `git ls-files -co --exclude-standard` finds?

    tree_diff.py SNAP_TOOL [TREES [SEED]]

From git's answer entries whose file is gone are taken out, and nested repositories are replaced by
git's answer for them. On a difference the seed is printed and the tree is kept:
`tree_diff.py SNAP_TOOL 1 SEED` repeats it alone.
"""
import concurrent.futures
import hashlib
import os
import random
import shutil
import stat
import struct
import subprocess
import sys
import tempfile

from ignore_diff import NAMES, random_rules

BATCH = 50
MODES = [0o100644] * 8 + [0o100755, 0o120000]
GITLINK = 0o160000


def write(path, data):
    with open(path, 'wb') as file:
        file.write(data)


class Repo:
    """A repository whose index is written here, so that no git runs for it."""

    def __init__(self, root):
        self.root = root
        self.entries = {}

    def make(self, rng, excludes, git_dir=None):
        git_dir = git_dir or self.root + b'/.git'
        for name in (b'objects', b'refs', b'info'):
            os.makedirs(git_dir + b'/' + name)
        write(git_dir + b'/HEAD', b'ref: refs/heads/main\n')
        write(git_dir + b'/config', b'[core]\nrepositoryformatversion = 0\nexcludesfile = %s\nignorecase = %s\n'
              % (excludes, b'true' if self.ignore_case else b'false'))
        if rng.random() < 0.3:
            write(git_dir + b'/info/exclude', random_rules(rng, NAMES))
        self.git_dir = git_dir

    def add(self, path, mode):
        """False where the index cannot hold it beside what it has: a file below a file. Nor a file in
        the place of a nested repository, because `ls-files` then hides that one."""
        if mode != GITLINK and os.path.isdir(self.root + b'/' + path) and is_repo(self.root + b'/' + path):
            return False
        parts = path.split(b'/')
        parents = [b'/'.join(parts[:i]) for i in range(1, len(parts))]
        if any(parent in self.entries for parent in parents):
            return False
        if any(other.startswith(path + b'/') for other in self.entries):
            return False
        self.entries[path] = mode
        return True

    def write_index(self, rng):
        out = []
        for path in sorted(self.entries):
            mode = self.entries[path]
            stages = [1, 2, 3] if mode != GITLINK and rng.random() < 0.03 else [0]
            for stage in stages:
                entry = struct.pack('>10I20sH', 0, 0, 0, 0, 0, 0, mode, 0, 0, 0, b'\1' * 20,
                                    min(len(path), 0xfff) | stage << 12) + path
                out.append(entry + b'\0' * (8 - len(entry) % 8))
        body = struct.pack('>4sII', b'DIRC', 2, len(out)) + b''.join(out)
        write(self.git_dir + b'/index', body + hashlib.sha1(body).digest())


class Tree:
    def __init__(self, rng, root, excludes, ignore_case):
        self.rng, self.root, self.excludes = rng, root, excludes
        Repo.ignore_case = ignore_case
        self.names = rng.sample(folded_once(NAMES) if ignore_case else NAMES, 14)
        self.repos = {}
        os.mkdir(root)
        self.fill(self.new_repo(root), root, 0)
        for repo in self.repos.values():
            self.add_missing(repo)
            repo.write_index(rng)

    def new_repo(self, root, git_dir=None):
        repo = Repo(root)
        repo.make(self.rng, self.excludes, git_dir)
        self.repos[root] = repo
        return repo

    def fill(self, repo, here, depth):
        rng = self.rng
        for name in set(rng.choices(self.names, k=rng.randrange(*[(5, 14), (3, 12), (1, 8), (0, 6), (0, 4), (0, 3)][depth]))):
            self.fill_one(repo, here + b'/' + name, depth)
        if rng.random() < (0.6 if depth == 0 else 0.15):
            self.make_rules(repo, here + b'/.gitignore')

    def make_rules(self, repo, path):
        kind = self.rng.random()
        if kind < 0.9:
            write(path, random_rules(self.rng, self.names))
        elif kind < 0.95:
            os.symlink(b'a', path)
        else:
            os.mkdir(path)
            return
        self.track(repo, path, 0o100644)

    def fill_one(self, repo, path, depth):
        rng = self.rng
        kind = rng.random()
        if kind < 0.45 and depth < 5:
            os.mkdir(path)
            self.fill_dir(repo, path, depth)
        elif kind < 0.55:
            os.symlink(rng.choice([b'.', b'..', b'missing', b'/', *self.names]), path)
            self.track(repo, path, 0o120000)
        elif kind < 0.57:
            os.mkfifo(path)
        else:
            write(path, b'')
            if rng.random() < 0.1:
                os.chmod(path, 0o755)
            self.track(repo, path, rng.choice(MODES))

    def fill_dir(self, repo, path, depth):
        rng = self.rng
        kind = rng.random()
        if kind < 0.08:
            self.fill_nested(repo, path, depth)
        elif kind < 0.1:
            # No repository, though it has that name.
            if rng.random() < 0.5:
                os.mkdir(path + b'/.git')
            else:
                write(path + b'/.git', b'gitdir?\n')
            self.fill(repo, path, depth + 1)
        elif kind < 0.12:
            repo.add(os.path.relpath(path, repo.root), GITLINK)
        elif kind < 0.96:
            self.fill(repo, path, depth + 1)

    def fill_nested(self, repo, path, depth):
        rng = self.rng
        git_dir = None
        if rng.random() < 0.2:
            git_dir = self.root + b'/.git/modules-%d' % len(self.repos)
            write(path + b'/.git', b'gitdir: ' + git_dir + b'\n')
        nested = self.new_repo(path, git_dir)
        name = os.path.relpath(path, repo.root)
        if rng.random() < 0.4:
            repo.add(name, GITLINK)
        elif rng.random() < 0.1:
            # Tracked by the outer one, which then does not see the inner one.
            repo.add(name + b'/tracked', 0o100644)
            write(path + b'/tracked', b'')
        self.fill(nested, path, depth + 1)

    def track(self, repo, path, mode):
        if self.rng.random() < 0.5:
            repo.add(os.path.relpath(path, repo.root), mode)

    def add_missing(self, repo):
        """Entries whose file is gone, or whose place is taken by something else."""
        rng = self.rng
        for _ in range(rng.randrange(4)):
            parts = [rng.choice(self.names) for _ in range(rng.randrange(1, 4))]
            if rng.random() < 0.5 and repo.entries:
                parts = rng.choice(list(repo.entries)).split(b'/')[:-1] + parts
            repo.add(b'/'.join(parts), rng.choice(MODES))


def folded_once(names):
    return list({name.lower(): name for name in names}.values())


def is_repo(path):
    """As git looks at a directory inside a work tree."""
    git = path + b'/.git'
    if os.path.isfile(git):
        with open(git, 'rb') as file:
            return file.read().startswith(b'gitdir: ')
    return os.path.isdir(git + b'/objects')


def has_link_above(root, path):
    parts = path.split(b'/')
    return any(os.path.islink(root + b'/' + b'/'.join(parts[:i])) for i in range(1, len(parts)))


def ask_git(repos, root, prefix=b''):
    """Paths with T or U before them, as snap_tool prints them."""
    env = {'PATH': os.environ['PATH'], 'LC_ALL': 'C', 'GIT_CONFIG_NOSYSTEM': '1', 'HOME': '/nonexistent',
           'GIT_CEILING_DIRECTORIES': os.fsdecode(os.path.dirname(root))}
    done = subprocess.run(['git', 'ls-files', '-z', '-co', '--exclude-standard'], cwd=root, env=env,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    found = set()
    entries = repos[root].entries
    for path in set(done.stdout.split(b'\0')[:-1]):
        full = root + b'/' + path.rstrip(b'/')
        if not os.path.lexists(full) or has_link_above(root, path.rstrip(b'/')):
            continue
        mode = os.lstat(full).st_mode
        if stat.S_ISDIR(mode):
            nested = path.endswith(b'/') or entries.get(path) == GITLINK
            if nested and is_repo(full):
                found |= ask_git(repos, full, prefix + path.rstrip(b'/') + b'/')
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            found.add((b'T' if path in entries else b'U') + prefix + path)
    return found


def ask_tool(tool, trees):
    done = subprocess.run([tool, 'list', *[tree.root for tree in trees]], stdout=subprocess.PIPE, check=True)
    # The end of each tree is an empty path, but a tree may also hold nothing.
    answers, paths = [], []
    for path in done.stdout.split(b'\0')[:-1]:
        if path:
            paths.append(path)
        else:
            answers.append(paths)
            paths = []
    return answers


def compare(seed, expected, got):
    if got and got[0].startswith(b'Esnapshot.empty'):
        got = []
    ordered = [path[1:] for path in got]
    problems = []
    if ordered != sorted(set(ordered)):
        problems.append('paths are not sorted, or not unique')
    for path in sorted(expected - set(got)):
        problems.append('missing %r' % path)
    for path in sorted(set(got) - expected):
        problems.append('too much: %r' % path)
    for problem in problems:
        print('seed %d: %s' % (seed, problem))
    return bool(problems)


def run_batch(tool, base, seed, count, pool):
    # What a batch has in common hangs on the first seed of its fifty, so that one can be repeated.
    common = random.Random(seed // BATCH * BATCH)
    ignore_case = common.random() < 0.2
    excludes = base + b'/excludes'
    write(excludes, random_rules(common, NAMES) if common.random() < 0.3 else b'')
    seeds = range(seed, min(seed + count, (seed // BATCH + 1) * BATCH))
    trees = [Tree(random.Random(s), base + b'/%d' % s, excludes, ignore_case) for s in seeds]
    futures = [pool.submit(ask_git, tree.repos, tree.root) for tree in trees]
    answers = ask_tool(tool, trees)
    if len(answers) != len(trees):
        sys.exit('seed %d: %d answers for %d trees' % (seed, len(answers), len(trees)))
    wrong = paths = 0
    for s, tree, future, got in zip(seeds, trees, futures, answers):
        expected = future.result()
        paths += len(expected)
        if compare(s, expected, got):
            wrong += 1
        else:
            shutil.rmtree(tree.root)
    return len(trees), wrong, paths


def main():
    tool = sys.argv[1]
    n_trees = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 30)
    shm = '/dev/shm' if os.path.isdir('/dev/shm') else None
    base = os.fsencode(tempfile.mkdtemp(prefix='dlrun-trees-', dir=shm))
    print('seed %d' % seed)
    done = wrong = paths = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        while done < n_trees:
            n, bad, found = run_batch(tool, base, seed + done, n_trees - done, pool)
            done, wrong, paths = done + n, wrong + bad, paths + found
    print('%d trees, %d paths, %d trees differ' % (done, paths, wrong))
    if wrong:
        print('they are kept below %s' % os.fsdecode(base))
        sys.exit(1)
    shutil.rmtree(base)


if __name__ == '__main__':
    main()
