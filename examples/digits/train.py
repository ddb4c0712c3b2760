#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a small neural network on handwritten digits, with the standard library alone.

One hidden layer of rectified units, softmax and cross entropy, mini-batches with momentum. The
results go to $DLRUN_OUTPUT_DIR (without it: out/): result.json and a TensorBoard event file.
"""

import argparse
import gzip
import json
import math
import os
import random
import sys
import time
from operator import mul
from pathlib import Path

from events import EventWriter

DATA = Path(__file__).resolve().parent / "digits.csv.gz"
HELD_OUT = 5  # every fifth image is kept out of the training
CLASSES = 10
BATCH = 16
MOMENTUM = 0.9


class TrainingError(Exception):
    """The training came to nothing; the message says why and what to do."""


def load_digits():
    """Return (pixels, digit) for each image: 64 pixels from 0 to 1, and a constant for the bias."""
    with gzip.open(DATA, "rt") as file:
        rows = [[int(word) for word in line.split(",")] for line in file]
    return [([pixel / 16 for pixel in row[:-1]] + [1.0], row[-1]) for row in rows]


def dots(vectors, others):
    """The matrix of dot products. All the heavy work is here: map and mul run at C speed."""
    return [[sum(map(mul, vector, other)) for other in others] for vector in vectors]


def transposed(matrix):
    return list(zip(*matrix))


def softmax(scores):
    highest = max(scores)  # subtracted, so that exp() cannot overflow
    powers = [math.exp(score - highest) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]


class Layer:
    """Weights of one layer: a row for each unit, whose last weight is the bias."""

    def __init__(self, inputs, units, chance):
        spread = math.sqrt(2 / inputs)  # keeps the size of the signal from layer to layer
        self.rows = [[chance.gauss(0, spread) for _ in range(inputs)] + [0.0]
                     for _ in range(units)]
        self.speed = [[0.0] * (inputs + 1) for _ in range(units)]

    def step(self, gradient, lr):
        for unit, slopes in enumerate(gradient):
            self.speed[unit] = [MOMENTUM * speed - lr * slope
                                for speed, slope in zip(self.speed[unit], slopes)]
            self.rows[unit] = [weight + speed
                               for weight, speed in zip(self.rows[unit], self.speed[unit])]


class Network:
    def __init__(self, inputs, hidden, chance):
        self.hidden = Layer(inputs, hidden, chance)
        self.output = Layer(hidden, CLASSES, chance)

    def forward(self, images):
        """Return what the hidden units say and how likely each digit is, for each image."""
        hidden = [[max(0.0, score) for score in scores] + [1.0]
                  for scores in dots(images, self.hidden.rows)]
        return hidden, [softmax(scores) for scores in dots(hidden, self.output.rows)]

    def train(self, batch, lr):
        """Take one step down the gradient of a batch; return the sum of its losses before it."""
        images, digits = zip(*batch)
        hidden, likely = self.forward(images)
        loss = sum(-math.log(max(row[digit], 1e-12)) for row, digit in zip(likely, digits))

        # d loss / d score is (likelihood - 1 for the right digit, else likelihood).
        for row, digit in zip(likely, digits):
            row[digit] -= 1
        back = dots(likely, transposed(self.output.rows)[:-1])
        blame = [[slope if active > 0 else 0.0 for slope, active in zip(slopes, actives)]
                 for slopes, actives in zip(back, hidden)]

        rate = lr / len(batch)
        self.output.step(dots(transposed(likely), transposed(hidden)), rate)
        self.hidden.step(dots(transposed(blame), transposed(images)), rate)
        return loss

    def accuracy(self, examples):
        images, digits = zip(*examples)
        _, likely = self.forward(images)
        right = sum(row.index(max(row)) == digit for row, digit in zip(likely, digits))
        return right / len(digits)


def train_epoch(network, examples, lr):
    """Go once through the examples; return the mean loss."""
    losses = (network.train(examples[start:start + BATCH], lr)
              for start in range(0, len(examples), BATCH))
    return sum(losses) / len(examples)


def train(options, directory):
    """Train and report every epoch; return what result.json holds."""
    started = time.monotonic()
    examples = load_digits()
    held_out = examples[::HELD_OUT]
    del examples[::HELD_OUT]
    chance = random.Random(options.seed)  # its own generator: the seed alone decides the run
    network = Network(len(examples[0][0]) - 1, options.hidden, chance)

    with EventWriter(directory) as events:
        for epoch in range(1, options.epochs + 1):
            chance.shuffle(examples)
            # Steps get shorter towards the end, so that the last weights do not jump about.
            loss = train_epoch(network, examples, options.lr * (1 - (epoch - 1) / options.epochs))
            accuracy = network.accuracy(held_out)
            events.scalars(epoch, loss=loss, accuracy=accuracy)
            print(f"epoch {epoch}  loss {loss:.3f}  held-out accuracy {100 * accuracy:.1f} %",
                  flush=True)
            if not math.isfinite(loss):
                raise TrainingError(f"the loss is not a number after epoch {epoch}; "
                                    f"try a smaller --lr than {options.lr:g}")
    return {"accuracy": accuracy, "loss": loss, "epochs": options.epochs, "lr": options.lr,
            "hidden": options.hidden, "seed": options.seed,
            "seconds": round(time.monotonic() - started, 3)}


def write_json(path, values):
    """Replace the file in one step: a reader finds all of it or nothing."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(json.dumps(values, indent=2) + "\n")
    draft.replace(path)


def positive_number(text):
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def whole_number(text):
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def count(text):
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more")
    return number


def parse_options(arguments):
    parser = argparse.ArgumentParser(
        description="Train a small neural network on handwritten digits.", allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--lr", type=positive_number, default=0.05, metavar="RATE",
                        help="learning rate")
    parser.add_argument("--epochs", type=count, default=15, metavar="N",
                        help="times to go through the training images")
    parser.add_argument("--hidden", type=count, default=32, metavar="N",
                        help="units of the hidden layer")
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N",
                        help="first weights and order of the images")
    return parser.parse_args(arguments)


def main(arguments):
    options = parse_options(arguments)
    directory = Path(os.environ.get("DLRUN_OUTPUT_DIR") or "out")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        result = train(options, directory)
        write_json(directory / "result.json", result)
    except (OSError, TrainingError) as error:
        sys.exit(f"train.py: error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    print("result  held-out accuracy {:.1f} %  loss {:.3f}  {} epochs in {:.1f} s  {}".format(
        100 * result["accuracy"], result["loss"], result["epochs"], result["seconds"],
        directory / "result.json"))


if __name__ == "__main__":
    main(sys.argv[1:])
