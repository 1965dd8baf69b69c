# SPDX-License-Identifier: Apache-2.0
"""Import path of dm-reverb: its native module, for programs that name its classes in annotations.

Methods of these classes have other names than in dm-reverb; use the public classes instead.
"""

import operator as _operator
from typing import SupportsFloat as _SupportsFloat
from typing import SupportsIndex as _SupportsIndex

from reverb.checkpointers import CheckpointerOptions as _CheckpointerOptions
from reverb.core import native as _native
from reverb.core import protos as _protos
from reverb.item_selectors import from_options as _from_options
from reverb.shown_text import shown as _shown

__all__ = [
    "AutoTunedChunkerOptions",
    "Checkpointer",
    "ChunkerOptions",
    "Client",
    "ConstantChunkerOptions",
    "FifoSelector",
    "HeapSelector",
    "ItemSelector",
    "LifoSelector",
    "PrioritizedSelector",
    "RateLimiter",
    "Sampler",
    "Server",
    "StructuredWriter",
    "Table",
    "TableExtension",
    "TrajectoryWriter",
    "UniformSelector",
    "WeakCellRef",
    "Writer",
    "create_default_checkpointer",
    "selector_from_proto",
]

Checkpointer = _CheckpointerOptions
Client = _native.Client
FifoSelector = _native.FifoSelector
HeapSelector = _native.HeapSelector
ItemSelector = _native.ItemSelector
LifoSelector = _native.LifoSelector
PrioritizedSelector = _native.PrioritizedSelector
RateLimiter = _native.RateLimiter
Sampler = _native.Sampler
Server = _native.Server
StructuredWriter = _native.StructuredWriter
Table = _native.Table
TrajectoryWriter = _native.TrajectoryWriter
UniformSelector = _native.UniformSelector
WeakCellRef = _native.CellRef
Writer = _native.Writer


def selector_from_proto(options: bytes) -> _native.ItemSelector:
    """Makes the selector that a serialized `KeyDistributionOptions` describes."""
    return _from_options(_protos.KeyDistributionOptions.FromString(options))


def create_default_checkpointer(
    name: str, group: str, fallback_checkpoint_path: str | None, /
) -> Checkpointer:
    """The options of `DefaultCheckpointer(name, group, fallback_checkpoint_path)`.

    Args:
      name: Directory of checkpoints.
      group: Must be empty for saving.
      fallback_checkpoint_path: A checkpoint to load if there is none; empty or `None`: no fallback.
    """
    return Checkpointer(name, group, fallback_checkpoint_path or None)


class TableExtension:
    """The base of dm-reverb's table extensions; there are none here."""

    def __init__(self) -> None:
        raise TypeError("reverb.pybind.TableExtension cannot be built by programs")


class ChunkerOptions:
    """The base of dm-reverb's options for chunk lengths, which can be made, compared and printed.

    Writers do not take them: `TrajectoryWriter.configure` takes the numbers.
    """

    def __init__(self) -> None:
        raise TypeError("reverb.pybind.ChunkerOptions cannot be built; its subclasses can")


class ConstantChunkerOptions(ChunkerOptions):
    """Chunks of constant length. Two objects are equal if both numbers are."""

    def __init__(
        self, max_chunk_length: _SupportsIndex, num_keep_alive_refs: _SupportsIndex
    ) -> None:
        self.max_chunk_length = _operator.index(max_chunk_length)
        self.num_keep_alive_refs = _operator.index(num_keep_alive_refs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConstantChunkerOptions):
            return NotImplemented
        return vars(self) == vars(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @_shown
    def __repr__(self) -> str:
        return (
            f"ConstantChunkerOptions(max_chunk_length={self.max_chunk_length}, "
            f"num_keep_alive_refs={self.num_keep_alive_refs})"
        )


class AutoTunedChunkerOptions(ChunkerOptions):
    """Chunks whose length the writer chooses. Two are equal if `num_keep_alive_refs` is."""

    def __init__(
        self, num_keep_alive_refs: _SupportsIndex, throughput_weight: _SupportsFloat
    ) -> None:
        if isinstance(throughput_weight, str):
            raise TypeError(f"throughput_weight must be a number, got {throughput_weight!r}")
        self.num_keep_alive_refs = _operator.index(num_keep_alive_refs)
        self.throughput_weight = float(throughput_weight)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AutoTunedChunkerOptions):
            return NotImplemented
        return self.num_keep_alive_refs == other.num_keep_alive_refs

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @_shown
    def __repr__(self) -> str:
        return (
            f"AutoTunedChunkerOptions(num_keep_alive_refs={self.num_keep_alive_refs}, "
            f"throughput_weight={self.throughput_weight})"
        )
