# SPDX-License-Identifier: Apache-2.0
"""Names of older releases of JAX that dm-acme 0.4.0 reads, put back where they are gone.

Used as `pytest -p jax_compat`, or imported before acme. Nothing of Acme is changed: only modules of
JAX and TensorFlow Probability get names, and only those that they do not have.
"""

import types
import warnings

import jax
import jax.interpreters.xla
import jax.numpy as jnp
import jax.test_util
import numpy as np
from absl.testing import parameterized
from jax._src import core


class JaxTestCase(parameterized.TestCase):
    """The methods that Acme's tests use of a class that JAX had for its own tests."""

    def assertArraysEqual(self, x, y):
        np.testing.assert_array_equal(x, y)


def device_put_sharded(shards, devices):
    """One array of all shards; on a machine with one device that is the same."""
    del devices
    return jax.tree_util.tree_map(lambda *leaves: jnp.stack(leaves), *shards)


def device_put_replicated(tree, devices):
    return device_put_sharded([tree] * len(devices), devices)


def put_back(owner, name, value):
    with warnings.catch_warnings():
        # JAX warns of names that it will lose.
        warnings.simplefilter("ignore", DeprecationWarning)
        if not hasattr(owner, name):
            setattr(owner, name, value)


put_back(jax, "xla", types.SimpleNamespace(Device=jax.Device, DeviceArray=jax.Array))
put_back(jax, "pxla", types.SimpleNamespace(ShardedDeviceArray=jax.Array))
put_back(jax, "device_put_sharded", device_put_sharded)
put_back(jax, "device_put_replicated", device_put_replicated)
put_back(jnp, "DeviceArray", jax.Array)
put_back(jax.test_util, "JaxTestCase", JaxTestCase)
for name in ("flatten", "leaves", "map", "structure", "unflatten"):
    put_back(jax, f"tree_{name}", getattr(jax.tree_util, f"tree_{name}"))
for module in (jax, jax.tree_util):
    put_back(module, "tree_multimap", jax.tree_util.tree_map)

# TensorFlow Probability 0.25 registers its arrays there.
put_back(jax.interpreters.xla, "pytype_aval_mappings", core.pytype_aval_mappings)
import tensorflow_probability as tfp  # noqa: E402

# Newer releases have it as an attribute only once it was imported.
import tensorflow_probability.substrates.jax  # noqa: E402

put_back(tfp.experimental, "substrates", tfp.substrates)
