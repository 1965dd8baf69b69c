# SPDX-License-Identifier: Apache-2.0
"""The client's calls: arguments, errors, and what comes back."""

import inspect
import pathlib
import pickle
import shutil
import time

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    SignatureMismatchError,
)
from reverb.specs import TensorSpec
from support.waiting import DEADLINE_S


@pytest.fixture(scope="module")
def client(reach):
    tables = [
        testing.table("table", sampler=reverb.selectors.Uniform()),
        testing.table("empty"),
        testing.table("signed", signature={"b": TensorSpec([None], np.int64), "a": ()}),
        reverb.Table.queue("queue", 3),
        testing.table("prioritized", sampler=reverb.selectors.Prioritized(1.0)),
    ]
    with testing.server(tables) as made:
        yield reach(made)


@pytest.fixture(autouse=True)
def _clean(client):
    for table in client.server_info():
        client.reset(table)


class TestObject:
    @pytest.mark.parametrize(
        "options",
        [{}, {"connect_timeout_s": 3.0}, {"keepalive_s": 7.0, "keepalive_timeout_s": 2.0}],
    )
    def test_pickle_keeps_address_and_options(self, options):
        made = reverb.Client("localhost:1234", **options)
        copy = pickle.loads(pickle.dumps(made))
        assert copy.server_address == "localhost:1234"
        assert copy._options == made._options
        assert copy._options.items() >= options.items()

    def test_a_pickled_client_works(self, client):
        assert set(pickle.loads(pickle.dumps(client)).server_info()) == set(client.server_info())

    def test_server_info_gives_up_after_its_timeout(self):
        start = time.monotonic()
        with pytest.raises(DeadlineExceededError, match="localhost:1"):
            reverb.Client("localhost:1").server_info(timeout=1)
        assert 0.9 < time.monotonic() - start < DEADLINE_S

    def test_one_priority_may_serve_all(self, client):
        client.insert_batch([np.arange(3)], {"table": 2.0, "prioritized": np.ones(3)})
        assert client.sample_batch("table", 3).info.priority.tolist() == [2.0] * 3


class TestSample:
    def test_nothing_happens_before_the_first_next(self, client):
        samples = client.sample("nope", num_samples=0)
        assert inspect.isgenerator(samples)
        with pytest.raises(InvalidArgumentError, match="num_samples must be at least 1, got 0"):
            next(samples)

    def test_minus_one_is_empty(self, client):
        assert list(client.sample("empty", -1)) == []

    def test_info_is_python_numbers(self, client):
        client.insert([1], {"table": 1.0})
        (step,) = next(client.sample("table"))
        assert [type(value) for value in step.info] == [int, float, int, float, int]
        assert step.info[1:] == (1.0, 1, 1.0, 1)

    def test_timesteps_share_their_info(self, client):
        with client.trajectory_writer(3) as writer:
            for step in range(3):
                writer.append([step, float(step)])
            writer.create_item("table", 1.0, [column[-3:] for column in writer.history])
        (steps,) = client.sample("table")
        assert [step.data for step in steps] == [[0, 0.0], [1, 1.0], [2, 2.0]]
        assert steps[0].info is steps[2].info
        (whole,) = client.sample("table", emit_timesteps=False)
        assert [column.tolist() for column in whole.data] == [[0, 1, 2], [0.0, 1.0, 2.0]]

    def test_data_is_nested_like_the_signature(self, client):
        client.insert({"a": (), "b": 7}, {"signed": 1.0})
        options = {"unpack_as_table_signature": True}
        (steps,) = client.sample("signed", **options)
        assert steps[0].data == {"a": (), "b": 7}
        (whole,) = client.sample("signed", emit_timesteps=False, **options)
        assert whole.data == {"a": (), "b": [7]}

    def test_an_item_that_differs_from_the_signature_says_so(self, client):
        with client.trajectory_writer(1, validate_items=False) as writer:
            writer.append([1, 2])
            writer.create_item("signed", 1.0, [column[-1:] for column in writer.history])
        for emit_timesteps in (True, False):
            samples = client.sample(
                "signed", emit_timesteps=emit_timesteps, unpack_as_table_signature=True
            )
            with pytest.raises(
                SignatureMismatchError, match=r"has 2 columns, but the table's signature has 1"
            ):
                next(samples)
        with pytest.raises(SignatureMismatchError, match="of table signed has 2 columns"):
            client.sample_batch("signed", 1, unpack_as_table_signature=True)

    def test_without_a_signature_data_is_flat(self, client):
        client.insert({"a": 1}, {"table": 1.0})
        (steps,) = client.sample("table", unpack_as_table_signature=True)
        assert steps[0].data == [1]


