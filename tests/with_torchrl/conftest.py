# SPDX-License-Identifier: Apache-2.0
"""Tests with TorchRL; without it they are skipped."""

from support.skipped import skip_without

pytest_pycollect_makemodule = skip_without("torchrl", "TorchRL", "test-torchrl")
