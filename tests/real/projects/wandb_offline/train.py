# SPDX-License-Identifier: Apache-2.0
import os

import wandb

os.environ["WANDB_MODE"] = "offline"
run = wandb.init(project="tiny", config={"lr": 0.1})
for step in range(5):
    wandb.log({"loss": 1 / (step + 1)})
run.finish()
