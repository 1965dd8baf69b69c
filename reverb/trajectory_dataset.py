# SPDX-License-Identifier: Apache-2.0
"""Import path of `reverb.TrajectoryDataset`. Imports TensorFlow."""

from reverb.tf_ops.trajectory_dataset import TrajectoryDataset

__all__ = ["TrajectoryDataset"]
