# SPDX-License-Identifier: Apache-2.0
"""The status page: what it says, with scripts and without, and that it harms nobody."""

import contextlib
import html
import re
import shutil
import subprocess
import threading

import numpy as np
import pytest

import reverb
from reverb import testing
from support.pages import get
from support.stalls import SPECIAL_STALLS, STALLS, Stage, limiter
from support.waiting import wait_until

EVIL = "<img src=x onerror=alert(1)>"

NEEDS_CHROMIUM = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="Debian's package chromium is missing"
)


def browse(server, directory, *options, view=""):
    """The page after its scripts have run for some seconds, and what the browser complained of."""
    done = subprocess.run(
        [
            "chromium",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={directory}",
            "--virtual-time-budget=3500",
            "--enable-logging=stderr",
            "--window-size=1200,1600",
            *options,
            f"http://127.0.0.1:{server.http_port}/{view}",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=55,
    )
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, complaints


@pytest.fixture
def server():
    tables = [
        testing.table("replay", sampler=reverb.selectors.Prioritized(0.6)),
        testing.table(EVIL, max_size=5, rate_limiter=limiter(min_size=6)),
        testing.table("behind", rate_limiter=limiter(1.0, 1, -10.0, 2.0)),
    ]
    with reverb.Server(tables, http_port=0, max_bytes="64MiB") as server:
        client = server.localhost_client()
        client.insert_batch({"x": np.zeros((10, 4))}, {"replay": np.ones(10)})
        client.sample_batch("replay", 5)
        client.insert_batch({"x": np.zeros((2, 4))}, {"behind": np.ones(2)})

        def insert():
            with contextlib.suppress(reverb.errors.ReverbError):
                client.insert(np.zeros(4), {"behind": 1.0})

        threading.Thread(target=insert, daemon=True).start()
        wait_until(lambda: client.diagnose("behind").state == "behind")
        yield server


def test_without_scripts_it_says_what_each_table_waits_for(server):
    _, headers, page = get(server, "/")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    rows = re.findall(r"<li><b>(.*?)</b><span class=\"state (\w+)\">(.*?)</span>", page)
    assert [(html.unescape(name), state) for name, _, state in rows] == [
        ("replay", "flowing"),
        (EVIL, "never"),
        ("behind", "behind"),
    ]
    assert "Actors wait for learners" in page
    assert "<noscript><meta http-equiv" in page


def test_it_may_do_little(server):
    _, headers, page = get(server, "/")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers
    assert "<img" not in page


def test_history_is_that_of_the_tables_that_are_asked_for(server):
    text = get(server, "/api/history?table=replay&table=missing&table=%3Cimg%20src%3Dx").text
    assert '"replay"' in text
    assert "behind" not in text
    assert '"tables":{}' in get(server, "/api/history").text


@pytest.fixture(scope="module")
def many_tables():
    tables = [testing.table(f"table_{i:04}") for i in range(2000)]
    with reverb.Server(tables, http_port=0) as server:
        yield server


@pytest.mark.debian
@pytest.mark.slow
@NEEDS_CHROMIUM
class TestInABrowser:
    def test_it_shows_everything_and_complains_of_nothing(self, server, tmp_path):
        wait_until(lambda: len(server.status().tables["replay"].sample_age_s.counts) > 0)
        page, complaints = browse(server, tmp_path, "--dump-dom")
        assert complaints == []
        assert "<img" not in page
        states = re.findall(r'class="state (\w+)"[^>]*>([^<]*)<', page)
        assert states == [("never", "never"), ("behind", "behind"), ("flowing", "flowing")]
        for words in ("Rate limiter", "Waiting now", "of 64.0 MiB (max_bytes)", "this process"):
            assert words in page, words
        assert page.count("<details") == 3
        assert page.count("<svg") == 9
        assert 'id="find" role="search" hidden' in page, "three tables need no search"

    def test_colours_and_axes_are_explained(self, server, tmp_path):
        page, _ = browse(server, tmp_path, "--dump-dom")
        memory = page.split('<div id="memory">')[1].split("<h2>")[0]
        assert memory.count("<i style=") == 2
        keys = r'<i class="key (\w+)"></i><span class="(\w+)">([a-z ]+)'
        assert [(a, b, text.strip()) for a, b, text in re.findall(keys, memory)] == [
            ("one", "one", "tables"),
            ("two", "two", "everything else"),
        ]
        charts = re.findall(r'<div class="chart">.*?</p>', page, re.DOTALL)
        assert len(charts) == 6
        for chart in charts:
            labels = re.findall(r"<span>([^<]*)</span>", chart)
            assert labels[2] in ("0", "0 %"), labels
            assert (labels[3].endswith(" ago"), labels[4]) == (True, "now")
            explained = [(a, text.split()[0]) for a, _, text in re.findall(keys, chart)]
            assert explained == [("one", "inserts"), ("two", "samples")]

    def test_without_limits_the_cursor_is_in_the_middle(self, tmp_path):
        free = testing.table("free", rate_limiter=reverb.rate_limiters.MinSize(1))
        with reverb.Server([free], http_port=0) as server:
            client = server.localhost_client()
            client.insert_batch({"x": np.zeros((10, 4))}, {"free": np.ones(10)})
            page, complaints = browse(server, tmp_path, "--dump-dom")
        assert complaints == []
        memory = page.split('<div id="memory">')[1].split("<h2>")[0]
        assert ", no limit: tables " in memory
        assert 'class="bar"' not in memory
        assert re.search(r'<line x1="150" x2="150" [^>]*stroke="var\(--one\)"', page)

    @pytest.mark.parametrize("state", ["stuck", "slow readers"])
    def test_a_stall_is_its_first_line(self, state, tmp_path):
        stage_it, options, words = (STALLS | SPECIAL_STALLS)[state]
        with Stage(**options) as stage:
            stage.client.diagnose("replay")  # From now on there are rates.
            stage_it(stage)

            def is_shown():
                wait_until(lambda: stage.state() == state)
                page, complaints = browse(stage.server, tmp_path, "--dump-dom")
                assert complaints == []
                first = re.search(r'class="state \w+"[^>]*>([^<]*)</span><span[^>]*>([^<]*)<', page)
                told, sentence = map(html.unescape, first.groups())
                return told == state and words in sentence

            # Between two waits a table may flow for a moment.
            assert any(is_shown() for _ in range(3))

    @pytest.mark.parametrize(
        ("view", "names", "told"),
        [
            ("", [f"table_{i:04}" for i in range(50)], "1 to 50, 2000 tables"),
            ("#page=40", [f"table_{i:04}" for i in range(1950, 2000)], "1951 to 2000, 2000 tables"),
            ("#page=999", [f"table_{i:04}" for i in range(1950, 2000)], "1951 to 2000, 2000 tab"),
            ("#search=E_012", [f"table_012{i}" for i in range(10)], "10 of 2000 tables found"),
            (
                "#search=9&page=2",
                [f"table_{i:04}" for i in range(2000) if "9" in str(i)][50:100],
                "51 to 100, 542 of 2000 tables found",
            ),
            ("#search=nothing", [], "0 of 2000 tables found"),
        ],
    )
    def test_thousands_of_tables_are_pages(self, many_tables, tmp_path, view, names, told):
        page, complaints = browse(many_tables, tmp_path, "--dump-dom", view=view)
        assert complaints == []
        assert re.findall(r"<li><b>([^<]*)</b>", page) == names
        assert re.findall(r"<summary>([^<]*)</summary>", page) == names
        assert f">{told}" in page
        assert page.count("<svg") == 0, "their details are closed"
        assert ('id="pager" hidden' in page) == (len(names) < 50)

    def test_what_is_searched_for_is_text(self, many_tables, tmp_path):
        page, complaints = browse(many_tables, tmp_path, "--dump-dom", view="#search=<img&page=-3")
        assert complaints == []
        assert "<img" not in page
        assert ">0 of 2000 tables found" in page

    @pytest.mark.parametrize("size", ["1200,1600", "360,1600"])
    def test_it_can_be_photographed(self, server, tmp_path, size):
        picture = tmp_path / "page.png"
        browse(server, tmp_path / "profile", f"--window-size={size}", f"--screenshot={picture}")
        assert picture.stat().st_size > 10_000
