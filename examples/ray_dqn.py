# SPDX-License-Identifier: Apache-2.0
"""Learns CartPole on a Ray cluster, with a replay of four shards, one of which is killed.

    python examples/ray_dqn.py                  # a cluster of four nodes on this machine
    python examples/ray_dqn.py --address auto   # a running Ray cluster
    python examples/ray_dqn.py --budget quick   # less time, and an easier goal

The agent is that of cartpole_dqn.py; this program runs it on several machines. Ray starts the
servers and the actors, and restarts those that die. The data goes from process to process:

    4 actors ── n-step transitions ──▶ group "replay": 4 shards ── batches ──▶ learner
       ▲  └── episode returns ───▶ group "variables": 1 shard ── progress ──▶   │  │
       │                                     ▲  │        priorities ◀───────────┘  │
       └──────────── newest weights ◀────────┼──┘                                  │
                                             └─────────────────────────────────────┘

In the middle of the training the group is saved, and some seconds later its fullest shard is
killed. The learner continues with the other three; Ray restarts the fourth, which loads its
checkpoint.

The exit code is 0 only if the greedy policy reaches the goal at the end, and if the shard came back
with every item of its last checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

# The matrices are small: a second BLAS thread would only compete with an actor for a core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import cartpole_dqn as dqn
import gymnasium
import numpy as np
import ray
from progress import Progress, terminal_curve
from q_network import Parameters, q_values

import reverb
from reverb.adapters import ray as reverb_ray

NUM_NODES = 4
NUM_SHARDS = 4
NUM_ACTORS = 4
CPU_OF_A_SHARD = 0.1  # so that all fits on a small machine


@dataclasses.dataclass(frozen=True)
class Config(dqn.Config):
    """The settings that differ from the program with one server."""

    num_actors: int = NUM_ACTORS
    max_seconds: float = 80.0
    max_size: int = 400_000  # nothing is evicted, so that it shows what a dead shard has lost
    checkpoint_after_s: float = 12.0
    kill_after_s: float = 15.0


QUICK = dataclasses.replace(
    Config(),
    goal=dqn.QUICK.goal,
    good_enough=dqn.QUICK.good_enough,
    max_seconds=dqn.QUICK.max_seconds,
)


# ---- The groups ----------------------------------------------------------------------------------


def make_replay(config: Config) -> list[reverb.Table]:
    """Returns the table of the group "replay", with the settings of the whole group."""
    return [table for table in dqn.make_tables(config) if table.name == "transitions"]


def make_variables(config: Config) -> list[reverb.Table]:
    """Returns the small tables that must be in one place: the newest weights, and the returns."""
    return [table for table in dqn.make_tables(config) if table.name != "transitions"]


@contextlib.contextmanager
def ray_cluster(address: str | None) -> Iterator[None]:
    """Connects to a Ray cluster, or makes one of several nodes on this machine."""
    # The actors import the modules of this program.
    paths = [str(pathlib.Path(__file__).resolve().parent), *filter(None, sys.path)]
    code = {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}}
    if address is not None:
        ray.init(address, runtime_env=code)
        yield
        ray.shutdown()
        return
    from ray import cluster_utils

    # No sample goes through Ray's object store, so it is small.
    node = {"num_cpus": 4, "object_store_memory": 80 * 2**20}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=node)
    for _ in range(NUM_NODES - 1):
        cluster.add_node(**node)
    ray.init(cluster.address, runtime_env=code, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


# ---- An actor ------------------------------------------------------------------------------------


class Actor:
    """Plays and writes transitions. Runs in a process of its own, which Ray places."""

    def __init__(self, index: int, config: Config) -> None:
        """Remembers its settings; `run` plays."""
        self._index = index
        self._config = config
        self._stop = threading.Event()

    def run(self) -> int:
        """Plays until `stop` is called. Returns the number of steps."""
        config, stop = self._config, self._stop
        rng = np.random.default_rng([config.seed, self._index])
        replay, variables = reverb_ray.connect("replay"), reverb_ray.connect("variables")
        writer = replay.trajectory_writer(num_keep_alive_refs=config.n_step + 1)
        env = gymnasium.make("CartPole-v1")
        seed: int | None = int(rng.integers(2**31))
        num_steps = 0
        while not stop.is_set():
            observation, _ = env.reset(seed=seed)
            seed = None
            episode_return, done = 0.0, False
            while not done and not stop.is_set():
                if num_steps % config.weights_period_steps == 0:
                    parameters = dqn.newest_weights(variables)
                if rng.random() < dqn.exploration_rate(config, self._index, num_steps):
                    action = int(rng.integers(2))
                else:
                    action = int(q_values(parameters, observation[None])[0].argmax())
                next_observation, reward, terminated, truncated, _ = env.step(action)
                discount = 0.0 if terminated else config.discount
                scaled_reward = config.reward_scale * float(reward)
                dqn.write_step(writer, config, observation, action, scaled_reward, discount)
                dqn.patiently(stop, functools.partial(writer.flush, config.max_unconfirmed_items))
                observation = next_observation
                episode_return += float(reward)
                num_steps += 1
                done = terminated or truncated
            if done:
                dqn.pad_episode(writer, config, observation)
                dqn.patiently(stop, writer.end_episode)
                variables.insert(np.float32(episode_return), {"returns": 1.0})
        writer.close()
        return num_steps

    def stop(self) -> None:
        """Ends `run` soon."""
        self._stop.set()


# ---- The learner ---------------------------------------------------------------------------------


class Learner(dqn.Learner):
    """The learner of cartpole_dqn.py, whose weights go to another group than its batches."""

    def __init__(self, config: Config, replay: reverb.Client, variables: reverb.Client) -> None:
        """Starts with random weights and publishes them."""
        self._variables = variables
        super().__init__(config, replay)

    def _publish(self) -> None:
        self._variables.insert(self.parameters, {"weights": 1.0})


# ---- The kill ------------------------------------------------------------------------------------


class Saboteur:
    """Saves the group, kills a shard some seconds later, and watches it come back."""

    def __init__(self, config: Config, group: reverb_ray.Group, progress: Progress) -> None:
        """Starts the thread."""
        self._config = config
        self._group = group
        self._progress = progress
        self._stop = threading.Event()
        self.sizes: list[tuple[float, list[int]]] = []  # (seconds, items of each shard)
        self.saved_at = self.killed_at = self.back_at = float("nan")
        self.victim = 0  # the shard that is killed
        self.num_saved = self.num_before = self.num_missing = 0
        self.fault: Exception | None = None
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the shard is back, and nothing of its checkpoint is missing."""
        return self.back_at > 0 and self.num_missing == 0 and self.num_saved > 0

    def stop(self) -> None:
        """Ends the thread, when the shard is back; a training on a slow machine may end before."""
        self._has_ended.wait(120)
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._wait_until(self._config.checkpoint_after_s)
            shards = self._group.status().shards
            self.victim = max(shards, key=lambda it: shards[it].sizes["transitions"])
            self._group.checkpoint()
            self.saved_at = self._progress.seconds
            self._wait_until(self._config.kill_after_s)
            shard = self._group.status().shards[self.victim]
            self.num_before = shard.sizes["transitions"]
            os.kill(shard.pid, signal.SIGKILL)
            self.killed_at = self._progress.seconds
            while not self._stop.is_set() and not self._is_back(shard.num_starts):
                self._look()
            self.back_at = self._progress.seconds
            self._compare()
            self._has_ended.set()
            while not self._stop.is_set():
                self._look()
        except Exception as error:
            self.fault = error
            self._has_ended.set()

    def _wait_until(self, seconds: float) -> None:
        while self._progress.seconds < seconds and not self._stop.is_set():
            self._look()

    def _look(self) -> None:
        shards = self._group.status().shards
        sizes = [shard.sizes.get("transitions", 0) for shard in shards.values()]
        self.sizes.append((self._progress.seconds, sizes))
        self._stop.wait(0.1)

    def _is_back(self, num_starts: int) -> bool:
        shard = self._group.status().shards[self.victim]
        return shard.num_starts > num_starts and shard.state == "serving"

    def _compare(self) -> None:
        """Looks for the items of the checkpoint in the shard that is back."""
        shard = self._group.status().shards[self.victim]
        stored = reverb.checkpointers.read(shard.restored_from)
        saved = {sample.info.key for sample in stored.scan("transitions")}
        now = {sample.info.key for sample in reverb.Client(shard.address).scan("transitions")}
        self.num_saved, self.num_missing = len(saved), len(saved - now)

    def summary(self) -> str:
        """Returns what happened."""
        if self.fault is not None:
            return f"the kill did not go as planned: {type(self.fault).__name__}: {self.fault}"
        if not self.back_at > 0:
            return "the training ended before a shard was killed and back"
        return (
            f"shard {self.victim} was killed at {self.killed_at:.1f} s with {self.num_before} "
            f"items, and back {self.back_at - self.killed_at:.1f} s later\n"
            f"of the {self.num_saved} items of its checkpoint {self.num_missing} are missing; the "
            f"{self.num_before - self.num_saved} that came later are lost"
        )


