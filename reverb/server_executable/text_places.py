# SPDX-License-Identifier: Apache-2.0
"""Where each field of a protobuf text stands.

The parser of protobuf gives the position of a text it cannot read. A text that it can read may
still say something that makes no sense, and a person wants to know where.
"""

import collections
import dataclasses
import re
from collections.abc import Collection, Iterator

__all__ = ["Place", "find_places"]

_TOKEN = re.compile(
    r"""
    (?P<space> \s+ | \#[^\n]* )
  | (?P<string> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
  | (?P<word> [\w.+-]+ )
  | (?P<sign> . )
    """,
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">"}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a field begins.

    Attributes:
      path: Names of the fields that lead to it, for example `tables[0].max_size`.
      line: Counted from 1.
      column: Counted from 1.
    """

    path: str
    line: int
    column: int


@dataclasses.dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int
    column: int


def find_places(text: str, repeated: Collection[str]) -> list[Place]:
    """The places of all fields, in the order of the text.

    Args:
      text: A message in protobuf's text form. It need not be correct: what comes before the first
        fault is found as it stands.
      repeated: Names of the fields that may come several times; their paths have a number.
    """
    reader = _Reader(list(_tokens(text)), repeated)
    reader.read_message("", closing=None)
    return reader.places


def _tokens(text: str) -> Iterator[_Token]:
    line, line_start = 1, 0
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "space":
            column = match.start() - line_start + 1
            yield _Token(str(match.lastgroup), match.group(), line, column)
        elif "\n" in match.group():
            line += match.group().count("\n")
            line_start = match.start() + match.group().rindex("\n") + 1


class _Reader:
    """Follows the nesting of messages, and no more: it accepts whatever it does not know."""

    def __init__(self, tokens: list[_Token], repeated: Collection[str]) -> None:
        self.places: list[Place] = []
        self._tokens = collections.deque(tokens)
        self._repeated = repeated

    def read_message(self, path: str, closing: str | None) -> None:
        counts: collections.Counter[str] = collections.Counter()
        while self._tokens:
            token = self._tokens.popleft()
            if token.text == closing:
                return
            if token.kind != "word":
                continue
            self._accept(":")
            name = f"{path}{token.text}"
            if token.text not in self._repeated:
                self._read_value(name, token)
            elif self._accept("["):
                while self._tokens and not self._accept("]"):
                    self._read_value(f"{name}[{counts[token.text]}]", self._tokens[0])
                    counts[token.text] += 1
                    self._accept(",")
            else:
                self._read_value(f"{name}[{counts[token.text]}]", token)
                counts[token.text] += 1

    def _read_value(self, path: str, start: _Token) -> None:
        self.places.append(Place(path, start.line, start.column))
        if not self._tokens:
            return
        first = self._tokens.popleft()
        if first.text in _CLOSING:
            self.read_message(f"{path}.", _CLOSING[first.text])
        elif first.text == "[":
            while self._tokens and self._tokens.popleft().text != "]":
                pass
        elif first.kind == "string":  # Strings side by side are one.
            while self._tokens and self._tokens[0].kind == "string":
                self._tokens.popleft()

    def _accept(self, text: str) -> bool:
        if self._tokens and self._tokens[0].text == text:
            self._tokens.popleft()
            return True
        return False
