# SPDX-License-Identifier: Apache-2.0
"""The output of `--print-config`: a config, with the origin of each value as a comment."""

from collections.abc import Iterator

from google.protobuf import text_format

from reverb.server_executable.options import OPTIONS
from reverb.server_executable.settings import Given, Settings

__all__ = ["config_text"]

_INDENT = "  "


def config_text(settings: Settings, given: Given) -> str:
    """Returns a config in text form that gives the same settings when it is loaded."""
    return "\n".join([*_option_lines(settings), *_table_lines(settings, given)]) + "\n"


def _option_lines(settings: Settings) -> Iterator[str]:
    open_messages: list[str] = []
    # Groups the fields of each message; those of the config itself come first.
    for option in sorted(OPTIONS, key=lambda option: option.field.split(".")[:-1]):
        *parents, leaf = option.field.split(".")
        while open_messages != parents[: len(open_messages)]:
            open_messages.pop()
            yield _INDENT * len(open_messages) + "}"
        for name in parents[len(open_messages) :]:
            yield _INDENT * len(open_messages) + f"{name}: {{"
            open_messages.append(name)
        setting = settings.options[option.name]
        is_set = setting.value is not None
        line = option.line(setting.value) if is_set else f"# {leaf} is not set"
        yield _INDENT * len(open_messages) + f"{line}  # {_one_line(setting.origin)}"
    while open_messages:
        open_messages.pop()
        yield _INDENT * len(open_messages) + "}"


def _table_lines(settings: Settings, given: Given) -> Iterator[str]:
    for number, table in enumerate(settings.tables):
        line = settings.parsed.line_of(f"tables[{number}]")
        yield f"tables: {{  # {_one_line(given.source.name)}, line {line}"
        text = text_format.MessageToString(table, as_utf8=True)
        yield from (_INDENT + line for line in text.splitlines())
        yield "}"


def _one_line(text: str) -> str:
    """Returns the text without line breaks, which would end a comment."""
    return " ".join(text.splitlines())
