# SPDX-License-Identifier: Apache-2.0
"""The options of `reverb_server`: flags, environment variables and config, and which one wins."""

import dataclasses
import pathlib
import re

import pytest

import reverb
from reverb.core import protos
from reverb.server_executable import server_main
from reverb.server_executable.environment import read_environment
from reverb.server_executable.options import OPTIONS, Option, option_named
from reverb.server_executable.settings import ConfigSource, Given, read_settings
from support.log_lines import messages
from support.programs import Program
from support.reverb_server import COMMAND, CONFIG, client_of
from support.waiting import DEADLINE_S

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "howto" / "server.md"

# For each option, texts of three values that are not its default, and the values.
SAMPLES = {
    "port": [("8123", 8123), ("8124", 8124), ("8125", 8125)],
    "host": [("a", "a"), ("::1", "::1"), ("c", "c")],
    "unix_path": [("/a", "/a"), ("b c", "b c"), ("/ü", "/ü")],
    "max_bytes": [("1GiB", "1GiB"), ("50%", "50%"), ("99999999", "99999999")],
    "store": [("/a", "/a"), ("b c", "b c"), ("/ü", "/ü")],
    "store_max_bytes": [("1GiB", "1GiB"), ("2 TB", "2 TB"), ("99999999", "99999999")],
    "store_journal": [("false", False), ("0", False), ("no", False)],
    "store_sync_interval": [("0.1", 0.1), ("60", 60.0), ("2.5", 2.5)],
    "store_restore_settings": [("true", True), ("1", True), ("yes", True)],
    "http_port": [("0", 0), ("9000", 9000), ("9001", 9001)],
    "http_host": [("a", "a"), ("0.0.0.0", "0.0.0.0"), ("c", "c")],
    "http_tls": [("true", True), ("1", True), ("yes", True)],
    "tls_cert": [("a", "a"), ("b c", "b c"), ("/ü", "/ü")],
    "tls_key": [("a", "a"), ("b c", "b c"), ("/ü", "/ü")],
    "tls_client_ca": [("a", "a"), ("b c", "b c"), ("/ü", "/ü")],
    "tls_max_connection_age": [("1", 1.0), ("60", 60.0), ("31557600", 31557600.0)],
    "tokens": [("a", "a"), ("b c", "b c"), ("/ü", "/ü")],
    "insecure_tokens": [("true", True), ("1", True), ("yes", True)],
    "keepalive": [("0", 0.0), ("0.5", 0.5), ("20", 20.0)],
    "keepalive_timeout": [("0.1", 0.1), ("86400", 86400.0), ("7", 7.0)],
    "drain_timeout": [("0", 0.0), ("1.5", 1.5), ("60", 60.0)],
    **{
        f"limit_{name}": [("20", 20), ("300", 300), ("65536", 65_536)]
        for name in (
            "message_bytes",
            "call_bytes",
            "stream_bytes",
            "queued_bytes",
            "connections",
            "streams",
            "streams_per_connection",
        )
    },
    "limit_unread_timeout_s": [("0.5", 0.5), ("60", 60.0), ("31557600", 31_557_600.0)],
    "threads": [("1", 1), ("8", 8), ("1024", 1024)],
    "log_format": [("json", "json"), ("text", "text"), ("json", "json")],
    "checkpoint_dir": [("/a", "/a"), ("b c", "b c"), ("ü", "ü")],
    "checkpoint_name": [("a", "a"), ("b-0", "b-0"), ("c", "c")],
    "load_checkpoint": [("/a/1", "/a/1"), ("b c", "b c"), ("ü", "ü")],
    "checkpoint_interval": [("0.1", 0.1), ("600", 600.0), ("1e3", 1000.0)],
    "checkpoint_on_stop": [("true", True), ("1", True), ("yes", True)],
    "keep_checkpoints": [("2", 2), ("3", 3), ("4", 4)],
    "restore_settings": [("true", True), ("True", True), ("YES", True)],
    "shard_index": [("0", 0), ("3", 3), ("4095", 4095)],
    "num_shards": [("1", 1), ("8", 8), ("4096", 4096)],
    "group": [("a", "a"), ("b c", "b c"), ("ü", "ü")],
    "group_address": [
        ("shards:///a:1", "shards:///a:1"),
        ("shards:///a:1,b:2", "shards:///a:1,b:2"),
        ("shards+grpcs:///c:1", "shards+grpcs:///c:1"),
    ],
}
BAD = {
    "port": ("65536", "must be from 0 to 65535, got 65536"),
    "host": ("", "must not be empty"),
    "unix_path": ("a/", "must be the path of a Unix socket: "),
    "max_bytes": ("lots", 'must be a number of bytes, a size such as "12GiB" or a share such as '),
    "store": ("", "must not be empty"),
    "store_max_bytes": ("80%", 'must be a number of bytes or a size such as "12GiB", got "80%"'),
    "store_journal": ("2", "must be true or false, got '2'"),
    "store_sync_interval": ("0", "must be from 0.1 to 60, got 0"),
    "store_restore_settings": ("2", "must be true or false, got '2'"),
    "http_port": ("-1", "must be from 0 to 65535, got -1"),
    "http_host": ("", "must not be empty"),
    "http_tls": ("2", "must be true or false, got '2'"),
    "tls_cert": ("", "must not be empty"),
    "tls_key": ("", "must not be empty"),
    "tls_client_ca": ("", "must not be empty"),
    "tls_max_connection_age": ("0.5", "must be from 1 to 31557600, got 0.5"),
    "tokens": ("", "must not be empty"),
    "insecure_tokens": ("maybe", "must be true or false, got 'maybe'"),
    "keepalive": ("0.05", "must be from 0.1 to 86400, got 0.05"),
    "keepalive_timeout": ("nan", "must be from 0.1 to 86400, got nan"),
    "drain_timeout": ("-1", "must be from 0 to 86400, got -1"),
    "limit_message_bytes": ("4294967296", "must be at least 1 and at most 4,294,967,295, got 4,2"),
    "limit_call_bytes": ("0", "must be at least 1, got 0"),
    "limit_stream_bytes": ("-1", "must be at least 1, got -1"),
    "limit_queued_bytes": ("0", "must be at least 1, got 0"),
    "limit_connections": ("0", "must be at least 1, got 0"),
    "limit_streams": ("15", "must be at least 16, got 15"),
    "limit_streams_per_connection": ("2", "must be at least 16 and at most 4,294,967,295, got 2"),
    "limit_unread_timeout_s": ("nan", "must be above 0 and at most 31557600, got nan"),
    "threads": ("0", "must be from 1 to 1024, got 0"),
    "log_format": ("xml", "must be text or json, got 'xml'"),
    "checkpoint_dir": ("", "must not be empty"),
    "checkpoint_name": ("a/b", "must have 1 to 64 char"),
    "load_checkpoint": ("", "must not be empty"),
    "checkpoint_interval": ("1e10", "must be at most 3155760000, got 10000000000"),
    "checkpoint_on_stop": ("maybe", "must be true or false, got 'maybe'"),
    "keep_checkpoints": ("0", "must be at least 1, got 0"),
    "restore_settings": ("2", "must be true or false, got '2'"),
    "shard_index": ("-1", "must be from 0 to 4095, got -1"),
    "num_shards": ("4097", "must be from 1 to 4096, got 4097"),
    "group": ("a" * 65, "must have at most 64 printable characters, got 'aaa"),
    "group_address": ("a:1", "must be that of a group, for example shards:///a:8000,b:8000, got "),
}
NUMBERS = [option for option in OPTIONS if option.kind in (int, float)]


