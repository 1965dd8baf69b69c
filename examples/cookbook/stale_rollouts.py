# SPDX-License-Identifier: Apache-2.0
"""Stale rollouts: items of policies that are too old are thrown away on the server.

The priority of an item is the version of its policy, which a uniform sampler does not look at.
"""

import numpy as np

import reverb

UPDATES, ACTORS, STEPS, BATCH, MAX_AGE = 30, 4, 5, 16, 3

spec = reverb.specs.TensorSpec
table = reverb.Table(
    "rollouts",
    sampler=reverb.selectors.Uniform(),
    remover=reverb.selectors.Fifo(),
    max_size=1_000,
    rate_limiter=reverb.rate_limiters.MinSize(1),
    signature={
        "action": spec([STEPS], np.int64),
        "observation": spec([STEPS, 4], np.float32),
        "version": spec([], np.int32),
    },
)


def play(writer, rng, version):
    """Stands for an actor: one rollout with the weights that it has, which may be older."""
    for _ in range(STEPS):
        observation = rng.normal(size=4).astype(np.float32)
        writer.append({"action": rng.integers(2), "observation": observation})
    history = writer.history
    columns = {name: history[name][-STEPS:] for name in ("action", "observation")}
    # The version is a constant of the item, for the learner; as a priority it is for the server.
    writer.create_item("rollouts", priority=version, trajectory={**columns, "version": version})
    writer.end_episode()


with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    rng, dropped, ages = np.random.default_rng(0), 0, []
    with client.trajectory_writer(num_keep_alive_refs=STEPS) as writer:
        for version in range(UPDATES):
            for actor in range(ACTORS):  # Each fetches new weights after so many updates.
                play(writer, rng, version - version % (actor + 1))
            # Whatever is older than MAX_AGE versions goes. Nothing of it is sent or decoded.
            too_old = reverb.Where(priority=(None, version - MAX_AGE - 1))
            dropped += client.delete_items("rollouts", where=too_old)
            batch = client.sample_batch("rollouts", BATCH, unpack_as_table_signature=True)
            age = version - batch.data["version"]
            assert age.shape == (BATCH,)
            assert (age <= MAX_AGE).all()
            ages += age.tolist()  # Here the learner makes an update, with the age as it likes.
    left = client.server_info()["rollouts"].current_size

print(f"{dropped} rollouts were too old, {left} are left; the mean age was {np.mean(ages):.1f}")
assert dropped + left == UPDATES * ACTORS
assert max(ages) == MAX_AGE  # Older policies are used, as far as that is wanted.
