# SPDX-License-Identifier: Apache-2.0
"""Tables for adders, and what an agent in one process needs."""

import sys

import numpy as np
import pytest
from dm_env import specs

import reverb
from reverb.adapters.acme import adders, replay, tables
from reverb.adapters.acme.specs import EnvironmentSpec, make_environment_spec
from reverb.adapters.acme.types import Transition
from reverb.errors import InvalidArgumentError

ENVIRONMENT_SPEC = EnvironmentSpec(
    observations=specs.Array((2,), np.float32),
    actions=specs.Array((), np.int32),
    rewards=specs.Array((), np.float32),
    discounts=specs.Array((), np.float32),
)
SIGNATURE = adders.NStepTransitionAdder.signature(ENVIRONMENT_SPEC)


@pytest.fixture
def stop():
    """Stops what a factory started, at the end of the test."""
    made = []
    yield lambda parts: made.append(parts) or parts
    for parts in made:
        parts.data_iterator.close()
        parts.adder.close()
        parts.server.stop()


def pair(i):
    return np.full(2, i, np.float32)


def kind(table):
    return table.info.sampler_options.WhichOneof("distribution")


def test_the_specs_of_an_environment():
    class Environment:
        def observation_spec(self):
            return 1

        def action_spec(self):
            return 2

        def reward_spec(self):
            return 3

        def discount_spec(self):
            return 4

    assert make_environment_spec(Environment()) == EnvironmentSpec(1, 2, 3, 4)


def test_a_uniform_table():
    table = tables.make_replay_table(SIGNATURE, max_size=7, min_size_to_sample=3)
    assert (table.name, table.info.max_size, kind(table)) == ("priority_table", 7, "uniform")
    assert table.info.rate_limiter_info.min_size_to_sample == 3
    assert table.info.rate_limiter_info.max_diff == sys.float_info.max
    assert len(table.info.signature) == 6


def test_a_prioritized_table():
    table = tables.make_prioritized_table(SIGNATURE, priority_exponent=0.5, name="other")
    assert table.info.sampler_options.prioritized.priority_exponent == 0.5
    assert table.name == "other"


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({"samples_per_insert": 2.0, "min_size_to_sample": 100}, (180, 220)),
        ({"samples_per_insert": 2.0}, (-2, 6)),
        ({"samples_per_insert": 0.5, "min_size_to_sample": 10, "error_buffer": 3.0}, (2, 8)),
    ],
)
def test_a_table_that_keeps_a_ratio(options, limits):
    info = tables.make_replay_table(SIGNATURE, **options).info.rate_limiter_info
    assert info.samples_per_insert == options["samples_per_insert"]
    assert (info.min_diff, info.max_diff) == pytest.approx(limits)


def test_a_ratio_of_nothing(error_says):
    error_says(
        lambda: tables.make_replay_table(SIGNATURE, samples_per_insert=0.0),
        InvalidArgumentError,
        "samples_per_insert must be greater than 0 or None, got 0.0",
    )


def test_a_queue():
    table = tables.make_queue_table(SIGNATURE, max_size=4)
    assert (table.info.max_times_sampled, kind(table)) == (1, "fifo")


def test_inserts_that_never_wait():
    ratio = tables.make_replay_table(
        SIGNATURE, samples_per_insert=4.0, min_size_to_sample=100, error_buffer=50.0
    )
    uniform = tables.make_prioritized_table(SIGNATURE, name="other", priority_exponent=0.3)
    queue = tables.make_queue_table(SIGNATURE, max_size=9, name="queue")
    unblocked, sizes = tables.disable_insert_blocking([ratio, uniform, queue])
    assert sizes == [50, 1, 4]
    for old, new in zip([ratio, uniform, queue], unblocked, strict=True):
        before, after = old.info.rate_limiter_info, new.info.rate_limiter_info
        assert after.max_diff == sys.float_info.max
        assert (after.min_diff, after.samples_per_insert) == (
            before.min_diff,
            before.samples_per_insert,
        )
        assert old.name == new.name
        assert old.info.sampler_options == new.info.sampler_options
        assert old.info.signature == new.info.signature


@pytest.mark.parametrize("exponent", [None, 0.6])
def test_replay_of_transitions(stop, play, episode, until, exponent):
    made = stop(
        replay.make_reverb_prioritized_nstep_replay(
            ENVIRONMENT_SPEC,
            n_step=2,
            batch_size=4,
            min_replay_size=3,
            discount=0.5,
            priority_exponent=exponent,
        )
    )
    assert not made.can_sample()
    play(made.adder, episode(2, observation=pair))
    until(made.can_sample)
    sample = next(made.data_iterator)
    assert type(sample.data) is Transition
    assert sample.data.observation.shape == (4, 2)
    made.client.mutate_priorities("priority_table", dict.fromkeys(sample.info.key.tolist(), 2.0))


def test_an_agent_that_plays_and_learns_in_one_thread(stop, play, episode, until):
    made = stop(
        replay.make_reverb_online_queue(
            ENVIRONMENT_SPEC,
            {"logits": specs.Array((2,), np.float32)},
            max_queue_size=6,
            sequence_length=3,
            sequence_period=3,
            batch_size=2,
        )
    )
    learned = []
    for number in range(10):
        play(
            made.adder,
            episode(5, 10 * number, observation=pair, extras=lambda i: {"logits": pair(i)}),
        )
        until(made.can_sample)  # Two sequences an episode.
        while made.can_sample():
            data = next(made.data_iterator).data
            assert data.extras["logits"].shape == (2, 3, 2)
            learned += data.observation[:, 0, 0].tolist()
    assert learned == [start for number in range(10) for start in (10 * number, 10 * number + 3)]


def test_replay_of_sequences(stop, play, episode, until):
    made = stop(
        replay.make_reverb_prioritized_sequence_replay(
            ENVIRONMENT_SPEC,
            batch_size=2,
            burn_in_length=1,
            sequence_length=3,
            sequence_period=2,
            priority_exponent=0.9,
        )
    )
    play(made.adder, episode(6, observation=pair))
    until(made.can_sample)
    steps = next(made.data_iterator).data
    assert type(steps) is adders.Step
    assert steps.observation.shape == (2, 5, 2)
    info = made.client.server_info()["priority_table"]
    assert info.sampler_options.prioritized.priority_exponent == pytest.approx(0.9)
    assert reverb.specs.as_spec(info.signature.action).shape == (5,)


def test_replay_keeps_its_server_alive(stop):
    made = stop(replay.make_reverb_prioritized_nstep_replay(ENVIRONMENT_SPEC))
    assert isinstance(made.server, reverb.Server)
    assert replay.ReverbReplay(made.server, made.adder, made.data_iterator).can_sample()
