# SPDX-License-Identifier: Apache-2.0
"""Checkpoints by hand, a model of what they hold, and what goes on while they are written."""
