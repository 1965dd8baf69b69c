# SPDX-License-Identifier: Apache-2.0
"""Makes the parts of the differential tests importable."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
