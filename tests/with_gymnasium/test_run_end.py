# SPDX-License-Identifier: Apache-2.0
"""Recorders at the end of a run: `stop`, `step_timeout_s`, and blocks that an exception leaves."""

import contextlib
import multiprocessing
import threading
import time

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import reverb
from reverb import errors, testing
from reverb._recording import waiting
from reverb.adapters.gymnasium import EnvRecorder, Recorder, Transitions
from support.coded_env import CodedEnv
from support.hosts import HOSTS
from support.rolling_restart import free_ports
from support.waiting import DEADLINE_S, Background, wait_until

HOUR_S = 3600.0


class Case:
    """A recorder whose table takes four items, and what a step of it gives."""

    def __init__(self, kind, client, **options):
        self.kind = kind
        options = {"max_unconfirmed_items": 2, "items": Transitions()} | options
        if kind == "single":
            self.env = CodedEnv(0, p_end=0.0)
            self.recorder = EnvRecorder(self.env, client, "full", **options)
        else:
            makers = [lambda: CodedEnv(0, p_end=0.0)]
            self.env = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
            self.recorder = Recorder(self.env, client, "full", **options)
        self.recorder.reset(seed=1)

    def step(self):
        return self.recorder.step(0 if self.kind == "single" else np.zeros(1, np.int64))

    def t(self, result):
        """The number of steps of the episode, as an observation tells it."""
        return int(np.ravel(result[0])[2])


@pytest.fixture(params=["single", "vector"])
def kind(request):
    """The recorder of one environment, and that of many."""
    return request.param


@pytest.fixture
def server(start):
    """A server with a table that takes four items."""
    return start(reverb.Table.queue("full", 4), testing.table("open"))


def times(server, num_items):
    """The step that made each of the next items."""
    client = server.localhost_client()
    batch = client.sample_batch("full", num_items, timeout_ms=int(DEADLINE_S * 1000))
    # Observations are [env, episode, t], before the step and after it.
    observations = [column for column in batch.data if column.shape[1:] == (3,)]
    return sorted(np.max(observations, axis=0)[:, 2].tolist())


def blocked_step(case, server):
    """Steps until one waits; returns its background call."""
    call = None
    for _ in range(20):
        call = Background(case.step)
        wait_until(lambda call=call: not call.running or is_blocked(server))
        time.sleep(0.02)  # A step that does not wait has the time to return.
        if call.running:
            return call
    raise AssertionError("no step waits")


def is_blocked(server):
    return server.status().tables["full"].inserting.waiting > 0


def remote(server, path="remote"):
    """A client that waits long for its server."""
    return reverb.Client(f"{HOSTS[path]}:{server.port}", connect_timeout_s=HOUR_S)


def ended_while_blocked(kind, client, server, event=threading.Event):
    """A recorder whose run has ended while a step waited, and that step."""
    stop = event()
    case = Case(kind, client, stop=stop)
    waiting_step = blocked_step(case, server)
    stop.set()
    return case, waiting_step


@pytest.mark.parametrize("event", [threading.Event, multiprocessing.Event])
def test_a_step_that_waits_ends_with_the_run(server, path, kind, event, left_writers):
    case, waiting_step = ended_while_blocked(kind, remote(server, path), server, event)
    before = case.t(waiting_step.result())
    # Steps do not wait any more, and what they make goes on in the background.
    for number in range(1, 4):
        assert case.t(case.step()) == before + number
    items = before + 3
    assert times(server, items) == list(range(1, items + 1))
    case.recorder.close()
    assert not left_writers()


def test_close_waits_for_2_s_after_the_run(server, path, kind, left_writers, monkeypatch):
    monkeypatch.setattr("reverb._recording.step_writer.STOPPED_CLOSE_TIMEOUT_MS", 200)
    assert waiting.STOPPED_CLOSE_TIMEOUT_MS == 2000
    client = reverb.Client(f"{HOSTS[path]}:{server.port}")
    case, waiting_step = ended_while_blocked(kind, client, server)
    waiting_step.result()
    case.recorder.close()
    wait_until(left_writers)
    (line,) = left_writers()
    assert "of table full" in line


def test_a_run_that_ends_while_close_waits(server, kind, left_writers, monkeypatch):
    monkeypatch.setattr("reverb._recording.step_writer.STOPPED_CLOSE_TIMEOUT_MS", 200)
    monkeypatch.setattr("reverb._recording.waiting.CLOSE_TIMEOUT_MS", 3_600_000)
    stop = threading.Event()
    case = Case(kind, server.localhost_client(), stop=stop, max_unconfirmed_items=100)
    for _ in range(10):
        case.step()
    closing = Background(case.recorder.close)
    wait_until(lambda: is_blocked(server))
    assert closing.running
    stop.set()
    closing.result()
    wait_until(left_writers)


@pytest.mark.parametrize("final", [False, True])
def test_no_step_fails_for_the_server_after_the_run(server, path, kind, final):
    case, waiting_step = ended_while_blocked(kind, remote(server, path), server)
    server.stop(final=final)
    before = case.t(waiting_step.result())
    for number in range(1, 30):
        assert case.t(case.step()) == before + number
    case.recorder.reset()
    case.step()
    Background(case.recorder.close).result()


def test_no_step_fails_if_another_server_has_the_port(server, kind):
    case, waiting_step = ended_while_blocked(kind, remote(server), server)
    server.stop()
    before = case.t(waiting_step.result())
    with reverb.Server([testing.table("other")], port=server.port) as other:
        wait_until(lambda: ("InsertStream", "NOT_FOUND") in other.status().traffic.calls)
        for number in range(1, 30):
            assert case.t(case.step()) == before + number
        case.recorder.reset()
        case.step()
        Background(case.recorder.close).result()


