#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random ignore rules and paths: does lib/snap say what `git check-ignore` says?

    ignore_diff.py SNAP_TOOL [CASES [SEED]]

A world is one repository with many small groups of paths, each group with rules of its own, so
that one git process answers thousands of cases. On a difference the seed of its world is printed:
`ignore_diff.py SNAP_TOOL 1 SEED` repeats that world alone.
"""
import os
import random
import shutil
import subprocess
import sys
import tempfile

CASES_IN_WORLD = 2500
NAMES = [b'a', b'b', b'ab', b'abc', b'foo', b'foo.o', b'bar.txt', b'x.tar.gz', b'A', b'FOO', b'Foo.O',
         b'a b', b'a ', b' a', b'#x', b'!x', b'[a]', b'[', b']', b'a*', b'a?b', b'\\a', b'a\\',
         b'\xc3\xa9', b'\xff', b'-', b'^', b'a-z', b'z9', b'a\r', b'a\t', b'a\vb', b'\x7f', b'.a',
         b'.gitkeep', b'_', b'*', b'**', b'a:b', b'0', b'data', b'src', b'build']
RARE = b'*?[]!^-\\/ab :#.zA0'
CLASSES = [b'[a-z]', b'[!a]', b'[^a]', b'[]]', b'[]a]', b'[a-]', b'[\\]]', b'[[:alpha:]]',
           b'[[:upper:]_]', b'[[:space:]]', b'[[:punct:]]', b'[![:alnum:]]', b'[[:bad:]]', b'[a',
           b'[A-F]', b'[Z-a]', b'[/]', b'[[:lower:]', b'[\\a-\\c]', b'[[:digit:]x]', b'[[:cntrl:]]']
LINE_ENDS = [b'\n'] * 12 + [b'\r\n', b' \n', b'  \n', b'\\ \n', b'\t\n', b'\0x\n', b'\n\n', b'\r\r\n']


def random_part(rng, names):
    """A component of a pattern: a name, with some of it made wild."""
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(names)
    if kind < 0.33:
        return rng.choice([b'*', b'**', b'?', b'***', b'', b'.', b'a**', b'**a'])
    if kind < 0.43:
        name = rng.choice(names)
        return b'*' + name[rng.randrange(len(name)):]
    if kind < 0.48:
        return bytes(rng.choice(RARE) for _ in range(rng.randrange(6)))
    part = bytearray()
    for byte in rng.choice(names):
        change = rng.random()
        if change < 0.12:
            part += rng.choice([b'*', b'**', b'?'])
        elif change < 0.2:
            part += rng.choice(CLASSES)
        elif change < 0.27:
            part += b'\\' + bytes([byte])
        elif change < 0.3:
            part += bytes([byte]).swapcase()
        elif change < 0.33:
            part += b'[' + bytes([byte]) + b']'
        else:
            part.append(byte)
    return bytes(part)


def random_pattern(rng, names):
    parts = [random_part(rng, names) for _ in range(rng.choice([1, 1, 1, 1, 2, 2, 3, 4]))]
    if rng.random() < 0.25:
        parts[rng.randrange(len(parts))] = b'**'
    pattern = b'/'.join(parts)
    if rng.random() < 0.2:
        pattern = b'/' + pattern
    if rng.random() < 0.2:
        pattern += b'/'
    if rng.random() < 0.3:
        pattern = b'!' + pattern
    if rng.random() < 0.03:
        pattern = rng.choice([b'\\', b'#']) + pattern
    return pattern + rng.choice(LINE_ENDS)


def random_rules(rng, names):
    text = b''.join(random_pattern(rng, names) for _ in range(rng.randrange(1, 7)))
    if rng.random() < 0.1:
        text = b'\xef\xbb\xbf' + text
    if rng.random() < 0.1:
        text = text[:-1]
    return text


def write(path, data):
    with open(path, 'wb') as file:
        file.write(data)


def make_dir(rng, root, path, depth, names, paths):
    """A directory with files and directories, some of them with rules."""
    here = os.path.join(root, path)
    os.mkdir(here)
    for name in set(rng.choices(names, k=rng.randrange(2, 6))):
        child = path + b'/' + name
        paths.append(child)
        if rng.random() < 0.45 and depth < 4:
            make_dir(rng, root, child, depth + 1, names, paths)
        elif rng.random() < 0.85:
            write(os.path.join(root, child), b'')
    if depth == 0 or rng.random() < 0.15:
        write(here + b'/.gitignore', random_rules(rng, names))


def make_world(rng, root, n_cases):
    paths = []
    group = 0
    while len(paths) < n_cases:
        names = rng.sample(NAMES, 7)
        make_dir(rng, root, b'g%d' % group, 0, names, paths)
        group += 1
    for rules in ('.gitignore', '.git/info/exclude', '.git/excludes'):
        if rng.random() < 0.5:
            write(os.path.join(root, os.fsencode(rules)), random_rules(rng, NAMES))
    rng.shuffle(paths)
    return paths


def git(root, *args, **kwargs):
    env = {'PATH': os.environ['PATH'], 'LC_ALL': 'C', 'GIT_CONFIG_NOSYSTEM': '1', 'HOME': '/nonexistent'}
    return subprocess.run(['git', *args], cwd=root, env=env, stdout=subprocess.PIPE, check=False, **kwargs)


def ask_git(root, paths):
    """For each path what git's last matching rule says: x, !, or . for none; and that rule."""
    done = git(root, 'check-ignore', '--stdin', '-z', '-v', '-n', '--no-index',
               input=b''.join(path + b'\0' for path in paths))
    fields = done.stdout.split(b'\0')
    answers = []
    for i in range(0, len(fields) - 1, 4):
        source, line, pattern, _ = fields[i:i + 4]
        verdict = '.' if not source else '!' if pattern.startswith(b'!') else 'x'
        answers.append((verdict, source, line, pattern))
    return answers


