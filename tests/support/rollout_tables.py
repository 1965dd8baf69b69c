# SPDX-License-Identifier: Apache-2.0
"""Tables whose items grow, and small data for them."""

import numpy as np

import reverb

SIGNATURE = {
    "prompt": reverb.specs.TensorSpec([None], np.int32),
    "tokens": reverb.specs.TensorSpec([None], np.int32),
    "score": reverb.specs.TensorSpec([], np.float32),
}


def table(num_rollouts=2, name="train", **options):
    """A table of prompts; its rollouts have tokens and a score."""
    return reverb.Table.rollouts(name, num_rollouts, SIGNATURE, **options)


def prompt(number):
    """The columns of an item."""
    return {"prompt": np.array([number, number + 1], np.int32)}


def rollout(number=0, length=3):
    """The columns of a sequence."""
    return {"tokens": np.full(length, number, np.int32), "score": np.float32(number)}


def ready(client, *names, num_rollouts=2, **options):
    """Inserts items that are ready at once."""
    for name in names:
        rollouts = [rollout(number) for number in range(num_rollouts)]
        assert client.insert_item("train", prompt(0), rollouts, name=name, **options)


def info(client, name="train"):
    """What the server says of the rollouts of the table."""
    return client.server_info()[name].rollouts


def removed(client, name="train"):
    """Items that have left, by reason; without those of which there is none."""
    reasons = ("sampled_out", "deleted", "reset", "full", "bytes", "shrunk", "failed", "stale")
    counts = client.status().tables[name].removed
    found = {reason: getattr(counts, reason) for reason in reasons}
    return {reason: count for reason, count in found.items() if count}
