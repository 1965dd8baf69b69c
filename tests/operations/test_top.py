# SPDX-License-Identifier: Apache-2.0
"""`reverb top` without a terminal: what it shows, every key, and a server that goes and returns."""

import dataclasses
import os

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.command.status_source import StatusSource
from support.stalls import STALLS, Stage, limiter
from support.terminal import LARGE, SMALL, on_screen
from support.waiting import wait_until

pytest.importorskip("textual", reason="Textual is not installed")

HOSTILE = [
    "[red]x[/red]",
    "\x1b[31mred\x1b]0;title\x07",
    "two\nlines\ttab",
    "\u202eleft",
    "x" * 5000,
]


def address(server):
    # In-process calls would find the server of this process also when it is gone.
    return f"127.1:{server.port}"


@pytest.fixture
def server():
    tables = [
        testing.table("calm"),
        testing.table("hopeless", max_size=5, rate_limiter=limiter(min_size=6)),
        testing.table("weighted", sampler=reverb.selectors.Prioritized(1.0), max_size=10),
    ]
    with reverb.Server(tables, max_bytes="64MiB") as server:
        yield server


def test_a_state_is_shown_on_small_and_large_screens():
    stage_it, options, words = STALLS["behind"]

    async def look(screen):
        await screen.shows("replay behind")
        # The sentence stands beside the table, and whole below; there it may be on two lines.
        await screen.shows(words)
        await screen.pilot.resize_terminal(*LARGE)
        await screen.shows("replay behind", "oldest wait", "Streams (", "Items that left")

    with Stage(**options) as stage:
        stage_it(stage)
        wait_until(lambda: stage.state() == "behind")
        on_screen(address(stage.server), look, SMALL)


def test_everything_of_a_table_is_on_a_large_screen(server):
    client = reverb.Client(address(server))
    client.insert_batch({"x": np.zeros((12, 4))}, {"weighted": np.full(12, 3.0)})
    client.sample_batch("weighted", 5)

    async def look(screen):
        await screen.shows("Reverb 127.1:", "of 64.0 MiB (max_bytes)", "None was saved yet.")
        await screen.shows(
            "Rate limiter", "samples never wait", "inserts never wait", "cursor 7",
            "A second", "Share of time that somebody waited", "Waiting now",
            "sum of weights 30",
            "max_size 2",
            "never sampled before",
            "age of samples, median",
            "insert", f":{os.getpid()}:",
        )  # fmt: skip
        assert "hopeless" not in screen.text

    on_screen(address(server), look, LARGE, table="weighted")


def test_keys(server):
    async def look(screen):
        await screen.shows("▌hopeless", "never")
        assert "It will never hold the 6 items" in screen.text
        await screen.press("j")
        await screen.shows("▌calm", "no insert yet, no sample yet")
        await screen.press("down")
        await screen.shows("▌weighted")
        await screen.press("k", "up")
        await screen.shows("▌hopeless")
        await screen.press("enter")
        await screen.shows("hopeless never")
        assert "▌hopeless" not in screen.text
        assert "calm" not in screen.text
        await screen.press("escape", "s")
        await screen.shows("Streams (0)", "None is open.")
        assert "Rate limiter" not in screen.text
        await screen.press("s")
        await screen.shows("Rate limiter")
        await screen.press("question_mark")
        await screen.shows("the connected clients, and why they wait", "slow readers")
        await screen.press("escape", "d")
        await screen.until(lambda: not screen.app.current_theme.dark)
        await screen.press("q")

    assert on_screen(address(server), look) == 0


def test_several_servers_are_lines_and_one_of_them_is_shown(server):
    with reverb.Server([testing.table("other", max_size=7)]) as second:
        addresses = [address(server), address(second)]

        async def look(screen):
            await screen.shows(f"▌{addresses[0]} never hopeless 3 tables", "▌hopeless")
            await screen.shows(f" {addresses[1]} idle other 1 table", "next server")
            await screen.press("n")
            await screen.shows(f"▌{addresses[1]}", f"Reverb {addresses[1]} ", "▌other")
            assert "calm" not in screen.text
            second.stop()
            await screen.shows(f"{addresses[1]} no answer", "The server does not answer. Its last")
            await screen.press("n", "p")
            await screen.shows(f"▌{addresses[0]}", "▌hopeless", "Paused.")

        on_screen(addresses, look, LARGE)


def test_a_server_of_several_that_never_answered_is_told(server):
    with reverb.Server([testing.table("other")]) as gone:
        nobody = address(gone)
    silent = StatusSource(nobody, None, 0.1)

    async def look(screen):
        await screen.shows(f"{nobody} no answer", f"▌{address(server)} never")
        await screen.press("n")
        await screen.shows(f"Reverb {nobody} it has not answered yet", "No server answered at")
        await screen.shows("or raise --timeout")
        assert "hopeless" not in screen.text.split("Reverb ")[1]

    on_screen([silent, address(server)], look, LARGE)


def test_one_server_has_no_line_of_its_own(server):
    async def look(screen):
        await screen.shows("▌hopeless")
        await screen.press("n")
        assert "next server" not in screen.text
        assert screen.text.count(address(server)) == 1

    on_screen(address(server), look)


