# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/adapters.md.
"""Batches of replay tables as arrays of JAX.

from reverb.adapters import jax as reverb_jax

with reverb_jax.batches("localhost:8000", "replay", batch_size=256) as batches:
    for sample in batches:
        params, td_error = step(params, sample.data)
        batches.update_priorities(sample.info.key, abs(td_error))
"""

from reverb.adapters.jax.batches import batches

__all__ = ["batches"]
