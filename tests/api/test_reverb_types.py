# SPDX-License-Identifier: Apache-2.0
"""Settings and counters of a table."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from reverb import replay_sample, reverb_types
from reverb._nests import structured_value
from reverb.core import protos
from reverb.specs import TensorSpec


@pytest.fixture
def proto():
    return protos.TableInfo(
        name="table",
        sampler_options={"prioritized": {"priority_exponent": 0.8}},
        remover_options={"fifo": True, "is_deterministic": True},
        max_size=10,
        max_times_sampled=2,
        rate_limiter_info={"samples_per_insert": 1.5, "insert_stats": {"completed": 3}},
        signature=structured_value.encode({"a": TensorSpec([None], np.int32)}),
        current_size=4,
        num_episodes=5,
        num_deleted_episodes=6,
        num_unique_samples=7,
        table_worker_time={"sleeping_ms": 8},
    )


def read(proto):
    return reverb_types.TableInfo.from_serialized_proto(proto.SerializeToString())


def test_every_field_is_read(proto):
    info = read(proto)
    assert (info.name, info.max_size, info.max_times_sampled) == ("table", 10, 2)
    assert info.sampler_options.WhichOneof("distribution") == "prioritized"
    assert info.sampler_options.prioritized.priority_exponent == 0.8
    assert info.remover_options.is_deterministic
    assert info.rate_limiter_info.samples_per_insert == 1.5
    assert info.rate_limiter_info.insert_stats.completed == 3
    assert info.signature == {"a": TensorSpec([None], np.int32)}
    assert (info.current_size, info.num_episodes) == (4, 5)
    assert (info.num_deleted_episodes, info.num_unique_samples) == (6, 7)
    assert info.table_worker_time.sleeping_ms == 8


def test_a_missing_signature_is_none(proto):
    proto.ClearField("signature")
    assert read(proto).signature is None


def test_an_info_can_be_compared_and_changed(proto):
    first, second = read(proto), read(proto)
    assert first == second
    first.table_worker_time.sleeping_ms = 9
    assert first != second


def test_an_info_survives_pickle_and_copy(proto):
    info = read(proto)
    assert pickle.loads(pickle.dumps(info)) == info
    assert copy.deepcopy(info) == info


class TestSampleInfo:
    def test_fields_are_in_the_order_that_programs_unpack(self):
        assert replay_sample.SampleInfo._fields == (
            "key",
            "probability",
            "table_size",
            "priority",
            "times_sampled",
        )

    def test_times_sampled_may_be_left_out(self):
        assert replay_sample.SampleInfo(1, 0.5, 3, 1.0) == (1, 0.5, 3, 1.0, 0)

    def test_zeros(self):
        zeros = replay_sample.SampleInfo.zeros()
        assert zeros == (0, 0.0, 0, 0.0, 0)
        assert [type(value) for value in zeros] == [int, float, int, float, int]

    def test_a_sample_unpacks_into_info_and_data(self):
        info, data = replay_sample.ReplaySample(replay_sample.SampleInfo.zeros(), [1])
        assert (info.key, data) == (0, [1])


def test_every_field_of_the_message_is_told():
    told = {field.name for field in dataclasses.fields(reverb_types.TableInfo)}
    # The limit of bytes is in `server.status()`, beside the bytes.
    assert {it.name for it in protos.TableInfo.DESCRIPTOR.fields} == told | {"max_bytes"}
