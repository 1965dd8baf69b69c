# SPDX-License-Identifier: Apache-2.0
"""The command `reverb_server`, and the old import paths of its parts."""
