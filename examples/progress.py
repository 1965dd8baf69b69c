# SPDX-License-Identifier: Apache-2.0
"""The progress of a training: a bar with figures, and at the end a curve and a picture."""

from __future__ import annotations

import pathlib
import shutil
import sys
import time
from typing import NamedTuple

import numpy as np

import reverb

BAR_CELLS = 20
# Size of the curve in the terminal, in characters.
CURVE_COLUMNS = 64
CURVE_ROWS = 12


class Counts(NamedTuple):
    """Counters at one moment."""

    seconds: float
    env_steps: int
    learner_steps: int
    inserts: int  # items inserted
    samples: int  # items sampled
    size: int  # items in the table

    def rate_since(self, earlier: Counts, field: str) -> float:
        """Returns the rate of a field since an earlier moment, per second."""
        elapsed = self.seconds - earlier.seconds
        return (getattr(self, field) - getattr(earlier, field)) / elapsed if elapsed else 0.0


class Progress:
    """Polls the server's counters, prints them, and records them for the picture."""

    def __init__(
        self,
        client: reverb.Client,
        table: str,
        *,
        max_env_steps: int,
        max_seconds: float,
        look_period_s: float = 0.25,
        print_period_s: float = 2.0,
    ) -> None:
        """Starts the clock. The bar is full when either budget is spent."""
        self._client = client
        self._table = table
        self._max_env_steps = max_env_steps
        self._max_seconds = max_seconds
        self._look_period_s = look_period_s
        # A terminal shows one line that is updated; a file gets a new line from time to time.
        self._live = sys.stdout.isatty()
        self._print_period_s = look_period_s if self._live else print_period_s
        self._start = time.monotonic()
        self._last_printed = Counts(0.0, 0, 0, 0, 0, 0)
        self.counts = [self._last_printed]
        self.returns: list[tuple[int, float]] = []  # (environment steps so far, return)
        self.evaluations: list[tuple[int, float]] = []

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def env_steps(self) -> int:
        """Environment steps at the last poll."""
        return self.counts[-1].env_steps

    @property
    def budget_is_spent(self) -> bool:
        """Whether the training must end."""
        return self.seconds >= self._max_seconds or self.env_steps >= self._max_env_steps

    def update(self, learner_steps: int, env_steps: int | None = None) -> bool:
        """Polls the server and prints a line if the interval has passed. Call it often.

        Args:
          learner_steps: Number of batches that were learned from so far.
          env_steps: Number of steps that were played so far; default: one per inserted item.

        Returns:
          Whether it polled.
        """
        if self.seconds - self.counts[-1].seconds < self._look_period_s:
            return False
        self._look(learner_steps, env_steps)
        if self.seconds - self._last_printed.seconds >= self._print_period_s:
            self._print()
        return True

    def finish(self, learner_steps: int, env_steps: int | None = None) -> None:
        """Polls for the last time, while the server still runs. Arguments as in `update`."""
        self._look(learner_steps, env_steps)
        self._print()
        if self._live:
            print()

    def episode_ended(self, episode_return: float, env_steps: int | None = None) -> None:
        """Records the return of a training episode; by default it ended at the last poll."""
        steps = self.env_steps if env_steps is None else env_steps
        self.returns.append((steps, episode_return))

    def evaluated(self, mean_return: float) -> None:
        """Records the mean return of the greedy policy."""
        self.evaluations.append((self.env_steps, mean_return))
        line = f"{self.seconds:5.1f} s  greedy policy: mean return {mean_return:.1f}"
        print(f"\r\x1b[K{line}" if self._live else line, flush=True)

    def _look(self, learner_steps: int, env_steps: int | None) -> None:
        info = self._client.server_info()[self._table]
        inserts = info.rate_limiter_info.insert_stats.completed
        self.counts.append(
            Counts(
                self.seconds,
                inserts if env_steps is None else env_steps,
                learner_steps,
                inserts,
                info.rate_limiter_info.sample_stats.completed,
                info.current_size,
            )
        )

    def _print(self) -> None:
        now, before = self.counts[-1], self._last_printed
        self._last_printed = now
        recent = [value for _, value in self.returns[-20:]]
        mean = f"{np.mean(recent):.0f}" if recent else "-"
        spent = max(now.seconds / self._max_seconds, now.env_steps / self._max_env_steps)
        bar = "#" * int(BAR_CELLS * min(1.0, spent))
        line = (
            f"{now.seconds:5.1f} s  budget [{bar:.<{BAR_CELLS}}]  return {mean:>3}  "
            f"env steps {now.env_steps:6d} ({now.rate_since(before, 'env_steps'):4.0f}/s)  "
            f"learner steps {now.learner_steps:5d} "
            f"({now.rate_since(before, 'learner_steps'):3.0f}/s)  items {now.size}"
        )
        if self._live:
            # A line that wraps could not be overwritten.
            columns = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{line[:columns]}", end="", flush=True)
        else:
            print(line, flush=True)

    def summary(self) -> str:
        """Returns the figures of the whole training."""
        start, end = self.counts[0], self.counts[-1]
        return (
            f"trained for {end.seconds:.1f} s: "
            f"{end.env_steps} env steps ({end.rate_since(start, 'env_steps'):.0f}/s), "
            f"{end.learner_steps} learner steps "
            f"({end.rate_since(start, 'learner_steps'):.0f}/s)\n"
            f"table {self._table!r}: {end.size} items at the end, {end.inserts} inserted, "
            f"{end.samples} sampled"
        )


