# SPDX-License-Identifier: Apache-2.0
"""What a person sees of the training: a line now and then, and a picture at the end."""

from __future__ import annotations

import pathlib
import time

import numpy as np

import reverb


class Progress:
    """Asks the server how things go, prints it, and remembers it for the picture."""

    def __init__(self, client: reverb.Client) -> None:
        """Starts the clock."""
        self._client = client
        self._start = self._last_time = time.monotonic()
        self._last_inserts = self._last_samples = 0
        self.inserts = 0
        self.returns: list[tuple[int, float]] = []  # (transitions so far, return)
        self.evaluations: list[tuple[int, float]] = []
        self.rates: list[tuple[float, float, float]] = []  # (seconds, inserts/s, samples/s)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def report(self, learner_steps: int) -> None:
        """Prints one line."""
        info = self._client.server_info()
        now = time.monotonic()
        limiter = info["transitions"].rate_limiter_info
        inserts, samples = limiter.insert_stats.completed, limiter.sample_stats.completed
        elapsed = now - self._last_time
        inserts_per_s = (inserts - self._last_inserts) / elapsed
        samples_per_s = (samples - self._last_samples) / elapsed
        self._last_time, self._last_inserts, self._last_samples = now, inserts, samples
        self.inserts = inserts
        self.rates.append((self.seconds, inserts_per_s, samples_per_s))
        self._read_returns(info["returns"].current_size)
        recent = [value for _, value in self.returns[-20:]]
        mean = f"{np.mean(recent):6.1f}" if recent else "     -"
        sizes = " ".join(f"{name}={table.current_size}" for name, table in sorted(info.items()))
        print(
            f"{self.seconds:5.1f} s  return of the last 20 episodes {mean}  "
            f"inserts {inserts:6d} ({inserts_per_s:6.0f}/s)  "
            f"samples {samples:8d} ({samples_per_s:7.0f}/s)  "
            f"learner steps {learner_steps:5d}  sizes {sizes}",
            flush=True,
        )

    def _read_returns(self, count: int) -> None:
        if count == 0:
            return
        for sample in self._client.sample("returns", count, emit_timesteps=False):
            self.returns.append((self.inserts, float(sample.data[0][0])))


def save_picture(path: pathlib.Path, progress: Progress, goal: float) -> None:
    """Draws returns over environment steps, and the rates over time."""
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
    seconds, inserts, samples = np.array(progress.rates or [(0.0, 0.0, 0.0)]).T
    right.plot(seconds, inserts, label="inserts/s")
    right.plot(seconds, samples, label="samples/s")
    right.set(xlabel="seconds", title="the table of transitions", yscale="symlog")
    right.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
