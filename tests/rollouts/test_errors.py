# SPDX-License-Identifier: Apache-2.0
"""What is refused, and the texts of it."""

import re

import numpy as np
import pytest

import reverb
from reverb.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ReverbError,
    SignatureMismatchError,
    TableNotFoundError,
)
from support.rollout_tables import SIGNATURE, info, prompt, ready, rollout, table

SETTINGS = [
    ({"min_rollouts": 9}, "min_rollouts must be at least 1 and at most num_rollouts (8), got 9."),
    ({"min_rollouts": 0}, "min_rollouts must be at least 1 and at most num_rollouts (8), got 0."),
    ({"ahead": 1}, "ahead needs items_per_version."),
    ({"items_per_version": 1}, "items_per_version needs ahead or max_staleness."),
    (
        {"items_per_version": 0, "ahead": 1},
        "items_per_version must be at least 1, got 0.",
    ),
    (
        {"max_staleness": 1, "ahead": 2, "items_per_version": 3},
        "max_staleness (1) must be at least ahead (2).",
    ),
    (
        {"item": ("promt",)},
        "item has column promt, which the signature does not have; its columns are prompt, score, "
        "tokens",
    ),
    ({"item": tuple(SIGNATURE)}, "item has all columns; at least one must be of sequences."),
    ({"max_attempts": 0}, "max_attempts must be at least 1, got 0"),
    ({"on_stale": "drop"}, 'on_stale must be "again", "keep" or "wait", got \'drop\''),
    (
        {"on_stale": "wait", "open_timeout_s": 1},
        'on_stale="wait" needs items_per_version and open_timeout_s.',
    ),
    (
        {"on_stale": "wait", "items_per_version": 4, "max_staleness": 1},
        'on_stale="wait" needs items_per_version and open_timeout_s.',
    ),
    ({"open_timeout_s": 0}, "open_timeout_s must be at least 0.001 and below 4294967296, got 0"),
    ({"open_timeout_s": float("nan")}, "open_timeout_s must be at least 0.001 and below"),
    ({"open_timeout_s": float("inf")}, "open_timeout_s must be at least 0.001 and below"),
    ({"ahead": -1}, "ahead must be at least 0 and below 4294967296, got -1"),
    ({"ahead": 2**40}, "ahead must be at least 0 and below 4294967296, got 1099511627776"),
    ({"item": ("prompt",) * 2}, "item must name each column once, got ('prompt', 'prompt')"),
]


@pytest.mark.parametrize(("settings", "text"), SETTINGS, ids=[text[:30] for _, text in SETTINGS])
def test_settings_that_do_not_fit(settings, text):
    with pytest.raises(InvalidArgumentError) as caught:
        table(8, **settings)
    assert text in str(caught.value)


@pytest.mark.parametrize("num_rollouts", [0, 1025])
def test_the_number_of_rollouts_has_limits(num_rollouts):
    with pytest.raises(InvalidArgumentError, match="num_rollouts must be at least 1"):
        table(num_rollouts)


WAITS = reverb.Rollouts(
    2,
    item=("prompt",),
    items_per_version=2,
    max_staleness=1,
    on_stale="wait",
    open_timeout_s=60,
)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sampler": reverb.selectors.Shuffle}, "sampler Shuffle"),
        ({"remover": reverb.selectors.Shuffle}, "remover Shuffle"),
        ({"sampler": lambda: reverb.selectors.Recent(5)}, "sampler Recent"),
        ({"sampler": lambda: reverb.selectors.Uniform(over="steps")}, 'Uniform(over="steps")'),
        ({"rate_limiter": lambda: reverb.rate_limiters.Queue(3)}, "must be MinSize"),
        (
            {"rate_limiter": lambda: reverb.rate_limiters.SampleToInsertRatio(1.0, 1, 5.0)},
            "must be MinSize",
        ),
        ({"signature": lambda: None}, "needs a signature"),
        ({"rollouts": lambda: WAITS}, "it needs the sampler Fifo and max_times_sampled=1"),
        (
            {
                "rollouts": lambda: WAITS,
                "sampler": reverb.selectors.Lifo,
                "max_times_sampled": lambda: 1,
            },
            "it needs the sampler Fifo",
        ),
    ],
)
def test_tables_that_do_not_fit(options, text):
    selectors = reverb.selectors
    usual = {
        "sampler": selectors.Fifo,
        "remover": selectors.Fifo,
        "max_size": lambda: 10,
        "rate_limiter": lambda: reverb.rate_limiters.MinSize(1),
        "signature": lambda: SIGNATURE,
        "rollouts": lambda: reverb.Rollouts(2, item=("prompt",)),
    }
    made = {name: make() for name, make in (usual | options).items()}
    with pytest.raises(InvalidArgumentError) as caught:
        reverb.Table("train", **made)
    assert text in str(caught.value)


def fails(kind, text):
    return pytest.raises(kind, match=text)


