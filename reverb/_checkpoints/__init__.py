# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/checkpoints.md.
"""Private: checkpoints without a server: on disk, and as bytes."""
