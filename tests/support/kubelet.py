# SPDX-License-Identifier: Apache-2.0
"""A kubelet for one pod, whose only container is a local `reverb_server`.

It does with it what the manifest says: it starts it, probes it, restarts it when it fails, and ends
it by `preStop`, SIGTERM and, after the grace period, SIGKILL.
"""

from __future__ import annotations

import dataclasses
import http.client
import pathlib
import re
import signal
import subprocess
import threading
import time
from typing import Any

import yaml

from support.deployment import arguments, flags
from support.programs import Program
from support.reverb_server import COMMAND
from support.waiting import DEADLINE_S, wait_until

# Exit code of a process that was killed.
KILLED = -signal.SIGKILL
# Where a container finds the index of its pod in a StatefulSet.
_INDEX_LABEL = "metadata.labels['apps.kubernetes.io/pod-index']"
_VARIABLE = re.compile(r"\$\((\w+)\)")


@dataclasses.dataclass(frozen=True)
class Probe:
    """A probe of the manifest, with the defaults of Kubernetes."""

    path: str
    port: str
    period_s: float
    timeout_s: float
    failure_threshold: int

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> Probe:
        """Reads a probe."""
        target = manifest["httpGet"]
        assert target.get("scheme", "HTTP") == "HTTP"
        assert manifest.get("successThreshold", 1) == 1
        assert "initialDelaySeconds" not in manifest
        return cls(
            target["path"],
            target["port"],
            manifest.get("periodSeconds", 10),
            manifest.get("timeoutSeconds", 1),
            manifest.get("failureThreshold", 3),
        )


