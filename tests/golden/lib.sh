# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# What the cases of tests/golden have in common.

# A small repository in the current directory: three files, one commit.
repo() {
    git init -q -b main .
    printf 'data/\n*.tmp\n' >.gitignore
    printf 'print("hello from python")\n' >train.py
    printf '#!/bin/sh\necho "lr=$1"\n' >train.sh
    chmod +x train.sh
    git add -A
    git commit -q -m first
}

# Show a command and its exit status.
t() {
    printf '$ %s\n' "$*"
    "$@"
    code=$?
    [ "$code" = 0 ] || printf '(exit %s)\n' "$code"
}
