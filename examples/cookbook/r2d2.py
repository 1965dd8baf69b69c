# SPDX-License-Identifier: Apache-2.0
"""R2D2: windows with the recurrent state of the actor, burn-in, priorities. Needs PyTorch."""

import itertools

import numpy as np
import torch

import reverb
from reverb.adapters.torch import Loader

BURN_IN, LENGTH, BATCH, UNITS, STEPS, UPDATES, DISCOUNT = 4, 12, 16, 16, 1_000, 150, 0.5
T = BURN_IN + LENGTH + 1  # One more, for the values of the last step's successor.


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = torch.nn.LSTM(2, UNITS, batch_first=True)
        self.values = torch.nn.Linear(UNITS, 2)

    def forward(self, observation, state):
        output, state = self.memory(observation, state)
        return self.values(output), state


torch.manual_seed(0)
torch.set_num_threads(1)  # The matrices are small.
network = Network()
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
shapes = {"observation": (2,), "state": (2, UNITS), "action": (), "reward": ()}
dtypes = {**dict.fromkeys(shapes, np.float32), "action": np.int64}
replay = reverb.Table(
    "replay",
    sampler=reverb.selectors.Prioritized(0.9),
    remover=reverb.selectors.Fifo(),
    max_size=10_000,
    rate_limiter=reverb.rate_limiters.MinSize(BATCH),
    signature={name: reverb.specs.TensorSpec([T, *shapes[name]], dtypes[name]) for name in shapes},
)
with reverb.Server([replay]) as server:
    client = reverb.Client(f"localhost:{server.port}")
    # The actor. Windows overlap by half. The task: repeat what was seen one step ago.
    rng, seen, state = np.random.default_rng(0), 0, torch.zeros(2, 1, 1, UNITS)
    with client.sequence_writer("replay", T, stride_length=T // 2) as writer, torch.no_grad():
        for t in range(STEPS):
            before, previous, seen = state[:, 0, 0].numpy(), seen, int(rng.integers(2))
            observation, action = np.eye(2, dtype=np.float32)[seen], rng.integers(2)
            state = torch.stack(network(torch.from_numpy(observation)[None, None], tuple(state))[1])
            step = {"observation": observation, "state": before, "action": action}
            step["reward"] = np.float32(action == previous)
            writer.append(step, is_last=t == STEPS - 1, priorities=reverb.MAX_PRIORITY)
    with Loader(client, "replay", BATCH) as loader:
        for batch in itertools.islice(loader, UPDATES):
            data = batch.data
            stored = data["state"][:, 0].transpose(0, 1)[:, None].contiguous()  # [2, 1, B, UNITS]
            with torch.no_grad():  # Burn-in brings the old state up to the newest weights.
                _, warm = network(data["observation"][:, :BURN_IN], tuple(stored))
            values, _ = network(data["observation"][:, BURN_IN:], warm)
            learn = slice(BURN_IN, T - 1)
            value = values[:, :-1].gather(2, data["action"][:, learn, None])[..., 0]
            aim = data["reward"][:, learn] + DISCOUNT * values[:, 1:].detach().amax(2)
            td_error = aim - value  # [B, LENGTH]
            weights = torch.as_tensor(reverb.importance_weights(batch, 0.6))[:, None]
            optimizer.zero_grad()
            (weights * td_error.square()).mean().backward()
            optimizer.step()
            priority = reverb.sequence_priority(td_error.detach().numpy(), eta=0.9)
            loader.update_priorities(batch.info.key, priority)

is_right = values[:, 1:].argmax(2) == data["observation"][:, BURN_IN:-1].argmax(2)
print(f"it remembers {is_right.float().mean():.0%} of what it saw one step ago")
assert is_right.float().mean() > 0.95
