# SPDX-License-Identifier: Apache-2.0
import argparse

import jax
import jax.numpy as jnp
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()

x = jax.random.normal(jax.random.PRNGKey(0), (64, 4))
y = x.sum(1)
w = jnp.zeros(4)
step = jax.jit(lambda w: w - args.lr * jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w))
for _ in range(50):
    w = step(w)
np.savez("params.npz", w=np.asarray(w))
print("w", w)
