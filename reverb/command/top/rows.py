# SPDX-License-Identifier: Apache-2.0
"""A list of lines, one of which is chosen. Only the visible lines are drawn."""

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from reverb.command.top.colours import styled
from reverb.command.top.line import Line, line

_CHOSEN, _OTHER = "▌", " "


class Rows(ScrollView, can_focus=True):
    """Lines with keys. The chosen one stays chosen when lines change their order.

    Until the user chooses one, it is the first line.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", "choose", show=False),
        Binding("down,j", "choose(1)", "choose", show=False),
        Binding("pageup", "choose_page(-1)", "page", show=False),
        Binding("pagedown", "choose_page(1)", "page", show=False),
        Binding("home", "choose_first", "first", show=False),
        Binding("end", "choose_last", "last", show=False),
    ]

    class Chosen(Message):
        """Another line was chosen."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._rows: Sequence[tuple[str, Line]] = ()
        self._key: str | None = None
        self._index = 0

    @property
    def chosen(self) -> str | None:
        """The key of the chosen line; `None` if there are no lines."""
        return self._rows[self._index][0] if self._rows else None

    def show(self, rows: Sequence[tuple[str, Line]]) -> None:
        """Shows lines, each with its key."""
        self._rows = rows
        keys = [key for key, _ in rows]
        if self._key in keys:
            self._index = keys.index(self._key)
        else:
            self._key, self._index = None, 0
        self.virtual_size = Size(self.size.width, len(rows))
        self._see_chosen()
        self.refresh()

    def action_choose(self, step: int) -> None:
        """Chooses a line further down, or further up."""
        self._choose(self._index + step)

    def action_choose_page(self, pages: int) -> None:
        """Chooses a line a page further down, or further up."""
        self._choose(self._index + pages * max(self.size.height - 1, 1))

    def action_choose_first(self) -> None:
        """Chooses the first line, also after the order has changed."""
        self._choose(0)
        self._key = None

    def action_choose_last(self) -> None:
        """Chooses the last line."""
        self._choose(len(self._rows) - 1)

    def on_click(self, event: Click) -> None:
        """Chooses the line under the pointer."""
        self._choose(event.y + self.scroll_offset.y)

    def render_line(self, y: int) -> Strip:
        """Draws a line of the screen."""
        index = y + self.scroll_offset.y
        width, style = self.size.width, self.rich_style
        if index >= len(self._rows):
            return Strip.blank(width, style)
        is_chosen = index == self._index
        shown = line(_CHOSEN if is_chosen else _OTHER) + self._rows[index][1]
        # The sentence of a chosen line must also stand out without colours.
        if is_chosen:
            style += Style(bold=True)
            style += Style(bgcolor=self._colour_of_choice())
        theme = self.app.current_theme
        segments = list(styled(shown.fit(width), is_dark=theme.dark).render(self.app.console))
        return Strip(Segment.apply_style(segments, style), width)

    def _colour_of_choice(self) -> str | None:
        return self.app.current_theme.panel

    def _choose(self, index: int) -> None:
        if not self._rows:
            return
        self._index = min(max(index, 0), len(self._rows) - 1)
        self._key = self._rows[self._index][0]
        self._see_chosen()
        self.refresh()
        self.post_message(self.Chosen())

    def _see_chosen(self) -> None:
        if self._rows:
            region = Region(0, self._index, self.size.width, 1)
            self.scroll_to_region(region, animate=False, force=True)
