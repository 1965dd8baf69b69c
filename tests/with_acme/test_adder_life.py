# SPDX-License-Identifier: Apache-2.0
"""The life of all adders: wrong use, resets, tables, lost servers, the end."""

import contextlib
import gc
import logging
import pathlib
import subprocess
import sys

import dm_env
import numpy as np
import pytest
from dm_env import specs

import reverb
from reverb import testing
from reverb.adapters.acme import adders
from reverb.adapters.acme.adders import base
from reverb.adapters.acme.specs import EnvironmentSpec
from reverb.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    ReverbError,
    SignatureMismatchError,
    TableNotFoundError,
)

FIRST = dm_env.restart(np.float32(0))
MID = dm_env.transition(np.float32(1), np.float32(1), np.float32(1))
LAST = dm_env.termination(np.float32(1), np.float32(2))._replace(discount=np.float32(0))


class PairAdder(adders.ReverbAdder):
    """An adder as programs write their own: the observations of two neighbouring steps."""

    def __init__(self, client, **options):
        super().__init__(client, max_sequence_length=3, max_in_flight_items=1, **options)

    def _write(self):
        if self._writer.episode_steps >= 2:
            self._create(slice(-3, -1))

    def _write_last(self):
        self._create(slice(-2, None))

    def _create(self, rows):
        history = self._writer.history
        pair = {name: history[name][rows] for name in ("observation", "action")}
        self._writer.create_item("priority_table", 1.0, pair)


def structured(client, **options):
    spec = specs.Array((), np.float32)
    step_spec = adders.create_step_spec(EnvironmentSpec(spec, spec, spec, spec))
    configs = adders.create_n_step_transition_config(step_spec, 2)
    return adders.StructuredAdder(client, 5, configs, step_spec, **options)


ADDERS = {
    "transition": lambda client, **options: adders.NStepTransitionAdder(client, 2, 0.5, **options),
    "sequence": lambda client, **options: adders.SequenceAdder(client, 2, 1, **options),
    "episode": lambda client, **options: adders.EpisodeAdder(client, 5, **options),
    "own": PairAdder,
    "structured": structured,
}
BY_FUNCTIONS = [name for name in ADDERS if name not in ("own", "structured")]

every_adder = pytest.mark.parametrize("make", ADDERS.values(), ids=ADDERS)
adder_with_tables = pytest.mark.parametrize(
    "make", [ADDERS[name] for name in BY_FUNCTIONS], ids=BY_FUNCTIONS
)


def test_an_adder_of_ones_own(client, play, episode, values):
    play(PairAdder(client), episode(3))
    # Columns of a dict come in the order of their names: actions, observations.
    assert values(3) == [[[0, 1], [0, 1]], [[1, 2], [1, 2]], [[2, 0], [2, 3]]]


def test_an_adder_that_does_not_say_what_to_write(client):
    adder = adders.ReverbAdder(client, 2, 1)
    adder.add_first(FIRST)
    with pytest.raises(NotImplementedError, match="ReverbAdder must implement _write"):
        adder.add(np.float32(0), MID)


@every_adder
def test_add_before_add_first(client, error_says, make):
    error_says(
        lambda: make(client).add(np.float32(0), MID),
        InvalidArgumentError,
        "adder.add_first must be called before adder.add: no episode is in progress",
    )


@every_adder
def test_add_after_the_last_step(client, make):
    adder = make(client)
    adder.add_first(FIRST)
    adder.add(np.float32(0), LAST)
    with pytest.raises(ValueError, match="add_first must be called before"):
        adder.add(np.float32(0), LAST)


@every_adder
def test_add_first_with_another_step(client, make):
    with pytest.raises(ValueError, match=r"needs an initial timestep, .* got step_type <StepType"):
        make(client).add_first(MID)


@every_adder
def test_add_first_twice(client, make):
    adder = make(client)
    adder.add_first(FIRST)
    with pytest.raises(InvalidArgumentError, match="while an episode is in progress"):
        adder.add_first(FIRST)


@every_adder
def test_reset_within_an_episode_leaves_nothing_behind(client, play, episode, items, make):
    adder = make(client)
    play(adder, episode(3, observation=np.float32))
    expected = len(items(client.server_info()["priority_table"].current_size))
    assert expected
    # Given up before there is an item.
    adder.add_first(FIRST)
    adder.reset()
    play(adder, episode(3))
    items(expected)


