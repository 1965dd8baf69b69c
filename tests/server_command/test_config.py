# SPDX-License-Identifier: Apache-2.0
"""The config of `reverb_server`: what is read, what is refused, and which line is named."""

import pytest
from google.protobuf import text_format

from reverb._server.table import arguments_of
from reverb.core import protos
from reverb.errors import InvalidArgumentError
from reverb.server_executable import server_config, server_from_proto
from reverb.server_executable.field_positions import find_field_positions
from reverb.server_executable.server_config import read_config

LIMITER = "rate_limiter: { samples_per_insert: 1 min_size_to_sample: 1 min_diff: 0 max_diff: 9 }"
GOOD = f"""\
port: 8000
tables: {{
  table_name: "a"
  sampler: {{ fifo: true }}
  remover: {{ fifo: true }}
  max_size: 10
  {LIMITER}
}}
"""
SELECTORS = (
    "fifo: true, uniform: true, lifo: true, uniform_over_steps: true, max_heap: true, "
    "min_heap: true, shuffle: true, "
    "prioritized { priority_exponent: ... draw: ... }, heap { min_heap: ... } or "
    "recent { expected_age: ... }"
)
HUGE = "1.7976931348623157e308"


def problems(text):
    return [str(note) for note in read_config(text).problems]


def test_a_good_config_has_no_problems():
    parsed = read_config(GOOD)
    assert (parsed.problems, parsed.unused) == ([], [])
    assert parsed.config.port == 8000
    assert [table.table_name for table in parsed.config.tables] == ["a"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            GOOD.replace("max_size", "max_siz"),
            'line 6: tables[0].max_siz: Message type "deepmind.reverb.PriorityTableCheckpoint" '
            'has no field named "max_siz".',
        ),
        (
            GOOD.replace("port: 8000", "ports: 8000"),
            'line 1: ports: Message type "deepmind.reverb.ReverbServerConfig" '
            'has no field named "ports".',
        ),
        (
            GOOD.replace("fifo: true }\n  remover", "fifo: true lifo: true }\n  remover"),
            'line 4: tables[0].sampler.lifo: Field "lifo" is specified along with field "fifo", '
            'another member of oneof "distribution" for message type '
            '"deepmind.reverb.KeyDistributionOptions".',
        ),
        (
            GOOD + "port: 1",
            'line 9: port: Message type "deepmind.reverb.ReverbServerConfig" should not have '
            'multiple "port" fields.',
        ),
        (GOOD[:-2], 'line 7: tables[0].rate_limiter.max_diff: Expected "}".'),
        (
            "tables {\n sampler" + " {a" * 20_000,
            f"line 2: tables[0].sampler{'.a' * 63}: more than 64 nested messages",
        ),
        ("a: [" + "{ a: [" * 20_000, "line 1: a: more than 64 nested messages"),
        (
            "a <" * 20_000 + ">" * 20_000,
            f"line 1: {'a.' * 64}a: more than 64 nested messages",
        ),
    ],
)
def test_what_cannot_be_read_names_line_and_field(text, problem):
    assert problems(text) == [problem]


