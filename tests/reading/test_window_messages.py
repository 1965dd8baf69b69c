# SPDX-License-Identifier: Apache-2.0
"""The messages of windows: no chunk that a window does not touch, no more messages than of items.

The client is one of gRPC, so what it counts is what a server sends.
"""

import numpy as np
import pytest

import reverb
from reverb.core import protos
from support.wire.wire_client import WireClient

EPISODES, STEPS = 64, 1_000
# Bytes of a frame and steps of a window of 200 kB: of episodes of 0.5 MB and of 4 MB.
SIZES = [(512, 400), pytest.param((4096, 50), marks=pytest.mark.slow)]
# Bytes of a step of the other column, and of a sample beside its chunks, at most.
STATE_BYTES, OF_SAMPLE = 64, 1_000
# Dtypes of the columns, by their numbers in TensorFlow.
FRAME, STATE = 4, 2


@pytest.fixture(scope="module", params=SIZES, ids=["small", "large"])
def size(request):
    """Bytes of a frame, and steps of a window."""
    return request.param


@pytest.fixture(scope="module")
def filled(size):
    """A server with a table of episodes, one of their first steps, and such that remove them."""

    def table(name, max_times_sampled=0):
        uniform, fifo = reverb.selectors.Uniform(), reverb.selectors.Fifo()
        limiter = reverb.rate_limiters.MinSize(1)
        return reverb.Table(name, uniform, fifo, 1_000, limiter, max_times_sampled)

    width, length = size
    names = {"episodes": 0, "items": 0, "episodes_once": 1, "items_once": 1}
    with reverb.Server([table(*it) for it in names.items()]) as server:
        client = server.localhost_client()
        random = np.random.default_rng(0)
        for _ in range(EPISODES):
            frames = random.integers(0, 256, (STEPS, width), np.uint8)
            columns = {"frame": frames, "state": random.standard_normal((STEPS, 8))}
            client.insert_sequence(columns, {"episodes": 1.0, "episodes_once": 1.0})
            part = {name: column[:length] for name, column in columns.items()}
            client.insert_sequence(part, {"items": 1.0, "items_once": 1.0})
        yield server


@pytest.fixture
def read(filled):
    def read(table, count, **window):
        """Messages with so many samples of a table, as a server sends them."""
        request = protos.SampleStreamRequest(table=table, num_samples=count)
        for name, value in window.items():
            setattr(request.window, name, value)
        with WireClient(f"localhost:{filled.port}") as client:
            stream = client.sample_stream()
            stream.send(request)
            messages = []
            while count > 0:
                messages.append(stream.receive())
                count -= sum(entry.end_of_sequence for entry in messages[-1].entries)
            stream.cancel()
        return messages

    return read


def samples_of(messages):
    """The samples of messages: the info and the chunks of each."""
    info, chunks = None, []
    for message in messages:
        for entry in message.entries:
            info = entry.info if entry.HasField("info") else info
            chunks.extend(entry.data)
            if entry.end_of_sequence:
                yield info, chunks
                info, chunks = None, []


@pytest.mark.parametrize("suffix", ["", "_once"], ids=["stays", "leaves"])
def test_windows_take_as_many_messages_as_items(read, size, suffix):
    of_items = read("items" + suffix, EPISODES)
    of_windows = read("episodes" + suffix, EPISODES, length=size[1])
    assert len(of_items) > 5
    assert len(of_windows) <= len(of_items)


@pytest.mark.parametrize(
    "window",
    [{}, {"before": 7}, {"pads_left": True, "before": 30}, {"pads_right": True}],
    ids=["plain", "before", "left", "right"],
)
def test_only_chunks_of_the_window_are_sent(read, size, window):
    """So at most one chunk more than the window for each column at each end."""
    width, length = size
    messages = read("episodes", EPISODES, length=length, **window)
    samples = list(samples_of(messages))
    num_steps = length + window.get("before", 0)
    largest = {}
    for info, chunks in samples:
        first, stop = info.window_start, info.window_start + num_steps
        for chunk in chunks:
            steps = chunk.sequence_range
            assert steps.start < stop
            assert steps.end >= first
            size, kind = chunk.ByteSize(), chunk.data.tensors[0].dtype
            largest[kind] = max(largest.get(kind, 0), size)
    assert len(samples) == EPISODES
    assert set(largest) == {FRAME, STATE}
    most = num_steps * (width + STATE_BYTES) + 2 * sum(largest.values()) + OF_SAMPLE
    assert sum(message.ByteSize() for message in messages) < EPISODES * most


def test_only_chunks_of_a_span_are_sent(filled):
    request = protos.SampleStreamRequest(table="episodes", num_samples=1)
    request.window.length = 500
    request.window.spans.add(column=0, start=0, stop=1)
    with WireClient(f"localhost:{filled.port}") as client:
        stream = client.sample_stream()
        for _ in range(8):
            stream.send(request)
            ((info, chunks),) = stream.samples(1)
            (frames,) = (it for it in chunks if it.data.tensors[0].dtype == FRAME)
            steps = frames.sequence_range
            assert steps.start <= info.window_start <= steps.end
            states = [it.sequence_range for it in chunks if it is not frames]
            assert min(it.start for it in states) <= info.window_start
            assert max(it.end for it in states) >= info.window_start + 499
        stream.cancel()
