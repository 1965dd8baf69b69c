# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/adapters.md.
"""Batches of replay tables as PyTorch tensors.

    from reverb.adapters.torch import Loader

    with Loader("localhost:8000", "replay", batch_size=256, device="cuda") as loader:
        for batch in loader:
            loss, td_error = learn(batch.data)
            loader.update_priorities(batch.info.key, td_error.abs())

`Loader` fetches ahead in a thread and moves batches to the device. `SampleDataset` is for programs
that need a `torch.utils.data.DataLoader`.
"""

from reverb.adapters.torch.loader import Loader
from reverb.adapters.torch.sample_dataset import SampleDataset
from reverb.adapters.torch.tensors import as_is

__all__ = ["Loader", "SampleDataset", "as_is"]
