# SPDX-License-Identifier: Apache-2.0
"""Exports as TFRecord give back what was inserted; tests/with_tensorflow reads them too.

The reader here is independent of the code under test: protobuf parses the messages, and the
checksum is computed bit by bit.
"""

import json
import struct

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings

from support.command_items import (
    BFLOAT16,
    assert_exported,
    assert_read_back,
    assert_same,
    make_item,
    strings,
    tables_of_items,
)

KINDS = {"bytes_list": "TYPE_BYTES", "float_list": "TYPE_FLOAT", "int64_list": "TYPE_INT64"}


@pytest.fixture(scope="module")
def example_class():
    """The class of `Example` messages. A map field is on the wire a repeated message."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")

    def add(message, name, number, type_name, *, repeated=False, type_=field.TYPE_MESSAGE):
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=type_, label=label, type_name=type_name)

    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, type_) in enumerate(KINDS.items(), start=1):
        values = file.message_type.add(name=name)
        add(values, "value", 1, None, repeated=True, type_=getattr(field, type_))
        add(feature, name, number, f".t.{name}")
        feature.field[-1].oneof_index = 0
    entry = file.message_type.add(name="Entry")
    add(entry, "key", 1, None, type_=field.TYPE_STRING)
    add(entry, "value", 2, ".t.Feature")
    add(file.message_type.add(name="Features"), "feature", 1, ".t.Entry", repeated=True)
    add(file.message_type.add(name="Example"), "features", 1, ".t.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


def masked_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path, *, check=True):
    data = path.read_bytes()
    while data:
        length, crc = struct.unpack_from("<QI", data)
        record, (record_crc,) = data[12 : 12 + length], struct.unpack_from("<I", data, 12 + length)
        if check:
            assert crc == masked_crc32c(data[:8])
            assert record_crc == masked_crc32c(record)
        yield record
        data = data[16 + length :]


def read_back(example_class, path, **options):
    """All items of an export as dicts of columns."""
    description = json.loads((path / "_export.json").read_text())
    (layout,) = description["layouts"]
    columns = description["item_fields"] + layout["columns"]
    items = []
    for part in layout["files"]:
        messages = list(records(path / part["name"], **options))
        assert len(messages) == part["num_items"]
        for message in map(example_class.FromString, messages):
            features = {entry.key: entry.value for entry in message.features.feature}
            assert list(features) == [column["name"] for column in columns]
            items.append({c["name"]: as_array(features[c["name"]], c) for c in columns})
    return items


def as_array(feature, column):
    kind = feature.WhichOneof("kind")
    assert kind == column["stored_as"].split()[0]
    values = getattr(feature, kind).value
    if column["dtype"] == "string":
        array = strings(*values)
    elif kind == "bytes_list":
        array = np.frombuffer(values[0], column["dtype"])
    elif column["dtype"] == "uint64":
        array = np.array(values, np.int64).view(np.uint64)
    else:
        array = np.array(values).astype(column["dtype"])
    shape = [-1 if size is None else size for size in column["shape"]]
    if 0 in shape:
        shape[0] = 0
    return array.reshape(shape)


def test_all_dtypes_and_a_squeezed_column_make_a_round_trip(
    run, everything, tmp_path, example_class
):
    out = tmp_path / "out"
    options = ("--table=replay", "--format=tfrecord", "--shard-items=4")
    assert run("export", everything.address, *options, "--output", out)[0] == 0
    items = read_back(example_class, out)
    assert_exported(items, everything)


@settings(max_examples=60)
@given(items=tables_of_items())
def test_any_items_come_back(export_items, example_class, items):
    found = read_back(example_class, export_items(items, "tfrecord"), check=False)
    assert_read_back(found, items, empty_rows=False)  # Their number is not stored.


@pytest.mark.parametrize("power", range(63))
def test_integers_of_every_length_are_encoded(export_items, example_class, power):
    values = np.array([2**power - 1, 2**power, -(2**power), -(2**power) - 1], np.int64)
    (item,) = read_back(example_class, export_items([make_item([values])], "tfrecord"))
    assert_same(item["column_0"], values)


def test_a_long_column_of_integers_is_encoded(export_items, example_class):
    values = np.random.default_rng(0).integers(-(2**40), 2**40, 150_000)
    path = export_items([make_item([values])], "tfrecord")
    (item,) = read_back(example_class, path, check=False)
    assert_same(item["column_0"], values)


@pytest.mark.parametrize(
    ("dtype", "stored_as"),
    [
        ("bool", "int64_list"),
        ("int8", "int64_list"),
        ("uint8", "bytes_list of one tensor"),
        ("uint32", "int64_list"),
        ("uint64", "int64_list"),
        ("float16", "float_list"),
        ("float32", "float_list"),
        ("float64", "bytes_list of one tensor"),
        ("complex64", "bytes_list of one tensor"),
        ("object", "bytes_list of strings"),
    ],
)
def test_the_dtype_decides_how_values_are_stored(export_items, dtype, stored_as):
    column = strings(b"a") if dtype == "object" else np.zeros(1, dtype)
    path = export_items([make_item([column])], "tfrecord")
    (described,) = json.loads((path / "_export.json").read_text())["layouts"][0]["columns"]
    assert described["stored_as"] == stored_as
    assert described["shape"] == [None]


@pytest.mark.parametrize("bfloat16", BFLOAT16)
def test_types_that_numpy_lacks_are_their_bytes(export_items, example_class, bfloat16):
    path = export_items([make_item([np.array([0x3F80], np.uint16).view(bfloat16)])], "tfrecord")
    (message,) = map(example_class.FromString, records(path / "part-00000.tfrecord"))
    assert list(message.features.feature[-1].value.bytes_list.value) == [b"\x80\x3f"]


def test_an_empty_table_gives_an_empty_file(run, everything, tmp_path):
    out = tmp_path / "empty.tfrecord"
    options = ("--table=empty", "--format=tfrecord")
    assert run("export", everything.address, *options, "--output", out)[0] == 0
    assert out.read_bytes() == b""
