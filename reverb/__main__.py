# SPDX-License-Identifier: Apache-2.0
"""`python -m reverb` is the command `reverb`."""

import sys

from reverb.command import main

if __name__ == "__main__":
    sys.exit(main())
