# SPDX-License-Identifier: Apache-2.0
"""Frames of 84 x 84 in stacks of four: each frame is stored once, and items refer to it.

With Gymnasium, `EnvRecorder(..., frame_stack=4)` does this for you.
"""

import numpy as np

import reverb

STACK, EPISODES, STEPS = 4, 5, 40
rng = np.random.default_rng(0)


def positions(t, newest):
    """The frames of the stack at step `t`, counted from the end of the history (-1).

    The first frame of the episode is repeated where there are no four frames yet.
    """
    return [max(t - k, 0) - newest - 1 for k in reversed(range(STACK))]


table = reverb.Table(
    "replay",
    sampler=reverb.selectors.Uniform(),
    remover=reverb.selectors.Fifo(),
    max_size=1_000_000,
    rate_limiter=reverb.rate_limiters.MinSize(1),
)

with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    stacks = {}  # Those of a frame-stacking wrapper, to compare.
    with client.trajectory_writer(num_keep_alive_refs=STACK + 1) as writer:
        for episode in range(EPISODES):
            frames = rng.integers(0, 256, (STEPS + 1, 84, 84), np.uint8)
            for t, frame in enumerate(frames):  # The last one has no action: any will do.
                action, reward = np.int64(episode * STEPS + t), np.float32(0)
                writer.append({"frame": frame, "action": action, "reward": reward})
                stacks[episode, t] = frames[[max(t - k, 0) for k in reversed(range(STACK))]]
                if t > 0:  # The transition from t - 1 to t.
                    history = writer.history
                    item = {
                        "observation": history["frame"][positions(t - 1, t)],
                        "action": history["action"][-2],
                        "reward": history["reward"][-2],
                        "next_observation": history["frame"][positions(t, t)],
                    }
                    writer.create_item("replay", 1.0, item)
            writer.end_episode()

    for sample in client.scan("replay"):
        action, next_observation, observation, _reward = sample.data
        episode, t = divmod(int(action), STEPS)
        assert (observation == stacks[episode, t]).all()
        assert (next_observation == stacks[episode, t + 1]).all()
    memory = client.status().tables["replay"]

print(f"{memory.bytes / memory.items:,.0f} bytes a transition; two stacks have {8 * 84 * 84:,}")
assert memory.bytes < memory.items * 2 * 84 * 84
