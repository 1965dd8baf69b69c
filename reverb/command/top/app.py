# SPDX-License-Identifier: Apache-2.0
"""The app of `reverb top`: a server's status in a terminal, refreshed all the time."""

import asyncio
import signal
from collections.abc import Sequence
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Resize
from textual.message import Message
from textual.widgets import Footer, Static

from reverb.command import text
from reverb.command.server_arguments import in_options
from reverb.command.status_source import StatusSource
from reverb.command.top import server_facts, table_facts
from reverb.command.top.colours import DARK, LIGHT, styled, theme_of_terminal
from reverb.command.top.line import Line, column_width, columns, line
from reverb.command.top.picture import BLOCKS
from reverb.command.top.poller import Poller
from reverb.command.top.rows import Rows
from reverb.command.top.standard_error import screen_alone
from reverb.command.top.watched import Watched, watch
from reverb.errors import ReverbError, UnavailableError
from reverb.server_status import ServerStatus

# Added to the number of a signal, this is the exit code of a program that the signal ended.
_OF_SIGNAL = 128

# If the last answer is older than the interval and this, the server does not answer.
_LATE_S = 2.0
_BLOCK_WIDTH = 36
# From this height on, streams are shown below the tables.
_TALL = 40
_VERY_TALL = 50

_HELP = """\
The most serious states come first. Charts go back 5 minutes, or to the
start of reverb top: inserts above, samples below, at one scale.

  up, down, k, j    choose a table; Home: always the one with the worst state
  Enter             the chosen table alone, on the whole screen
  s                 the connected clients, and why they wait
  n                 the next of several servers
  p                 stop refreshing until p is pressed again
  d, q, Ctrl-C      dark or light; quit
  Tab, Esc          the keys go to the next part of the screen; back

  never, stuck      it cannot continue until its settings change
  shard down        a server of the group does not answer
  starved           samples wait, and there are no inserts
  full              inserts wait for memory
  paused, draining  a client has paused the table, or drains the server
  slow readers      samples are ready, and clients do not read them
  behind, ahead     actors wait for learners; learners wait for actors
  filling           samples wait for the first items
  flowing, idle     all is well; there are no requests
"""


