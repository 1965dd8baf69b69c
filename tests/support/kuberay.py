# SPDX-License-Identifier: Apache-2.0
"""The sample for KubeRay."""

from support.deployment import DEPLOY

SAMPLE = DEPLOY / "kuberay" / "raycluster.yaml"


def manifests(text):
    """The volume claim and the RayCluster of the sample."""
    import yaml  # Not everywhere; tests are skipped without it.

    claim, cluster = yaml.safe_load_all(text)
    return claim, cluster


def groups(cluster):
    """All groups of pods, by their names."""
    spec = cluster["spec"]
    workers = {it["groupName"]: it for it in spec["workerGroupSpecs"]}
    return {"head": spec["headGroupSpec"]} | workers
