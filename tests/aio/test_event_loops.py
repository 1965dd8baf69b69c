# SPDX-License-Identifier: Apache-2.0
"""Event loops: how many, which, how they end, and what they are left with."""

import asyncio
import gc
import pathlib
import threading
import warnings
import weakref

import numpy as np
import pytest

import reverb
from reverb import aio, errors
from support.aio_tables import num_waiting, tables, until
from support.hosts import HOSTS
from support.programs import Program, open_files, run, threads
from support.waiting import wait_until

on_linux = pytest.mark.skipif(not pathlib.Path("/proc/self").exists(), reason="needs /proc")


@pytest.fixture
def server(start):
    return start(*tables())


@pytest.fixture
def watcher(server):
    return reverb.Client(f"localhost:{server.port}")


@on_linux
async def test_a_thousand_calls_that_wait_cost_no_thread(server, path, watcher):
    async with aio.Client(f"{HOSTS[path]}:{server.port}") as client:
        await client.server_info()
        tasks = [asyncio.create_task(client.sample_batch("queue", 1))]
        await until(lambda: num_waiting(watcher)[0] == 1)
        before = threads(), open_files()
        tasks += [asyncio.create_task(client.sample_batch("queue", 1)) for _ in range(999)]
        await until(lambda: num_waiting(watcher)[0] == 1000)
        # Those of earlier tests may end meanwhile.
        assert threads() <= before[0]
        assert open_files() <= before[1]
        await client.insert_batch([np.arange(1000)], {"queue": 1.0})
        batches = await asyncio.gather(*tasks)
        assert sorted(int(it.data[0][0, 0]) for it in batches) == list(range(1000))


@on_linux
async def test_a_thousand_inserts_may_wait(start, path):
    server = start(reverb.Table.queue("full", 1))
    async with aio.Client(f"{HOSTS[path]}:{server.port}") as client:
        await client.insert([-1], {"full": 1.0})
        before = threads()
        tasks = [asyncio.create_task(client.insert([i], {"full": 1.0})) for i in range(1000)]
        await asyncio.sleep(0.05)
        assert threads() <= before
        got = [int(it[0].data[0]) async for it in client.sample("full", 1001)]
        await asyncio.gather(*tasks)
        assert sorted(got) == list(range(-1, 1000))


@on_linux
def test_what_a_loop_had_open_is_closed_with_it(server):
    client = aio.Client(f"localhost:{server.port}")

    async def wait():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.sample_batch("queue", 1), 0.01)
        return open_files()

    asyncio.run(wait())
    before = open_files()
    for _ in range(5):
        # One client in one loop after another; nobody closes it.
        assert asyncio.run(wait()) > before
        assert open_files() <= before


@on_linux
async def test_a_client_that_is_deleted_closes_what_it_had_open(server):
    await aio.Client(f"localhost:{server.port}").server_info()
    gc.collect()
    await asyncio.sleep(0.05)
    before = open_files()
    client = aio.Client(f"localhost:{server.port}")
    await client.server_info()
    assert open_files() <= before + 2
    del client
    gc.collect()
    await until(lambda: open_files() <= before)


async def test_nothing_is_left_of_calls_that_have_ended(server, path):
    async with aio.Client(f"{HOSTS[path]}:{server.port}") as client:
        futures = []
        for _ in range(50):
            task = asyncio.create_task(client.sample_batch("queue", 1))
            await asyncio.sleep(0)
            futures.append(weakref.ref(task))
            await client.insert([1.0], {"queue": 1.0})
            await task
            del task
        calls = client._loops._calls[asyncio.get_running_loop()]
        assert calls.num_waiting() == 0
        # The loop still has the turn in which the last one ended.
        await asyncio.sleep(0.01)
        gc.collect()
        assert [it for it in futures if it() is not None] == []


