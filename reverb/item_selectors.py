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

__all__ = ["Fifo", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Uniform", "from_options"]

# The item that was inserted first.
Fifo = native.FifoSelector
# The item that was inserted last.
Lifo = native.LifoSelector
# Any item, each with the same probability.
Uniform = native.UniformSelector
# `Prioritized(priority_exponent)`: item i with probability p_i ** exponent / sum_k p_k ** exponent,
# and never an item of priority 0 while others are positive ("Prioritized Experience Replay",
# section 3.3, arXiv:1511.05952).
Prioritized = native.PrioritizedSelector
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
    kind = options.WhichOneof("distribution")
    if kind == "prioritized":
        return Prioritized(options.prioritized.priority_exponent)
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
