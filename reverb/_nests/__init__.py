# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/chunks.md.
"""Private: nests of arrays and of specs, and the columns that writers make of them."""
