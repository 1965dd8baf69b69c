# SPDX-License-Identifier: Apache-2.0
"""R2D2 from whole episodes: burn-in before the anchor, one stored state for each window.

The actor stores its recurrent state before each step. `spans` bring that of the first step of a
window alone, and the burn-in brings it up to the newest weights.
"""

import numpy as np

import reverb

BURN_IN, LENGTH, BATCH, UNITS, EPISODES, UPDATES = 10, 20, 32, 24, 60, 200
rng = np.random.default_rng(0)


def recur(weights, state, seen):
    """The recurrent network: the states after what was seen, `[B, UNITS]`."""
    into, within = weights
    return np.tanh(state @ within + (2 * seen[:, None] - 1) * into)


old = rng.normal(size=UNITS), rng.normal(size=(UNITS, UNITS)) * 0.8 / np.sqrt(UNITS)
new = tuple(it + 0.1 * abs(it) * rng.normal(size=it.shape) for it in old)

table = reverb.Table(
    "episodes",
    sampler=reverb.selectors.Uniform(over="steps"),
    remover=reverb.selectors.Fifo(),
    max_size=1_000,
    rate_limiter=reverb.rate_limiters.MinSize(EPISODES),
    seed=0,
    signature={
        "number": reverb.specs.TensorSpec([None], np.int64),
        "seen": reverb.specs.TensorSpec([None], np.int64),
        "state": reverb.specs.TensorSpec([None, UNITS], np.float64),
    },
)

with reverb.Server([table]) as server, reverb.Client(f"localhost:{server.port}") as client:
    # The actor, with old weights. `states` are those of new weights, to compare.
    states: list[np.ndarray] = []
    with client.sequence_writer("episodes", None, max_sequence_length=100) as writer:
        for length in rng.integers(LENGTH, 100, EPISODES):
            state, other = np.zeros((2, 1, UNITS))
            for t in range(length):
                seen = rng.integers(2, size=1)
                step = {"number": len(states), "seen": seen[0], "state": state[0]}
                writer.append(step, is_last=t == length - 1)
                states.append(other[0])
                state, other = recur(old, state, seen), recur(new, other, seen)
    fresh = np.stack(states)

    # The learner, with new weights. The task: tell what was seen a step ago.
    spans = {"state": (-BURN_IN, 1 - BURN_IN)}
    window = reverb.Window(LENGTH, before=BURN_IN, pad="left", spans=spans)
    products, results, errors = np.zeros((UNITS, UNITS)), np.zeros(UNITS), np.zeros((2, UPDATES))
    with reverb.batches(client, "episodes", BATCH, window=window) as batches:
        for update in range(UPDATES):
            batch = next(batches)
            seen, number, is_there = batch.data["seen"], batch.data["number"], batch.window_mask
            states = [batch.data["state"][:, 0]]  # [B, UNITS]
            for t in range(BURN_IN + LENGTH):
                after = recur(new, states[t], seen[:, t])
                # Padding leaves the state of an episode's beginning as it is.
                states.append(np.where(is_there[:, t, None], after, states[t]))
            is_old = batch.window_start > 0  # Else the stored state is that of a new episode.
            far = [abs(states[t] - fresh[number[:, t]]) for t in (0, BURN_IN)]
            errors[:, update] = [it[is_old].mean() for it in far]
            assert (far[1][~is_old] < 1e-9).all()  # It is fresh, unless padding has changed it.
            learn = np.stack(states[BURN_IN + 2 :], axis=1).reshape(-1, UNITS)
            previous = 2 * seen[:, BURN_IN:-1].ravel() - 1
            products += learn.T @ learn
            results += learn.T @ previous
readout = np.linalg.solve(products, results)

stored, warm = errors.mean(axis=1)
print(f"distance from a fresh state: {stored:.3f} as stored, {warm:.4f} after the burn-in")
assert warm < stored / 5
accuracy = (np.sign(learn @ readout) == previous).mean()
print(f"it remembers {accuracy:.0%} of what it saw one step ago")
assert accuracy > 0.95
