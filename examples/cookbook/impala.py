# SPDX-License-Identifier: Apache-2.0
"""IMPALA: asyncio actors write rollouts into a queue, the learner corrects for their age (V-trace).

The environment is a corridor: two steps to the right give a reward; policy and values are tables.
"""

import asyncio

import numpy as np

import reverb
import reverb.aio

STATES, T, BATCH, ACTORS, UPDATES, DISCOUNT = 4, 8, 8, 4, 150, 0.9
logits, values = np.zeros((STATES, 2)), np.zeros(STATES)


def log_policy(state):
    shifted = logits[state] - logits[state].max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


async def act(client, seed):
    rng, state = np.random.default_rng(seed), 0
    async with client.sequence_writer("rollouts", T + 1, stride_length=T) as writer:
        while True:  # Until it is cancelled.
            log_probs = log_policy(state)
            action = int(rng.random() < np.exp(log_probs[1]))
            following = (state + 1) % STATES if action else 0
            reward = float(action and following == 0)  # The end of the corridor.
            step = {"state": state, "action": action, "log_prob": log_probs[action]}
            await writer.append({**step, "reward": reward})
            state = following
            await writer.flush(1)  # At most one rollout waits for the queue.
            await asyncio.sleep(0)


def v_trace(rho, reward, value, last_value):
    """Targets and advantages `[B, T]` (Espeholt et al., arXiv:1802.01561, section 4.1)."""
    clipped = np.minimum(rho, 1)
    following = np.append(value[:, 1:], last_value[:, None], axis=1)
    delta = clipped * (reward + DISCOUNT * following - value)
    correction, target = np.zeros(len(value)), np.zeros((len(value), T + 1))
    target[:, T] = last_value
    for t in reversed(range(T)):
        correction = delta[:, t] + DISCOUNT * clipped[:, t] * correction
        target[:, t] = value[:, t] + correction
    return target[:, :T], clipped * (reward + DISCOUNT * target[:, 1:] - value)


async def learn(client):
    for _ in range(UPDATES):
        action, log_prob, reward, state = (await client.sample_batch("rollouts", BATCH)).data
        now, then = (slice(None), slice(T)), (slice(None), T)
        log_now = np.take_along_axis(log_policy(state), action[..., None], -1)[..., 0]
        rho = np.exp(log_now - log_prob)[now]
        target, advantage = v_trace(rho, reward[now], values[state[now]], values[state[then]])
        np.add.at(values, state[now], 0.02 * (target - values[state[now]]))
        score = np.eye(2)[action[now]] - np.exp(log_policy(state[now]))
        np.add.at(logits, state[now], 0.02 * advantage[..., None] * score)
        rewards.append(reward.mean())


async def main():
    async with reverb.aio.Client(f"localhost:{server.port}") as client:
        actors = [asyncio.create_task(act(client, seed)) for seed in range(ACTORS)]
        learner = asyncio.create_task(learn(client))
        # An actor that fails ends the program; else the learner would wait for ever.
        await asyncio.wait([learner, *actors], return_when=asyncio.FIRST_COMPLETED)
        for task in (learner, *actors):
            if task.done():
                task.result()
            task.cancel()


rewards: list[float] = []
with reverb.Server([reverb.Table.queue("rollouts", max_size=2 * BATCH)]) as server:
    asyncio.run(main())
print(f"mean reward {np.mean(rewards[:10]):.2f} at first, {np.mean(rewards[-10:]):.2f} at last")
assert np.mean(rewards[-10:]) > 0.22  # 0.25 is the best.