@pytest.mark.parametrize("is_set_before", [True, False])
def test_a_run_may_end_before_a_server_answers(kind, is_set_before):
    client = reverb.Client(f"localhost:{free_ports(1)[0]}", connect_timeout_s=HOUR_S)
    stop = threading.Event()
    if is_set_before:
        stop.set()
    making = Background(Case, kind, client, stop=stop)
    if not is_set_before:
        time.sleep(0.1)  # It is likely to wait for the server by then; both orders must pass.
        stop.set()
    case = making.result()
    assert [case.t(case.step()) for _ in range(3)] == [1, 2, 3]
    case.recorder.flush()
    case.recorder.close()
    client.close()


def test_a_server_that_answers_before_the_end_is_recorded_to(server, path, kind):
    client = remote(server, path)
    case = Case(kind, client, stop=threading.Event())
    case.step()
    case.recorder.flush()
    assert client.size("full") == 1
    case.recorder.close()


def test_flush_waits_for_2_s_after_the_run(server, kind, left_writers, monkeypatch):
    monkeypatch.setattr("reverb._recording.step_writer.STOPPED_CLOSE_TIMEOUT_MS", 200)
    stop = threading.Event()
    case = Case(kind, server.localhost_client(), stop=stop)
    waiting_step = blocked_step(case, server)
    flush = Background(case.recorder.flush)
    assert flush.running
    stop.set()
    waiting_step.result()
    flush.result()
    assert not left_writers()  # They go on, until `close`.
    case.recorder.close()
    wait_until(left_writers)


def test_a_server_that_ends_before_the_run_is_an_error(server, path, kind):
    case = Case(kind, remote(server, path), stop=threading.Event())
    waiting_step = blocked_step(case, server)
    server.stop(final=True)
    with pytest.raises(errors.UnavailableError, match="stopped for good"):
        waiting_step.result()


@pytest.mark.parametrize("timeout_s", [0, 0.05])
def test_a_step_timeout_gives_the_result_and_loses_nothing(server, path, kind, timeout_s):
    case = Case(kind, remote(server, path), step_timeout_s=timeout_s)
    steps, texts = [], []
    while len(texts) < 3:
        try:
            result = case.step()
        except errors.DeadlineExceededError as error:
            texts.append(str(error))
            result = error.result
        steps.append(case.t(result))
    assert all(f"step_timeout_s={timeout_s:g} has passed" in text for text in texts)
    # A call that may not wait has no time to ask for the reason.
    assert all("full" in text for text in texts) or not timeout_s
    # Steps go on where they were, one after another.
    assert steps == list(range(1, len(steps) + 1))
    assert times(server, len(steps)) == steps
    wait_until(lambda: not is_blocked(server))
    case.recorder.flush()
    assert case.t(case.step()) == len(steps) + 1
    assert times(server, 1) == [len(steps) + 1]
    case.recorder.close()


def test_a_confirmation_in_time_is_no_timeout(server, kind):
    case = Case(kind, server.localhost_client(), step_timeout_s=HOUR_S)
    waiting_step = blocked_step(case, server)
    first = times(server, 4)
    step = case.t(waiting_step.result())
    assert first == [1, 2, 3, 4]
    assert times(server, step - 4) == list(range(5, step + 1))
    case.recorder.close()


def test_resets_do_not_wait(server, kind):
    case = Case(kind, server.localhost_client(), step_timeout_s=0)
    for _ in range(10):
        Background(case.recorder.reset).result()
        with contextlib.suppress(errors.DeadlineExceededError):
            case.step()


def test_arguments_are_checked(server, kind):
    client = server.localhost_client()
    with pytest.raises(TypeError, match="stop must have a method is_set"):
        Case(kind, client, stop=3)
    for bad in (-1, float("nan"), 1e9):
        with pytest.raises(errors.InvalidArgumentError, match="step_timeout_s must be from 0"):
            Case(kind, client, step_timeout_s=bad)


def test_an_exception_that_leaves_the_block_is_not_masked(server, left_writers, monkeypatch):
    monkeypatch.setattr("reverb._writers.leaving.FLUSH_TIMEOUT_MS", 100)
    case = Case("single", server.localhost_client(), max_unconfirmed_items=100)
    error = KeyError("mine")

    def block():
        with case.recorder:
            for _ in range(10):
                case.step()
            raise error

    with pytest.raises(KeyError) as caught:
        block()
    assert caught.value is error
    assert error.__context__ is None
    wait_until(left_writers)
    assert "of table full" in left_writers()[0]


def test_an_exception_keeps_what_was_recorded(server):
    items = Transitions(n_step=3)
    case = Case("single", server.localhost_client(), items=items, max_unconfirmed_items=100)

    def block():
        with case.recorder:
            case.step()
            case.step()
            raise KeyError("mine")

    with pytest.raises(KeyError):
        block()
    # The episode was interrupted, so its last steps are items.
    assert server.localhost_client().size("full") == 2
    with pytest.raises(errors.FailedPreconditionError, match="closed"):
        case.step()


def test_ctrl_c_in_the_block_does_not_flush(server, left_writers):
    case = Case("single", server.localhost_client(), max_unconfirmed_items=100)

    def block():
        with case.recorder:
            for _ in range(10):
                case.step()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        block()
    wait_until(left_writers)
