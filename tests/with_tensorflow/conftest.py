# SPDX-License-Identifier: Apache-2.0
"""Tests beside TensorFlow; without it they are skipped. `make test-tf` runs them with several."""

import importlib.util

import numpy as np
import pytest

from support.skipped import skip_without

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None

if HAS_TENSORFLOW:
    import tensorflow as tf

    # For strategies with two replicas. Nothing has run yet, so that it can still be said.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )


pytest_pycollect_makemodule = skip_without("tensorflow", "TensorFlow", "test-tf")


@pytest.fixture
def client(serve):
    """A client of a server whose table gives every item once, in order."""
    from reverb import testing

    return serve(testing.table(max_times_sampled=1))


@pytest.fixture
def ints():
    """Makes a dataset of items that are one int64 `[1]`: `ints(client, "table", ...)`."""
    import reverb

    def make(client, table="table", family=None, **options):
        family = family or reverb.TrajectoryDataset
        options = {"max_in_flight_samples_per_worker": 1} | options
        shape = tf.TensorShape([] if family is reverb.TimestepDataset else [1])
        return family(client.server_address, table, [tf.int64], [shape], **options)

    return make


@pytest.fixture
def fill():
    """Inserts the numbers 0, 1, ... as items of their own: `fill(client, 10)`."""

    def fill(client, count, table="table", first=0):
        for value in range(first, first + count):
            client.insert([np.int64(value)], {table: 1.0})

    return fill


@pytest.fixture
def values():
    """The numbers of some elements of a dataset of `ints`, flat."""

    def values(elements):
        return [int(x) for element in elements for x in np.ravel(element.data[0])]

    return values