class TestSampleBatch:
    def test_columns_are_stacked(self, client):
        client.insert_batch([np.arange(6).reshape(3, 2)], {"queue": [1.0, 2.0, 3.0]})
        info, (column,) = client.sample_batch("queue", 3)
        np.testing.assert_array_equal(column, np.arange(6).reshape(3, 1, 2))
        assert [array.dtype for array in info[:7]] == [
            np.uint64,
            np.float64,
            np.int64,
            np.float64,
            np.int32,
            np.float64,
            np.int64,
        ]
        assert info.priority.tolist() == [1.0, 2.0, 3.0]
        assert len(set(info.key.tolist())) == 3

    def test_data_is_nested_like_the_signature(self, client):
        client.insert({"a": (), "b": 7}, {"signed": 1.0})
        batch = client.sample_batch("signed", 2, unpack_as_table_signature=True)
        assert batch.data["b"].tolist() == [[7], [7]]


class TestMutate:
    @pytest.fixture
    def keys(self, client):
        client.insert_batch([np.arange(3)], {"prioritized": 1.0})
        samples = client.sample_batch("prioritized", 100)
        return dict(zip(samples.data[0].ravel().tolist(), samples.info.key.tolist(), strict=True))

    def test_updates_and_deletes(self, client, keys):
        client.mutate_priorities("prioritized", updates={keys[0]: 0.0}, deletes=[keys[1]])
        assert set(client.sample_batch("prioritized", 50).data[0].ravel().tolist()) == {2}

    def test_numpy_numbers_are_numbers(self, client, keys):
        updates = {np.uint64(keys[0]): np.float32(0.0), keys[1]: np.float64(0.0)}
        client.mutate_priorities("prioritized", updates, np.asarray([keys[2]], np.uint64))
        assert client.server_info()["prioritized"].current_size == 2

    def test_keys_may_be_int64(self, client):
        """As libraries without uint64 return them: half of all keys are negative then."""
        keys = client.insert_batch([np.arange(64)], {"table": 1.0})["table"].view(np.int64)
        assert (keys < 0).any()
        client.mutate_priorities("table", deletes=keys[:20])
        client.mutate_priorities("table", deletes=keys[20:40].tolist())
        updates = dict(zip(keys[40:].tolist(), range(24), strict=True))
        client.mutate_priorities("table", updates=updates)
        found = {sample.info.key: sample.info.priority for sample in client.scan("table")}
        bits = keys[40:].view(np.uint64).tolist()
        assert found == dict(zip(bits, map(float, range(24)), strict=True))

    def test_updates_may_be_arrays(self, client, keys):
        def priorities():
            samples = client.sample_batch("prioritized", 100).info
            return dict(zip(samples.key.tolist(), samples.priority.tolist(), strict=True))

        unknown = 3
        forms = [
            np.asarray([*keys.values(), unknown], np.uint64),
            np.asarray([*keys.values(), unknown], np.uint64).view(np.int64),
            np.asarray([*keys.values(), unknown], np.uint64)[::-1],
            [*keys.values(), unknown],
            [np.uint64(key) for key in keys.values()],
            list(keys.values())[:1],
        ]
        for number, form in enumerate(forms, 1):
            client.update_priorities("prioritized", form, np.full(len(form), number, np.float32))
            known = {int(key) % 2**64 for key in form} - {unknown}
            assert {priority for key, priority in priorities().items() if key in known} == {number}
        client.update_priorities("prioritized", [], [])
        first, second = keys[0], keys[1]
        client.update_priorities("prioritized", [first, second, first], [1.0, 2.0, 3.0])
        assert (priorities()[first], priorities()[second]) == (3.0, 2.0)
        client.update_priorities("prioritized", list(keys.values()), 9)
        assert set(priorities().values()) == {9.0}

    def test_a_refused_array_changes_nothing(self, client, keys):
        with pytest.raises(ValueError, match="negative"):
            client.update_priorities("prioritized", list(keys.values()), [5.0, -1.0, 5.0])
        assert set(client.sample_batch("prioritized", 50).info.priority.tolist()) == {1.0}


class TestServerInfo:
    @pytest.mark.parametrize("timeout", [None, 0, -1, 5])
    def test_it_answers(self, client, timeout):
        assert client.server_info(timeout)["queue"].max_size == 3


def test_checkpoint_tells_where_it_saved(client):
    path = pathlib.Path(client.checkpoint())
    assert (path / "DONE").exists()
    assert client.checkpoint_status().latest_path == str(path)
    shutil.rmtree(path.parent)  # A temporary one, since the server was told of none.
