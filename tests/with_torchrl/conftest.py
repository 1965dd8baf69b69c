# SPDX-License-Identifier: Apache-2.0
"""Tests with TorchRL; without it they are skipped."""

import pytest

from support.skipped import skip_without

pytest_pycollect_makemodule = skip_without("torchrl", "TorchRL", "test-torchrl")


@pytest.fixture
def made():
    """Makes buffers, and closes them."""
    from reverb.adapters.torchrl import ReverbReplayBuffer

    buffers = []

    def make(*arguments, **options):
        buffers.append(ReverbReplayBuffer(*arguments, **options))
        return buffers[-1]

    yield make
    for buffer in reversed(buffers):
        buffer.close()
