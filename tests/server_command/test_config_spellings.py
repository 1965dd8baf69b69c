# SPDX-License-Identifier: Apache-2.0
"""Short ways to write a table: what is wrong is named with its line, and they leave no trace."""

import pytest
from google.protobuf import text_format

import reverb
from reverb.server_executable import server_from_proto
from reverb.server_executable.config_spellings import parse_written
from reverb.server_executable.server_config import read_config
from support.programs import run_fresh as run

RATIO = """\
tables: {
  table_name: "a"
  sampler: { shuffle: true }
  remover: { recent: { expected_age: 5 } }
  max_size: 10
  rate_limiter: {
    sample_to_insert_ratio: {
      samples_per_insert: 4
      min_size_to_sample: 100
      error_buffer: 40
    }
  }
}
"""
QUEUE = 'tables: {\n table_name: "q"\n queue: true\n max_size: 10\n}'


def table_of(text):
    parsed = read_config(text)
    assert (parsed.problems, parsed.unused) == ([], [])
    (table,) = server_from_proto.tables_from_proto(parsed.config.tables)
    return table


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("shuffle: true", "shuffle: false", "3: tables[0].sampler.shuffle must be true, got false"),
        (
            "shuffle: true",
            "max_heap: false",
            "3: tables[0].sampler.max_heap must be true, got false",
        ),
        (
            "shuffle: true",
            "shuffle: true extension: { shuffle: {} }",
            "3: tables[0].sampler.extension cannot be combined with shuffle",
        ),
        (
            "shuffle: true",
            "prioritized: { draw: STRATIFIED } extension: { draw: SYSTEMATIC }",
            "3: tables[0].sampler.extension cannot be combined with the draw of prioritized",
        ),
        (
            "expected_age: 5",
            "expected_age: -1",
            "4: tables[0].remover.recent.expected_age must be finite and above 0, got -1",
        ),
        (
            "expected_age: 5",
            "",
            "4: tables[0].remover.recent.expected_age must be finite and above 0, got 0",
        ),
        (
            "samples_per_insert: 4",
            "samples_per_insert: 0",
            "8: tables[0].rate_limiter.sample_to_insert_ratio.samples_per_insert must be finite "
            "and greater than 0, got 0",
        ),
        (
            "min_size_to_sample: 100",
            "min_size_to_sample: -2",
            "9: tables[0].rate_limiter.sample_to_insert_ratio.min_size_to_sample must be at "
            "least 1, got -2",
        ),
        (
            "error_buffer: 40",
            "",
            "7: tables[0].rate_limiter.sample_to_insert_ratio.error_buffer must be one number, or "
            "[min_diff, max_diff], got none",
        ),
        (
            "error_buffer: 40",
            "error_buffer: [1, 2, 3]",
            "10: tables[0].rate_limiter.sample_to_insert_ratio.error_buffer must be one number, or "
            "[min_diff, max_diff], got 3 numbers",
        ),
        (
            "error_buffer: 40",
            "error_buffer: 1",
            "10: tables[0].rate_limiter.sample_to_insert_ratio.error_buffer does not fit: The size "
            "of error_buffer must be at least max(1.0, samples_per_insert) = 4.0 on each side, "
            "got 1.0: samples and inserts would wait for each other.",
        ),
        (
            "error_buffer: 40",
            "error_buffer: [nan, nan]",
            "10: tables[0].rate_limiter.sample_to_insert_ratio.error_buffer does not fit: min_diff "
            "must be a number, got NaN.",
        ),
        (
            "rate_limiter: {",
            "rate_limiter: { max_diff: 7",
            "6: tables[0].rate_limiter.max_diff cannot be combined with "
            "sample_to_insert_ratio, which sets it; got 7",
        ),
    ],
)
def test_what_makes_no_sense_names_line_and_field(old, new, problem):
    assert [str(it) for it in read_config(RATIO.replace(old, new, 1)).problems] == [
        f"line {problem}"
    ]


@pytest.mark.parametrize("kind", ["min_size", "queue", "stack"])
def test_a_size_is_at_least_one(kind):
    text = (
        'tables { table_name: "a" sampler { fifo: true } remover { fifo: true } max_size: 1 '
        f"rate_limiter {{ {kind}: 0 }} }}"
    )
    (problem,) = read_config(text).problems
    assert str(problem) == f"line 1: tables[0].rate_limiter.{kind} must be at least 1, got 0"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("max_size: 10", "", "line 1: tables[0].max_size is missing: it must be from 1 to "),
        ("max_size: 10", "max_size: -1", "line 4: tables[0].max_size must be from 1 to "),
        (
            "queue: true",
            "queue: true stack: true",
            "line 3: tables[0].stack cannot be combined with queue: true",
        ),
        (
            "queue: true",
            "queue: true\n sampler: { lifo: true }",
            "line 4: tables[0].sampler cannot be combined with queue: true, which sets it",
        ),
        ("queue: true", "queue: false", "line 1: tables[0].sampler is missing: "),
    ],
)
def test_a_whole_table_gives_all_but_its_size(old, new, problem):
    problems = [str(it) for it in read_config(QUEUE.replace(old, new, 1)).problems]
    assert problems[0].startswith(problem)


def test_the_message_is_what_dm_reverb_would_write():
    config, problems = parse_written(RATIO)
    assert problems == []
    shown = text_format.MessageToString(config.tables[0].sampler, as_one_line=True)
    assert shown == "uniform: true extension { shuffle { } }"
    again = type(config).FromString(config.SerializeToString())
    assert text_format.MessageToString(again) == text_format.MessageToString(config)
    limiter = config.tables[0].rate_limiter
    assert (limiter.min_diff, limiter.max_diff) == (360, 440)


def test_a_queue_may_have_a_limit_of_bytes():
    table = table_of(QUEUE.replace("max_size: 10", "max_size: 10 max_bytes: 4096"))
    assert repr(table.internal_table) == repr(
        reverb.Table.queue("q", 10, max_bytes=4096).internal_table
    )


def test_the_flag_of_dm_reverb_takes_them_too():
    program = """
    from absl import flags
    from reverb.platform.default import server_main_command_line_args as arguments
    for limiter in ("queue: 7", "queue: 0"):
        text = 'tables: { table_name: "a" rate_limiter: { %s } }' % limiter
        flags.FLAGS(["program", "--config=" + text])
        try:
            print(arguments.get_server_config_proto().tables[0].rate_limiter.max_diff)
        except Exception as error:
            print(type(error).__name__, error)
    """
    assert run(program) == [
        "7.0",
        "ParseError tables[0].rate_limiter.queue must be at least 1, got 0",
    ]
