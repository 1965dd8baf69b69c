# SPDX-License-Identifier: Apache-2.0
"""Making tables: arguments, copies, and what a table tells of itself."""

import collections
import dataclasses

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import InvalidArgumentError, UnimplementedError
from reverb.specs import BoundedTensorSpec, TensorSpec


def table(**options):
    return testing.table("name", **options)


def without_times(info):
    return dataclasses.replace(info, table_worker_time=None)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": ""}, "name of a table must not be empty"),
        ({"max_size": 0}, "max_size must be at least 1 and at most 2147483647, got 0"),
        ({"max_size": 2**31}, "max_size must be at least 1 and at most 2147483647, got 2147483648"),
        ({"max_times_sampled": 2**31}, "max_times_sampled must fit into 32 bits, got 2147"),
        ({"max_size": -3}, "max_size must be at least 1 and at most 2147483647, got -3"),
        ({"signature": {2: np.float32}}, "keys of a signature must be strings"),
    ],
)
def test_a_bad_argument_is_named(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        testing.table(**({"name": "name"} | options))


NESTS = {
    "dict": lambda it: {"a": it},
    "list": lambda it: [it],
    "tuple": lambda it: (it,),
    "named tuple": collections.namedtuple("Step", "a"),
}


@pytest.mark.parametrize("kind", NESTS)
def test_a_signature_may_be_nested_30_deep(serve, kind):
    def nested(depth):
        signature = BoundedTensorSpec([2], np.int8, 0, 3)
        for _ in range(depth):
            signature = NESTS[kind](signature)
        return signature

    client = serve(table(signature=nested(30)))
    leaf = client.server_info()["name"].signature
    for _ in range(30):
        (leaf,) = leaf.values() if kind == "dict" else leaf
    assert leaf.shape == (2,)
    for depth in (31, 20_000):
        with pytest.raises(InvalidArgumentError, match="may be at most 30 deep, got more below"):
            table(signature=nested(depth))


def test_a_selector_serves_one_table_in_one_place():
    selector = reverb.selectors.Fifo()
    with pytest.raises(InvalidArgumentError, match="selector"):
        table(sampler=selector, remover=selector)
    used = reverb.selectors.Uniform()
    _kept = table(sampler=used)
    with pytest.raises(InvalidArgumentError, match="selector"):
        table(remover=used)


def test_a_limiter_serves_one_live_table():
    limiter = reverb.rate_limiters.MinSize(1)
    first = table(rate_limiter=limiter)
    with pytest.raises(InvalidArgumentError, match="limiter"):
        table(rate_limiter=limiter)
    del first
    table(rate_limiter=limiter)


class Extension(reverb.server.TableExtensionBase):
    def __init__(self, built):
        self.built = built
        self.tables = []

    def build_internal_extensions(self, table_name):
        self.tables.append(table_name)
        return self.built


def test_an_extension_that_builds_nothing_is_accepted():
    extension = Extension([])
    original = table(extensions=[extension])
    original.replace(name="other")
    assert extension.tables == ["name", "other"]


def test_an_extension_that_builds_something_is_refused():
    with pytest.raises(UnimplementedError, match="table extensions are not available"):
        table(extensions=[Extension([object()])])


@pytest.mark.parametrize("signature", [None, {}, ()])
def test_an_empty_signature_is_none(signature):
    assert table(signature=signature).info.signature is None


def test_a_signature_may_be_one_leaf():
    assert table(signature=np.zeros((2, 0))).info.signature == TensorSpec([2, 0], np.float64)


def test_info_tells_the_options():
    signature = {"b": [TensorSpec([None], np.str_)], "a": BoundedTensorSpec([], np.int8, 0, 3, "x")}
    made = reverb.Table(
        "name",
        sampler=reverb.selectors.Prioritized(0.5),
        remover=reverb.selectors.MaxHeap(),
        max_size=2**31 - 1,
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(2.0, 3, 4.0),
        max_times_sampled=-7,
        signature=signature,
    )
    info = made.info
    assert made.name == info.name == "name"
    assert info.max_size == 2**31 - 1
    assert info.max_times_sampled == -7
    assert info.sampler_options.prioritized.priority_exponent == 0.5
    assert not info.sampler_options.is_deterministic
    assert info.remover_options.WhichOneof("distribution") == "heap"
    assert not info.remover_options.heap.min_heap
    assert info.remover_options.is_deterministic
    limiter = info.rate_limiter_info
    assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (2.0, 3)
    assert (limiter.min_diff, limiter.max_diff) == (2.0, 10.0)
    assert info.signature == signature
    assert info.current_size == 0


@pytest.mark.parametrize(
    ("make", "distribution"), [(reverb.Table.queue, "fifo"), (reverb.Table.stack, "lifo")]
)
def test_queues_and_stacks(make, distribution):
    info = make("name", 5, signature=TensorSpec([None], np.int32)).info
    assert info.sampler_options.WhichOneof("distribution") == distribution
    assert info.remover_options.WhichOneof("distribution") == distribution
    assert (info.max_size, info.max_times_sampled) == (5, 1)
    assert (info.rate_limiter_info.min_diff, info.rate_limiter_info.max_diff) == (0.0, 5.0)
    assert info.signature == TensorSpec([None], np.int32)


@pytest.mark.parametrize("method", ["can_sample", "can_insert"])
@pytest.mark.parametrize("number", [0, -1])
def test_a_number_of_operations_is_positive(method, number):
    with pytest.raises(InvalidArgumentError, match=f"at least 1, got {number}"):
        getattr(table(), method)(number)


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (reverb.selectors.Uniform, None),
        (lambda: reverb.selectors.Prioritized(0.5), None),
        (reverb.selectors.Fifo, {0}),
        (reverb.selectors.Lifo, {99}),
        (reverb.selectors.MaxHeap, {99}),
        (reverb.selectors.MinHeap, {0}),
    ],
)
def test_a_seed_makes_every_selector_repeatable(serve, sampler, expected):
    def choices():
        client = serve(testing.table("t", sampler=sampler(), seed=3))
        client.insert_batch([np.arange(100)], {"t": np.arange(100.0) + 1})
        singly = [int(steps[0].data[0]) for steps in client.sample("t", 10)]
        client.mutate_priorities("t", {1: 2.0})
        return singly + client.sample_batch("t", 10).data[0].ravel().tolist()

    first = choices()
    assert choices() == first
    assert expected is None or set(first) == expected


