# SPDX-License-Identifier: Apache-2.0
"""`reverb_server --check` and `--print-config`, which start no server."""

import dataclasses
import os
import pathlib
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reverb
from reverb.core import native
from reverb.server_executable.config_printer import config_text
from reverb.server_executable.options import OPTIONS
from reverb.server_executable.settings import ConfigSource, Given, read_settings
from support.log_lines import messages
from support.reverb_server import CONFIG

TABLE = """\
tables {
  table_name: %s
  sampler { %s }
  remover { fifo: true }
  max_size: %d
  max_bytes: %d
  when_full: %s
  rate_limiter { min_size_to_sample: 1 samples_per_insert: %r min_diff: -1e300 max_diff: %r }
}
"""


def test_a_good_config_is_said_to_be_good(ends, tmp_path):
    path = tmp_path / "server.textproto"
    path.write_text(CONFIG + CONFIG.replace('"t"', '"u"'))
    assert ends("--check", "--config-file", path) == (0, f"{path} is good: tables t, u\n", "")


def test_a_check_of_deep_nesting_ends_as_for_any_bad_config(ends, tmp_path):
    path = tmp_path / "server.textproto"
    path.write_text(CONFIG + "tables {" + "sampler {" * 20_000)
    code, out, errors = ends("--check", "--config-file", path)
    assert (code, out) == (2, "")
    (line,) = messages(errors)
    assert line.startswith(f"ERROR server: {path}, line ")
    assert line.endswith("more than 64 nested messages")


def test_a_check_finds_all_problems_and_starts_nothing(ends, tmp_path, monkeypatch):
    path, root = tmp_path / "server.textproto", tmp_path / "file" / "saved"
    (tmp_path / "file").touch()
    path.write_text(CONFIG.replace("20", "0") + f'server {{ checkpoint {{ dir: "{root}" }} }}')
    monkeypatch.setenv("REVERB_SERVER_PORT", "x")
    code, out, errors = ends("--check", f"--config-file={path}", "--http-port=70000")
    assert (code, out) == (2, "")
    assert messages(errors) == [
        "ERROR server: REVERB_SERVER_PORT: must be a whole number, got 'x'",
        "ERROR server: argument --http-port: must be from 0 to 65535, got 70000",
        f"ERROR server: {path}, line 6: tables[0].max_size must be from 1 to 2147483647, got 0",
        f"ERROR server: {path}, line 9: the directory of checkpoints {root} cannot be used: "
        f"{tmp_path / 'file'} is not a directory",
    ]


@pytest.mark.parametrize("action", [["--check"], []])
def test_an_impossible_checkpoint_directory_is_refused_at_once(ends, tmp_path, action):
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "nothing")
    # Not even root may make a file there.
    read_only = ["/proc/saved"] if pathlib.Path("/proc/self").is_dir() else []
    for root in (tmp_path / "file" / "saved", tmp_path / "nowhere", *read_only):
        options = ["--port=0", "--checkpoint-dir", root]
        code, out, errors = ends(*action, f"--config={CONFIG}", *options)
        assert (code, out) == (2, "")
        assert f"flag --checkpoint-dir: the directory of checkpoints {root} cannot be" in errors


def test_a_store_that_cannot_be_used_is_refused_at_once(ends, tmp_path):
    (tmp_path / "file").touch()
    root = tmp_path / "file" / "store"
    options = ["--store", root]
    code, out, errors = ends("--check", f"--config={CONFIG}", *options)
    assert (code, out) == (2, "")
    assert f"flag --store: the store {root} cannot be used: {root.parent} is not a dir" in errors


def test_a_store_without_a_use_is_refused_before_a_start(ends, tmp_path):
    config = f'{CONFIG} server {{ store {{ path: "{tmp_path}" journal: false }} }}'
    for action in (["--check"], []):
        code, _, errors = ends(*action, f"--config={config}")
        assert code == 2
        assert messages(errors) == [
            "ERROR server: --config, line 9: a store without a journal needs --max-bytes "
            "(max_bytes): without it nothing would go to disk"
        ]
    assert ends("--check", f"--config={config}", "--store-journal")[0] == 0


