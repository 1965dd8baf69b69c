# SPDX-License-Identifier: Apache-2.0
"""A server that `reverb top` watches: what it said last, and when."""

import time
from collections.abc import Sequence

from reverb.command.several import ask_each
from reverb.command.status_source import StatusSource
from reverb.command.top.history import History
from reverb.errors import ReverbError
from reverb.server_status import ServerStatus


class Watched:
    """One server of the screen.

    Attributes:
      source: How to ask it.
      status: What it said last; `None` if it has never answered.
      history: What its tables did in the last minutes.
      error: Why it does not answer; `None` if it does.
    """

    def __init__(self, source: StatusSource, first: ServerStatus | ReverbError) -> None:
        """Begins with the answer to the first question, or with its error."""
        self.source = source
        self.status: ServerStatus | None = None
        self.history = History()
        self.error: ReverbError | None = None
        self._answered_at = time.monotonic()
        if isinstance(first, ReverbError):
            self.error = first
        else:
            self.takes(first)

    def takes(self, status: ServerStatus, *, is_shown: bool = True) -> None:
        """Notes an answer; one that is not to be shown is for the history only."""
        self.history.add(status)
        self.error = None
        self.waits_from_now()
        if is_shown:
            self.status = status

    def waits_from_now(self) -> None:
        """Begins to count anew how old the last answer is."""
        self._answered_at = time.monotonic()

    @property
    def age_s(self) -> float:
        """How long ago it answered, in seconds."""
        return time.monotonic() - self._answered_at


def watch(sources: Sequence[StatusSource]) -> list[Watched]:
    """Asks all servers for the first time, at the same time.

    Raises:
      ReverbError: If none of them answers.
    """
    by_address = {source.address: source for source in sources}
    answers = ask_each(list(by_address), lambda it: by_address[it].ask(with_streams=True))
    return [Watched(by_address[address], answer) for address, answer in answers.items()]
