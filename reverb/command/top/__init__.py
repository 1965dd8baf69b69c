# SPDX-License-Identifier: Apache-2.0
"""`reverb top`: what a running server does, in a terminal, and once as text.

Only `app` and what it draws with need Textual; they are imported when a terminal is to be filled.
"""

import os
import shutil
import sys

from reverb.command.status_source import StatusSource
from reverb.command.top import snapshot
from reverb.command.top.picture import pictures_for
from reverb.errors import FailedPreconditionError


def as_text(source: StatusSource) -> str:
    """Asks a server and returns everything as text, as wide as the terminal.

    Raises:
      ReverbError: If the server does not answer.
    """
    status = source.ask_for_rates(with_streams=True)
    pictures = pictures_for(sys.stdout.encoding or "ascii")
    width = shutil.get_terminal_size().columns
    return pictures.words(snapshot.as_text(status, source.address, pictures, width))


def run(source: StatusSource, interval_s: float) -> int:
    """Fills the terminal with what a server does, until the user quits.

    Args:
      source: The server.
      interval_s: From one question to the next, in seconds.

    Returns:
      An exit code: 0, or 128 and the number of the signal that ended it.

    Raises:
      FailedPreconditionError: If Textual is not installed, or there is no terminal.
      ReverbError: If the server does not answer the first question.
    """
    try:
        from reverb.command.top import app
    except ImportError as error:
        raise FailedPreconditionError(
            f"reverb top needs Textual, which cannot be imported ({error}); "
            "pip install 'reverb-replay[top]'. reverb top --once needs nothing"
        ) from None
    # Textual writes to standard error.
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if not all(stream.isatty() for stream in streams) or os.environ.get("TERM") == "dumb":
        raise FailedPreconditionError(
            "reverb top needs a terminal; reverb top --once prints everything as text"
        )
    return app.run(source, interval_s)
