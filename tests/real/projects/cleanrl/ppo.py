# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import time

from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--exp-name", default="ppo")
parser.add_argument("--env-id", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--learning-rate", type=float, default=2.5e-4)
args = parser.parse_args()
run_name = f"{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}"
writer = SummaryWriter(f"runs/{run_name}")
writer.add_text("hyperparameters", json.dumps(vars(args)))
with open(f"runs/{run_name}/args.json", "w") as f:
    json.dump(vars(args), f)
for step in range(10):
    writer.add_scalar("charts/episodic_return", step * 10, step)
writer.close()
