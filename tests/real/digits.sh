#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# examples/digits really learns: accuracy, result.json, event files, determinism, bad options.
# PYTHON=... picks the interpreter; with one that has tensorboard, TensorBoard reads the files, too.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
train=$root/examples/digits/train.py
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PYTHONDONTWRITEBYTECODE=1 # leave the checkout as it was

fail() {
    printf 'digits: %s\n' "$*" >&2
    exit 1
}

# train OUTPUT_DIR OPTION...: in another directory than the program's own, as every run of dlrun is
train() {
    local out=$1
    shift
    (cd "$scratch" && DLRUN_OUTPUT_DIR=$out "$python" "$train" "$@") >"$scratch/log" 2>&1 || {
        cat "$scratch/log" >&2
        fail "train.py $* failed"
    }
}

# refuses WORDS OPTION...: exit code 2 and a message with these words, and nothing written
refuses() {
    local words=$1 code=0
    shift
    (cd "$scratch" && DLRUN_OUTPUT_DIR=$scratch/refused "$python" "$train" "$@") >"$scratch/log" 2>&1 || code=$?
    [ "$code" = 2 ] || fail "train.py $* ended with $code, not 2"
    grep -qF -- "$words" "$scratch/log" || fail "train.py $* does not say: $words"
    ! [ -e "$scratch/refused" ] || fail "train.py $* wrote something"
}

check_result() {
    "$python" - "$1" <<'PYTHON' || fail "result.json is not as it should be"
import json, sys
result = json.load(open(sys.argv[1] + "/result.json"))
names = ["accuracy", "epochs", "hidden", "loss", "lr", "seconds", "seed"]
assert sorted(result) == names, result
assert 0.90 <= result["accuracy"] <= 1, result
assert 0 < result["loss"] < 0.5, result
assert result["epochs"] == 15 and result["seed"] == 0, result
print("digits: held-out accuracy %.3f in %.1f s" % (result["accuracy"], result["seconds"]))
PYTHON
}

# Reads the frames and messages by a second, simpler way than the writer's: bit by bit, no table.
check_events() {
    "$python" - "$1" <<'PYTHON' || fail "the event file is not as it should be"
import glob, json, struct, sys

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    return crc ^ 0xFFFFFFFF

assert crc32c(b"123456789") == 0xE3069283  # the check value that its definition gives

def check(data, masked):
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    assert crc32c(data) == ((rotated << 15) | (rotated >> 17)) & 0xFFFFFFFF, "checksum"

def frames(data):
    while data:
        size, masked = struct.unpack_from("<QI", data)
        check(data[:8], masked)
        body = data[12:12 + size]
        check(body, struct.unpack_from("<I", data, 12 + size)[0])
        yield body
        data = data[16 + size:]

def varint(data):
    value, shift = 0, 0
    while True:
        value |= (data[0] & 127) << shift
        shift += 7
        more, data = data[0] & 128, data[1:]
        if not more:
            return value, data

def fields(data):
    while data:
        key, data = varint(data)
        kind = key & 7
        if kind == 0:
            value, data = varint(data)
        else:
            size, data = varint(data) if kind == 2 else ({1: 8, 5: 4}[kind], data)
            value, data = data[:size], data[size:]
            assert len(value) == size, "cut off"
        yield key >> 3, value

directory = sys.argv[1]
names = glob.glob(directory + "/*tfevents*")
assert len(names) == 1, names
events = [dict(fields(body)) for body in frames(open(names[0], "rb").read())]
assert events[0][3] == b"brain.Event:2", events[0]
curves = {}
for event in events[1:]:
    for number, value in fields(event[5]):
        value = dict(fields(value))
        point = event[2], struct.unpack("<f", value[2])[0]
        curves.setdefault(value[1].decode(), []).append(point)
assert sorted(curves) == ["accuracy", "loss"], curves
result = json.load(open(directory + "/result.json"))
for tag, points in curves.items():
    assert [step for step, _ in points] == list(range(1, 16)), points
    assert abs(points[-1][1] - result[tag]) < 1e-6, (tag, points[-1], result)
times = [struct.unpack("<d", event[1])[0] for event in events]
assert times == sorted(times) and times[0] > 1.6e9, times
PYTHON
}

check_with_tensorboard() {
    "$python" -c 'import tensorboard' 2>/dev/null || {
        echo "digits: no tensorboard in $python, its own reader is skipped"
        return
    }
    "$python" - "$1" <<'PYTHON' || fail "TensorBoard does not read the event file"
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
tags = events.Tags()
# Newer versions turn scalars into tensors as they read them.
read = events.Scalars if tags["scalars"] else events.Tensors
assert sorted(tags["scalars"] or tags["tensors"]) == ["accuracy", "loss"], tags
for tag in "accuracy", "loss":
    assert [event.step for event in read(tag)] == list(range(1, 16)), tag
print("digits: TensorBoard reads the curves")
PYTHON
}

check_same_twice() {
    train "$scratch/a" --epochs 2 --seed 7
    train "$scratch/b" --epochs 2 --seed 7
    train "$scratch/c" --epochs 2 --seed 8
    grep -v seconds "$scratch/a/result.json" >"$scratch/a.txt"
    grep -v seconds "$scratch/b/result.json" | cmp -s - "$scratch/a.txt" || fail "one seed, two results"
    grep loss "$scratch/c/result.json" | cmp -s - <(grep loss "$scratch/a/result.json") && fail "the seed changes nothing"
    return 0
}

train "$scratch/out" --epochs 15
[ "$(grep -c '^epoch ' "$scratch/log")" = 15 ] || fail "not one line per epoch"
check_result "$scratch/out"
check_events "$scratch/out"
check_with_tensorboard "$scratch/out"
check_same_twice
refuses "argument --lr: 'abc' is not a number above 0" --lr abc
refuses "argument --epochs: '0' is not 1 or more" --epochs 0
refuses "argument --hidden: '1.5' is not a whole number" --hidden 1.5
refuses "unrecognized arguments: --epoch" --epoch 3
echo "digits: ok"
