# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes a server, and answers for it; its alerts name the shard of a group."""

import contextlib
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest

import reverb
from reverb import testing
from support.programs import Program
from support.reverb_server import COMMAND, QUEUE
from support.rolling_restart import free_ports
from support.stalls import looping
from support.waiting import wait_until

ALERTS = pathlib.Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"

pytestmark = [
    pytest.mark.debian,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="Debian's package prometheus is missing"
    ),
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """A Prometheus that scrapes targets every second, with alerts that wait for nothing."""

    def __init__(self, directory, *ports):
        self.port = free_port()
        targets = [f"127.0.0.1:{port}" for port in ports]
        alerts = re.sub("for: .*", "for: 0s", ALERTS.read_text(encoding="utf-8"))
        # Waits of minutes, of learners and of actors.
        (directory / "alerts.yml").write_text(re.sub(r"\} > 60+$", "} > 1", alerts, flags=re.M))
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(directory / "alerts.yml")],
            "scrape_configs": [{"job_name": "reverb", "static_configs": [{"targets": targets}]}],
        }
        # JSON is YAML.
        (directory / "prometheus.yml").write_text(json.dumps(config))
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()

    def ask(self, query):
        """The values of a query, or nothing while it cannot answer."""
        return [float(result["value"][1]) for result in self.find(query)]

    def find(self, query):
        """The series of a query with their labels, or nothing while it cannot answer."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?query={urllib.parse.quote(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.URLError:
            return []


def test_it_scrapes_and_computes(tmp_path):
    tables = [testing.table("replay"), testing.table('a"b\\c')]
    with (
        reverb.Server(tables, http_port=0) as server,
        Prometheus(tmp_path, server.http_port) as prometheus,
    ):
        client = server.localhost_client()
        wait_until(lambda: prometheus.ask("up") == [1.0])
        for _ in range(30):
            client.insert_batch({"x": np.zeros(100)}, {"replay": np.ones(100)})
            client.sample_batch("replay", 50)
        items = server.status().tables["replay"].items
        wait_until(lambda: prometheus.ask('reverb_table_items{table="replay"}') == [items])
        assert prometheus.ask('reverb_table_items{table="a\\"b\\\\c"}') == [0.0]
        query = 'sum(reverb_table_sample_age_seconds_count{table="replay"})'
        wait_until(lambda: prometheus.ask(query) == [1500.0])
        rate = 'rate(reverb_table_inserts_total{table="replay"}[30s])'
        wait_until(lambda: prometheus.ask(f"{rate} > 0"))
        assert prometheus.ask("sum(scrape_samples_post_metric_relabeling)")[0] > 300
        server.stop()
        wait_until(lambda: prometheus.ask("up") == [0.0])


# The second table keeps its items when the server is full.
STALLED = (
    QUEUE.replace("queue", "starved") + 'tables: { table_name: "full" queue: true max_size: 9000 }'
)


def test_alerts_of_a_group_name_its_shards(tmp_path):
    ports, http_ports = free_ports(3), free_ports(3)
    places = [f"localhost:{port}" for port in ports]
    programs = []
    with contextlib.ExitStack() as stack:
        for index, port in enumerate(ports):
            program = stack.enter_context(
                Program(
                    COMMAND,
                    f"--config={STALLED}",
                    f"--port={port}",
                    f"--http-port={http_ports[index]}",
                    "--max-bytes=16MiB",
                    f"--shard-index={index}",
                    "--num-shards=3",
                    "--group=g",
                )
            )
            assert " is ready on port " in program.line()
            programs.append(program)
        programs[1].signal(signal.SIGSTOP)  # Before its first scrape.
        prometheus = stack.enter_context(Prometheus(tmp_path, *http_ports))
        group = reverb.Client("shards:///" + ",".join(places), connect_timeout_s=1)
        full = reverb.Client(places[2], connect_timeout_s=1)
        noise = np.random.default_rng(0).integers(0, 256, 400_000, dtype=np.uint8)
        stack.enter_context(looping(lambda: group.sample_batch("starved", 1)))
        stack.enter_context(looping(lambda: full.insert(noise, {"full": 1.0})))

        def firing(alert, **labels):
            chosen = ",".join(f'{name}="{value}"' for name, value in labels.items())
            return prometheus.find(f'ALERTS{{alertname="{alert}",alertstate="firing",{chosen}}}')

        wait_until(lambda: firing("ReverbShardMissing", group="g", member="1"))
        wait_until(lambda: firing("ReverbLearnerStarves", table="starved", side="sample"))
        wait_until(lambda: firing("ReverbActorsWaitLong", table="full", shard="2"))
        wait_until(lambda: firing("ReverbMemoryNearLimit", shard="2"))
        assert not firing("ReverbShardMissing", member="0")
        for program in programs:
            program.kill()  # What waits for them ends.
