# SPDX-License-Identifier: Apache-2.0
from tensorboardX import SummaryWriter

writer = SummaryWriter()
for step in range(10):
    writer.add_scalar("loss", 1 / (step + 1), step)
writer.close()
