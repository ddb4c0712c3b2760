#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the event files of tests/unit/data/events with the writers that researchers use, and writes
down beside each directory what TensorBoard makes of it.

    tests/real/make_event_files.py [CASE…]

Nobody has to run it: what it made is in the repository. It installs tensorboard, tensorboardX and
tensorflow-cpu from the package index (1.5 GB below ~/.cache/dlrun-tests). Of torch it takes only
torch/utils/tensorboard, out of the smallest wheel that has it, because that is all Python; the parts
of torch that its writer asks for are small stand-ins.

Numbers come from two readers. TensorBoard's data server (what people look at) lets a value at a step
that is there already replace it and all that came after; the older EventAccumulator does so only
where the writer has said that it starts again (purge_step). dlrun does both, so the numbers that
count are those that both readers tell: CASE.json has them, of each directory and tag, as
[step, wall time, value]. Of what the data server leaves out (tensors of doubles) it has what the
EventAccumulator tells.
"""

import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

import pypi

# tests/real has names that packages have, too.
sys.path.remove(str(Path(__file__).resolve().parent))

DATA = Path(__file__).resolve().parents[1] / "unit/data/events"
# TensorBoard takes much longer where there is a TensorFlow beside it.
PLAIN, TENSORFLOW = pypi.CACHE / "event-writers", pypi.CACHE / "event-writers-tf"
PACKAGES = ["tensorboard==2.20.0", "setuptools<81", "tensorboardX", "numpy"]
TORCH_DIR = pypi.CACHE / "torch-part"
TORCH = ["torch", "--platform", "macosx_11_0_arm64", "--python-version", "3.11", "--only-binary", ":all:", "--no-deps"]

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


# --- the writers, in one of the environments


def curve(i, phase=0.0):
    return math.exp(-i / 9) + 0.1 * math.sin(i + phase)


def torch_writer(*args, **options):
    import torch_part  # made by prepare()
    return torch_part.writer(*args, **options)


@case
def torch_scalars(out):
    with torch_writer(out) as w:
        for i in range(40):
            w.add_scalar("loss/train", curve(i), i)
            if i % 5 == 0:
                w.add_scalar("loss/val", curve(i, 1), i)
        w.add_scalar("no step", 3.5)
        w.add_text("notes", "not a scalar", 1)
        import numpy
        w.add_histogram("weights", numpy.arange(8.0), 1)


@case
def torch_new_style(out):
    with torch_writer(out) as w:
        for i in range(20):
            w.add_scalar("float", curve(i), i * 10, new_style=True)
            w.add_scalar("double", 1 / 3 + 1e-12 * i, i * 10, new_style=True, double_precision=True)


@case
def torch_add_scalars(out):
    with torch_writer(out) as w:
        for i in range(12):
            w.add_scalar("lr", 0.1 / (i + 1), i)
            w.add_scalars("loss", {"train": curve(i), "val": curve(i, 2)}, i)
            w.add_scalars("metrics/acc", {"top1": 1 - curve(i), "top5": 1 - curve(i) / 5}, i)


@case
def torch_hparams(out):
    for lr in (0.1, 0.01):
        with torch_writer(out / f"lr{lr}") as w:
            w.add_scalar("loss", lr * 3, 1)
            w.add_hparams({"lr": lr, "opt": "adam", "bias": True}, {"hparam/loss": lr * 2}, run_name="hp")


@case
def torch_purge_step(out):
    with torch_writer(out, filename_suffix=".0") as w:
        for i in range(20):
            w.add_scalar("loss", curve(i), i)
            w.add_scalar("only before", i, i)
    with torch_writer(out, purge_step=12, filename_suffix=".1") as w:
        for i in range(12, 25):
            w.add_scalar("loss", curve(i, 3), i)


@case
def torch_restart(out):
    """Started again from a checkpoint, twice, without a word about it."""
    for k, first in enumerate((0, 8, 4)):
        with torch_writer(out, filename_suffix=f".{k}") as w:
            for i in range(first, 15):
                w.add_scalar("loss", curve(i, k), i)


@case
def torch_not_finite(out):
    with torch_writer(out) as w:
        for i, value in enumerate((1.0, math.nan, math.inf, -math.inf, 2.0, math.nan)):
            w.add_scalar("loss", value, i)


@case
def torch_same_step(out):
    with torch_writer(out) as w:
        for i in range(10):
            w.add_scalar("loss", i, i // 2)


@case
def tensorboardx_scalars(out):
    from tensorboardX import SummaryWriter
    with SummaryWriter(str(out)) as w:
        for i in range(30):
            w.add_scalar("loss", curve(i), i * 1000)
        w.add_scalar("big step", 1.0, 2**40)
        w.add_scalars("a/b", {"x": 1.0, "y": 2.0}, 1)
        w.add_scalars("a/b", {"x": 0.5, "y": 2.5}, 2)


@case
def tensorboard_summary(out):
    """TensorBoard's own writer, with values of several types."""
    import numpy
    from tensorboard.summary import Writer
    w = Writer(str(out))
    for i in range(10):
        w.add_scalar("f32", numpy.float32(curve(i)), i)
        w.add_scalar("int", i * 7, i)
        w.add_scalar("f64", numpy.float64(0.1) * i, i)
    w.flush()
    w.close()


