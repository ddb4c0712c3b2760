# SPDX-License-Identifier: Apache-2.0
import argparse
import os

import torch
from torch.nn import functional as F
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--input-file", "-i", default="names.txt")
parser.add_argument("--work-dir", "-o", default="out")
parser.add_argument("--max-steps", type=int, default=20)
parser.add_argument("--learning-rate", "-l", type=float, default=0.5)
args = parser.parse_args()
os.makedirs(args.work_dir, exist_ok=True)
writer = SummaryWriter(log_dir=args.work_dir)
words = open(args.input_file).read().split()
chars = ["."] + sorted(set("".join(words)))
pairs = [(chars.index(a), chars.index(b)) for w in words for a, b in zip("." + w, w + ".")]
x, y = torch.tensor([p[0] for p in pairs]), torch.tensor([p[1] for p in pairs])
logits = torch.zeros(len(chars), len(chars), requires_grad=True)
best = None
for step in range(args.max_steps):
    loss = F.cross_entropy(logits[x], y)
    loss.backward()
    logits.data -= args.learning_rate * logits.grad
    logits.grad = None
    writer.add_scalar("Loss/train", loss.item(), step)
    writer.flush()
    if best is None or loss.item() < best:
        torch.save(logits, os.path.join(args.work_dir, "model.pt"))
        best = loss.item()
