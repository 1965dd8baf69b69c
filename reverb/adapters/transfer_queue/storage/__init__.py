# SPDX-License-Identifier: Apache-2.0
"""The place of TransferQueue's storage back ends; tables of the server stand for all of them."""
