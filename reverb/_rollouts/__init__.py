# SPDX-License-Identifier: Apache-2.0
"""Tables whose items grow: what both ends know of them. Design: `docs/design/rollouts.md`."""