# Options that need others.
NEEDED = {
    "checkpoint_dir": "/d",
    "http_port": "0",
    "max_bytes": "1GiB",
    "num_shards": "4096",
    "shard_index": "0",
    "store": "/d/store",
    "tls_cert": "/d/tls.crt",
    "tls_key": "/d/tls.key",
    "tokens": "/d/tokens",
}


def needed_by(option):
    """The other options that an option needs, with those that they need, and their texts."""
    found, wanted = {}, [*option.needs]
    while wanted:
        name = wanted.pop()
        if name not in found and name != option.name:
            found[name] = NEEDED[name]
            wanted += option_named(name).needs
    return found


def in_config(option, value):
    """The text of a config that sets an option."""
    *parents, _ = option.field.split(".")
    line = option.line(value)
    for parent in reversed(parents):
        line = f"{parent} {{ {line} }}"
    return line


def settings(text=CONFIG, flags=None, variables=None):
    return read_settings(Given(ConfigSource("--config", text=text), flags or {}, variables or {}))


def by_name(option):
    return option.name


def test_every_option_has_samples():
    names = [option.name for option in OPTIONS]
    assert list(SAMPLES) == names
    assert list(BAD) == names


def test_every_field_of_the_config_belongs_to_one_option():
    def fields(descriptor, prefix=""):
        for field in descriptor.fields:
            if field.message_type is None:
                yield f"{prefix}{field.name}"
            elif field.name != "tables":
                yield from fields(field.message_type, f"{prefix}{field.name}.")

    expected = sorted(option.field for option in OPTIONS)
    limits = [f"server.limits.{field.name}" for field in dataclasses.fields(reverb.Limits)]
    assert [field for field in expected if ".limits." in field] == sorted(limits)
    assert sorted(fields(protos.ReverbServerConfig.DESCRIPTOR)) == expected