@case
def tensorflow_summary(out):
    import tensorflow as tf
    for name in ("train", "validation"):
        w = tf.summary.create_file_writer(str(out / name))
        with w.as_default():
            for i in range(15):
                tf.summary.scalar("epoch_loss", curve(i, len(name)), step=i)
            tf.summary.histogram("weights", [0.0, 1.0, 2.0], step=0)
        w.close()


@case
def tensorflow_keras(out):
    import tensorflow as tf
    model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    x = tf.constant([[0.0], [1.0], [2.0], [3.0]])
    model.fit(x, 2 * x, epochs=6, verbose=0, validation_data=(x, x),
              callbacks=[tf.keras.callbacks.TensorBoard(str(out), write_graph=False)])


@case
def tensorflow_v1(out):
    """tf.compat.v1: simple_value, and a SessionLog START in the first file."""
    import tensorflow.compat.v1 as tf
    with tf.Graph().as_default():
        for k, first in enumerate((0, 6)):
            w = tf.summary.FileWriter(str(out), filename_suffix=f".{k}")
            w.add_session_log(tf.SessionLog(status=tf.SessionLog.START), global_step=first)
            for i in range(first, 10):
                summary = tf.Summary(value=[tf.Summary.Value(tag="loss", simple_value=curve(i, k))])
                w.add_summary(summary, i)
            w.close()


# --- the readers


def number(value):
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def single(value):
    """As the data server keeps values."""
    return value if isinstance(value, str) else number(struct.unpack("<f", struct.pack("<f", value))[0])


def dirs_of(out):
    return sorted({p.parent for p in out.rglob("*tfevents*")})


