# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/rpc.md.
"""Private: checks of what comes from outside: arguments, answers, sizes, files."""
