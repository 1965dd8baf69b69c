# SPDX-License-Identifier: Apache-2.0
"""What a person sees of the training: a line now and then, and a picture at the end."""

from __future__ import annotations

import pathlib
import time
from typing import NamedTuple

import numpy as np

import reverb


class Counts(NamedTuple):
    """What the table of transitions has seen up to a moment."""

    seconds: float
    inserts: int
    samples: int

    def rates_since(self, earlier: Counts) -> tuple[float, float]:
        """Returns inserts and samples a second in between."""
        elapsed = self.seconds - earlier.seconds
        return (self.inserts - earlier.inserts) / elapsed, (
            self.samples - earlier.samples
        ) / elapsed


class Progress:
    """Asks the server how things go, prints it, and remembers it for the picture."""

    def __init__(self, client: reverb.Client, look_period_s: float, print_period_s: float) -> None:
        """Starts the clock."""
        self._client = client
        self._look_period_s = look_period_s
        self._print_period_s = print_period_s
        self._start = time.monotonic()
        self._last_printed = Counts(0.0, 0, 0)
        self.counts = [self._last_printed]
        self.returns: list[tuple[int, float]] = []  # (transitions so far, return)
        self.evaluations: list[tuple[int, float]] = []

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def inserts(self) -> int:
        """Transitions that were inserted, at the last look."""
        return self.counts[-1].inserts

    def update(self, learner_steps: int) -> None:
        """Looks, and prints a line, if it is time to. Call it often."""
        if self.seconds - self.counts[-1].seconds < self._look_period_s:
            return
        info = self._client.server_info()
        limiter = info["transitions"].rate_limiter_info
        self.counts.append(
            Counts(self.seconds, limiter.insert_stats.completed, limiter.sample_stats.completed)
        )
        self._read_returns(info["returns"].current_size)
        if self.seconds - self._last_printed.seconds >= self._print_period_s:
            self._print(info, learner_steps)

    def evaluated(self, mean_return: float) -> None:
        """Notes how the greedy policy does."""
        self.evaluations.append((self.inserts, mean_return))
        print(f"{self.seconds:5.1f} s  greedy policy: mean return {mean_return:.1f}", flush=True)

    def _read_returns(self, count: int) -> None:
        if count == 0:
            return
        for sample in self._client.sample("returns", count, emit_timesteps=False):
            self.returns.append((self.inserts, float(sample.data[0][0])))

    def _print(self, info: dict[str, reverb.reverb_types.TableInfo], learner_steps: int) -> None:
        now = self.counts[-1]
        inserts_per_s, samples_per_s = now.rates_since(self._last_printed)
        self._last_printed = now
        recent = [value for _, value in self.returns[-20:]]
        mean = f"{np.mean(recent):6.1f}" if recent else "     -"
        sizes = " ".join(f"{name}={table.current_size}" for name, table in sorted(info.items()))
        print(
            f"{now.seconds:5.1f} s  return of the last 20 episodes {mean}  "
            f"inserts {now.inserts:6d} ({inserts_per_s:6.0f}/s)  "
            f"samples {now.samples:8d} ({samples_per_s:7.0f}/s)  "
            f"learner steps {learner_steps:5d}  sizes {sizes}",
            flush=True,
        )


def save_picture(path: pathlib.Path, progress: Progress, goal: float) -> None:
    """Draws returns over transitions, and the rates over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    steps, values = np.array(progress.returns or [(0, 0.0)]).T
    left.plot(steps, values, ".", alpha=0.2, label="episodes of the actors")
    left.plot(*np.array(progress.evaluations or [(0, 0.0)]).T, "o-", label="greedy evaluation")
    left.axhline(goal, linestyle="--", color="gray", label=f"goal {goal:g}")
    left.set(xlabel="transitions inserted", ylabel="return", title="CartPole-v1")
    left.legend()
    pairs = list(zip(progress.counts[:-1], progress.counts[1:], strict=True))
    seconds = [later.seconds for _, later in pairs]
    rates = np.array([later.rates_since(earlier) for earlier, later in pairs]).reshape(-1, 2)
    right.plot(seconds, rates[:, 0], label="inserts/s")
    right.plot(seconds, rates[:, 1], label="samples/s")
    right.set(xlabel="seconds", title="the table of transitions", yscale="symlog")
    right.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
