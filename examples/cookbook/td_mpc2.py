# SPDX-License-Identifier: Apache-2.0
"""TD-MPC2: a model that is unrolled over H actions, from windows of whole episodes.

No window has steps of two episodes. Episodes have different lengths; `over="steps"` makes every
window as likely as any other.
"""

import numpy as np

import reverb

H, BATCH, EPISODES, UPDATES, RATE, RHO = 3, 256, 50, 1_000, 0.01, 0.5
rng = np.random.default_rng(0)
# The environment: x[t + 1] = turn @ x[t] + push @ a[t]; the reward is cost @ x[t + 1].
angle = 0.3
turn = 0.95 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
push, cost = np.array([[0.5], [1.0]]), np.array([1.0, -0.5])

table = reverb.Table(
    "episodes",
    sampler=reverb.selectors.Uniform(over="steps"),
    remover=reverb.selectors.Fifo(),
    max_size=1_000,
    rate_limiter=reverb.rate_limiters.MinSize(EPISODES),
    seed=0,
    signature={
        "observation": reverb.specs.TensorSpec([None, 2], np.float64),
        "action": reverb.specs.TensorSpec([None, 1], np.float64),
        "reward": reverb.specs.TensorSpec([None], np.float64),
    },
)

with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    with client.sequence_writer("episodes", None, max_sequence_length=101) as writer:
        for length in rng.integers(5, 101, EPISODES):
            state = rng.normal(size=2)
            for t in range(length + 1):  # The last observation has no action; any will do.
                action = rng.normal(size=1)
                following = turn @ state + push @ action
                step = {"observation": state, "action": action, "reward": cost @ following}
                writer.append(step, is_last=t == length)
                state = following

    # H + 1 observations, but only the H actions and rewards between them.
    window = reverb.Window(H + 1, spans={"action": (0, H), "reward": (0, H)})
    dynamics, value_of = np.zeros((2, 3)), np.zeros(2)
    with reverb.batches(client, "episodes", BATCH, window=window) as batches:
        for _ in range(UPDATES):
            batch = next(batches)
            data, chance = batch.data, batch.info.probability / batch.num_windows
            assert np.allclose(chance, chance[0], rtol=1e-9)  # Every window is as likely.
            observation, action, reward = data["observation"], data["action"], data["reward"]
            latent, inputs = observation[:, 0], []  # Only the first one is encoded.
            for t in range(H):
                inputs.append(np.concatenate([latent, action[:, t]], axis=1))
                latent = inputs[t] @ dynamics.T
            latents = [it[:, :2] for it in inputs[1:]] + [latent]
            slope, of_later = np.zeros_like(dynamics), np.zeros((BATCH, 2))
            for t in reversed(range(H)):  # Errors of later steps pass through the dynamics.
                of_later = of_later @ dynamics[:, :2] + RHO**t * (
                    latents[t] - observation[:, t + 1]
                )
                slope += of_later.T @ inputs[t] / BATCH
                miss = latents[t] @ value_of - reward[:, t]
                value_of -= RATE * RHO**t * miss @ latents[t] / BATCH
            dynamics -= RATE * slope

errors = abs(dynamics - np.concatenate([turn, push], axis=1)).max(), abs(value_of - cost).max()
print(f"largest error of the dynamics and of the rewards: {max(errors):.1e}")
assert max(errors) < 1e-3
