#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The learner: hands its policy to whichever actors connect, and improves it by the episodes that they send back."""

import argparse
import contextlib
import json
import os
import selectors
import socket
import time
from pathlib import Path

import torch

import wire


def network(hidden):
    return torch.nn.Sequential(torch.nn.Linear(4, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 2))


def weights(policy):
    return [p.tolist() for p in policy.parameters()]


def returns(rewards, gamma):
    out, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + gamma * total
        out.append(total)
    return out[::-1]


def improve(policy, optimizer, episodes, gamma):
    states = torch.tensor([s for e in episodes for s in e["states"]], dtype=torch.float32)
    actions = torch.tensor([a for e in episodes for a in e["actions"]])
    gains = torch.tensor([g for e in episodes for g in returns(e["rewards"], gamma)])
    gains = (gains - gains.mean()) / (gains.std() + 1e-6)
    chosen = torch.log_softmax(policy(states), 1).gather(1, actions[:, None])[:, 0]
    loss = -(chosen * gains).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, default=int(os.environ.get("LEARNER_PORT", "5577")))
    options.add_argument("--actors", type=int, default=1, help="how many have to be there before it begins")
    options.add_argument("--goal", type=float, default=120, help="mean return of the last 40 episodes")
    options.add_argument("--episodes", type=int, default=4000, help="give up after so many")
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--lr", type=float, default=0.02)
    options.add_argument("--gamma", type=float, default=0.98)
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    policy = network(32)
    optimizer = torch.optim.Adam(policy.parameters(), args.lr)
    server = socket.create_server(("", args.port), backlog=64)
    waiting = selectors.DefaultSelector()
    waiting.register(server, selectors.EVENT_READ, None)
    begun, seen, batch, scores, by_actor, idle = time.time(), 0, [], [], {}, []
    print(f"learner: listens on port {args.port}", flush=True)

    while seen < args.episodes and (len(scores) < 40 or sum(scores[-40:]) / 40 < args.goal):
        for key, _ in waiting.select():
            if key.fileobj is server:
                actor, _ = server.accept()
                waiting.register(actor, selectors.EVENT_READ, None)
                continue
            actor = key.fileobj
            try:
                message = wire.receive(actor)
                if message is None:
                    raise ConnectionError("it has closed")
                if "hello" in message:
                    by_actor.setdefault(message["hello"], 0)
                    idle.append(actor)
                    print(f"learner: {message['hello']} is there", flush=True)
                else:
                    by_actor[message["actor"]] += 1
                    batch.append(message)
                    scores.append(sum(message["rewards"]))
                    seen += 1
                    wire.send(actor, weights(policy))
            except OSError:
                waiting.unregister(actor)
                actor.close()
                idle = [other for other in idle if other is not actor]
        if len(by_actor) >= args.actors:
            for actor in idle:
                # One that has gone is seen above.
                with contextlib.suppress(OSError):
                    wire.send(actor, weights(policy))
            idle.clear()
        if len(batch) >= args.batch:
            improve(policy, optimizer, batch, args.gamma)
            print(f"learner: episode {seen} mean return {sum(scores[-40:]) / len(scores[-40:]):.1f}", flush=True)
            batch.clear()

    mean = sum(scores[-40:]) / max(1, len(scores[-40:]))
    out = Path(os.environ.get("DLRUN_OUTPUT_DIR", "out"))
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").write_text(json.dumps({"mean_return": mean, "episodes": seen, "by_actor": by_actor, "seconds": time.time() - begun}) + "\n")
    print(f"learner: {'solved' if mean >= args.goal else 'not solved'} after {seen} episodes", flush=True)
    return 0 if mean >= args.goal else 1


if __name__ == "__main__":
    raise SystemExit(main())
