# SPDX-License-Identifier: Apache-2.0
"""The log of a program that uses the package: on standard error, or in Python's `logging`."""

import textwrap

import pytest

import reverb
from reverb.errors import InvalidArgumentError
from support.log_lines import from_json, messages
from support.programs import Program, run

# A server, and two ways to make it log: a warning of each peer that tries TLS, and, from `info` on,
# the forecast of a table.
PREPARE = """
import logging
import os
import socket
import sys
import threading
import time
import warnings

import numpy as np

import reverb
from reverb import testing
from reverb.core import native
from support.unread_pipe import put_unread
from support.waiting import wait_until

warnings.simplefilter("ignore", DeprecationWarning)  # Of forks; see tests/process/test_forks.py.
server = reverb.Server([reverb.Table.queue("first", 20), testing.table("second", max_size=20)])
client = reverb.Client(f"localhost:{server.port}")

def warn(port=None):
    with socket.create_connection(("127.0.0.1", port or server.port), timeout=20) as peer:
        peer.sendall(b"\\x16\\x03\\x01\\x02\\x00\\x01\\x00\\x01\\xfc\\x03\\x03" + bytes(500))
        while peer.recv(1000):
            pass

def forecast(table="second"):
    client.insert_batch([np.arange(20)], {table: np.ones(20)})

class Records(logging.Handler):
    def __init__(self, *names):
        super().__init__()
        self.all = []
        for name in names:
            logging.getLogger(name).addHandler(self)
            logging.getLogger(name).setLevel(1)
    def emit(self, record):
        record.thread_of_handler = threading.current_thread().name
        self.all.append(record)
"""


def prepared(source):
    return PREPARE + textwrap.dedent(source)


def test_a_program_hears_warnings_only_and_on_standard_error():
    with Program(prepared("forecast(); warn(); print(server.port)")) as program:
        program.line()
        assert program.ended() == 0
        assert messages(program.errors) == [
            "WARN rpc: it tries TLS; this port has none: use a client without TLS"
        ]


def test_without_warnings_it_is_silent():
    assert run(prepared("forecast(); client.reset('second'); server.stop()")) == []


def test_the_environment_is_heeded_by_programs_too():
    with Program(
        prepared("forecast(); print()"), REVERB_LOG="info", REVERB_LOG_FORMAT="json"
    ) as program:
        program.line()
        assert program.ended() == 0
        (line,) = from_json(program.errors)
        assert (line.level, line.place, line.fields) == ("INFO", "server", {"table": "second"})


def test_a_wrong_environment_is_an_error_of_the_first_server():
    source = """
        import reverb
        print("imported")
        server = reverb.Server([reverb.Table.queue("a", 1)])
        server.stop()
        reverb.Server([reverb.Table.queue("b", 1)]).stop()
    """
    with Program(source, REVERB_LOG="verbose") as program:
        assert program.line() == "imported"
        assert program.ended() == 0
        (line,) = messages(program.errors)
        assert line.startswith('WARN log: REVERB_LOG: "verbose" is no level')


def test_python_gets_records_with_fields():
    source = """
        records = Records("reverb")
        reverb.logging.to_python()
        before = time.time()
        warn()
        forecast()
        wait_until(lambda: len(records.all) == 2)
        warning, info = records.all
        print(warning.name, warning.levelname, warning.place, warning.getMessage())
        print(warning.peer.startswith("127.0.0.1:"), before <= warning.created <= time.time())
        print(info.name, info.levelname, info.place, info.table, info.getMessage()[:16])
        print(warning.thread_of_handler, logging.Formatter("%(table)s").format(info))
    """
    assert run(prepared(source), REVERB_LOG="info") == [
        "reverb WARNING rpc it tries TLS; this port has none: use a client without TLS",
        "True True",
        "reverb INFO server second 20 items will ta",
        "reverb-log second",
    ]


def test_the_level_of_the_logger_is_heeded():
    source = """
        records = Records("mine")
        logging.getLogger("mine").setLevel("WARNING")
        reverb.logging.to_python("mine")
        forecast()
        warn()
        reverb.logging.to_stderr()
        print([record.levelname for record in records.all])
    """
    assert run(prepared(source), REVERB_LOG="info") == ["['WARNING']"]


def test_a_second_call_replaces_and_it_can_be_undone():
    source = """
        records = {name: Records(name) for name in ("one", "two")}
        reverb.logging.to_python("one")
        forecast("first")
        reverb.logging.to_python("two")
        forecast("second")
        reverb.logging.to_stderr()
        reverb.logging.to_stderr()
        print([[record.table for record in it.all] for it in records.values()])
        warn()
        print(sum(it.name == "reverb-log" for it in threading.enumerate()))
    """
    with Program(prepared(source), REVERB_LOG="info") as program:
        assert program.line() == "[['first'], ['second']]"
        assert program.line() == "0"
        assert program.ended() == 0
        assert messages(program.errors) == [
            "WARN rpc: it tries TLS; this port has none: use a client without TLS"
        ]


