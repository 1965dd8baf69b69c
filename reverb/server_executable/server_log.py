# SPDX-License-Identifier: Apache-2.0
"""The log of the process `reverb_server`: lines of the core and of Python have the same format."""

import argparse
import logging
import os
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from typing import NoReturn

from reverb.core import native
from reverb.shown_text import without_tokens

__all__ = ["FORMATS", "Parser", "configure", "print_notice"]

FORMATS = ("text", "json")

# Levels of Python, and the names of the core's levels.
_LEVELS = ((logging.ERROR, "error"), (logging.WARNING, "warn"), (logging.INFO, "info"))


def configure(log_format: str | None) -> None:
    """Sets up the log of this process, with lines from `info` on unless `REVERB_LOG` says more.

    The format is "text", "json", or `None` for what `REVERB_LOG_FORMAT` says.
    """
    native.configure_logs("info", log_format)
    # Each line of the log has its own time and level.
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[_Handler()])
    logging.captureWarnings(True)
    sys.excepthook = _report
    threading.excepthook = _report_of_thread


def print_notice(text: str, level: str = "info", **fields: str | int) -> None:
    """Logs a line to standard error; `level` is "error", "warn", "info" or "debug".

    Never blocks and never raises, whatever the process does that reads the output: the server must
    continue, and save when it stops.
    """
    native.print_log_line(level, without_tokens(text), list(fields.items()))


class Parser(argparse.ArgumentParser):
    """A parser whose errors are lines of the log if the log is JSON."""

    _arguments: Sequence[str] = ()

    def parse_args(self, args: Sequence[str], namespace: None = None) -> argparse.Namespace:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parses like the base class."""
        self._arguments = args
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Prints the error and ends the process."""
        if _wants_json(self._arguments):
            native.configure_logs("info", "json")
            print_notice(message, "error")
            self.exit(2)
        super().error(without_tokens(message))


def _wants_json(arguments: Sequence[str]) -> bool:
    text = " ".join(arguments)
    if "--log-format" in text:
        return "--log-format json" in text or "--log-format=json" in text
    return os.environ.get("REVERB_LOG_FORMAT", "").lower() == "json"


class _Handler(logging.Handler):
    """Writes records of Python's logging as lines of the log."""

    def emit(self, record: logging.LogRecord) -> None:
        level = next((name for number, name in _LEVELS if record.levelno >= number), "debug")
        # `format` adds the traceback, if there is one.
        print_notice(self.format(record), level, logger=record.name)


def _report(
    kind: type[BaseException], error: BaseException | None, trace: types.TracebackType | None
) -> None:
    lines = traceback.format_exception(kind, error, trace)
    print_notice("".join(lines).strip(), "error", error=kind.__name__)


def _report_of_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_type is not SystemExit:
        _report(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
