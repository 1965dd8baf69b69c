# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/readers.md.
"""Private: the methods of both clients, and batches: their requests, columns and answers."""
