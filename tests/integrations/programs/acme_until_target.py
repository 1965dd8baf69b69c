# SPDX-License-Identifier: Apache-2.0
"""The common part of Acme's pole-balancing programs: options, and learning until the target."""

import argparse
import json
import sys
import time

import acme
import numpy as np
from acme.utils import loggers


class Rows(loggers.Logger):
    """Keeps what is logged."""

    def __init__(self):
        self.rows = []

    def write(self, values):
        self.rows.append(dict(values))

    def close(self):
        pass


def parsed_arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--episodes", type=int, default=400, help="at most")
    parser.add_argument("--target", type=float, default=150.0)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def play_until_target(env, agent, arguments):
    """Plays and learns, prints one line of JSON, and ends the program."""
    log = Rows()
    loop = acme.EnvironmentLoop(env, agent, logger=log, should_update=True)
    started = time.monotonic()
    for episode in range(1, arguments.episodes + 1):
        loop.run(num_episodes=1)
        if episode >= 20 and mean_return(log.rows[-20:]) >= arguments.target:
            break
        if episode % 25 == 0:
            print(f"episode {episode}: mean of 25 returns {mean_return(log.rows[-25:]):.1f}")
    seconds = time.monotonic() - started
    final = mean_return(log.rows[-20:])
    steps = sum(float(row["episode_return"]) for row in log.rows)
    told = {
        "episodes": len(log.rows),
        "return": f"{mean_return(log.rows[:20]):.0f} -> {final:.0f}",
        "steps/s": round(steps / seconds),
    }
    print(json.dumps(told))
    sys.exit(final < arguments.target)


def mean_return(rows):
    return float(np.mean([float(row["episode_return"]) for row in rows]))
