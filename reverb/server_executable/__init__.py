# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/operations.md.
"""The command `reverb_server`, at the import paths of dm-reverb."""
