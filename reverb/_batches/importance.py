# SPDX-License-Identifier: Apache-2.0
"""The formulas of prioritized replay, in NumPy: importance weights and priorities of sequences."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from reverb._checks.number_arrays import as_numbers
from reverb.errors import InvalidArgumentError
from reverb.replay_sample import are_lengths

__all__ = ["MAX_PRIORITY", "importance_weights", "sequence_priority"]


_OF_WINDOWS = (
    'normalize must be "batch" for a batch of windows, got {!r}: no server knows the smallest '
    'probability of a window of its table, or how many windows that has. Pass normalize="batch", '
    'or per="item" for the weights of the items, whichever of their windows was drawn'
)


class _MaxPriority(float):
    """The type of `MAX_PRIORITY`."""

    def __repr__(self) -> str:
        return "reverb.MAX_PRIORITY"

    def __reduce__(self) -> str:
        return "MAX_PRIORITY"


# A NaN that no computation yields; the core has the same.
MAX_PRIORITY = _MaxPriority(np.uint64(0x7FFE_5A40_0000_0000).view(np.float64))
"""Priority of a new item: the largest one of its table, 1.0 if the table is empty.

"Prioritized Experience Replay", algorithm 1: no item is more likely than a new one, until the
learner has updated its priority. The server replaces it by a number when it inserts the item;
`Table(max_priority=...)` says which items count. Every insert and every writer accepts it, also in
arrays of priorities. A server that does not know it, such as one of dm-reverb, answers with an
`UnimplementedError`; a writer raises it from `flush` or its next call. In a group of servers it is
the largest priority that the shards have reported, some 100 ms ago.