def ask_tool(tool, root, paths, ignore_case):
    options = ['-i'] if ignore_case else []
    for rules in ('.git/info/exclude', '.git/excludes'):
        options += ['-x', os.path.join(root, os.fsencode(rules))]
    done = subprocess.run([tool, 'check-ignore', *options, root], stdout=subprocess.PIPE, check=True,
                          input=b''.join(path + b'\0' for path in paths))
    return done.stdout.decode().split()


def run_world(tool, seed, n_cases):
    rng = random.Random(seed)
    base = '/dev/shm' if os.path.isdir('/dev/shm') else None
    root = os.fsencode(tempfile.mkdtemp(prefix='dlrun-ignore-', dir=base))
    ignore_case = rng.random() < 0.3
    try:
        git(root, 'init', '-q', '--template=', '.')
        os.makedirs(root + b'/.git/info', exist_ok=True)
        git(root, 'config', 'core.ignorecase', 'true' if ignore_case else 'false')
        git(root, 'config', 'core.excludesfile', os.fsdecode(root) + '/.git/excludes')
        paths = make_world(rng, root, n_cases)
        expected = ask_git(root, paths)
        got = ask_tool(tool, root, paths, ignore_case)
        if len(expected) != len(paths) or len(got) != len(paths):
            sys.exit('seed %d: %d answers of git and %d of ours for %d paths'
                     % (seed, len(expected), len(got), len(paths)))
        wrong = 0
        for path, theirs, ours in zip(paths, expected, got):
            if theirs[0] != ours:
                wrong += 1
                print('seed %d ignore_case %d: %r: git %s, ours %s (%r:%s %r)'
                      % (seed, ignore_case, path, theirs[0], ours, theirs[1], theirs[2].decode(), theirs[3]))
        return len(paths), wrong, sum(answer[0] != '.' for answer in expected)
    finally:
        shutil.rmtree(root)


def main():
    tool = sys.argv[1]
    n_cases = int(sys.argv[2]) if len(sys.argv) > 2 else 20000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 30)
    print('seed %d' % seed)
    done = wrong = matched = 0
    while done < n_cases:
        n, bad, hits = run_world(tool, seed, CASES_IN_WORLD)
        done, wrong, matched = done + n, wrong + bad, matched + hits
        seed += 1
    print('%d cases, %d of them decided by a rule, %d differences' % (done, matched, wrong))
    sys.exit(1 if wrong else 0)


if __name__ == '__main__':
    main()
