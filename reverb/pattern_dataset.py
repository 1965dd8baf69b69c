# SPDX-License-Identifier: Apache-2.0
"""Import path of `reverb.PatternDataset`. Imports TensorFlow."""

from reverb.tf_ops.pattern_dataset import PatternDataset, pattern_dataset_with_info

__all__ = ["PatternDataset", "pattern_dataset_with_info"]
