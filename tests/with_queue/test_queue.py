# SPDX-License-Identifier: Apache-2.0
"""`reverb.adapters.queue.Queue` in one process: what comes back, in which order, and when not."""

import collections
import copy
import math
import pickle
import queue
import time

import numpy as np
import pytest

import reverb
from reverb.adapters.queue import Queue
from reverb.errors import DataLossError, SignatureMismatchError, TableNotFoundError
from support.waiting import wait_until

Point = collections.namedtuple("Point", "x y")

PLAIN = [
    None,
    True,
    -(2**70),
    [1.5, -0.0, math.inf, math.nan],
    ["", "\ud800 \u20ac \0"],
    [b"", b"\0\xff"],
    [[], (), {}],
    [1, 2.0, "three", None, True],
    [[], [()], {"a": []}],
    ("a", (1, [2, {"b": (3,)}])),
    {"a": 1, "dict": {"items": [1]}, "": None},
    {1: "a", (2, "b"): [3], None: {}, "c": 4.0},
]
PICKLED = [
    Point(1, [2, 3]),
    {1, 2},
    1 + 2j,
    collections.OrderedDict(a=1),
    [Point(1, 2), {"a": {3}}],
    ValueError("text"),
    np.array(["a", None], object),
    np.arange(3, dtype=">i4"),
    np.float64(3),
]


@pytest.mark.parametrize("value", PLAIN + PICKLED, ids=lambda value: ascii(value)[:30])
def test_values_come_back_as_they_were(make, value):
    values = make()
    values.put(value)
    assert repr(values.get()) == repr(value)