@pytest.mark.parametrize("option", OPTIONS, ids=by_name)
def test_flags_win_over_variables_and_those_over_the_config(option):
    (a, of_flag), (b, of_variable), (_, of_config) = SAMPLES[option.name]
    others = needed_by(option)
    text = f"{in_config(option, of_config)}\n{CONFIG}"
    cases = [
        (settings(text, others), of_config, "--config, line 1"),
        (
            settings(text, others, {option.name: b}),
            of_variable,
            f"environment REVERB_SERVER_{option.name.upper()}",
        ),
        (
            settings(text, others | {option.name: a}, {option.name: b}),
            of_flag,
            f"flag {option.flag}",
        ),
    ]
    assert (settings()[option.name], settings().options[option.name].origin) == (
        option.default,
        "default",
    )
    for found, value, origin in cases:
        assert found.problems == []
        assert found[option.name] == value
        assert type(found[option.name]) is type(value)
        assert found.options[option.name].origin == origin


@pytest.mark.parametrize("option", OPTIONS, ids=by_name)
def test_a_bad_value_is_named_wherever_it_comes_from(option):
    text, complaint = BAD[option.name]
    for found, place in (
        (settings(flags={option.name: text}), f"argument {option.flag}: "),
        (settings(variables={option.name: text}), f"{option.variable}: "),
    ):
        (problem,) = found.problems
        assert problem.startswith(f"{place}{complaint}")
    if option.kind is not bool:
        found = settings(f"{CONFIG}{in_config(option, option.kind(text))}")
        line = CONFIG.count("\n") + 1
        assert found.problems[0].startswith(f"--config, line {line}: {option.field} {complaint}")


@pytest.mark.parametrize("option", NUMBERS, ids=by_name)
def test_what_is_no_number_is_named(option):
    (problem,) = settings(flags={option.name: "x"}).problems
    kind = "whole number" if option.kind is int else "number"
    assert problem == f"argument {option.flag}: must be a {kind}, got 'x'"


def test_a_limit_reaches_the_server(ends, path):
    """A server that starts with a limit has it; a bad one is found by `--check`."""
    options = (f"--config-file={path}", "--host=127.0.0.1")
    with Program(COMMAND, *options, "--limit-call-bytes=10000") as program:
        client = client_of(program.line())
        with pytest.raises(reverb.errors.ResourceExhaustedError, match=r"Limits\.call_bytes"):
            client.mutate_priorities("t", {key: 1.0 for key in range(10_000)})
    code, _, errors = ends("--check", *options, "--limit-streams=3")
    expected = "ERROR server: argument --limit-streams: must be at least 16, got 3."
    assert (code, messages(errors)) == (2, [expected])
    assert "unrecognized arguments: --limit-stream=3" in ends(*options, "--limit-stream=3")[2]


def test_no_flag_is_too_large_for_its_field():
    (problem,) = settings(flags={"keep_checkpoints": "2147483648", "checkpoint_dir": "a"}).problems
    assert problem == "argument --keep-checkpoints: must be at most 2147483647, got 2147483648"


def test_all_problems_of_all_sources_come_at_once():
    found = settings(
        CONFIG.replace("20", "0") + "server { keepalive_s: 0.01 }",
        {"port": "x", "checkpoint_on_stop": "true"},
        {"http_port": "70000", "keepalive": "y"},
    )
    assert found.problems == [
        "argument --port: must be a whole number, got 'x'",
        "REVERB_SERVER_HTTP_PORT: must be from 0 to 65535, got 70000",
        "REVERB_SERVER_KEEPALIVE: must be a number, got 'y'",
        "--config, line 6: tables[0].max_size must be from 1 to 2147483647, got 0",
        "--config, line 9: server.keepalive_s must be from 0.1 to 86400, got 0.01",
        "flag --checkpoint-on-stop needs --checkpoint-dir",
    ]


