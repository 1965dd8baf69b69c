# SPDX-License-Identifier: Apache-2.0
"""The sample for KubeRay, as Ray itself reads it."""

import copy

import pytest
from ray.autoscaler._private.kuberay import autoscaling_config
from ray.scripts import scripts

from support.kuberay import SAMPLE, groups, manifests


@pytest.fixture(scope="module")
def cluster():
    return manifests(SAMPLE.read_text(encoding="utf-8"))[1]


def test_ray_reads_the_resources_of_its_nodes(cluster):
    spec = copy.deepcopy(cluster["spec"])
    # Fields that the operator adds.
    for group in spec["workerGroupSpecs"]:
        group.setdefault("numOfHosts", 1)
    nodes = autoscaling_config._generate_available_node_types_from_ray_cr_spec(spec)
    replay = nodes["replay"]
    assert (replay["min_workers"], replay["max_workers"]) == (2, 2)
    assert replay["resources"]["replay"] == 1
    assert replay["resources"]["CPU"] == 2
    # There is room for the resources that the sample's program reserves for each shard.
    assert replay["resources"]["memory"] >= 6 * 2**30
    assert "replay" not in nodes["programs"]["resources"]


def test_the_parameters_are_options_of_ray_start(cluster):
    known = {option for it in scripts.start.params for option in it.opts}
    for group in groups(cluster).values():
        assert {f"--{name}" for name in group["rayStartParams"]} <= known
