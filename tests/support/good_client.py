# SPDX-License-Identifier: Apache-2.0
"""A client that works normally while a test attacks the server."""

from __future__ import annotations

import threading
import time

import numpy as np

import reverb


class GoodClient:
    """Inserts into a queue and samples from it all the time, and knows how long that took.

    Attributes:
      slowest: Seconds of the slowest round.
      rounds: Number of rounds.
    """

    def __init__(self, client: reverb.Client, table: str = "queue") -> None:
        self._client = client
        self._table = table
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None
        self.slowest = 0.0
        self.rounds = 0

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                begin = time.monotonic()
                self._client.insert([np.int64(self.rounds)], {self._table: 1.0})
                assert self._client.sample_batch(self._table, 1).data == [self.rounds]
                self.slowest = max(self.slowest, time.monotonic() - begin)
                self.rounds += 1
                time.sleep(0.005)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> GoodClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
