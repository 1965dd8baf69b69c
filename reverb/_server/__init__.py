# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/operations.md.
"""Private: limits, certificates, tokens and settings, as arguments and as the core gets them."""
