# SPDX-License-Identifier: Apache-2.0
"""The table of a replay buffer."""

import logging
from typing import Any

import reverb
from reverb import errors
from reverb.adapters.tf_agents.observer import UnknownTableError

__all__ = ["RemoteTable"]

# Time without an answer after which the log says that the buffer waits for the server.
_QUIET_WAIT_S = 3

_LOGGER = logging.getLogger(__name__)


class RemoteTable:
    """One table of a server.

    Attributes:
      name: Name of the table.
      client: A client of the server.
    """

    name: str
    client: reverb.Client

    def __init__(self, server_address: str, name: str, connect_timeout_s: float) -> None:
        """Makes an object; does not connect yet, for which it waits `connect_timeout_s` seconds."""
        self.name = name
        self.client = reverb.Client(server_address, connect_timeout_s=connect_timeout_s)
        self._connect_timeout_s = connect_timeout_s
        self._knows_windows: bool | None = None

    @property
    def server_address(self) -> str:
        """Address of the server, as given to the constructor."""
        return self.client.server_address

    def first_info(self) -> Any:
        """Like `info`, but logs a message if the server does not answer soon."""
        if self._connect_timeout_s > _QUIET_WAIT_S:
            try:
                return self._info_among(self.client.server_info(_QUIET_WAIT_S))
            except errors.DeadlineExceededError:
                _LOGGER.warning(
                    "waiting up to %g s for the server at %s, to use its table %s",
                    self._connect_timeout_s,
                    self.server_address,
                    self.name,
                )
        return self.info()

    def info(self) -> Any:
        """Returns the current `TableInfo`.

        Raises:
          UnknownTableError: If there is no such table; a `KeyError`.
          UnavailableError: If no server answers.
        """
        return self._info_among(self.client.server_info())

    def window(self, num_steps: int) -> reverb.Window | None:
        """Returns the window of so many steps, or `None` if it cannot be sampled.

        Asks the server once whether it knows windows, and blocks until it answers.

        Raises:
          UnavailableError: If no server answers.
        """
        if self._knows_windows is None:
            self._knows_windows = "windows" in self.client.capabilities()
        try:
            return reverb.Window(num_steps) if self._knows_windows else None
        except errors.InvalidArgumentError:  # More steps than a window may have.
            return None

    def _info_among(self, tables: dict[str, Any]) -> Any:
        if self.name not in tables:
            raise UnknownTableError(
                f"the server at {self.server_address} has no table {self.name}; its tables are: "
                f"{', '.join(sorted(tables))}"
            )
        return tables[self.name]
