# SPDX-License-Identifier: Apache-2.0
"""The older writer: arguments, states, items of the last steps."""

import logging
import re

import numpy as np
import pytest

import reverb
from reverb import errors, testing
from reverb._writers import legacy
from reverb.specs import TensorSpec


@pytest.fixture(scope="module")
def client(reach):
    tables = [
        testing.table("table"),
        testing.table("signed", signature=[TensorSpec([None], np.int64)]),
        reverb.Table.queue("queue", 2),
    ]
    with testing.server(tables) as made:
        yield reach(made)


@pytest.fixture(autouse=True)
def _clean(client):
    client.reset("table")


def sampled(client):
    (sample,) = client.sample("table", emit_timesteps=False)
    return [column.tolist() for column in sample.data]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_sequence_length": 3}, "chunk_length=3, max_timesteps=3, delta_encoded=0"),
        ({"max_sequence_length": 30, "delta_encoded": True}, "chunk_length=10, .*delta_encoded=1"),
        ({"max_sequence_length": 1, "max_in_flight_items": None}, "max_in_flight_items=1000000"),
    ],
)
def test_repr_shows_the_options(client, options, text):
    with client.writer(**options) as writer:
        assert repr(writer).endswith(", closed: False")
        assert repr(writer).startswith("Writer(")
        assert re.search(text, repr(writer))
    assert repr(writer).endswith(", closed: True")


@pytest.mark.parametrize(
    ("step", "error"),
    [([1.0, 2], ValueError), ([1], ValueError), ([[1, 2], 2], ValueError), ([None, 2], TypeError)],
)
def test_a_step_like_the_others_is_accepted_after_a_bad_one(client, step, error):
    with client.writer(2) as writer:
        writer.append([0, 0])
        with pytest.raises(error):
            writer.append(step)
        writer.append([1, 1])
        writer.create_item("table", 2, 1.0)
    assert sampled(client) == [[0, 1], [0, 1]]


def test_steps_that_were_flushed_count_once(client):
    # The original took a short chunk for a full one, and stored an item that nobody could read.
    with client.writer(10, chunk_length=10) as writer:
        writer.append([1])
        writer.flush()
        with pytest.raises(ValueError, match="5"):
            writer.create_item("table", 5, 1.0)


def test_a_closed_writer_refuses_everything(client):
    writer = client.writer(2)
    writer.append([1])
    writer.close()
    for call in (
        lambda: writer.append([1]),
        lambda: writer.append_sequence([[1]]),
        lambda: writer.create_item("table", 1, 1.0),
        writer.flush,
    ):
        with pytest.raises(errors.FailedPreconditionError, match="was called on a closed writer"):
            call()
    with pytest.raises(ValueError, match="closed"):
        writer.close()
    with pytest.raises(ValueError, match="closed"), writer:
        pass


def test_a_dropped_writer_is_closed_with_a_warning(client, caplog):
    writer = client.writer(1)
    writer.append([1])
    writer.create_item("table", 1, 1.0)
    legacy._warn_of_dropped.cache_clear()  # It is logged once in a process.
    with caplog.at_level(logging.WARNING, logger="reverb"):
        del writer
    assert "dropped without close" in caplog.text
    assert client.server_info()["table"].current_size == 1
