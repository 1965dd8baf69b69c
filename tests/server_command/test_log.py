# SPDX-License-Identifier: Apache-2.0
"""The log of `reverb_server`: few lines, all in one format."""

import collections
import re
import signal
import socket

import numpy as np
import pytest

import reverb
from support.log_lines import from_json, from_text, messages
from support.programs import Program
from support.reverb_server import COMMAND, CONFIG, running
from support.waiting import DEADLINE_S, wait_until

READERS = {"text": from_text, "json": from_json}
# How a client begins that speaks TLS.
TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)


def connected(client):
    """A connection to the server of a client."""
    host, _, port = client.server_address.partition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def say_hello_by_tls(client):
    with connected(client) as peer:
        peer.sendall(TLS_HELLO)
        while peer.recv(1000):
            pass
        return peer.getsockname()[1]


@pytest.mark.parametrize("log_format", READERS)
def test_a_healthy_run_is_five_lines(log_format):
    with running("--log-format", log_format) as (program, first):
        for _ in range(20):
            client = reverb.Client(first.server_address, connect_timeout_s=DEADLINE_S)
            client.insert_batch([np.arange(50)], {"t": np.ones(50)})
            for _ in client.sample("t", 10):
                pass
            client.reset("t")
            del client
        program.stop()
        lines = READERS[log_format](program.errors)
    start, ready, forecast, stopping, stopped = lines
    assert {(line.level, line.place) for line in lines} == {("INFO", "server")}
    version = re.escape(reverb.__version__)
    assert re.fullmatch(
        rf"reverb-replay {version} starts with no max_bytes: tables t \(max_size 20\)",
        start.message,
    )
    port = first.server_address.partition(":")[2]
    assert ready.message == f"ready on port {port} of 127.0.0.1, without TLS"
    assert forecast.fields == {"table": "t"}
    assert forecast.message.startswith("20 items will take about ")
    assert stopping.message == "stopping after SIGTERM"
    assert stopped.message == "stopped"
    assert set(stopped.fields) == {"inserted", "sampled", "seconds"}
    assert (int(stopped.fields["inserted"]), int(stopped.fields["sampled"])) == (1000, 200)
    times = [line.time for line in lines]
    assert times == sorted(times)


def test_the_environment_chooses_the_format_and_the_option_wins():
    with running(REVERB_LOG_FORMAT="JSON") as (program, _):
        program.stop()
        assert len(from_json(program.errors)) == 4
    with running("--log-format=text", REVERB_LOG_FORMAT="json") as (program, _):
        program.stop()
        assert len(from_text(program.errors)) == 4


HOSTILE = 't\n2026-11-23T00:00:00.000Z ERROR server: gone\r\x1b[2J\x85\u2028\u202e"\\ x=y'
ESCAPES = "".join(f"\\{byte:03o}" for byte in HOSTILE.encode())


@pytest.mark.parametrize("log_format", READERS)
def test_a_name_cannot_forge_lines(log_format):
    config = CONFIG.replace('"t"', f'"{ESCAPES}"')
    with running("--log-format", log_format, config=config) as (program, client):
        client.insert_batch([np.arange(50)], {HOSTILE: np.ones(50)})
        program.stop()
        # `splitlines` knows more line ends than a terminal does.
        assert len(program.errors.splitlines()) == 5
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", program.errors)
        start, _, forecast, _, _ = READERS[log_format](program.errors)
    if log_format == "json":
        assert forecast.fields["table"] == HOSTILE
        assert HOSTILE in start.message
    else:
        assert forecast.fields["table"].startswith('"t\\n2026-11-23T00:00:00.000Z ERROR server: ')
        assert forecast.fields["table"].endswith(
            '\\r\\u{1b}[2J\\u{85}\\u{2028}\\u{202e}\\"\\\\ x=y"'
        )


def test_other_writers_of_the_process_use_the_format_too():
    source = """
import logging, sys, threading, warnings
from reverb.server import Server

def stop(self, drain_s, stop=Server.stop):
    stop(self)
    logging.getLogger("mine").warning("two\\nlines")
    try:
        1 / 0
    except ZeroDivisionError:
        logging.getLogger("mine").exception("wrong")
    warnings.warn("take care")
    thread = threading.Thread(target=lambda: [].pop())
    thread.start()
    thread.join()
    raise KeyError("lost")

Server.stop = stop
"""
    with running("--log-format=json", source=source + COMMAND) as (program, _):
        program.signal(signal.SIGTERM)
        assert program.ended() == 1
        lines = from_json(program.errors)
    warning, wrong, care, thread, lost = lines[-5:]
    assert (warning.level, warning.message, warning.fields) == (
        "WARN",
        "two\nlines",
        {"logger": "mine"},
    )
    assert wrong.level == "ERROR"
    assert wrong.message.startswith("wrong\nTraceback ")
    assert "take care" in care.message
    assert (thread.level, thread.fields) == ("ERROR", {"error": "IndexError"})
    assert lost.message.endswith("KeyError: 'lost'")