OPEN = "min_size_to_sample: 1 samples_per_insert: 1 min_diff: -1e300 max_diff: 1e300"
HOPELESS = {
    "too small": (
        OPEN.replace("sample: 1", "sample: 21"),
        "It will never hold the 21 items that sampling needs",
    ),
    "too narrow": (
        "min_size_to_sample: 1 samples_per_insert: 1 min_diff: 0 max_diff: 0.5",
        "It can come to a stop for good: with inserts * samples_per_insert - samples = 0, an "
        "insert would go above max_diff 0.5, and a sample below min_diff 0.",
    ),
}


@pytest.mark.parametrize("limiter", HOPELESS)
def test_a_table_that_can_never_go_on_is_told(ends, limiter):
    numbers, why = HOPELESS[limiter]
    config = CONFIG.replace(OPEN, numbers)
    code, out, errors = ends("--check", f"--config={config}")
    assert (code, out) == (0, "--config is good: tables t\n")
    (message,) = messages(errors)
    assert message.startswith(f"WARN server: table t: {why}")
    # No shard of a group knows the bounds.
    group = ["--group=g", "--shard-index=0", "--num-shards=1"]
    assert ends("--check", f"--config={config}", *group)[2] == ""


@given(
    st.integers(1, 30),
    st.integers(1, 40).map(lambda it: it / 8),
    st.integers(-20, 20).map(lambda it: it / 4),
    st.integers(0, 40).map(lambda it: it / 8),
)
def test_a_table_that_stops_was_told_of(min_size, ratio, min_diff, width):
    """A table that is written and read in turns comes to a stop only if its config says so."""
    limiter = reverb.rate_limiters.RateLimiter(ratio, min_size, min_diff, min_diff + width)
    uniform, fifo = reverb.selectors.Uniform(), reverb.selectors.Fifo()
    table = reverb.Table("t", uniform, fifo, 20, limiter)
    if table.internal_table.why_never() is not None:
        return
    inserts = samples = 0
    for _ in range(200):
        cursor = inserts * ratio - samples
        can_insert = inserts < min_size or cursor + ratio <= min_diff + width
        can_sample = inserts >= min_size and cursor - 1 >= min_diff
        assert can_insert or can_sample
        inserts, samples = inserts + can_insert, samples + (can_sample and not can_insert)


@pytest.mark.parametrize("path", ["server.textproto", "/etc/reverb/server.textproto", "missing"])
def test_a_path_in_the_place_of_a_config_is_told(ends, monkeypatch, path):
    code, _, errors = ends("--check", f"--config={path}")
    told = f"must be the text of a config, got '{path}': "
    assert (code, f"--config {told}--config-file is for the path of a file" in errors) == (2, True)
    monkeypatch.setenv("REVERB_SERVER_CONFIG", path)
    code, _, errors = ends("--check")
    assert (code, f"REVERB_SERVER_CONFIG {told}REVERB_SERVER_CONFIG_FILE is" in errors) == (2, True)


