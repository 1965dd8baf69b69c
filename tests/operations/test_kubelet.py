# SPDX-License-Identifier: Apache-2.0
"""A local server is run as the manifest for Kubernetes says: probed, stopped, killed, restarted.

The manifest's arguments, probes, `preStop` and grace period are those of `deploy/kubernetes/base`.
"""

import collections
import contextlib
import dataclasses
import os
import signal
import time
import urllib.request

import numpy as np
import pytest

import reverb
from reverb.core import protos
from support.deployment import DEPLOY
from support.log_lines import from_json
from support.rolling_restart import WRITERS, free_ports, load
from support.waiting import DEADLINE_S, PATIENCE, Background, wait_until
from support.wire.raw_http2 import Http2

pytest.importorskip("yaml", reason="PyYAML, which reads the manifest, is missing")

from support.kubelet import KILLED, Kubelet, Pod, read, with_arguments

BASE = DEPLOY / "kubernetes" / "base"
STORE = DEPLOY / "kubernetes" / "components" / "store"
FEW_WRITERS = ("insert_batch:replay", "trajectory_writer:replay", "late_flush:replay")
LEARNERS = ("learner:replay", "one_by_one:replay")
# All but those that need a table `queue`.
MANY_WRITERS = tuple(it.replace(",queue", "") for it in WRITERS if "replay" in it)


@pytest.fixture(scope="module")
def pod():
    return Pod.of(read(BASE / "statefulset.yaml"))


@pytest.fixture
def run(tmp_path):
    """Starts a kubelet with a pod. The checkpoints are the test's; the table gives up nothing."""
    config = tmp_path / "server.textproto"
    text = (BASE / "server.textproto").read_text(encoding="utf-8")
    assert "max_size: 1000000" in text
    config.write_text(text.replace("max_size: 1000000", "max_size: 100000000"), encoding="utf-8")
    with contextlib.ExitStack() as stack:

        def run(pod):
            paths = {
                "/etc/reverb/server.textproto": config,
                "/var/lib/reverb": tmp_path / "checkpoints",
                "/var/lib/reverb-store/replay": tmp_path / "store",
            }
            ports = dict(zip(("grpc", "http"), free_ports(2), strict=True))
            return stack.enter_context(contextlib.closing(Kubelet(pod, ports, paths)))

        yield run


def client_of(kubelet):
    return reverb.Client(kubelet.address, connect_timeout_s=DEADLINE_S)


def insert(kubelet, count):
    client_of(kubelet).insert_batch([np.arange(count)], {"replay": 1.0})


def values(kubelet):
    return [int(sample.data[0][0]) for sample in client_of(kubelet).scan("replay")]


def stop_with_a_reader_that_hangs(kubelet):
    """Stops it while a reader keeps it from ending its drain, until its probe has seen that."""
    with Http2(kubelet.ports["grpc"]) as reader:
        request = protos.SampleStreamRequest(table="replay", num_samples=100_000)
        reader.send(
            reader.open("SampleStream", reverb_client="reader-that-hangs"),
            request.SerializeToString(),
        )
        wait_until(lambda: "reader-that-hangs" in streams(kubelet))
        before = len(kubelet.answers["readiness"])
        stop = Background(kubelet.stop)
        wait_until(lambda: 503 in kubelet.answers["readiness"][before:])
        assert stop.running
        answers = kubelet.answers["readiness"][before:]
        # `preStop` changes nothing: until the SIGTERM the server accepts new clients.
        assert answers.index(503) == answers.count(200)
        wait_until(lambda: not kubelet.is_ready)
        assert stop.running
    return stop.result()


def streams(kubelet):
    """The clients that have an open stream."""
    status = client_of(kubelet).status(with_streams=True)
    return {stream.client for stream in status.streams}


def restart_under_load(kubelet, *roles, rounds=1):
    """Restarts the pod while clients insert and sample; each confirmed item is there afterwards."""
    with load(kubelet.address, *roles) as clients:
        for _ in range(rounds):
            code, seconds = stop_with_a_reader_that_hangs(kubelet)
            assert code == 0, kubelet.log
            assert seconds < 60 * PATIENCE, "far below the grace period"
            told = [it.message for it in from_json(kubelet.log) if it.level != "INFO"]
            assert told == []
            kubelet.start_again()
            kubelet.wait_until_ready()
            clients.wait_until_all_go_round()
        outcome = clients.stop()
    lines = [line for error in outcome.errors for line in error.splitlines()]
    assert [line for line in lines if "by now. The server cannot be reached" not in line] == []
    assert outcome.confirmed["replay"]
    assert collections.Counter(values(kubelet)) == collections.Counter(outcome.confirmed["replay"])


def test_the_grace_period_covers_sleep_drain_and_checkpoint(pod):
    sleep, seconds = pod.pre_stop
    assert sleep == "sleep"
    drain_s = float(pod.options["--drain-timeout"])
    assert "--checkpoint-on-stop" in pod.options
    assert pod.grace_s >= float(seconds) + drain_s + 120


