# SPDX-License-Identifier: Apache-2.0
"""`reverb top` without a terminal: what it shows, and its keys."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from reverb.command.status_source import StatusSource
from support.waiting import DEADLINE_S

SMALL, LARGE = (80, 24), (200, 60)


class Screen:
    """A running app with its screen."""

    def __init__(self, app: Any, pilot: Any) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def text(self) -> str:
        """The content of the screen."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)

    @property
    def words(self) -> str:
        """The same with single spaces."""
        return " ".join(self.text.split())

    async def press(self, *keys: str) -> None:
        """Presses keys."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Waits until a condition holds, while the app runs."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"this is on the screen:\n{self.text}"
            await self.pilot.pause(0.02)

    async def shows(self, *words: str) -> None:
        """Waits until all of some texts are on the screen, with single spaces."""
        await self.until(lambda: all(it in self.words for it in words))


def on_screen(
    server: str | Any | Sequence[str],
    test: Callable[[Screen], Awaitable[None]],
    size: tuple[int, int] = SMALL,
    table: str | None = None,
    interval_s: float = 0.1,
) -> int | None:
    """Runs the app and a test beside it; returns the exit code of the app.

    The server is an address, stands in for a `StatusSource`, or is a list of addresses.
    """
    from reverb.command.top.app import TopApp
    from reverb.command.top.watched import watch

    servers = server if isinstance(server, list) else [server]
    sources = [StatusSource(it, table, DEADLINE_S) if isinstance(it, str) else it for it in servers]
    app = TopApp(watch(sources), interval_s)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await test(Screen(app, pilot))

    asyncio.run(run())
    return app.return_code
