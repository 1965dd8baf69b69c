# SPDX-License-Identifier: Apache-2.0
"""The learner of SAC: twin critics, a squashed Gaussian policy. Needs PyTorch.

Its actors: `actors_and_weights.py`. Here the transitions are random steps of a line with a goal.
"""

import copy
import itertools

import numpy as np
import torch
from torch import distributions, nn

import reverb
from reverb.adapters.torch import Loader

BATCH, UPDATES, ALPHA, DISCOUNT = 128, 400, 0.05, 0.5


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


def act(policy, observation):
    """An action in (-1, 1) and its log-probability."""
    mean, log_std = policy(observation).chunk(2, dim=-1)
    normal = distributions.Normal(mean, log_std.clamp(-5, 1).exp())
    squashed = distributions.TransformedDistribution(normal, distributions.TanhTransform())
    action = squashed.rsample()
    return action, squashed.log_prob(action.clamp(-0.999, 0.999)).sum(-1)


def evaluate(critics, observation, action):
    pairs = torch.cat([observation, action], -1)
    return torch.cat([critic(pairs) for critic in critics], -1)  # [B, 2].


torch.manual_seed(0)
torch.set_num_threads(1)  # The matrices are small.
policy, critics = network(1, 2), nn.ModuleList([network(2, 1), network(2, 1)])
targets = copy.deepcopy(critics)
optimizers = [torch.optim.Adam(it.parameters(), lr=3e-3) for it in (policy, critics)]

position, action = np.random.default_rng(0).uniform(-1, 1, (2, 5_000, 1)).astype(np.float32)
following = np.clip(position + action, -1, 1)
rows = {"observation": position, "action": action, "reward": -np.square(following)}
rows["next_observation"] = following
replay = reverb.Table(
    "replay",
    sampler=reverb.selectors.Uniform(),
    remover=reverb.selectors.Fifo(),
    max_size=100_000,
    rate_limiter=reverb.rate_limiters.MinSize(BATCH),
    signature={name: reverb.specs.TensorSpec([1, 1], np.float32) for name in rows},
)
with reverb.Server([replay]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    client.insert_batch(rows, {"replay": 1.0})
    with Loader(client, "replay", BATCH) as loader:
        for batch in itertools.islice(loader, UPDATES):
            data = {name: column[:, 0] for name, column in batch.data.items()}
            with torch.no_grad():
                action, log_prob = act(policy, data["next_observation"])
                following = evaluate(targets, data["next_observation"], action).amin(1)
                aim = data["reward"][:, 0] + DISCOUNT * (following - ALPHA * log_prob)
            value = evaluate(critics, data["observation"], data["action"])
            critic_loss = (value - aim[:, None]).square().mean()
            action, log_prob = act(policy, data["observation"])
            value = evaluate(critics, data["observation"], action).amin(1)
            policy_loss = (ALPHA * log_prob - value).mean()
            for loss, optimizer in ((policy_loss, optimizers[0]), (critic_loss, optimizers[1])):
                optimizer.zero_grad()
                loss.backward(inputs=optimizer.param_groups[0]["params"])
                optimizer.step()
            for old, new in zip(targets.parameters(), critics.parameters(), strict=True):
                old.data.lerp_(new.data, 0.01)

start = torch.tensor([[-0.5], [0.0], [0.5]])
end = start + policy(start)[:, :1].tanh()
assert end.abs().max() < 0.3, end  # The policy goes to 0.
