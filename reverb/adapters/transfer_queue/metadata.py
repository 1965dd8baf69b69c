# SPDX-License-Identifier: Apache-2.0
"""`BatchMeta` and `KVBatchMeta`: which samples, and which of their fields, without the values."""

import copy
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from reverb.adapters.transfer_queue.columns import Rows, fields_of, schema_of
from reverb.adapters.transfer_queue.library import torch

__all__ = ["BatchMeta", "KVBatchMeta"]

_logger = logging.getLogger("reverb")


@dataclasses.dataclass(slots=True, eq=False)
class BatchMeta:
    """Samples by their numbers, and the fields that they have.

    Attributes:
      global_indexes: Numbers of the samples, `[B]`.
      partition_ids: Partition of each.
      field_schema: `{name: {dtype, shape, is_nested, is_non_tensor[, per_sample_shapes]}}`.
      production_status: int8 `[B]`: 1 for a sample that has all fields of the schema.
      extra_info: Values of the batch.
      custom_meta: Tags of each sample, `[B]`.
    """

    global_indexes: list[int]
    partition_ids: list[str]
    # Those that may be left out are never `None` once the object is made.
    field_schema: Any = None
    production_status: Any = None
    extra_info: Any = None
    custom_meta: Any = None
    _custom_backend_meta: Any = None

    def __post_init__(self) -> None:
        size = len(self.global_indexes)
        self.global_indexes = list(self.global_indexes)
        self.partition_ids = list(self.partition_ids)
        schema = self.field_schema or {}
        self.field_schema = {name: dict(of_field) for name, of_field in schema.items()}
        status = self.production_status
        self.production_status = np.zeros(size, np.int8) if status is None else np.array(status)
        self.extra_info = dict(self.extra_info or {})
        self.custom_meta = copy.deepcopy(self.custom_meta) or [{} for _ in range(size)]
        self._custom_backend_meta = copy.deepcopy(self._custom_backend_meta) or [
            {} for _ in range(size)
        ]
        for name in ("partition_ids", "production_status", "custom_meta", "_custom_backend_meta"):
            _check_size(name, getattr(self, name), size)

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(self.__slots__, state, strict=True):
            setattr(self, name, value)
        # Ray's arrays cannot be written to.
        self.production_status = np.array(self.production_status)

    def __len__(self) -> int:
        return len(self.global_indexes)

    def __repr__(self) -> str:
        return f"BatchMeta(size={len(self)}, field_names={self.field_names})"

    @property
    def size(self) -> int:
        """Number of samples, `B`."""
        return len(self)

    @property
    def field_names(self) -> list[str]:
        """Names of the fields, sorted."""
        return sorted(self.field_schema)

    @property
    def is_ready(self) -> bool:
        """Whether there are samples, and all of them have all fields."""
        return len(self) > 0 and bool((self.production_status == 1).all())

    def get_dtypes(self, field_name: str) -> list[Any]:
        """Returns the dtype of a field in each sample."""
        return [self.field_schema[field_name]["dtype"]] * len(self)

    def get_shapes(self, field_name: str) -> list[Any]:
        """Returns the shape of a field in each sample."""
        schema = self.field_schema[field_name]
        shapes = schema.get("per_sample_shapes") if schema.get("is_nested") else None
        return list(shapes) if shapes else [schema["shape"]] * len(self)

    def add_fields(self, tensor_dict: Any, set_all_ready: bool = True) -> "BatchMeta":
        """Adds the fields of a TensorDict `[B]`, in place; returns this batch."""
        _check_size("tensor_dict", range(tensor_dict.batch_size[0]), len(self))
        for name, value in fields_of(tensor_dict).items():
            self.field_schema[name] = schema_of(Rows(value).forms)
        if set_all_ready:
            self.production_status[:] = 1
        return self

    def select_samples(self, sample_indices: Sequence[int]) -> "BatchMeta":
        """Returns the samples at these positions."""
        at = list(sample_indices)
        schema = copy.copy(self.field_schema)
        for name, of_field in schema.items():
            if of_field.get("per_sample_shapes"):
                shapes = [of_field["per_sample_shapes"][it] for it in at]
                schema[name] = of_field | {"per_sample_shapes": shapes}
        return BatchMeta(
            [self.global_indexes[it] for it in at],
            [self.partition_ids[it] for it in at],
            schema,
            self.production_status[at],
            copy.deepcopy(self.extra_info),
            [self.custom_meta[it] for it in at],
            [self._custom_backend_meta[it] for it in at],
        )

    def select_fields(self, field_names: Sequence[str]) -> "BatchMeta":
        """Returns the batch with these fields only."""
        other = self.copy()
        other.field_schema = {
            name: of_field for name, of_field in other.field_schema.items() if name in field_names
        }
        return other

    def reorder(self, indices: Sequence[int]) -> None:
        """Puts the samples into another order, in place."""
        _check_order(indices, len(self))
        self.__setstate__(self.select_samples(indices).__getstate__())

    def copy(self) -> "BatchMeta":
        """Returns a deep copy."""
        return copy.deepcopy(self)

    def chunk(self, chunks: int) -> list["BatchMeta"]:
        """Splits the batch into parts, of which the first ones may have one sample more."""
        parts = np.array_split(np.arange(len(self)), chunks)
        return [self.select_samples(part.tolist()) for part in parts]

    def chunk_by_partition(self) -> list["BatchMeta"]:
        """Splits the batch into parts of one partition each."""
        at: dict[str, list[int]] = {}
        for index, partition in enumerate(self.partition_ids):
            at.setdefault(partition, []).append(index)
        return [self.select_samples(part) for part in at.values()]

    @staticmethod
    def concat(data: list["BatchMeta"], validate: bool = True) -> "BatchMeta":
        """Joins batches.

        Raises:
          ValueError: If `validate` and fields differ, or if values of `extra_info` do.
        """
        parts = [part for part in data if len(part)]
        if not parts:
            return BatchMeta.empty()
        if validate and any(part.field_names != parts[0].field_names for part in parts):
            raise ValueError(
                f"Field names do not match: {[part.field_names for part in parts]:.200}"
            )
        schema = {}
        for name in parts[0].field_names:
            shapes = [shape for part in parts for shape in part.get_shapes(name)]
            schema[name] = dict(parts[0].field_schema[name])
            if any(shape != shapes[0] for shape in shapes):
                schema[name] |= {"is_nested": True, "shape": None, "per_sample_shapes": shapes}
        return BatchMeta(
            [it for part in parts for it in part.global_indexes],
            [it for part in parts for it in part.partition_ids],
            schema,
            np.concatenate([part.production_status for part in parts]),
            _joined_info(parts),
            [it for part in parts for it in part.custom_meta],
            [it for part in parts for it in part._custom_backend_meta],
        )

    def union(self, other: "BatchMeta") -> "BatchMeta":
        """Joins the fields of two batches of the same samples; those of `other` go before.

        Raises:
          ValueError: If the samples differ.
        """
        if not len(self) or not len(other):
            return (self if len(self) else other).copy()
        for name in ("global_indexes", "partition_ids"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"{name} do not match between the two batches")
        result, other = self.copy(), other.copy()
        result.field_schema |= other.field_schema
        result.production_status &= other.production_status
        result.extra_info |= other.extra_info
        for mine, theirs in (
            (result.custom_meta, other.custom_meta),
            (result._custom_backend_meta, other._custom_backend_meta),
        ):
            for one, more in zip(mine, theirs, strict=True):
                one.update(more)
        return result

    @staticmethod
    def empty(extra_info: dict[str, Any] | None = None) -> "BatchMeta":
        """Returns a batch without samples."""
        return BatchMeta([], [], extra_info=extra_info)

    def update_custom_meta(self, custom_meta: list[dict[str, Any]]) -> None:
        """Adds tags to each sample: a dict each.

        Raises:
          ValueError: If there is not one for each sample.
        """
        _check_size("custom_meta", custom_meta, len(self))
        for mine, more in zip(self.custom_meta, custom_meta, strict=True):
            mine.update(more)

    def get_all_custom_meta(self) -> list[dict[str, Any]]:
        """Returns a copy of the tags."""
        return copy.deepcopy(self.custom_meta)

    def clear_custom_meta(self) -> None:
        """Removes the tags from this object."""
        self.custom_meta = [{} for _ in self.global_indexes]

    def get_extra_info(self, key: str, default: Any = None) -> Any:
        """Returns a value of the batch."""
        return self.extra_info.get(key, default)

    def get_all_extra_info(self) -> dict[str, Any]:
        """Returns a copy of the values of the batch."""
        return copy.deepcopy(self.extra_info)

    def has_extra_info(self, key: str) -> bool:
        """Whether the batch has a value of this name."""
        return key in self.extra_info

    def set_extra_info(self, key: str, value: Any) -> None:
        """Sets a value of the batch."""
        self.extra_info[key] = value

    def update_extra_info(self, info_dict: dict[str, Any]) -> None:
        """Sets values of the batch."""
        self.extra_info.update(info_dict)

    def remove_extra_info(self, key: str) -> Any:
        """Removes a value of the batch and returns it; `None` if there is none."""
        return self.extra_info.pop(key, None)

    def clear_extra_info(self) -> None:
        """Removes the values of the batch."""
        self.extra_info.clear()


