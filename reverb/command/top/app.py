# SPDX-License-Identifier: Apache-2.0
"""The app of `reverb top`: a server's status in a terminal, refreshed all the time."""

import asyncio
import signal
import time
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Resize
from textual.message import Message
from textual.widgets import Footer, Static

from reverb.command import text
from reverb.command.status_source import StatusSource
from reverb.command.top import server_facts, table_facts
from reverb.command.top.colours import DARK, LIGHT, styled, theme_of_terminal
from reverb.command.top.history import History
from reverb.command.top.line import Line, column_width, columns, line
from reverb.command.top.picture import BLOCKS
from reverb.command.top.poller import Poller
from reverb.command.top.rows import Rows
from reverb.command.top.standard_error import screen_alone
from reverb.errors import ReverbError, UnavailableError
from reverb.server_status import ServerStatus

# Exit codes of shells for programs that a signal ended.
_OF_SIGNAL = 128

# An answer that is this much older than the interval is missed.
_LATE_S = 2.0
_BLOCK_WIDTH = 36
# From this height on, streams have a place below the tables.
_TALL = 40
_VERY_TALL = 50

_HELP = """\
The tables that need help come first. Charts go back 5 minutes, or to the
start of reverb top: inserts above, samples below, at one scale.

  up, down, k, j    choose a table; Home: always the one that needs help most
  Enter             the chosen table alone, on the whole screen
  s                 who is connected, and waits for what
  p                 pause: ask the server no more, until p is pressed again
  d, q, Ctrl-C      dark or light; quit
  Tab, Esc          the keys go to the next part of the screen; back

  never, stuck      it cannot go on by itself: its settings have to change
  shard down        a server of the group does not answer
  starved           samples wait, and nobody inserts
  full              inserts wait for memory
  paused, draining  somebody has paused it, or ends the server's streams
  slow readers      samples are ready, and are not taken
  behind, ahead     actors wait for learners; learners wait for actors
  filling           samples wait for the first items
  flowing, idle     all is well; nobody asks
"""


