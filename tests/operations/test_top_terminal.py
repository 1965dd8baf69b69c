# SPDX-License-Identifier: Apache-2.0
"""`reverb top` in a real terminal, that of tmux: keys, sizes, ends."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

import reverb
from reverb import testing
from support.waiting import DEADLINE_S, wait_until

pytest.importorskip("textual", reason="Textual is not installed")

pytestmark = [
    pytest.mark.debian,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="Debian's package tmux is missing"),
]

HOSTILE = "\x1b]0;title\x07\x1b[31m[red]x[/red]"


class Terminal:
    """A terminal that a program fills, and what it shows when the program has ended."""

    def __init__(self, directory, command, **environment):
        self._socket = directory / "tmux"
        self._pid = directory / "pid"
        variables = {"PYTHONPATH": ":".join(sys.path), **environment}
        settings = " ".join(f"{name}='{value}'" for name, value in variables.items())
        shell = (
            f"echo before; stty -a | grep -o '.icanon'; sh -c 'echo $$ > {self._pid}; "
            f'exec env -u COLUMNS -u LINES "$@"\' sh {settings} {command}; '
            "echo exit $?; stty -a | grep -o '.icanon'; cat"
        )
        self._tmux("-f", os.devnull, "new-session", "-d", "-x", "80", "-y", "24", shell)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        with contextlib.suppress(subprocess.CalledProcessError):
            self.close()

    def _tmux(self, *arguments):
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_S,
        )
        return done.stdout

    @property
    def text(self):
        return self._tmux("capture-pane", "-p")

    @property
    def title(self):
        return self._tmux("display-message", "-p", "#{pane_title}").strip()

    @property
    def pid(self):
        return int(self._pid.read_text())

    def press(self, *keys):
        self._tmux("send-keys", *keys)

    def resize(self, width, height):
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def close(self):
        self._tmux("kill-server")

    def shows(self, *words):
        deadline = time.monotonic() + DEADLINE_S
        while not all(it in self.text for it in words):
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)

    def ends_with(self, code):
        """The program ends; what was there before is back, and the terminal reads lines."""
        expected = ["before", " icanon", f"exit {code}", " icanon"]
        wait_until(lambda: [line for line in self.text.splitlines() if line] == expected)


def top(server):
    port = server if isinstance(server, int) else server.port
    return f"{sys.executable} -m reverb top --interval 0.2 127.0.0.1:{port}"


@pytest.fixture
def server():
    with reverb.Server([testing.table("replay"), testing.table(HOSTILE)]) as server:
        yield server


def test_keys_and_sizes(server, tmp_path):
    with Terminal(tmp_path, top(server)) as terminal:
        terminal.shows("Reverb 127.0.0.1:", "▌replay", "Rate limiter", "q quit")
        terminal.press("j")
        terminal.shows(r"▌\x1b]0;title\x07", "\\x1b[31m[red]x[/red]")
        assert terminal.title != "title"
        terminal.press("Up", "Enter")
        terminal.shows("replay  idle")
        terminal.press("Escape")
        terminal.shows("▌replay")
        terminal.resize(200, 60)
        terminal.shows("samples/s", "Streams (0)", "Items that left", "never sampled before")
        terminal.resize(40, 12)
        terminal.shows("▌replay", "q quit")
        assert all(len(line) <= 40 for line in terminal.text.splitlines())
        terminal.resize(80, 24)
        terminal.press("s")
        terminal.shows("None is open.")
        terminal.press("q")
        terminal.shows("exit 0")


def press(*keys):
    return lambda terminal: terminal.press(*keys)


def send(number):
    return lambda terminal: os.kill(terminal.pid, number)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (press("q"), 0),
        (press("C-c"), 130),
        (send(signal.SIGINT), 128 + signal.SIGINT),
        (send(signal.SIGTERM), 128 + signal.SIGTERM),
        (send(signal.SIGHUP), 128 + signal.SIGHUP),
    ],
    ids=["q", "ctrl-c", "SIGINT", "SIGTERM", "SIGHUP"],
)
def test_every_end_restores_the_terminal(server, tmp_path, end, code):
    with Terminal(tmp_path, top(server)) as terminal:
        terminal.shows("▌replay")
        end(terminal)
        terminal.ends_with(code)


def test_a_closed_terminal_ends_it(server, tmp_path):
    with Terminal(tmp_path, top(server)) as terminal:
        terminal.shows("▌replay")
        process = pathlib.Path(f"/proc/{terminal.pid}")
        if not process.exists():
            pytest.skip("this system has no /proc")
        terminal.close()
        wait_until(lambda: not process.exists())


@pytest.mark.slow
def test_warnings_of_the_client_do_not_spoil_the_screen(tmp_path):
    """The core's client warns on standard error, after some seconds without a server."""
    server = reverb.Server([testing.table("replay")])
    port = server.port
    with Terminal(tmp_path, top(port), REVERB_LOG="debug") as terminal:
        terminal.shows("▌replay")
        server.stop()
        terminal.shows("The server does not answer. Its last answer, 9")
        terminal.shows("The server does not answer. Its last answer, 12 s ago, is shown.")
        assert "reverb warn" not in terminal.text
        assert "reverb debug" not in terminal.text
        with reverb.Server([testing.table("new")], port=port):
            terminal.shows("▌new")
            terminal.press("q")
            terminal.shows("exit 0")


def test_a_server_that_is_gone_at_start(tmp_path):
    with Terminal(tmp_path, top(1) + " --timeout 0.5") as terminal:
        terminal.shows("reverb: error: ", "127.0.0.1:1", "exit 1")


def test_without_colours(server, tmp_path):
    with Terminal(tmp_path, top(server), NO_COLOR="1") as terminal:
        terminal.shows("▌replay", "idle")


def test_a_terminal_that_can_nothing(server, tmp_path):
    with Terminal(tmp_path, top(server), TERM="dumb") as terminal:
        terminal.shows("reverb top needs a terminal", "exit 1")
