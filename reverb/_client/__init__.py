# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/readers.md.
"""Private: what both clients ask when they sample batches, and what they make of the answer."""
