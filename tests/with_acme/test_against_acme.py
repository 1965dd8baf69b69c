# SPDX-License-Identifier: Apache-2.0
"""The same episodes through Acme's own adders and through these: the items are equal.

Needs Acme, and what it needs; skipped where that is not installed.
"""

import itertools

import dm_env
import numpy as np
import pytest
import tree

acme_adders = pytest.importorskip(
    "acme.adders.reverb", reason="Acme cannot be imported", exc_type=Exception
)
import acme.types  # noqa: E402
from acme import datasets as acme_datasets  # noqa: E402
from acme import specs as acme_specs  # noqa: E402
from dm_env import specs  # noqa: E402

import reverb  # noqa: E402
from reverb import testing  # noqa: E402
from reverb.adapters.acme import adders, datasets  # noqa: E402

TABLE = "priority_table"
ENVIRONMENT_SPEC = acme_specs.EnvironmentSpec(
    observations={"a": specs.Array((3,), np.float32), "b": [specs.Array((), np.int8)]},
    actions=specs.BoundedArray((2,), np.float32, 0, 1, "act"),
    rewards=specs.Array((), np.float32),
    discounts=specs.BoundedArray((), np.float32, 0, 1),
)
EXTRAS_SPEC = {"e": specs.Array((2,), np.int64)}


@pytest.fixture
def written(play):
    """The items of an adder: dtype, shape and values of every column."""

    def written(make, *episodes):
        with testing.server([testing.table(TABLE, max_times_sampled=1)]) as client:
            adder = make(client)
            play(adder, *episodes)
            adder._writer.flush()
            count = client.server_info()[TABLE].current_size
            if not count:
                return []
            return [
                [(column.dtype, column.shape, column.tolist()) for column in sample.data]
                + [sample.info.priority]
                for sample in client.sample(TABLE, count, emit_timesteps=False)
            ]

    return written


@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
@pytest.mark.parametrize("structure", ["scalar", "nested reward", "nested discount", "arrays"])
def test_transitions(written, episode, n_step, structure):
    random = np.random.default_rng(n_step)
    rewards = random.normal(size=(12, 3)).astype(np.float32)
    discounts = random.uniform(0.2, 1.0, size=(12, 3)).astype(np.float32)
    reward, discount = {
        "scalar": (lambda i: rewards[i, 0], lambda i: discounts[i, 0]),
        "nested reward": (
            lambda i: {"a": rewards[i, 0], "b": rewards[i, 1]},
            lambda i: discounts[i, 0],
        ),
        "nested discount": (
            lambda i: rewards[i, 0],
            lambda i: [discounts[i, 0], discounts[i, 1]],
        ),
        "arrays": (lambda i: rewards[i], lambda i: discounts[i, :1]),
    }[structure]
    options = {
        "reward": reward,
        "discount": discount,
        "extras": lambda i: {"e": np.int64([i, -i])},
        "observation": lambda i: {"a": np.full(3, i, np.float32), "b": [np.int8(i)]},
    }
    episodes = [episode(steps, **options) for steps in (1, 2, 6, 11)]
    made = [
        written(
            lambda client, kind=kind: kind(
                client, n_step, 0.97, priority_fns={TABLE: lambda item: item.action + 1.0}
            ),
            *episodes,
        )
        for kind in (acme_adders.NStepTransitionAdder, adders.NStepTransitionAdder)
    ]
    assert made[0] == made[1]
    assert len(made[1]) == sum(steps + min(steps, n_step) - 1 for steps in (1, 2, 6, 11))


@pytest.mark.parametrize("behavior", ["WRITE", "CONTINUE", "ZERO_PAD", "TRUNCATE"])
@pytest.mark.parametrize(
    ("length", "period"), [(1, 1), (2, 1), (3, 2), (4, 4), (5, 1), (2, 3), (3, 5)]
)
def test_sequences(written, episode, behavior, length, period):
    if behavior == "TRUNCATE" and period > length:
        pytest.skip("Acme slices by a negative length there: it fails or writes too much")
    episodes = [episode(steps, 10 * steps) for steps in (1, 2, 4, 5, 9)]
    made = [
        written(
            lambda client, module=module: module.SequenceAdder(
                client,
                length,
                period,
                end_of_episode_behavior=module.EndBehavior[behavior],
            ),
            *episodes,
        )
        for module in (acme_adders, adders)
    ]
    assert made[0] == made[1]