def test_two_loops_in_two_threads_may_share_a_client(server):
    client = aio.Client(f"localhost:{server.port}")
    results = []

    async def program(offset):
        waiting = [asyncio.create_task(client.sample_batch("queue", 1)) for _ in range(100)]
        for i in range(100):
            await client.insert([offset + i], {"queue": 1.0})
        results.extend(int(it.data[0][0, 0]) for it in await asyncio.gather(*waiting))

    both = [threading.Thread(target=asyncio.run, args=(program(i * 100),)) for i in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(results) == list(range(200))


def test_closing_cancels_the_tasks_of_all_loops(server, watcher):
    client = aio.Client(f"localhost:{server.port}")
    ended = []

    async def wait():
        task = asyncio.create_task(client.sample_batch("queue", 1))
        await asyncio.wait([task])
        ended.append(task.cancelled())

    thread = threading.Thread(target=lambda: asyncio.run(wait()))
    thread.start()
    wait_until(lambda: num_waiting(watcher)[0] == 1)

    async def close():
        task = asyncio.create_task(client.sample_batch("queue", 1))
        await until(lambda: num_waiting(watcher)[0] == 2)
        await client.close()
        await asyncio.wait([task])
        assert task.cancelled()
        await client.close()
        with pytest.raises(errors.FailedPreconditionError, match="is closed; make a new one"):
            await client.server_info()

    asyncio.run(close())
    thread.join()
    assert ended == [True]
    assert num_waiting(watcher)[0] == 0


async def test_the_loop_gets_its_turn_while_all_is_ready_at_once(server):
    async with aio.Client(f"localhost:{server.port}") as client:
        await client.insert([1.0], {"table": 1.0})
        turns = 0

        async def other():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(1000):
            await client.sample_batch("table", 1)
        assert 10 < turns < 1000
        turns = 0
        async for _ in client.sample("table", 1000):
            pass
        assert turns > 10
        task.cancel()


def test_a_loop_that_is_closed_with_calls_pending(server, watcher):
    client = aio.Client(f"localhost:{server.port}")
    loop = asyncio.new_event_loop()
    task = loop.create_task(client.sample_batch("queue", 1))
    loop.run_until_complete(asyncio.sleep(0.02))
    assert num_waiting(watcher)[0] == 1
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        task._log_destroy_pending = False
        del task, loop
        gc.collect()

    async def again():
        await client.insert([1.0], {"queue": 1.0})
        return await client.server_info()

    # The next loop finds nothing of it.
    assert asyncio.run(again())["queue"].current_size == 1
    assert num_waiting(watcher)[0] == 0


EXIT = """
    import asyncio, sys
    import reverb
    from reverb import aio

    client = aio.Client(sys.argv[1])

    async def main():
        tasks = [asyncio.create_task(client.sample_batch("queue", 1)) for _ in range(50)]
        await asyncio.sleep(0.1)
        if sys.argv[2] == "raise":
            raise SystemExit(3)
        if sys.argv[2] == "exit":
            return

    asyncio.run(main())
    print("over")
"""


@pytest.mark.parametrize(("how", "code"), [("exit", 0), ("raise", 3)])
def test_a_program_ends_with_calls_pending(server, watcher, how, code):
    with Program(EXIT, f"localhost:{server.port}", how) as program:
        assert program.ended() == code
        assert program.errors == ""
    wait_until(lambda: num_waiting(watcher)[0] == 0)


DAEMON = """
    import asyncio, sys, threading, time
    import numpy as np
    import reverb
    from reverb import aio

    client = aio.Client(sys.argv[1])

    async def main():
        await asyncio.gather(*[client.sample_batch("queue", 1) for _ in range(50)])

    threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
    time.sleep(0.3)
    reverb.Client(sys.argv[1]).insert_batch([np.arange(30)], {"queue": 1.0})
"""


def test_a_program_ends_while_a_daemon_waits(server):
    for _ in range(5):
        with Program(DAEMON, f"localhost:{server.port}") as program:
            assert program.ended() == 0
            assert program.errors == ""


FORK = """
    import asyncio, os, sys, traceback
    import reverb
    from reverb import aio

    client = aio.Client(sys.argv[1])

    async def child(writer, calls):
        assert (await client.sample_batch("table", 1)).data[0].tolist() == [[1.0]]
        try:
            await writer.flush()
        except reverb.errors.FailedPreconditionError as error:
            print(error, flush=True)

    async def main():
        await client.insert([1.0], {"table": 1.0})
        task = asyncio.create_task(client.sample_batch("queue", 1))
        await asyncio.sleep(0.05)
        writer = await client.trajectory_writer(1)
        calls = client._loops._calls[asyncio.get_running_loop()]
        pid = os.fork()
        if not pid:
            try:
                calls.call("ServerInfo", b"")
            except reverb.errors.FailedPreconditionError as error:
                print(error, flush=True)
            code = 1
            try:
                asyncio._set_running_loop(None)
                asyncio.run(child(writer, calls))
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        await client.insert([2.0], {"queue": 1.0})
        print((await task).data[0].tolist())

    asyncio.run(main())
"""


def test_a_fork_leaves_the_parent_alone_and_the_child_a_client(server):
    with Program(FORK, f"localhost:{server.port}") as program:
        assert "was created before the process forked" in program.line()
        assert "TrajectoryWriter was created before the process forked" in program.line()
        assert program.line() == "[[2.0]]"
        assert program.ended() == 0


def test_a_call_outside_of_a_loop_is_an_error(server):
    call = aio.Client(f"localhost:{server.port}").server_info()
    with pytest.raises(RuntimeError, match="no running event loop"):
        call.send(None)


def test_uvloop(server, watcher):
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

    async def program():
        async with aio.Client(f"localhost:{server.port}") as client:
            tasks = [asyncio.create_task(client.sample_batch("queue", 1)) for _ in range(100)]
            await until(lambda: num_waiting(watcher)[0] == 100)
            for task in tasks[50:]:
                task.cancel()
            await client.insert_batch([np.arange(50)], {"queue": 1.0})
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert sorted(int(it.data[0][0, 0]) for it in results[:50]) == list(range(50))
            assert {type(it) for it in results[50:]} == {asyncio.CancelledError}

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(program())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def test_importing_the_package_does_not_import_it():
    program = "import sys, reverb; print('reverb.aio' in sys.modules); print(reverb.aio.Client)"
    assert run(program) == ["False", "<class 'reverb.aio.client.Client'>"]
