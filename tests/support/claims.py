# SPDX-License-Identifier: Apache-2.0
"""Files that claim more than they have: each is refused before memory is taken for it."""

from __future__ import annotations

import re
import tracemalloc

import pytest

from reverb import datasets, errors

MIB = 1 << 20


def refused(source: str, text: str, *, max_mib: int = 48, **options) -> None:
    """Checks that a dataset is refused with this text, and that reading took little memory."""
    import pyarrow as pa

    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        with pytest.raises(errors.ReverbError) as caught:
            list(datasets.episodes(source, **options))
        taken = tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    assert isinstance(caught.value, errors.InvalidArgumentError | errors.DataLossError)
    assert re.search(text, str(caught.value)), str(caught.value)
    assert source.partition(":")[2] in str(caught.value)
    assert taken < max_mib * MIB
