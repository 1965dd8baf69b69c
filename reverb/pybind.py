# SPDX-License-Identifier: Apache-2.0
"""Old name of the compiled module, for programs that name its classes in annotations."""

from reverb.core import native as _native
from reverb.core import protos as _protos
from reverb.item_selectors import from_options as _from_options

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
    """A new selector of the kind that a serialized `KeyDistributionOptions` describes."""
    return _from_options(_protos.KeyDistributionOptions.FromString(options))
