# SPDX-License-Identifier: Apache-2.0
"""The functions that a process offers to its parent, and the loop that answers calls of them.

Requests and answers are JSON objects, one per line: `{"call": NAME, "arguments": {...}}` on the
standard input, `{"result": ...}` or `{"error": {...}}` on the standard output.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

_calls: dict[str, Callable[..., Any]] = {}


def offer(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function known under its name."""
    _calls[function.__name__] = function
    return function


def answer_calls() -> None:
    """Answers requests until the input ends, and ends the process then."""
    # Native libraries print to the standard output as they like; answers go to a copy of it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(_answer(line)) + "\n")
        answers.flush()
    # The peer's destructors may wait for servers that are gone; nothing is left to be saved.
    os._exit(0)


def _answer(line: str) -> dict[str, Any]:
    request = json.loads(line)
    try:
        return {"result": _calls[request["call"]](**request["arguments"])}
    except BaseException as error:
        return {
            "error": {
                "types": [cls.__name__ for cls in type(error).__mro__],
                "message": str(error),
                "traceback": traceback.format_exc(),
            }
        }
