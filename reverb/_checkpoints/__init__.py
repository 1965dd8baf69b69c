# SPDX-License-Identifier: Apache-2.0
"""Private: checkpoints without a server: on disk, and as bytes."""
