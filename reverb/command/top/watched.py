# SPDX-License-Identifier: Apache-2.0
"""A server that `reverb top` watches: its last answer, and when that came."""

import time
from collections.abc import Sequence

from reverb.command.several import ask_each
from reverb.command.status_source import StatusSource
from reverb.command.top.past_counters import PastCounters
from reverb.errors import ReverbError
from reverb.server_status import ServerStatus


class Watched:
    """One server of the screen.

    Attributes:
      source: Queries the server.
      status: Last status of the server; `None` if it has never answered.
      past: Counters of its tables in the last minutes.
      error: Why it does not answer; `None` if it does.
    """

    def __init__(self, source: StatusSource, first: ServerStatus | ReverbError) -> None:
        """Starts with the answer to the first query, or with its error."""
        self.source = source
        self.status: ServerStatus | None = None
        self.past = PastCounters()
        self.error: ReverbError | None = None
        self._answered_at = time.monotonic()
        if isinstance(first, ReverbError):
            self.error = first
        else:
            self.takes(first)

    def takes(self, status: ServerStatus, *, is_shown: bool = True) -> None:
        """Stores an answer; without `is_shown` only its counters, for the charts."""
        self.past.add(status)
        self.error = None
        self.waits_from_now()
        if is_shown:
            self.status = status

    def waits_from_now(self) -> None:
        """Counts the age of the last answer from now on."""
        self._answered_at = time.monotonic()

    @property
    def age_s(self) -> float:
        """Age of the last answer, in seconds."""
        return time.monotonic() - self._answered_at


def watch(sources: Sequence[StatusSource]) -> list[Watched]:
    """Sends the first query to all servers at the same time.

    Raises:
      ReverbError: If none of them answers.
    """
    by_address = {source.address: source for source in sources}
    answers = ask_each(list(by_address), lambda it: by_address[it].ask(with_streams=True))
    return [Watched(by_address[address], answer) for address, answer in answers.items()]
