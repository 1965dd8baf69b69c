# SPDX-License-Identifier: Apache-2.0
"""Batches as arrays of JAX: shardings, compilations, and memory that nobody changes."""

import logging
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reverb
from reverb.adapters import jax as reverb_jax
from reverb.errors import InvalidArgumentError, ResourceExhaustedError, TableNotFoundError

SIGNATURE = {"x": np.zeros([1, 3], np.float32), "y": np.zeros([1], np.int32)}


@pytest.fixture
def client(serve, table):
    client = serve(table(signature=SIGNATURE))
    values = np.arange(100)
    rows = {"x": np.float32(values)[:, None].repeat(3, 1), "y": np.int32(values)}
    client.insert_batch(rows, {"t": 1.0})
    return client


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))


def test_data_is_on_the_device_and_the_info_is_not(client):
    known = {sample.info.key for sample in client.scan("t")}
    with reverb_jax.batches(client, "t", 32) as batches:
        info, data = next(batches)
    assert isinstance(data["x"], jax.Array)
    assert data["x"].shape == (32, 1, 3)
    assert jnp.array_equal(data["x"][..., 0], data["y"].astype(jnp.float32))
    assert info.key.dtype == np.uint64
    assert set(info.key.tolist()) <= known


def test_items_of_one_step_have_no_dimension_of_steps(client):
    with reverb_jax.batches(client, "t", 32, squeeze=True) as batches:
        data = next(batches).data
    assert data["x"].shape == (32, 3)
    assert jnp.array_equal(data["x"][:, 0], data["y"].astype(jnp.float32))


@pytest.mark.parametrize(
    ("spec", "rows"), [(("x",), 8), ((("x", "y"),), 4), ((), 32), (("y",), 16)], ids=str
)
def test_rows_are_divided_among_devices(client, mesh, spec, rows):
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    with reverb_jax.batches(client, "t", 32, sharding=sharding) as batches:
        data = next(batches).data
    assert data["x"].sharding == sharding
    assert {shard.data.shape for shard in data["x"].addressable_shards} == {(rows, 1, 3)}
    assert jnp.array_equal(data["x"][..., 0], data["y"].astype(jnp.float32))
    both = zip(data["x"].addressable_shards, data["y"].addressable_shards, strict=True)
    for x, y in both:
        assert np.array_equal(np.asarray(x.data)[..., 0], np.asarray(y.data, np.float32))


def test_a_step_is_compiled_once(client, caplog):
    @jax.jit
    def step(total, data):
        return total + data["x"].sum()

    total = jnp.zeros(())
    with (
        jax.log_compiles(),
        caplog.at_level(logging.WARNING),
        reverb_jax.batches(client, "t", 8) as batches,
    ):
        for _ in range(1_000):
            sample = next(batches)
            total = step(total, sample.data)
    compiled = [it for it in caplog.records if "Compiling jit(step)" in it.getMessage()]
    assert len(compiled) == 1, [it.getMessage() for it in caplog.records][:5]


LENGTHS = (1, 4, 7)


@pytest.fixture
def varied(serve, table):
    specs = {
        "x": reverb.specs.TensorSpec([None], np.float32),
        "name": reverb.specs.TensorSpec([None], np.dtype(object)),
        "episode": reverb.specs.TensorSpec([], np.int32),
    }
    client = serve(table(signature=specs))
    with client.trajectory_writer(max(LENGTHS)) as writer:
        for episode, length in enumerate(LENGTHS):
            for step in range(length):
                row = {"x": np.float32(step + 1), "name": "s", "episode": np.int32(episode)}
                writer.append(row)
            history = writer.history
            item = {name: history[name][-length:] for name in ("x", "name")}
            writer.create_item("t", 1.0, {**item, "episode": history["episode"][-1]})
            writer.end_episode()
    return client


def test_whole_episodes_of_one_shape_are_compiled_once(varied):
    @jax.jit
    def total(x, lengths):
        return jnp.where(jnp.arange(x.shape[1]) < lengths[:, None], x, 0).sum(axis=1)

    with reverb_jax.batches(varied, "t", 2, pad_to=7, pad={"x": -1}) as batches:
        for _ in range(20):
            sample = next(batches)
            data, lengths = sample.data, sample.lengths
            assert (data["x"].shape, data["name"].shape) == ((2, 7), (2, 7))
            assert data["episode"].shape == (2,)
            assert lengths["x"].tolist() == [LENGTHS[it] for it in data["episode"]]
            found = total(data["x"], lengths["x"])
            assert found.tolist() == [it * (it + 1) / 2 for it in lengths["x"].tolist()]
    assert total._cache_size() == 1


