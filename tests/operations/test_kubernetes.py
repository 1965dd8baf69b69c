# SPDX-License-Identifier: Apache-2.0
"""The manifests for Kubernetes: schemas, the server's arguments, and what the files say together.

What kustomize makes is checked where there is a `kubectl` with kustomize 5; the files of the base
are checked in any case. No cluster has seen them.
"""

import json
import pathlib
import re
import shutil
import subprocess

import pytest

import reverb
from reverb._checks.byte_sizes import parse_byte_size_on_disk
from support.deployment import DEPLOY, FLAGS, arguments, check, flags
from support.dockerfile import Dockerfile
from support.waiting import PATIENCE

yaml = pytest.importorskip("yaml", reason="PyYAML, which reads manifests, is missing")

KUBERNETES = DEPLOY / "kubernetes"
BASE = KUBERNETES / "base"
TLS = KUBERNETES / "overlays" / "tls"
GROUP = KUBERNETES / "overlays" / "group"
STORE = KUBERNETES / "components" / "store"
POD_MONITOR = KUBERNETES / "components" / "pod-monitor"
# The oldest release that the manifests are for, one between, and the newest that is known.
RELEASES = ("1.25", "1.31", None)


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def container_of(workload):
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return container


@pytest.fixture(scope="module")
def workload():
    return read(BASE / "statefulset.yaml")


def options_of(workload, directory):
    """The arguments of a workload, with files of this machine."""
    container = container_of(workload)
    assert container["command"] == ["reverb_server"]
    values = flags(container["args"])
    assert values["--config-file"] == "/etc/reverb/server.textproto"
    assert values["--checkpoint-dir"] == "/var/lib/reverb"
    return values | {
        "--config-file": str(BASE / "server.textproto"),
        "--checkpoint-dir": str(directory),
    }


def validate(manifest, release):
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not here; `make setup` installs it"
    )
    validator.validate(manifest, release or validator.latest_version(), strict=True)


def test_its_command_is_one_that_the_server_takes(workload, tmp_path):
    check(arguments(options_of(workload, tmp_path)))


def test_the_servers_memory_is_a_share_of_the_limit(workload, tmp_path):
    share = re.fullmatch(r"(\d+)%", options_of(workload, tmp_path)["--max-bytes"])[1]
    assert 50 <= int(share) <= 90
    resources = container_of(workload)["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"]


def test_ports_are_the_same_everywhere(workload, tmp_path):
    options = options_of(workload, tmp_path)
    ports = {it["name"]: it["containerPort"] for it in container_of(workload)["ports"]}
    assert ports == {"grpc": int(options["--port"]), "http": int(options["--http-port"])}
    assert Dockerfile(DEPLOY / "docker" / "Dockerfile").one("EXPOSE") == "8000 8001"
    assert ports == {"grpc": 8000, "http": 8001}
    service = read(BASE / "service.yaml")["spec"]
    assert service["clusterIP"] == "None"
    assert {(it["name"], it["port"], it["targetPort"]) for it in service["ports"]} == {
        (name, port, name) for name, port in ports.items()
    }
    assert options["--http-host"] == "0.0.0.0", "the kubelet probes the pod's address"


