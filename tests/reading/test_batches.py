# SPDX-License-Identifier: Apache-2.0
"""Options of `sample_batch`: whole batches, given memory, columns, own memory."""

import array
import pickle
import threading

import numpy as np
import pytest

import reverb
from reverb import item_selectors, rate_limiters, testing
from reverb.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
)
from reverb.replay_sample import rows_of_batch
from support.hosts import REMOTE

SPEC = {
    "action": reverb.specs.TensorSpec((1,), np.int32),
    "obs": {
        "image": reverb.specs.TensorSpec((1, 4, 3), np.uint8),
        "speed": reverb.specs.TensorSpec((1, 2), np.float32),
    },
    "reward": reverb.specs.TensorSpec((1,), np.float64),
}


def step(value):
    return {
        "action": np.int32(value),
        "obs": {
            "image": np.full((4, 3), value, np.uint8),
            "speed": np.array([value, -value], np.float32),
        },
        "reward": float(value),
    }


def write(client, count, name="table"):
    for value in range(count):
        client.insert(step(value), {name: 1.0})


def empty(count):
    return {
        "action": np.zeros((count, 1), np.int32),
        "obs": {
            "image": np.zeros((count, 1, 4, 3), np.uint8),
            "speed": np.zeros((count, 1, 2), np.float32),
        },
        "reward": np.zeros((count, 1)),
    }


def num_samples(client, name="table"):
    return client.server_info()[name].rate_limiter_info.sample_stats.completed


class TestWholeBatches:
    def test_nothing_is_sampled_before_all_is_allowed(self, serve, background):
        client = serve(reverb.Table.queue("queue", 10))
        for value in range(3):
            client.insert([value], {"queue": 1.0})
        with pytest.raises(DeadlineExceededError, match="allows 3 of the 4 samples") as caught:
            client.sample_batch("queue", 4, partial=False, timeout_ms=50)
        assert list(caught.value.samples) == []
        assert caught.value.keys == []
        assert client.server_info()["queue"].current_size == 3
        assert num_samples(client, "queue") == 0
        call = background(client.sample_batch, "queue", 4, partial=False)
        client.insert([3], {"queue": 1.0})
        assert call.result().data[0].ravel().tolist() == [0, 1, 2, 3]

    def test_a_batch_that_can_never_be_says_why(self, serve):
        client = serve(
            testing.table("small", max_size=3, max_times_sampled=1),
            testing.table(
                "ratio",
                rate_limiter=rate_limiters.SampleToInsertRatio(1.0, 1, 2.0),
            ),
        )
        for name, value in [("small", 0), ("ratio", 1)]:
            client.insert([value], {name: 1.0})
        with pytest.raises(DeadlineExceededError, match=r"never allows 4 .* max_size is 3"):
            client.sample_batch("small", 4, partial=False, timeout_ms=20)
        with pytest.raises(DeadlineExceededError, match="never allows 9 samples at once, but"):
            client.sample_batch("ratio", 9, partial=False, timeout_ms=20)
        with pytest.raises(InvalidArgumentError, match="may have 65536 items, got 65537"):
            client.sample_batch("ratio", 65_537, partial=False, timeout_ms=20)

    def test_a_large_batch_comes_whole(self, serve):
        client = serve(testing.table())
        client.insert([np.random.default_rng(0).random(100_000)], {"table": 1.0})
        batch = client.sample_batch("table", 20, partial=False)
        assert batch.data[0].shape == (20, 1, 100_000)

    def test_learners_take_turns(self, serve):
        """Whole batches of several threads from one queue: each item once, none is lost."""
        client = serve(reverb.Table.queue("queue", 1000))
        batches, lock = [], threading.Lock()

        def learn():
            while True:
                try:
                    batch = client.sample_batch("queue", 7, partial=False, timeout_ms=300)
                except DeadlineExceededError:
                    return
                with lock:
                    batches.append(batch.data[0].ravel().tolist())

        threads = [threading.Thread(target=learn) for _ in range(3)]
        for thread in threads:
            thread.start()
        client.insert_batch([np.arange(200)], {"queue": 1.0})
        for thread in threads:
            thread.join()
        assert sorted(np.concatenate(batches)) == list(range(196))
        assert client.server_info()["queue"].current_size == 4