def test_an_item_that_is_longer_than_pad_to_is_an_error(varied):
    text = (
        "an item of table t has 7 steps, more than pad_to, 6. Pass the largest length of its "
        "items, or sample a part of each by window="
    )
    with (
        reverb_jax.batches(varied, "t", 64, pad_to=6) as batches,
        pytest.raises(InvalidArgumentError) as caught,
    ):
        next(batches)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"pad_to": 0}, "pad_to must be at least 1, got 0"),
        ({"pad_to": 2.0}, "pad_to must be an integer, got float"),
        ({"pad_to": 2, "ragged": "packed"}, "pad_to needs ragged='pad', got 'packed'"),
        ({"pad_to": 2, "squeeze": True}, "leave squeeze out, got True"),
        ({"pad_to": 2, "window": reverb.Window(2)}, "leave window out, got Window"),
        ({"pad_to": 2, "pad_to_multiple_of": 4}, "leave pad_to_multiple_of out, got 4"),
    ],
)
def test_pad_to_goes_with_whole_items(client, options, error):
    with pytest.raises((InvalidArgumentError, TypeError), match=error):
        reverb_jax.batches(client, "t", 2, **options)


def test_packed_texts_stay_arrays(varied):
    with reverb_jax.batches(varied, "t", 3, ragged="packed") as batches:
        data = next(batches).data
    assert isinstance(data["x"].values, jax.Array)
    assert isinstance(data["name"], reverb.Ragged)
    assert set(np.concatenate(list(data["name"]))) == {b"s"}


def test_nobody_writes_to_a_batch_any_more(client):
    seen = []

    def keep(sample):
        seen.append(sample.data["x"])
        return sample

    with reverb_jax.batches(client, "t", 2_000, transform=keep) as batches:
        first = next(batches)
        copies = np.asarray(first.data["x"]).copy()
        with pytest.raises(ValueError, match="read-only"):
            seen[0][:] = 0
        del seen[:]
        for _ in range(20):
            next(batches)
            del seen[:]
        assert np.array_equal(np.asarray(first.data["x"]), copies)


def test_priorities_go_back_as_arrays_of_jax(client):
    with reverb_jax.batches(client, "t", 16) as batches:
        keys = next(batches).info.key
        batches.update_priorities(keys, jnp.full(16, 3.0))
        batches.flush()
    found = {sample.info.key: sample.info.priority for sample in client.scan("t")}
    assert {found[key] for key in keys.tolist()} == {3.0}


