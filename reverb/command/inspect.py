# SPDX-License-Identifier: Apache-2.0
"""`reverb inspect`: a summary of tables, as text or JSON."""

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from typing import Any

import tree

from reverb import specs
from reverb._checkpoints.stored import TableStatistics
from reverb.command import text
from reverb.command.columns import dtype_name, signature_names
from reverb.command.progress import Progress
from reverb.command.source import Source, check_table, missing_text
from reverb.errors import UnimplementedError
from reverb.item_selectors import selector_settings

_LABEL_WIDTH = 22


def inspect(
    source: Source,
    *,
    table: str | None = None,
    read_items: bool = True,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Makes the report of a source that `--json` prints; reading the items takes time.

    Returns:
      A dict of plain values. Its `tables` have `items: None` if the items were not read;
      `items_unread` has the reason. `missing_shards` are those of a group that do not answer.

    Raises:
      TableNotFoundError: If there is no such table.
    """
    if table is not None:
        check_table(source, table)
    names = list(source.tables) if table is None else [table]
    statistics: Mapping[str, TableStatistics] = {}
    unread = None if read_items else "--no-items was given"
    if read_items:
        with Progress("reading", enabled=progress) as bar:
            try:
                statistics = source.statistics(names, bar)
            except UnimplementedError:
                unread = "it is a dm-reverb server, which reports only its counters"
    return {
        "kind": source.kind,
        "source": source.name,
        "server_name": source.server_name,
        "read_at": time.time(),
        "items_unread": unread,
        "missing_shards": [
            {"index": index, "address": address} for index, address in source.missing.items()
        ],
        "tables": {
            name: _describe(source, name) | {"items": _plain(statistics.get(name))}
            for name in names
        },
    }


def as_json(report: dict[str, Any]) -> str:
    """Formats a report as JSON, with the strings `inf`, `-inf` and `nan` for such numbers."""
    return json.dumps(_without_infinities(report), indent=2, allow_nan=False)


def as_text(report: dict[str, Any]) -> str:
    """Formats a report as text."""
    count = len(report["tables"])
    plural = "table" if count == 1 else "tables"
    of_server = f" of server {text.plain(report['server_name'])}" if report["server_name"] else ""
    lines = [f"{report['kind']} {report['source']}{of_server}, {count} {plural}"]
    if report["missing_shards"]:
        lines.append(missing_text({it["index"]: it["address"] for it in report["missing_shards"]}))
    if report["items_unread"]:
        lines.append(f"Items were not read: {report['items_unread']}.")
    for name, table in report["tables"].items():
        lines += ["", f"table {text.plain(name)}"]
        rows = [*_setting_rows(table), *_item_rows(table["items"], report["read_at"])]
        lines += [f"  {label:<{_LABEL_WIDTH}}{value}" for label, value in rows]
        lines += _signature_lines(table["signature"])
    return "\n".join(lines)


def _describe(source: Source, table: str) -> dict[str, Any]:
    """Returns the settings and counters of a table as plain values."""
    info = source.tables[table]
    limiter = info.rate_limiter_info
    return {
        "size": info.current_size,
        "max_size": info.max_size,
        "max_times_sampled": info.max_times_sampled if info.max_times_sampled > 0 else None,
        "sampler": _selector(info.sampler_options),
        "remover": _selector(info.remover_options),
        "rate_limiter": {
            "min_size_to_sample": limiter.min_size_to_sample,
            "samples_per_insert": limiter.samples_per_insert,
            "min_diff": limiter.min_diff,
            "max_diff": limiter.max_diff,
            "num_inserts": limiter.insert_stats.completed,
            "num_samples": limiter.sample_stats.completed,
        },
        # Checkpoints do not store this number; a server starts from 0 when it loads one.
        "num_episodes": None if source.kind == "checkpoint" else info.num_episodes,
        "num_deleted_episodes": info.num_deleted_episodes,
        "num_unique_samples": info.num_unique_samples,
        "rollouts": None if info.rollouts is None else dataclasses.asdict(info.rollouts),
        "signature": None if info.signature is None else _signature(info.signature),
    }


def _selector(options: object) -> dict[str, Any]:
    kind, parameters = selector_settings(options)
    # The default draw is not shown.
    return {"kind": kind} | {name: it for name, it in parameters.items() if it != "independent"}


def _signature(signature: object) -> list[dict[str, Any]]:
    columns = []
    for name, leaf in zip(signature_names(signature), tree.flatten(signature), strict=True):
        spec = None if leaf is None else specs.as_spec(leaf)
        columns.append(
            {
                "name": name,
                "dtype": None if spec is None else dtype_name(spec.dtype),
                "shape": None if spec is None or spec.shape is None else list(spec.shape),
            }
        )
    return columns


def _plain(statistics: TableStatistics | None) -> dict[str, Any] | None:
    return None if statistics is None else dataclasses.asdict(statistics)


def _setting_rows(table: dict[str, Any]) -> list[tuple[str, str]]:
    limiter = table["rate_limiter"]
    inserts, samples = limiter["num_inserts"], limiter["num_samples"]
    limits = [text.limit(limiter[name]) for name in ("min_diff", "max_diff")]
    difference = inserts * limiter["samples_per_insert"] - samples
    max_times_sampled = table["max_times_sampled"] or "unlimited"
    episodes = f"{table['num_deleted_episodes']:,} deleted"
    if table["num_episodes"] is not None:
        episodes = f"{table['num_episodes']:,}, {episodes}"
    return [
        ("size", f"{table['size']:,} of {table['max_size']:,} items"),
        ("sampler", _selector_text(table["sampler"])),
        ("remover", _selector_text(table["remover"])),
        ("max_times_sampled", f"{max_times_sampled}"),
        ("min_size_to_sample", f"{limiter['min_size_to_sample']:,}"),
        ("samples_per_insert", text.number(limiter["samples_per_insert"])),
        ("min_diff, max_diff", ", ".join(limits)),
        ("inserts, samples", f"{inserts:,}, {samples:,} (diff {text.number(difference)})"),
        ("items ever sampled", f"{table['num_unique_samples']:,}"),
        ("episodes", episodes),
        *_rollout_rows(table["rollouts"]),
    ]


def _rollout_rows(rollouts: dict[str, Any] | None) -> list[tuple[str, str]]:
    if rollouts is None:
        return []
    settings = {name: it for name, it in rollouts["settings"].items() if it is not None}
    states = ("open", "settled", "ready", "leased", "taken", "backlog")
    left = [f"{count:,} {reason}" for reason, count in rollouts["left"].items()]
    return [
        ("rollouts", ", ".join(f"{name} {it}" for name, it in settings.items())),
        ("version, newest item", f"{rollouts['version']:,}, {text.plain(rollouts['newest'])!r}"),
        ("items", ", ".join(f"{rollouts[state]:,} {state}" for state in states)),
        ("items that left", ", ".join(left) or "none"),
    ]


def _selector_text(selector: dict[str, Any]) -> str:
    kind, *parameters = selector.values()
    names = (name.removeprefix("priority_").replace("_", " ") for name in list(selector)[1:])
    shown = (it if isinstance(it, str) else text.number(it) for it in parameters)
    return ", ".join([kind, *map(" ".join, zip(names, shown, strict=True))])


def _item_rows(items: dict[str, Any] | None, now: float) -> list[tuple[str, str]]:
    if items is None:
        return []
    rows = []
    if items["num_chunks"] is not None:
        rows.append(("chunks", f"{items['num_chunks']:,}"))
    sizes = [
        f"{text.bytes_(items[name])} {what}"
        for name, what in (
            ("chunk_bytes", "as stored"),
            ("decoded_bytes", "decoded"),
            ("item_bytes", "decoded, steps counted for each item that has them"),
        )
        if items.get(name) is not None
    ]
    rows.append(("bytes", ", ".join(sizes)))
    for moment in ("oldest", "median", "newest"):
        if items[f"{moment}_inserted_at"] is not None:
            rows.append((f"{moment} item", text.moment(items[f"{moment}_inserted_at"], now)))
    zeros = f"; {items['priority_zeros']:,} are 0" if items["priority_zeros"] else ""
    if items["num_items"]:
        rows.append(("priority", _spread_text(items, "priority") + zeros))
        rows.append(("times sampled", _spread_text(items, "times_sampled")))
        rows.append(("item length", _spread_text(items, "length")))
    return rows


def _spread_text(items: dict[str, Any], name: str) -> str:
    return ", ".join(
        f"{part} {text.number(value)}"
        for part in ("min", "median", "mean", "max")
        if (value := items.get(f"{name}_{part}")) is not None
    )


def _signature_lines(signature: list[dict[str, Any]] | None) -> list[str]:
    if signature is None:
        return [f"  {'signature':<{_LABEL_WIDTH}}none"]
    names = [text.plain(column["name"]) for column in signature]
    width = max(map(text.cells, names), default=0)
    lines = ["  signature"]
    for name, column in zip(names, signature, strict=True):
        shape = column["shape"]
        sizes = "any rank"
        if shape is not None:
            sizes = ", ".join("?" if size is None else f"{size}" for size in shape)
        lines.append(f"    {text.fit(name, width)}  {column['dtype']} [{sizes}]")
    return lines


def _without_infinities(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_infinities(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
