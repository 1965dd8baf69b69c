# SPDX-License-Identifier: Apache-2.0
"""Alert rules and the dashboard: every query names series that a server has, and can be parsed."""

import json
import pathlib
import re
import shutil
import subprocess
import urllib.request

import pytest

import reverb
from reverb import testing

ROOT = pathlib.Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "reverb.json"

NEEDS_PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool of Debian's package prometheus is missing"
)


def promtool(*arguments, cwd=None):
    checked = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    return checked.stdout


@pytest.fixture(scope="module")
def series():
    """The names of all series of a server."""
    with reverb.Server([testing.table()], http_port=0) as server:
        url = f"http://127.0.0.1:{server.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    # Families without a series yet are announced by their type.
    types = [line.split()[2:] for line in lines if line.startswith("# TYPE ")]
    announced = {name for name, _ in types}
    announced |= {f"{name}_count" for name, kind in types if kind == "histogram"}
    return announced | {re.split(r"[{ ]", line)[0] for line in lines if line[0] != "#"}


def alert_queries():
    return re.findall(r"^ +expr: (.*)$", ALERTS.read_text(encoding="utf-8"), re.MULTILINE)


def dashboard():
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def dashboard_queries():
    targets = [target for panel in dashboard()["panels"] for target in panel.get("targets", [])]
    return [target["expr"] for target in targets]


def names_in(query):
    return set(re.findall(r"\b(?:reverb|process)_\w+", query))


def test_alerts_name_series_of_a_server(series):
    assert len(alert_queries()) == 24
    for query in alert_queries():
        assert names_in(query), query
        assert names_in(query) <= series, query


def test_the_dashboard_names_series_of_a_server(series):
    queries = dashboard_queries()
    assert len(queries) > 25
    for query in queries:
        assert names_in(query), query
        assert names_in(query) <= series, query
    variables = dashboard()["templating"]["list"]
    for variable in variables[1:]:
        assert names_in(variable["definition"]) <= series
    used = set(re.findall(r"\$(\w+)", " ".join(queries))) - {"__rate_interval"}
    assert used <= {variable["name"] for variable in variables}


def test_every_line_of_the_dashboard_names_its_server():
    """With several servers, lines of the same table would have the same name."""
    targets = [target for panel in dashboard()["panels"] for target in panel.get("targets", [])]
    assert len(targets) > 25
    for target in targets:
        assert "{{instance}}" in target["legendFormat"], target
        grouped = re.findall(r"\bby \((.*?)\)", target["expr"])
        assert all("instance" in labels.split(", ") for labels in grouped), target
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert all(shown <= set(labels.split(", ")) for labels in grouped), target


def test_panels_do_not_overlap():
    cells = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < 24
                assert (x, y) not in cells, panel["title"]
                cells.add((x, y))
    numbers = [panel["id"] for panel in dashboard()["panels"]]
    assert len(numbers) == len(set(numbers))


@pytest.mark.debian
@pytest.mark.timeout(300)
@NEEDS_PROMTOOL
def test_promtool_accepts_the_alerts_and_they_fire():
    promtool("check", "rules", str(ALERTS))
    promtool("test", "rules", "alerts.test.yml", cwd=ALERTS.parent)


@pytest.mark.debian
@NEEDS_PROMTOOL
def test_every_query_of_the_dashboard_can_be_parsed(tmp_path):
    rules = [
        {"record": f"q{i}", "expr": re.sub(r"\$__\w+", "5m", query)}
        for i, query in enumerate(dashboard_queries())
    ]
    path = tmp_path / "rules.yml"
    # JSON is YAML.
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(path))