def test_probes_leave_time_for_a_load_and_find_a_drain_soon(pod):
    startup, liveness, readiness = (pod.probes[it] for it in ("startup", "liveness", "readiness"))
    assert startup.path == readiness.path == "/readyz"
    assert startup.period_s * startup.failure_threshold >= 1800
    # A server that is slow for a moment is not restarted.
    assert liveness.path == "/livez"
    assert liveness.period_s * liveness.failure_threshold >= 60
    # Endpoints are gone before `preStop` ends, and soon after a drain by hand.
    assert readiness.period_s * readiness.failure_threshold <= 5


def test_a_restart_of_the_pod_loses_nothing_and_shows_no_error(pod, run):
    kubelet = run(pod.hurried(10))
    kubelet.wait_until_ready()
    with urllib.request.urlopen(kubelet.url("/metrics"), timeout=DEADLINE_S) as answer:
        assert b'reverb_table_items{table="replay"} 0' in answer.read()
    restart_under_load(kubelet, FEW_WRITERS, LEARNERS)
    assert kubelet.restarts == 0


def test_a_store_is_back_after_a_crash_and_after_a_stop(run, tmp_path):
    kubelet = run(Pod.of(with_arguments(BASE, STORE)).hurried(10))
    kubelet.wait_until_ready()
    insert(kubelet, 50)
    client_of(kubelet).sync()
    os.kill(kubelet.pid, signal.SIGKILL)
    assert kubelet.ended() == KILLED
    kubelet.start_again()
    kubelet.wait_until_ready()
    insert(kubelet, 7)
    assert kubelet.stop()[0] == 0
    assert not list((tmp_path / "checkpoints").glob("20*")), "a stop loses nothing without one"
    kubelet.start_again()
    kubelet.wait_until_ready()
    assert values(kubelet) == [*range(50), *range(7)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_restarts_of_the_pod_at_its_own_pace(pod, run):
    kubelet = run(pod)
    kubelet.wait_until_ready()
    restart_under_load(kubelet, MANY_WRITERS, MANY_WRITERS, LEARNERS, LEARNERS, rounds=3)
    assert kubelet.restarts == 0


def test_a_server_that_hangs_is_killed_after_the_grace_period(pod, run):
    kubelet = run(dataclasses.replace(pod.hurried(10), grace_s=3.0))
    kubelet.wait_until_ready()
    insert(kubelet, 50)
    client_of(kubelet).checkpoint()
    insert(kubelet, 7)
    os.kill(kubelet.pid, signal.SIGSTOP)
    code, seconds = kubelet.stop()
    assert code == KILLED
    assert 3.0 <= seconds < 3.0 + DEADLINE_S
    # Unsaved items are lost; the earlier checkpoint is not.
    kubelet.start_again()
    kubelet.wait_until_ready()
    assert sorted(values(kubelet)) == list(range(50))


def test_a_server_that_hangs_is_restarted_by_its_liveness_probe(pod, run):
    probes = {
        name: dataclasses.replace(probe, timeout_s=0.3)
        for name, probe in pod.hurried(100).probes.items()
    }
    kubelet = run(dataclasses.replace(pod.hurried(100), grace_s=1.0, probes=probes))
    kubelet.wait_until_ready()
    insert(kubelet, 50)
    client_of(kubelet).checkpoint()
    first = kubelet.pid
    os.kill(first, signal.SIGSTOP)
    wait_until(lambda: kubelet.restarts == 1)
    assert "TimeoutError" in kubelet.answers["liveness"]
    kubelet.wait_until_ready()
    assert kubelet.pid != first
    assert sorted(values(kubelet)) == list(range(50))


def test_it_is_not_ready_before_its_checkpoint_is_loaded(pod, run, tmp_path):
    """The startup probe is asked as long as it takes, and nobody is sent there meanwhile."""
    kubelet = run(pod.hurried(100))
    kubelet.wait_until_ready()
    insert(kubelet, 200_000)
    assert kubelet.stop()[0] == 0
    del kubelet.answers["startup"][:], kubelet.answers["readiness"][:]
    kubelet.start_again()
    wait_until(lambda: 503 in kubelet.answers["startup"])
    assert not kubelet.is_ready
    assert kubelet.answers["readiness"] == []
    kubelet.wait_until_ready()
    assert kubelet.answers["startup"][-1] == 200
    assert client_of(kubelet).server_info()["replay"].current_size == 200_000


def test_a_config_that_cannot_be_used_ends_it_with_2(pod, run, tmp_path):
    options = pod.options | {"--max-bytes": "80 gigs"}
    kubelet = run(dataclasses.replace(pod.hurried(10), options=options))
    began = time.monotonic()
    assert kubelet.ended() == 2
    assert time.monotonic() - began < DEADLINE_S
    assert kubelet.answers["readiness"] == []
