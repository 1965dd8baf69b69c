# SPDX-License-Identifier: Apache-2.0
"""The errors of sequence writers: class and text, on both paths, and that nothing was done."""

import numpy as np
import pytest

from reverb import errors, testing
from reverb.specs import TensorSpec


@pytest.fixture(scope="module")
def client(reach):
    tables = [
        testing.table("table"),
        testing.table("other"),
        testing.table("threes", signature={"x": TensorSpec([3, 2], np.float32)}),
        testing.table("any", signature={"x": TensorSpec([None, 2], np.float32)}),
    ]
    with testing.server(tables) as made:
        yield reach(made)


POSITION = {"observation": {"position": np.zeros((2, 3), np.float32)}, "reward": np.zeros(2)}


def changed(**changes):
    step = {"observation": dict(POSITION["observation"]), "reward": POSITION["reward"]}
    if "position" in changes:
        step["observation"]["position"] = changes.pop("position")
    step.update(changes)
    return step


MISFITS = {
    "dtype": (
        changed(position=np.zeros((2, 3))),
        errors.SignatureMismatchError,
        "Every step must be like the first: column observation/position must have dtype float and "
        "shape [2,3], got dtype double and shape [2,3]. Nothing was appended; convert the value "
        "and append the step again.",
    ),
    "shape": (
        changed(position=np.zeros((2, 4), np.float32)),
        errors.SignatureMismatchError,
        "Every step must be like the first: column observation/position must have dtype float and "
        "shape [2,3], got dtype float and shape [2,4]. Nothing was appended; convert the value "
        "and append the step again.",
    ),
    "rows": (
        changed(position=np.zeros((3, 3), np.float32)),
        errors.InvalidArgumentError,
        "Column observation/position must have shape [batch_size, ...] with batch_size = 2, got "
        "shape [3,3]. Nothing was appended.",
    ),
    "no rows": (
        changed(reward=1.0),
        errors.InvalidArgumentError,
        "Column reward must have shape [batch_size, ...] with batch_size = 2, got shape []. "
        "Nothing was appended.",
    ),
    "a missing column": (
        {"observation": POSITION["observation"]},
        errors.InvalidArgumentError,
        "Every step must have the columns of the first, but column reward is missing. Nothing was "
        "appended; give every step all of its columns.",
    ),
    "a column too many": (
        changed(extra=np.zeros(2)),
        errors.InvalidArgumentError,
        "Every step must have the columns of the first, but the first step had no column extra. "
        "Nothing was appended; give every step all of its columns.",
    ),
    "an absent value": (
        changed(reward=None),
        TypeError,
        "Column reward: None cannot be stored; every step needs a value for every column",
    ),
    "a date": (
        changed(reward=np.zeros(2, "datetime64[s]")),
        TypeError,
        "Column reward: Values of NumPy dtype datetime64[s] cannot be stored. Use numbers, "
        "booleans, str or bytes.",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_step_that_does_not_fit_changes_nothing(client, name, error_says):
    step, kind, text = MISFITS[name]
    with client.sequence_writer("table", 2, batch_size=2) as writer:
        writer.append(POSITION)
        error_says(lambda: writer.append(step, is_last=True), kind, text)
        assert writer.episode_steps.tolist() == [1, 1]
        assert writer.append(POSITION) == 2
    assert client.size("table") == 2


ARGUMENTS = {
    "is_last rows": (
        {"is_last": [True]},
        errors.InvalidArgumentError,
        "is_last must have shape [2], one value for each row of the batch, or be one value for "
        "all, got shape [1]",
    ),
    "is_last dtype": (
        {"is_last": [0, 1]},
        TypeError,
        "is_last must be bool, got dtype int64: [0, 1]",
    ),
    "priorities rows": (
        {"priorities": [1.0, 2.0, 3.0]},
        errors.InvalidArgumentError,
        "priorities must have shape [2], one value for each row of the batch, or be one value for "
        "all, got shape [3]",
    ),
    "NaN": (
        {"priorities": [1.0, float("nan")]},
        errors.InvalidArgumentError,
        "priorities must be numbers, got NaN for row 1. Nothing was appended.",
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_append_are_checked(client, name, error_says):
    arguments, kind, text = ARGUMENTS[name]
    with client.sequence_writer("table", 2, batch_size=2) as writer:
        writer.append(POSITION)
        error_says(lambda: writer.append(POSITION, **arguments), kind, text)
        assert writer.episode_steps.tolist() == [1, 1]
        assert writer.append(POSITION) == 2


def test_without_batch_size_arguments_are_single_values(client, error_says):
    with client.sequence_writer("table", 2) as writer:
        error_says(
            lambda: writer.append({"x": 0}, is_last=[True]),
            errors.InvalidArgumentError,
            "is_last must be one value, because the writer has no batch_size, got shape [1]",
        )
        error_says(
            lambda: writer.append({"x": 0}, priorities=float("nan")),
            errors.InvalidArgumentError,
            "priorities must be numbers, got NaN. Nothing was appended.",
        )
        error_says(
            lambda: writer.append({}),
            errors.InvalidArgumentError,
            "A step must have at least one value, got none",
        )


def test_end_episode_checks_its_mask(client, error_says):
    writer = client.sequence_writer("table", 2, batch_size=2)
    error_says(
        lambda: writer.end_episode([True, False, True]),
        errors.InvalidArgumentError,
        "where must have shape [2], one value for each row of the batch, or be one value for all, "
        "got shape [3]",
    )
    with pytest.raises(TypeError, match="where must be bool, got dtype int64"):
        writer.end_episode([0, 1])


MAKING = {
    "no table": (([], 2), {}, "tables must name at least one table, got none"),
    "length": (("table", 0), {}, "sequence_length must be at least 1, got 0"),
    "batch size": (("table", 1, 0), {}, "batch_size must be at least 1, got 0"),
    "stride": (
        ("table", 1), {"stride_length": 0}, "stride_length must be at least 1, got 0",
    ),
    "max length": (
        ("table", None),
        {"max_sequence_length": 0},
        "max_sequence_length must be at least 1, got 0",
    ),
    "no max length": (
        ("table", None),
        {},
        "max_sequence_length must be given where sequence_length is None: it bounds the memory of "
        "an episode",
    ),
    "stride of episodes": (
        ("table", None),
        {"max_sequence_length": 3, "stride_length": 2},
        "stride_length must be 1 where sequence_length is None, because an episode is one item, "
        "got 2",
    ),
    "max length of windows": (
        ("table", 2),
        {"max_sequence_length": 3},
        "max_sequence_length and drop_long_episodes are for sequence_length=None, where items are "
        "episodes, got sequence_length=2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKING)
def test_arguments_of_the_writer_are_checked(client, name, error_says):
    arguments, options, text = MAKING[name]
    error_says(
        lambda: client.sequence_writer(*arguments, **options), errors.InvalidArgumentError, text
    )


def test_an_unknown_table_is_said_at_once(client, error_says):
    error_says(
        lambda: client.sequence_writer(["table", "nope"], 2),
        errors.TableNotFoundError,
        f"Unable to create an item in table 'nope': the server at {client.server_address} has no "
        "table of that name. Its tables are: any, other, table, threes.",
    )


def test_the_first_step_must_fit_the_signatures(client):
    writer = client.sequence_writer(["any", "threes"], 2)
    for _ in range(2):
        with pytest.raises(errors.SignatureMismatchError) as caught:
            writer.append({"x": np.zeros(2, np.float32)})
        assert (
            "Unable to create an item in table 'threes': column x must have dtype float and shape "
            "[3,2], got dtype float and shape [2,2]." in str(caught.value)
        )
        assert writer.episode_steps == 0
    with client.sequence_writer(["any", "threes"], 3) as writer:
        for _ in range(3):
            writer.append({"x": np.zeros(2, np.float32)})
    assert client.size("any") == client.size("threes") == 1


def test_a_refused_first_step_does_not_fix_the_columns(client):
    with client.sequence_writer("any", 1) as writer:
        with pytest.raises(errors.SignatureMismatchError, match="column x must have dtype float"):
            writer.append({"x": np.zeros(2)})
        assert writer.append({"x": np.zeros(2, np.float32)}) == 1


def test_the_length_of_episodes_must_fit_the_signature(client):
    with client.sequence_writer("threes", None, 2, max_sequence_length=5) as writer:
        step = {"x": np.zeros((2, 2), np.float32)}
        writer.append(step, is_last=False)
        with pytest.raises(errors.SignatureMismatchError) as caught:
            writer.append(step, is_last=[False, True])
        assert str(caught.value).startswith(
            "An episode of 2 step(s) does not fit for row 1. Nothing was appended, and end_episode "
            "forgets the episode. The reason: Unable to create an item in table 'threes'"
        )
        writer.append(step)
        assert writer.append(step, is_last=True) == 2
