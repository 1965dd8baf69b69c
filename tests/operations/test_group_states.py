# SPDX-License-Identifier: Apache-2.0
"""Staged stalls of a group: each state is named although three of four shards are not in it."""

import contextlib
import re

import pytest

import reverb
from reverb import command
from support.stalls import PROMPT_S, SPECIAL_STALLS, STALLS, Stage
from support.waiting import DEADLINE_S, wait_until

STATES = STALLS | SPECIAL_STALLS
# `shards/status/diagnosis/tests.rs` has the rule for all states; some need ten seconds here.
FAST = ("ahead", "never", "full", "paused", "draining", "slow readers")
# Items of each shard at the beginning. The third one is where something happens.
SIZES = (1, 2, 3, 4)
CONCERNED = 2


class Stages:
    """Four servers with unequal tables, and a client of them as a group."""

    def __init__(self, stack, options):
        self.each = [stack.enter_context(Stage(**options)) for _ in SIZES]
        for stage, size in zip(self.each, SIZES, strict=True):
            stage.insert(size)
        places = [f"127.1:{stage.server.port}" for stage in self.each]
        self.address = "shards:///" + ",".join(places)
        self.client = reverb.Client(self.address, connect_timeout_s=20)

    def diagnosis(self):
        return self.client.diagnose("replay")


@pytest.mark.parametrize(
    "state", [pytest.param(it, marks=[pytest.mark.slow] * (it not in FAST)) for it in STATES]
)
def test_a_state_of_one_shard_is_that_of_the_group(state, capsys):
    stage_it, options, _ = STATES[state]
    with contextlib.ExitStack() as stack:
        stages = Stages(stack, options)
        stages.diagnosis()  # From now on there are rates.
        stage_it(stages.each[CONCERNED])
        wait_until(lambda: stages.diagnosis().state == state, 10 + 2 * PROMPT_S)
        is_of_all = state in ("idle", "flowing", "never")
        named = f"Shard {CONCERNED} of 4: "
        wait_until(lambda: stages.diagnosis().sentence.startswith(named) != is_of_all)
        command.main(["why", stages.address])
        name, told, *_ = re.split("  +", capsys.readouterr().out.strip())
        assert (name, told) == ("replay", state) or state in ("ahead", "flowing")


def test_rates_are_those_of_all_shards():
    with contextlib.ExitStack() as stack:
        stages = Stages(stack, {})
        stages.diagnosis()
        # A shard without requests is idle after ten seconds; the group is not.
        idle = stages.each[0]
        wait_until(lambda: idle.state() == "idle", DEADLINE_S)
        for stage in stages.each[1:]:
            stage.insert_all_the_time()

        def told():
            diagnosis = stages.diagnosis()
            return diagnosis.state == "flowing" and "inserts/s" in diagnosis.sentence

        wait_until(told)
        assert idle.state() == "idle"
        wait_until(lambda: idle.client.status().tables["replay"].rates is not None)
        status = stages.client.status()
        parts = [shard.status.tables["replay"].rates.inserts_per_s for shard in status.shards]
        table = status.tables["replay"]
        assert table.rates.inserts_per_s == pytest.approx(sum(parts))
        (number,) = re.findall(r"^([0-9,.]+) inserts/s", table.diagnosis.sentence)
        assert float(number.replace(",", "")) == pytest.approx(sum(parts), rel=0.06, abs=0.6)