@pytest.mark.parametrize(
    ("old", "new", "place", "complaint"),
    [
        ("max_size: 10", "max_size: ten", "line 6: tables[0].max_size: ", "integer: ten"),
        ("port: 8000", "port: 99999999999", "line 1: port: ", "out of range: 99999999999"),
        ('"a"', '"a', "line 3: tables[0].table_name: ", "ending quote"),
        ("fifo: true", "fifo: maybe", "line 4: tables[0].sampler.fifo: ", "maybe"),
        (GOOD, "}", "line 1: the config: ", "Expected identifier"),
    ],
)
def test_values_that_cannot_be_read_are_named(old, new, place, complaint):
    # The words are those of the installed protobuf.
    (problem,) = problems(GOOD.replace(old, new, 1))
    assert problem.startswith(place)
    assert complaint in problem


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("port: 8000", "port: 70000", "line 1: port must be from 0 to 65535, got 70000"),
        ("port: 8000", "port: -1", "line 1: port must be from 0 to 65535, got -1"),
        ('"a"', '""', "line 3: tables[0].table_name must not be empty"),
        (
            '  table_name: "a"\n',
            "",
            "line 2: tables[0].table_name is missing: it must not be empty",
        ),
        (
            "max_size: 10",
            "max_size: 0",
            "line 6: tables[0].max_size must be from 1 to 2147483647, got 0",
        ),
        (
            "max_size: 10",
            "max_size: 2147483648",
            "line 6: tables[0].max_size must be from 1 to 2147483647, got 2147483648",
        ),
        (
            "  max_size: 10\n",
            "",
            "line 2: tables[0].max_size is missing: it must be from 1 to 2147483647, got 0",
        ),
        (
            "  sampler: { fifo: true }\n",
            "",
            f"line 2: tables[0].sampler is missing: it must be {SELECTORS}",
        ),
        (
            "remover: { fifo: true }",
            "remover: {}",
            f"line 5: tables[0].remover must be {SELECTORS}",
        ),
        (
            "remover: { fifo: true }",
            "remover: {\n uniform: false }",
            "line 6: tables[0].remover.uniform must be true, got false",
        ),
        (
            "sampler: { fifo: true }",
            "sampler: { prioritized < priority_exponent: inf > }",
            "line 4: tables[0].sampler.prioritized is out of its range: "
            "priority_exponent must be finite, got inf.",
        ),
        (
            LIMITER,
            "",
            "line 2: tables[0].rate_limiter is missing: it must give samples_per_insert, "
            "min_size_to_sample, min_diff, max_diff, or one of min_size, sample_to_insert_ratio, "
            "queue, stack",
        ),
        (
            "samples_per_insert: 1",
            "samples_per_insert: 0",
            "line 7: tables[0].rate_limiter.samples_per_insert must be finite and greater than 0, "
            "got 0",
        ),
        (
            "samples_per_insert: 1",
            "samples_per_insert: nan",
            "line 7: tables[0].rate_limiter.samples_per_insert must be finite and greater than 0, "
            "got NaN",
        ),
        (
            "min_size_to_sample: 1",
            "min_size_to_sample: -3",
            "line 7: tables[0].rate_limiter.min_size_to_sample must be at least 1, got -3",
        ),
        (
            "min_diff: 0",
            "min_diff: nan",
            "line 7: tables[0].rate_limiter.min_diff must be a number, got NaN",
        ),
        (
            "max_size: 10",
            "max_size: 10 max_bytes: -1",
            "line 6: tables[0].max_bytes must be at least 1, or 0 for no limit, got -1",
        ),
        (
            "port: 8000",
            'port: 8000 max_bytes: "12 gigs"',
            'line 1: max_bytes must be a number of bytes, a size such as "12GiB" or a share such '
            'as "80%", got "12 gigs"',
        ),
        ("port: 8000", 'max_bytes: "0"', "line 1: max_bytes must be at least 1 or None, got 0"),
        (GOOD, "", "line 1: tables must hold at least one table, got none"),
    ],
)
def test_what_makes_no_sense_names_line_and_field(old, new, problem):
    assert problems(GOOD.replace(old, new, 1)) == [problem]


def test_all_problems_come_at_once_in_the_order_of_the_text():
    text = GOOD.replace("10", "0") + GOOD.removeprefix("port: 8000\n").replace("true", "false")
    assert problems(text) == [
        "line 6: tables[0].max_size must be from 1 to 2147483647, got 0",
        "line 10: tables[1].table_name must differ from that of tables[0], got 'a'",
        "line 11: tables[1].sampler.fifo must be true, got false",
        "line 12: tables[1].remover.fifo must be true, got false",
    ]


def test_fields_of_checkpoints_are_told_to_have_no_effect():
    parsed = read_config(
        GOOD.replace("max_size: 10", "max_size: 10\nsignature: {}\nnum_unique_samples: 7").replace(
            "max_diff: 9", "max_diff: 9\ninsert_count: 3"
        )
    )
    assert parsed.problems == []
    assert [str(note) for note in parsed.unused] == [
        "line 7: tables[0].signature has no effect here",
        "line 8: tables[0].num_unique_samples has no effect here",
        "line 10: tables[0].rate_limiter.insert_count has no effect here",
    ]


