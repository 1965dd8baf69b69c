# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/operations.md.
"""Private: tables, limits, certificates, tokens and settings of a server, checked for the core."""