class Scroller(VerticalScroll, can_focus=True):
    """Text that may be longer than the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "down", show=False),
        Binding("k", "scroll_up", "up", show=False),
    ]


class TopApp(App[None]):
    """Shows servers until the user quits: each in a line, and one of them in full.

    At least one of the servers has answered.
    """

    TITLE = "reverb top"
    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "app.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "interrupt", "quit", show=False, priority=True),
        Binding("enter", "view('table')", "details"),
        Binding("s", "view('streams')", "streams"),
        Binding("n", "server", "next server"),
        Binding("p", "pause", "pause"),
        Binding("d", "dark", "dark/light"),
        Binding("question_mark", "view('help')", "help", key_display="?"),
        Binding("escape", "view('overview')", "back"),
    ]

    class Answered(Message):
        """A server has answered."""

        def __init__(self, server: Watched, status: ServerStatus) -> None:
            super().__init__()
            self.server = server
            self.status = status

    class Failed(Message):
        """A server has not answered."""

        def __init__(self, server: Watched, error: ReverbError) -> None:
            super().__init__()
            self.server = server
            self.error = error

    def __init__(self, servers: Sequence[Watched], interval_s: float) -> None:
        super().__init__()
        self._servers = servers
        self._server = next(it for it in servers if it.status is not None)
        self._interval_s = interval_s
        self._view = "overview"
        self._pollers = [self._poller_of(server) for server in servers]

    def _poller_of(self, server: Watched) -> Poller:
        return Poller(
            server.source,
            self._interval_s,
            lambda status: self.post_message(self.Answered(server, status)),
            lambda error: self.post_message(self.Failed(server, error)),
        )

    def compose(self) -> ComposeResult:
        """The parts of the screen, from top to bottom."""
        yield Static(id="servers")
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
        """Starts to query the servers."""
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
        for poller in self._pollers:
            poller.start()

    def on_unmount(self) -> None:
        """Stops the queries."""
        for poller in self._pollers:
            poller.stop()

    def on_resize(self, event: Resize) -> None:
        """Draws everything again in the new size."""
        self.screen.set_class(event.size.height >= _TALL, "tall")
        self.call_after_refresh(self._show)

    def on_top_app_answered(self, message: Answered) -> None:
        """Shows the answer of a server."""
        # During a pause the screen stays, also if a late answer arrives.
        message.server.takes(message.status, is_shown=not self._is_paused)
        if message.server is self._server:
            self._show()

    def on_top_app_failed(self, message: Failed) -> None:
        """Shows why a server does not answer."""
        message.server.error = message.error
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
        """Pauses or resumes the queries."""
        was_paused = self._is_paused
        for poller, server in zip(self._pollers, self._servers, strict=True):
            if was_paused:
                poller.go_on()
                server.waits_from_now()
            else:
                poller.pause()
        self._tell()

    def action_server(self) -> None:
        """Shows the next server in full."""
        at = self._servers.index(self._server)
        self._server = self._servers[(at + 1) % len(self._servers)]
        self._show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key has an effect now; the footer shows only such keys."""
        del parameters
        return action != "server" or len(self._servers) > 1

    def action_dark(self) -> None:
        """Changes between dark and light."""
        self.theme = LIGHT.name if self.current_theme.dark else DARK.name

    def action_interrupt(self) -> None:
        """Quits with the exit code of a program that Ctrl-C ended."""
        self._end_by(signal.SIGINT)

    def _end_by(self, number: signal.Signals) -> None:
        self.exit(return_code=_OF_SIGNAL + number)

    @property
    def _is_paused(self) -> bool:
        return self._pollers[0].is_paused

    def _show(self) -> None:
        if not self.is_running:
            return
        status, width = self._server.status, self.size.width - 2
        address = text.plain(self._server.source.address)
        summary = "it has not answered yet" if status is None else server_facts.summary(status)
        self._put(
            "#server", [line(("Reverb ", "bold"), address, (f"  {summary}", "soft")).fit(width)]
        )
        if status is None:
            for part in ("#memory", "#tables-head", "#streams-head", "#checkpoints"):
                self._put(part, [])
            for part in ("#tables-rows", "#streams-rows"):
                self.query_one(part, Rows).show([])
        else:
            self._show_status(status, width)
        self._put("#words", [line(row).fit(width - 1) for row in _HELP.splitlines()])
        self._show_table()
        self._tell()

    def _show_status(self, status: ServerStatus, width: int) -> None:
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
        saved = line(("Checkpoints ", "bold"), (server_facts.checkpoints(status), "soft"))
        self._put("#checkpoints", [saved.fit(width)])

    def _show_table(self) -> None:
        name = self.query_one("#tables-rows", Rows).chosen
        status = self._server.status
        table = status.tables.get(name) if status is not None and name is not None else None
        if name is None or table is None:
            self._put("#table", [])
            return
        # One column is for the scroll bar.
        width = max(self.size.width - 4, 1)
        count = max(width // _BLOCK_WIDTH, 1)
        each = column_width(width, count)
        height = 4 if self.size.height >= _VERY_TALL else 2
        blocks = table_facts.blocks(name, table, self._server.past, BLOCKS, each, height)
        lines = table_facts.diagnosis(name, table, width)
        self._put("#table", [*lines, line(), *columns(blocks, width, count)])

    def _tell(self) -> None:
        """Says why the shown status is not current, if it is not."""
        if not self.is_running:
            return
        server, age = self._server, self._server.age_s
        shown = ""
        if self._is_paused:
            shown = f"Paused. What you see is {text.interval(age)} old; press p to continue."
        elif server.error is not None and (
            server.status is None or not isinstance(server.error, UnavailableError)
        ):
            shown = text.plain(" ".join(in_options(str(server.error)).split()))
        elif self._is_late(server):
            shown = (
                f"The server does not answer. Its last answer, {text.interval(age)} ago, is shown."
            )
        alert = self.query_one("#alert", Static)
        alert.display = bool(shown)
        if shown:
            self._put("#alert", [line(shown)])
        servers = self.query_one("#servers", Static)
        servers.display = len(self._servers) > 1
        if servers.display:
            self._put("#servers", self._server_lines())

    def _is_late(self, server: Watched) -> bool:
        return server.error is not None or server.age_s > self._interval_s + _LATE_S

    def _server_lines(self) -> list[Line]:
        """A line for each of several servers; the one that is shown in full is marked."""
        return [
            line("▌" if server is self._server else " ")
            + server_facts.server_line(
                server.source.address,
                None if self._is_late(server) and not self._is_paused else server.status,
            ).fit(self.size.width - 3)
            for server in self._servers
        ]

    def _put(self, selector: str, lines: list[Line]) -> None:
        is_dark = self.current_theme.dark
        made = styled(line(), is_dark=is_dark)
        for i, row in enumerate(lines):
            made.append("\n" if i else "")
            made.append_text(styled(row, is_dark=is_dark))
        self.query_one(selector, Static).update(made)


def run(sources: Sequence[StatusSource], interval_s: float) -> int:
    """Shows servers until the user quits; returns and raises as `run` of the package does."""
    app = TopApp(watch(sources), interval_s)
    with screen_alone():
        app.run()
    return app.return_code or 0