def test_a_check_makes_no_directory_of_checkpoints(ends, tmp_path):
    root = tmp_path / "a" / "b"
    code, out, _ = ends("--check", f"--config={CONFIG}", "--checkpoint-dir", root)
    assert (code, out) == (0, "--config is good: tables t\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_check_finds_a_directory_that_cannot_be_written(ends, tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    code, _, errors = ends("--check", f"--config={CONFIG}", f"--checkpoint-dir={tmp_path}")
    tmp_path.chmod(stat.S_IRWXU)
    assert code == 2
    assert errors.endswith(f"{tmp_path} cannot be read and written by this user\n")


def test_a_check_is_told_what_has_no_effect(ends, monkeypatch):
    monkeypatch.setenv("REVERB_SERVER_NOTHING", "1")
    config = CONFIG.replace("max_size: 20", "max_size: 20 signature: {}")
    code, out, errors = ends("--check", "--config", config)
    assert (code, out) == (0, "--config is good: tables t\n")
    assert messages(errors) == [
        "WARN server: REVERB_SERVER_NOTHING has no effect: there is no option of this name",
        "WARN server: --config, line 6: tables[0].signature has no effect here",
    ]


def test_a_check_says_which_columns_items_must_have(ends):
    native.configure_logs("info", "text")
    config = CONFIG.replace("max_size: 20", 'max_size: 20 columns: "obs float[?,4]"')
    code, _, errors = ends("--check", "--config", config)
    assert (code, messages(errors)) == (
        0,
        [
            "INFO server: table t: items must have the columns obs float32[?,4]; only "
            "reverb_server checks this, not other programs that read the config"
        ],
    )
    code, printed, _ = ends("--print-config", "--config", config)
    assert (
        ends("--check", "--config", printed)[2].partition("INFO")[2]
        == (errors.partition("INFO")[2])
    )


def test_only_one_action_at_a_time(ends):
    code, _, errors = ends("--check", "--print-config", "--config=")
    assert code == 2
    assert "--print-config: not allowed with argument --check" in errors


def test_what_is_in_force_is_printed_with_its_origin(ends, tmp_path, monkeypatch):
    path = tmp_path / "server.textproto"
    path.write_text(f"port: 8000\nserver {{\n  http {{ port: 8001 }}\n}}{CONFIG}")
    monkeypatch.setenv("REVERB_SERVER_MAX_BYTES", "50%")
    code, printed, errors = ends("--print-config", f"--config-file={path}", "--port", "9000")
    assert (code, errors) == (0, "")
    assert (
        printed
        == f"""\
port: 9000  # flag --port
max_bytes: "50%"  # environment REVERB_SERVER_MAX_BYTES
server: {{
  # host is not set  # default
  # unix_path is not set  # default
  # tokens is not set  # default
  insecure_tokens: false  # default
  keepalive_s: 10.0  # default
  keepalive_timeout_s: 5.0  # default
  drain_timeout_s: 10.0  # default
  # threads is not set  # default
  checkpoint: {{
    # dir is not set  # default
    # name is not set  # default
    # load is not set  # default
    # interval_s is not set  # default
    on_stop: false  # default
    keep: 1  # default
    restore_settings: false  # default
  }}
  http: {{
    port: 8001  # {path}, line 3
    host: "127.0.0.1"  # default
  }}
  limits: {{
    # message_bytes is not set  # default
    # call_bytes is not set  # default
    # stream_bytes is not set  # default
    # queued_bytes is not set  # default
    # connections is not set  # default
    # streams is not set  # default
    # streams_per_connection is not set  # default
    # unread_timeout_s is not set  # default
  }}
  log: {{
    # format is not set  # default
  }}
  shard: {{
    # index is not set  # default
    # num_shards is not set  # default
    # group is not set  # default
    # group_address is not set  # default
  }}
  store: {{
    # path is not set  # default
    # max_bytes is not set  # default
    journal: true  # default
    sync_interval_s: 1.0  # default
    restore_settings: false  # default
  }}
  tls: {{
    http: false  # default
    # cert is not set  # default
    # key is not set  # default
    # client_ca is not set  # default
    # max_connection_age_s is not set  # default
  }}
}}
tables: {{  # {path}, line 5
  table_name: "t"
  rate_limiter {{
    samples_per_insert: 1.0
    min_diff: -1e+300
    max_diff: 1e+300
    min_size_to_sample: 1
  }}
  sampler {{
    fifo: true
  }}
  remover {{
    fifo: true
  }}
  max_size: 20
}}
"""
    )


def test_nothing_is_printed_of_a_bad_config(ends):
    code, printed, errors = ends("--print-config", "--config", CONFIG.replace("20", "0"))
    assert (code, printed) == (2, "")
    assert "line 6: tables[0].max_size must be " in errors


seconds = st.floats(0.1, 86_400)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
VALUES = {
    "port": st.integers(0, 65_535),
    "host": texts,
    "unix_path": st.sampled_from(["/run/reverb/socket", "s", "mit Umlaut ä"]),
    "max_bytes": st.sampled_from(["80%", "12.5 GiB", "99999999"]),
    "store": texts,
    "store_max_bytes": st.sampled_from(["200GiB", "12.5 GB", "99999999"]),
    "store_journal": st.booleans(),
    "store_sync_interval": st.floats(0.1, 60),
    "store_restore_settings": st.booleans(),
    "http_port": st.integers(0, 65_535),
    "http_host": texts,
    "http_tls": st.booleans(),
    "tls_cert": texts,
    "tls_key": texts,
    "tls_client_ca": texts,
    "tls_max_connection_age": st.floats(1, 31_557_600),
    "tokens": texts,
    "insecure_tokens": st.booleans(),
    "keepalive": seconds | st.just(0.0),
    "keepalive_timeout": seconds,
    "drain_timeout": seconds | st.just(0.0),
    **{
        f"limit_{field.name}": st.integers(16, 2**32 - 1)
        for field in dataclasses.fields(reverb.Limits)
    },
    "limit_unread_timeout_s": st.floats(1e-300, 31_557_600),
    "threads": st.integers(1, 1024),
    "log_format": st.sampled_from(["text", "json"]),
    "checkpoint_dir": texts,
    "checkpoint_name": st.just("a-0"),
    "load_checkpoint": texts,
    "checkpoint_interval": st.floats(1e-300, 1e9),
    "checkpoint_on_stop": st.booleans(),
    "keep_checkpoints": st.integers(1, 2**31 - 1),
    "restore_settings": st.booleans(),
    "shard_index": st.integers(0, 3),
    "num_shards": st.integers(4, 4096),
    "group": st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=64),
    "group_address": st.sampled_from(["shards:///a:1", "shards+grpcs:///a:1,b:2?writers=local"]),
}
tables = st.tuples(
    st.sampled_from(["fifo: true", "heap { min_heap: true }", "prioritized {}"])
    | st.floats(0, 1e300).map(lambda exponent: f"prioritized {{ priority_exponent: {exponent} }}"),
    st.integers(1, 2**31 - 1),
    st.integers(0, 2**62),
    st.sampled_from(["REMOVE", "WAIT"]),
    st.floats(1e-300, 1e300),
    st.floats(-1e300, 1e300),
)