@every_adder
def test_reset_without_an_episode(client, play, episode, make):
    adder = make(client)
    adder.reset()
    play(adder, episode(1))
    adder.reset(timeout_ms=10_000)
    adder.reset()
    play(adder, episode(1))
    assert client.server_info()["priority_table"].current_size


@adder_with_tables
def test_several_tables_with_priorities_of_their_own(serve_tables, play, episode, make):
    client = serve_tables(testing.table("a"), testing.table("b"), testing.table("c"))
    adder = make(client, priority_fns={"a": None, "b": lambda item: 2.0})
    adder.add_priority_table("c", lambda item: 3)
    play(adder, episode(1))
    for table, priority in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        for sample in client.sample(table, 1, emit_timesteps=False):
            assert sample.info.priority == priority


@adder_with_tables
def test_a_table_twice(client, error_says, make):
    adder = make(client, priority_fns={"a": None, "b": None})
    error_says(
        lambda: adder.add_priority_table("b", None),
        InvalidArgumentError,
        "A priority function already exists for b. Existing tables: a, b.",
    )


@adder_with_tables
def test_no_priority_functions_mean_the_default_table(client, play, episode, make):
    play(make(client, priority_fns={}), episode(1))
    assert client.server_info()["priority_table"].current_size


@adder_with_tables
def test_a_table_that_does_not_exist(client, play, episode, make):
    with pytest.raises(TableNotFoundError, match="Its tables are: priority_table"):
        play(make(client, priority_fns={"other": None}), episode(2))


def test_items_are_compared_with_the_signature(serve_tables, play, episode):
    spec = specs.Array((), np.float32)
    environment_spec = EnvironmentSpec(specs.Array((7,), np.float32), spec, spec, spec)
    signature = adders.SequenceAdder.signature(environment_spec)
    client = serve_tables(testing.table("priority_table", signature=signature))
    with pytest.raises(SignatureMismatchError, match="observation"):
        play(adders.SequenceAdder(client, 2, 1), episode(2))


def test_a_writer_is_kept_for_a_minute(client, play, episode, monkeypatch):
    adder = adders.SequenceAdder(client, 2, 1)
    play(adder, episode(1))
    writer = adder._writer
    play(adder, episode(1))
    assert adder._writer is writer
    monkeypatch.setattr(base, "_MAX_WRITER_AGE_S", 0.0)
    play(adder, episode(1))
    assert adder._writer is not writer


def test_what_is_pending_is_sent_when_an_adder_is_dropped(client, items):
    # A sequence that runs on into the next episode is flushed by nobody else.
    adder = adders.SequenceAdder(
        client,
        1,
        1,
        max_in_flight_items=None,
        end_of_episode_behavior=adders.EndBehavior.CONTINUE,
    )
    adder.add_first(FIRST)
    for _ in range(50):
        adder.add(np.float32(0), MID)
    del adder
    gc.collect()
    items(50)


def test_close_sends_what_is_pending(client, items):
    adder = adders.SequenceAdder(client, 1, 1, max_in_flight_items=None)
    adder.add_first(FIRST)
    for _ in range(50):
        adder.add(np.float32(0), MID)
    adder.close()
    items(50)
    adder.close()


@every_adder
def test_a_closed_adder_may_begin_anew(client, play, episode, items, make):
    adder = make(client)
    play(adder, episode(3))
    expected = len(items(client.server_info()["priority_table"].current_size))
    adder.add_first(FIRST)
    adder.add(np.int32(0), MID)
    adder.close()
    items(client.server_info()["priority_table"].current_size)
    play(adder, episode(3))
    items(expected)


def test_a_closed_adder_continues_no_episode(client, play, episode, items):
    behavior = adders.EndBehavior.CONTINUE
    adder = adders.SequenceAdder(client, 3, 2, end_of_episode_behavior=behavior)
    play(adder, episode(1))
    adder.close()
    play(adder, episode(2))
    adder.close()
    assert items(1)[0][0].tolist() == [0, 1, 2]