def test_without_a_limit_there_is_no_bar():
    async def look(screen):
        await screen.shows("no limit", "samples never wait")
        told = next(it for it in screen.text.splitlines() if "Memory" in it)
        assert not {"█", "░"} & set(told)
        gauge = next(it for it in screen.text.splitlines() if "●" in it)
        left, right = gauge.split("├")[1].split("┤")[0].split("●")
        assert abs(len(left) - len(right)) <= 1, gauge

    with reverb.Server([testing.table("t", rate_limiter=reverb.rate_limiters.MinSize(1))]) as free:
        client = reverb.Client(address(free))
        client.insert_batch({"x": np.zeros((12, 4))}, {"t": np.ones(12)})
        on_screen(address(free), look, LARGE)


def test_ctrl_c_quits(server):
    async def look(screen):
        await screen.shows("hopeless")
        await screen.press("ctrl+c")

    assert on_screen(address(server), look) == 130


def test_pause_keeps_what_is_seen(server):
    client = reverb.Client(address(server))

    async def look(screen):
        await screen.press("j", "p")
        await screen.shows("Paused. What you see is")
        asked = server.status().traffic.calls["Status", "OK"]
        client.insert(np.zeros(2), {"calm": 1.0})
        await screen.pilot.pause(0.5)
        assert "items 0 of 1000" in screen.words
        # One question may have been on its way.
        assert server.status().traffic.calls["Status", "OK"] <= asked + 1
        await screen.press("p")
        await screen.shows("items 1 of 1000")
        assert "Paused" not in screen.text

    on_screen(address(server), look, LARGE)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_server_that_goes_and_comes_back(size):
    servers = [reverb.Server([testing.table("replay")])]
    port = servers[0].port

    async def look(screen):
        await screen.shows("replay")
        servers[0].stop()
        await screen.shows("The server does not answer. Its last answer, ")
        assert "Rate limiter" in screen.text
        await screen.press("j", "s", "s")
        servers.append(reverb.Server([testing.table("replay"), testing.table("new")], port=port))
        await screen.shows("new")
        await screen.until(lambda: "does not answer" not in screen.text)

    try:
        on_screen(f"127.1:{port}", look, size)
    finally:
        servers[-1].stop()


def test_the_chosen_table_stays_chosen(server):
    client = reverb.Client(address(server))

    async def look(screen):
        await screen.press("end")
        await screen.shows("▌weighted")
        # Now it flows, and moves above the one that is idle.
        client.insert(np.zeros(2), {"weighted": 1.0})
        await screen.until(lambda: screen.text.index("▌weighted") < screen.text.index(" calm"))

    on_screen(address(server), look)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_hostile_names_are_text(size):
    seen = [r"[red]x[/red]", r"\x1b[31mred\x1b]0;title\x07", r"two\nlines\ttab", r"\u202eleft"]

    async def look(screen):
        await screen.shows(*(name[:18] for name in seen), "x" * 17)
        for _ in HOSTILE:
            await screen.press("j")
            assert "\x1b" not in screen.text
            assert "\u202e" not in screen.text
        await screen.press("enter", "escape")
        await screen.press(*("s" * (size == SMALL)))
        await screen.shows("Streams (2)", r"\x1b[31mred")
        assert "\x1b" not in screen.text

    with reverb.Server([testing.table(name) for name in HOSTILE]) as server:
        client = reverb.Client(address(server))
        with client.trajectory_writer(1) as writer:
            for name in HOSTILE[:2]:
                client.insert(np.zeros(1), {name: 1.0})
                writer.append([np.zeros(1)])
                writer.create_item(name, 1.0, [writer.history[0][-1:]])
            writer.flush()
            on_screen(address(server), look, size)


class Empty(StatusSource):
    """No server of ours is without tables; another one may be."""

    def ask(self, *, with_streams=False):
        return dataclasses.replace(super().ask(with_streams=with_streams), tables={})


def test_no_table_is_no_fault(server):
    async def look(screen):
        await screen.shows("It has no tables.")
        await screen.press("j", "enter", "escape", "s", "home", "end", "pagedown", "s")
        await screen.shows("It has no tables.")

    on_screen(Empty(address(server), None, 10.0), look)


def test_two_hundred_tables_and_a_thousand_streams():
    tables = [testing.table(f"table_{i:03}") for i in range(200)]

    async def look(screen):
        await screen.shows("▌table_000")
        await screen.press("end")
        await screen.shows("▌table_199")
        await screen.press("pageup", "home")
        await screen.shows("▌table_000")
        await screen.press("s")
        await screen.shows("Streams (1000)")
        await screen.press("end")
        await screen.until(lambda: screen.text.count(" insert ") > 5)

    with reverb.Server(tables) as server:
        client = reverb.Client(address(server))
        writers = [client.trajectory_writer(1) for _ in range(1000)]
        for writer in writers:
            writer.append([np.zeros(1)])
            writer.create_item("table_000", 1.0, [writer.history[0][-1:]])
        for writer in writers:
            writer.flush()
        # Ten answers a second are more than so many rows can be drawn.
        on_screen(address(server), look, interval_s=1.0)
        for writer in writers:
            writer.close()
