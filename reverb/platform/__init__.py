# SPDX-License-Identifier: Apache-2.0
"""Import paths of dm-reverb: `reverb.platform.checkpointers_lib` and `reverb.platform.default`."""
