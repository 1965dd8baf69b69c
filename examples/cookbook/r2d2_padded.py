# SPDX-License-Identifier: Apache-2.0
"""R2D2 with padding: every step of an episode is learned from, also those of its first burn-in.

The steps of a burn-in are not learned from. So the actor begins each episode with a burn-in of
padding, and pads the last sequence.
"""

import numpy as np

import reverb

BURN_IN, LENGTH, BATCH, UNITS, EPISODES, UPDATES, DISCOUNT = 4, 8, 32, 16, 100, 1_000, 0.5
T = BURN_IN + LENGTH + 1  # One more, for the values of the last step's successor.
rng = np.random.default_rng(0)


def recur(weights, state, seen):
    """The recurrent network: the states after what was seen, `[B, UNITS]`."""
    into, within = weights
    return np.tanh(state @ within + (2 * seen[:, None] - 1) * into)


old = rng.normal(size=UNITS), rng.normal(size=(UNITS, UNITS)) * 0.8 / np.sqrt(UNITS)
new = tuple(it + 0.1 * abs(it) * rng.normal(size=it.shape) for it in old)
specs = {"number": np.int64, "seen": np.int64, "action": np.int64, "reward": np.float64}
padding = {**dict.fromkeys(specs, 0), "reward": 0.0, "number": -1, "state": np.zeros(UNITS)}
table = reverb.Table(
    "replay",
    sampler=reverb.selectors.Prioritized(0.9),
    remover=reverb.selectors.Fifo(),
    max_size=10_000,
    rate_limiter=reverb.rate_limiters.MinSize(BATCH),
    signature={name: reverb.specs.TensorSpec([T], dtype) for name, dtype in specs.items()}
    | {"state": reverb.specs.TensorSpec([T, UNITS], np.float64)},
)

with reverb.Server([table]) as server, reverb.Client(f"localhost:{server.port}") as client:
    # The actor, with old weights. The task: repeat what was seen a step ago, 0 at the beginning.
    num_steps, learned = 0, set()
    with client.sequence_writer("replay", T, stride_length=LENGTH) as writer:
        for length in rng.integers(1, 30, EPISODES):
            state, previous, steps = np.zeros((1, UNITS)), 0, [padding] * BURN_IN
            for _ in range(length):
                seen, action = rng.integers(2, size=2)
                step = {"number": num_steps, "seen": seen, "action": action, "state": state[0]}
                steps.append({**step, "reward": float(action == previous)})
                state, previous, num_steps = recur(old, state, seen[None]), seen, num_steps + 1
            steps += [padding] * (-length % LENGTH + 1)
            for t, step in enumerate(steps, 1):
                writer.append(step, is_last=t == len(steps), priorities=reverb.MAX_PRIORITY)
    # The learner, with new weights.
    readout = np.zeros((UNITS, 2))
    with reverb.batches(client, "replay", BATCH) as batches:
        for _ in range(UPDATES):
            batch = next(batches)
            number, is_real = batch.data["number"], batch.data["number"] >= 0  # [B, T]
            states = [batch.data["state"][:, 0]]  # [B, UNITS]
            for t in range(T):
                after = recur(new, states[t], batch.data["seen"][:, t])
                # Padding leaves the state of an episode's beginning as it is.
                states.append(np.where(is_real[:, t, None], after, states[t]))
            state, learn = np.stack(states[BURN_IN + 1 :], axis=1), slice(BURN_IN, T - 1)
            values, mask = state @ readout, is_real[:, learn]  # [B, LENGTH + 1, 2], [B, LENGTH]
            after = np.where(is_real[:, BURN_IN + 1 :], values[:, 1:].max(axis=2), 0)
            taken = np.eye(2)[batch.data["action"][:, learn]]
            aim = batch.data["reward"][:, learn] + DISCOUNT * after
            td_error = np.where(mask, aim - (values[:, :-1] * taken).sum(axis=2), 0)
            weights = reverb.importance_weights(batch, 0.6)
            change = np.einsum("b,bt,btu,bta->ua", weights, td_error, state[:, :-1], taken)
            readout += 0.2 * change / mask.sum()
            priority = reverb.sequence_priority(td_error, eta=0.9, mask=mask)
            batches.update_priorities(batch.info.key, priority + 1e-3)
            learned |= set(number[:, learn][mask])

is_right = values[:, 1:-1].argmax(axis=2) == batch.data["seen"][:, BURN_IN:-2]
accuracy = is_right[mask[:, 1:]].mean()
print(f"{len(learned)} of {num_steps} steps are learned from, {accuracy:.0%} of them remembered")
assert len(learned) == num_steps
assert accuracy > 0.95