def test_labels_and_names_fit(workload):
    labels = workload["spec"]["template"]["metadata"]["labels"]
    service = read(BASE / "service.yaml")
    budget = read(BASE / "poddisruptionbudget.yaml")
    monitor = read(POD_MONITOR / "podmonitor.yaml")
    assert workload["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert monitor["spec"]["selector"]["matchLabels"] == labels
    assert workload["spec"]["serviceName"] == service["metadata"]["name"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == "http"


def test_every_written_path_is_a_volume_that_exists(workload, tmp_path):
    spec = workload["spec"]
    pod = spec["template"]["spec"]
    volumes = {it["name"] for it in pod["volumes"]}
    claims = {it["metadata"]["name"] for it in spec["volumeClaimTemplates"]}
    mounts = {it["mountPath"]: it for it in container_of(workload)["volumeMounts"]}
    assert {it["name"] for it in mounts.values()} == volumes | claims
    assert mounts["/var/lib/reverb"]["name"] in claims
    assert mounts["/etc/reverb"]["readOnly"]
    generator = read(BASE / "kustomization.yaml")["configMapGenerator"][0]
    config = next(it["configMap"]["name"] for it in pod["volumes"] if it["name"] == "config")
    assert (generator["name"], generator["files"]) == (config, ["server.textproto"])


def test_it_may_do_as_little_as_possible(workload):
    pod = workload["spec"]["template"]["spec"]
    user = Dockerfile(DEPLOY / "docker" / "Dockerfile").one("USER")
    of_pod = pod["securityContext"]
    assert of_pod["runAsNonRoot"] is True
    assert f"{of_pod['runAsUser']}:{of_pod['runAsGroup']}" == user
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container_of(workload)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False


def test_a_kustomization_names_the_files_that_are_there():
    for path in KUBERNETES.rglob("kustomization.yaml"):
        kustomization = read(path)
        named = set(kustomization.get("resources", []))
        named |= {it["path"] for it in kustomization.get("patches", [])}
        named |= {
            it for made in kustomization.get("configMapGenerator", []) for it in made["files"]
        }
        assert all((path.parent / name).exists() for name in named), path
        files = {it.name for it in path.parent.iterdir() if it.is_file()}
        assert files == {name for name in named if "/" not in name} | {"kustomization.yaml"}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ["statefulset", "service", "poddisruptionbudget"])
def test_a_file_of_the_base_follows_its_schema(name, release):
    validate(read(BASE / f"{name}.yaml"), release)


def test_a_fault_in_a_manifest_is_found(workload):
    bad = json.loads(json.dumps(workload))
    bad["spec"]["template"]["spec"]["terminationGracePeriod"] = 300
    with pytest.raises(Exception, match="terminationGracePeriod"):
        validate(bad, None)


def options_of_the_overlay(directory=TLS, instead_of=()):
    """The arguments that an overlay adds, or has instead of those of the base of these flags."""
    patches = [it for it in read(directory / "arguments.yaml") if it["op"] != "test"]
    arguments = "/spec/template/spec/containers/0/args/"
    replaced = {it["path"] for it in patches if it["op"] == "replace"}
    assert {it["path"] for it in patches} == {f"{arguments}-"} | replaced
    before = container_of(read(BASE / "statefulset.yaml"))["args"]
    places = sorted(int(it.removeprefix(arguments)) for it in replaced)
    assert tuple(before[it].partition("=")[0] for it in places) == instead_of
    return flags([it["value"] for it in patches])


def test_the_overlay_for_tls_reads_what_it_mounts():
    options = options_of_the_overlay()
    assert set(options) == {"--tls-cert", "--tls-key", "--tokens", "--http-tls"}
    assert set(options) <= FLAGS
    patch = read(TLS / "secrets.yaml")
    mounts = {it["mountPath"]: it["name"] for it in container_of(patch)["volumeMounts"]}
    volumes = {it["name"]: it for it in patch["spec"]["template"]["spec"]["volumes"]}
    for value in filter(None, options.values()):
        directory, name = value.rsplit("/", 1)
        volume = volumes[mounts[directory]]
        # Others cannot read it. The group can, which is the server's.
        assert volume["secret"]["defaultMode"] == 0o440
        assert name in ("tls.crt", "tls.key", "tokens")
    # The HTTP port speaks TLS then, and so do its probes.
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container_of(patch)[name] == {"httpGet": {"scheme": "HTTPS"}}


def test_the_number_of_shards_is_the_same_everywhere():
    options = options_of_the_overlay(GROUP)
    assert set(options) == {"--shard-index", "--num-shards", "--group", "--group-address"}
    assert set(options) <= FLAGS
    (replicas,) = read(GROUP / "kustomization.yaml")["replicas"]
    name = read(BASE / "statefulset.yaml")["metadata"]["name"]
    assert replicas["name"] == name
    assert int(options["--num-shards"]) == replicas["count"] > 1
    service = read(BASE / "service.yaml")
    port = next(it["port"] for it in service["spec"]["ports"] if it["name"] == "grpc")
    pods = [f"{name}-{i}.{service['metadata']['name']}:{port}" for i in range(replicas["count"])]
    assert options["--group-address"] == f"shards:///{','.join(pods)}"
    reverb.Client(options["--group-address"])


def test_a_shard_is_told_its_index_by_the_label_of_its_pod():
    patch = read(GROUP / "shards.yaml")
    (variable,) = container_of(patch)["env"]
    assert options_of_the_overlay(GROUP)["--shard-index"] == f"$({variable['name']})"
    label = "metadata.labels['apps.kubernetes.io/pod-index']"
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": label}}
    base = read(BASE / "statefulset.yaml")
    for found in (patch, read(GROUP / "service.yaml")):
        assert found["metadata"]["name"] == base["metadata"]["name"]
    (spread,) = patch["spec"]["template"]["spec"]["topologySpreadConstraints"]
    labels = base["spec"]["template"]["metadata"]["labels"]
    assert spread["labelSelector"]["matchLabels"] == labels
    # Kubernetes has its own rules for names of variables that the server reads.
    assert not variable["name"].startswith("REVERB_SERVER_")


@pytest.mark.parametrize("index", [0, 1])
def test_the_command_of_a_shard_is_one_that_the_server_takes(workload, tmp_path, index):
    options = options_of(workload, tmp_path) | options_of_the_overlay(GROUP)
    check(arguments(options | {"--shard-index": str(index)}))


def test_an_index_beyond_the_number_of_shards_is_found(workload, tmp_path):
    options = options_of(workload, tmp_path) | options_of_the_overlay(GROUP)
    with pytest.raises(AssertionError, match="must be below the number of shards, 2"):
        check(arguments(options | {"--shard-index": "2"}))


def with_store(before):
    """Options with those of the component for a store, which has no checkpoint at the stop."""
    added = options_of_the_overlay(STORE, ("--max-bytes", "--checkpoint-on-stop"))
    return {flag: it for flag, it in before.items() if flag != "--checkpoint-on-stop"} | added


def test_a_store_lies_on_a_disk_that_is_large_enough(workload, tmp_path):
    before = options_of(workload, tmp_path)
    options = with_store(before)
    mount, claim = (it["value"] for it in read(STORE / "claim.yaml"))
    assert mount["name"] == claim["metadata"]["name"] == "store"
    gib = int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
    assert parse_byte_size_on_disk("max_bytes", options["--store-max-bytes"]) < gib * 2**30
    path = pathlib.PurePath(options["--store"])
    assert str(path.parent) == mount["mountPath"], "a directory of its own in the volume"
    shares = [int(it["--max-bytes"].removesuffix("%")) for it in (options, before)]
    assert shares[0] < shares[1], "the page cache needs room"


def test_the_command_with_a_store_is_one_that_the_server_takes(workload, tmp_path):
    options = with_store(options_of(workload, tmp_path))
    assert set(options) <= FLAGS
    assert "--no-store-journal" not in options, "its tables survive the pod"
    options["--store"] = str(tmp_path / "store")
    check(arguments(options))


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """The manifests that kustomize makes of a directory, or of resources and components."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which has kustomize, is missing")
    told = subprocess.run(
        ["kubectl", "version", "--client", "--output=json"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    major = re.match(r"v(\d+)\.", json.loads(told).get("kustomizeVersion", "v0."))[1]
    if int(major) < 5:
        pytest.skip("kubectl is too old: it has no kustomize 5")

    def build(path):
        done = subprocess.run(
            ["kubectl", "kustomize", str(path)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return {it["kind"]: it for it in yaml.safe_load_all(done.stdout)}

    return build


@pytest.mark.parametrize("directory", ["base", "overlays/tls", "overlays/group", "overlays/store"])
@pytest.mark.parametrize("release", RELEASES)
def test_what_kustomize_makes_follows_its_schemas(build, directory, release):
    made = build(KUBERNETES / directory)
    assert set(made) == {"ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget"}
    for manifest in made.values():
        validate(manifest, release)


def test_kustomize_puts_the_parts_together(build):
    made = build(TLS)
    base = read(BASE / "statefulset.yaml")
    container = container_of(made["StatefulSet"])
    options = flags(container["args"])
    assert options == flags(container_of(base)["args"]) | options_of_the_overlay()
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        expected = dict(container_of(base)[name])
        expected["httpGet"] = expected["httpGet"] | {"scheme": "HTTPS"}
        assert container[name] == expected
    mounted = {it["mountPath"] for it in container["volumeMounts"]}
    assert {"/etc/reverb", "/etc/reverb-tls", "/etc/reverb-tokens", "/var/lib/reverb"} <= mounted
    assert made["ConfigMap"]["metadata"]["name"].startswith("reverb-config-")
    config = (BASE / "server.textproto").read_text(encoding="utf-8")
    assert made["ConfigMap"]["data"] == {"server.textproto": config}
    assert not container["image"].startswith("reverb-replay"), "an image has a registry and a tag"


def test_kustomize_makes_a_group(build):
    made = build(GROUP)
    base = read(BASE / "statefulset.yaml")
    workload = made["StatefulSet"]
    container = container_of(workload)
    added = options_of_the_overlay(GROUP)
    assert flags(container["args"]) == flags(container_of(base)["args"]) | added
    assert workload["spec"]["replicas"] == int(added["--num-shards"])
    assert container["env"] == container_of(read(GROUP / "shards.yaml"))["env"]
    assert made["Service"]["spec"]["publishNotReadyAddresses"] is True
    assert made["Service"]["spec"]["clusterIP"] == "None"
    # Each has a volume of its own for its checkpoints.
    assert workload["spec"]["volumeClaimTemplates"] == base["spec"]["volumeClaimTemplates"]


@pytest.mark.parametrize("directory", ["base", "overlays/group"])
def test_kustomize_adds_a_store(build, tmp_path, directory):
    """To a single server, and to each shard of a group."""
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [kubernetes/{directory}]\ncomponents: [kubernetes/components/store]\n",
        encoding="utf-8",
    )
    made, before = build(tmp_path), build(KUBERNETES / directory)["StatefulSet"]
    workload = made["StatefulSet"]
    for release in RELEASES:
        validate(workload, release)
    container = container_of(workload)
    assert flags(container["args"]) == with_store(flags(container_of(before)["args"]))
    mount, claim = (it["value"] for it in read(STORE / "claim.yaml"))
    assert container["volumeMounts"] == [*container_of(before)["volumeMounts"], mount]
    assert workload["spec"]["volumeClaimTemplates"][-1] == claim
    if directory == "base":
        assert made == build(KUBERNETES / "overlays" / "store")


@pytest.mark.parametrize(
    ("file", "text", "typo", "told"),
    [
        ("service.yaml", "publishNotReadyAddresses", "publishNotReadyAdresses", "ReadyAdresses"),
        ("shards.yaml", "topologyKey", "topologyKeys", "topologyKeys"),
        ("shards.yaml", "fieldRef", "fieldRefs", "fieldRefs"),
        ("arguments.yaml", "containers/0/args", "containers/0/arg", "path"),
        ("kustomization.yaml", "count: 2", "counts: 2", "counts"),
        ("kustomization.yaml", "path: shards.yaml", "path: shard.yaml", r"shard\.yaml"),
    ],
)
def test_a_typo_in_the_overlay_for_a_group_is_found(build, tmp_path, file, text, typo, told):
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes" / "overlays" / "group"
    good = (overlay / file).read_text(encoding="utf-8")
    assert text in good
    (overlay / file).write_text(good.replace(text, typo), encoding="utf-8")

    def build_and_validate():
        for manifest in build(overlay).values():
            validate(manifest, None)

    with pytest.raises(Exception, match=told):
        build_and_validate()


def test_a_kustomization_of_ones_own_adds_the_pod_monitor(build, tmp_path):
    """As in the documentation."""
    own = pathlib.Path(tmp_path)
    shutil.copytree(KUBERNETES, own / "kubernetes")
    (own / "kustomization.yaml").write_text(
        "resources: [kubernetes/base]\ncomponents: [kubernetes/components/pod-monitor]\n"
        "images: [{name: registry.example/reverb-replay, newName: mine/reverb, newTag: '7'}]\n"
        "replicas: [{name: reverb, count: 2}]\n",
        encoding="utf-8",
    )
    made = build(own)
    assert made["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["path"] == "/metrics"
    assert container_of(made["StatefulSet"])["image"] == "mine/reverb:7"
    assert made["StatefulSet"]["spec"]["replicas"] == 2


@pytest.mark.parametrize("overlay", ["group", "store", "tls"])
def test_pods_at_rest_have_their_volumes_and_no_server(build, tmp_path, overlay):
    """As in the documentation, before checkpoints are copied."""
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [kubernetes/overlays/{overlay}]\n"
        "components: [kubernetes/components/at-rest]\n",
        encoding="utf-8",
    )
    made = build(tmp_path)
    running = build(KUBERNETES / "overlays" / overlay)["StatefulSet"]
    workload = made["StatefulSet"]
    for release in RELEASES:
        validate(workload, release)
    container = container_of(workload)
    shell, option, script = container["command"]
    script = script.replace("; sleep", "; echo up; sleep")
    with subprocess.Popen([shell, option, script], stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"up\n"
        program.terminate()
        assert program.wait(timeout=10 * PATIENCE) == 0, "it ends, with nothing to save"
    gone = {"args", "lifecycle", "startupProbe", "livenessProbe", "readinessProbe", "command"}
    expected = {name: it for name, it in container_of(running).items() if name not in gone}
    assert {name: it for name, it in container.items() if name != "command"} == expected
    workload["spec"]["template"]["spec"]["containers"] = running["spec"]["template"]["spec"][
        "containers"
    ]
    assert workload == running


OWN = """
namePrefix: {prefix}
labels:
  - pairs: {{app.kubernetes.io/instance: {instance}}}
    includeSelectors: true
resources: [kubernetes/{directory}]
"""


@pytest.mark.parametrize("directory", ["base", "overlays/tls", "overlays/group", "overlays/store"])
def test_two_installs_in_one_namespace_do_not_meet(build, tmp_path, directory):
    """As in the documentation: a prefix and a label for the second one."""
    text = (DEPLOY.parent / "docs" / "howto" / "deploying.md").read_text(encoding="utf-8")
    assert "namePrefix: eval-" in text
    assert "includeSelectors: true" in text
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    (tmp_path / "kustomization.yaml").write_text(
        OWN.format(prefix="eval-", instance="eval", directory=directory), encoding="utf-8"
    )
    first, second = build(KUBERNETES / directory), build(tmp_path)
    assert set(first) == set(second)
    for kind, manifest in second.items():
        validate(manifest, None)
        assert manifest["metadata"]["name"] == f"eval-{first[kind]['metadata']['name']}"
    labels = [it["StatefulSet"]["spec"]["template"]["metadata"]["labels"] for it in (first, second)]
    for made, mine, others in ((first, *labels), (second, *reversed(labels))):
        workload = made["StatefulSet"]["spec"]
        selectors = [
            workload["selector"]["matchLabels"],
            made["Service"]["spec"]["selector"],
            made["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
            *[
                it["labelSelector"]["matchLabels"]
                for it in workload["template"]["spec"].get("topologySpreadConstraints", [])
            ],
        ]
        for selector in selectors:
            assert selector.items() <= mine.items()
            assert not selector.items() <= others.items()
        assert workload["serviceName"] == made["Service"]["metadata"]["name"]
        config = next(
            it for it in workload["template"]["spec"]["volumes"] if it["name"] == "config"
        )
        assert config["configMap"]["name"] == made["ConfigMap"]["metadata"]["name"]