PROGRAM = """
import dm_env, numpy as np, sys, reverb
from reverb.adapters.acme import adders

adder = adders.SequenceAdder(reverb.Client(sys.argv[1]), 1, 1, max_in_flight_items=None)
adder.add_first(dm_env.restart(np.float32(0)))
for _ in range(50):
    adder.add(np.float32(0), dm_env.transition(np.float32(1), np.float32(1)))
"""


@pytest.mark.parametrize("ending", ["", "raise KeyError", "adder.self = adder"])
def test_what_is_pending_is_sent_at_the_exit_of_a_program(client, items, ending):
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM + ending, client.server_address],
        cwd=pathlib.Path(reverb.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "Exception ignored" not in result.stderr
    items(50)


def _full_queue():
    return reverb.Table.queue("priority_table", max_size=1)


def test_reset_behind_a_full_queue_has_a_timeout(serve_tables):
    client = serve_tables(_full_queue())
    adder = adders.NStepTransitionAdder(client, 1, 1.0)
    adder.add_first(FIRST)
    for _ in range(3):
        adder.add(np.float32(0), MID)
    with pytest.raises(DeadlineExceededError):
        adder.reset(timeout_ms=50)
    adder.add(np.float32(0), MID)  # The episode goes on.
    assert len(list(client.sample("priority_table", 4, emit_timesteps=False))) == 4
    adder.reset(timeout_ms=10_000)


def test_a_timeout_of_0_does_not_wait(serve_tables):
    client = serve_tables(_full_queue())
    for give_up in (lambda adder: adder.reset(timeout_ms=0), lambda adder: adder.close(0)):
        adder = adders.NStepTransitionAdder(client, 1, 1.0)
        adder.add_first(FIRST)
        for _ in range(3):
            adder.add(np.float32(0), MID)
        with pytest.raises(DeadlineExceededError):
            give_up(adder)
        # One that is not closed waits when it is deleted.
        with contextlib.suppress(DeadlineExceededError):
            adder.close(0)


def test_add_waits_while_too_many_items_are_in_flight(serve_tables, background):
    client = serve_tables(_full_queue())
    adder = adders.NStepTransitionAdder(client, 1, 1.0, max_in_flight_items=2)
    adder.add_first(FIRST)
    for _ in range(3):
        adder.add(np.float32(0), MID)
    waiting = background(adder.add, np.float32(0), MID)
    assert waiting.running
    for _ in client.sample("priority_table", 4, emit_timesteps=False):
        pass
    waiting.result()


@adder_with_tables
def test_a_server_that_goes_away(make, play, episode):
    server = reverb.Server([testing.table("priority_table")], host="127.0.0.1")
    port = server.port
    client = reverb.Client(f"127.0.0.1:{port}", connect_timeout_s=0.2)
    adder = make(client)
    play(adder, episode(2))
    server.stop()
    with pytest.raises(ReverbError, match=str(port)):
        play(adder, episode(2), episode(2))
    with contextlib.suppress(ReverbError):  # It may say once more that items were lost.
        adder.reset()
    server = reverb.Server([testing.table("priority_table")], port=port, host="127.0.0.1")
    play(adder, episode(2))
    observation = next(client.sample("priority_table", 1, emit_timesteps=False)).data[0]
    np.testing.assert_array_equal(np.ravel(observation)[0], 0)
    server.stop()


def test_an_adder_dropped_without_its_server_says_so(caplog):
    server = reverb.Server([_full_queue()], host="127.0.0.1")
    client = reverb.Client(f"127.0.0.1:{server.port}", connect_timeout_s=0.2)
    adder = adders.SequenceAdder(client, 1, 1, max_in_flight_items=None)
    adder.add_first(FIRST)
    for _ in range(5):
        adder.add(np.float32(0), MID)
    server.stop()
    with caplog.at_level(logging.WARNING, logger="reverb"):
        del adder
        gc.collect()
    assert "The last items of a dropped adder may be lost" in caplog.text


@pytest.mark.parametrize("option", ["max_sequence_length", "max_in_flight_items"])
def test_bad_numbers(client, option):
    arguments = {"max_sequence_length": 1, "max_in_flight_items": 1} | {option: -1}
    with pytest.raises(InvalidArgumentError, match=f"{option} must be at least"):
        adders.ReverbAdder(client, **arguments)
