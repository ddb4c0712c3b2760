# SPDX-License-Identifier: Apache-2.0
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(100, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    x = torch.randn(64, 100)
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "model.pt")
    print("epoch", epoch, "loss", loss.item())
