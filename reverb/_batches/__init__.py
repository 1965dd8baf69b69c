# SPDX-License-Identifier: Apache-2.0
"""Private: `reverb.batches`, with its threads, sources and mixtures, and importance weights."""