def test_plain_values_and_arrays_are_not_pickled(make, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("pickle was used")

    monkeypatch.setattr("reverb.adapters.queue_values.pickle.loads", refuse)
    values = make()
    for value in [*PLAIN, {"a": [np.arange(3), (np.ones([2, 0]), b"c")]}]:
        values.put(value)
        assert repr(values.get()) == repr(value)
    values.put(Point(1, 2))
    with pytest.raises(AssertionError, match="pickle was used"):
        values.get()


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16"])
def test_arrays_come_back_bit_by_bit(make, dtype, shape):
    array = np.random.default_rng(0).integers(0, 256, (*shape, 16), np.uint8)
    array = (array & 1).view(bool)[..., 0] if dtype == "?" else array.view(dtype)[..., 0]
    values = make()
    values.put({"here": array, "there": [array[..., ::-1] if shape else array, array.T]})
    got = values.get()
    pairs = [(got["here"], array), (got["there"][1], array.T)]
    pairs.append((got["there"][0], array[..., ::-1] if shape else array))
    for one, other in pairs:
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        assert one.flags.writeable


def test_an_array_in_an_object_is_not_copied_into_its_pickle(make):
    values = make()
    array = np.arange(100_000)
    values.put(Point(array, "text"))
    (item,) = values._client.scan("queue")
    sizes = sorted(column.nbytes for column in item.data)
    assert sizes[-1] == array.nbytes
    assert sum(sizes[:-1]) < 1000
    got = values.get()
    assert got.y == "text"
    assert np.array_equal(got.x, array)
    got.x[0] = 7  # It is the getter's own.


def test_what_plain_values_cannot_say_is_pickled(make):
    values, own, deep = make(), [1], []
    own.append(own)
    for _ in range(2000):
        deep = [deep]
    for value in (own, 10**5000):
        values.put(value)
    got = values.get()
    assert got[1] is got
    assert values.get() == 10**5000
    with pytest.raises(RecursionError):
        values.put(deep)
    assert values.empty()


def test_items_come_in_order_and_once(make):
    values = make(200)
    for number in range(100):
        # Each has another structure.
        values.put([number] * (number % 5) or {"number": np.full(number, number)})
    lengths = []
    while not values.empty():
        got = values.get()
        lengths.append(len(got) if isinstance(got, list) else len(got["number"]))
    assert lengths == [number % 5 or number for number in range(100)]
    with pytest.raises(queue.Empty):
        values.get_nowait()


def test_it_is_full_at_the_size_of_the_table(make):
    values = make(2)
    assert (values.qsize(), values.empty(), values.full()) == (0, True, False)
    values.put(1)
    values.put_nowait(2)
    assert (values.qsize(), values.empty(), values.full()) == (2, False, True)
    for call in (values.put_nowait, lambda it: values.put(it, timeout=0.01)):
        with pytest.raises(queue.Full):
            call(3)
    assert [values.get(), values.get_nowait()] == [1, 2]
    assert values.empty()


def test_it_is_full_at_a_smaller_maxsize(make, background):
    values = make(100, maxsize=2)
    values.put(1)
    values.put(2)
    assert values.full()
    with pytest.raises(queue.Full):
        values.put_nowait(3)
    waits = background(values.put, 3)
    values.maxsize = 1
    assert values.get() == 1
    assert values.full()
    assert waits.running
    values.maxsize = 0  # That of the table.
    waits.result()
    assert [values.get(), values.get()] == [2, 3]


def test_a_put_and_a_get_wait_for_each_other(make, background):
    values = make(1)
    waits = background(values.get)
    values.put("first")
    assert waits.result() == "first"
    values.put("second")
    puts = [background(values.put, "third"), background(values.put, "third", timeout=60)]
    assert [values.get(), values.get(timeout=60), values.get()] == ["second", "third", "third"]
    for put in puts:
        put.result()


@pytest.mark.parametrize("timeout", [0, 1e-4, 0.05])
def test_a_timeout_is_kept(make, timeout):
    values = make(1)
    began = time.monotonic()
    with pytest.raises(queue.Empty, match="queue"):
        values.get(timeout=timeout)
    assert time.monotonic() - began >= timeout
    values.put(1)
    with pytest.raises(queue.Full):
        values.put(2, timeout=timeout)
    assert [values.get(), values.qsize()] == [1, 0]


def test_a_negative_timeout_is_refused(make):
    values = make()
    message = "timeout must be a number of seconds, 0 or more, got "
    for call in (values.get, lambda **options: values.put(1, **options)):
        for timeout in (-1, math.nan):
            with pytest.raises(ValueError, match=f"{message}{timeout}"):
                call(timeout=timeout)
    # As in Python's, it counts only with `block`.
    values.put(1, block=False, timeout=-1)
    assert values.get(block=False, timeout=-1) == 1


def test_a_timeout_of_ages_is_none(make):
    values = make()
    for timeout in (1e12, 1e18, math.inf):
        values.put(1, timeout=timeout)
        assert values.get(timeout=timeout) == 1


@pytest.mark.parametrize("timeout", [0, 0.1])
def test_a_put_does_not_wait_for_another_thread(make, background, timeout):
    values = make(100, maxsize=2)
    values.put(1)
    with values._putting:  # As a thread has it while the server does not answer.
        began = time.monotonic()
        with pytest.raises(queue.Full):
            values.put(2, timeout=timeout)
        assert time.monotonic() - began >= 1
        waits = background(values.put, 2)
        assert waits.running
    waits.result()
    assert values.qsize() == 2


def test_threads_of_a_queue_do_not_exceed_maxsize(make, background):
    values = make(100, maxsize=3)
    puts = [background(values.put, number) for number in range(20)]
    seen, got = 0, []
    while len(got) < 20:
        seen = max(seen, values.qsize())
        got.append(values.get(timeout=60))
    for put in puts:
        put.result()
    assert sorted(got) == list(range(20))
    assert seen <= 3


def test_a_place_that_another_took_first_is_no_place(make, monkeypatch):
    values = make(1)
    values.put(1)
    # As it was when the queue was asked.
    monkeypatch.setattr(values, "_has_room", lambda until: True)
    with pytest.raises(queue.Full):
        values.put_nowait(2)
    with pytest.raises(queue.Full):
        values.put(2, timeout=0.05)
    assert values.get() == 1
    with pytest.raises(queue.Empty):
        values.get(timeout=0.05)


def test_copies_and_pickles_are_the_same_queue(make):
    values = make(maxsize=7)
    values.put("a")
    values.put("b")
    for again in (pickle.loads(pickle.dumps(values)), copy.copy(values)):
        assert again.maxsize == 7
        again.get()
    assert values.empty()


def test_an_address_makes_a_client(start):
    server = start(reverb.Table.queue("queue", 3))
    one, other = (Queue(f"127.0.0.1:{server.port}", "queue") for _ in range(2))
    one.put(1)
    assert other.get() == 1
    assert repr(one) == f"Queue('127.0.0.1:{server.port}', 'queue', maxsize=0)"


def test_there_is_no_such_table(make):
    values = Queue(make()._client, "other")
    calls = (values.get, values.qsize, values.full, values.get_nowait)
    for call in (*calls, lambda: values.put(1), lambda: values.put_nowait(1)):
        with pytest.raises(TableNotFoundError, match=r"other.*queue"):
            call()


def test_a_table_with_a_signature_refuses_items(serve):
    signature = {"a": reverb.specs.TensorSpec([], np.float32)}
    values = Queue(serve(reverb.Table.queue("queue", 3, signature=signature)), "queue")
    with pytest.raises(SignatureMismatchError):
        values.put(np.float32(1))
    assert values.empty()


def test_an_item_that_no_queue_has_put_is_named(make):
    values = make()
    others = (
        '{"array": 5}',
        '{"array": "x"}',
        '{"tuple": 5}',
        '{"x": 5}',
        "{}",
        '{"a": 1, "b": 2}',
    )
    texts = [[np.frombuffer(text.encode(), np.uint8)] for text in others]
    for data in ([np.arange(3.0)], [np.arange(3, dtype=np.uint8)], [1, 2], *texts):
        values._client.insert(data, {"queue": 1.0})
        with pytest.raises(DataLossError, match="table queue was not put by a Queue"):
            values.get()
        values._client.insert_sequence([np.array([it, it]) for it in data], {"queue": 1.0})
        with pytest.raises(DataLossError, match="table queue was not put by a Queue"):
            values.get()
    assert values.empty()


def test_a_waiting_get_takes_nothing_after_its_timeout(make):
    values = make()
    with pytest.raises(queue.Empty):
        values.get(timeout=0.01)
    values.put(1)
    wait_until(lambda: values.qsize() == 1)
    assert values.get_nowait() == 1
