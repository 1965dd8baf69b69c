# SPDX-License-Identifier: Apache-2.0
"""The sample for KubeRay: fields of a RayCluster, and pods; `with_ray/` reads it with Ray itself.

No schema of KubeRay comes with a package. The names and kinds of the fields at the level of Ray are
written down here, after the types of its API (`ray.io/v1`, KubeRay 1.3); pods and volume claims are
checked with the schemas of Kubernetes, which KubeRay's has copies of.
"""

import json
import re

import pytest

from support.deployment import DEPLOY
from support.kuberay import SAMPLE, groups, manifests

yaml = pytest.importorskip("yaml", reason="PyYAML, which reads manifests, is missing")
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is missing; `make setup` has it")


def strict(required=(), **properties):
    """A schema of an object that has no other fields."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
WHOLE = {"type": "integer", "minimum": 0}
TRUTH = {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
POD_TEMPLATE = strict(["spec"], metadata={"type": "object"}, spec={"type": "object"})
SECRET = strict(
    value=TEXT, valueFrom=strict(secretKeyRef=strict(["name", "key"], name=TEXT, key=TEXT))
)
RAY_CLUSTER = strict(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata=strict(["name"], name=TEXT, labels=TEXTS, annotations=TEXTS),
    spec=strict(
        ["headGroupSpec"],
        rayVersion=TEXT,
        enableInTreeAutoscaling=TRUTH,
        autoscalerOptions={"type": "object"},
        headServiceAnnotations=TEXTS,
        suspend=TRUTH,
        gcsFaultToleranceOptions=strict(
            ["redisAddress"],
            redisAddress=TEXT,
            redisUsername=SECRET,
            redisPassword=SECRET,
            externalStorageNamespace=TEXT,
        ),
        headGroupSpec=strict(
            ["template"],
            serviceType=TEXT,
            headService={"type": "object"},
            enableIngress=TRUTH,
            rayStartParams=TEXTS,
            template=POD_TEMPLATE,
        ),
        workerGroupSpecs={
            "type": "array",
            "items": strict(
                ["groupName", "minReplicas", "maxReplicas", "template"],
                groupName=TEXT,
                replicas=WHOLE,
                minReplicas=WHOLE,
                maxReplicas=WHOLE,
                numOfHosts=WHOLE,
                suspend=TRUTH,
                idleTimeoutSeconds=WHOLE,
                rayStartParams=TEXTS,
                template=POD_TEMPLATE,
                scaleStrategy={"type": "object"},
            ),
        },
    ),
)


@pytest.fixture(scope="module")
def sample():
    return SAMPLE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cluster(sample):
    return manifests(sample)[1]


def container_of(group):
    (container,) = group["template"]["spec"]["containers"]
    return container


def validate(text):
    """Raises for a text that is no good sample."""
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not here; `make setup` installs it"
    )
    claim, cluster = manifests(text)
    jsonschema.validate(cluster, RAY_CLUSTER)
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}} | group["template"]
        for name, group in groups(cluster).items()
    ]
    for manifest in [claim, *pods]:
        validator.validate(manifest, validator.latest_version(), strict=True)


def with_fault_tolerance(sample):
    """The sample with its commented lines."""
    lines = re.search(r"^(  # gcsFaultToleranceOptions:\n(?:  # +.*\n)+)", sample, re.MULTILINE)[1]
    return sample.replace(lines, re.sub(r"^  # ", "  ", lines, flags=re.MULTILINE))


def test_its_fields_are_those_of_the_api(sample):
    validate(sample)


def test_its_commented_lines_are_good_too(sample):
    text = with_fault_tolerance(sample)
    assert manifests(text)[1]["spec"]["gcsFaultToleranceOptions"]["redisAddress"] == "redis:6379"
    validate(text)


@pytest.mark.parametrize(
    ("part", "typo", "told"),
    [
        ("workerGroupSpecs:", "workerGroupSpec:", "workerGroupSpec"),
        ("  rayStartParams:", "  rayStartParam:", "rayStartParam"),
        ("minReplicas: 2", "minReplica: 2", "minReplica"),
        ("replicas: 2", 'replicas: "2"', "is not of type 'integer'"),
        ('num-cpus: "0"', "num-cpus: 0", "is not of type 'string'"),
        ("apiVersion: ray.io/v1", "apiVersion: ray.io/v2", "ray.io/v1"),
        ("claimName:", "claim:", "claim"),
        ("topologyKey:", "topologyKeys:", "topologyKeys"),
        ("accessModes:", "accessMode:", "accessMode"),
        ("redisAddress:", "redisAddresses:", "redisAddress"),
    ],
)
def test_a_typo_is_found(sample, part, typo, told):
    good = with_fault_tolerance(sample)
    assert part in good
    with pytest.raises(Exception, match=told):
        validate(good.replace(part, typo, 1))


def test_the_parts_fit_together(sample, cluster):
    claim, _ = manifests(sample)
    # Shards come back on other nodes, and the directory of the group is on the head.
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for name in ("head", "replay"):
        group = groups(cluster)[name]
        volume, *others = group["template"]["spec"]["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        mount, *other_mounts = container_of(group)["volumeMounts"]
        assert mount == {"name": volume["name"], "mountPath": "/mnt/replay"}
    assert 'checkpoint_directory="/mnt/replay"' in sample
    # Stores are on the disk of the node, which has room for one.
    size = container_of(group)["resources"]["requests"]["ephemeral-storage"]
    assert others == [{"name": "store", "emptyDir": {"sizeLimit": size}}]
    assert other_mounts == [{"name": "store", "mountPath": "/mnt/store"}]
    assert 'store_directory="/mnt/store"' in sample
    limit = re.search(r'store_max_bytes="(\d+)GiB"', sample)[1]
    assert int(limit) < int(size.removesuffix("Gi"))
    assert len({container_of(group)["image"] for group in groups(cluster).values()}) == 1
    replay = groups(cluster)["replay"]
    assert replay["replicas"] == replay["minReplicas"] == replay["maxReplicas"]
    assert f"num_shards={replay['replicas']}," in sample
    spec = replay["template"]["spec"]
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == replay["template"]["metadata"]["labels"]
    for group in groups(cluster).values():
        resources = container_of(group)["resources"]
        assert resources["limits"]["memory"] == resources["requests"]["memory"]


def test_its_pods_may_do_as_little_as_possible(cluster):
    for name, group in groups(cluster).items():
        of_pod = group["template"]["spec"]["securityContext"]
        assert of_pod["runAsNonRoot"] is True
        # The user `ray` of the images of Ray.
        assert (of_pod["runAsUser"], of_pod["runAsGroup"]) == (1000, 100)
        assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
        has_volume = "volumes" in group["template"]["spec"]
        assert of_pod.get("fsGroup") == (100 if has_volume else None), name
        assert container_of(group)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_resource_is_that_of_the_placement(sample, cluster):
    # KubeRay puts it on a command line as it is, so it has quotes of its own.
    text = groups(cluster)["replay"]["rayStartParams"]["resources"]
    assert json.loads(json.loads(text)) == {"replay": 1}
    assert 'placement="with:replay"' in sample


def test_the_program_in_it_fits_the_adapter(sample):
    """The arguments are those of `start`, and what a shard takes is what its node has."""
    source = (DEPLOY.parent / "reverb" / "adapters" / "ray" / "group.py").read_text()
    call = re.search(r"# {3}group = reverb_ray\.start\(\n(.*?)# {3}\)\n", sample, re.DOTALL)[1]
    arguments = re.findall(r"(\w+)=", call)
    assert len(arguments) == 8
    for name in arguments:
        assert re.search(rf"^    {name}: ", source, re.MULTILINE), name
