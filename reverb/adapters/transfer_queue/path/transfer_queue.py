# SPDX-License-Identifier: Apache-2.0
"""Gives `reverb.adapters.transfer_queue`, where this directory is on the path."""

import reverb.adapters.transfer_queue.install  # noqa: F401
