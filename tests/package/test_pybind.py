# SPDX-License-Identifier: Apache-2.0
"""Names of the original's compiled module that programs and their tests use."""

import pytest

import reverb
from reverb import libpybind, pybind
from support.programs import run_fresh as run


def test_a_star_import_gives_all_of_them():
    names = {}
    exec("from reverb.libpybind import *", names)
    found = {name for name in names if not name.startswith("__")}
    assert found == set(pybind.__all__)
    assert {name for name in dir(pybind) if not name.startswith("_")} == found
    for name in found:
        assert names[name] is getattr(libpybind, name) is getattr(pybind, name)


def test_the_original_names_are_the_classes_that_objects_have(start):
    server = start()
    client = reverb.Client(f"localhost:{server.port}")
    assert isinstance(client._client, pybind.Client)
    assert isinstance(server._server, pybind.Server)
    assert isinstance(reverb.selectors.Fifo(), pybind.ItemSelector)
    checkpointer = reverb.checkpointers.DefaultCheckpointer("/tmp/x", "g")
    assert isinstance(checkpointer.internal_checkpointer(), pybind.Checkpointer)


def test_columns_of_a_history_have_their_old_class(start):
    client = reverb.Client(f"localhost:{start().port}")
    with client.trajectory_writer(1) as writer:
        writer.append({"a": 1})
        assert isinstance(writer.history["a"], reverb.trajectory_writer._ColumnHistory)


def test_info_comes_before_data():
    assert pybind.Sampler.NUM_INFO_TENSORS == len(reverb.SampleInfo._fields) == 5


def test_constant_chunker_options_compare_both_numbers():
    options = pybind.ConstantChunkerOptions(2, 3)
    assert options == pybind.ConstantChunkerOptions(max_chunk_length=2, num_keep_alive_refs=3)
    assert options != pybind.ConstantChunkerOptions(2, 4)
    assert options != pybind.ConstantChunkerOptions(1, 3)
    assert options != pybind.AutoTunedChunkerOptions(3, 1.0)
    assert repr(options) == "ConstantChunkerOptions(max_chunk_length=2, num_keep_alive_refs=3)"


def test_auto_tuned_chunker_options_compare_the_references():
    options = pybind.AutoTunedChunkerOptions(2, 0.5)
    assert options == pybind.AutoTunedChunkerOptions(num_keep_alive_refs=2, throughput_weight=1)
    assert options != pybind.AutoTunedChunkerOptions(3, 0.5)
    assert repr(options) == "AutoTunedChunkerOptions(num_keep_alive_refs=2, throughput_weight=0.5)"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ConstantChunkerOptions", ()),
        ("ConstantChunkerOptions", (1,)),
        ("ConstantChunkerOptions", (1.5, 2)),
        ("ConstantChunkerOptions", ("a", 1)),
        ("AutoTunedChunkerOptions", (1,)),
        ("AutoTunedChunkerOptions", (1, "2")),
        ("ChunkerOptions", ()),
        ("TableExtension", ()),
        ("Checkpointer", ()),
    ],
)
def test_wrong_arguments_are_type_errors(name, arguments):
    with pytest.raises(TypeError):
        getattr(pybind, name)(*arguments)


@pytest.mark.parametrize("name", ["ConstantChunkerOptions", "AutoTunedChunkerOptions"])
def test_chunker_options_have_one_base_and_no_hash(name):
    options = getattr(pybind, name)(1, 1)
    assert isinstance(options, pybind.ChunkerOptions)
    with pytest.raises(TypeError, match="unhashable"):
        hash(options)


def test_a_checkpointer_by_its_old_function():
    made = pybind.create_default_checkpointer("/tmp/x", "", None)
    assert made == pybind.create_default_checkpointer("/tmp/x", "", "")
    assert made == reverb.checkpointers.DefaultCheckpointer("/tmp/x").internal_checkpointer()
    assert repr(made) == "TFRecordCheckpointer(root_dir=/tmp/x, group=)"
    with_group = pybind.create_default_checkpointer("/tmp/x", "g", "/y")
    assert with_group.fallback_checkpoint_path == "/y"
    assert repr(with_group) == "TFRecordCheckpointer(root_dir=/tmp/x, group=g)"


def test_protobuf_modules_are_there_after_a_plain_import():
    program = """
    import reverb
    print(reverb.cc.schema_pb2.TableInfo.DESCRIPTOR.full_name)
    print(reverb.cc.patterns_pb2.Condition.ModuloEq.DESCRIPTOR.full_name)
    """
    assert run(program) == ["deepmind.reverb.TableInfo", "deepmind.reverb.Condition.ModuloEq"]
