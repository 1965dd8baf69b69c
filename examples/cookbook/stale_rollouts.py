# SPDX-License-Identifier: Apache-2.0
"""Stale rollouts: what policies have played that are too old is thrown away on the server."""

import numpy as np

import reverb

UPDATES, ACTORS, STEPS, BATCH, MAX_AGE = 30, 4, 5, 3, 3

signature = {
    "action": reverb.specs.TensorSpec([None], np.int64),
    "observation": reverb.specs.TensorSpec([None, 4], np.float32),
}
# An item is one rollout. It has nothing that another rollout could be made of, so it leaves.
table = reverb.Table.rollouts("rollouts", 1, signature, item=(), max_staleness=MAX_AGE)


def play(rng):
    """Stands for an actor."""
    observation = rng.normal(size=(STEPS, 4)).astype(np.float32)
    return {"action": rng.integers(2, size=STEPS), "observation": observation}


with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    rng, ages = np.random.default_rng(0), []
    for version in range(UPDATES):
        client.set_version("rollouts", version)  # Whatever is too old now goes.
        for actor in range(ACTORS):  # Each fetches new weights after so many updates.
            played_by = version - version % (actor + 1)
            client.insert_item("rollouts", {}, [play(rng)], version=played_by)
        batch = client.take("rollouts", BATCH, ack=True)  # The learner is a little slower.
        assert batch.data["action"][0].shape == (STEPS,)
        ages += batch.staleness.tolist()
    left = client.size("rollouts")

dropped = UPDATES * ACTORS - len(ages) - left
print(f"{dropped} rollouts were too old, {left} are left; the mean age was {np.mean(ages):.1f}")
assert dropped > 0
assert max(ages) == MAX_AGE  # Older policies are used, as far as that is wanted.