def test_a_seed_makes_removals_repeatable(serve):
    def kept():
        table = testing.table("t", remover=reverb.selectors.Uniform(), max_size=5, seed=3)
        client = serve(table)
        client.insert_batch([np.arange(50)], {"t": 1.0})
        found = []
        while table.info.current_size:
            (sample,) = client.sample("t", emit_timesteps=False)
            found.append(int(sample.data[0][0]))
            client.mutate_priorities("t", deletes=[sample.info.key])
        return found

    assert kept() == kept()


def test_a_replaced_table_keeps_the_seed(serve):
    original = testing.table("t", sampler=reverb.selectors.Uniform(), seed=5)
    found = []
    for table in (original.replace(), original, original.replace(seed=6)):
        client = serve(table)
        client.insert_batch([np.arange(100)], {"t": 1.0})
        found.append(client.sample_batch("t", 20).data[0].ravel().tolist())
    assert found[0] == found[1] != found[2]


def test_a_stopped_table_still_tells_of_itself(start):
    table = testing.table()
    server = start(table)
    server.localhost_client().insert([1], {"table": 1.0})
    server.stop()
    assert table.info.current_size == 1
    assert (table.can_sample(1), table.can_insert(1)) == (True, True)


def test_permission_looks_at_the_limiter_alone(serve):
    table = testing.table("t", max_size=2, max_times_sampled=1)
    client = serve(table)
    client.insert_batch([np.arange(2)], {"t": 1.0})
    assert table.can_sample(3)
    assert table.can_insert(3)


@pytest.mark.parametrize(("make", "order"), [("queue", [0, 1, 2]), ("stack", [2, 1, 0])])
def test_queues_and_stacks_hand_out_every_item_once(serve, background, make, order):
    table = getattr(reverb.Table, make)("t", 3)
    client = serve(table)
    client.insert_batch([np.arange(3)], {"t": 1.0})
    assert not table.can_insert(1)
    call = background(client.insert, [3], {"t": 1.0})
    taken = [int(next(client.sample("t"))[0].data[0]) for _ in range(3)]
    call.result()
    assert taken[0] == order[0]
    assert sorted([*taken, int(next(client.sample("t"))[0].data[0])]) == [0, 1, 2, 3]
    assert table.info.current_size == 0