# ---- Putting it together -------------------------------------------------------------------------


def save_picture(
    path: pathlib.Path, progress: Progress, saboteur: Saboteur, config: Config
) -> None:
    """Draws the returns over environment steps, and the items of each shard over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(16, 4))
    for pairs, style in (
        (progress.returns, {"marker": ".", "linestyle": "", "alpha": 0.2, "label": "episodes"}),
        (progress.evaluations, {"marker": "o", "label": "greedy evaluation"}),
    ):
        steps, values = np.array(pairs or [(0, 0.0)]).T
        # Steps that a dead shard had counted since its checkpoint are lost.
        left.plot(np.maximum.accumulate(steps), values, **style)
    left.axhline(config.goal, linestyle="--", color="gray", label=f"goal {config.goal:g}")
    left.set(xlabel="environment steps", ylabel="return", title="DQN on CartPole-v1, on Ray")
    left.legend()
    seconds = [it for it, _ in saboteur.sizes]
    for index in range(NUM_SHARDS):
        middle.plot(seconds, [sizes[index] for _, sizes in saboteur.sizes], label=f"shard {index}")
    middle.set(xlabel="seconds", ylabel="items", title="items of each shard")
    pairs = list(zip(progress.counts[:-1], progress.counts[1:], strict=True))
    rates = [later.rate_since(earlier, "learner_steps") for earlier, later in pairs]
    right.plot([later.seconds for _, later in pairs], rates, label="learner steps/s")
    right.set(xlabel="seconds", title="the learner continues")
    for axes in (middle, right):
        axes.axvline(saboteur.saved_at, linestyle=":", color="gray", label="checkpoint")
        axes.axvline(saboteur.killed_at, color="red", label=f"shard {saboteur.victim} killed")
        axes.axvline(saboteur.back_at, color="green", label="back")
        axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def train(
    config: Config,
    learner: Learner,
    progress: Progress,
    saboteur: Saboteur,
    variables: reverb.Client,
) -> Parameters:
    """Trains until the policy is good enough and the shard is back. Returns the best weights."""
    best, best_return, good_in_a_row = learner.parameters, -1.0, 0
    while not progress.budget_is_spent:
        learner.step()
        if progress.update(learner.num_steps):
            dqn.read_returns(variables, progress)
        if learner.num_steps % config.evaluate_period == 0:
            value = dqn.evaluate(learner.parameters, num_episodes=10, seed=config.seed + 10_000)
            progress.evaluated(value)
            if value >= best_return:
                best, best_return = [p.copy() for p in learner.parameters], value
            good_in_a_row = good_in_a_row + 1 if value >= config.good_enough else 0
            if good_in_a_row >= 2 and saboteur.is_done and progress.seconds > saboteur.back_at + 8:
                break
    return best


def run(config: Config, output: pathlib.Path, checkpoints: str) -> bool:
    """Trains on the Ray cluster of this process. Returns whether all went well."""
    group = reverb_ray.start(
        functools.partial(make_replay, config),
        num_shards=NUM_SHARDS,
        name="replay",
        placement="spread",
        checkpoint_directory=checkpoints,
        resources_per_shard={"num_cpus": CPU_OF_A_SHARD},
    )
    reverb_ray.start(
        functools.partial(make_variables, config),
        num_shards=1,
        name="variables",
        resources_per_shard={"num_cpus": CPU_OF_A_SHARD},
    )
    nodes = {shard.node_id[:6] for shard in group.status().shards.values()}
    print(f"{NUM_SHARDS} shards on {len(nodes)} nodes, {NUM_ACTORS} actors", flush=True)
    replay, variables = group.client(), reverb_ray.connect("variables")
    learner = Learner(config, replay, variables)
    actor_class = ray.remote(num_cpus=0.5, max_concurrency=2)(Actor)
    actors = [
        actor_class.options(scheduling_strategy="SPREAD").remote(index, config)
        for index in range(NUM_ACTORS)
    ]
    runs = [actor.run.remote() for actor in actors]
    progress = Progress(
        replay, "transitions", max_env_steps=config.max_inserts, max_seconds=config.max_seconds
    )
    saboteur = Saboteur(config, group, progress)
    before = dqn.evaluate(learner.parameters, num_episodes=20, seed=config.seed + 30_000)
    best = train(config, learner, progress, saboteur, variables)
    progress.finish(learner.num_steps)
    saboteur.stop()
    for actor in actors:
        actor.stop.remote()
    ray.wait(runs, num_returns=len(runs), timeout=10)

    picture = output / "ray_learning_curve.png"
    save_picture(picture, progress, saboteur, config)
    final = dqn.evaluate(best, num_episodes=20, seed=config.seed + 20_000)
    print(terminal_curve(progress, config.goal))
    print(progress.summary())
    print(saboteur.summary())
    print(f"the learning curve is in {picture}")
    print(f"mean return over 20 greedy episodes: {before:.1f} before, {final:.1f} after")
    passed = final >= config.goal and saboteur.is_done
    print(
        f"{'PASSED' if passed else 'FAILED'}: the goal is {config.goal:g}, and that nothing is "
        "lost beyond the last checkpoint"
    )
    group.stop()
    reverb_ray.get_group("variables").stop()
    return passed


def main() -> int:
    """Runs the whole program. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", choices=("full", "quick"), default="full")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--address", help="of a Ray cluster; default: a new one on this machine")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("demo_output"))
    parser.add_argument("--checkpoints", help="a directory that all nodes share")
    arguments = parser.parse_args()
    config = Config() if arguments.budget == "full" else QUICK
    config = dataclasses.replace(config, seed=arguments.seed)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, ray_cluster(arguments.address):
        passed = run(config, arguments.output, arguments.checkpoints or directory)
    print(f"everything took {time.monotonic() - begin:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
