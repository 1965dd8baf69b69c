# SPDX-License-Identifier: Apache-2.0
"""Old import paths: `reverb.platform.checkpointers_lib` and `reverb.platform.default`."""
