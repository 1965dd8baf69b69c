# SPDX-License-Identifier: Apache-2.0
"""Names of older JAX releases that dm-acme 0.4.0 reads, put back: `pytest -p jax_compat`."""

import types

import jax

if not hasattr(jax, "xla"):
    jax.xla = types.SimpleNamespace()
if not hasattr(jax.xla, "Device"):
    jax.xla.Device = jax.Device
