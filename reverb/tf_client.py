# SPDX-License-Identifier: Apache-2.0
"""Import path of `reverb.TFClient`. Imports TensorFlow."""

from reverb.tf_ops.tf_client import TFClient

__all__ = ["TFClient"]