@pytest.mark.parametrize(
    "arguments", [["--log-format", "json"], ["--log_format=json"], ["-log-format=json"]]
)
def test_a_wrong_command_line_is_a_line_too(arguments):
    with Program(COMMAND, *arguments, "--port", "70000", f"--config={CONFIG}") as program:
        assert program.ended() == 2
        (line,) = from_json(program.errors)
        assert line.level == "ERROR"
        assert line.message == "argument --port: must be from 0 to 65535, got 70000"


def test_what_the_environment_says_in_vain_is_told_once():
    with running(REVERB_LOG="info,loud", REVERB_LOG_FORMAT="xml") as (program, _):
        program.stop()
        first, second, *others = messages(program.errors)
    assert first == (
        'WARN log: REVERB_LOG: "loud" is no level (off, error, warn, info, debug or trace) and no '
        "target=level such as server=debug; the default is used"
    )
    assert second == (
        'WARN log: REVERB_LOG_FORMAT: "xml" is no format, which is text or json; '
        "the default is used"
    )
    assert len(others) == 4


def test_levels_are_those_of_the_environment():
    with running(REVERB_LOG="error") as (program, client):
        say_hello_by_tls(client)
        program.stop()
        assert program.errors == ""
    with running(REVERB_LOG="warn,rpc=debug,h2=debug") as (program, client):
        with connected(client) as peer:
            peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100)
            while peer.recv(1000):
                pass
            address = f"127.0.0.1:{peer.getsockname()[1]}"
        program.wait_for_error("the connection ended")
        program.stop()
        lines = from_text(program.errors)
    assert {line.place for line in lines} == {"rpc", "h2"}
    # Lines of the library below have the peer from the connection that they are about.
    assert {line.fields.get("peer") for line in lines} == {address}


def test_repeated_warnings_are_counted():
    with running() as (program, client):
        peers = [say_hello_by_tls(client) for _ in range(5)]
        program.stop()
        lines = [line for line in from_text(program.errors) if line.level == "WARN"]
    text = "it tries TLS; this port has none: use a client without TLS"
    assert [line.message for line in lines] == [text, text]
    first, rest = lines
    assert first.fields == {"peer": f"127.0.0.1:{peers[0]}"}
    assert rest.fields == {"peer": f"127.0.0.1:{peers[-1]}", "repeats": "4"}


def test_frequent_checkpoints_are_told_once_an_hour(tmp_path):
    options = [f"--checkpoint-dir={tmp_path}", "--checkpoint-interval=0.05"]
    with running(*options) as (program, client):
        client.insert([7], {"t": 1.0})
        saved = client.checkpoint_status().num_saved
        wait_until(lambda: client.checkpoint_status().num_saved >= max(5, saved + 2))
        program.stop()
        lines = from_text(program.errors)
    saves = [line for line in lines if line.message.startswith(f"checkpoint {tmp_path}")]
    assert len(saves) == 1
    assert lines[-1].fields["checkpoint"].strip('"').startswith(str(tmp_path))
    with running(*options, REVERB_LOG="debug") as (program, client):
        wait_until(lambda: client.checkpoint_status().num_saved >= 5)
        program.stop()
        lines = from_text(program.errors)
    (loaded,) = [line for line in lines if "items were loaded" in line.message]
    assert (loaded.level, " 1 items were loaded in " in loaded.message) == ("INFO", True)
    saves = [line.level for line in lines if " bytes, in " in line.message]
    assert saves[0] == "INFO"
    assert set(saves[1:]) == {"DEBUG"}


@pytest.mark.parametrize("is_closed", [False, True], ids=["full", "closed"])
def test_calls_and_the_last_save_need_no_reader_of_it(is_closed, tmp_path):
    prepare = f"from support.unread_pipe import put_unread\nput_unread(2, is_closed={is_closed})"
    options = [f"--checkpoint-dir={tmp_path}", "--checkpoint-on-stop"]
    with running(*options, source=prepare + COMMAND) as (program, client):
        say_hello_by_tls(client)
        client.insert([7], {"t": 1.0})
        assert client.sample_batch("t", 1).info.table_size == [1]
        program.stop()
    assert len(list(tmp_path.glob("*/DONE"))) == 1


def test_lines_of_several_threads_stay_whole():
    """Each is written in one piece: its end, too."""
    source = """
import threading
from reverb.server_executable.server_log import configure, print_notice

configure("text")
start = threading.Barrier(4)

def tell(number):
    start.wait()
    for _ in range(200):
        print_notice(f"line of thread {number}")

threads = [threading.Thread(target=tell, args=[number]) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    with Program(source) as program:
        assert program.ended() == 0
        counts = collections.Counter(messages(program.errors))
    assert counts == {f"INFO server: line of thread {number}": 200 for number in range(4)}
