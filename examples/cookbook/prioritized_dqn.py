# SPDX-License-Identifier: Apache-2.0
"""Prioritized double DQN with 3-step returns, in PyTorch. Needs PyTorch and Gymnasium."""

import copy

import gymnasium
import torch

import reverb
from reverb.adapters.gymnasium import Recorder, Transitions, signature
from reverb.adapters.torch import Loader

ENVIRONMENTS, STEPS, BATCH = 8, 600, 64

torch.manual_seed(0)
torch.set_num_threads(1)  # The matrices are small.
envs = gymnasium.make_vec("CartPole-v1", num_envs=ENVIRONMENTS)
items = Transitions(n_step=3, discount=0.99)
table = reverb.Table(
    "replay",
    sampler=reverb.selectors.Prioritized(0.6),
    remover=reverb.selectors.Fifo(),
    max_size=50_000,
    rate_limiter=reverb.rate_limiters.MinSize(BATCH),
    signature=signature(envs, items),
)
network = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
target = copy.deepcopy(network)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
beta = reverb.schedules.linear(0.4, 1.0, steps=STEPS)

with reverb.Server([table]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    envs = Recorder(envs, client, tables="replay", items=items, priority="max")
    observation, _ = envs.reset(seed=0)
    with Loader(client, "replay", BATCH) as loader:
        for step in range(STEPS):
            with torch.no_grad():
                action = network(torch.from_numpy(observation)).argmax(1)
            explore = torch.rand(ENVIRONMENTS) < max(0.05, 1 - step / 200)
            action = torch.where(explore, torch.randint(2, (ENVIRONMENTS,)), action)
            observation = envs.step(action.numpy())[0]
            if step < 50:
                continue
            batch = next(loader)
            data = batch.data
            with torch.no_grad():
                best = network(data["next_observation"]).argmax(1, keepdim=True)
                following = target(data["next_observation"]).gather(1, best)[:, 0]
                aim = data["reward"] + data["discount"] * following  # Right at every end.
            value = network(data["observation"]).gather(1, data["action"][:, None])[:, 0]
            td_error = aim - value
            weights = torch.as_tensor(reverb.importance_weights(batch, beta(step)))
            optimizer.zero_grad()
            (weights * td_error.square()).mean().backward()
            optimizer.step()
            loader.update_priorities(batch.info.key, td_error.abs() + 1e-3)
            if step % 50 == 0:
                target.load_state_dict(network.state_dict())
    envs.close()
    replay = client.status().tables["replay"]

print(f"{replay.inserts} transitions, each sampled {replay.samples / replay.inserts:.1f} times")
assert replay.priority_updates > 0