@pytest.mark.parametrize("padding_fn", [None, np.zeros, np.ones])
def test_episodes(written, episode, padding_fn):
    options = {"extras": lambda i: {"e": np.int64([i, -i])}}
    episodes = [episode(steps, **options) for steps in (1, 4, 6)]
    made = [
        written(lambda client, kind=kind: kind(client, 7, padding_fn=padding_fn), *episodes)
        for kind in (acme_adders.EpisodeAdder, adders.EpisodeAdder)
    ]
    assert made[0] == made[1]
    assert len(made[1]) == 3


@pytest.mark.parametrize("name", ["NStepTransitionAdder", "SequenceAdder", "EpisodeAdder"])
def test_signatures(name):
    theirs, ours = (
        getattr(module, name).signature(ENVIRONMENT_SPEC, EXTRAS_SPEC)
        for module in (acme_adders, adders)
    )
    assert theirs._fields == ours._fields
    tree.map_structure(
        lambda their, our: np.testing.assert_equal(
            (our.shape.as_list(), our.dtype), (their.shape.as_list(), their.dtype)
        ),
        tuple(theirs),
        tuple(ours),
    )


def test_classes_have_the_same_fields():
    from reverb.adapters.acme import specs as our_specs
    from reverb.adapters.acme import types

    for theirs, ours in (
        (acme.types.Transition, types.Transition),
        (acme_adders.Step, adders.Step),
        (acme_adders.PriorityFnInput, adders.PriorityFnInput),
        (acme_specs.EnvironmentSpec, our_specs.EnvironmentSpec),
    ):
        assert ours.__name__ == theirs.__name__
        assert ours._fields == theirs._fields
    assert [(end.name, end.value) for end in adders.EndBehavior] == [
        (end.name, end.value) for end in acme_adders.EndBehavior
    ]


def test_wrong_use_is_the_same_kind_of_error(client):
    first, middle = dm_env.restart(np.float32(0)), dm_env.transition(1.0, np.float32(1))

    def errors_of(module):
        calls = [
            lambda: module.NStepTransitionAdder(client, 1, 1.0).add(0, middle),
            lambda: module.SequenceAdder(client, 2, 1).add_first(middle),
            lambda: module.SequenceAdder(client, 2, 1, end_of_episode_behavior="write"),
            lambda: module.SequenceAdder(
                client, 2, 1, pad_end_of_episode=True, break_end_of_episode=False
            ),
            lambda: module.EpisodeAdder(client, 2, priority_fns={"a": None}).add_priority_table(
                "a", None
            ),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r".+"):
                call()

    errors_of(acme_adders)
    errors_of(adders)
    assert first.first()


def test_batches_are_those_of_a_dataset_of_tensorflow(play, episode):
    signature = adders.NStepTransitionAdder.signature(ENVIRONMENT_SPEC)
    table = testing.table(TABLE, signature=signature, sampler=reverb.selectors.Uniform())
    with testing.server([table]) as client:
        options = {"observation": lambda i: {"a": np.full(3, i, np.float32), "b": [np.int8(i)]}}
        first, steps = episode(20, **options)
        steps = [(np.full(2, action, np.float32), timestep, ()) for action, timestep, _ in steps]
        play(adders.NStepTransitionAdder(client, 1, 1.0), (first, steps))
        theirs, ours = (
            module.make_reverb_dataset(client.server_address, batch_size=8).as_numpy_iterator()
            for module in (acme_datasets, datasets)
        )
        for their, our in itertools.islice(zip(theirs, ours, strict=False), 3):
            assert their.data._fields == our.data._fields
            # TensorFlow makes tuples of lists.
            assert [(x.dtype, x.shape) for x in tree.flatten(their)] == [
                (x.dtype, x.shape) for x in tree.flatten(our)
            ]
        del theirs
        ours.close()
