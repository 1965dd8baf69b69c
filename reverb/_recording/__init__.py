# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/datasets.md.
"""Private: items of the steps of `B` environments: transitions, sequences and episodes.

Recorders make them while environments run, and imports of datasets make them of stored episodes.
"""
