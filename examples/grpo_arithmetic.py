# SPDX-License-Identifier: Apache-2.0
"""A small language model learns to add by GRPO alone, while its processes may be killed.

    python examples/grpo_arithmetic.py                  # about two minutes on two cores
    python examples/grpo_arithmetic.py --budget quick   # less time, and an easier goal
    python examples/grpo_arithmetic.py --chaos          # eight processes are killed on the way
    python examples/grpo_arithmetic.py --on-stale wait  # no rollout is thrown away for its age

The prompts are texts such as `3+8=`, whose right answer is `11.`. The model starts from random
weights and sees no answers but its own: all that it learns from is a reward that looks at its text.
Each line is a process; what moves between them goes through two tables of a server, one more:

    feeder        ──▶ "train"    prompts, one after another
    3 generators  ◀─▶ "train"    prompts, and 16 rollouts of each    ◀── "weights"
    reward stage  ◀─▶ "train"    texts, and their rewards
    trainer       ◀── "train"    prompts with all of that            ──▶ "weights"

An item of "train" is a prompt with its group of rollouts. It grows on the server, so what the other
processes have in their memory can be lost: items that they held go to others, and come again until
they are acked. The exit code is 0 only if the model can add, if it was trained on every prompt,
whatever was killed, on none too stale, without long pauses, and if the books of the table balance.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import multiprocessing
import pathlib
import random
import socket
import sys
import tempfile
import time

import numpy as np

import reverb
import reverb.aio

# Only the processes with a model import PyTorch, and grpo_policy.py.
GROUP = 16  # rollouts of a prompt
BATCH = 16  # prompts of a learner step
SAVE_PERIOD = 10  # learner steps between two checkpoints of the model
REPORT_PERIOD = 25
# Number of prompts, and the goal: the share of the 100 sums that greedy answers must get right.
# It is 0.1 at most before, and grows until about 11,000 prompts: a quick run ends half-way.
BUDGETS = {"full": (12_000, 0.9), "quick": (4_800, 0.5)}
PATIENCE_S = 90.0
OPEN_TIMEOUT_S = 10.0  # for which a generator may hold a prompt
# Longest time without a learner step, after the first: lost processes end their holds before.
LONGEST_PAUSE_S = OPEN_TIMEOUT_S + 25.0
SYMBOLS = "0123456789+=."
SUMS = [f"{a}+{b}=" for a in range(10) for b in range(10)]


@dataclasses.dataclass(frozen=True)
class Run:
    """What the processes know of each other."""

    role: str
    address: str
    directory: pathlib.Path
    num_prompts: int
    max_staleness: int
    on_stale: str
    seed: int


def encode(text: str) -> np.ndarray:
    return np.array([SYMBOLS.index(symbol) for symbol in text], np.int32)


def decode(tokens: np.ndarray) -> str:
    return "".join(SYMBOLS[token] for token in tokens)


def reward(prompt: str, answer: str) -> float:
    """Returns 1 for the right text, and up to a half for right symbols at their places."""
    first, second = prompt.rstrip("=").split("+")
    right = f"{int(first) + int(second)}."
    if answer == right:
        return 1.0
    return 0.5 * sum(a == b for a, b in zip(answer, right, strict=False)) / len(right)


# ---- The server ----------------------------------------------------------------------------------


def serve(run: Run) -> None:
    """Serves the tables, and saves them each second. A new server continues from the last save."""
    spec = reverb.specs.TensorSpec
    train = reverb.Table.rollouts(
        "train",
        GROUP,
        signature={
            "prompt": spec([4], np.int32),
            "answer": spec([None], np.int32),
            "log_prob": spec([None], np.float32),
            "reward": spec([], np.float32),
        },
        item=["prompt"],
        items_per_version=BATCH,
        max_staleness=run.max_staleness,
        on_stale=run.on_stale,
        open_timeout_s=OPEN_TIMEOUT_S,
        max_attempts=1_000,  # No prompt is given up because it was lost, or too old, too often.
    )
    # A table of one item is a variable: an insert replaces it.
    weights = reverb.Table(
        "weights",
        sampler=reverb.selectors.Lifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    reverb.Server(
        [train, weights],
        port=int(run.address.rpartition(":")[2]),
        checkpointer=reverb.checkpointers.DefaultCheckpointer(str(run.directory / "tables")),
        checkpoint_interval_s=1.0,
        lease_grace_s=1.0,  # Then others get what a killed process had taken.
    ).wait()


# ---- Prompts, rollouts and rewards ---------------------------------------------------------------


def feed(run: Run) -> None:
    """Inserts the prompts, number by number, whatever restarts."""
    client = reverb.Client(run.address)
    while True:
        newest = client.server_info()["train"].rollouts.newest
        for number in range(int(newest or -1) + 1, run.num_prompts):
            epoch, place = divmod(number, len(SUMS))
            order = np.random.default_rng([run.seed, epoch]).permutation(len(SUMS))
            prompt = {"prompt": encode(SUMS[order[place]])}
            try:
                # It waits while the generators are `max_staleness` steps ahead.
                client.insert_item("train", prompt, name=str(number), after=newest)
            except reverb.errors.FailedPreconditionError:
                break  # The server has gone back to a checkpoint, so the feeder goes back, too.
            newest = str(number)
        time.sleep(0.2)  # Even after the last prompt the server may go back.


def generate(run: Run) -> None:
    """Writes the rollouts that prompts lack."""
    asyncio.run(write_rollouts(run))


async def write_rollouts(run: Run) -> None:
    import torch
    from grpo_policy import Policy

    torch.manual_seed(100 * run.seed + int(run.role[-1]))
    policy, version = Policy(), -1

    async def work() -> None:
        nonlocal version
        while True:
            async with client.open_item("train") as item:
                if item.version != version:
                    weights, newest = (await client.sample_batch("weights", 1)).data
                    policy.load_vector(weights[0, 0])
                    version = int(newest[0, 0])
                missing = list(item.missing)
                answers = policy.write(np.tile(item.data["prompt"], (len(missing), 1)))
                adds = (
                    client.add_rollout(item, answer, rollout=number, version=version)
                    for number, answer in zip(missing, answers, strict=True)
                )
                await asyncio.gather(*adds)

    async with reverb.aio.Client(run.address) as client:
        # While the rollouts of one prompt travel, those of the other one are written.
        await asyncio.gather(work(), work())


def judge(run: Run) -> None:
    """Adds rewards to the prompts that have all rollouts."""
    client = reverb.Client(run.address)
    while True:
        try:
            batch = client.take("train", BATCH, lacks="reward", partial=True, timeout_ms=20)
        except reverb.DeadlineExceededError:
            continue
        prompts = [decode(batch.data["prompt"][item]) for item in batch.item]
        answers = [decode(answer) for answer in batch.data["answer"]]
        rewards = np.array(list(map(reward, prompts, answers)), np.float32)
        client.extend(batch, {"reward": rewards})


# ---- The trainer ---------------------------------------------------------------------------------


def exact_match(policy) -> float:
    """Returns the share of all sums that the greedy answer gets right."""
    answers = policy.write(np.stack([encode(prompt) for prompt in SUMS]), greedy=True)
    texts = [decode(answer["answer"]) for answer in answers]
    return float(np.mean([reward(*pair) == 1.0 for pair in zip(SUMS, texts, strict=True)]))


def train(run: Run) -> None:
    """Trains on every prompt, and acks those that a checkpoint of the model has seen."""
    from grpo_policy import Learner

    learner = Learner(run.directory / "model", run.seed, run.num_prompts // BATCH)
    client = reverb.Client(run.address)
    held: list[reverb.RolloutBatch] = []  # trained on, and in no checkpoint yet
    rewards: list[float] = []

    def publish() -> None:
        # First the weights, then the word that they are there.
        client.insert([learner.policy.to_vector(), np.int64(learner.step)], {"weights": 1.0})
        # The server may have the version of a step that this trainer has lost, or has again.
        client.set_version("train", learner.step, rewind=True)

    def save() -> None:
        learner.save()
        while held:
            client.ack(held.pop())

    publish()
    at_end = False
    while True:
        try:
            batch = client.take("train", BATCH, partial=at_end, timeout_ms=1_000)
        except reverb.DeadlineExceededError:
            # That was all, or generators died, or the server went back to an older version.
            publish()
            at_end = client.server_info()["train"].rollouts.newest == str(run.num_prompts - 1)
            if at_end:
                save()
                if client.size("train") == 0:
                    return
            continue
        staleness = learner.step - int(batch.oldest.min())
        if staleness > run.max_staleness and run.on_stale != "keep":
            # The server has gone back to an older version, by which these are not too stale.
            publish()
            client.release(batch)
            continue
        learner.learn(batch)
        with (run.directory / "ledger").open("a") as ledger:
            ledger.write(f"{learner.step} {staleness} {' '.join(batch.name)}\n")
        held.append(batch)
        if learner.step % SAVE_PERIOD == 0:
            # Acks before the next version: those of items that came back count for the old one.
            save()
        publish()
        rewards.append(float(batch.data["reward"].mean()))
        if learner.step % REPORT_PERIOD == 0:
            mean, stale = np.mean(rewards[-REPORT_PERIOD:]), batch.staleness
            curve = f"reward {mean:.2f} {'#' * round(30 * mean):.<30}"
            right = f"greedy answers right: {exact_match(learner.policy):.2f}"
            behind = f"staleness {stale.mean():.1f}, at most {stale.max()}"
            print(f"step {learner.step:4d}  {curve}  {right}  {behind}", flush=True)


# ---- Processes, and how they die -----------------------------------------------------------------

ROLES = {"server": serve, "feeder": feed, "reward": judge, "trainer": train}
ROLES |= {f"generator-{index}": generate for index in range(3)}


def supervise(run: Run, victims: list[str]) -> bool:
    """Runs all roles until the trainer has ended; kills the victims at equal distances."""
    processes = {}

    def start(role: str) -> None:
        arguments = (dataclasses.replace(run, role=role),)
        context = multiprocessing.get_context("spawn")
        processes[role] = context.Process(target=ROLES[role], args=arguments, daemon=True)
        processes[role].start()

    kills, progress, since, longest_s = list(victims), 0, time.monotonic(), 0.0
    try:
        for role in ROLES:
            start(role)
        while processes["trainer"].exitcode is None:
            time.sleep(0.2)
            for role, process in processes.items():
                if process.exitcode not in (None, 0):
                    raise RuntimeError(f"{role} has ended with {process.exitcode}")
            steps = read_ledger(run)
            trained = len({number for *_, batch in steps for number in batch})
            longest_s = max(longest_s, time.monotonic() - since) if progress else 0.0
            if len(steps) > progress:
                progress, since = len(steps), time.monotonic()
            if time.monotonic() - since > PATIENCE_S:
                raise RuntimeError(f"no prompt was trained on for {PATIENCE_S:g} s")
            due = run.num_prompts * (len(victims) - len(kills) + 1) / (len(victims) + 2)
            if kills and trained >= due:
                role = kills.pop(0)
                print(f"SIGKILL to {role}, process {processes[role].pid}", flush=True)
                processes[role].kill()
                processes[role].join()
                start(role)
        print(f"longest pause: {longest_s:.1f} s (allowed: {LONGEST_PAUSE_S:g} s)")
        return account(run, victims) and longest_s <= LONGEST_PAUSE_S
    finally:
        for process in processes.values():
            process.kill()
            process.join()


def read_ledger(run: Run) -> list[tuple[int, int, list[int]]]:
    """Returns number, largest staleness and prompts of all learner steps, also of lost ones."""
    path = run.directory / "ledger"
    text = path.read_text() if path.exists() else ""
    rows = [list(map(int, line.split())) for line in text.splitlines()]
    return [(row[0], row[1], row[2:]) for row in rows]


def account(run: Run, victims: list[str]) -> bool:
    """Prints what became of the prompts. Returns whether it is what it has to be."""
    steps = read_ledger(run)
    times = collections.Counter(number for *_, batch in steps for number in batch)
    # A trainer that is killed goes back, and makes the steps since its checkpoint anew.
    in_model = {number for batch in {it[0]: it[2] for it in steps}.values() for number in batch}
    staleness = [it[1] for it in steps]
    allowed = 1 + sum(victim in ("trainer", "server") for victim in victims)
    print(f"{len(victims)} kills: {', '.join(victims) or 'none'}")
    print(
        f"staleness of the oldest rollout of a step: {np.mean(staleness):.1f} on average, "
        f"{max(staleness)} at most"
    )
    print(
        f"prompts: {len(in_model)} of {run.num_prompts} are in the model; trained on "
        f"{times.total() - len(times)} times again, one of them {max(times.values())} times in all "
        f"(allowed: {allowed})"
    )
    table = reverb.Client(run.address).status().tables["train"]
    others = {"failed", "stale", "full", "bytes", "deleted", "reset", "shrunk", "lost"}
    left = {"trained": table.samples} | {it: getattr(table.removed, it, 0) for it in sorted(others)}
    again = table.rollouts.num_again
    print(
        f"table: {table.inserts} inserts = {table.items} present + left {left}; {again} made again"
    )
    balances = table.inserts == table.items + sum(left.values())
    if run.on_stale != "keep" and max(staleness) > run.max_staleness:
        return False
    return balances and len(in_model) == run.num_prompts and max(times.values()) <= allowed


def main() -> int:
    from grpo_policy import Learner

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", choices=tuple(BUDGETS), default="full")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-staleness", type=int, default=2, help="in versions of the model")
    parser.add_argument(
        "--on-stale",
        choices=("again", "keep", "wait"),
        default="again",
        help="what becomes of prompts that would be staler",
    )
    parser.add_argument("--chaos", action="store_true", help="kill eight processes")
    given = parser.parse_args()
    num_prompts, goal = BUDGETS[given.budget]
    rng = random.Random(given.seed)
    victims = ["server", "server", "trainer", "trainer", "feeder", *rng.choices(list(ROLES), k=3)]
    rng.shuffle(victims)
    with socket.create_server(("localhost", 0)) as free:
        address = f"localhost:{free.getsockname()[1]}"
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as path:
        bound = given.max_staleness, given.on_stale
        run = Run("", address, pathlib.Path(path), num_prompts, *bound, given.seed)
        model = run.directory / "model", run.seed, run.num_prompts // BATCH
        before = exact_match(Learner(*model).policy)
        balances = supervise(run, victims if given.chaos else [])
        after = exact_match(Learner(*model).policy)
    passed = balances and before <= 0.1 and after >= goal
    print(f"greedy answers right: {before:.2f} before, {after:.2f} after (goal: {goal})")
    print(f"{'PASSED' if passed else 'FAILED'} after {time.monotonic() - start:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
