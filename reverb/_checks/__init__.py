# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/rpc.md.
"""Private: checks of arguments, answers of servers, sizes and files."""
