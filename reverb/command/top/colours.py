# SPDX-License-Identifier: Apache-2.0
"""The colours of `reverb top`, equal to those of the server's page."""

import os

from rich.text import Text
from textual.theme import Theme

from reverb.command.top.line import Line

_BOLD = "bold"

_DARK = {
    "good": "#4cc38a",
    "wait": "#e2b23c",
    "bad": "bold #ff8078",
    "soft": "#a4a8af",
    "one": "#7cb0f5",
    "two": "#f0a25c",
}
_LIGHT = {
    "good": "#1a7f4b",
    "wait": "#805600",
    "bad": "bold #b3261e",
    "soft": "#5d6066",
    "one": "#2563b8",
    "two": "#b4550b",
}

DARK = Theme(
    name="reverb-dark",
    primary="#7cb0f5",
    foreground="#e8e9eb",
    background="#16171a",
    surface="#1e2024",
    panel="#2a2d33",
    error="#ff8078",
    dark=True,
)
LIGHT = Theme(
    name="reverb-light",
    primary="#2563b8",
    foreground="#1c1d1f",
    background="#fbfbfa",
    surface="#ffffff",
    panel="#e6e7ea",
    error="#b3261e",
    dark=False,
)


def theme_of_terminal() -> Theme:
    """Returns the light theme for a terminal that reports a light background, else the dark one.

    Some terminals report their colours in `COLORFGBG`, for example `0;15`.
    """
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return LIGHT if background in ("7", "15") else DARK


def styled(line: Line, *, is_dark: bool) -> Text:
    """Gives each part of a line the colour of its role; markup in the text is not interpreted."""
    colours = (_DARK if is_dark else _LIGHT) | {"bold": _BOLD, "": ""}
    made = Text(no_wrap=True, overflow="ellipsis", end="")
    for part, role in line.parts:
        made.append(part, colours[role])
    return made
