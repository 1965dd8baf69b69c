# SPDX-License-Identifier: Apache-2.0
"""Runs the command `reverb`: `python -m reverb`."""

import sys

from reverb.command import main

if __name__ == "__main__":
    sys.exit(main())
