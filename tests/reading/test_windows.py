# SPDX-License-Identifier: Apache-2.0
"""`window=`: random steps of an item, drawn when it is sampled, against closed forms and NumPy.

Every value of an item follows from its number and the step, so a row tells what was cut. The engine
compares the distribution of random tables; here it goes through every reader.
"""

import collections
import itertools
import pickle

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import DeadlineExceededError, InvalidArgumentError
from support.examples import fast_and_thorough

PADS = ("none", "left", "right", "both")
LENGTHS = (1, 2, 3, 5, 8, 13, 50, 200)
PRIORITIES = (1.0, 4.0, 0.5, 2.0, 3.0, 1.0, 2.0, 0.25)

SAMPLERS = {
    "uniform": (reverb.selectors.Uniform, lambda count, priority: 1.0),
    "steps": (lambda: reverb.selectors.Uniform(over="steps"), lambda count, priority: count),
    "prioritized": (
        lambda: reverb.selectors.Prioritized(0.5),
        lambda count, priority: priority**0.5,
    ),
    "stratified": (
        lambda: reverb.selectors.Prioritized(1.0, draw="stratified"),
        lambda count, priority: priority,
    ),
}
ORDERED = {
    "fifo": reverb.selectors.Fifo,
    "lifo": reverb.selectors.Lifo,
    "min_heap": reverb.selectors.MinHeap,
    "max_heap": reverb.selectors.MaxHeap,
    "shuffle": reverb.selectors.Shuffle,
}

# The smallest probability of a right result that counts as one: a few hundred are tested.
UNLIKELY = 1e-5


def steps_of(number, length):
    """The columns of an item: steps, pictures of them, and a text each."""
    at = np.arange(length)
    return {
        "image": (number * 7 + at[:, None, None] + np.zeros((1, 2, 3), int)).astype(np.uint8),
        "step": number * 1_000 + at,
        "text": np.array([f"{number}/{it}".encode() for it in at], object),
    }


SIGNATURE = {
    "image": reverb.specs.TensorSpec([None, 2, 3], np.uint8),
    "step": reverb.specs.TensorSpec([None], np.int64),
    "text": reverb.specs.TensorSpec([None], str),
}


def table(name="t", sampler=None, **options):
    options = {"signature": SIGNATURE, "max_size": 1_000, "seed": 5} | options
    sampler = sampler or reverb.selectors.Uniform()
    limiter = options.pop("rate_limiter", None) or reverb.rate_limiters.MinSize(1)
    return reverb.Table(name, sampler, reverb.selectors.Fifo(), rate_limiter=limiter, **options)


def fill(client, lengths=LENGTHS, tables=("t",)):
    for number, length in enumerate(lengths):
        priority = PRIORITIES[number % len(PRIORITIES)]
        client.insert_sequence(steps_of(number, length), dict.fromkeys(tables, priority))


def anchors(window, length):
    """The anchors of an item by enumeration."""
    return [
        at
        for at in range(length)
        if ("left" in window.pad or window.pad == "both" or at >= window.before)
        and ("right" in window.pad or window.pad == "both" or at + window.length <= length)
    ]


def check(batch, window, lengths=LENGTHS, spans=()):
    """Checks the rows of a batch with slices of NumPy; returns the item of each row."""
    start, mask, count = batch.window_start, batch.window_mask, batch.num_windows
    assert (start.dtype, count.dtype, mask.dtype) == (np.int32, np.int32, bool)
    data = batch.data
    if isinstance(data, list):
        data = dict(zip(sorted(SIGNATURE), data, strict=True))
    middle = data["step"][:, window.before if "step" not in spans else 0]
    numbers = middle // 1_000
    assert mask.shape == (len(numbers), window.num_steps)
    for row, number in enumerate(numbers):
        length = lengths[number]
        whole = steps_of(number, length)
        places = start[row] + np.arange(window.num_steps)
        assert start[row] + window.before in anchors(window, length)
        assert count[row] == len(anchors(window, length))
        assert np.array_equal(mask[row], (places >= 0) & (places < length))
        for name, column in data.items():
            first, stop = dict(spans).get(name, (-window.before, window.length))
            part = places[first + window.before : stop + window.before].clip(0, length - 1)
            assert np.array_equal(column[row], whole[name][part])
    return numbers


