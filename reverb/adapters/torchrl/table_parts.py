# SPDX-License-Identifier: Apache-2.0
"""The storage, the sampler and the writer that TorchRL expects in a buffer.

They only describe the table. Samples contain the index together with the data, so these parts have
no calls of their own, except to read slices of the items.
"""

from collections.abc import Iterator
from typing import Any, NoReturn

from reverb.adapters.torchrl.library import samplers, storages, torch, writers
from reverb.adapters.torchrl.table_access import TableAccess
from reverb.errors import UnimplementedError
from reverb.shown_text import shown

__all__ = [
    "PrioritizedTableSampler",
    "TableSampler",
    "TableStorage",
    "TableWriter",
    "refuse_part",
    "refuse_write",
]


def _refusal(text: str) -> Any:
    """Makes a method whose error says what to do instead."""

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        del arguments, options
        raise UnimplementedError(text)

    return refuse


refuse_read = _refusal(
    "items of a Reverb table have no positions and are not looked up by their index: "
    "buffer.sample() fetches items together with their index, and buffer[a:b] reads items, the "
    "oldest one first"
)
refuse_write = _refusal(
    "items of a Reverb table do not change and have no positions; add new ones with buffer.extend()"
)
refuse_part = _refusal(
    "a Reverb table is the storage, the sampler and the writer of a buffer; make another buffer"
)
_refuse_draw = _refusal(
    "the server of a Reverb table draws and sends items with their index; call buffer.sample()"
)
_refuse_state = _refusal(
    "a Reverb table is saved as a whole; call buffer.state_dict() or buffer.dumps()"
)
_refuse_default = _refusal(
    "the server knows the priority of new items, which is the largest one so far"
)
_refuse_empty = _refusal("a Reverb table is emptied as a whole; call buffer.empty()")


class TableStorage(storages.Storage):
    """The table as a storage: its sizes, and an iterator over its items.

    Attributes:
      device: Device of the buffer's samples.
      initialized: Always true: workers need no example of the data.
    """

    initialized = True

    def __init__(self, buffer: Any, max_size: int, device: Any) -> None:
        super().__init__(max_size, compilable=True)
        self._buffer = buffer
        self.device = device

    def __len__(self) -> int:
        return len(self._buffer)

    def __iter__(self) -> Iterator[Any]:
        return self._buffer.scan()

    @shown
    def __repr__(self) -> str:
        return f"TableStorage({self._buffer.table!r} at {self._buffer.server!r})"

    def get(self, index: Any) -> Any:
        """Reads a slice of the items, the oldest one first; see `ReverbReplayBuffer`.

        Raises:
          UnimplementedError: If it is no slice.
        """
        return self._buffer.read(index) if isinstance(index, slice) else refuse_read()

    __getitem__ = get
    contains = __contains__ = refuse_read
    set = __setitem__ = refuse_write
    state_dict = load_state_dict = dumps = loads = _refuse_state
    _empty = _refuse_empty


class _TableSampler:
    """The common part of both samplers."""

    sample = _refuse_draw
    state_dict = load_state_dict = dumps = loads = _refuse_state
    _empty = _refuse_empty

    def mark_update(self, index: Any, *, storage: Any = None) -> None:
        """Does nothing: new items already have priorities."""

    add = extend = mark_update


class TableSampler(_TableSampler, samplers.Sampler):
    """The sampler of a table that does not sample by priority."""


class PrioritizedTableSampler(_TableSampler, samplers.PrioritizedSampler):
    """The sampler of a table that samples by priority; TorchRL checks for this base class."""

    def __init__(
        self, buffer: Any, max_capacity: int, beta: float, eps: float, reduction: str
    ) -> None:
        # Skips the base class, which would allocate its trees.
        self._buffer = buffer
        self._max_capacity = max_capacity
        self._beta = beta
        self._eps = eps
        self.reduction = reduction
        self.dtype = torch.float

    @property
    def alpha(self) -> float:
        """The exponent of the table's sampler; setting it changes the table, for everybody."""
        return self._buffer.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._buffer.set_alpha(value)

    @property
    def _alpha(self) -> float:
        """The name under which TorchRL's own methods read the exponent."""
        return self._buffer.alpha

    @property
    def device(self) -> Any:
        """The device on which weights are computed."""
        return torch.device("cpu")

    @property
    def default_priority(self) -> float:
        """Unknown to this process: new items get `reverb.MAX_PRIORITY`."""
        return _refuse_default()

    def update_priority(self, index: Any, priority: Any, *, storage: Any = None) -> None:
        """Does the same as `ReverbReplayBuffer.update_priority`."""
        del storage
        self._buffer.update_priority(index, priority)


class TableWriter(writers.Writer):
    """The table as a writer: the number of items that all processes have inserted."""

    def __init__(self, access: TableAccess) -> None:
        super().__init__(compilable=True)
        self._access = access

    @property
    def _write_count(self) -> int:
        return int(self._access.info().rate_limiter_info.insert_stats.completed)

    add = extend = refuse_write
    state_dict = load_state_dict = dumps = loads = _refuse_state
    _empty = _refuse_empty
