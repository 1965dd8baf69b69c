# SPDX-License-Identifier: Apache-2.0
"""Actor processes and a learner: transitions go one way, weights and the end go the other way."""

import multiprocessing

import numpy as np

import reverb

ACTORS, BATCH, UPDATES = 3, 64, 200
BEST_ACTION = np.array([0.5, -0.25])


def act(address, seed):
    """Plays with the newest weights until the learner says that it has finished."""
    rng = np.random.default_rng(seed)
    client = reverb.Client(address)
    while True:
        (mean, is_last) = client.sample_batch("weights", 1).data  # Waits for the first ones.
        if is_last[0, 0]:
            return
        action = mean[0, 0] + rng.normal(size=(16, 2))
        reward = -np.square(action - BEST_ACTION).sum(axis=1)
        # Waits while the limiter allows no insert, so actors keep pace with the learner. The
        # learner may end meanwhile: look for new weights then.
        client.insert_batch({"action": action, "reward": reward}, {"replay": 1.0})


def publish(client, mean, is_last=False):
    client.insert([np.asarray(mean), np.bool_(is_last)], {"weights": 1.0})


if __name__ == "__main__":
    replay = reverb.Table(
        "replay",
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=1_000,
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(4.0, 200, error_buffer=10 * BATCH),
    )
    weights = reverb.Table(
        "weights",
        sampler=reverb.selectors.Lifo(),  # The newest ones.
        remover=reverb.selectors.Fifo(),
        max_size=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    with reverb.Server([replay, weights]) as server:
        client, mean = reverb.Client(f"localhost:{server.port}"), np.zeros(2)
        publish(client, mean)
        spawn = multiprocessing.get_context("spawn")  # No thread of this process is copied.
        arguments = [(f"localhost:{server.port}", seed) for seed in range(ACTORS)]
        actors = [spawn.Process(target=act, args=it) for it in arguments]
        for actor in actors:
            actor.start()
        for _ in range(UPDATES):
            action, reward = (column[:, 0] for column in client.sample_batch("replay", BATCH).data)
            best = action[reward >= np.quantile(reward, 0.75)]
            mean = 0.9 * mean + 0.1 * best.mean(axis=0)
            publish(client, mean)
        publish(client, mean, is_last=True)
        client.configure_table("replay", rate_limiter=reverb.rate_limiters.MinSize(1))
        for actor in actors:
            actor.join()  # The limiter holds none of them back any more.
    print(f"learned {mean.round(2)}, the best action is {BEST_ACTION}")
    assert np.allclose(mean, BEST_ACTION, atol=0.25)
