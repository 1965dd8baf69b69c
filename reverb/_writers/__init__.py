# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/writers.md.
"""Private: writers that `Client` makes, and the patterns of the structured writer."""
