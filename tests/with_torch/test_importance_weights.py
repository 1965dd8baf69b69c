# SPDX-License-Identifier: Apache-2.0
"""Importance weights of a table, beside those of buffers in a process for the same priorities."""

import numpy as np
import pytest
import torch

import reverb

PRIORITIES = np.array([0.01, 0.3, 1.0, 1.0, 2.5, 4.0, 9.0, 30.0])
EXPONENTS = [(0.6, 0.4), (1.0, 1.0), (0.5, 0.0), (2.0, 0.7)]


def sampled(serve_table, exponent, num_samples=4_000):
    """A batch of items 0, 1, ... with `PRIORITIES`, and which item each sample is."""
    client = serve_table(sampler=reverb.selectors.Prioritized(exponent))
    client.insert_batch(np.arange(len(PRIORITIES)), {"t": PRIORITIES})
    batch = client.sample_batch("t", num_samples)
    return batch, batch.data[0].ravel()


@pytest.fixture
def serve_table(table):
    """Serves a table with these settings; returns a client."""
    servers = []

    def serve(**options):
        servers.append(reverb.Server([table(**options)]))
        return servers[-1].localhost_client()

    yield serve
    for server in servers:
        server.stop()


@pytest.mark.parametrize(("alpha", "beta"), EXPONENTS)
def test_weights_are_those_of_torchrl(serve_table, alpha, beta):
    """`torchrl.data.PrioritizedSampler` divides by the largest weight of the whole buffer."""
    torchrl = pytest.importorskip("torchrl.data", reason="TorchRL is not installed")
    tensordict = pytest.importorskip("tensordict", reason="TensorDict is not installed")
    size = len(PRIORITIES)
    theirs = torchrl.TensorDictPrioritizedReplayBuffer(
        storage=torchrl.LazyTensorStorage(size), alpha=alpha, beta=beta, eps=0.0, batch_size=4_000
    )
    theirs.extend(tensordict.TensorDict({"item": torch.arange(size)}, batch_size=[size]))
    theirs.update_priority(torch.arange(size), torch.as_tensor(PRIORITIES, dtype=torch.float32))
    their_batch = theirs.sample()
    their_weights = dict(
        zip(their_batch["item"].tolist(), their_batch["priority_weight"].tolist(), strict=True)
    )

    batch, items = sampled(serve_table, alpha)
    weights = reverb.importance_weights(batch, beta)
    ours = dict(zip(items.tolist(), weights.tolist(), strict=True))
    both = sorted(ours.keys() & their_weights.keys())
    assert len(both) >= 4
    np.testing.assert_allclose(
        [ours[item] for item in both], [their_weights[item] for item in both], rtol=1e-5
    )


@pytest.mark.parametrize(("alpha", "beta"), EXPONENTS)
def test_weights_of_a_batch_are_those_of_tianshou(serve_table, alpha, beta):
    """`tianshou.data.PrioritizedReplayBuffer` divides by the largest weight of the batch.

    Its formula, from tianshou 2.0.1, `data/buffer/prio.py`, `get_weight` and `__getitem__` with the
    default `weight_norm=True`: `w = (p**alpha / min_prio) ** -beta`, then `w / max(w)`.
    """
    batch, items = sampled(serve_table, alpha)
    weight = (PRIORITIES[items] ** alpha / PRIORITIES.min()) ** -beta
    ours = reverb.importance_weights(batch, beta, normalize="batch")
    np.testing.assert_allclose(ours, weight / weight.max(), rtol=1e-5)
