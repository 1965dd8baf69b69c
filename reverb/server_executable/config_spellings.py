# SPDX-License-Identifier: Apache-2.0
"""Translates short ways to write tables in a config.

A config may say `shuffle: true`, `queue: true` or `min_size: 1000`, as in Python, and
`columns: "obs float32[?,4]"`. Checkpoints and the protocol do not have these fields: they are
translated when a config is read.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf import text_format

from reverb import item_selectors, rate_limiters
from reverb.core import protos
from reverb.errors import ReverbError
from reverb.server_executable.config_columns import signature_of
from reverb.server_executable.field_positions import MAX_NESTING, too_deep

__all__ = ["parse_written", "selector_spellings", "written_config_class"]

# Additional fields of messages in a config, which are never stored or sent. Any free numbers will
# do.
_ADDITIONS = {
    "deepmind.reverb.PriorityTableCheckpoint": """
      field { name: "queue" number: 2000 type: TYPE_BOOL label: LABEL_OPTIONAL }
      field { name: "stack" number: 2001 type: TYPE_BOOL label: LABEL_OPTIONAL }
      field { name: "columns" number: 2002 type: TYPE_STRING label: LABEL_REPEATED }
    """,
    "deepmind.reverb.KeyDistributionOptions.Prioritized": """
      field {
        name: "draw" number: 2000 type: TYPE_ENUM label: LABEL_OPTIONAL
        type_name: ".deepmind.reverb.KeyDistributionOptions.Extension.Draw"
      }
    """,
    "deepmind.reverb.RateLimiterCheckpoint": """
      oneof_decl { name: "limiter" }
      field { name: "min_size" number: 2000 type: TYPE_INT64 label: LABEL_OPTIONAL oneof_index: 0 }
      field {
        name: "sample_to_insert_ratio" number: 2001 type: TYPE_MESSAGE label: LABEL_OPTIONAL
        oneof_index: 0 type_name: ".deepmind.reverb.RateLimiterCheckpoint.SampleToInsertRatio"
      }
      field { name: "queue" number: 2002 type: TYPE_INT64 label: LABEL_OPTIONAL oneof_index: 0 }
      field { name: "stack" number: 2003 type: TYPE_INT64 label: LABEL_OPTIONAL oneof_index: 0 }
      nested_type {
        name: "SampleToInsertRatio"
        field { name: "samples_per_insert" number: 1 type: TYPE_DOUBLE label: LABEL_OPTIONAL }
        field { name: "min_size_to_sample" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL }
        field { name: "error_buffer" number: 3 type: TYPE_DOUBLE label: LABEL_REPEATED }
      }
    """,
}

# Selectors that a config names like the others: in messages they stand beside the nearest selector
# that dm-reverb has, or have another name.
_SHORT_SELECTORS = [
    kind
    for kind in item_selectors.BY_KIND
    if kind not in protos.KeyDistributionOptions.DESCRIPTOR.fields_by_name
]

# Fields that `queue: true` and `stack: true` set, so that a table must not set them itself.
_GIVEN = ("sampler", "remover", "max_times_sampled", "rate_limiter", "when_full")
_LIMITER_NUMBERS = ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff")

# Path of a field below the table, and a text about its problem.
_Problem = tuple[str, str]


@functools.cache
def written_config_class() -> Any:
    """Returns the class of written configs: `ReverbServerConfig` with the additional fields."""
    selectors = {"deepmind.reverb.KeyDistributionOptions": "".join(_selector_fields())}
    return protos.with_fields("deepmind.reverb.ReverbServerConfig", _ADDITIONS | selectors)


def _selector_fields() -> Iterator[str]:
    messages = protos.KeyDistributionOptions.Extension.DESCRIPTOR.fields_by_name
    for number, kind in enumerate(_SHORT_SELECTORS, start=2000):
        message = messages[kind].message_type if kind in messages else None
        if message is not None and message.fields:
            type_ = f'TYPE_MESSAGE type_name: ".{message.full_name}"'
        else:
            type_ = "TYPE_BOOL"
        yield (
            f'field {{ name: "{kind}" number: {number} label: LABEL_OPTIONAL oneof_index: 0 '
            f"type: {type_} }}\n"
        )


@functools.cache
def selector_spellings() -> str:
    """Returns all ways to write a selector in a config, as a list in a sentence."""
    fields = written_config_class()().tables.add().sampler.DESCRIPTOR.oneofs_by_name["distribution"]
    spellings = {
        field.name: f"{field.name}: true"
        if field.message_type is None
        else f"{field.name} {{ {': ... '.join(it.name for it in field.message_type.fields)}: ... }}"
        for field in fields.fields
    }
    *most, last = sorted(spellings.values(), key=lambda it: it.endswith("}"))
    return f"{', '.join(most)} or {last}"


def parse_written(text: str) -> tuple[Any, list[_Problem]]:
    """Parses a config.

    Returns:
      The translated `ReverbServerConfig` message, and its problems: pairs of a path such as
      `tables[0].rate_limiter.queue` and a text. The message has valid values in these fields.

    Raises:
      google.protobuf.text_format.ParseError: If the text is invalid; the error names line and
        column.
    """
    if (deep := too_deep(text)) is not None:
        raise text_format.ParseError(f"more than {MAX_NESTING} nested messages", *deep)
    written = text_format.Parse(text, written_config_class()())
    problems = []
    for number, table in enumerate(written.tables):
        problems += [(f"tables[{number}].{path}", it) for path, it in _translate_table(table)]
    # After the translation, both classes have the same fields and numbers.
    return protos.ReverbServerConfig.FromString(written.SerializeToString()), problems


def _translate_table(table: Any) -> Iterator[_Problem]:
    kind = "queue" if table.queue else "stack" if table.stack else None
    if table.queue and table.stack:
        yield "stack", "cannot be combined with queue: true"
    if kind is not None:
        for field, _ in table.ListFields():
            if field.name in _GIVEN:
                yield field.name, f"cannot be combined with {kind}: true, which sets it"
        for selector in (table.sampler, table.remover):
            selector.Clear()
            setattr(selector, "fifo" if kind == "queue" else "lifo", True)
        table.max_times_sampled = 1
        table.when_full = table.WAIT
        table.rate_limiter.Clear()
        # A wrong size is reported as `max_size` of the table.
        setattr(table.rate_limiter, kind, max(1, table.max_size))
    for role in ("sampler", "remover"):
        if table.HasField(role):
            for path, text in _translate_selector(getattr(table, role)):
                yield f"{role}.{path}", text
    if table.HasField("rate_limiter"):
        for path, text in _translate_limiter(table.rate_limiter):
            yield f"rate_limiter.{path}", text
    if table.columns and table.HasField("signature"):
        yield "columns", "cannot be combined with signature, which they define"
    elif table.columns:
        try:
            table.signature.ParseFromString(signature_of(table.columns).SerializeToString())
        except ReverbError as error:
            yield "columns", str(error)
    for field in ("queue", "stack", "columns"):
        table.ClearField(field)


def _translate_selector(options: Any) -> Iterator[_Problem]:
    kind = options.WhichOneof("distribution")
    if kind == "prioritized" and options.prioritized.draw:
        if options.HasField("extension"):
            yield "extension", "cannot be combined with the draw of prioritized"
        options.extension.draw = options.prioritized.draw
        options.prioritized.ClearField("draw")
    if kind not in _SHORT_SELECTORS:
        return
    if options.HasField("extension"):
        yield "extension", f"cannot be combined with {kind}"
    value = getattr(options, kind)
    if value is False:
        yield kind, "must be true, got false"
    parameters = {} if isinstance(value, bool) else item_selectors.fields_of(value)
    try:
        selector = item_selectors.BY_KIND[kind](**parameters)
    except ReverbError as error:
        # Its text begins with the parameter.
        parameter, _, text = str(error).rstrip(".").partition(" ")
        yield f"{kind}.{parameter}", text
        selector = item_selectors.Uniform()
    options.ParseFromString(selector.to_options())


def _translate_limiter(limiter: Any) -> Iterator[_Problem]:
    kind = limiter.WhichOneof("limiter")
    if kind is None:
        return
    for field, value in limiter.ListFields():
        if field.name in _LIMITER_NUMBERS:
            yield field.name, f"cannot be combined with {kind}, which sets it; got {value:g}"
    value = getattr(limiter, kind)
    makers: dict[str, Callable[[int], rate_limiters.RateLimiter]] = {
        "min_size": rate_limiters.MinSize,
        "queue": rate_limiters.Queue,
        "stack": rate_limiters.Stack,
    }
    numbers = rate_limiters.MinSize(1).to_proto()
    if kind == "sample_to_insert_ratio":
        problem = _ratio_problem(value)
        if problem is None:
            numbers = _ratio(value).to_proto()
        else:
            yield f"{kind}{problem[0]}", problem[1]
    elif value < 1:
        yield kind, f"must be at least 1, got {value}"
    else:
        numbers = makers[kind](value).to_proto()
    limiter.ClearField(kind)
    for name in _LIMITER_NUMBERS:
        setattr(limiter, name, getattr(numbers, name))


def _ratio(ratio: Any) -> rate_limiters.SampleToInsertRatio:
    buffer = tuple(ratio.error_buffer)
    return rate_limiters.SampleToInsertRatio(
        ratio.samples_per_insert,
        ratio.min_size_to_sample,
        buffer[0] if len(buffer) == 1 else (buffer[0], buffer[1]),
    )


def _ratio_problem(ratio: Any) -> _Problem | None:
    if not 0 < ratio.samples_per_insert < float("inf"):
        text = f"must be finite and greater than 0, got {ratio.samples_per_insert:g}"
        return ".samples_per_insert", text
    if ratio.min_size_to_sample < 1:
        return ".min_size_to_sample", f"must be at least 1, got {ratio.min_size_to_sample}"
    if len(ratio.error_buffer) not in (1, 2):
        got = f"{len(ratio.error_buffer)} numbers" if ratio.error_buffer else "none"
        return ".error_buffer", f"must be one number, or [min_diff, max_diff], got {got}"
    try:
        _ratio(ratio)
    except ReverbError as error:
        return ".error_buffer", f"does not fit: {error}"
    return None
