# SPDX-License-Identifier: Apache-2.0
"""Selectors: which item a table samples or evicts next.

Make a new object for every use: it serves one table, as sampler or as remover.

Example:
  >>> sampler, remover = Prioritized(0.8), Fifo()
"""

import functools
from typing import Any

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
# Any item, each with the same probability.
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


def from_options(options: Any) -> native.ItemSelector:
    """Makes the selector that a `KeyDistributionOptions` message describes.

    Raises:
      UnimplementedError: If the message names no selector.
      InvalidArgumentError: If it is `false` where only `true` has a meaning.
    """
    extension = options.extension
    extended = extension.WhichOneof("distribution")
    if extended == "shuffle":
        return Shuffle()
    if extended == "recent":
        return Recent(extension.recent.expected_age)
    kind = options.WhichOneof("distribution")
    if kind == "prioritized":
        draw = extension.Draw.Name(extension.draw).lower()
        return Prioritized(options.prioritized.priority_exponent, draw=draw)
    if kind == "heap":
        return native.HeapSelector(options.heap.min_heap)
    simple = {"fifo": Fifo, "lifo": Lifo, "uniform": Uniform}
    if kind not in simple:
        raise UnimplementedError(
            f"a selector must be one of {sorted(simple)}, prioritized, heap, got {kind}"
        )
    if not getattr(options, kind):
        raise InvalidArgumentError(f"the selector option {kind} must be true, got false")
    return simple[kind]()
