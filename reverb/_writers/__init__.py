# SPDX-License-Identifier: Apache-2.0
"""Private: writers that `Client` makes, and the patterns of the structured writer."""
