# SPDX-License-Identifier: Apache-2.0
"""Tables whose items have rollouts: what both ends know of them."""
