# SPDX-License-Identifier: Apache-2.0
"""The command `reverb_server`, in processes of its own: start, readiness, signals, exit codes."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

import reverb
from reverb import testing
from reverb.errors import UnavailableError
from reverb.server_executable.server_config import read_config
from support.log_lines import messages
from support.programs import Program
from support.waiting import DEADLINE_S, wait_until

# The example of the documentation, on a free port.
CONFIG = """
tables: {
  table_name: "my_table"
  sampler: { fifo: true }
  remover: { fifo: true }
  max_size: 200
  max_times_sampled: 5
  rate_limiter: {
    min_size_to_sample: 1
    samples_per_insert: 1
    min_diff: -1.7976931348623157e308
    max_diff: 1.7976931348623157e308
  }
}
"""
COMMAND = """
import sys
from reverb.server_executable import server_main
sys.argv[0] = "reverb_server"
server_main.app_run_main()
"""


@contextlib.contextmanager
def running(*arguments, source=COMMAND):
    """A server in a process of its own, and a client of it; the config may be left out."""
    if not any("config" in argument for argument in arguments):
        arguments = (f"--config={CONFIG}", *arguments)
    with Program(source, *arguments) as program:
        program.ready = program.line()
        program.wait_for_error(" ready on port ")
        port = int(re.search(r" is ready on port (\d+) of ", program.ready)[1])
        yield program, reverb.Client(f"127.0.0.1:{port}", connect_timeout_s=DEADLINE_S)


def refused(*arguments):
    """Exit code and standard error of a server that does not start."""
    with Program(COMMAND, *arguments) as program:
        return program.ended(), program.errors


def test_clients_use_the_tables_of_the_config_until_sigterm():
    with running() as (program, client):
        client.insert([1, 2], {"my_table": 1.0})
        (sample,) = next(client.sample("my_table"))
        assert [int(value) for value in sample.data] == [1, 2]
        table = client.server_info()["my_table"]
        assert (table.max_size, table.max_times_sampled, table.current_size) == (200, 5, 1)
        ours = testing.table(rate_limiter=reverb.rate_limiters.MinSize(1)).info.rate_limiter_info
        for field in ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff"):
            assert getattr(table.rate_limiter_info, field) == getattr(ours, field), field
        port = client.server_address.rpartition(":")[2]
        assert program.ready == (
            f"reverb_server is ready on port {port} of all addresses: tables my_table"
        )
        program.stop()
        assert messages(program.errors)[-2:] == [
            "INFO server: stopping after SIGTERM",
            "INFO server: stopped",
        ]
        with pytest.raises(UnavailableError):
            reverb.Client(client.server_address, connect_timeout_s=0.1).server_info()


def test_the_page_and_the_probes_are_where_it_says():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with running("--http-port", str(port)) as (program, _):
        for path in ("", "readyz", "metrics"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
                assert answer.status == 200
        program.stop()
        _, ready, *_ = messages(program.errors)
        assert ready.endswith(f"; the page, metrics and probes are at http://127.0.0.1:{port}/")


def test_ctrl_c_stops_it_and_the_exit_code_tells():
    with running("--host", "127.0.0.1") as (program, client):
        assert " of 127.0.0.1: tables my_table" in program.ready
        assert set(client.server_info()) == {"my_table"}
        program.signal(signal.SIGINT)
        assert program.ended() == 130
        assert messages(program.errors)[-2:] == [
            "INFO server: stopping after SIGINT",
            "INFO server: stopped",
        ]


def test_a_second_signal_ends_a_server_that_takes_its_time():
    source = """
    import threading
    from reverb.server import Server
    Server.stop = lambda self, drain_s: (print("stop", flush=True), threading.Event().wait())
    """
    with running(source=f"{source}\n    exec({COMMAND!r})") as (program, _):
        program.signal(signal.SIGTERM)
        assert program.line() == "stop"
        program.signal(signal.SIGINT)
        assert program.ended() == -signal.SIGINT


def test_a_background_job_that_ignores_ctrl_c_goes_on_doing_so():
    source = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    with running(source=source + COMMAND) as (program, client):
        program.signal(signal.SIGINT)
        client.insert([1], {"my_table": 1.0})
        program.stop()


def test_ctrl_c_while_it_starts_ends_it():
    source = """
    import time
    from reverb import server
    from reverb.server_executable import server_main
    def start(*_, **__):
        print("starting", flush=True)
        while True:  # A signal that comes just before a sleep does not end it.
            time.sleep(0.01)
    server_main.Server = start
    """
    with Program(f"{source}\n    exec({COMMAND!r})", f"--config={CONFIG}") as program:
        assert program.line() == "starting"
        program.signal(signal.SIGINT)
        assert program.ended() == 130
        (line,) = messages(program.errors)
        assert re.fullmatch(
            r"INFO server: reverb-replay \S+ starts with no max_bytes: tables my_table "
            r"\(max_size 200\)",
            line,
        )


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "full"])
def test_nobody_has_to_read_that_it_is_ready(is_closed):
    prepare = f"from support.unread_pipe import put_unread\nput_unread(1, is_closed={is_closed})"
    with Program(prepare + COMMAND, f"--config={CONFIG}") as program:
        ready = r"ready on port (\d+) .*" + is_closed * r"\(standard output is closed: .*\)"
        wait_until(lambda: re.search(ready, program.errors))
        port = re.search(ready, program.errors)[1]
        reverb.Client(f"127.0.0.1:{port}").insert([1], {"my_table": 1.0})
        program.stop()


def test_flags_win_over_a_config_file(tmp_path, start):
    taken = start().port
    path = tmp_path / "server.textproto"
    path.write_text(f"port: {taken}\n{CONFIG}\n{CONFIG.replace('my_table', 'other')}")
    with running(f"-config_file={path}", "-port", "0") as (_, client):
        assert set(client.server_info()) == {"my_table", "other"}
    code, errors = refused("--config-file", path)
    assert code == 1
    assert f"ERROR server: cannot start: The server cannot listen on port {taken}" in errors
    assert "Another process has it" in errors


def test_a_bad_config_is_refused_with_lines_and_fields(tmp_path):
    text = CONFIG.replace("200", "0").replace("samples_per_insert: 1", "samples_per_insert: 0")
    expected = (
        "line 6: tables[0].max_size must be from 1 to 2147483647, got 0",
        "line 10: tables[0].rate_limiter.samples_per_insert must be finite and greater than 0, "
        "got 0",
    )
    code, errors = refused("--config", text)
    assert code == 2
    assert messages(errors) == [f"ERROR server: --config, {line}" for line in expected]
    path = tmp_path / "server.textproto"
    path.write_text(text)
    code, errors = refused("--config-file", path)
    assert code == 2
    assert messages(errors) == [f"ERROR server: {path}, {line}" for line in expected]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--config", "", "--config-file", "x"], "not allowed with argument --config"),
        (["--config", "", "--max-bytes", "0"], "--max-bytes: must be at least 1 or None, got 0"),
        (["--config", "", "--max-bytes=200%"], "--max-bytes: must be above 0% and at most 100%"),
        (["--config", "", "--nothing"], "unrecognized arguments: --nothing"),
        (["--config", "", "--checkpoint-interval", "0"], "must be a finite number over 0, got 0"),
        (["--config", "", "--checkpoint_interval=inf"], "must be a finite number over 0, got inf"),
        (
            ["--config", "", "--checkpoint-interval=9"],
            "--checkpoint-interval needs --checkpoint-dir",
        ),
        (["--config", "", "--restore-settings"], "--restore-settings needs --checkpoint-dir"),
    ],
)
def test_a_bad_command_line_is_refused(ends, arguments, complaint):
    code, _, errors = ends(*arguments)
    assert code == 2
    assert complaint in errors


def test_the_help_has_exit_codes_and_a_config_that_works():
    command = [sys.executable, "-m", "reverb.server_executable.server_main", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {"0 ", "1 ", "2 ", "130 "} <= set(re.findall(r"^  (\d+ ) ", shown, re.MULTILINE))
    example = re.search(r"^  port: 8000\n(.*?)^  }\n", shown, re.MULTILINE | re.DOTALL)[0]
    assert read_config(example).config == read_config("port: 8000\n" + CONFIG).config


def test_programs_of_absl_start_it_by_its_main():
    source = """
    from absl import app
    from reverb.server_executable import server_main
    app.run(server_main.main)
    """
    with running(source=source) as (program, client):
        assert set(client.server_info()) == {"my_table"}
        program.stop()
