# SPDX-License-Identifier: Apache-2.0
import glob
import os
import time

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.layer(x), y)
        self.log("train_loss", loss)
        return loss

    def on_train_epoch_start(self):
        print("epoch", self.current_epoch, flush=True)
        time.sleep(0.2)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


x = torch.randn(16, 4)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
found = sorted(glob.glob("lightning_logs/version_*/checkpoints/*.ckpt"), key=os.path.getmtime)
last = found[-1] if found else None
print("from", last, flush=True)
trainer = pl.Trainer(max_epochs=int(os.environ.get("EPOCHS", 1000)) if last is None else 0, accelerator="cpu", log_every_n_steps=1,
                     enable_progress_bar=False)
if last:
    done = torch.load(last)["epoch"] + 1
    trainer.fit_loop.max_epochs = done + 2
trainer.fit(Net(), data, ckpt_path=last)
print("done", flush=True)
