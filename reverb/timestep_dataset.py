# SPDX-License-Identifier: Apache-2.0
"""Import path of `reverb.TimestepDataset`. Imports TensorFlow."""

from reverb.tf_ops.timestep_dataset import TimestepDataset

__all__ = ["TimestepDataset"]
