# SPDX-License-Identifier: Apache-2.0
"""Texts of `reverb top` about a server: its memory, tables, streams, checkpoints and shards."""

from collections.abc import Sequence

from reverb.command import text
from reverb.command.status_source import worst_first
from reverb.command.top.line import ROLE_OF_STATE, Line, line, wrapped
from reverb.command.top.picture import Pictures
from reverb.server_status import ServerStatus, StreamStatus, TableStatus

# Shorter waits come and go, so the order of streams ignores them.
_LONG_WAIT_S = 1.0

_NOTHING = text.NOTHING

# From this width on, tables have numbers beside sentences, and streams have addresses.
_WIDE = 120

_TITLES = ("kind", "client", "address", "table", "items", "open for", "waits for", "since")
_GAP = "  "


def summary(status: ServerStatus) -> str:
    """Version, age and traffic of a server."""
    traffic = status.traffic
    return (
        f"version {text.plain(status.version)}, up for "
        f"{text.interval(text.age(status.started_at, status.now))}, "
        f"{text.plural(traffic.connections, 'connection')}, "
        f"{text.bytes_(traffic.received_bytes)} received, {text.bytes_(traffic.sent_bytes)} sent"
    )


def server_line(address: str, status: ServerStatus | None) -> Line:
    """A line for one of several servers: address, table with the worst state, and rates.

    A server without a status does not answer.
    """
    name = line((text.plain(address), "bold"), "  ")
    if status is None:
        return name + line(("no answer", "bad"))
    tables = worst_first(status)
    shown = line((f"{text.plural(len(tables), 'table')}", "soft"))
    for table, worst in list(tables.items())[:1]:
        state = worst.diagnosis.state
        shown = line((state, ROLE_OF_STATE[state]), f" {text.plain(table)}  ") + shown
    rates = [it.rates for it in tables.values() if it.rates is not None]
    inserts = sum(it.inserts_per_s for it in rates)
    samples = sum(it.samples_per_s for it in rates)
    per_s = f", {text.short(inserts)} inserts/s, {text.short(samples)} samples/s"
    return name + shown + line((per_s if rates else "", "soft"))