@dataclasses.dataclass(frozen=True)
class Pod:
    """The manifest's fields of the pod and its container.

    Attributes:
      program: The name of the program.
      options: Its flags, and their values.
      ports: The numbers of ports by their names.
      probes: `startup`, `liveness` and `readiness`.
      pre_stop: The command before a stop.
      grace_s: How long `pre_stop` and the stop may take together.
    """

    program: str
    options: dict[str, str]
    ports: dict[str, int]
    probes: dict[str, Probe]
    pre_stop: list[str]
    grace_s: float

    @classmethod
    def of(cls, manifest: dict[str, Any], index: int = 0) -> Pod:
        """Reads a workload with one container, for the pod with this index."""
        spec = manifest["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        (program,) = container["command"]
        names = ("startup", "liveness", "readiness")
        return cls(
            program,
            flags(_expanded(container["args"], _environment(container, index))),
            {port["name"]: port["containerPort"] for port in container["ports"]},
            {name: Probe.of(container[f"{name}Probe"]) for name in names},
            container["lifecycle"]["preStop"]["exec"]["command"],
            spec["terminationGracePeriodSeconds"],
        )

    def hurried(self, times: float) -> Pod:
        """The same pod that is probed so many times as often, and sleeps so much less.

        The limits, of a probe that is not answered and of a stop, stay.
        """
        program, seconds = self.pre_stop
        assert program == "sleep", "a preStop that does more cannot be hurried"
        return dataclasses.replace(
            self,
            pre_stop=[program, str(float(seconds) / times)],
            probes={
                name: dataclasses.replace(probe, period_s=probe.period_s / times)
                for name, probe in self.probes.items()
            },
        )


def read(path: pathlib.Path) -> dict[str, Any]:
    """Reads a manifest."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def shard(base: pathlib.Path, overlay: pathlib.Path) -> dict[str, Any]:
    """Reads the workload of the base with what the overlay for a group adds to its container."""
    workload = read(base / "statefulset.yaml")
    patch = read(overlay / "shards.yaml")
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    (patched,) = patch["spec"]["template"]["spec"]["containers"]
    container["args"] += [it["value"] for it in read(overlay / "arguments.yaml")]
    container["env"] = patched["env"]
    return workload


def with_arguments(base: pathlib.Path, component: pathlib.Path) -> dict[str, Any]:
    """Reads the workload of the base with the arguments that a component changes and adds."""
    workload = read(base / "statefulset.yaml")
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    for patch in read(component / "arguments.yaml"):
        place = patch["path"].rpartition("/")[2]
        if patch["op"] == "add":
            container["args"].append(patch["value"])
        elif patch["op"] == "replace":
            container["args"][int(place)] = patch["value"]
    return workload


class Kubelet:
    """Runs a pod.

    Attributes:
      address: Where clients reach the server.
      answers: All that each probe was told: a status of HTTP, or the name of an error.
      ports: Ports of this machine by their names.
      restarts: How often the container was restarted because a probe had failed.
    """

    def __init__(
        self,
        pod: Pod,
        ports: dict[str, int],
        paths: dict[str, pathlib.Path],
        names: dict[str, str] | None = None,
    ) -> None:
        """Starts the container.

        Args:
          pod: The pod to run.
          ports: Ports of this machine in place of the pod's, by their names.
          paths: Paths of this machine in place of those in the pod, which the manifest mounts.
          names: Addresses on this machine in place of those that the cluster resolves.
        """
        self.address = f"127.0.0.1:{ports['grpc']}"
        self.answers: dict[str, list[int | str]] = {name: [] for name in pod.probes}
        self.restarts = 0
        self._pod = pod
        self.ports = ports
        self._arguments = _local_arguments(pod, ports, paths, names or {})
        self._is_closed = threading.Event()
        self._start()

    def close(self) -> None:
        """Ends everything on the spot."""
        self._is_closed.set()
        self._program.__exit__()
        self._thread.join(DEADLINE_S)

    @property
    def pid(self) -> int:
        """Number of the server's process."""
        return self._program.pid

    @property
    def log(self) -> str:
        """The server's log."""
        return self._program.errors

    def wait_until_ready(self) -> None:
        """Blocks until the startup and the readiness probe have succeeded."""
        wait_until(lambda: self.is_ready or not self._thread.is_alive())
        assert self.is_ready, (self.answers, self.log)

    def url(self, path: str) -> str:
        """Where the HTTP port serves a path."""
        return f"http://127.0.0.1:{self.ports['http']}{path}"

    def ended(self) -> int:
        """Waits until the container has ended by itself; returns its exit code."""
        return self._program.ended()

    def stop(self) -> tuple[int, float]:
        """Ends the container as on the deletion of its pod.

        Returns:
          Its exit code, and the seconds that it took, with `preStop`.
        """
        self._is_terminating = True
        began = time.monotonic()
        code = self._end_container()
        seconds = time.monotonic() - began
        self._thread.join(DEADLINE_S)
        return code, seconds

    def start_again(self) -> None:
        """Starts the container once more, with the same volume."""
        self._program.__exit__()
        self._start()

    def _start(self) -> None:
        self.is_ready = False
        self._is_terminating = False
        self._program = Program(COMMAND, *self._arguments)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._fails():
            self._end_container()
            self._program.__exit__()
            self._program = Program(COMMAND, *self._arguments)
            self.restarts += 1

    def _end_container(self) -> int:
        """Runs `preStop`, sends SIGTERM and, after the grace period, SIGKILL; returns its code."""
        end = time.monotonic() + self._pod.grace_s
        subprocess.run(self._pod.pre_stop, timeout=self._pod.grace_s, check=True)
        self._program.signal(signal.SIGTERM)
        while self._program.is_running and time.monotonic() < end:
            self._is_closed.wait(0.01)
        if self._program.is_running:
            self._program.kill()
        return self._program.ended()

    def _fails(self) -> bool:
        """Probes the container until it has ended; or until it must be restarted, and is `True`."""
        if not self._succeeds_in_time("startup"):
            return self._program.is_running and not self._is_closed.is_set()
        failures = dict.fromkeys(self._pod.probes, 0)
        next_at = dict.fromkeys(("liveness", "readiness"), time.monotonic())
        while self._program.is_running and not self._is_closed.is_set():
            name = min(next_at, key=next_at.__getitem__)
            self._is_closed.wait(max(0.0, next_at[name] - time.monotonic()))
            probe = self._pod.probes[name]
            next_at[name] = time.monotonic() + probe.period_s
            if name == "liveness" and self._is_terminating:
                continue  # As Kubernetes does: only readiness is probed until the end.
            failures[name] = 0 if self._succeeds(name) else failures[name] + 1
            has_failed = failures[name] >= probe.failure_threshold
            if name == "readiness":
                self.is_ready = failures[name] == 0 or (self.is_ready and not has_failed)
            elif has_failed:
                self.is_ready = False
                return True
        self.is_ready = False
        return False

    def _succeeds_in_time(self, name: str) -> bool:
        probe = self._pod.probes[name]
        for _ in range(probe.failure_threshold):
            if self._is_closed.is_set() or not self._program.is_running:
                return False
            if self._succeeds(name):
                return True
            self._is_closed.wait(probe.period_s)
        return False

    def _succeeds(self, name: str) -> bool:
        probe = self._pod.probes[name]
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.ports[probe.port], timeout=probe.timeout_s
        )
        try:
            connection.request("GET", probe.path)
            answer: int | str = connection.getresponse().status
        except OSError as error:
            answer = type(error).__name__
        finally:
            connection.close()
        self.answers[name].append(answer)
        return isinstance(answer, int) and 200 <= answer < 400


def _environment(container: dict[str, Any], index: int) -> dict[str, str]:
    """The variables of a container, for the pod with this index."""
    made = {}
    for variable in container.get("env", []):
        if "value" in variable:
            made[variable["name"]] = variable["value"]
        else:
            assert variable["valueFrom"] == {"fieldRef": {"fieldPath": _INDEX_LABEL}}
            made[variable["name"]] = str(index)
    return made


def _expanded(arguments_: list[str], environment: dict[str, str]) -> list[str]:
    """Arguments as a container gets them: `$(NAME)` is the value of a variable."""
    return [_VARIABLE.sub(lambda found: environment[found[1]], it) for it in arguments_]


def _local_arguments(
    pod: Pod, ports: dict[str, int], paths: dict[str, pathlib.Path], names: dict[str, str]
) -> list[str]:
    options = dict(pod.options)
    if "--group-address" in options:
        for name, address in names.items():
            assert name in options["--group-address"], f"{name} is no address of the group"
            options["--group-address"] = options["--group-address"].replace(name, address)
    for flag, name in (("--port", "grpc"), ("--http-port", "http")):
        assert options[flag] == str(pod.ports[name]), f"{flag} is not the port {name}"
        options[flag] = str(ports[name])
    for flag, value in options.items():
        if value in paths:
            options[flag] = str(paths[value])
    options["--http-host"] = options["--host"] = "127.0.0.1"
    return arguments(options)
