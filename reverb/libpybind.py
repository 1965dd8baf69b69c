# SPDX-License-Identifier: Apache-2.0
"""Import path of dm-reverb: the names of `reverb.pybind`."""

from reverb.pybind import *  # noqa: F403
from reverb.pybind import __all__ as __all__
