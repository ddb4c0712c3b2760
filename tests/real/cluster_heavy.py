#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Results of a pod without storage that are many or large: taken from it, within the limit of memory."""

import hashlib

from harness import *  # noqa: F403
from heavy import check_many, many_program, small
from kubesite import site

MANY = 50000 if os.environ.get("DLRUN_TEST_LARGE") else 5000
LARGE = 10 ** 9 if os.environ.get("DLRUN_TEST_LARGE") else 100 * 10 ** 6
LARGE_PROGRAM = f"""import hashlib, os
block, told = os.urandom(1 << 20), hashlib.sha256()
with open('model.bin', 'wb') as f:
    for _ in range({LARGE >> 20}):
        f.write(block)
        told.update(block)
print('sha256', told.hexdigest())
"""


def test_many_files(w):
    with site(w, files={"many.py": many_program(MANY)}):
        small(w, "submit", "-f", "--", "python3", "many.py")
        check_many(w, w.show()["id"], MANY)


def test_a_large_file(w):
    with site(w, files={"large.py": LARGE_PROGRAM}):
        said = small(w, "submit", "-f", "--", "python3", "large.py").out
        small(w, "fetch", "@", "-o", "got")
        with open(w.tree / "got/model.bin", "rb") as f:
            assert hashlib.file_digest(f, "sha256").hexdigest() == said.split()[-1], said


if __name__ == "__main__":
    main()
