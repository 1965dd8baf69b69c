# SPDX-License-Identifier: Apache-2.0
"""Queries several servers at the same time."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from reverb.errors import ReverbError

_Answer = TypeVar("_Answer")


def ask_each(
    addresses: Sequence[str], ask: Callable[[str], _Answer]
) -> Mapping[str, _Answer | ReverbError]:
    """Returns the answer of each server, or its error.

    Raises:
      ReverbError: If none of them answers; with one server, its error.
    """
    with ThreadPoolExecutor(len(addresses)) as threads:
        asked = {address: threads.submit(ask, address) for address in addresses}
    answers: dict[str, _Answer | ReverbError] = {}
    for address, future in asked.items():
        error = future.exception()
        if error is not None and not isinstance(error, ReverbError):
            raise error
        answers[address] = future.result() if error is None else error
    errors = [answer for answer in answers.values() if isinstance(answer, ReverbError)]
    if len(errors) == len(answers):
        raise errors[0]
    return answers
