# SPDX-License-Identifier: Apache-2.0
"""Tests of TransferQueue's interface; without TensorDict they are skipped."""

import os
import subprocess
import sys
import warnings

import pytest

from support.skipped import skip_without

pytest_pycollect_makemodule = skip_without("tensordict", "TensorDict", "test-transferqueue")

# Asks the module itself, so that this process imports no PyTorch if no test needs it.
PATH = [sys.executable, "-m", "reverb.adapters.transfer_queue", "--path"]


@pytest.fixture(scope="session")
def path_of_ours():
    """The directory in which `transfer_queue` is our module."""
    return subprocess.run(PATH, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="session")
def our_module():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import reverb.adapters.transfer_queue as tq
    yield tq
    tq.close()


@pytest.fixture
def ours(our_module):
    """Our module, with a server in this process."""
    our_module.init()  # Again, if another test has closed it.
    return our_module


@pytest.fixture(scope="session")
def theirs():
    """TransferQueue itself, on Ray; skipped where it is not installed."""
    pytest.importorskip("transfer_queue", reason="TransferQueue is not installed; see the Makefile")
    os.environ["RAY_DEDUP_LOGS"] = "0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        import transfer_queue as tq

        ray.init(num_cpus=8, log_to_driver=False, configure_logging=False, include_dashboard=False)
        tq.init({"controller": {"polling_mode": True}})
    yield tq
    tq.close()
    ray.shutdown()


@pytest.fixture(params=["ours", "theirs"])
def tq(request):
    """Both modules, one after the other; all partitions are empty."""
    module = request.getfixturevalue(request.param)
    yield module
    for partition in module.kv_list():
        module.get_client().clear_partition(partition)