class Scroller(VerticalScroll, can_focus=True):
    """Text that may be longer than the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "down", show=False),
        Binding("k", "scroll_up", "up", show=False),
    ]


class TopApp(App[None]):
    """Shows a server until the user quits.

    Args:
      source: The server.
      status: Its first status, with streams.
      interval_s: From one question to the next.
    """

    TITLE = "reverb top"
    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "app.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "interrupt", "quit", show=False, priority=True),
        Binding("enter", "view('table')", "details"),
        Binding("s", "view('streams')", "streams"),
        Binding("p", "pause", "pause"),
        Binding("d", "dark", "dark/light"),
        Binding("question_mark", "view('help')", "help", key_display="?"),
        Binding("escape", "view('overview')", "back"),
    ]

    class Answered(Message):
        """The server has answered."""

        def __init__(self, status: ServerStatus) -> None:
            super().__init__()
            self.status = status

    class Failed(Message):
        """The server has not answered."""

        def __init__(self, error: ReverbError) -> None:
            super().__init__()
            self.error = error

    def __init__(self, source: StatusSource, status: ServerStatus, interval_s: float) -> None:
        super().__init__()
        self._source = source
        self._status = status
        self._interval_s = interval_s
        self._answered_at = time.monotonic()
        self._error: ReverbError | None = None
        self._history = History()
        self._history.add(status)
        self._view = "overview"
        self._poller = Poller(
            source,
            interval_s,
            lambda status: self.post_message(self.Answered(status)),
            lambda error: self.post_message(self.Failed(error)),
        )

    def compose(self) -> ComposeResult:
        """The parts of the screen, from top to bottom."""
        yield Static(id="server")
        yield Static(id="alert")
        yield Static(id="memory")
        with Vertical(id="tables"):
            yield Static(id="tables-head", classes="head")
            yield Rows(id="tables-rows")
        with Scroller(id="details"):
            yield Static(id="table")
        with Vertical(id="streams"):
            yield Static(id="streams-head", classes="head")
            yield Rows(id="streams-rows")
        with Scroller(id="help"):
            yield Static(id="words")
        yield Static(id="checkpoints")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begins to ask."""
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.theme = theme_of_terminal().name
        self.theme_changed_signal.subscribe(self, lambda _: self._show())
        self.action_view("overview")
        self.set_interval(0.5, self._tell)
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._end_by, number)
        self._poller.start()

    def on_unmount(self) -> None:
        """Asks no more."""
        self._poller.stop()

    def on_resize(self, event: Resize) -> None:
        """Lays everything out anew."""
        self.screen.set_class(event.size.height >= _TALL, "tall")
        self.call_after_refresh(self._show)

    def on_top_app_answered(self, message: Answered) -> None:
        """Shows what the server says."""
        self._history.add(message.status)
        self._answered_at = time.monotonic()
        self._error = None
        # What is seen stays, also if an answer comes late after a pause.
        if not self._poller.is_paused:
            self._status = message.status
        self._show()

    def on_top_app_failed(self, message: Failed) -> None:
        """Says why there is no answer."""
        self._error = message.error
        self._tell()

    def on_rows_chosen(self) -> None:
        """Shows the table that was chosen."""
        self._show_table()

    def action_view(self, view: str) -> None:
        """Shows a view, or the overview again if that view is shown."""
        self._view = "overview" if view == self._view else view
        for name in ("overview", "table", "streams", "help"):
            self.screen.set_class(name == self._view, name)
        focused = {"table": "#details", "streams": "#streams-rows", "help": "#help"}
        self.query_one(focused.get(self._view, "#tables-rows")).focus()
        self.call_after_refresh(self._show)

    def action_pause(self) -> None:
        """Asks no more, or goes on."""
        if self._poller.is_paused:
            self._poller.go_on()
            self._answered_at = time.monotonic()
        else:
            self._poller.pause()
        self._tell()

    def action_dark(self) -> None:
        """Changes between dark and light."""
        self.theme = LIGHT.name if self.current_theme.dark else DARK.name

    def action_interrupt(self) -> None:
        """Quits as a program that Ctrl-C ended."""
        self._end_by(signal.SIGINT)

    def _end_by(self, number: signal.Signals) -> None:
        self.exit(return_code=_OF_SIGNAL + number)

    def _show(self) -> None:
        if not self.is_running:
            return
        status, width = self._status, self.size.width - 2
        address = text.plain(self._source.address)
        self._put(
            "#server",
            [
                line(
                    ("Reverb ", "bold"), address, (f"  {server_facts.summary(status)}", "soft")
                ).fit(width)
            ],
        )
        self._put("#memory", server_facts.memory(status, BLOCKS, width))
        head, rows = server_facts.tables(status, width)
        # One column is for the mark of the chosen line.
        self._put(
            "#tables-head", [(line(" ") + head).fit(width) if rows else line("It has no tables.")]
        )
        self.query_one("#tables-rows", Rows).show(rows)
        head, rows = server_facts.streams(status, width - 1)
        title = line((f"Streams ({len(rows)})", "bold"))
        self._put(
            "#streams-head",
            [title, (line(" ") + head).fit(width) if rows else line("None is open.")],
        )
        self.query_one("#streams-rows", Rows).show(rows)
        self._put("#words", [line(row).fit(width - 1) for row in _HELP.splitlines()])
        saved = line(("Checkpoints ", "bold"), (server_facts.checkpoints(status), "soft"))
        self._put("#checkpoints", [saved.fit(width)])
        self._show_table()
        self._tell()

    def _show_table(self) -> None:
        name = self.query_one("#tables-rows", Rows).chosen
        table = self._status.tables.get(name) if name is not None else None
        if name is None or table is None:
            self._put("#table", [])
            return
        # One column is for the scroll bar.
        width = max(self.size.width - 4, 1)
        count = max(width // _BLOCK_WIDTH, 1)
        each = column_width(width, count)
        height = 4 if self.size.height >= _VERY_TALL else 2
        blocks = table_facts.blocks(name, table, self._history, BLOCKS, each, height)
        lines = table_facts.diagnosis(name, table, width)
        self._put("#table", [*lines, line(), *columns(blocks, width, count)])

    def _tell(self) -> None:
        """Says in words what is the matter, if the status is not that of now."""
        if not self.is_running:
            return
        age = time.monotonic() - self._answered_at
        told = ""
        if self._poller.is_paused:
            told = f"Paused. What you see is {text.interval(age)} old; p goes on."
        elif self._error is not None and not isinstance(self._error, UnavailableError):
            told = f"{text.plain(' '.join(str(self._error).split()))}"
        elif self._error is not None or age > self._interval_s + _LATE_S:
            told = (
                "The server does not answer. What you see is what it said "
                f"{text.interval(age)} ago."
            )
        alert = self.query_one("#alert", Static)
        alert.display = bool(told)
        if told:
            self._put("#alert", [line(told)])

    def _put(self, selector: str, lines: list[Line]) -> None:
        is_dark = self.current_theme.dark
        made = styled(line(), is_dark=is_dark)
        for i, row in enumerate(lines):
            made.append("\n" if i else "")
            made.append_text(styled(row, is_dark=is_dark))
        self.query_one(selector, Static).update(made)


def run(source: StatusSource, interval_s: float) -> int:
    """Shows a server until the user quits.

    Args:
      source: The server.
      interval_s: From one question to the next, in seconds.

    Returns:
      An exit code: 0, or 128 and the number of the signal that ended it.

    Raises:
      ReverbError: If the server does not answer the first question.
    """
    app = TopApp(source, source.ask(with_streams=True), interval_s)
    with screen_alone():
        app.run()
    return app.return_code or 0
