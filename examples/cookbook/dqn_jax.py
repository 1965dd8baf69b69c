# SPDX-License-Identifier: Apache-2.0
"""DQN in JAX: one compiled step, batches of one shape, fetched ahead. Needs JAX."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

import reverb
from reverb.adapters import jax as reverb_jax

STATES, BATCH, UPDATES, DISCOUNT = 5, 64, 300, 0.9


def play(count):
    """Random steps in a corridor: right (1) leads to the end, which pays 1; left (0) leads back."""
    rng = np.random.default_rng(0)
    state, action = rng.integers(STATES, size=count), rng.integers(2, size=count)
    following = np.where(action == 1, state + 1, np.maximum(state - 1, 0))
    is_end = following == STATES
    return {
        "observation": np.eye(STATES, dtype=np.float32)[state],
        "action": action.astype(np.int32),
        "reward": is_end.astype(np.float32),
        "discount": (DISCOUNT * ~is_end).astype(np.float32),
        "next_observation": np.eye(STATES, dtype=np.float32)[following % STATES],
    }


@jax.jit
def update(network, target, data):
    def loss(network):
        value = data["observation"][:, 0] @ network  # [B, 2]: one value for each action.
        value = jnp.take_along_axis(value, data["action"], axis=1)[:, 0]
        following = (data["next_observation"][:, 0] @ target).max(axis=1)
        aim = data["reward"][:, 0] + data["discount"][:, 0] * following
        return jnp.square(value - aim).mean()

    return network - 2.0 * jax.grad(loss)(network)


rows = play(2_000)
table = reverb.Table(
    "replay",
    sampler=reverb.selectors.Uniform(),
    remover=reverb.selectors.Fifo(),
    max_size=10_000,
    rate_limiter=reverb.rate_limiters.MinSize(BATCH),
    signature={name: np.zeros((1, *rows[name].shape[1:]), rows[name].dtype) for name in rows},
)
with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    client.insert_batch(rows, {"replay": 1.0})
    network = target = jnp.zeros((STATES, 2))
    with reverb_jax.batches(client, "replay", BATCH) as batches:
        for number, batch in enumerate(itertools.islice(batches, UPDATES)):
            network = update(network, target, batch.data)
            if number % 10 == 0:
                target = network
    assert update._cache_size() == 1  # Compiled once.
right = network[:, 1]
print(f"values of a step to the right: {right}")
assert jnp.allclose(right, DISCOUNT ** jnp.arange(STATES - 1, -1, -1), atol=0.1)
