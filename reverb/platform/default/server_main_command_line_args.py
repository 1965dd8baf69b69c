# SPDX-License-Identifier: Apache-2.0
"""Import path of dm-reverb: this is the module `reverb.server_executable.config_flag`."""

import sys

from reverb.server_executable import config_flag
from reverb.server_executable.config_flag import *  # noqa: F403 - for type checkers

sys.modules[__name__] = config_flag