class TestGivenMemory:
    def test_the_batch_is_written_to_it(self, serve):
        client = serve(testing.table(signature=SPEC))
        write(client, 4)
        out = empty(4)
        batch = client.sample_batch("table", 4, out=out)
        assert batch.data is out
        wanted = client.sample_batch("table", 4, unpack_as_table_signature=True).data
        for one, other in zip(flat(out), flat(wanted), strict=True):
            np.testing.assert_array_equal(one, other)

    def test_the_info_too(self, serve):
        client = serve(testing.table())
        write(client, 3)
        first = client.sample_batch("table", 3)
        out = reverb.ReplaySample(
            reverb.SampleInfo(*(np.zeros_like(field) for field in first.info[:5])),
            [np.zeros_like(column) for column in first.data],
        )
        batch = client.sample_batch("table", 3, out=out)
        assert all(a is b for a, b in zip(batch.info[:5], out.info, strict=True))
        assert out.info.key.tolist() == first.info.key.tolist()
        assert out.info.times_sampled.tolist() == [2, 2, 2] or max(out.info.times_sampled) > 1
        assert batch.min_probability.tolist() == first.min_probability.tolist()
        every = reverb.BatchInfo(*(np.full_like(field, 9) for field in first.info[:7]))
        batch = client.sample_batch("table", 3, out=reverb.ReplaySample(every, out.data))
        assert all(a is b for a, b in zip(batch.info[:7], every[:7], strict=True))
        assert (every.min_probability.tolist(), every.epoch.tolist()) == ([1.0] * 3, [0] * 3)
        with pytest.raises(TypeError, match=r"out\.info must be a SampleInfo or a BatchInfo"):
            client.sample_batch("table", 3, out=reverb.ReplaySample(every[:6], out.data))

    def test_the_buffer_protocol_will_do(self, serve):
        client = serve(testing.table())
        client.insert([1.5], {"table": 1.0})
        values = array.array("d", [0.0, 0.0])
        client.sample_batch("table", 2, out=[memoryview(values).cast("B").cast("d", (2, 1))])
        assert values.tolist() == [1.5, 1.5]

    def test_a_short_batch_is_views_of_the_first_rows(self, serve):
        client = serve(reverb.Table.queue("queue", 10))
        client.insert([3], {"queue": 1.0})
        out = {"x": np.full((4, 1), 9)}
        batch = client.sample_batch("queue", 4, out=out, timeout_ms=20)
        assert batch.data["x"].tolist() == [[3]]
        assert np.shares_memory(batch.data["x"], out["x"])
        assert out["x"].ravel().tolist() == [3, 9, 9, 9]

    def test_what_does_not_fit_is_told_with_the_items(self, serve):
        client = serve(reverb.Table.queue("queue", 10, signature=SPEC))
        write(client, 2, "queue")
        out = empty(2)
        out["obs"]["image"] = np.zeros((2, 1, 4, 3), np.float32)
        text = (
            'out["obs"]["image"] must be uint8 [2, 1, 4, 3], C-contiguous and writable; got '
            "float32 [2, 1, 4, 3]"
        )
        with pytest.raises(InvalidArgumentError) as caught:
            client.sample_batch("queue", 2, out=out)
        assert str(caught.value) == text
        assert [sample.data[0].tolist() for sample in caught.value.samples] == [[0], [1]]
        assert caught.value.keys == [sample.info.key for sample in caught.value.samples]

    @pytest.mark.parametrize(
        ("column", "text"),
        [
            (np.zeros((3, 1)), r"out\[0\] must have shape \[2, ...\], a row for each item; got"),
            (np.zeros((3, 2)).T, r"out\[0\] must be C-contiguous .* another array of float64"),
            (np.zeros((2, 2))[:, :1], r"out\[0\] must be C-contiguous and writable"),
            (np.frombuffer(bytes(16)).reshape(2, 1), "got a read-only array of float64 "),
            (np.zeros((2, 1), ">f8"), r"must be float64 \[2, 1\], .*; got >f8 \[2, 1\]"),
            (np.zeros((2, 2)), r"must be float64 \[2, 1\], .* got float64 \[2, 2\]"),
        ],
    )
    def test_wrong_arrays(self, serve, column, text):
        client = serve(testing.table())
        client.insert([1.0], {"table": 1.0})
        with pytest.raises(InvalidArgumentError, match=text):
            client.sample_batch("table", 2, out=[column])

    def test_wrong_nests(self, serve):
        client = serve(testing.table(signature=SPEC))
        write(client, 2)
        with pytest.raises(TypeError, match=r'out\["reward"\] must be a NumPy array or .*str'):
            client.sample_batch("table", 2, out={**empty(2), "reward": "no"})
        with pytest.raises(InvalidArgumentError, match=r"out\['reward'\] must be like the table"):
            client.sample_batch("table", 2, out={**empty(2), "reward": {}})
        with pytest.raises(InvalidArgumentError, match="out must have the fields"):
            client.sample_batch("table", 2, out={"a": np.zeros((2, 1))})
        with pytest.raises(InvalidArgumentError, match="they have 4, and out has 1"):
            client.sample_batch("table", 2, out=[np.zeros((2, 1))])
        one = np.zeros((2, 1))
        with pytest.raises(
            InvalidArgumentError, match="share memory; each array must have its own"
        ):
            client.sample_batch("table", 2, out=[one, one])
        with pytest.raises(InvalidArgumentError, match="cannot hold a packed batch"):
            client.sample_batch("table", 2, out=empty(2), ragged="packed")
        info = reverb.SampleInfo(*[np.zeros(2, np.int64)] * 5)
        with pytest.raises(InvalidArgumentError, match=r"out.info.key must be uint64 \[2\]"):
            client.sample_batch("table", 2, out=reverb.ReplaySample(info, empty(2)))

    def test_strings_have_no_given_memory(self, serve):
        client = serve(testing.table())
        client.insert(["text"], {"table": 1.0})
        with pytest.raises(InvalidArgumentError, match="a column of strings, which cannot be"):
            client.sample_batch("table", 2, out=[np.zeros((2, 1), object)])


