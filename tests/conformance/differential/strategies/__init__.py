# SPDX-License-Identifier: Apache-2.0
"""Random programs of the public API, as plain JSON; `interpreter/` runs them."""

from strategies.program import programs

__all__ = ["programs"]