def memory(status: ServerStatus, pictures: Pictures, width: int) -> list[Line]:
    """The memory of a server as numbers, and as a bar if it has a limit."""
    used = status.memory
    of_limit = ", no limit" if used.limit is None else f" of {text.bytes_(used.limit)} (max_bytes)"
    total = line(("Memory ", "bold"))
    if used.limit:
        others = used.queued + used.streams + used.other + used.readers
        shares = [used.tables / used.limit, others / used.limit]
        total += pictures.bar(shares, max(min(width // 3, 60), 10)) + line(" ")
    total += line(f"{text.bytes_(used.total)}{of_limit}")
    parts = (
        f"tables {text.bytes_(used.tables)}, queued {text.bytes_(used.queued)}, "
        f"streams {text.bytes_(used.streams)}, other {text.bytes_(used.other)}, "
        f"readers {text.bytes_(used.readers)}; "
        f"the process {text.bytes_(status.process.resident_bytes)}"
    )
    one_line = total + line((f": {parts}", "soft"))
    lines = [one_line] if one_line.width <= width else [total, *wrapped(parts, width, "soft")]
    if status.forecast is not None:
        lines += wrapped(text.plain(status.forecast.sentence), width, "soft")
    of_disk = disk(status)
    return lines if of_disk is None else [*lines, *wrapped(f"Disk: {of_disk}", width, "soft")]


def disk(status: ServerStatus) -> str | None:
    """The directory on disk of a server: state, size, garbage, reads; `None` if it has none.

    Of a group: which shards are not well, and sums.
    """
    store = status.store
    if store is None:
        return None
    parts = [
        (f"shard {it.index} at {text.plain(it.address)} ", it.status.store)
        for it in status.shards
        if it.status is not None and it.status.store is not None
    ]
    troubles = [
        f"{where}{text.plain(part.state)}{f' ({text.plain(part.error)})' if part.error else ''}, "
        for where, part in parts or [("", store)]
        if part.state != "ok"
    ]
    data = store.live_bytes + store.dead_bytes
    garbage = store.dead_bytes / data if data else 0.0
    used = data + store.log_bytes + store.base_bytes
    errors = store.read_errors + store.write_errors
    each = f" of {text.interval(store.read_seconds / store.reads)}" if store.reads else ""
    journal = (
        f"journal: {text.interval(store.lag_s)} behind, log {text.bytes_(store.log_bytes)}, "
        f"base {text.bytes_(store.base_bytes)}; "
        if store.is_journal
        else ""
    )
    return (
        f"{''.join(troubles)}{text.bytes_(used)} of {text.bytes_(store.max_bytes)}, {garbage:.0%} "
        f"of the data garbage; {journal}{text.plural(store.reads, 'read')}{each}, "
        f"{text.plural(errors, 'error')}"
    )


def shards(status: ServerStatus) -> list[str]:
    """A line for each shard of a group: address, state, items and bytes, or error."""
    lines = []
    for shard in status.shards:
        head = f"{shard.index}  {text.plain(shard.address)}  {shard.state}"
        if shard.status is None:
            lines.append(f"{head}: {text.plain(shard.error)}")
            continue
        items = sum(table.items for table in shard.status.tables.values())
        lines.append(f"{head}  {items:,} items, {text.bytes_(shard.status.memory.total)}")
    return lines


def checkpoints(status: ServerStatus) -> str:
    """The last checkpoint of a server, else the one that it loaded, and those that failed."""
    saved = status.checkpoints
    failed = ""
    if saved.num_failed:
        why = text.plain(saved.latest_error or "since then one succeeded")
        failed = f" {saved.num_failed} failed, the last: {why}."
    if saved.is_saving:
        items = f"{text.short(saved.items_written)} of {text.short(saved.items_total)} items"
        return f"Saving: {items}.{failed}"
    if saved.latest_path is None or saved.latest_saved_at is None:
        return f"None was saved yet{_loaded(status)}.{failed}"
    return (
        f"The last one was saved {_ago(saved.latest_saved_at, status)}, "
        f"{text.bytes_(saved.latest_bytes)} in {text.interval(saved.latest_duration_s)}, with a "
        f"pause of {text.interval(saved.latest_pause_ms / 1e3)}: {text.plain(saved.latest_path)}."
        f"{failed}"
    )


def _loaded(status: ServerStatus) -> str:
    saved = status.checkpoints
    if saved.restored_from is None:
        return ""
    at = saved.restored_saved_at
    when = "" if at is None else f", which was saved {_ago(at, status)}"
    return f"; the start loaded {text.plain(saved.restored_from)}{when}"


def _ago(at: float, status: ServerStatus) -> str:
    return f"{text.interval(text.age(at, status.now))} ago"


def tables(status: ServerStatus, width: int) -> tuple[Line, list[tuple[str, Line]]]:
    """A line for each table with its state, the most serious first.

    In a wide terminal, there are numbers beside sentences.

    Returns:
      The head, and the lines with the names of their tables.
    """
    ordered = worst_first(status)
    widest = max((text.cells(text.plain(name)) for name in ordered), default=0)
    wide = width >= _WIDE
    name_width = min(max(widest, 5), width // 5 if wide else width // 4)
    state_width = max((len(it.diagnosis.state) for it in ordered.values()), default=5)
    numbers = (("items", 17), ("inserts/s", 9), ("samples/s", 9), ("oldest wait", 11))
    head = f"{text.fit('table', name_width)}  {'state':{state_width}}  "
    if wide:
        head += "".join(f"{title:>{size}}  " for title, size in numbers)
    lines = []
    for name, table in ordered.items():
        state, sentence = table.diagnosis.state, text.plain(table.diagnosis.sentence)
        shown = line(
            (text.fit(text.plain(name), name_width), "bold"),
            "  ",
            (f"{state:{state_width}}", ROLE_OF_STATE[state]),
            "  ",
        )
        if wide:
            cells = zip(_numbers(table), numbers, strict=True)
            shown += line("".join(f"{text.clip(it, size):>{size}}  " for it, (_, size) in cells))
        lines.append((name, shown + line(sentence)))
    return line((f"{head}what it does or waits for", "soft")), lines


def streams(status: ServerStatus, width: int) -> tuple[Line, list[tuple[str, Line]]]:
    """A line for each stream with its client and the reason of its wait, long waits first.

    In a narrow terminal, a client that has a name has no address.

    Returns:
      The head, and pairs of a number and a line.
    """
    ordered = sorted(status.streams, key=_by_wait)
    titles: tuple[str, ...] = _TITLES
    rows = [_stream_cells(stream) for stream in ordered]
    if width < _WIDE:
        titles = titles[:2] + titles[3:]
        rows = [(row[0], row[2] if row[1] == _NOTHING else row[1], *row[3:]) for row in rows]
    sizes = [max(map(text.cells, column)) for column in zip(titles, *rows, strict=True)]
    _shrink(sizes, width)
    return (
        line((_row(titles, sizes), "soft")),
        [(f"{i}", line(_row(row, sizes))) for i, row in enumerate(rows)],
    )


def _numbers(table: TableStatus) -> tuple[str, str, str, str]:
    rates = table.rates
    waits = [it.oldest_wait_s for it in (table.inserting, table.sampling) if it.oldest_wait_s]
    return (
        f"{text.short(table.items)} of {text.short(table.max_items)}",
        _NOTHING if rates is None else text.short(rates.inserts_per_s),
        _NOTHING if rates is None else text.short(rates.samples_per_s),
        text.interval(max(waits)) if waits else _NOTHING,
    )


def _by_wait(stream: StreamStatus) -> tuple[float, float]:
    waits = stream.waits_for is not None and stream.wait_s >= _LONG_WAIT_S
    return (-stream.wait_s if waits else 0.0, -stream.open_s)


def _stream_cells(stream: StreamStatus) -> tuple[str, ...]:
    known = {"peer": "its reader", "table": "the table", "memory": "memory"}
    waits_for = known.get(stream.waits_for or "", _NOTHING)
    return (
        text.plain(stream.kind),
        text.plain(stream.client) or _NOTHING,
        text.plain(stream.peer.removeprefix("client ")),
        _NOTHING if stream.table is None else text.plain(stream.table),
        text.short(stream.items),
        text.interval(stream.open_s),
        waits_for,
        text.interval(stream.wait_s) if stream.waits_for else _NOTHING,
    )


def _shrink(sizes: list[int], width: int) -> None:
    """Takes room from the widest columns until all fit."""
    while sum(sizes) + len(_GAP) * (len(sizes) - 1) > max(width, 8 * len(sizes)):
        sizes[sizes.index(max(sizes))] -= 1


def _row(cells: Sequence[str], sizes: Sequence[int]) -> str:
    return _GAP.join(text.fit(it, size) for it, size in zip(cells, sizes, strict=True)).rstrip()
