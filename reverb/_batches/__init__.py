# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/readers.md.
"""Private: `reverb.batches`, with its threads, sources and mixtures, and importance weights."""