It is for new items only: `update_priorities` takes numbers.
"""


def importance_weights(
    info: object,
    beta: float,
    normalize: Literal["table", "batch"] | None = "table",
    *,
    min_probability: object = None,
    per: Literal["window", "item"] = "window",
) -> np.ndarray:
    """Returns the weights that correct the bias of sampling items with unequal probabilities.

    With the probability `P(i)` of an item and the smallest one `P_min`, its weight is
    `(P(i) / P_min) ** -beta`, which is at most 1. Source: "Prioritized Experience Replay", section
    3.4, arXiv:1511.05952.

    A window (`sample_batch(window=)`) of an item with `n` of them has the probability `P(i) / n`,
    and with `beta=1` all windows of the table count the same. With `Uniform(over="steps")` all
    weights are 1.

    Example:
      >>> info = reverb.SampleInfo(
      ...     key=[7, 8], probability=[0.1, 0.4], table_size=[4, 4], priority=[1.0, 4.0]
      ... )
      >>> reverb.importance_weights(info, beta=0.5, normalize="batch")
      array([1. , 0.5], dtype=float32)

    Args:
      info: The info of a batch or of one sample, or the batch or sample itself. A `TensorDict` of a
        batch, or its entry "reverb", works too.
      beta: How much of the bias to correct, from 0 (none) to 1 (all).
      normalize: Over which items the minimum `P_min` is taken. "table": all items that the table
        had at that moment, `min_probability`; if that is 0, as from a server of dm-reverb or with
        the sampler `Recent`, as "batch". "batch": the items of this batch. `None`: the weights are
        not normalized, `(table_size * P(i)) ** -beta`. For windows it must be "batch": no server
        knows the smallest probability of a window, or the number of windows.
      min_probability: The smallest probability in the table, a number or `[B]`; by default the
        field of this name of `info`, which a `BatchInfo` has and a `SampleInfo` lacks. 0: unknown.
      per: "window": the weights of windows, where the batch has windows. "item": those of their
        items, as if these were whole, with any `normalize`.

    Returns:
      float32 `[B]`; a scalar for the info of one sample.

    Raises:
      InvalidArgumentError: If a probability is not above 0, as in a scan, if `beta` is not finite,
        if `normalize` or `per` has another value, if `normalize` is "table" and there is no
        `min_probability`, or if it is not "batch" for windows.
    """
    if normalize not in ("table", "batch", None):
        raise InvalidArgumentError(f'normalize must be "table", "batch" or None, got {normalize!r}')
    if per not in ("window", "item"):
        raise InvalidArgumentError(f'per must be "window" or "item", got {per!r}')
    if not np.isfinite(beta):
        raise InvalidArgumentError(f"beta must be finite, got {beta!r}")
    probability = as_numbers("info.probability", _field(info, "probability"))
    if not (probability > 0).all():
        raise InvalidArgumentError(
            "info.probability must be above 0, got "
            f"{float(probability[~(probability > 0)].flat[0])}; an item that was scanned, and not "
            "sampled, has no probability"
        )
    num_windows = _field(info, "num_windows") if per == "window" else None
    if num_windows is not None and are_lengths(num_windows):
        if normalize != "batch":
            raise InvalidArgumentError(_OF_WINDOWS.format(normalize))
        probability = probability / as_numbers("info.num_windows", num_windows)
    if normalize is None:
        table_size = as_numbers("info.table_size", _field(info, "table_size"))
        return np.asarray((table_size * probability) ** -beta, np.float32)
    smallest = np.float64(0)
    if normalize == "table":
        smallest = _min_probability(info, min_probability)
    if not (smallest > 0).all():
        smallest = probability.min(initial=np.inf)
    return np.asarray((probability / smallest) ** -beta, np.float32)


def _min_probability(info: object, min_probability: object) -> np.ndarray:
    """Returns the smallest probability in the table: the argument, or a field of the info."""
    if min_probability is None:
        # A batch of another library may have this field itself, and not in its info.
        min_probability = getattr(info, "min_probability", None)
    if min_probability is None:
        min_probability = _field(info, "min_probability")
    if min_probability is None:
        raise InvalidArgumentError(
            'info must have the field min_probability with normalize="table", like the info of a '
            'batch; pass normalize="batch" for the smallest probability of these items, or '
            "min_probability="
        )
    return as_numbers("min_probability", min_probability)


def _field(info: object, name: str) -> object:
    """Returns a field of an info, of a batch, or of a mapping; `None` if there is none."""
    info = getattr(info, "info", info)
    if isinstance(info, Mapping):
        fields = info["reverb"] if "reverb" in info.keys() else info  # noqa: SIM118
        return fields[name] if name in fields.keys() else None  # noqa: SIM118
    return getattr(info, name, None)


def sequence_priority(td: object, eta: float = 0.9, mask: object = None) -> np.ndarray:
    """Returns the priority of each sequence: `eta * max|td| + (1 - eta) * mean|td|` over time.

    Source: "Recurrent Experience Replay in Distributed Reinforcement Learning", section 2.3.

    Example:
      >>> reverb.sequence_priority([[1.0, -3.0], [2.0, 9.0]], mask=[[True, True], [True, False]])
      array([2.9, 2. ])

    Args:
      td: Temporal-difference errors, `[B, T]`; `[T]` for one sequence.
      eta: The weight of the maximum, from 0 to 1.
      mask: Which steps count, of the same shape as `td`; by default all.

    Returns:
      float64 `[B]`; a scalar for one sequence.

    Raises:
      InvalidArgumentError: If `eta` is out of its range, if `td` has no steps, if `mask` has
        another shape, or if it leaves a sequence without a step.
    """
    if not 0.0 <= eta <= 1.0:
        raise InvalidArgumentError(f"eta must be from 0 to 1, got {eta!r}")
    errors = np.abs(as_numbers("td", td))
    if errors.ndim == 0 or errors.shape[-1] == 0:
        raise InvalidArgumentError(
            f"td must have shape [B, T] or [T] with at least one step, got {list(errors.shape)}"
        )
    counted = np.ones(errors.shape, bool) if mask is None else np.asarray(mask, bool)
    if counted.shape != errors.shape:
        raise InvalidArgumentError(
            f"mask must have the shape of td, {list(errors.shape)}, got {list(counted.shape)}"
        )
    steps = counted.sum(axis=-1)
    if not steps.all():
        raise InvalidArgumentError(
            f"mask leaves sequence {int(np.argmin(steps))} without a step; at least one must count"
        )
    largest = np.max(errors, axis=-1, where=counted, initial=0.0)
    mean = np.sum(errors, axis=-1, where=counted) / steps
    return np.asarray(eta * largest + (1.0 - eta) * mean)