NAMES = [
    "float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "uint8", "int8", "uint16", "int16", "uint32", "int32",
    "int4", "uint4",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_priorities_of_every_dtype(client, name):
    keys = [sample.info.key for sample in client.scan("t")]
    client.update_priorities("t", keys, jnp.full(100, 2).astype(name))
    assert {sample.info.priority for sample in client.scan("t")} == {2.0}
    with reverb_jax.batches(client, "t", 16) as batches:
        keys = next(batches).info.key
        batches.update_priorities(keys, jnp.full(16, 4).astype(name))
        batches.flush()
    found = {sample.info.key: sample.info.priority for sample in client.scan("t")}
    assert {found[key] for key in keys.tolist()} == {4.0}
    row = {"x": jnp.zeros((1, 3)), "y": jnp.zeros(1, jnp.int32)}
    client.insert_batch(row, {"t": jnp.full(1, 6).astype(name)})
    client.insert({"x": row["x"][0], "y": row["y"][0]}, {"t": jnp.asarray(6).astype(name)})
    found = [sample.info.priority for sample in client.scan("t")]
    assert found.count(6.0) == 2


CROSSINGS = {
    "jax.tree.map": lambda batch: jax.tree_util.tree_map(np.asarray, batch),
    "unflattened": lambda batch: jax.tree_util.tree_unflatten(
        jax.tree_util.tree_structure(batch), jax.tree_util.tree_leaves(batch)
    ),
    "jax.device_put": jax.device_put,
    "jax.jit": jax.jit(lambda batch: batch),
}


@pytest.mark.parametrize("cross", CROSSINGS.values(), ids=CROSSINGS)
def test_every_field_crosses_jax(serve, table, cross):
    client = serve(table(signature=SIGNATURE))
    rows = {"x": np.zeros((100, 3), np.float32), "y": np.arange(100, dtype=np.int32)}
    # One item is hardly ever sampled, so that it is in no batch.
    client.insert_batch(rows, {"t": np.r_[1e-6, np.ones(99)]})
    with reverb_jax.batches(client, "t", 8) as batches:
        batch = cross(next(batches))
    assert (type(batch), type(batch.info)) == (reverb.ReplayBatch, reverb.BatchInfo)
    assert [it.shape for it in batch.info[:7]] == [(8,)] * 7
    assert batch.lengths == ()
    info, _ = batch
    for it in (batch, info):
        assert reverb.importance_weights(it, 1.0).max() < 1e-5


def windows_of(batch):
    """Compares rows with slices; padding repeats the first or the last step."""
    start, count, mask = (np.asarray(it) for it in batch.info[8:])
    assert (start.dtype, count.dtype, mask.dtype) == (np.int32, np.int32, np.bool_)
    places = start[:, None] + np.arange(4)
    assert np.array_equal(mask, (places >= 0) & (places < count[:, None]))
    # Every step is an anchor, so an item has as many windows as steps.
    assert np.array_equal(batch.data["step"], places.clip(0, count[:, None] - 1))
    return count


@pytest.fixture
def episodes(serve, table):
    """A table with two items of steps, each of which tells its place."""
    client = serve(table(signature={"step": reverb.specs.TensorSpec([None], np.int32)}))
    for length in (4, 9):
        client.insert_sequence({"step": np.arange(length, dtype=np.int32)}, {"t": 1.0})
    return client


@pytest.mark.parametrize("cross", CROSSINGS.values(), ids=CROSSINGS)
def test_the_fields_of_windows_cross_jax(episodes, cross):
    window = reverb.Window(3, before=1, pad="both")
    with reverb_jax.batches(episodes, "t", 8, window=window) as batches:
        batch = next(batches)
    assert isinstance(batch.data["step"], jax.Array)
    assert {type(it) for it in batch.info[8:]} == {np.ndarray}
    batch = cross(batch)
    assert (type(batch), type(batch.info)) == (reverb.ReplayBatch, reverb.BatchInfo)
    count = windows_of(batch)
    weights = reverb.importance_weights(batch, 1.0, "batch")
    np.testing.assert_allclose(weights, count / count.max(), rtol=1e-6)


def test_windows_are_compiled_once(episodes, mesh):
    """A mask of the loss has the same shape in all batches, also with shards of rows."""
    traces = []

    @jax.jit
    def loss(data, mask):
        traces.append(None)
        return jnp.sum(data["step"] * mask)

    window = reverb.Window(3, before=1, pad="both")
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    with reverb_jax.batches(episodes, "t", 8, window=window, sharding=sharding) as batches:
        for _, batch in zip(range(4), batches, strict=False):
            assert batch.data["step"].sharding == sharding
            windows_of(batch)
            mask = batch.window_mask
            assert loss(batch.data, mask) == (np.asarray(batch.data["step"]) * mask).sum()
    assert len(traces) == 1


@pytest.mark.parametrize("sharded", [False, True])
def test_what_jax_cannot_hold_stays_as_it_is(serve, table, mesh, sharded):
    signature = {
        "big": np.zeros([1], np.int64),
        "huge": np.zeros([1], np.uint64),
        "text": np.zeros([1], object),
        "x": np.zeros([1], np.float32),
    }
    client = serve(table(signature=signature))
    for number in range(8):
        big = np.int64(2**40 + number)
        row = {"big": big, "huge": np.uint64(2**63 + number), "text": f"text {number}"}
        client.insert(row | {"x": np.float32(number)}, {"t": 1.0})
    sharding = NamedSharding(mesh, PartitionSpec("x")) if sharded else None
    with reverb_jax.batches(client, "t", 8, distinct=True, sharding=sharding) as batches:
        data = next(batches).data
    assert isinstance(data["x"], jax.Array)
    numbers = np.asarray(data["x"]).ravel().astype(int).tolist()
    assert data["big"].ravel().tolist() == [2**40 + number for number in numbers]
    assert data["huge"].ravel().tolist() == [2**63 + number for number in numbers]
    assert data["text"].ravel().tolist() == [f"text {number}".encode() for number in numbers]
    assert {type(data[name]) for name in ("big", "huge", "text")} == {np.ndarray}


def test_integers_of_64_bits_where_jax_has_them(serve, table):
    client = serve(table())
    client.insert([np.int64(2**40)], {"t": 1.0})
    jax.config.update("jax_enable_x64", True)
    try:
        with reverb_jax.batches(client, "t", 2) as batches:
            (column,) = next(batches).data
        assert isinstance(column, jax.Array)
        assert column.ravel().tolist() == [2**40] * 2
    finally:
        jax.config.update("jax_enable_x64", False)


def test_arrays_of_jax_are_written(client):
    row = {"x": jnp.full(3, 5.0), "y": jnp.int32(500)}
    client.insert(row, {"t": 1.0})
    (found,) = [sample for sample in client.scan("t") if sample.data[1][0] == 500]
    assert found.data[0].tolist() == [[5.0] * 3]


def test_wrong_arguments(client, mesh):
    sharding = NamedSharding(mesh, PartitionSpec(("x", "y")))
    with pytest.raises(
        InvalidArgumentError, match="250 does not divide into 8 shards of the first"
    ):
        reverb_jax.batches(client, "t", 250, sharding=sharding)
    with pytest.raises(InvalidArgumentError, match="partial must be False"):
        reverb_jax.batches(client, "t", 2, partial=True)
    with pytest.raises(InvalidArgumentError, match="batch_size must be at least 1"):
        reverb_jax.batches(client, "t", 0)
    with (
        reverb_jax.batches(client, "u", 2) as batches,
        pytest.raises(TableNotFoundError, match="table u at"),
    ):
        next(batches)


def test_bfloat16(serve, table):
    client = serve(table())
    client.insert([jnp.arange(4, dtype=jnp.bfloat16)], {"t": 1.0})
    with reverb_jax.batches(client, "t", 2) as batches:
        (column,) = next(batches).data
    assert column.dtype == jnp.bfloat16
    assert column.astype(jnp.float32).tolist() == [[[0.0, 1.0, 2.0, 3.0]]] * 2


@pytest.fixture
def ragged(serve, table):
    """A client of a table with items of 1, 3 and 2 steps."""
    client = serve(table())
    with client.trajectory_writer(3) as writer:
        for length in [1, 3, 2]:
            for step in range(length):
                writer.append([np.float32(step)])
            writer.create_item("t", 1.0, [writer.history[0][-length:]])
            writer.end_episode()
    return client


def test_packed_items_are_arguments_of_compiled_functions(ragged):
    @jax.jit
    def total(column):
        return column.values.sum(), jnp.diff(column.offsets)

    with reverb_jax.batches(ragged, "t", 6, ragged="packed") as batches:
        (column,) = next(batches).data
    assert isinstance(column, reverb.Ragged)
    assert isinstance(column.values, jax.Array)
    found, lengths = total(column)
    assert float(found) == sum(length * (length - 1) / 2 for length in lengths.tolist())


def test_padded_lengths_bound_the_number_of_shapes(ragged):
    with reverb_jax.batches(ragged, "t", 6, ragged="pad", pad_to_multiple_of=4) as batches:
        batch = next(batches)
    assert batch.data[0].shape == (6, 4)
    assert set(np.asarray(batch.lengths[0]).tolist()) <= {1, 2, 3}


def test_a_batch_above_its_limit_is_an_error(ragged):
    options = {"ragged": "pad", "pad_to_multiple_of": 4}
    with reverb_jax.batches(ragged, "t", 6, max_batch_bytes=96, **options) as batches:
        assert next(batches).data[0].shape == (6, 4)
    too_much = reverb_jax.batches(ragged, "t", 6, max_batch_bytes=95, **options)
    with too_much, pytest.raises(ResourceExhaustedError, match="takes 96 bytes, more than"):
        next(too_much)


def test_packed_items_cannot_be_divided(ragged, mesh):
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    with pytest.raises(InvalidArgumentError, match="no first axis that a sharding could divide"):
        reverb_jax.batches(ragged, "t", 8, sharding=sharding, ragged="packed")


def test_epochs_end_the_batches(serve, table):
    client = serve(table(sampler=reverb.selectors.Shuffle()))
    client.insert_batch([np.arange(10, dtype=np.int32)], {"t": 1.0})
    with reverb_jax.batches(client, "t", 4, epochs=2, drop_last=True) as batches:
        found = [(batch.epoch.tolist(), batch.data[0].ravel().tolist()) for batch in batches]
    assert [set(epochs) for epochs, _ in found] == [{0}, {0}, {1}, {1}]
    assert len(set(found[0][1] + found[1][1])) == 8
    with pytest.raises(InvalidArgumentError, match="drop_last must be True with epochs"):
        reverb_jax.batches(client, "t", 4, epochs=2)


def test_epochs_are_not_for_several_processes(client, monkeypatch):
    module = sys.modules["reverb.adapters.jax.batches"]
    monkeypatch.setattr(module, "_rows_of_process", lambda *_: 2)
    with pytest.raises(InvalidArgumentError, match="each samples 2 of 4 rows"):
        reverb_jax.batches(client, "t", 4, epochs=2, drop_last=True)
