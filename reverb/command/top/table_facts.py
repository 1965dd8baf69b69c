# SPDX-License-Identifier: Apache-2.0
"""Texts of `reverb top` about one table, in the words and the order of the server's page."""

import math

from reverb.command import text
from reverb.command.top.line import ROLE_OF_STATE, Block, Line, facts, line, wrapped
from reverb.command.top.past_counters import SPAN_S, PastCounters
from reverb.command.top.picture import Pictures
from reverb.server_status import TableStatus


def diagnosis(name: str, table: TableStatus, width: int) -> list[Line]:
    """Name, state and the whole sentence."""
    state = table.diagnosis.state
    shown = text.clip(text.plain(name), max(width - len(state) - 2, 1))
    head = line((shown, "bold"), "  ", (state, ROLE_OF_STATE[state]))
    return [head, *wrapped(text.plain(table.diagnosis.sentence), width)]


def blocks(
    name: str,
    table: TableStatus,
    past: PastCounters | None,
    pictures: Pictures,
    width: int,
    height: int = 2,
) -> list[Block]:
    """All that a server counts for a table, in blocks of `width` columns.

    Without `past` counters there are no charts; each of the two rows of a chart has `height` lines.
    """
    made = [_limiter(table, pictures, width)]
    if past is None:
        made.append(Block("The last seconds", facts(_rates(table), width)))
    else:
        made += [
            _chart("A second", name, ("inserts", "samples"), past, pictures, width, height),
            _chart(
                "Share of time that somebody waited",
                name,
                ("insert_blocked_s", "sample_blocked_s"),
                past,
                pictures,
                width,
                height,
            ),
        ]
    size = pictures.bar([table.items / max(table.max_items, 1)], width)
    return [
        *made,
        Block("Size", [size, *facts(_size(table), width)]),
        *_rollouts(table, width),
        Block("Since the server started", facts(_counts(table), width)),
        Block("Waiting now", facts(_waiting(table), width)),
        Block("Items that left", facts(_removed(table), width)),
    ]


def _limiter(table: TableStatus, pictures: Pictures, width: int) -> Block:
    """The cursor of the rate limiter between its bounds."""
    low, high, cursor = table.limiter.min_diff, table.limiter.max_diff, table.cursor
    # A missing bound is drawn a little beyond the cursor.
    start = low if math.isfinite(low) else min(cursor, 0.0) - 1
    end = high if math.isfinite(high) else max(cursor, start + 1) * 1.25 + 1
    # Without both bounds, the cursor is in the middle.
    has_end = math.isfinite(low) or math.isfinite(high)
    position = (cursor - start) / (end - start) if has_end and end > start else 0.5
    left = f"{text.short(low)}: samples wait" if math.isfinite(low) else "samples never wait"
    right = f"{text.short(high)}: inserts wait" if math.isfinite(high) else "inserts never wait"
    room = width - text.cells(left) - text.cells(right)
    ends = [line((left, "soft")), line((f"{right:>{width}}", "soft"))]
    ratio, least = table.limiter.samples_per_insert, table.limiter.min_size_to_sample
    samples = "sample" if ratio == 1 else "samples"
    shown = (
        f"cursor {text.short(cursor)}; {text.short(ratio)} {samples} an insert; sampling starts "
        f"with {text.plural(least, 'item')}"
    )
    if table.rate_limiter_off is not None:
        shown += f"; off for inserts, for {text.plain(table.rate_limiter_off.client)}"
    return Block(
        "Rate limiter",
        [
            pictures.gauge(position, width),
            *(ends if room < 1 else [line((f"{left}{' ' * room}{right}", "soft"))]),
            *wrapped(shown, width, "soft"),
        ],
    )


def _chart(
    title: str,
    name: str,
    counters: tuple[str, str],
    past: PastCounters,
    pictures: Pictures,
    width: int,
    height: int,
) -> Block:
    """Two charts of the last minutes with the same scale, inserts above samples."""
    shown = text.short if counters[0] == "inserts" else _percent
    rates = [past.rates(name, counter, width) for counter in counters]
    known = [[rate for rate in row if not math.isnan(rate)] for row in rates]
    top = max((rate for row in known for rate in row), default=0.0)
    lines: list[Line] = []
    for label, role, row in zip(("inserts", "samples"), ("one", "two"), rates, strict=True):
        lines += pictures.chart(row, top, height, role)
        lines.append(line((f"{label} {shown(row[-1])}", role)))
    lines.append(line((f"the most was {shown(top)} in {text.interval(SPAN_S)}", "soft")))
    return Block(title, lines)


