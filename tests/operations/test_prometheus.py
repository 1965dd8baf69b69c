# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes a server, and answers for it."""

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest

import reverb
from reverb import testing
from support.waiting import wait_until

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
    """A Prometheus that scrapes one target every second."""

    def __init__(self, directory, target):
        self.port = free_port()
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [
                {"job_name": "reverb", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
            ],
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
        url = f"http://127.0.0.1:{self.port}/api/v1/query?query={urllib.parse.quote(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found = json.load(answer)["data"]["result"]
        except urllib.error.URLError:
            return []
        return [float(result["value"][1]) for result in found]


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
