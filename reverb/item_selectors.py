# SPDX-License-Identifier: Apache-2.0
"""Selectors: which item a table samples or evicts next.

Make a new object for every use: it serves one table, as sampler or as remover.

Example:
  >>> sampler, remover = Prioritized(0.8), Fifo()
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from reverb.core import native
from reverb.errors import InvalidArgumentError, UnimplementedError

__all__ = [
    "Fifo",
    "Lifo",
    "MaxHeap",
    "MinHeap",
    "Prioritized",
    "Recent",
    "Shuffle",
    "Uniform",
    "from_options",
]

# The item that was inserted first.
Fifo = native.FifoSelector
# The item that was inserted last.
Lifo = native.LifoSelector
# `Uniform(over="items")`: any item, each with the same probability. With over="steps" any step:
# items in proportion to their number of steps, and each window (`reverb.Window`) with the same
# probability.
Uniform = native.UniformSelector
# `Prioritized(priority_exponent)`: item i with probability p_i ** exponent / sum_k p_k ** exponent,
# and never an item of priority 0 while others are positive ("Prioritized Experience Replay",
# section 3.3, arXiv:1511.05952). `draw=` says how the items of one request depend on each other:
# "independent", "stratified" (one from each of as many strata of equal weight) or "systematic" (at
# equal distances). The probability of an item is the same in all cases; the mean over a batch
# varies less with the last two.
Prioritized = native.PrioritizedSelector
# `Shuffle(seed=None)`: every item once before any item again, in random order. New items join the
# running epoch.
Shuffle = native.ShuffleSelector
# `Recent(expected_age)`: the k-th newest item, k = 0, 1, ..., in proportion to q ** k with
# q = expected_age / (expected_age + 1), so that the mean of k in a large table is `expected_age`.
Recent = native.RecentSelector
# The item of highest priority; among equals the one that was inserted or updated least recently.
MaxHeap = functools.partial(native.HeapSelector, False)
# The item of lowest priority; among equals the one that was inserted or updated least recently.
MinHeap = functools.partial(native.HeapSelector, True)

# Every class; `reverb.reverb_types` has the public name.
SelectorType = Fifo | Lifo | Uniform | Prioritized | Shuffle | Recent | native.HeapSelector

# Every selector by its kind, which configs and messages name.
BY_KIND: dict[str, Callable[..., native.ItemSelector]] = {
    "fifo": Fifo,
    "lifo": Lifo,
    "uniform": Uniform,
    "uniform_over_steps": functools.partial(Uniform, over="steps"),
    "max_heap": MaxHeap,
    "min_heap": MinHeap,
    "shuffle": Shuffle,
    "prioritized": Prioritized,
    "recent": Recent,
}


class SelectorSettings(NamedTuple):
    """Kind and parameters of a selector.

    Attributes:
      kind: A key of `BY_KIND`; messages of newer releases may have other kinds.
      parameters: Arguments of the selector's class that can change while a table runs.
    """

    kind: str
    parameters: dict[str, Any]


def selector_settings(options: Any) -> SelectorSettings:
    """Reads a `KeyDistributionOptions` message."""
    extension = options.extension
    kind = options.WhichOneof("distribution") or "unknown"
    if kind == "heap":
        return SelectorSettings("min_heap" if options.heap.min_heap else "max_heap", {})
    if kind == "prioritized":
        draw = extension.Draw.Name(extension.draw).lower()
        exponent = options.prioritized.priority_exponent
        return SelectorSettings(kind, {"priority_exponent": exponent, "draw": draw})
    extended = extension.WhichOneof("distribution")
    if extended is None:
        return SelectorSettings(kind, {})
    return SelectorSettings(extended, fields_of(getattr(extension, extended)))


def fields_of(message: Any) -> dict[str, Any]:
    """Returns all fields of a message by their names."""
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def from_options(options: Any) -> native.ItemSelector:
    """Makes the selector that a `KeyDistributionOptions` message describes.

    Raises:
      UnimplementedError: If the message names no selector.
      InvalidArgumentError: If it is `false` where only `true` has a meaning.
    """
    kind, parameters = selector_settings(options)
    if kind not in BY_KIND:
        raise UnimplementedError(f"a selector must be one of {sorted(BY_KIND)}, got {kind}")
    field = options.WhichOneof("distribution")
    if field == kind and not getattr(options, field):
        raise InvalidArgumentError(f"the selector option {kind} must be true, got false")
    return BY_KIND[kind](**parameters)