def by_accumulator(directory):
    """{tag: [[step, wall time, value]…]} of one directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util
    acc = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    acc.Reload()
    curves = {}
    for tag in acc.Tags()["scalars"]:
        curves[tag] = [[e.step, number(e.wall_time), number(e.value)] for e in acc.Scalars(tag)]
    for tag in acc.Tags()["tensors"]:
        metadata = acc.SummaryMetadata(tag)
        if metadata.plugin_data.plugin_name == "scalars" or metadata.data_class == 1:
            curves[tag] = [[e.step, number(e.wall_time), number(float(tensor_util.make_ndarray(e.tensor_proto).item()))]
                           for e in acc.Tensors(tag)]
    return curves


class Server:
    """TensorBoard with its data server over a directory."""

    def __init__(self, logdir):
        self.process = subprocess.Popen(
            [PLAIN / "bin/tensorboard", "--logdir", logdir, "--host", "127.0.0.1", "--port", "0", "--load_fast", "true",
             "--samples_per_plugin", "scalars=1000000", "--reload_interval", "1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"http://\S+?:\d+/", line)
            if found:
                self.url = found.group()
                return
        sys.exit("TensorBoard did not start")

    def get(self, path, **query):
        text = urllib.parse.urlencode(query)
        with urllib.request.urlopen(f"{self.url}data/plugin/scalars/{path}?{text}", timeout=30) as answer:
            return json.load(answer)

    def curves(self):
        """{run: {tag: …}}, once nothing is added to it any more."""
        before = None
        while True:
            time.sleep(1.5)
            now = {run: {tag: [[s, w, v] for w, s, v in self.get("scalars", run=run, tag=tag)] for tag in tags}
                   for run, tags in self.get("tags").items()}
            if now and now == before:
                return now
            before = now

    def close(self):
        self.process.terminate()
        self.process.wait()


def of_both(ours, theirs):
    left = [[s, w, single(v)] for s, w, v in theirs]
    points = []
    for step, wall, value in ours:
        if [step, wall, single(value)] in left:
            left.remove([step, wall, single(value)])
            points.append([step, wall, value])
    return points


def read(out):
    server = Server(out)
    try:
        shown = server.curves()
    finally:
        server.close()
    curves = []
    for directory in dirs_of(out):
        name = str(directory.relative_to(out))
        for tag, points in sorted(by_accumulator(directory).items()):
            theirs = shown[name].get(tag, points)
            curves.append({"dir": "" if name == "." else name, "tag": tag, "points": of_both(points, theirs),
                           "agree": tag in shown[name] and [[s, w, single(v)] for s, w, v in points] == [[s, w, single(v)] for s, w, v in theirs]})
    return curves


# --- making them

TORCH_PART = '''
"""torch.utils.tensorboard.SummaryWriter with stand-ins for the rest of torch."""
import sys
import types
import unittest.mock

class Tensor:
    pass

torch = unittest.mock.MagicMock()
torch.__path__ = []
torch.__name__ = "torch"
torch.Tensor = Tensor
torch.is_tensor = lambda x: False
sys.modules["torch"] = torch
for name in ("_C", "utils", "onnx", "nn", "_prims_common", "jit", "autograd"):
    sys.modules["torch." + name] = getattr(torch, name)
sys.modules["torch.utils"].__path__ = [PATH + "/torch/utils"]
sys.modules["torch.onnx"].__path__ = []
for name in ("torch.onnx._globals", "torch.utils._pytree"):
    sys.modules[name] = unittest.mock.MagicMock()
package = types.ModuleType("torch.utils.tensorboard")
package.__path__ = [PATH + "/torch/utils/tensorboard"]
sys.modules["torch.utils.tensorboard"] = package
from tensorboard.compat.proto.event_pb2 import SessionLog
from torch.utils.tensorboard.writer import SummaryWriter

def writer(path, **options):
    return SummaryWriter(str(path), **options)
'''


def install(where, packages):
    if not (where / "ready").exists():
        pypi.venv(where)
        for package in packages:
            pypi.pip_install(where, package)
        (where / "ready").touch()


def prepare():
    install(PLAIN, PACKAGES)
    install(TENSORFLOW, ["tensorflow-cpu"])
    if not (TORCH_DIR / "version").exists():
        pypi.build(pypi.tools() / "python", "-m", "pip", "download", "-q", "-d", TORCH_DIR, *TORCH)
        wheel = next(TORCH_DIR.glob("torch-*.whl"))
        with zipfile.ZipFile(wheel) as file:
            for name in file.namelist():
                if name.startswith("torch/utils/tensorboard/"):
                    file.extract(name, TORCH_DIR / "source")
        (TORCH_DIR / "version").write_text(wheel.name.split("-")[1])
        wheel.unlink()
    (TORCH_DIR / "path").mkdir(exist_ok=True)
    (TORCH_DIR / "path/torch_part.py").write_text(f"PATH = {str(TORCH_DIR / 'source')!r}\n" + TORCH_PART)


def made_with(name):
    from importlib.metadata import version
    if name.startswith("torch"):
        return {"torch": (TORCH_DIR / "version").read_text()}
    package = {"tensorboardx": "tensorboardX", "tensorboard": "tensorboard", "tensorflow": "tensorflow-cpu"}[name.split("_")[0]]
    return {package: version(package)}


def write(name):
    out = DATA / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    CASES[name](out)
    for path in sorted(out.rglob("*tfevents*")):
        # The names of writers have the time, the machine and the process: what matters is their order.
        rest = path.name.split(".")
        path.rename(path.with_name(".".join([*rest[:3], "1700000000", "host", *rest[5:]])))
    (DATA / f"{name}.json").write_text(json.dumps(made_with(name)))


def record(name):
    from importlib.metadata import version
    writer = json.loads((DATA / f"{name}.json").read_text())
    readers = {name: version(name) for name in ("tensorboard", "tensorboard-data-server")}
    curves = read(DATA / name)
    lines = ",\n".join(json.dumps(curve) for curve in curves)
    (DATA / f"{name}.json").write_text(
        f'{{"writer": {json.dumps(writer)}, "readers": {json.dumps(readers)},\n"curves": [\n{lines}\n]}}\n')
    size = sum(p.stat().st_size for p in (DATA / name).rglob("*") if p.is_file())
    print(f"{name}: {len(curves)} curves, {sum(len(c['points']) for c in curves)} points, {size} bytes; "
          f"the readers {'agree' if all(c['agree'] for c in curves) else 'differ'}", flush=True)


def call(prefix, *words):
    env = {**os.environ, "PYTHONPATH": str(TORCH_DIR / "path"), "TF_CPP_MIN_LOG_LEVEL": "3",
           "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([prefix / "bin/python", sys.argv[0], *words], env=env, check=True)


def main():
    # One process for each: what stands in for torch must not be seen by the others.
    if sys.argv[1:2] == ["--write"]:
        return write(sys.argv[2])
    if sys.argv[1:2] == ["--record"]:
        return record(sys.argv[2])
    prepare()
    for name in sys.argv[1:] or sorted(CASES):
        call(TENSORFLOW if name.startswith("tensorflow") else PLAIN, "--write", name)
        call(PLAIN, "--record", name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