def test_calls_for_a_table_without_rollouts(serve):
    client = serve(reverb.Table.queue("replay", 10))
    text = r"Table replay has no rollouts \(Table\(rollouts=...\)\); use sample_batch."
    with fails(FailedPreconditionError, text):
        client.insert_item("replay", prompt(0))
    with fails(FailedPreconditionError, text):
        client.take("replay", 1)
    with fails(FailedPreconditionError, text), client.open_item("replay"):
        pass
    with fails(FailedPreconditionError, "replay"):
        client.set_version("replay", 1)


def test_calls_for_a_table_that_is_not_there(served):
    client = served(1)
    with fails(TableNotFoundError, "trian"):
        client.insert_item("trian", prompt(0))
    with fails(TableNotFoundError, "trian"):
        client.take("trian", 1)
    with fails(TableNotFoundError, "trian"):
        client.set_version("trian", 1)


def test_columns_that_do_not_fit(served):
    client = served(2)
    is_of_items = "Column prompt of table train is one of items, not of sequences."
    with fails(InvalidArgumentError, is_of_items):
        client.insert_item("train", prompt(0), [prompt(0)])
    with fails(
        InvalidArgumentError, "Column score of table train is one of sequences, not of items"
    ):
        client.insert_item("train", {"score": np.float32(1)})
    with fails(InvalidArgumentError, "table train has no column 'promt'; its columns are prompt"):
        client.insert_item("train", {"promt": np.int32([1])})
    text = "The item lacks prompt, a column of each item of table train."
    with fails(InvalidArgumentError, text):
        client.insert_item("train", {})
    with fails(SignatureMismatchError, "prompt"):
        client.insert_item("train", {"prompt": np.float32([1])})
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train") as item:
        with fails(InvalidArgumentError, is_of_items):
            client.add_rollout(item, prompt(0))
        with fails(SignatureMismatchError, "tokens"):
            client.add_rollout(item, {"tokens": np.float32([1])})
        with fails(InvalidArgumentError, r"sequence 1 .*lacks|lacks column|differ"):
            client.add_rollout(item, [rollout(), {"tokens": np.int32([1])}])
        with fails(InvalidArgumentError, r"below num_rollouts \(2\), got 2"):
            client.add_rollout(item, rollout(), rollout=2)
        with fails(SignatureMismatchError, "tokens"):
            client.add_rollout(item, {"tokens": [1, 2.5]})
        with fails(TypeError, "a rollout must be a dict of columns"):
            client.add_rollout(item, [])
        with fails(InvalidArgumentError, "a sequence must have at least one column, got none"):
            client.add_rollout(item, {})
        # None of these was noted.
        assert client.add_rollout(item, rollout())
        assert client.add_rollout(item, rollout())
    assert client.take("train", 1).rollout.tolist() == [0, 1]


def test_a_refused_rollout_is_missing_still(served):
    client = served(1)
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train") as item:
        with pytest.raises(ReverbError):
            client.add_rollout(item, {"tokens": np.float32([1])})
        assert item.missing == [0]


def test_arguments_of_a_take(served):
    client = served(1)
    ready(client, "a", num_rollouts=1)
    with fails(InvalidArgumentError, "num_items must be at least 1, got 0"):
        client.take("train", 0)
    with fails(InvalidArgumentError, "one of items"):
        client.take("train", 1, lacks="prompt")
    with fails(InvalidArgumentError, "no column 'x'"):
        client.take("train", 1, lacks="x")
    with fails(InvalidArgumentError, "no column 'x'"):
        client.take("train", 1, columns=["x"])


def test_flags_are_bools(served):
    """A text would count as true, whatever it says."""
    client = served(1)
    client.set_version("train", 5)
    with fails(TypeError, "rewind must be a bool, got str"):
        client.set_version("train", 0, rewind="no")
    assert info(client).version == 5
    client.insert_item("train", prompt(0))
    with client.open_item("train") as item:
        with fails(TypeError, "partial must be a bool, got str"):
            client.add_rollout(item, {"tokens": np.int32([1])}, partial="no")
        client.add_rollout(item, {"tokens": np.int32([1])})
    with fails(TypeError, "partial must be a bool, got int"):
        client.take("train", 1, partial=1)
    batch = client.take("train", 1, lacks="score")
    with fails(TypeError, "overwrite must be a bool, got str"):
        client.extend(batch, {"score": np.float32([1])}, overwrite="no")


def test_items_and_batches_are_those_of_the_calls(served):
    client = served(1)
    for call in (
        client.ack,
        client.release,
        client.fetch_rollouts,
        lambda it: client.extend(it, {}),
    ):
        with fails(TypeError, "batch must be from take, which returns RolloutBatch, got str"):
            call("x")
    for call in (lambda: client.add_rollout("x", {}), lambda: client.fail_rollout("x", 0, "why")):
        with fails(TypeError, "item must be from open_item, which returns OpenItem, got str"):
            call()
    ready(client, "a", num_rollouts=1)
    with fails(TypeError, "columns must be names of columns or None, got int"):
        client.take("train", 1, columns=5)
    with fails(TypeError, "columns must be a dict of columns by name, got none"):
        client.extend(client.take("train", 1), {})
    client.insert_item("train", prompt(1), name="b")
    with client.open_item("train") as item, fails(TypeError, "sequence, got none"):
        client.add_rollout(item, [])


