# SPDX-License-Identifier: Apache-2.0
"""Histograms of a server's status."""

import dataclasses
import math
from typing import Any

# Each bound of a histogram is twice the one before, so a float cannot hold more of them.
_MAX_BOUNDS = 1023


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Number of values by size.

    Example:
      >>> histogram = Histogram(bounds=(1.0, 2.0, 4.0), counts=(2, 0, 1, 1), sum=14.0)
      >>> print(histogram.count, histogram.mean, histogram.quantile(0.5))
      4 3.5 1.0

    Attributes:
      bounds: Upper bounds, each twice the one before.
      counts: `counts[i]` is the number of values up to `bounds[i]` and above the bound before; the
        last one, which has no bound, is the number of all larger values.
      sum: Sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean of the values; NaN if there are none."""
        return self.sum / self.count if self.count else math.nan

    def quantile(self, q: float) -> float:
        """Returns the smallest bound that at least a share `q` of the values do not exceed.

        Args:
          q: A number from 0 to 1; 0.5 asks for the median.

        Returns:
          One of `bounds`, `inf` beyond them, or NaN if there are no values.

        Raises:
          ValueError: If `q` is not from 0 to 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q must be from 0 to 1, got {q}")
        if not self.count:
            return math.nan
        seen = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            seen += count
            if seen and seen >= q * self.count:
                return bound
        raise AssertionError("the counts add up to their sum")

    @classmethod
    def _from_proto(cls, proto: Any) -> "Histogram":
        missing = proto.num_bounds + 1 - len(proto.counts)
        if (
            not 0 <= proto.num_bounds <= _MAX_BOUNDS
            or missing < 0
            or min(proto.counts, default=0) < 0
        ):
            raise ValueError(
                f"a histogram must have at most {_MAX_BOUNDS} bounds and no negative count, got "
                f"{proto.num_bounds} bounds and counts {list(proto.counts)}"
            )
        return cls(
            bounds=tuple(proto.first_bound * 2**power for power in range(proto.num_bounds)),
            counts=(*proto.counts, *[0] * missing),
            sum=proto.sum,
        )


# The public import path.
Histogram.__module__ = "reverb.server_status"