def test_the_property_has_values_for_all_options():
    assert list(VALUES) == [option.name for option in OPTIONS]


@given(
    flags=st.fixed_dictionaries({}, optional=VALUES),
    variables=st.fixed_dictionaries({}, optional=VALUES),
    of_tables=st.lists(tables, min_size=1, max_size=3),
    origin=texts,
)
def test_what_is_printed_gives_the_same_settings(flags, variables, of_tables, origin):
    needed = {"checkpoint_dir": "/d", "tls_cert": "c", "tls_key": "k", "tokens": "t"}
    needed |= {"max_bytes": "1GiB", "store": "/s"}
    variables = needed | {"http_port": 0, "shard_index": 0, "num_shards": 4} | variables
    text = "".join(TABLE % (f'"t{number}"', *table) for number, table in enumerate(of_tables))
    start = Given(
        ConfigSource(origin, text=text),
        {name: str(value) for name, value in flags.items()},
        {name: str(value) for name, value in variables.items()},
    )
    before = read_settings(start)
    assert before.problems == []
    printed = config_text(before, start)
    after = read_settings(Given(ConfigSource("--config", text=printed), {}, {}))
    assert (after.problems, after.notes) == ([], [])
    for option in OPTIONS:
        assert after[option.name] == before[option.name]
    assert after.tables == before.tables
    # And once more it is the same text, but for the comments.
    again = config_text(after, start)
    assert _without_comments(again) == _without_comments(printed)


def _without_comments(text):
    return [line.rpartition("  # ")[0] or line for line in text.split("\n")]
