# SPDX-License-Identifier: Apache-2.0
"""The command `reverb_server`, at the import paths of dm-reverb."""
