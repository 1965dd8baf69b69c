# SPDX-License-Identifier: Apache-2.0
"""Dreamer: windows of T steps that begin at any step of the stream of an environment.

Pieces of the stream begin every `STRIDE` steps and have T - 1 more, so that each start of a window
is in exactly one piece. Steps that two pieces share are stored once.
"""

import numpy as np

import reverb

T, BATCH, STEPS, STRIDE = 16, 8, 1_000, 64  # Dreamer: 64, 16, 1e6; and a stride of 1,024.

table = reverb.Table(
    "stream",
    sampler=reverb.selectors.Uniform(),
    remover=reverb.selectors.Fifo(),
    max_size=100_000 // STRIDE,
    rate_limiter=reverb.rate_limiters.MinSize(1),
    seed=0,
    signature={
        "image": reverb.specs.TensorSpec([None, 8, 8], np.uint8),
        "action": reverb.specs.TensorSpec([None], np.int64),
        "is_first": reverb.specs.TensorSpec([None], np.bool_),
        "time": reverb.specs.TensorSpec([None], np.int64),
    },
)

with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")

    # The actor. The writer does not know where episodes end: windows reach into the next one, and
    # `is_first` tells the world model where to forget its state.
    rng = np.random.default_rng(0)
    is_first = rng.random(STEPS) < 0.05
    images = rng.integers(0, 256, (STEPS, 8, 8), np.uint8)
    with client.sequence_writer("stream", STRIDE + T - 1, stride_length=STRIDE) as writer:
        for t in range(STEPS):
            step = {"image": images[t], "action": np.int64(t % 3), "time": np.int64(t)}
            writer.append({**step, "is_first": is_first[t]})

    # The learner of the world model. All pieces have as many windows, so all starts are as likely.
    starts = np.zeros(STEPS, int)
    with reverb.batches(client, "stream", BATCH, window=reverb.Window(T)) as batches:
        for _ in range(1_500):
            batch = next(batches)
            data, time = batch.data, batch.data["time"]
            assert (np.diff(time, axis=1) == 1).all()  # Consecutive.
            assert (batch.num_windows == STRIDE).all()
            assert (data["image"] == images[time]).all()
            assert (data["is_first"] == is_first[time]).all()
            np.add.at(starts, time[:, 0], 1)
    memory = client.status().tables["stream"]

num_pieces = (STEPS - (T - 1)) // STRIDE
assert memory.items == num_pieces
assert (starts[: num_pieces * STRIDE] > 0).all()  # Each start, at the ends of pieces too.
assert memory.bytes / (memory.items * STRIDE) < 2 * images[0].nbytes
print(f"{num_pieces * STRIDE} starts, each in {starts.sum() / num_pieces / STRIDE:.0f} windows")