@dataclasses.dataclass
class KVBatchMeta:
    """Keys of one partition, their tags, and the fields that all of them have.

    Attributes:
      keys: Names of the keys, `[B]`.
      tags: Tags of each.
      partition_id: Their partition.
      fields: Names of the fields; `None`: not known.
      extra_info: Values of the batch.

    Raises:
      ValueError: If a key or a field is there twice, or if there is not one dict for each key.
    """

    keys: list[str] = dataclasses.field(default_factory=list)
    tags: list[dict] = dataclasses.field(default_factory=list)
    partition_id: str | None = None
    fields: list[str] | None = None
    extra_info: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.tags):
            raise ValueError(
                f"keys and tags must have same length, got {len(self.keys)} and {len(self.tags)}"
            )
        for name in ("keys", "fields"):
            values = getattr(self, name) or []
            if len(set(values)) != len(values):
                raise ValueError(f"Got duplicated {name}.")
        self.tags = copy.deepcopy(self.tags)
        self.extra_info = copy.deepcopy(self.extra_info)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def size(self) -> int:
        """Number of keys, `B`."""
        return len(self)

    def _at(self, positions: Sequence[int]) -> "KVBatchMeta":
        keys, tags = ([of[it] for it in positions] for of in (self.keys, self.tags))
        return dataclasses.replace(self, keys=keys, tags=tags)

    def select_keys(self, keys_to_select: list[str]) -> "KVBatchMeta":
        """Returns the batch with these keys only, in this order.

        Raises:
          ValueError: If one is named twice.
          RuntimeError: If one is not there.
        """
        if len(set(keys_to_select)) != len(keys_to_select):
            raise ValueError("Contain duplicate keys in keys_to_select.")
        at = {key: index for index, key in enumerate(self.keys)}
        if missing := [key for key in keys_to_select if key not in at]:
            raise RuntimeError(f"Keys {missing} were not found in current batch.")
        return self._at([at[key] for key in keys_to_select])

    def reorder(self, indexes: list[int]) -> None:
        """Puts the keys into another order, in place."""
        _check_order(indexes, len(self))
        other = self._at(indexes)
        self.keys, self.tags = other.keys, other.tags

    def chunk(self, chunks: int) -> list["KVBatchMeta"]:
        """Splits the batch into parts, of which the first ones may have one key more."""
        parts = np.array_split(np.arange(len(self)), chunks)
        return [self._at(part.tolist()) for part in parts]

    @staticmethod
    def concat(data: list["KVBatchMeta"]) -> "KVBatchMeta":
        """Joins batches of one partition with the same fields.

        Raises:
          ValueError: If they differ, if values of `extra_info` do, or if a key is there twice.
        """
        parts = [part for part in data if len(part)]
        if not parts:
            return KVBatchMeta()
        first = parts[0]
        for part in parts:
            if set(part.fields or ()) != set(first.fields or ()):
                raise ValueError(f"Field names do not match: {first.fields} and {part.fields}")
            if part.partition_id != first.partition_id:
                raise ValueError(
                    f"Partition do not match: {first.partition_id} and {part.partition_id}"
                )
        return KVBatchMeta(
            [key for part in parts for key in part.keys],
            [tag for part in parts for tag in part.tags],
            first.partition_id,
            first.fields,
            _joined_info(parts),
        )


def _joined_info(parts: Sequence[Any]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for part in parts:
        if joined and joined.keys() != part.extra_info.keys():
            _logger.warning(
                "extra_info of batches that are joined has other names: %s and %s",
                *(sorted(joined), sorted(part.extra_info)),
            )
        for name, value in part.extra_info.items():
            if name in joined and not _equal(joined[name], value):
                raise ValueError(
                    f"extra_info has conflicting values for {name!r}: {joined[name]!r} and "
                    f"{value!r}"
                )
            joined[name] = value
    return copy.deepcopy(joined)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return bool(np.all(one == other))


def _check_size(name: str, values: Any, size: int) -> None:
    if len(values) != size:
        raise ValueError(f"{name} has {len(values)} values for a batch of {size} samples")


def _check_order(indices: Sequence[int], size: int) -> None:
    if len(indices) != size:
        raise ValueError(
            f"the number of indexes, {len(indices)}, does not match the batch size, {size}"
        )
    if len(set(indices)) != size:
        raise ValueError("Contain duplicate indexes.")