def test_what_was_logged_last_arrives_before_the_process_ends():
    source = """
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(place)s %(table)s", level=1)
        reverb.logging.to_python()
        forecast()
    """
    assert run(prepared(source), REVERB_LOG="info") == ["INFO server second"]


@pytest.mark.parametrize("obstacle", ["threading.Event().wait()", "raise ValueError"])
def test_a_handler_that_hangs_or_raises_blocks_no_exit(obstacle):
    source = f"""
        class Bad(logging.Filter):
            def filter(self, record):
                say("called")
                {obstacle}
        def say(line):  # `print` writes the line and its end apart: two threads may mix them
            sys.stdout.write(f"{{line}}\\n")
            sys.stdout.flush()
        logging.getLogger("reverb").addFilter(Bad())
        reverb.logging.to_python()
        warn()
        forecast()
        say(client.server_info()["second"].current_size)
    """
    with Program(prepared(source), REVERB_LOG="info") as program:
        lines = {program.line(), program.line()}
        assert lines == {"called", "20"}
        assert program.ended(timeout_s=15) == 0
        assert program.errors == ""


def test_a_forked_child_does_the_same_and_the_parent_goes_on():
    source = """
        records = Records("reverb")
        reverb.logging.to_python()
        warn()
        wait_until(lambda: len(records.all) == 1)
        pid = os.fork()
        if not pid:
            server = reverb.Server([reverb.Table.queue("of the child", 20)])
            client = reverb.Client(f"localhost:{server.port}")
            forecast("of the child")
            wait_until(lambda: len(records.all) == 2)
            print(records.all[1].table, flush=True)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        forecast()
        wait_until(lambda: len(records.all) == 2)
        print(records.all[1].table)
    """
    assert run(prepared(source), REVERB_LOG="info") == ["of the child", "0", "second"]


def test_forks_while_others_log_do_not_hang():
    source = """
        warn()  # What Python imports for this is not imported while there are forks.
        stop = threading.Event()
        def log():
            while not stop.is_set():
                for _ in range(20):
                    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
                        peer.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\nxxxxxxxxxxx")
        Records("reverb")
        reverb.logging.to_python()
        thread = threading.Thread(target=log)
        thread.start()
        for _ in range(30):
            pid = os.fork()
            if not pid:
                child = reverb.Server([reverb.Table.queue("t", 1)])
                warn(child.port)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            assert status == 0
        stop.set()
        thread.join()
        print("done", flush=True)
        os._exit(0)
    """
    with Program(prepared(source), REVERB_LOG="debug") as program:
        assert program.line() == "done"


@pytest.mark.parametrize("is_closed", [False, True], ids=["full", "closed"])
def test_an_output_without_reader_blocks_no_call_and_no_exit(is_closed):
    source = f"""
        put_unread(2, is_closed={is_closed})
        forecast()
        warn()
        client.insert([1], {{"second": 1.0}})
        print(client.server_info()["second"].current_size)
    """
    assert run(prepared(source), REVERB_LOG="info") == ["20"]


def test_a_forked_child_writes_its_lines_and_none_of_its_parent():
    source = """
        put_unread(2)
        native.print_log_line("error", "of the parent", [])
        pid = os.fork()
        if not pid:
            reader, writer = os.pipe()
            os.dup2(writer, 2)
            native.print_log_line("error", "of the child", [])
            native.wait_for_log()
            print(os.read(reader, 10_000).decode().split(": ")[1], end="", flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
    """
    assert run(prepared(source)) == ["of the child"]


def test_the_last_line_of_a_worker_is_written():
    """Workers of `multiprocessing` skip most of an interpreter's exit."""
    source = """
        import multiprocessing
        last = lambda: native.print_log_line("error", "last words", [])
        worker = multiprocessing.get_context("fork").Process(target=last)
        worker.start()
        worker.join()
    """
    with Program(prepared(source)) as program:
        assert program.ended() == 0
        assert messages(program.errors) == ["ERROR server: last words"]


HOSTILE = "x\n2026-11-23T00:00:00.000Z ERROR server: gone\x1b[2J"


def test_names_of_peers_are_safe_in_messages_and_whole_in_fields():
    source = f"""
        name = {HOSTILE!r}
        server = reverb.Server([reverb.Table.queue(name, 20)])
        client = reverb.Client(f"localhost:{{server.port}}")
        records = Records("reverb")
        reverb.logging.to_python()
        forecast(name)
        wait_until(lambda: records.all)
        print(records.all[0].table == name)
        structured = client.trajectory_writer(1)
        print("\\n" in records.all[0].getMessage())
    """
    assert run(prepared(source), REVERB_LOG="info") == ["True", "False"]


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_logger_is_named_by_text(name):
    with pytest.raises(InvalidArgumentError, match="logger must be the name of a logger"):
        reverb.logging.to_python(name)