class TestColumns:
    @pytest.mark.parametrize(
        ("columns", "nest"),
        [
            ("reward", {"reward"}),
            (["reward", "action"], {"action", "reward"}),
            (["obs"], {"obs"}),
            ([("obs", "image"), "action"], {"action", "obs"}),
            ([0, 3], {"action", "reward"}),
        ],
    )
    def test_only_these_come(self, serve, columns, nest):
        client = serve(testing.table(signature=SPEC))
        write(client, 3)
        whole = client.sample_batch("table", 3, unpack_as_table_signature=True)
        some = client.sample_batch("table", 3, columns=columns, unpack_as_table_signature=True)
        assert some.data.keys() == nest
        for name in nest:
            for path, column in leaves(some.data[name]):
                wanted = whole.data[name]
                for key in path:
                    wanted = wanted[key]
                np.testing.assert_array_equal(column, wanted)
        flat_batch = client.sample_batch("table", 3, columns=columns)
        assert len(flat_batch.data) == len(flat(some.data))

    def test_fewer_bytes_come(self, start):
        server = start(testing.table(), port=0)
        client = reverb.Client(f"{REMOTE}:{server.port}")
        noise = np.random.default_rng(0).integers(0, 255, 1_000_000, np.uint8)
        writer = client.trajectory_writer(1)
        writer.append({"big": noise, "small": 1})
        history = writer.history
        writer.create_item("table", 1.0, {"big": history["big"][:], "small": history["small"][:]})
        writer.flush()

        def sent():
            return client.status().traffic.sent_bytes

        before = sent()
        assert client.sample_batch("table", 1, columns=[1]).data[0].tolist() == [[1]]
        assert sent() - before < 10_000
        client.sample_batch("table", 1)
        assert sent() - before > 1_000_000

    def test_wrong_columns(self, serve):
        client = serve(testing.table(signature=SPEC), testing.table("unsigned"))
        write(client, 1)
        write(client, 1, "unsigned")
        text = "columns has 'nope', which is no column of table table; its columns are 'action'"
        with pytest.raises(InvalidArgumentError, match=text):
            client.sample_batch("table", 1, columns=["nope"])
        with pytest.raises(InvalidArgumentError, match="columns must be from 0 to 3, got 4"):
            client.sample_batch("table", 1, columns=[4])
        with pytest.raises(InvalidArgumentError, match="has no signature, so its columns have no"):
            client.sample_batch("unsigned", 1, columns=["obs"])
        with pytest.raises(InvalidArgumentError, match="must name at least one column"):
            client.sample_batch("table", 1, columns=[])
        with pytest.raises(InvalidArgumentError, match="columns has column 7, but an item has 4"):
            client.sample_batch("unsigned", 1, columns=[7])


