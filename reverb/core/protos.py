# SPDX-License-Identifier: Apache-2.0
"""The protobuf messages of the public API, in a private descriptor pool.

Their packages (`deepmind.reverb`, `tensorflow`) are those of dm-reverb and TensorFlow. In the
default pool they would conflict with the messages that TensorFlow registers. With a private pool,
TensorFlow may be imported before, after, or never. Message classes are attributes, made on first
use: `protos.TableInfo`, `protos.StructuredValue`.
"""

import functools
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.descriptor import Descriptor, FileDescriptor

_DESCRIPTORS = pathlib.Path(__file__).parent / "wire" / "proto" / "descriptors.bin"
# Protobuf makes a class again, under another module, once the last reference is gone.
_CLASSES: list[type] = []
_PACKAGES = ("deepmind.reverb", "reverb", "tensorflow", "google.protobuf")


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes())
    for file in files.file:  # Dependencies come first.
        pool.AddSerializedFile(file.SerializeToString())
    for file in files.file:
        _name_module(pool.FindFileByName(file.name).message_types_by_name.values())
    return pool


def _name_module(descriptors: Iterable[Descriptor]) -> None:
    """Sets the module of messages, so that pickle and copy find their classes."""
    for descriptor in descriptors:
        cls = message_factory.GetMessageClass(descriptor)
        cls.__module__ = __name__
        _CLASSES.append(cls)
        _name_module(descriptor.nested_types)


@functools.cache
def _message_class(full_name: str) -> Any:
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(full_name))


def file_descriptor(file_name: str) -> FileDescriptor:
    """Returns the descriptor of a `.proto` file, for example `schema.proto`."""
    return _pool().FindFileByName(file_name)


def messages_of(file_name: str) -> dict[str, Any]:
    """Returns all top-level message classes of a `.proto` file, by name."""
    return {
        name: _message_class(descriptor.full_name)
        for name, descriptor in file_descriptor(file_name).message_types_by_name.items()
    }


def with_fields(full_name: str, additions: Mapping[str, str]) -> Any:
    """Returns a message class whose messages have additional fields, in its own pool.

    `additions` are `DescriptorProto` messages in text form, by the full name of a message.
    """
    files = descriptor_pb2.FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        _add_fields(file.message_type, file.package, additions)
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))


def _add_fields(messages: Iterable[Any], scope: str, additions: Mapping[str, str]) -> None:
    for message in messages:
        name = f"{scope}.{message.name}"
        _add_fields(message.nested_type, name, additions)
        text_format.Merge(additions.get(name, ""), message)


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        for package in _PACKAGES:
            try:
                cls = _message_class(f"{package}.{name}")
            except KeyError:
                continue
            globals()[name] = cls
            return cls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
