# SPDX-License-Identifier: Apache-2.0
"""Import path of dm-reverb: this is the module `reverb.checkpointers`."""

import sys

from reverb import checkpointers
from reverb.checkpointers import *  # noqa: F403 - for type checkers

sys.modules[__name__] = checkpointers
