# SPDX-License-Identifier: Apache-2.0
"""What our module alone does: errors, names, what it does not have."""

import subprocess
import sys

import pytest

import reverb

pytestmark = pytest.mark.filterwarnings("ignore")

PROGRAM = """
import reverb.adapters.transfer_queue.install
import transfer_queue as tq
import reverb.adapters.transfer_queue as ours
from transfer_queue.metadata import KVBatchMeta
from transfer_queue.client import TransferQueueClient
assert tq is ours
assert KVBatchMeta is ours.KVBatchMeta
assert TransferQueueClient is ours.TransferQueueClient
"""


def test_the_module_takes_the_place_of_the_library():
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], check=True)


def test_a_call_before_init_says_so(ours):
    ours.close()
    with pytest.raises(RuntimeError, match="not initialized"):
        ours.kv_list()


@pytest.mark.parametrize("call", ["kv_update", "get_meta"])
def test_what_is_not_there_names_what_to_use(ours, call):
    ours.kv_put("a", "train", tag={"i": 1})
    calls = {
        "kv_update": lambda: ours.kv_update("train", {"i": 2}),
        "get_meta": lambda: ours.get_client().get_meta(["x"], 1, "train", task_name="step"),
    }
    with pytest.raises(reverb.errors.UnimplementedError, match=r"Client\.take"):
        calls[call]()
    ours.get_client().clear_partition("train")


def test_values_that_msgpack_does_not_know_survive(ours):
    values = [(1, (2,)), {3, 4}, 2**70, {"deep": [(5,)]}, "\ud800", {1: "int key"}]
    keys = [f"k{index}" for index in range(len(values))]
    for key, value in zip(keys, values, strict=True):
        ours.kv_put(key, "train", fields={"x": value})
    assert ours.kv_batch_get(keys, "train").get("x").tolist() == values
    ours.get_client().clear_partition("train")


def test_plain_values_are_stored_without_pickle(ours):
    from reverb.adapters.transfer_queue import plain_values

    assert plain_values.pack([1, None, "x"]) == b"\x93\x01\xc0\xa1x"
    assert b"pickle" not in plain_values.pack({"a": [1.5, b"bytes"]})
    assert plain_values.unpack(plain_values.pack((1, 2))) == (1, 2)


def test_a_failed_save_keeps_the_one_before(ours, tmp_path, monkeypatch):
    ours.kv_put("a", "train", tag={"i": 1})
    ours.save_checkpoint(tmp_path / "saved")

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(ours.TransferQueueClient, "save_storage_checkpoint", fail)
    with pytest.raises(OSError, match="no space"):
        ours.save_checkpoint(tmp_path / "saved")
    ours.get_client().clear_partition("train")
    ours.load_checkpoint(tmp_path / "saved")
    assert ours.kv_list() == {"train": {"a": {"i": 1}}}
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    ours.get_client().clear_partition("train")


def test_dense_batches_come_back_as_one_tensor(ours):
    import torch
    from tensordict import TensorDict

    value = torch.arange(12.0).reshape(4, 3)
    keys = ["a", "b", "c", "d"]
    ours.kv_batch_put(keys, "train", fields=TensorDict({"x": value}, batch_size=4))
    got = ours.kv_batch_get(keys, "train")["x"]
    assert not got.is_nested
    assert torch.equal(got, value)
    ours.get_client().clear_partition("train")


def test_more_layouts_than_slots_are_found(ours):
    """Each put has other tags, so that the numbered places of a partition do not suffice."""
    for index in range(70):
        ours.kv_put("a", "train", tag={f"t{index}": index})
    assert ours.kv_list("train")["train"]["a"] == {f"t{index}": index for index in range(70)}
    ours.kv_clear("a", "train")
    assert ours.kv_list("train") == {"train": {}}
    ours.get_client().clear_partition("train")
    assert ours.kv_list() == {}
    assert ours.get_client().reverb_client.size("transfer_queue_entries") == 0


def test_a_field_that_some_key_lacks_is_named(ours):
    """TransferQueue leaves it out if the keys have another field in common."""
    import torch

    for key in ("a", "b"):
        ours.kv_put(key, "train", fields={"x": torch.ones(1)})
    ours.kv_put("a", "train", fields={"y": torch.ones(1)})
    with pytest.raises(ValueError, match=r"not ready.*missing: y"):
        ours.kv_batch_get(["a", "b"], "train", select_fields=["x", "y"])
    ours.get_client().clear_partition("train")


def test_clears_leave_no_values_behind(ours):
    import torch

    for name in ("x", "y"):
        ours.kv_put("a", "train", fields={name: torch.ones(3)})
    client = ours.get_client().reverb_client
    assert client.size("transfer_queue_values") == 2
    ours.kv_clear("a", "train")
    assert client.size("transfer_queue_values") == 0
    ours.get_client().clear_partition("train")


def test_the_close_of_a_client_changes_nothing(ours):
    ours.kv_put("a", "train", tag={"x": 1})
    ours.get_client().close()
    assert ours.kv_list("train")["train"]["a"] == {"x": 1}
    ours.get_client().clear_partition("train")
