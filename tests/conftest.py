# SPDX-License-Identifier: Apache-2.0
"""Fixtures that tests of several features share: servers, and the two ways to reach one."""

import asyncio
import contextlib
import gc
import inspect
import pathlib
import re
import signal

import pytest

import reverb
from reverb import testing
from reverb.core import native
from support import forgetting_store, outcomes
from support.hosts import HOSTS
from support.waiting import DEADLINE_S, PATIENCE, Background, wait_until

ROOT = pathlib.Path(__file__).parents[1]


def pytest_addoption(parser):
    """Adds the options of the plugins."""
    outcomes.add_option(parser)
    forgetting_store.add_option(parser)


def pytest_configure(config):
    """Adds the plugins."""
    outcomes.configure(config)
    forgetting_store.configure(config)


# Environments of other libraries' suites have no Hypothesis, and no tests with it.
with contextlib.suppress(ModuleNotFoundError):
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "reverb",
        # A failed example is told at once: what explains it may take longer than the test may.
        phases=set(Phase) - {Phase.explain},
        # Each test has a timeout; one example may wait for a server, however busy the machine is.
        deadline=None,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.function_scoped_fixture,
        ],
    )
    settings.load_profile("reverb")

# Programs of tests inherit what a shell ignores for its jobs in the background.
for ignored, handler in {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
}.items():
    if signal.getsignal(ignored) == signal.SIG_IGN:
        signal.signal(ignored, handler)


# The longest files begin first where several processes share the tests, so that all end together.
LONGEST = (
    "with_tensorflow/test_faults.py",
    "with_tensorflow/test_comparison.py",
    "process/test_memory.py",
    "operations/test_group_states.py",
    "operations/test_deploy.py",
    "hostile/test_worst_messages.py",
    "operations/test_slurm.py",
    "operations/test_reported_waits.py",
    "command/test_terminals.py",
    "reading/test_batches_ahead.py",
    "operations/test_top.py",
    "operations/test_diagnosis.py",
    "operations/test_frozen_server.py",
    "operations/test_command_table.py",
    "process/test_exit.py",
    "operations/test_kubelet.py",
    "connections/test_faults.py",
    "operations/test_top_once.py",
    "operations/test_top_terminal.py",
    "reading/test_round_trip.py",
    "package/test_flaky_tests.py",
    "checkpoints/test_moment.py",
    "server_command/test_service_manager.py",
    "server_command/test_start_and_stop.py",
    "observers/test_observer_faults.py",
    "hostile/test_streams.py",
    "security/test_rotation.py",
    "reading/test_windows.py",
    "reading/test_scan.py",
    "reading/test_batches_of_the_core.py",
    "with_gymnasium/test_equality.py",
)


def pytest_collection_modifyitems(config, items):
    """Orders the files for several processes, and multiplies the time-outs by the patience."""
    if hasattr(config, "workerinput"):
        places = {ROOT / "tests" / path: place for place, path in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path, len(LONGEST)))
    if PATIENCE != 1:
        for item in items:
            own = item.get_closest_marker("timeout")
            seconds = own.args[0] if own else float(config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(seconds * PATIENCE), append=False)


