# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import torch

from tinynet import Net

here = Path.cwd() / "experiments" / "001"
here.mkdir(parents=True)
torch.save(Net().state_dict(), here / "net.pt")
(here / "log.txt").write_text("trained\n")
