# SPDX-License-Identifier: Apache-2.0
"""HER: an item is an episode, and `reverb.hindsight` gives its steps goals that it has reached."""

import numpy as np

import reverb

BITS, EPISODES, UPDATES, BATCH, DISCOUNT = 10, 400, 8, 256, 0.95
rng = np.random.default_rng(0)


def reward(achieved, goal, info):
    """0 at the goal, else -1, for many transitions at once."""
    return (achieved == goal).astype(np.float32) - 1


def play(values, epsilon, writer=None):
    """Flips a bit of a number at each step, up to the goal; returns whether it is reached."""
    state, goal = rng.integers(2**BITS, size=2)
    for left in reversed(range(BITS)):
        action = values[state ^ goal].argmax() if rng.random() > epsilon else rng.integers(BITS)
        step = {"state": state, "action": action, "goal": goal}
        state ^= 1 << action
        step |= {"next_state": state, "reward": reward(state, goal, None)}
        if writer is not None:
            writer.append(step, is_last=state == goal or left == 0)
        if state == goal:
            return True
    return False


def learn(client, ratio):
    """Q-learning over the bits that are left to flip; returns the share of goals then reached."""
    values = np.full((2**BITS, BITS), -1 / (1 - DISCOUNT))
    client.reset("episodes")
    with client.sequence_writer("episodes", None, max_sequence_length=BITS) as writer:
        for _ in range(EPISODES):
            play(values, 0.3, writer)
            writer.flush()
            for _ in range(UPDATES):
                batch = client.sample_batch(
                    "episodes", 32, ragged="packed", unpack_as_table_signature=True
                )
                options = {"goal": "goal", "achieved": "state", "ratio": ratio, "seed": rng}
                steps = reverb.hindsight(batch, BATCH, reward=reward, **options)
                future = DISCOUNT * values[steps["next_state"] ^ steps["goal"]].max(axis=1)
                targets = np.where(steps["reward"] == 0, 0, steps["reward"] + future)
                values[steps["state"] ^ steps["goal"], steps["action"]] = targets
    return np.mean([play(values, 0.0) for _ in range(300)])


names = ("state", "action", "goal", "next_state", "reward")
table = reverb.Table(
    "episodes",
    sampler=reverb.selectors.Uniform(),
    remover=reverb.selectors.Fifo(),
    max_size=10_000,
    rate_limiter=reverb.rate_limiters.MinSize(1),
    seed=0,
    signature={
        name: reverb.specs.TensorSpec([None], np.float32 if name == "reward" else np.int64)
        for name in names
    },
)
with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    with_hindsight, without = learn(client, ratio=0.8), learn(client, ratio=0.0)

print(f"{with_hindsight:.0%} of all goals are reached; without hindsight, {without:.0%}")
assert with_hindsight > max(0.8, without + 0.2)
