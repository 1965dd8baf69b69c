# SPDX-License-Identifier: Apache-2.0
"""Rollouts of a language model: GRPO, with generators beside a learner.

The best answer to prompt `n` has `n + 1` tokens; the model sees no more than how good its own are.
"""

import asyncio
import itertools

import numpy as np

import reverb
import reverb.aio

PROMPTS, GROUP, BATCH, UPDATES, MOST_TOKENS, RATE = 6, 8, 6, 150, 8, 0.3
spec = reverb.specs.TensorSpec
signature = {
    "prompt": spec([], np.int32),  # What an item has once; the rest is of each rollout.
    "stop": spec([None], np.float32),  # A token is 1 where the answer ends, else 0.
    "reward": spec([], np.float32),
}
# Generators are a batch ahead at most.
table = reverb.Table.rollouts("train", GROUP, signature, items_per_version=BATCH, max_staleness=1)
logits = np.zeros([PROMPTS, MOST_TOKENS])  # Of the end of an answer, at each of its tokens.


async def feed(client):
    for number in itertools.count():  # An insert waits while the backlog is full.
        prompt = {"prompt": np.int32(number % PROMPTS)}
        await client.insert_item("train", prompt, name=str(number))


async def generate(client, rng):
    while True:
        async with client.open_item("train") as item:
            row = logits[item.data["prompt"]]
            for rollout in list(item.missing):
                await asyncio.sleep(0)  # Here the model writes, with weights that change meanwhile.
                stop = (rng.random(MOST_TOKENS) < 1 / (1 + np.exp(-row))).astype(np.float32)
                stop = stop[: int(stop.argmax()) + 1] if stop.any() else stop
                reward = np.float32(-abs(len(stop) - 1 - item.data["prompt"]))
                await client.add_rollout(item, {"stop": stop, "reward": reward}, rollout=rollout)


async def learn(client):
    held, rewards = [], []
    for update in range(1, UPDATES + 1):
        held.append(batch := await client.take("train", BATCH))  # Whole groups, the oldest first.
        assert batch.staleness.max() <= 1
        group = batch.data["reward"].reshape(BATCH, GROUP)
        advantage = (group - group.mean(1, keepdims=True)) / (group.std(1, keepdims=True) + 0.1)
        rewards.append(group.mean())
        for stop, item, gain in zip(batch.data["stop"], batch.item, advantage.ravel(), strict=True):
            row = logits[batch.data["prompt"][item], : len(stop)]
            row += RATE * gain * (stop - 1 / (1 + np.exp(-row)))
        await client.set_version("train", update)  # From now on generators have these weights.
        if update % 10 == 0:  # Here the model is saved. What it has seen does not come again.
            for trained in held:
                await client.ack(trained)
            held.clear()
    return rewards


async def main():
    async with reverb.aio.Client(f"localhost:{server.port}") as client:
        work = [generate(client, np.random.default_rng(it)) for it in range(4)]
        tasks = [asyncio.create_task(it) for it in (learn(client), feed(client), *work)]
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        return done.pop().result()  # Of the learner; the others end by an error alone.


with reverb.Server([table]) as server:
    rewards = asyncio.run(main())
print(f"mean reward: {np.mean(rewards[:5]):.2f} at first, {np.mean(rewards[-5:]):.2f} in the end")
assert np.mean(rewards[:5]) < -1
assert np.mean(rewards[-5:]) > -0.2
