# SPDX-License-Identifier: Apache-2.0
"""What programs of TransferQueue rely on: the same tests over TransferQueue and over our module."""

import asyncio
import pickle

import pytest

# What both libraries say of PyTorch and of each other is none of ours.
pytestmark = pytest.mark.filterwarnings("ignore")

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test-transferqueue`")
tensordict = pytest.importorskip("tensordict", reason="TensorDict is not installed")
TensorDict, NonTensorStack = tensordict.TensorDict, tensordict.NonTensorStack

P = "train"


def rows(value):
    """The rows of a field, however they are stacked."""
    if isinstance(value, torch.Tensor):
        return [row.tolist() for row in value.unbind()]
    return list(value) if isinstance(value, list) else value.tolist()


def put(tq, keys, **fields):
    return tq.kv_batch_put(keys, P, fields=TensorDict(fields, batch_size=len(keys)))


# ---- Puts ----------------------------------------------------------------------------------------


def test_a_later_put_overwrites_a_field(tq):
    put(tq, ["a", "b"], x=torch.tensor([[1, 2], [3, 4]]))
    tq.kv_put("a", P, fields={"x": torch.tensor([5, 6])})
    assert rows(tq.kv_batch_get(["a", "b"], P)["x"]) == [[5, 6], [3, 4]]


def test_a_later_put_may_have_another_shape_and_dtype(tq):
    put(tq, ["a"], x=torch.tensor([[1, 2]]))
    tq.kv_put("a", P, fields={"x": torch.tensor([0.5, 1.5, 2.5])})
    value = tq.kv_batch_get("a", P)["x"]
    assert rows(value) == [[0.5, 1.5, 2.5]]
    assert value.dtype == torch.float32


def test_a_put_of_other_fields_keeps_the_rest(tq):
    put(tq, ["a"], x=torch.tensor([[1]]), y=torch.tensor([[2]]))
    put(tq, ["a"], z=torch.tensor([[3]]))
    got = tq.kv_batch_get("a", P)
    assert {name: rows(value) for name, value in got.items()} == {
        "x": [[1]],
        "y": [[2]],
        "z": [[3]],
    }


def test_a_put_tells_the_fields_that_all_its_keys_have(tq):
    put(tq, ["a", "b"], x=torch.zeros(2, 1))
    put(tq, ["a"], y=torch.zeros(1, 1))
    meta = put(tq, ["b", "a"], z=torch.zeros(2, 1))
    assert sorted(meta.fields) == ["x", "z"]
    assert (meta.keys, meta.partition_id) == (["b", "a"], P)


def test_a_key_may_have_a_tag_only(tq):
    tq.kv_put("a", P, tag={"status": "running"})
    assert tq.kv_list(P) == {P: {"a": {"status": "running"}}}
    with pytest.raises(ValueError, match="not ready"):
        tq.kv_batch_get("a", P)


def test_a_key_may_have_fields_only(tq):
    tq.kv_put("a", P, fields={"x": torch.tensor(1)})
    assert tq.kv_list(P) == {P: {"a": {}}}


def test_entries_of_tags_are_merged(tq):
    tq.kv_put("a", P, tag={"status": "running", "step": 1})
    tq.kv_put("a", P, tag={"reward": 0.5})
    tq.kv_put("a", P, tag={"status": "done"})
    assert tq.kv_list(P)[P]["a"] == {"status": "done", "step": 1, "reward": 0.5}


def test_the_last_put_of_an_entry_counts(tq):
    for names in (["s"], ["s", "t"], ["s"], ["s", "u"], ["s", "t"]):
        tq.kv_put("a", P, tag=dict.fromkeys(names, len(tq.kv_list(P).get(P, {}).get("a", {}))))
    tq.kv_put("a", P, tag={"s": "last"})
    assert tq.kv_list(P)[P]["a"]["s"] == "last"


def test_a_put_of_nothing_is_an_error(tq):
    with pytest.raises(ValueError, match="fields"):
        tq.kv_put("a", P)
    with pytest.raises(ValueError, match="fields"):
        tq.kv_batch_put(["a"], P)
    with pytest.raises(ValueError, match="empty list"):
        tq.kv_batch_put([], P, tags=[])


def test_sizes_that_differ_are_errors(tq):
    with pytest.raises(ValueError, match="length"):
        tq.kv_batch_put(["a", "b"], P, tags=[{}])
    with pytest.raises(ValueError, match=r"batch.size"):
        tq.kv_batch_put(["a", "b"], P, fields=TensorDict({"x": torch.zeros(3)}, batch_size=3))


def test_a_key_twice_in_a_put_is_an_error(tq):
    with pytest.raises(ValueError, match="duplicated"):
        put(tq, ["a", "a"], x=torch.zeros(2))


def test_a_parser_changes_the_fields(tq):
    def parse(fields):
        fields["x"] = fields["x"] + 1
        return fields

    tq.kv_put("a", P, fields={"x": torch.tensor([1, 2])}, data_parser=parse)
    assert rows(tq.kv_batch_get("a", P)["x"]) == [[2, 3]]


# ---- Gets ----------------------------------------------------------------------------------------


def test_rows_come_in_the_order_of_the_keys(tq):
    put(tq, ["a", "b", "c"], x=torch.arange(6).reshape(3, 2), y=torch.arange(3.0))
    got = tq.kv_batch_get(["c", "a", "c"], P)
    assert (rows(got["x"]), rows(got["y"])) == ([[4, 5], [0, 1], [4, 5]], [2.0, 0.0, 2.0])


def test_without_fields_those_come_that_all_keys_have(tq):
    put(tq, ["a", "b"], x=torch.zeros(2, 1))
    put(tq, ["a"], y=torch.zeros(1, 1))
    assert set(tq.kv_batch_get(["a", "b"], P).keys()) == {"x"}
    assert set(tq.kv_batch_get(["a"], P).keys()) == {"x", "y"}


def test_a_field_that_some_key_lacks_is_an_error(tq):
    put(tq, ["a"], x=torch.zeros(1, 1))
    put(tq, ["b"], y=torch.zeros(1, 1))
    with pytest.raises(ValueError, match="not ready"):
        tq.kv_batch_get(["a", "b"], P, select_fields="y")


def test_a_field_that_nobody_put_is_left_out(tq):
    put(tq, ["a"], x=torch.zeros(1, 1))
    assert set(tq.kv_batch_get("a", P, select_fields=["x", "other"]).keys()) == {"x"}


def test_missing_keys_are_left_out(tq):
    put(tq, ["a", "b"], x=torch.tensor([[1], [2]]))
    assert rows(tq.kv_batch_get(["gone", "b"], P)["x"]) == [[2]]


@pytest.mark.parametrize(("keys", "partition"), [(["gone"], P), (["a"], "other")])
def test_no_key_at_all_is_an_error(tq, keys, partition):
    put(tq, ["a"], x=torch.zeros(1, 1))
    with pytest.raises(ValueError, match="not found"):
        tq.kv_batch_get(keys, partition)


def test_rows_of_several_lengths_are_nested(tq):
    values = [torch.arange(3.0), torch.arange(0.0), torch.arange(2.0)]
    nested = torch.nested.as_nested_tensor(values, layout=torch.jagged)
    put(tq, ["a", "b", "c"], x=nested)
    got = tq.kv_batch_get(["c", "a", "b"], P)["x"]
    assert got.is_nested
    assert got.layout == torch.jagged
    assert rows(got) == [[0.0, 1.0], [0.0, 1.0, 2.0], []]


def test_single_puts_of_several_lengths_are_nested(tq):
    for length in (1, 3, 2):
        tq.kv_put(f"k{length}", P, fields={"x": torch.full((length, 2), length)})
    got = tq.kv_batch_get(["k1", "k2", "k3"], P)["x"]
    assert got.layout == torch.jagged
    assert rows(got) == [[[n, n]] * n for n in (1, 2, 3)]


def test_batches_of_two_widths_are_nested(tq):
    put(tq, ["a", "b"], x=torch.ones(2, 3))
    put(tq, ["c", "d"], x=torch.ones(2, 1))
    tq.kv_put("e", P, fields={"x": torch.ones(2)})
    assert rows(tq.kv_batch_get(["c", "a", "e"], P)["x"]) == [[1.0], [1.0] * 3, [1.0] * 2]


def test_rows_of_several_dtypes_are_strided(tq):
    tq.kv_put("a", P, fields={"x": torch.ones(2)})
    tq.kv_put("b", P, fields={"x": torch.ones(3, dtype=torch.int64)})
    got = tq.kv_batch_get(["a", "b"], P)["x"]
    assert (got.is_nested, got.layout) == (True, torch.strided)


def test_rows_of_several_ranks_are_no_tensor(tq):
    tq.kv_put("a", P, fields={"x": torch.ones(2)})
    tq.kv_put("b", P, fields={"x": torch.ones(1, 2)})
    got = tq.kv_batch_get(["a", "b"], P)
    assert isinstance(got.get("x"), NonTensorStack)
    assert [value.tolist() for value in got.get("x").tolist()] == [[1.0, 1.0], [[1.0, 1.0]]]


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "uint8", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64"),
    ],
)
def test_every_dtype_survives(tq, dtype):
    value = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    put(tq, ["a", "b"], x=value)
    got = tq.kv_batch_get(["a", "b"], P)["x"]
    assert got.dtype == value.dtype
    assert rows(got) == rows(value)


def test_scalars_of_keys_are_stacked(tq):
    for index in range(3):
        tq.kv_put(f"k{index}", P, fields={"x": torch.tensor(index)})
    got = tq.kv_batch_get(["k2", "k0"], P)["x"]
    assert (got.shape, got.tolist()) == ((2,), [2, 0])


def test_values_that_are_no_tensors_survive(tq):
    values = ["text", [1, 2.5, None], {"a": {"b": b"bytes"}}, True, -3]
    keys = [f"k{index}" for index in range(len(values))]
    for key, value in zip(keys, values, strict=True):
        tq.kv_put(key, P, fields={"x": value})
    got = tq.kv_batch_get(keys, P).get("x")
    assert isinstance(got, NonTensorStack)
    assert got.tolist() == values


def test_a_stack_of_no_tensors_is_put_and_read(tq):
    put(tq, ["a", "b"], x=NonTensorStack("one", "two"), y=torch.zeros(2, 1))
    assert tq.kv_batch_get(["b", "a"], P).get("x").tolist() == ["two", "one"]


def test_results_can_be_written_to(tq):
    put(tq, ["a", "b"], x=torch.zeros(2, 3))
    got = tq.kv_batch_get(["a", "b"], P)
    got["x"].add_(1)
    got["y"] = torch.zeros(2)
    assert rows(tq.kv_batch_get("a", P)["x"]) == [[0.0] * 3]


def test_a_batch_is_read_by_what_its_put_returned(tq):
    meta = put(tq, ["a", "b"], x=torch.tensor([[1], [2]]), y=torch.zeros(2, 1))
    assert set(tq.kv_batch_get_by_meta(meta).keys()) == {"x", "y"}
    assert rows(tq.kv_batch_get_by_meta(meta, select_fields="x")["x"]) == [[1], [2]]
    with pytest.raises(ValueError, match="not found"):
        tq.kv_batch_get_by_meta(meta, select_fields=["x", "other"])


# ---- Lists and clears ----------------------------------------------------------------------------


def test_keys_are_listed_in_the_order_of_creation(tq):
    keys = [f"k{index}" for index in (7, 3, 9, 1, 5)]
    tq.kv_batch_put(keys[:3], P, tags=[{"i": 0}] * 3)
    tq.kv_put(keys[3], P, fields={"x": torch.zeros(1)})
    tq.kv_put(keys[4], P, tag={"i": 1})
    tq.kv_batch_put([keys[2], keys[0]], P, tags=[{"i": 2}, {"i": 3}])
    assert list(tq.kv_list(P)[P]) == keys


def test_partitions_are_apart(tq):
    tq.kv_put("a", "one", tag={"i": 1})
    tq.kv_put("a", "two", tag={"i": 2})
    assert tq.kv_list() == {"one": {"a": {"i": 1}}, "two": {"a": {"i": 2}}}
    tq.kv_clear("a", "one")
    assert tq.kv_list("two") == {"two": {"a": {"i": 2}}}


def test_an_unknown_partition_is_listed_as_nothing(tq):
    assert tq.kv_list("never") == {}


def test_a_cleared_key_is_gone_and_may_come_again(tq):
    put(tq, ["a", "b"], x=torch.tensor([[1], [2]]))
    tq.kv_clear(["a"], P)
    assert list(tq.kv_list(P)[P]) == ["b"]
    with pytest.raises(ValueError, match="not found"):
        tq.kv_batch_get("a", P)
    tq.kv_put("a", P, fields={"y": torch.tensor([3])})
    assert set(tq.kv_batch_get("a", P).keys()) == {"y"}
    assert list(tq.kv_list(P)[P]) == ["b", "a"]


def test_clears_of_what_is_not_there_do_nothing(tq):
    put(tq, ["a"], x=torch.tensor([[1]]))
    tq.kv_clear(["a", "gone"], P)
    tq.kv_clear("a", P)
    tq.kv_clear("a", "never")
    assert tq.kv_list(P) == {P: {}}


def test_a_cleared_partition_is_not_listed(tq):
    put(tq, ["a"], x=torch.tensor([[1]]))
    tq.get_client().clear_partition(P)
    assert P not in tq.kv_list()
    assert P not in tq.get_client().get_partition_list()


# ---- The client ----------------------------------------------------------------------------------


def test_metadata_lead_to_keys_and_values(tq):
    put(tq, ["a", "b"], x=torch.tensor([[1], [2]]))
    client = tq.get_client()
    meta = client.kv_retrieve_meta(["b", "a"], P)
    assert client.kv_retrieve_keys(meta.global_indexes, P) == ["b", "a"]
    assert meta.field_names == ["x"]
    assert meta.is_ready
    assert rows(client.get_data(meta)["x"]) == [[2], [1]]


def test_metadata_of_new_keys_are_filled(tq):
    client = tq.get_client()
    meta = client.kv_retrieve_meta(["a", "b"], P, create=True)
    assert len(meta) == 2
    meta = client.put(TensorDict({"x": torch.tensor([[1], [2]])}, batch_size=2), metadata=meta)
    meta.update_custom_meta([{"i": 1}, {"i": 2}])
    client.set_custom_meta(meta)
    assert rows(tq.kv_batch_get(["b"], P)["x"]) == [[2]]
    assert tq.kv_list(P) == {P: {"a": {"i": 1}, "b": {"i": 2}}}


def test_samples_are_cleared_by_metadata(tq):
    put(tq, ["a", "b"], x=torch.zeros(2, 1))
    client = tq.get_client()
    client.clear_samples(client.kv_retrieve_meta(["a"], P))
    assert list(tq.kv_list(P)[P]) == ["b"]


def test_metadata_survive_a_pickle(tq):
    meta = put(tq, ["a"], x=torch.zeros(1, 1))
    again = pickle.loads(pickle.dumps(meta))
    assert (again.keys, again.fields) == (["a"], ["x"])
    batch = pickle.loads(pickle.dumps(tq.get_client().kv_retrieve_meta("a", P)))
    assert rows(tq.get_client().get_data(batch)["x"]) == [[0.0]]


def test_the_calls_of_asyncio_do_the_same(tq):
    async def use():
        fields = TensorDict({"x": torch.tensor([[1], [2]])}, batch_size=2)
        await tq.async_kv_batch_put(["a", "b"], P, fields=fields, tags=[{"i": 1}, {"i": 2}])
        await tq.async_kv_put("a", P, tag={"i": 3})
        got = await tq.async_kv_batch_get(["a", "b"], P)
        listed = await tq.async_kv_list(P)
        await tq.async_kv_clear(["a", "b"], P)
        return rows(got["x"]), listed[P], await tq.async_kv_list(P)

    assert asyncio.run(use()) == ([[1], [2]], {"a": {"i": 3}, "b": {"i": 2}}, {P: {}})


def test_a_checkpoint_has_everything(tq, tmp_path):
    nested = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
    put(tq, ["a", "b"], x=torch.tensor([[1], [2]]), y=nested, z=NonTensorStack("one", "two"))
    tq.kv_put("a", P, tag={"i": 1})
    tq.save_checkpoint(tmp_path / "saved", metadata={"step": 3})
    tq.get_client().clear_partition(P)
    tq.load_checkpoint(tmp_path / "saved")
    assert tq.kv_list()[P] == {"a": {"i": 1}, "b": {}}
    got = tq.kv_batch_get(["b", "a"], P)
    assert (rows(got["x"]), rows(got["y"])) == ([[2], [1]], [[1.0], [1.0, 1.0]])
    assert got.get("z").tolist() == ["two", "one"]
