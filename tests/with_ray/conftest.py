# SPDX-License-Identifier: Apache-2.0
"""Tests on a Ray cluster of several nodes on this machine; without Ray they are skipped."""

import os
import signal
import warnings

import pytest

import reverb
from support.skipped import skip_without

MIB = 2**20

# Ray's workers have a niceness of 15, so beside other tests they would get next to nothing.
os.environ.setdefault("RAY_worker_niceness", "0")

pytest_pycollect_makemodule = skip_without("ray", "Ray", "test-ray")


class RayCluster:
    """A head and further nodes, each a set of processes of its own."""

    def __init__(self, num_nodes):
        from ray import cluster_utils

        # Nothing goes through the object store, so it is small.
        self._arguments = {"num_cpus": 8, "object_store_memory": 80 * MIB}
        self._cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=self._arguments)
        self.address = self._cluster.address
        for _ in range(num_nodes - 1):
            self.add_node()

    def add_node(self, **options):
        return self._cluster.add_node(**self._arguments, **options)

    def remove_node(self, node, *, is_told=False):
        """Ends a node on the spot, as a machine that loses its power, which Ray notices after 15 s.

        If Ray `is_told`, it notices at once.
        """
        self._cluster.remove_node(node, allow_graceful=is_told)

    def stop(self):
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A Ray cluster of three nodes; this process is connected to it."""
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Warnings about Ray's own code are not ours.
        made = RayCluster(3)
        ray.init(made.address, log_to_driver=False, configure_logging=False)
        yield made
        ray.shutdown()
        made.stop()


@pytest.fixture
def make_tables():
    """Makes one prioritized table, with settings of the whole group."""
    # A function inside a function: Ray's workers cannot import the tests.
    return tables_of()


def tables_of(**options):
    def make_tables():
        return [
            reverb.Table(
                "table",
                **{
                    "sampler": reverb.selectors.Prioritized(1.0),
                    "remover": reverb.selectors.Fifo(),
                    "max_size": 3000,
                    "rate_limiter": reverb.rate_limiters.MinSize(1),
                    **{name: make() for name, make in options.items()},
                },
            )
        ]

    return make_tables


@pytest.fixture
def other_tables():
    """Makes functions that make the table with other settings."""
    return tables_of


@pytest.fixture
def start_group(cluster, make_tables):
    """Starts groups that end with the test: `group = start_group(num_shards=3)`."""
    from reverb.adapters import ray as reverb_ray

    started = []

    def start_group(tables=make_tables, **options):
        options = {"name": "test", "num_shards": 3, "timeout_ms": 60_000} | options
        group = reverb_ray.start(tables, **options)
        started.append(group)
        return group

    yield start_group
    for group in started:
        group.stop()


@pytest.fixture
def restart_directory(until):
    """Ends the process of the group's directory; returns when Ray runs the next one."""
    import ray

    def directory():
        return ray.get_actor("reverb:test", namespace="reverb")

    def pid():
        try:
            return ray.get(directory().__ray_call__.remote(lambda actor: os.getpid()))
        except ray.exceptions.RayError:
            return None  # It is about to end, or starts.

    def restart_directory():
        before = pid()
        assert before is not None
        ray.kill(directory(), no_restart=False)
        until(lambda: pid() not in (None, before))

    return restart_directory


@pytest.fixture
def kill():
    """Ends the process of a shard on the spot: `kill(group, 1)`."""

    def kill(group, index):
        os.kill(group.status().shards[index].pid, signal.SIGKILL)

    return kill