def _rates(table: TableStatus) -> list[tuple[str, str]]:
    rates = table.rates
    if rates is None:
        return [("rates", "not known yet")]
    return [
        ("inserts a second", text.short(rates.inserts_per_s)),
        ("samples a second", text.short(rates.samples_per_s)),
        ("time in which inserts waited", _percent(rates.insert_blocked)),
        ("time in which samples waited", _percent(rates.sample_blocked)),
    ]


def _size(table: TableStatus) -> list[tuple[str, str]]:
    limit = "" if table.max_bytes is None else f" of {text.bytes_(table.max_bytes)}"
    return [
        ("items", f"{text.short(table.items)} of {text.short(table.max_items)}"),
        ("bytes", f"{text.bytes_(table.bytes)}{limit}"),
        ("when it is full", _full(table)),
        ("chunks", text.short(table.chunks)),
        ("episodes", text.short(table.episodes)),
        ("sum of weights", text.short(math.nan if table.mass is None else table.mass)),
    ]


def _full(table: TableStatus) -> str:
    """The forecast, with the number of items if `max_bytes` allows fewer than `max_size`."""
    if table.forecast_bytes is None:
        return text.NOTHING
    shown = text.bytes_(table.forecast_bytes)
    items = table.items * table.forecast_bytes / table.bytes if table.bytes else table.max_items
    return shown if items > 0.95 * table.max_items else f"{shown}, {text.short(items)} items"


def _counts(table: TableStatus) -> list[tuple[str, str]]:
    return [
        ("inserts", text.short(table.inserts)),
        ("samples", text.short(table.samples)),
        ("new priorities", text.short(table.priority_updates)),
        ("age of samples, median", text.interval(table.sample_age_s.quantile(0.5))),
        ("age of samples, 90 %", text.interval(table.sample_age_s.quantile(0.9))),
    ]


def _waiting(table: TableStatus) -> list[tuple[str, str]]:
    return [
        ("inserts", text.short(table.inserting.waiting)),
        ("for", text.interval(table.inserting.oldest_wait_s)),
        ("requests for samples", text.short(table.sampling.waiting)),
        ("for", text.interval(table.sampling.oldest_wait_s)),
    ]


def _removed(table: TableStatus) -> list[tuple[str, str]]:
    removed = table.removed
    unsampled = removed.unsampled / removed.total if removed.total else math.nan
    return [
        ("all", text.short(removed.total)),
        ("max_size", text.short(removed.full)),
        ("max_bytes", text.short(removed.bytes)),
        ("max_times_sampled", text.short(removed.sampled_out)),
        ("deleted", text.short(removed.deleted)),
        ("reset", text.short(removed.reset)),
        ("table made smaller", text.short(removed.shrunk)),
        ("lost on disk", text.short(removed.lost)),
        ("replaced", text.short(removed.replaced)),
        *_left_untrained(table),
        ("never sampled before", _percent(unsampled)),
    ]


def _left_untrained(table: TableStatus) -> list[tuple[str, str]]:
    if table.rollouts is None:
        return []
    removed = table.removed
    return [("failed", text.short(removed.failed)), ("too stale", text.short(removed.stale))]


def _rollouts(table: TableStatus, width: int) -> list[Block]:
    """What is on its way in a table with rollouts."""
    it = table.rollouts
    if it is None:
        return []
    most = "" if it.max_backlog is None else f" of {text.short(it.max_backlog)}"
    oldest, lease = it.oldest_open, it.oldest_lease
    shown = [
        ("version of the policy", text.short(it.version)),
        ("backlog", f"{text.short(it.backlog)}{most}"),
        ("taken for this version", text.short(it.taken)),
        ("open; held by generators", f"{text.short(it.open)}; {text.short(it.open_held)}"),
        ("settled; held by stages", f"{text.short(it.settled)}; {text.short(it.settled_held)}"),
        ("ready; held by learners", f"{text.short(it.ready)}; {text.short(it.ready_held)}"),
        ("generators that wait", text.short(it.waiting_open)),
        ("stages that wait", text.short(it.waiting_settled)),
        ("rollouts", text.short(it.num_rollouts)),
        ("rollouts given up", text.short(it.num_failed_rollouts)),
        ("last rollout", text.interval(it.last_rollout_age_s)),
        ("made again", text.short(it.num_again)),
        ("leases lost", text.short(it.num_lost_leases)),
        ("staleness, mean", text.short(it.staleness.mean)),
        ("oldest open item", text.interval(None if oldest is None else oldest.age_s)),
        ("longest lease", text.interval(None if lease is None else lease.age_s)),
    ]
    return [Block("Rollouts", facts(shown, width))]


def _percent(share: float) -> str:
    return text.NOTHING if math.isnan(share) else f"{share * 100:.0f} %"
