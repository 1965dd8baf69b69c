# SPDX-License-Identifier: Apache-2.0
"""Dtypes that NumPy itself lacks."""

from reverb.core import native

# Names of those that the package `ml_dtypes` has.
EXTENSIONS = [name for _, name, _, _, is_extension in native.DTYPES if is_extension]
# Those of them that PyTorch has too: it makes no tensors of its integers.
FLOATS = [name for name in EXTENSIONS if "float" in name]
