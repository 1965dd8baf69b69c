# SPDX-License-Identifier: Apache-2.0
"""Where the log of the core goes: to standard error, or to Python's `logging`."""

import atexit
import contextlib
import logging
import os
import threading

from reverb.core import native
from reverb.errors import InvalidArgumentError

__all__ = ["report_waits", "to_python", "to_stderr"]

# Number of log lines that may be queued for a slow handler; more are dropped and counted.
_CAPACITY = 1_000

# Time for handlers to process earlier lines before the log changes or the process ends.
_MAX_WAIT_S = 2.0


class _Reader:
    """A thread that hands lines to a logger until its queue is closed."""

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger
        self._lines = native.logs_to_queue(_CAPACITY)
        self._thread = threading.Thread(target=self._read, name="reverb-log", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until a closed queue is empty, for a limited time."""
        if self._thread is not threading.current_thread():
            self._thread.join(_MAX_WAIT_S)

    def _read(self) -> None:
        while (line := self._lines.next()) is not None:
            # A filter of the program may raise; handlers report their errors themselves.
            with contextlib.suppress(Exception):
                _hand_over(self.logger, *line)


class _State:
    """The reader of this process, if there is one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reader: _Reader | None = None
        self.is_registered = False


_state = _State()


def to_python(logger: str = "reverb") -> None:
    """Hands the lines of the core to Python's `logging`, instead of standard error.

    A separate thread passes the lines on, so the core never waits for a handler. If handlers are
    too slow, lines beyond 1,000 queued ones are dropped, and a warning gives their number. A second
    call replaces the first. A forked child logs like its parent. When the process ends, handlers
    have 2 seconds to process the queued lines.

    The core logs warnings and errors, unless the environment variable `REVERB_LOG` says otherwise.
    The logger's own level and filters apply after that; the level `trace` is number 5. A record has
    its fields as attributes, such as `record.table` and `record.peer`; `record.place` is the part
    of the core that logged it. The message is escaped. Text from peers in the attributes is not: it
    may contain line ends, so a formatter must escape it.

    Args:
      logger: Name of the logger.

    Raises:
      InvalidArgumentError: If the name is no string or is empty.

    Example:
      >>> import logging
      >>> logging.basicConfig(format="%(name)s %(place)s: %(message)s")
      >>> reverb.logging.to_python()
      >>> reverb.logging.to_stderr()
    """
    if not isinstance(logger, str) or not logger:
        raise InvalidArgumentError(
            f"logger must be the name of a logger, such as 'reverb', got {logger!r}"
        )
    with _state.lock:
        before, _state.reader = _state.reader, _Reader(logging.getLogger(logger))
        if not _state.is_registered:
            _state.is_registered = True
            # Runs before `logging` closes its handlers, because that was registered earlier.
            atexit.register(to_stderr)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_after_fork_in_child)
    if before is not None:
        before.wait()


def to_stderr() -> None:
    """Writes the lines of the core to standard error, as before `to_python`.

    Blocks for at most 2 seconds, until the logger has processed earlier lines.
    """
    with _state.lock:
        before, _state.reader = _state.reader, None
        native.logs_to_stderr()
    if before is not None:
        before.wait()


def report_waits(after_s: float | None = 10.0, repeat_s: float = 300.0) -> None:
    """Sets when the log says that calls of this process wait for a server, and why.

    A warning comes after `after_s`, one after six times that, then one every `repeat_s`: 10 s, 60 s
    and every 5 minutes, if nothing is set. It says how many calls wait for inserts into a table,
    for samples from it, or for another answer, for how long, and why, as `reverb why` does. All
    clients of the process are counted together. The wait of inserts, or of samples, begins with
    the last such call to that table that succeeded. The environment variable
    `REVERB_REPORT_WAITS_S` sets `after_s` from outside; `never` is `None` there.

    Never blocks. Forked children inherit it.

    Args:
      after_s: Seconds until the first warning; `None`: no warnings.
      repeat_s: Seconds between later warnings.

    Raises:
      InvalidArgumentError: If a number is not over 0.

    Example:
      >>> reverb.logging.report_waits(after_s=2.0)
      >>> reverb.logging.report_waits()
    """
    for name, value in (("after_s", after_s), ("repeat_s", repeat_s)):
        if name == "after_s" and value is None:
            continue
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            raise InvalidArgumentError(f"{name} must be a number of seconds over 0, got {value!r}")
    native.report_waits(after_s, repeat_s)


def _hand_over(
    logger: logging.Logger,
    level: int,
    time: float,
    place: str,
    message: str,
    fields: dict[str, object],
) -> None:
    if not logger.isEnabledFor(level):
        return
    path = f"reverb/core/{place}"
    record = logger.makeRecord(logger.name, level, path, 0, message, (), None)
    # The time at which the core logged it, not the time at which this thread got it.
    record.relativeCreated += (time - record.created) * 1000
    record.created, record.msecs = time, float(int(time % 1 * 1000))
    record.place = place
    for name, value in fields.items():
        record.__dict__.setdefault(name, value)
    logger.handle(record)


def _after_fork_in_child() -> None:
    # The child has no reader thread, and the lock may have been held by another parent thread.
    reader = _state.reader
    _state.lock = threading.Lock()
    _state.reader = None
    if reader is not None:
        _state.reader = _Reader(reader.logger)
