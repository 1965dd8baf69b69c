# SPDX-License-Identifier: Apache-2.0
"""An agent loop with the interface of verl's, and a trainer of one's own.

The agent may look a digit up before it says it. That it should is what it learns.
"""

import asyncio
from types import SimpleNamespace

import numpy as np

import reverb.aio

GROUP, UPDATES, RATE, DIGITS, LOOK, ASK = 8, 60, 1.0, 4, 4, 5  # Tokens: the digits, and two more.
spec = reverb.specs.TensorSpec
signature = {
    "digit": spec([], np.int32),  # What an item has once; the rest is of each conversation.
    "ids": spec([None], np.int32),
    "mask": spec([None], bool),  # Whether the model wrote it; the others are of user and tool.
    "score": spec([], np.float32),
}
table = reverb.Table.rollouts("train", GROUP, signature, item=("digit",))
logits, rng = np.zeros([DIGITS + 2, DIGITS + 1]), np.random.default_rng(0)


def chances(tokens):
    """Of the next token after each of these: the model."""
    odds = np.exp(logits[tokens])
    return odds / odds.sum(axis=-1, keepdims=True)


class LookUp:
    """Beside verl its parent is `AgentLoopBase`, and verl's servers generate."""

    async def run(self, sampling_params, **kwargs):
        ids, mask = [ASK], [False]
        for _ in range(2):
            await asyncio.sleep(0)
            ids, mask = [*ids, rng.choice(DIGITS + 1, p=chances(ids[-1]))], [*mask, True]
            if ids[-1] != LOOK:
                break
            ids, mask = [*ids, kwargs["digit"]], [*mask, False]  # The tool's answer.
        return SimpleNamespace(prompt_ids=ids[:1], response_ids=ids[1:], response_mask=mask[1:])


async def generate(client):
    while True:
        async with client.open_item("train") as item:
            digit = int(item.data["digit"])
            loops = [LookUp().run({"temperature": 1.0}, digit=digit) for _ in item.missing]
            for output in await asyncio.gather(*loops):
                ids = np.array(output.prompt_ids + output.response_ids, np.int32)
                mask = np.array([False] * len(output.prompt_ids) + output.response_mask)
                score = np.float32(mask[-1] and ids[-1] == digit)
                await client.add_rollout(item, {"ids": ids, "mask": mask, "score": score})


async def learn(client):
    for _ in range(UPDATES):
        for digit in range(DIGITS):
            await client.insert_item("train", {"digit": np.int32(digit)})
        batch = await client.take("train", DIGITS)
        group = batch.data["score"].reshape(DIGITS, GROUP)
        gains = (group - group.mean(1, keepdims=True)) / (group.std(1, keepdims=True) + 0.1)
        for ids, mask, gain in zip(batch.data["ids"], batch.data["mask"], gains.flat, strict=True):
            before, after = ids[:-1][mask[1:]], ids[1:][mask[1:]]
            step = np.eye(DIGITS + 1)[after] - chances(before)
            np.add.at(logits, before, RATE / GROUP * gain * step)
        await client.ack(batch)  # When a checkpoint of the model is on disk.
        yield group.mean()


async def main():
    async with reverb.aio.Client(f"localhost:{server.port}") as client:
        generator = asyncio.create_task(generate(client))
        scores = [score async for score in learn(client)]
        generator.cancel()
        return scores


with reverb.Server([table]) as server:
    scores = asyncio.run(main())
print(f"score: {np.mean(scores[:5]):.2f} at first, {np.mean(scores[-5:]):.2f} in the end")
assert np.mean(scores[:5]) < 0.5 < 0.9 < np.mean(scores[-5:])
