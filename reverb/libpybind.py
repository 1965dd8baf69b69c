# SPDX-License-Identifier: Apache-2.0
"""Another old name of the compiled module: `reverb.pybind`, name by name."""

from reverb.pybind import *  # noqa: F403
from reverb.pybind import __all__ as __all__
