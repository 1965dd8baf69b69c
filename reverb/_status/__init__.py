# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/operations.md.
"""Private: the parts of a server's status that are about a table."""
