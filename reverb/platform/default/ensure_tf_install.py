# SPDX-License-Identifier: Apache-2.0
"""Import path of dm-reverb: a check for TensorFlow, which only datasets and ops need here."""

__all__ = ["ensure_tf_version"]


def ensure_tf_version() -> None:
    """Checks that the TensorFlow part of this package can be used.

    Raises:
      ImportError: If TensorFlow is not installed or too old; the text says what to install.
    """
    from reverb import tf_ops  # noqa: F401
