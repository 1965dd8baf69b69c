# SPDX-License-Identifier: Apache-2.0
"""Old import path of the check for TensorFlow. Here it is needed by the datasets and ops alone."""

import importlib

__all__ = ["ensure_tf_version"]


def ensure_tf_version() -> None:
    """Checks that the TensorFlow part of this package can be used.

    Raises:
      ImportError: If TensorFlow is not installed or too old; the text says what to install.
    """
    # That part knows what it needs. By name, because it stands on modules that stand on this one.
    importlib.import_module("reverb.tf_ops")