def test_what_needs_a_directory_says_so_where_it_stands():
    found = settings(CONFIG + "server { checkpoint {\n keep: 2 } }", {}, {"checkpoint_name": "a"})
    assert found.problems == [
        "environment REVERB_SERVER_CHECKPOINT_NAME needs --checkpoint-dir",
        "--config, line 10: server.checkpoint.keep needs server.checkpoint.dir",
    ]
    assert settings(CONFIG, {}, {"checkpoint_name": "a", "checkpoint_dir": "/d"}).problems == []


def test_every_option_that_is_needed_is_named():
    found = settings(CONFIG + "server { tls { cert: 'c' } }", {"http_tls": "true"})
    assert found.problems == [
        "flag --http-tls needs --http-port",
        "--config, line 9: server.tls.cert needs server.tls.key",
    ]
    found = settings(CONFIG, {"tls_key": "k"}, {"insecure_tokens": "1", "tls_client_ca": "a"})
    assert found.problems == [
        "flag --tls-key needs --tls-cert",
        "environment REVERB_SERVER_TLS_CLIENT_CA needs --tls-cert",
        "environment REVERB_SERVER_INSECURE_TOKENS needs --tokens",
    ]


def test_an_unreadable_config_is_the_only_problem_reported():
    found = settings("server { checkpoint { dir: '/d' keep: 2 } ", {"checkpoint_name": "a"})
    (problem,) = found.problems
    assert problem.startswith("--config, line 1: ")


def test_unknown_variables_are_told_and_empty_ones_are_not_set():
    found = read_environment(
        {
            "REVERB_SERVER_PORTS": "1",
            "REVERB_SERVER_HTTP_PORT": "9000",
            "REVERB_SERVER_HOST": "",
            "REVERB_SERVER_CONFIG": "",
            "REVERB_SERVER_CONFIG_FILE": "f",
            "REVERB_LOG": "info",
            "OTHER": "x",
        }
    )
    assert found.texts == {"http_port": "9000"}
    assert (found.config, found.config_file) == (None, "f")
    assert found.notes == [
        "REVERB_SERVER_PORTS has no effect: there is no option of this name",
    ]


def test_variables_of_a_kubernetes_service_are_ignored():
    """A service `reverb-server` sets most of these in every container, `reverb-server-http` one."""
    address = "tcp://10.0.0.11:8000"
    found = read_environment(
        {
            "REVERB_SERVER_SERVICE_HOST": "10.0.0.11",
            "REVERB_SERVER_SERVICE_PORT": "8000",
            "REVERB_SERVER_SERVICE_PORT_GRPC": "8000",
            "REVERB_SERVER_PORT": address,
            "REVERB_SERVER_PORT_8000_TCP": address,
            "REVERB_SERVER_PORT_8000_TCP_PROTO": "tcp",
            "REVERB_SERVER_PORT_8000_TCP_PORT": "8000",
            "REVERB_SERVER_PORT_8000_TCP_ADDR": "10.0.0.11",
            "REVERB_SERVER_HTTP_PORT": address,
            "REVERB_SERVER_HTTP_SERVICE_HOST": "10.0.0.11",
        }
    )
    assert found.texts == {}
    assert found.notes == [
        f"{name} has no effect: '{address}' is the address of a service, which Kubernetes sets"
        for name in ("REVERB_SERVER_HTTP_PORT", "REVERB_SERVER_PORT")
    ]


class Made(str):
    """Stands for an object that the start makes; it takes attributes."""


class Started:
    """The settings that a command line would start with."""

    def __init__(self, monkeypatch):
        def note(name):
            return lambda *values, **named: self.calls.append((name, values, named)) or Made(name)

        self.calls = []
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(server_main, "Server", note("Server"))
        monkeypatch.setattr(server_main.server_log, "configure", note("configure"))
        monkeypatch.setattr(server_main, "DefaultCheckpointer", note("DefaultCheckpointer"))
        monkeypatch.setattr(server_main.server_from_proto, "tables_from_proto", lambda it: ())

        def run(start, *values, **named):
            start()
            named.pop("reload")
            return note("run_until_signalled")(*values, **named)

        monkeypatch.setattr(server_main, "run_until_signalled", run)

    def by(self, *arguments):
        self.calls.clear()
        self._monkeypatch.setattr("sys.argv", ["reverb_server", f"--config={CONFIG}", *arguments])
        with pytest.raises(SystemExit):
            server_main.app_run_main()
        return list(self.calls)