def terminal_curve(progress: Progress, goal: float) -> str:
    """Returns a plot in characters: `o` evaluations, `.` episodes of the training, `-` the goal."""
    steps_at_end = max(1, progress.env_steps)
    top = max([goal, *(value for _, value in progress.returns + progress.evaluations)])
    canvas = [[" "] * CURVE_COLUMNS for _ in range(CURVE_ROWS)]

    def place(env_steps: int, value: float, mark: str) -> None:
        column = round((CURVE_COLUMNS - 1) * env_steps / steps_at_end)
        canvas[CURVE_ROWS - 1 - round((CURVE_ROWS - 1) * value / top)][column] = mark

    goal_row = canvas[CURVE_ROWS - 1 - round((CURVE_ROWS - 1) * goal / top)]
    goal_row[::2] = "-" * len(goal_row[::2])
    for env_steps, value in progress.returns:
        place(env_steps, value, ".")
    for env_steps, value in progress.evaluations:
        place(env_steps, value, "o")
    labels = [f"{top:.0f}", *[""] * (CURVE_ROWS - 2), "0"]
    lines = [f"{label:>5} |{''.join(row)}" for label, row in zip(labels, canvas, strict=True)]
    axis = f"{'':5} +{'-' * CURVE_COLUMNS}"
    caption = f"{steps_at_end} environment steps"
    key = "return: o greedy evaluation, . episode of the training, - goal"
    return "\n".join([key, *lines, axis, f"{'':6}0{caption:>{CURVE_COLUMNS}}"])


def save_picture(path: pathlib.Path, progress: Progress, goal: float, title: str) -> None:
    """Draws returns over environment steps, and the rates over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    steps, values = np.array(progress.returns or [(0, 0.0)]).T
    left.plot(steps, values, ".", alpha=0.2, label="episodes of the training")
    left.plot(*np.array(progress.evaluations or [(0, 0.0)]).T, "o-", label="greedy evaluation")
    left.axhline(goal, linestyle="--", color="gray", label=f"goal {goal:g}")
    left.set(xlabel="environment steps", ylabel="return", title=title)
    left.legend()
    pairs = list(zip(progress.counts[:-1], progress.counts[1:], strict=True))
    seconds = [later.seconds for _, later in pairs]
    for field in ("inserts", "samples"):
        rates = [later.rate_since(earlier, field) for earlier, later in pairs]
        right.plot(seconds, rates, label=f"{field}/s")
    right.set(xlabel="seconds", title="items through the table", yscale="symlog")
    right.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
