# SPDX-License-Identifier: Apache-2.0
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
x = torch.tensor([float(rank + 1)])
dist.all_reduce(x)
print(f"rank {rank} of {world}: sum {x.item():g}", flush=True)
assert x.item() == world * (world + 1) / 2
with open(f"rank{rank}.txt", "w") as f:
    f.write(str(x.item()))
dist.destroy_process_group()