def pytest_collection_finish():
    """Keeps the garbage collector from walking through all modules and tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Runs a test that is a coroutine in an event loop, in which its clients close."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def run():
        async with contextlib.AsyncExitStack() as stack:
            for value in arguments.values():
                if isinstance(value, reverb.aio.Client):
                    await stack.enter_async_context(value)
            await test(**arguments)

    asyncio.run(run())
    return True


@pytest.fixture(scope="module", params=HOSTS)
def path(request):
    """How clients reach the server: `in_process` or `remote`."""
    return request.param


@pytest.fixture
def start():
    """Starts servers that stop with the test: `server = start(table, ..., port=...)`."""
    with contextlib.ExitStack() as stack:

        def start(*tables, **options):
            server = reverb.Server(tables or [testing.table()], **options)
            return stack.enter_context(server)

        yield start


@pytest.fixture(scope="module")
def connect(path):
    """Makes a client that reaches a server by `path`: `client = connect(server)`."""

    def connect(server, **options):
        options = {"connect_timeout_s": DEADLINE_S} | options
        return reverb.Client(f"{HOSTS[path]}:{server.port}", **options)

    return connect


@pytest.fixture(scope="module")
def reach(path):
    """The same server by `path`: `with testing.server() as made: client = reach(made)`."""

    def reach(client):
        address = client.server_address.replace("127.0.0.1", HOSTS[path])
        return reverb.Client(address, connect_timeout_s=DEADLINE_S)

    return reach


@pytest.fixture
def serve(start, connect):
    """Starts a server and reaches it by `path`: `client = serve(table, ...)`."""
    return lambda *tables, **options: connect(start(*tables), **options)


@pytest.fixture
def reported_waits(caplog):
    """Calls that wait are told after 0.1 s, in `caplog`."""
    caplog.set_level("WARNING")
    reverb.logging.to_python()
    reverb.logging.report_waits(0.1, 0.1)
    try:
        yield
    finally:
        reverb.logging.report_waits()
        reverb.logging.to_stderr()


@pytest.fixture
def left_writers(caplog):
    """Returns a function for the lines of the log about writers that were left."""
    gc.collect()  # Writers of earlier tests, which tracebacks may hold, log their end now.
    caplog.set_level("WARNING")
    reverb.logging.to_python()
    yield lambda: [text for text in caplog.messages if "a writer was left" in text]
    reverb.logging.to_stderr()


@pytest.fixture
def until():
    """Blocks until a condition holds: `until(lambda: table.info.current_size == 3)`."""
    return wait_until


@pytest.fixture
def error_says():
    """Asserts the class and the whole text of an error; `{key}` stands for the key of an item."""

    def error_says(call, kind, text):
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind
        pattern = re.escape(text).replace(re.escape("{key}"), r"\d+")
        assert re.fullmatch(pattern, str(caught.value)), f"{caught.value}\nis not\n{text}"

    return error_says


@pytest.fixture
def background():
    """Runs a call that blocks: `call = background(client.flush); ...; call.result()`."""
    return Background


@pytest.fixture
def root(tmp_path):
    """A directory for checkpoints; it does not exist yet."""
    return tmp_path / "checkpoints"


# The word after `python` names the library that a block needs besides NumPy.
_PYTHON_BLOCK = r"^```python{library}\n(.*?)^```$"


@pytest.fixture
def run_snippets(monkeypatch, tmp_path):
    """Runs the snippets of the README and of docs/ that need a library, page by page.

    `pages = run_snippets(" tensorflow")` returns the pages that have any.
    """
    monkeypatch.chdir(tmp_path)

    def run_snippets(library, root=ROOT):
        paths = [root / "README.md", *sorted(root.glob("docs/**/*.md"))]
        return [path.relative_to(root).as_posix() for path in paths if _run_page(path, library) > 0]

    return run_snippets


def _run_page(path, library):
    """Runs the blocks of a page one after another; returns how many there are."""
    text = path.read_text(encoding="utf-8")
    block = re.compile(_PYTHON_BLOCK.format(library=library), re.MULTILINE | re.DOTALL)
    blocks = list(block.finditer(text))
    names = {"__name__": "snippet"}
    try:
        for match in blocks:
            # Empty lines in front, so that an error names the line of the file.
            source = "\n" * text.count("\n", 0, match.start(1)) + match.group(1)
            exec(compile(source, str(path), "exec"), names)
    finally:
        if "server" in names:
            names["server"].stop()
    return len(blocks)


@pytest.fixture
def capfd(capfd, monkeypatch):
    """With all lines that were logged, which a thread writes, and none of earlier tests.

    Their warnings would be told with their number by and by.
    """

    def read(readouterr=capfd.readouterr):
        native.wait_for_log()
        return readouterr()

    monkeypatch.setattr(capfd, "readouterr", read)
    reverb.logging.to_stderr()
    capfd.readouterr()
    return capfd
