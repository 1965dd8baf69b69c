# SPDX-License-Identifier: Apache-2.0
"""Several agents that come and go: columns for each agent, and a mask of those that are there."""

import numpy as np

import reverb

AGENTS = ("blue", "green", "red")
T, BATCH = 5, 16
rng = np.random.default_rng(0)


def agent_spec():
    return {
        "observation": reverb.specs.TensorSpec([T, 3], np.float32),
        "action": reverb.specs.TensorSpec([T], np.int64),
        "is_present": reverb.specs.TensorSpec([T], np.bool_),
    }


def agent_step(t, is_present):
    """A step of one agent; zeros while it is not there."""
    return {
        "observation": np.full(3, t if is_present else 0, np.float32),
        "action": np.int64(rng.integers(4) if is_present else 0),
        "is_present": np.bool_(is_present),
    }


table = reverb.Table(
    "joint",
    sampler=reverb.selectors.Uniform(),
    remover=reverb.selectors.Fifo(),
    max_size=10_000,
    rate_limiter=reverb.rate_limiters.MinSize(BATCH),
    # The names of the agents are in the signature: batches are nested like it.
    signature={
        "agents": {name: agent_spec() for name in AGENTS},
        "reward": reverb.specs.TensorSpec([T], np.float32),
    },
)

with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    with client.sequence_writer("joint", T, stride_length=1) as writer:
        for t in range(100):
            present = {"blue": True, "green": t >= 10, "red": t < 60}
            agents = {name: agent_step(t, present[name]) for name in AGENTS}
            writer.append({"agents": agents, "reward": np.float32(1)}, is_last=t == 99)

    batch = client.sample_batch("joint", BATCH, unpack_as_table_signature=True).data
    for name in AGENTS:
        agent = batch["agents"][name]
        mask = agent["is_present"]  # [B, T], for the loss of this agent.
        assert agent["observation"].shape == (BATCH, T, 3)
        assert (agent["observation"][~mask] == 0).all()
        print(f"{name} is there in {mask.mean():.0%} of the steps")