def test_places_are_found_in_every_way_to_write_a_message():
    text = """
      tables [ < table_name: "x # {" 'y' >,  # }
        { max_size: -5; sampler { fifo: true }, } ]
      tables: { counts: [1, 2] max_size: 3 }"""
    assert [(it.path, it.line, it.column) for it in find_field_positions(text, {"tables"})] == [
        ("tables[0]", 2, 16),
        ("tables[0].table_name", 2, 18),
        ("tables[1]", 3, 9),
        ("tables[1].max_size", 3, 11),
        ("tables[1].sampler", 3, 25),
        ("tables[1].sampler.fifo", 3, 35),
        ("tables[2]", 4, 7),
        ("tables[2].counts", 4, 17),
        ("tables[2].max_size", 4, 32),
    ]


@pytest.mark.parametrize("text", ["a { >", "a { b: [ } ] ", "tables { > ", "} a {", "a: [{ ] "])
def test_wrong_ends_do_not_hide_deep_nesting(text):
    assert len(problems(text * 20_000)) == 1
    assert len(problems("}" * 20_000 + "a {" * 20_000)) == 1


@pytest.mark.parametrize("text", ["", "}", "a: {", "a: [", 'a: "', "a", "a:", "{ [ < ]", "\0"])
def test_places_of_nonsense_are_no_failure(text):
    assert [it.path for it in find_field_positions(text, set())] == (["a"] if "a" in text else [])


def limiter_message(**numbers):
    defaults = {"samples_per_insert": 1.0, "min_size_to_sample": 1, "min_diff": -1, "max_diff": 1}
    return protos.RateLimiterCheckpoint(**(defaults | numbers))


def test_limiters_are_made_of_messages_without_their_counters():
    made = server_from_proto.rate_limiter_from_proto(limiter_message(max_diff=3, insert_count=7))
    assert repr(made) == (
        "RateLimiter(samples_per_insert=1, min_diff_=-1, max_diff=3, min_size_to_sample=1)"
    )
    with pytest.raises(InvalidArgumentError, match=r"samples_per_insert must .*, got 0"):
        server_from_proto.rate_limiter_from_proto(protos.RateLimiterCheckpoint())


def test_tables_are_made_of_messages():
    config = protos.ReverbServerConfig()
    text_format.Parse(GOOD + GOOD.removeprefix("port: 8000\n").replace('"a"', '"b"'), config)
    config.tables[1].max_times_sampled = 3
    config.tables[1].max_bytes = 4096
    config.tables[1].when_full = config.tables[1].WAIT
    config.tables[1].max_priority = config.tables[1].EVER
    first, second = server_from_proto.tables_from_proto(config.tables)
    assert (first.name, first.info.max_size, first.info.max_times_sampled) == ("a", 10, 0)
    assert (second.name, second.info.max_times_sampled) == ("b", 3)
    assert (
        arguments_of(first.internal_settings).items()
        >= {"max_bytes": None, "when_full": "remove"}.items()
    )
    assert (
        arguments_of(second.internal_settings).items()
        >= {"max_bytes": 4096, "when_full": "wait"}.items()
    )
    assert arguments_of(first.internal_settings)["max_priority"] == "present"
    assert arguments_of(second.internal_settings)["max_priority"] == "ever"
    assert first.info.rate_limiter_info.max_diff == 9
    assert first.info.sampler_options.fifo
    config.tables[0].max_size = 0
    with pytest.raises(
        InvalidArgumentError, match="max_size must be at least 1 and at most 2147483647, got 0"
    ):
        server_from_proto.tables_from_proto(config.tables)


def test_what_only_the_table_refuses_has_its_line(monkeypatch):
    def refuse(configs):
        raise InvalidArgumentError("max_foo must be at least 1, got 0.")

    monkeypatch.setattr(server_config.server_from_proto, "tables_from_proto", refuse)
    assert problems(GOOD) == [
        "line 2: tables[0] cannot be made: max_foo must be at least 1, got 0."
    ]
