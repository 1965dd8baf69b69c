# SPDX-License-Identifier: Apache-2.0
"""The wire by hand: messages, clients and servers that do what a test decides."""
