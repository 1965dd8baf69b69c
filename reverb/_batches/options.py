# SPDX-License-Identifier: Apache-2.0
"""The arguments of `reverb.batches`, checked."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from reverb._batches.mixture import positive_weights
from reverb._checks.arguments import check_at_least, check_timeout_ms
from reverb._client.batch_request import BatchRequest
from reverb._client.epochs import check_epochs
from reverb.errors import InvalidArgumentError
from reverb.replay_sample import ReplaySample
from reverb.shown_text import type_name

__all__ = ["BatchOptions"]

# Options of `Client.sample_batch` that `reverb.batches` takes, with their defaults.
REQUEST_OPTIONS: dict[str, Any] = {
    "ragged": "error",
    "pad": 0,
    "pad_to_multiple_of": None,
    "columns": None,
    "distinct": False,
    "squeeze": False,
    "max_batch_bytes": None,
    "window": None,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The arguments of `reverb.batches` after the client, which are described there.

    Attributes:
      weights: The tables to sample, each with a positive weight.
      request: The given options of `Client.sample_batch`.
    """

    weights: Mapping[str, float]
    batch_size: int | None
    prefetch: int = 2
    transform: Callable[[Any], object] | None = None
    convert: Callable[[Any], object] | None = None
    postprocess: Callable[[ReplaySample], object] | None = None
    partial: bool = False
    mix: str = "item"
    seed: int | None = None
    timeout_ms: int | None = None
    end_after_ms: int | None = None
    epochs: int | None = None
    drop_last: bool = False
    container_types: Sequence[type] = ()
    out: Callable[[], list[Any] | None] | None = None
    request: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls, table: str | Mapping[str, float], batch_size: int | None, **arguments: Any
    ) -> "BatchOptions":
        """Makes the options of the arguments, and checks them.

        Raises:
          InvalidArgumentError: If one is out of its range.
          TypeError: If one is of another type, or if there is no such argument.
        """
        own = {field.name for field in dataclasses.fields(cls)} - {"weights", "request"}
        request = {name: value for name, value in arguments.items() if name not in own}
        if unknown := sorted(request.keys() - REQUEST_OPTIONS.keys()):
            raise TypeError(f"batches() got an unexpected keyword argument {unknown[0]!r}")
        if batch_size is not None:
            batch_size = check_at_least(1, "batch_size", batch_size)
        given = {name: value for name, value in arguments.items() if name in own}
        return cls(weights=positive_weights(table), batch_size=batch_size, request=request, **given)

    @property
    def request_options(self) -> dict[str, Any]:
        """All options of `Client.sample_batch`, with their defaults."""
        return REQUEST_OPTIONS | dict(self.request)

    def __post_init__(self) -> None:
        check_at_least(1, "prefetch", self.prefetch)
        for name in ("transform", "convert", "postprocess", "out"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function, got {type_name(function)}")
        check_timeout_ms(self.timeout_ms)
        if self.end_after_ms is not None:
            check_at_least(0, "end_after_ms", self.end_after_ms)
        if self.mix not in ("item", "batch"):
            raise InvalidArgumentError(f"mix must be 'item' or 'batch', got {self.mix!r}")
        if isinstance(self.seed, bool):
            raise TypeError("seed must be an integer, got bool")
        if self.seed is not None:
            np.random.default_rng(self.seed)
        if not isinstance(self.container_types, Iterable):
            raise TypeError(
                f"container_types must be classes, got {type_name(self.container_types)}"
            )
        for kind in self.container_types:
            if not isinstance(kind, type):
                raise TypeError(f"container_types must be classes, got {kind!r}")
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Checks that options do not exclude each other."""
        if self.transform is not None and self.convert is not None:
            raise InvalidArgumentError("give only one of transform and convert, got both")
        has_epochs = check_epochs(self.epochs, self.drop_last, self.partial) is not None
        if has_epochs and len(self.weights) > 1:
            raise InvalidArgumentError(
                f"epochs is for one table, got {list(self.weights)}: each table has epochs of its "
                "own"
            )
        if self.batch_size is None or self.postprocess is not None:
            whole = {
                **self.request,
                "out": self.out,
                "partial": self.partial or None,
                "epochs": self.epochs,
            }
            given = [name for name, value in whole.items() if value is not None]
            if given:
                raise InvalidArgumentError(
                    f"{given[0]} is for batches that the client makes: leave it out with "
                    "postprocess, and with batch_size=None"
                )
            if self.batch_size is not None and len(self.weights) > 1 and self.mix == "item":
                raise InvalidArgumentError("postprocess needs mix='batch' with several tables")
        request = self.request_options
        BatchRequest("", self.batch_size or 1, **request, out=None, partial=True, timeout_ms=None)