@pytest.mark.parametrize("option", OPTIONS, ids=by_name)
def test_every_option_has_an_effect(monkeypatch, option):
    started = Started(monkeypatch)
    others = [f"{option_named(name).flag}={it}" for name, it in needed_by(option).items()]
    others += ["--max-bytes=1GiB"] if option.name == "store_journal" else []
    # An option and one that needs it come together: neither is started without the other.
    is_one_of_two = any(option.name in option_named(name).needs for name in option.needs)
    found = [] if is_one_of_two else [started.by(*others)]
    texts = [text for text, _ in SAMPLES[option.name]]
    for text in texts[:1] if option.kind is bool else set(texts):
        value = [] if option.kind is bool else [text]
        flag = f"--no-{option.flag[2:]}" if option.default is True else option.flag
        found.append(started.by(*others, flag, *value))
    assert all(calls and found.count(calls) == 1 for calls in found)


def test_a_flag_can_turn_off_what_the_config_turns_on(monkeypatch):
    monkeypatch.setenv("REVERB_SERVER_CHECKPOINT_ON_STOP", "true")
    monkeypatch.setenv("REVERB_SERVER_CHECKPOINT_DIR", "/d")
    started = Started(monkeypatch)
    on, off = started.by(), started.by("--no-checkpoint_on_stop")
    named = [{name: named for name, _, named in calls} for calls in (on, off)]
    assert [calls["Server"]["checkpoint_on_stop"] for calls in named] == [True, False]


def shown_default(option: Option) -> str:
    if option.default is None:
        return "none"
    if option.kind is bool:
        return "on" if option.default else "off"
    return str(option.default).removesuffix(".0")


def test_the_documentation_has_a_table_of_all_options():
    rows = [
        f"| `{option.flag}` | `{option.variable}` | `{option.field}` | {shown_default(option)} "
        f"| {option.help} |"
        for option in OPTIONS
    ]
    table = "\n".join(rows)
    assert table in PAGE.read_text(encoding="utf-8"), f"{PAGE} must have these lines:\n{table}"


@pytest.mark.parametrize("option", OPTIONS, ids=by_name)
def test_the_help_tells_of_every_option(ends, option):
    code, out, _ = ends("--help")
    assert code == 0
    shown = " ".join(out.split())
    assert f" {option.flag}" in shown
    assert option.help in shown


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        ([], {"REVERB_SERVER_CONFIG": "x:"}, "REVERB_SERVER_CONFIG, line 1: "),
        ([], {"REVERB_SERVER_CONFIG_FILE": "no"}, "cannot read REVERB_SERVER_CONFIG_FILE no: "),
        (["--config=x:"], {"REVERB_SERVER_CONFIG_FILE": "no"}, "--config, line 1: "),
        (["--config-file=no"], {"REVERB_SERVER_CONFIG": "x"}, "cannot read --config-file no: "),
        (
            [],
            {"REVERB_SERVER_CONFIG": "x", "REVERB_SERVER_CONFIG_FILE": "no"},
            "error: give only one of REVERB_SERVER_CONFIG and REVERB_SERVER_CONFIG_FILE",
        ),
        ([], {"REVERB_SERVER_CONFIG": ""}, "one of the arguments --config --config-file is requ"),
    ],
)
def test_the_config_too_comes_from_a_flag_or_a_variable(
    monkeypatch, ends, arguments, variables, expected
):
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    code, _, errors = ends(*arguments)
    assert code == 2
    assert expected in errors


def test_a_server_is_started_by_its_environment_alone(tmp_path):
    variables = {
        "REVERB_SERVER_CONFIG": CONFIG,
        "REVERB_SERVER_HOST": "127.0.0.1",
        "REVERB_SERVER_CHECKPOINT_DIR": str(tmp_path / "saved"),
        "REVERB_SERVER_CHECKPOINT_ON_STOP": "1",
        "REVERB_SERVER_NOTHING": "1",
    }
    with Program(COMMAND, **variables) as program:
        port = re.search(r" on port (\d+) of 127.0.0.1: ", program.line())[1]
        client = reverb.Client(f"127.0.0.1:{port}", connect_timeout_s=DEADLINE_S)
        assert set(client.server_info()) == {"t"}
        program.stop()
        assert messages(program.errors)[0] == (
            "WARN server: REVERB_SERVER_NOTHING has no effect: there is no option of this name"
        )
    assert len(list(tmp_path.glob("saved/*/DONE"))) == 1
