# SPDX-License-Identifier: Apache-2.0
"""Lines of the log, as text and as JSON, read strictly."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
_WORD = r"[\w\-./:@\[\]%+]*[\w\-./@\[\]%+]"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LINE = re.compile(
    rf"(?P<time>{_TIME}) (?P<level>ERROR|WARN|INFO|DEBUG|TRACE) (?P<place>\w+)"
    rf"(?P<fields>(?: \w+=(?:{_WORD}|{_QUOTED}))*): (?P<message>.+)"
)
_FIELD = re.compile(rf" (\w+)=(?:({_WORD})|({_QUOTED}))(?=[ ]|$)")


@dataclasses.dataclass(frozen=True)
class LogLine:
    """A line of the log; `str` is what stands behind its time."""

    time: str
    level: str
    place: str
    fields: dict[str, Any]
    message: str

    def __str__(self) -> str:
        return f"{self.level} {self.place}: {self.message}"


def from_text(text: str) -> list[LogLine]:
    """Reads lines of the text form. All of `text` must be such lines."""
    assert not text or text.endswith("\n"), text
    return [_from_line(line) for line in text.split("\n")[:-1]]


def messages(text: str) -> list[str]:
    """The text after the time, without the fields: `INFO server: stopped`."""
    return [str(line) for line in from_text(text)]


def from_json(text: str) -> list[LogLine]:
    """Reads lines of the JSON form. All of `text` must be such lines."""
    assert not text or text.endswith("\n"), text
    lines = []
    for line in text.split("\n")[:-1]:
        fields = json.loads(line)
        own = {name: fields.pop(name) for name in ("time", "level", "place", "message")}
        assert re.fullmatch(_TIME, own["time"])
        lines.append(LogLine(fields=fields, **own))
    return lines


def _from_line(line: str) -> LogLine:
    match = _LINE.fullmatch(line)
    assert match is not None, f"this is no line of the log: {line!r}"
    fields = {name: word or quoted for name, word, quoted in _FIELD.findall(match["fields"])}
    return LogLine(match["time"], match["level"], match["place"], fields, match["message"])
