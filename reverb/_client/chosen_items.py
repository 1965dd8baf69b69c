# SPDX-License-Identifier: Apache-2.0
"""Requests for items that are chosen by their keys."""

from typing import Any

import numpy as np

from reverb._checks.arguments import as_keys
from reverb._client.rows import without_tensor

__all__ = ["fetched_keys"]


def fetched_keys(keys: Any) -> np.ndarray:
    """Returns keys of items as uint64 `[N]`; the argument is `keys`."""
    return as_keys("keys", without_tensor("keys", keys))
