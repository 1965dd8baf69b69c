# SPDX-License-Identifier: Apache-2.0
"""Private: nests of arrays and of specs, and the columns that writers make of them."""
