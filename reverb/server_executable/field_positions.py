# SPDX-License-Identifier: Apache-2.0
"""Line and column of each field in a protobuf message in text form.

Protobuf's parser reports the position of a syntax error only. An error message about a value that
is out of its range needs a position too.
"""

import collections
import dataclasses
import re
from collections.abc import Collection, Iterator

__all__ = ["MAX_NESTING", "FieldPosition", "find_field_positions", "too_deep"]

# Messages in each other; the deepest field of a config is in six.
MAX_NESTING = 64

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
class FieldPosition:
    """The position of a field.

    Attributes:
      path: Names of the field and the fields around it, for example `tables[0].max_size`.
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


def find_field_positions(text: str, repeated: Collection[str]) -> list[FieldPosition]:
    """Returns the positions of all fields of a message in text form, in its order.

    If the text has errors, the positions up to the first error are exact; so they are up to a
    message that is in more than `MAX_NESTING` others. Paths of `repeated` fields have an index.
    """
    reader = _Reader(list(_tokens(text)), repeated)
    reader.read_message("", closing=None)
    return reader.positions


def too_deep(text: str) -> tuple[int, int] | None:
    """Returns line and column of the first message that is in too many others, if there is one."""
    depth = 0
    for token in _tokens(text):
        depth += (token.text in _CLOSING) - (token.text in _CLOSING.values())
        if depth > MAX_NESTING:
            return token.line, token.column
    return None


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
    """Follows the nesting of messages, and accepts unknown text."""

    def __init__(self, tokens: list[_Token], repeated: Collection[str]) -> None:
        self.positions: list[FieldPosition] = []
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
        self.positions.append(FieldPosition(path, start.line, start.column))
        if not self._tokens:
            return
        first = self._tokens.popleft()
        if first.text in _CLOSING and path.count(".") >= MAX_NESTING:
            # `too_deep` counts fewer where signs that close messages are wrong.
            self._tokens.clear()
        elif first.text in _CLOSING:
            self.read_message(f"{path}.", _CLOSING[first.text])
        elif first.text == "[":
            while self._tokens and self._tokens.popleft().text != "]":
                pass
        elif first.kind == "string":  # Adjacent strings are one value.
            while self._tokens and self._tokens[0].kind == "string":
                self._tokens.popleft()

    def _accept(self, text: str) -> bool:
        if self._tokens and self._tokens[0].text == text:
            self._tokens.popleft()
            return True
        return False