def test_numbers_of_more_than_64_bits(served):
    client = served(1)
    for version in (2**63, -(2**63) - 1, 10**30):
        message = f"version must be at least -2^63 and below 2^63, got {version}"
        with fails(InvalidArgumentError, re.escape(message)):
            client.set_version("train", version)
    ready(client, "a", num_rollouts=1)
    assert len(client.take("train", 1, timeout_ms=10**30)) == 1


def test_keys_are_integers(served):
    client = served(1)
    ready(client, "a", num_rollouts=1)
    batch = client.take("train", 1)
    for call in (client.ack, client.release):
        for keys in ([1.5], [True], np.float64([1])):
            with fails(TypeError, "keys must be integers"):
                call(batch, keys)
    assert (info(client).leased, client.size("train")) == (1, 1)


def test_one_column_may_be_named_alone(served):
    client = served(1)
    ready(client, "a", num_rollouts=1)
    batch = client.take("train", 1, columns="score")
    assert list(batch.data) == list(client.fetch_rollouts(batch, "score").data) == ["score"]


def test_a_take_of_an_unknown_column_holds_nothing(served, until):
    client = served(1)
    ready(client, "a", num_rollouts=1)
    with fails(InvalidArgumentError, "no column 'x'"):
        client.take("train", 1, columns=["x"])
    until(lambda: info(client).leased == 0)


@pytest.mark.parametrize("name", ["", "x" * 257, "ä" * 129])
def test_a_name_has_1_to_256_bytes(served, name):
    client = served(1)
    with fails(InvalidArgumentError, "name"):
        client.insert_item("train", prompt(0), name=name)
    assert client.insert_item("train", prompt(0), name="x" * 256)


def test_extend_needs_a_row_for_each_sequence(served):
    client = served(2)
    client.insert_item("train", prompt(0), [{"tokens": np.int32([1])}] * 2, name="a")
    batch = client.take("train", 1, lacks="score")
    text = "column score must have a row for each of the 2 sequences, got 3"
    with fails(InvalidArgumentError, text):
        client.extend(batch, {"score": np.zeros(3, np.float32)})
    with fails(InvalidArgumentError, "one of items"):
        client.extend(batch, {"prompt": np.zeros(2, np.int32)})


def test_a_rollout_beyond_those_that_are_missing(served):
    client = served(1)
    client.insert_item("train", prompt(0), name="a")
    with client.open_item("train") as item:
        client.add_rollout(item, rollout())
        with fails(InvalidArgumentError, "item a lacks no rollout"):
            client.add_rollout(item, rollout())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "give either parts or max_tokens"),
        ({"parts": 2, "max_tokens": 9}, "give either parts or max_tokens"),
        ({"parts": 0}, "parts must be at least 1, got 0"),
        ({"max_tokens": 4}, r"max_tokens must be at least the longest sequence \(5\), got 4"),
        ({"parts": 2, "cost": "time"}, 'cost must be "tokens" or "squared"'),
    ],
)
def test_arguments_of_split_balanced(arguments, text):
    with fails(InvalidArgumentError, text):
        reverb.split_balanced([5, 2], **arguments)


@pytest.mark.parametrize("column", ["prompt", "tokens"])
def test_a_sequence_without_steps_is_refused(served, column):
    client = served(1)
    data, row = prompt(0), rollout()
    (data if column == "prompt" else row)[column] = np.zeros(0, np.int32)
    text = rf"column {column} of a sequence must have shape \[T, ...\] with at least one step"
    with pytest.raises(InvalidArgumentError, match=text):
        client.insert_item("train", data, [row], name="a")
    client.insert_item("train", prompt(0), name="b")
    with client.open_item("train") as item:
        if column == "tokens":
            with pytest.raises(InvalidArgumentError, match=text):
                client.add_rollout(item, row)
        assert client.add_rollout(item, rollout())


def test_a_take_of_more_than_the_table_holds_is_an_error(served):
    client = served(1, max_items=4)
    with pytest.raises(InvalidArgumentError, match=r"it has at most 4 \(max_size\)"):
        client.take("train", 5)


def test_a_checkpoint_of_other_rollouts_is_refused(start, connect, root):
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root))
    server = start(table(2), checkpointer=checkpointer)
    client = connect(server)
    client.insert_item("train", prompt(0), name="a")
    client.checkpoint()
    server.stop()
    text = "num_rollouts 1, 3 columns, .* its stored items are for num_rollouts 2, 3 columns"
    with pytest.raises(FailedPreconditionError, match=text):
        start(table(1), checkpointer=checkpointer)
    other = reverb.Table.rollouts("train", 2, SIGNATURE, item=())
    with pytest.raises(FailedPreconditionError, match="those of items at"):
        start(other, checkpointer=checkpointer)
    assert connect(start(table(2), checkpointer=checkpointer)).size("train") == 1
