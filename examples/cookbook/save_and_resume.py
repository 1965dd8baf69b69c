# SPDX-License-Identifier: Apache-2.0
"""Save a learner together with its replay; continue after `kill -9`."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import numpy as np

import reverb

STEPS, SAVE_EVERY, KILL_AT = 100, 20, 50


def serve(directory):
    table = reverb.Table(
        "replay",
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=10_000,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    checkpointer = reverb.checkpointers.DefaultCheckpointer(directory / "replay", keep_latest=3)
    return reverb.Server([table], checkpointer=checkpointer)  # Loads the latest checkpoint.


def save(directory, client, step, weights):
    """First the replay, then the learner with the path of the replay; each all or nothing."""
    checkpoint = client.checkpoint()
    np.savez(directory / "new.npz", step=step, weights=weights, checkpoint=checkpoint)
    (directory / "new.npz").rename(directory / "learner.npz")


def learn(directory, kill_at):
    with serve(directory) as server:
        client, first, weights = reverb.Client(f"localhost:{server.port}"), 0, np.zeros(4)
        if (directory / "learner.npz").exists():
            with np.load(directory / "learner.npz") as saved:
                first, weights = int(saved["step"]), saved["weights"]
                is_same = client.checkpoint_status().restored_from == saved["checkpoint"]
            # Otherwise the program was killed between the two saves, and the replay is newer.
            assert not is_same or client.server_info()["replay"].current_size == first
        for step in range(first, STEPS):
            client.insert([np.full(4, step, np.float64)], {"replay": 1.0})
            weights = weights + 0.1 * (client.sample_batch("replay", 8).data[0].mean() - weights)
            if (step + 1) % SAVE_EVERY == 0:
                save(directory, client, step + 1, weights)
            if step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        print(f"{first} to {STEPS} steps, {client.server_info()['replay'].current_size} items")


if __name__ == "__main__" and len(sys.argv) == 1:
    with tempfile.TemporaryDirectory() as directory:
        again = [sys.executable, __file__, directory]
        assert subprocess.run([*again, str(KILL_AT)], check=False).returncode == -signal.SIGKILL
        subprocess.run([*again, "-1"], check=True)
elif __name__ == "__main__":
    learn(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
