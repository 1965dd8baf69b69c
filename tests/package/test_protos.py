# SPDX-License-Identifier: Apache-2.0
"""The protobuf messages that users see, and their peace with other users of protobuf."""

import importlib
import pickle

import pytest
from google.protobuf import descriptor_pool

from reverb.core import protos
from support.programs import run_fresh

OLD_MODULES = {
    "reverb.cc.schema_pb2": [
        "ChunkData",
        "FlatTrajectory",
        "KeyDistributionOptions",
        "PrioritizedItem",
        "RateLimiterCallStats",
        "RateLimiterInfo",
        "SampleInfo",
        "TableInfo",
        "TableWorkerTime",
    ],
    "reverb.cc.patterns_pb2": ["Condition", "PatternNode", "Priority", "StructuredWriterConfig"],
    "reverb.cc.checkpointing.checkpoint_pb2": ["PriorityTableCheckpoint", "RateLimiterCheckpoint"],
    "reverb.server_executable.reverb_config_pb2": ["ReverbServerConfig"],
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in OLD_MODULES.items() for name in names]
)
def test_old_modules_hold_the_same_classes(module, name):
    cls = getattr(importlib.import_module(module), name)
    assert cls is getattr(protos, name)
    assert cls.DESCRIPTOR.full_name == f"deepmind.reverb.{name}"


def test_an_unknown_message_is_an_attribute_error():
    with pytest.raises(AttributeError, match="NoSuchMessage"):
        _ = protos.NoSuchMessage


@pytest.mark.parametrize(
    ("message", "field", "number"),
    [
        ("TableInfo", "table_worker_time", 12),
        ("TableInfo", "signature", 6),
        ("RateLimiterCallStats", "completed", 2),
        ("KeyDistributionOptions", "lifo", 6),
        ("KeyDistributionOptions", "is_deterministic", 7),
        ("Condition", "flat_source_index", 9),
        ("StructuredWriterConfig", "conditions", 5),
        ("PriorityTableCheckpoint", "num_unique_samples", 10),
        ("StructuredValue", "bounded_tensor_spec_value", 35),
        ("StructuredValue", "named_tuple_value", 54),
    ],
)
def test_field_numbers_are_those_of_the_wire(message, field, number):
    descriptor = getattr(protos, message).DESCRIPTOR
    assert descriptor.fields_by_name[field].number == number


def test_single_members_of_a_oneof_know_whether_they_are_set():
    node = protos.PatternNode(flat_source_index=1, start=0)
    assert node.HasField("start")
    assert not node.HasField("stop")


def test_messages_can_be_pickled():
    message = protos.KeyDistributionOptions(heap={"min_heap": True})
    assert pickle.loads(pickle.dumps(message)) == message


def test_the_default_pool_is_left_to_others():
    pool = descriptor_pool.Default()
    assert protos.TableInfo.DESCRIPTOR.file.pool is not pool
    with pytest.raises(KeyError):
        pool.FindMessageTypeByName("deepmind.reverb.TableInfo")


def test_a_library_may_use_the_names_in_the_default_pool():
    # TensorFlow registers `tensorflow.TensorProto`, in another file and with other fields.
    program = """
        from google.protobuf import descriptor_pb2, descriptor_pool
        from reverb.core import protos

        protos.TensorProto
        file = descriptor_pb2.FileDescriptorProto(name="tensorflow/tensor.proto")
        file.package, file.syntax = "tensorflow", "proto3"
        file.message_type.add(name="TensorProto").field.add(
            name="other", number=1, type=5, label=1
        )
        descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
        protos.StructuredValue(tensor_value={"dtype": 1})
        print("ok")
    """
    assert run_fresh(program) == ["ok"]


def test_a_message_in_a_field_can_be_pickled_in_a_fresh_process():
    # Its class was made by the field, and no program has named it.
    program = """
        import gc, pickle
        from reverb import testing

        testing.table().info
        gc.collect()
        info = testing.table().info
        assert pickle.loads(pickle.dumps(info)) == info
        print("ok")
    """
    assert run_fresh(program) == ["ok"]