class TestOwnMemory:
    def test_large_arrays_are_aligned_and_used_again(self, serve):
        client = serve(testing.table())
        client.insert([np.zeros(1000, np.float32), np.zeros(3)], {"table": 1.0})
        starts = set()
        for _ in range(20):
            batch = client.sample_batch("table", 8)
            assert batch.data[0].ctypes.data % 64 == 0
            starts.add(batch.data[0].ctypes.data)
            del batch
        assert len(starts) <= 2

    def test_batches_that_are_kept_stay(self, serve):
        client = serve(testing.table(sampler=item_selectors.Fifo(), max_times_sampled=1))
        client.insert_batch([np.arange(4096.0).reshape(8, 512)], {"table": 1.0})
        kept = [client.sample_batch("table", 2) for _ in range(4)]
        values = np.concatenate([batch.data[0].ravel() for batch in kept])
        assert values.tolist() == list(range(4096))

    def test_a_sampler_hands_its_slots_out_in_turn(self, serve):
        client = serve(testing.table(max_times_sampled=1, signature=SPEC))
        write(client, 12)
        with client.batch_sampler(
            "table", 2, num_buffers=3, unpack_as_table_signature=True
        ) as batches:
            taken = [next(batches) for _ in range(3)]
            assert [batch.data["action"].ravel().tolist() for batch in taken] == [
                [0, 1],
                [2, 3],
                [4, 5],
            ]
            fourth = next(batches)
            assert fourth.data["action"] is taken[0].data["action"]
            assert fourth.info.key is taken[0].info.key
            assert taken[0].data["obs"]["speed"].tolist() == [[[6, -6]], [[7, -7]]]
        assert list(batches) == []

    def test_a_sampler_is_not_partial_unless_asked(self, serve):
        client = serve(reverb.Table.queue("queue", 10))
        client.insert([1], {"queue": 1.0})
        batches = client.batch_sampler("queue", 2, timeout_ms=20)
        with pytest.raises(DeadlineExceededError):
            next(batches)
        assert iter(batches) is batches
        partial = client.batch_sampler("queue", 2, timeout_ms=20, partial=True)
        assert next(partial).data[0].tolist() == [[1]]
        client.insert([2], {"queue": 1.0})
        client.insert([3], {"queue": 1.0})
        assert next(partial).data[0].tolist() == [[2], [3]]

    def test_a_sampler_of_strings(self, serve):
        client = serve(testing.table())
        client.insert(["text"], {"table": 1.0})
        batches = client.batch_sampler("table", 2, num_buffers=1)
        assert [next(batches).data[0].tolist() for _ in range(3)] == [[[b"text"]] * 2] * 3

    def test_a_sampler_needs_a_buffer(self, serve):
        client = serve(testing.table())
        with pytest.raises(InvalidArgumentError, match="num_buffers must be at least 1, got 0"):
            client.batch_sampler("table", 2, num_buffers=0)


def test_a_batch_is_a_sample_with_attributes(serve):
    client = serve(testing.table())
    write(client, 2)
    batch = client.sample_batch("table", 2)
    assert isinstance(batch, reverb.ReplaySample)
    assert batch.info._fields[:5] == reverb.SampleInfo._fields
    assert [field.shape for field in batch.info[:7]] == [(2,)] * 7
    assert (batch.min_probability.dtype, batch.epoch.dtype) == (np.float64, np.int64)
    assert (batch.epoch.tolist(), batch.lengths) == ([0, 0], ())
    assert batch.window_start == batch.num_windows == batch.window_mask == ()
    loaded = pickle.loads(pickle.dumps(batch))
    assert (type(loaded), type(loaded.info)) == (reverb.ReplayBatch, reverb.BatchInfo)
    assert loaded.epoch.tolist() == [0, 0]
    assert len(rows_of_batch(loaded)) == 2


def leaves(nest, path=()):
    if isinstance(nest, dict):
        for key, child in nest.items():
            yield from leaves(child, (*path, key))
    else:
        yield path, nest


def flat(nest):
    return [leaf for _, leaf in leaves(nest)]
