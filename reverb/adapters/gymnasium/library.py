# SPDX-License-Identifier: Apache-2.0
"""The only module that imports Gymnasium."""

from reverb.adapters.library import imported

__all__ = ["gymnasium"]

gymnasium = imported("gymnasium", "gymnasium", "Gymnasium", "gymnasium>=1.0")
