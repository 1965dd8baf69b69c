# SPDX-License-Identifier: Apache-2.0
"""The status page: what it says, with scripts and without, and that it harms nobody."""

import contextlib
import html
import re
import shutil
import subprocess
import threading
import urllib.request

import numpy as np
import pytest

import reverb
from reverb import testing
from support.stalls import SPECIAL_STALLS, STALLS, Stage
from support.waiting import wait_until

EVIL = "<img src=x onerror=alert(1)>"

NEEDS_CHROMIUM = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="Debian's package chromium is missing"
)


def limiter(samples_per_insert=1.0, min_size=1, min_diff=-1e9, max_diff=1e9):
    return reverb.rate_limiters.RateLimiter(samples_per_insert, min_size, min_diff, max_diff)


def get(server, path):
    url = f"http://127.0.0.1:{server.http_port}{path}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.headers, answer.read().decode()


def browse(server, directory, *options):
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
            f"http://127.0.0.1:{server.http_port}/",
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
    headers, page = get(server, "/")
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
    headers, page = get(server, "/")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers
    assert "<img" not in page


def test_history_is_that_of_the_tables_that_are_asked_for(server):
    _, text = get(server, "/api/history?table=replay&table=missing&table=%3Cimg%20src%3Dx")
    assert '"replay"' in text
    assert "behind" not in text
    _, nothing = get(server, "/api/history")
    assert '"tables":{}' in nothing


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

    @pytest.mark.parametrize("state", [*STALLS, *SPECIAL_STALLS])
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

    def test_with_two_hundred_tables_it_is_still_a_page(self, tmp_path):
        tables = [testing.table(f"table_{i}") for i in range(200)]
        with reverb.Server(tables, http_port=0) as server:
            page, complaints = browse(server, tmp_path, "--dump-dom")
            assert complaints == []
            assert page.count("<details") == 200
            assert page.count("<svg") == 0, "their details are closed"

    @pytest.mark.parametrize("size", ["1200,1600", "360,1600"])
    def test_it_can_be_photographed(self, server, tmp_path, size):
        picture = tmp_path / "page.png"
        browse(server, tmp_path / "profile", f"--window-size={size}", f"--screenshot={picture}")
        assert picture.stat().st_size > 10_000