def closed_form(window, weigh, lengths=LENGTHS):
    """The probability of each window, by item and first step."""
    weights = {}
    for number, length in enumerate(lengths):
        found = anchors(window, length)
        for at in found:
            weight = weigh(len(found), PRIORITIES[number % len(PRIORITIES)]) / len(found)
            weights[number, at - window.before] = weight
    total = sum(weights.values())
    return {place: weight / total for place, weight in weights.items()}


def check_draws(numbers, starts, expected):
    """Compares numbers of draws with their probabilities by a chi-square test."""
    drawn = collections.Counter(zip(numbers.tolist(), starts.tolist(), strict=True))
    assert drawn.keys() <= expected.keys()
    total = len(numbers)
    chi_square = sum((drawn[at] - total * p) ** 2 / (total * p) for at, p in expected.items())
    # The distribution is nearly normal for so many degrees of freedom (Wilson and Hilferty).
    freedom = max(len(expected) - 1, 1)
    spread = np.sqrt(2 / (9 * freedom))
    deviation = ((chi_square / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / spread
    assert deviation < 4.4, f"{chi_square} with {freedom} degrees of freedom, p < {UNLIKELY}"


@pytest.fixture(scope="module")
def drawn_from(reach):
    """A client of a table for each sampler with chance."""
    tables = [table(name, make()) for name, (make, _) in SAMPLERS.items()]
    with testing.server(tables) as made:
        client = reach(made)
        fill(client, tables=tuple(SAMPLERS))
        yield client


class TestDraws:
    @pytest.mark.parametrize("pad", PADS)
    @pytest.mark.parametrize("sampler", SAMPLERS)
    @fast_and_thorough(1, 20)
    def test_each_window_has_its_probability(self, drawn_from, sampler, pad, max_examples):
        window = reverb.Window(4, before=2, pad=pad)
        expected = closed_form(window, SAMPLERS[sampler][1])
        of_each = np.zeros((len(LENGTHS), max(LENGTHS)))
        for (number, start), probability in expected.items():
            of_each[number, start + 2] = probability
        numbers, starts = [], []
        for _ in range(max_examples):
            batch = drawn_from.sample_batch(sampler, 50_000, window=window, columns=["step"])
            middle = batch.data[0][:, 2]
            numbers.append(middle // 1_000)
            starts.append(batch.window_start)
            assert np.array_equal(batch.window_start, middle % 1_000 - 2)
            # The told probability differs by one factor, the same for all items.
            told = batch.info.probability / batch.num_windows
            told = told / of_each[numbers[-1], starts[-1] + 2]
            assert np.allclose(told, told[0], rtol=1e-9)
            if sampler == "steps":
                assert np.allclose(told, 1.0, rtol=1e-9)
        check_draws(np.concatenate(numbers), np.concatenate(starts), expected)

    @pytest.mark.parametrize("sampler", ORDERED)
    def test_the_window_of_an_ordered_sampler_is_any_of_its_item(self, serve, sampler):
        client = serve(table(sampler=ORDERED[sampler]()))
        fill(client, (30, 30, 30))
        window = reverb.Window(4, before=2)
        batch = client.sample_batch("t", 30_000, window=window)
        item = check(client.sample_batch("t", 50, window=window), window, (30, 30, 30))
        plain = client.sample_batch("t", 6, ragged="packed").data[1].values // 1_000
        if sampler != "shuffle":
            assert set(item) == set(plain)
        starts = batch.window_start
        found = anchors(window, 30)
        check_draws(
            np.zeros(len(starts), int),
            starts,
            {(0, at - 2): 1 / len(found) for at in found},
        )


class TestValues:
    @pytest.mark.parametrize("pad", PADS)
    @pytest.mark.parametrize(("length", "before"), [(1, 0), (1, 3), (5, 0), (4, 2), (50, 150)])
    def test_rows_are_slices_of_items(self, serve, length, before, pad):
        client = serve(table())
        fill(client)
        window = reverb.Window(length, before=before, pad=pad)
        batch = client.sample_batch("t", 64, window=window)
        assert batch.data[1].shape == (64, before + length)
        check(batch, window)

    def test_items_of_many_chunks(self, serve):
        """Steps that were written one by one, in chunks of two."""
        client = serve(table(signature=None))
        with client.trajectory_writer(40) as writer:
            writer.configure(("step",), num_keep_alive_refs=40, max_chunk_length=2)
            for at in range(40):
                writer.append({"step": np.int64(at)})
            writer.create_item("t", 1.0, {"step": writer.history["step"][-37:]})
        window = reverb.Window(6, before=1, pad="both")
        batch = client.sample_batch("t", 200, window=window)
        places = batch.window_start[:, None] + np.arange(7)
        assert np.array_equal(batch.data[0], 3 + places.clip(0, 36))

    def test_a_single_value_of_an_item_comes_whole(self, serve):
        client = serve(table(signature=None))
        with client.trajectory_writer(10) as writer:
            for at in range(10):
                writer.append({"seed": np.float32(at), "step": np.int64(at)})
            history = writer.history
            item = {"seed": history["seed"][-1], "step": history["step"][:]}
            writer.create_item("t", 1.0, item)
        batch = client.sample_batch("t", 8, window=reverb.Window(3))
        assert (batch.data[0] == 9).all()
        assert batch.data[0].shape == (8,)
        assert batch.data[1].shape == (8, 3)
        with pytest.raises(InvalidArgumentError, match="single value of the item"):
            client.sample_batch("t", 8, window=reverb.Window(3, spans={0: (0, 1)}))

    def test_spans_are_parts_of_the_window(self, serve):
        client = serve(table())
        fill(client)
        spans = {"image": (0, 1), "text": (-1, 2)}
        window = reverb.Window(10, before=2, pad="right", spans=spans)
        batch = client.sample_batch("t", 40, window=window, unpack_as_table_signature=True)
        assert batch.data["image"].shape == (40, 1, 2, 3)
        assert batch.data["text"].shape == (40, 3)
        assert batch.window_mask.shape == (40, 12)
        check(batch, window, spans=spans)
        only = client.sample_batch("t", 40, window=window, columns=["text", "step"])
        assert [column.shape for column in only.data] == [(40, 12), (40, 3)]


class TestOptions:
    @pytest.fixture
    def client(self, serve):
        client = serve(
            table(),
            table("shuffle", reverb.selectors.Shuffle(seed=2)),
            table("queue", reverb.selectors.Fifo(), max_times_sampled=1),
        )
        fill(client, (20, 30, 40, 25, 60, 20), ("t", "shuffle"))
        fill(client, (20, 30), ("queue",))
        return client

    LENGTHS = (20, 30, 40, 25, 60, 20)

    def test_out(self, client):
        out = [
            np.zeros((5, 8, 2, 3), np.uint8),
            np.zeros((5, 8), np.int64),
            np.full((5, 8), None, object),
        ]
        window = reverb.Window(8)
        batch = client.sample_batch("t", 5, window=window, out=out[:2], columns=["image", "step"])
        assert batch.data[0] is out[0]
        assert np.array_equal(out[1][:, 0] % 1_000, batch.window_start)
        assert batch.window_mask.all()

    def test_distinct(self, client):
        for _ in range(20):
            batch = client.sample_batch("t", 3, window=reverb.Window(30), distinct=True)
            assert len(set(batch.info.key)) == 3
            check(batch, reverb.Window(30), self.LENGTHS)
        with pytest.raises(InvalidArgumentError, match="has 3 with a window of 30 steps"):
            client.sample_batch("t", 4, window=reverb.Window(30), distinct=True)

    def test_squeeze_leaves_out_the_one_step(self, client):
        batch = client.sample_batch("t", 6, window=reverb.Window(1), squeeze=True)
        assert batch.data[1].shape == (6,)
        assert np.array_equal(batch.data[1] % 1_000, batch.window_start)

    def test_an_epoch_has_a_window_of_each_item(self, client):
        window = reverb.Window(5)
        options = {"window": window, "epochs": 2, "columns": ["step"]}
        batches = client.batches("shuffle", 4, **options)
        rows = [batch.data["step"][:, 0] // 1_000 for batch in batches]
        assert [len(row) for row in rows] == [4, 2, 4, 2]
        assert sorted(np.concatenate(rows[:2])) == list(range(6))

    def test_a_queue_gives_each_item_once(self, client):
        batch = client.sample_batch("queue", 2, window=reverb.Window(15))
        assert list(check(batch, reverb.Window(15), (20, 30))) == [0, 1]
        assert client.size("queue") == 0

    def test_readers_of_all_kinds(self, client):
        window = reverb.Window(6, before=1, pad="left")
        with client.batches("t", 7, window=window) as batches:
            for batch in itertools.islice(batches, 5):
                check(batch, window, self.LENGTHS)
        with client.batch_sampler("t", 7, window=window, columns=["step"]) as sampler:
            for batch in itertools.islice(sampler, 5):
                assert np.array_equal(
                    batch.data[0][:, 1] % 1_000, np.maximum(batch.window_start + 1, 0)
                )
        weights = {"t": 0.5, "shuffle": 0.5}
        with reverb.batches(client, weights, 8, window=window) as batches:
            for batch in itertools.islice(batches, 5):
                check(batch, window, self.LENGTHS)

    def test_a_partial_batch(self, serve):
        limiter = reverb.rate_limiters.SampleToInsertRatio(1, 1, error_buffer=2)
        client = serve(table(rate_limiter=limiter))
        client.insert_sequence(steps_of(0, 20), {"t": 1.0})
        batch = client.sample_batch("t", 9, window=reverb.Window(5), timeout_ms=50)
        assert 0 < len(batch.info.key) < 9
        check(batch, reverb.Window(5), (20,))
        out = [np.zeros((9, 5), np.int64)]
        client.insert_sequence(steps_of(0, 20), {"t": 1.0})
        batch = client.sample_batch(
            "t", 9, window=reverb.Window(5), timeout_ms=50, out=out, columns=["step"]
        )
        assert len(batch.info.key) == len(batch.window_start) == len(batch.window_mask) < 9

    def test_a_reader_of_epochs_leaves_other_squeezed_requests_alone(self, client):
        """Its request once changed the options that all squeezed requests share."""
        options = {"window": reverb.Window(1), "squeeze": True}
        for _ in client.batches("shuffle", 4, epochs=1, squeeze=True, window=reverb.Window(1)):
            pass
        assert client.sample_batch("t", 2, **options).data[1].shape == (2,)


class TestWaits:
    def test_a_request_waits_for_the_first_window(self, serve, background, until):
        client = serve(table())
        client.insert_sequence(steps_of(0, 5), {"t": 1.0})
        window = reverb.Window(10)
        text = "has a window of 10 steps; the longest has 5"
        with pytest.raises(DeadlineExceededError, match=text):
            client.sample_batch("t", 2, window=window, timeout_ms=50)
        call = background(lambda: client.sample_batch("t", 2, window=window))
        until(lambda: client.status().tables["t"].sampling.waiting == 1)
        client.insert_sequence(steps_of(1, 12), {"t": 1.0})
        assert list(check(call.result(), window, (5, 12))) == [1, 1]

    def test_a_full_table_without_a_window_is_an_error(self, serve):
        client = serve(table(max_size=2))
        fill(client, (3, 4))
        with pytest.raises(InvalidArgumentError, match=r"the longest has 4\. The table is full"):
            client.sample_batch("t", 2, window=reverb.Window(10))
        assert client.server_info()["t"].current_size == 2

    def test_an_ordered_sampler_names_its_item(self, serve):
        client = serve(table(sampler=reverb.selectors.Fifo(), max_times_sampled=1))
        fill(client, (20, 3, 20))
        assert len(client.sample_batch("t", 1, window=reverb.Window(10)).info.key) == 1
        with pytest.raises(InvalidArgumentError, match="has no window of 10 steps: it has 3"):
            client.sample_batch("t", 2, window=reverb.Window(10))
        assert client.size("t") == 2


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"length": 0}, "window.length must be at least 1, got 0"),
            ({"length": 3, "before": -1}, "window.before must be at least 0, got -1"),
            (
                {"length": 4_000_000_000},
                "window: before + length must be at most 65,536, got 4,000,000,000",
            ),
            ({"length": 1, "before": 65_536}, "at most 65,536, got 65,537"),
            ({"length": 3, "pad": "up"}, "'none', 'left', 'right' or 'both', got 'up'"),
            ({"length": 3, "spans": {"a": (0, 4)}}, "lie within [0, 3), got (0, 4)"),
            ({"length": 3, "spans": {"a": (1, 1)}}, "at least one step"),
            ({"length": 3, "before": 2, "spans": {0: (-3, 0)}}, "within [-2, 3)"),
        ],
    )
    def test_numbers_have_limits(self, arguments, text):
        with pytest.raises(InvalidArgumentError) as caught:
            reverb.Window(**arguments)
        assert text in str(caught.value)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"length": 1.5},
            {"length": "3"},
            {"length": 3, "spans": [(0, 1)]},
            {"length": 3, "spans": {"a": 1}},
            {"length": 3, "spans": {"a": (0, "1")}},
        ],
    )
    def test_types(self, arguments):
        with pytest.raises(TypeError, match="window"):
            reverb.Window(**arguments)

    def test_requests(self, serve):
        client = serve(table())
        fill(client)
        with pytest.raises(InvalidArgumentError, match="is no column of table t"):
            client.sample_batch("t", 2, window=reverb.Window(2, spans={"x": (0, 1)}))
        both = {"image": (0, 1), 0: (0, 2)}
        with pytest.raises(InvalidArgumentError, match="two spans of column 0"):
            client.sample_batch("t", 2, window=reverb.Window(2, spans=both))
        with pytest.raises(InvalidArgumentError, match="leave it out"):
            client.batches("t", None, window=reverb.Window(2))

    def test_a_window_is_a_value(self):
        window = reverb.Window(3, before=1, pad="right", spans={"a": (0, 1)})
        assert pickle.loads(pickle.dumps(window)) == window
        assert window != reverb.Window(3, before=1, pad="right")
        assert repr(window) == "Window(3, before=1, pad='right', spans={'a': (0, 1)})"
        assert len({reverb.Window(3), reverb.Window(3), reverb.Window(4)}) == 2

    def test_a_remover_is_not_over_steps(self, start):
        with pytest.raises(InvalidArgumentError, match="which is for samplers"):
            start(
                reverb.Table(
                    "t",
                    reverb.selectors.Uniform(),
                    reverb.selectors.Uniform(over="steps"),
                    10,
                    reverb.rate_limiters.MinSize(1),
                )
            )
        with pytest.raises(InvalidArgumentError, match='"items" or "steps", got "rows"'):
            reverb.selectors.Uniform(over="rows")


def test_items_over_steps_count_as_often_as_they_have_steps(serve):
    client = serve(table(sampler=reverb.selectors.Uniform(over="steps")))
    fill(client, (1, 3, 6))
    batch = client.sample_batch("t", 30_000, ragged="packed")
    lengths = np.diff(batch.data[1].offsets)
    numbers = batch.data[1].values[batch.data[1].offsets[:-1]] // 1_000
    assert np.allclose(batch.info.probability, lengths / 10)
    check_draws(numbers, np.zeros_like(numbers), {(0, 0): 0.1, (1, 0): 0.3, (2, 0): 0.6})
