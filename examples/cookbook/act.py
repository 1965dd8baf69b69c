# SPDX-License-Identifier: Apache-2.0
"""ACT: one image and the next 100 actions, at any step of a demonstration.

`spans` bring of each column only the steps that the policy needs. Near the end of a demonstration
the last action is repeated, and `window_mask` leaves these out of the loss.
"""

import numpy as np

import reverb

CHUNK, BATCH, DEMOS = 100, 64, 20
rng = np.random.default_rng(0)

table = reverb.Table(
    "demos",
    sampler=reverb.selectors.Uniform(),  # A demonstration, then a step of it.
    remover=reverb.selectors.Fifo(),
    max_size=DEMOS,
    rate_limiter=reverb.rate_limiters.MinSize(DEMOS),
    seed=0,
    signature={
        "image": reverb.specs.TensorSpec([None, 16, 16, 3], np.uint8),
        "joint": reverb.specs.TensorSpec([None], np.float64),
        "action": reverb.specs.TensorSpec([None], np.float64),
    },
)

with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    for _ in range(DEMOS):
        # The joint moves with a speed that the image shows: action k after t is joint[t] + k + 1
        # times the speed.
        length, speed = rng.integers(50, 400), rng.integers(1, 256)
        joint = rng.normal() + np.arange(length + 1) * speed
        image = np.full((length, 16, 16, 3), speed, np.uint8)
        demo = {"image": image, "joint": joint[:-1], "action": joint[1:]}
        client.insert_sequence(demo, {"demos": 1.0})

    # The learner: sums for least squares, per action of a chunk, with and without the mask.
    window = reverb.Window(CHUNK, pad="right", spans={"image": (0, 1), "joint": (0, 1)})
    products, results = np.zeros((2, CHUNK, 2, 2)), np.zeros((2, CHUNK, 2))
    with reverb.batches(client, "demos", BATCH, window=window) as batches:
        for _ in range(100):
            batch = next(batches)
            data, mask = batch.data, batch.window_mask
            assert data["image"].shape == (BATCH, 1, 16, 16, 3)
            assert data["action"].shape == mask.shape == (BATCH, CHUNK)
            seen = np.stack([data["joint"][:, 0], data["image"][:, 0].mean(axis=(1, 2, 3))], 1)
            for at, weights in enumerate((mask, np.ones_like(mask))):
                products[at] += np.einsum("bk,bi,bj->kij", weights, seen, seen)
                results[at] += np.einsum("bk,bi,bk->ki", weights, seen, data["action"])

policy, unmasked = np.linalg.solve(products, results[..., None])[..., 0]
expected = np.stack([np.ones(CHUNK), np.arange(1, CHUNK + 1)], 1)
error, unmasked_error = abs(policy - expected).max(), abs(unmasked - expected).max()
print(f"largest error of the policy: {error:.1e}; with padding in the loss: {unmasked_error:.1f}")
assert error < 1e-6 < 1 < unmasked_error
