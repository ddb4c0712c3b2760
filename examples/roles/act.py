#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An actor: plays CartPole with the learner's newest policy and sends each episode back. It never ends by itself."""

import argparse
import os
import random
import socket
import time

import gymnasium
import numpy as np

import wire


def play(environment, weights, seed):
    w1, b1, w2, b2 = [np.array(w) for w in weights]
    state, _ = environment.reset(seed=seed)
    episode = {"states": [], "actions": [], "rewards": []}
    over = False
    while not over:
        logits = w2 @ np.tanh(w1 @ state + b1) + b2
        action = int(random.random() < 1 / (1 + np.exp(logits[0] - logits[1])))
        episode["states"].append([float(x) for x in state])
        episode["actions"].append(action)
        state, reward, ended, cut, _ = environment.step(action)
        episode["rewards"].append(float(reward))
        over = ended or cut
    return episode


def connect(host, port):
    """The learner may begin later, or again."""
    while True:
        try:
            return socket.create_connection((host, port), timeout=60)
        except OSError:
            time.sleep(0.2)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--learner", required=True, help="its address")
    options.add_argument("--port", type=int, default=int(os.environ.get("LEARNER_PORT", "5577")))
    args = options.parse_args()
    rank = int(os.environ.get("DLRUN_ROLE_RANK", "0"))
    name = f"actor {rank} of {os.environ.get('DLRUN_ROLE_NODES', '1')}"
    random.seed(rank)
    environment = gymnasium.make("CartPole-v1")
    played = 0

    while True:
        with connect(args.learner, args.port) as learner:
            print(f"{name}: learner at {args.learner}", flush=True)
            try:
                wire.send(learner, {"hello": name})
                while (weights := wire.receive(learner)) is not None:
                    wire.send(learner, {**play(environment, weights, rank * 1000003 + played), "actor": name})
                    played += 1
                    if played % 20 == 0:
                        print(f"{name}: {played} episodes", flush=True)
            except OSError as error:
                print(f"{name}: {error}", flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
