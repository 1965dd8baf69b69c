# SPDX-License-Identifier: Apache-2.0
"""`reverb top --once`: the state of a server as text."""

from reverb.command import text
from reverb.command.status_source import worst_first
from reverb.command.top import server_facts, table_facts
from reverb.command.top.line import Line, column_width, columns
from reverb.command.top.picture import Pictures
from reverb.server_status import ServerStatus

_MAX_STREAMS = 200
_INDENT = "  "
_BLOCK_WIDTH = 40


def as_text(status: ServerStatus, address: str, pictures: Pictures, width: int) -> str:
    """Formats a status with its streams for people. Sentences may be longer than `width`."""
    lines = [f"{text.plain(address)}  {server_facts.summary(status)}"]
    lines += _plain(server_facts.memory(status, pictures, width))
    if status.shards:
        lines += ["", "Shards", *[_INDENT + it for it in server_facts.shards(status)]]
    lines += ["", *_states(status)]
    count = max(1, width // _BLOCK_WIDTH)
    room = width - len(_INDENT)
    for name, table in worst_first(status).items():
        made = table_facts.blocks(name, table, None, pictures, column_width(room, count))
        lines += ["", text.clip(text.plain(name), width)]
        lines += [_INDENT + it for it in _plain(columns(made, room, count))]
    lines += ["", "Streams", *[_INDENT + it for it in _streams(status, room)]]
    lines += ["", "Checkpoints", _INDENT + server_facts.checkpoints(status)]
    return "\n".join(line.rstrip() for line in lines)


def _states(status: ServerStatus) -> list[str]:
    if not status.tables:
        return ["It has no tables."]
    # With this width, the lines equal those of `reverb why`; sentences are not cut.
    return _plain([row for _, row in server_facts.tables(status, 80)[1]])


def _streams(status: ServerStatus, width: int) -> list[str]:
    head, rows = server_facts.streams(status, width)
    if not rows:
        return ["None is open."]
    more = len(rows) - _MAX_STREAMS
    shown = _plain([head, *[row for _, row in rows[:_MAX_STREAMS]]])
    return [*shown, f"and {more} more"] if more > 0 else shown


def _plain(lines: list[Line]) -> list[str]:
    return [line.plain for line in lines]
