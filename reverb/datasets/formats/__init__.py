# SPDX-License-Identifier: Apache-2.0
"""Private: the formats of datasets, a file each; `reverb/datasets/sources.py` lists them."""
