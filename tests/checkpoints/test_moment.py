# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is one moment of all tables, while everybody goes on.

One thread does numbered operations, each on table `a`, then on `b`, then on `c`. Whatever was saved
has to be the state of `a` after some number of them, and of `b` and `c` after as many or one less.
"""

import itertools
import pathlib
import time

import numpy as np
import pytest

import reverb
from reverb import testing
from support.checkpoints import on_disk, table_model
from support.checkpoints.traffic import FEW, MANY, Driver, SamplingDriver, go_on, save_often

TABLES = "abc"

LONG = [pytest.mark.slow, pytest.mark.timeout(300)]


def check_order(found, before, after):
    """Checks that what was found is one moment between two others.

    Args:
      found: For each table, in the order in which the driver goes through them, after how many
        operations it was in the state that was saved.
      before: How many were done on all tables when saving began.
      after: How many had begun when it ended.
    """
    assert all(found), f"a table is in a state in which it never was: {found}"
    possible = [
        first
        for first in found[0]
        if before <= first <= after
        and any(
            {first, first - 1} & found[-1] and all({first, last} & each for each in found)
            for last in found[-1]
            if first - 1 <= last <= first
        )
    ]
    assert possible, f"{found} is not one moment of {before} to {after}"


@pytest.mark.parametrize(
    ("found", "is_one"),
    [
        ([{5}, {5}, {5}], True),
        ([{5}, {4}, {4}], True),
        ([{4, 5}, {5, 6}, {5}], True),
        ([{5}, {5}, {3}], False),
        ([{5}, {4}, {5}], False),
        ([{4}, {5}, {5}], False),
        ([{5}, set(), {5}], False),
        ([{11}, {11}, {11}], False),
    ],
    ids=str,
)
def test_the_check_tells_one_moment_from_several(found, is_one):
    if is_one:
        check_order(found, 2, 10)
        return
    with pytest.raises(AssertionError):
        check_order(found, 2, 10)


@pytest.mark.parametrize(
    ("seed", "size", "saves"),
    [
        pytest.param(1, FEW, 12, id="small"),
        pytest.param(2, MANY, 4, id="large"),
        *(
            pytest.param(seed, size, 60, id=f"{seed} {size}", marks=LONG)
            for seed in range(3, 8)
            for size in (FEW, MANY)
        ),
    ],
)
def test_every_operation_is_in_all_tables_or_in_none(serve, root, until, seed, size, saves, state):
    max_size, max_times = size + 20, 3
    tables = [
        testing.table(name, max_size=max_size, max_times_sampled=max_times) for name in TABLES
    ]
    client = serve(root, *tables, keep_latest=1000)
    driver = SamplingDriver(client, seed, 10, TABLES, max_times, size=size, resets=size == FEW)
    stop = go_on([driver])
    try:
        saves = save_often(client, [driver], until, saves)
    finally:
        stop()
    stored = [on_disk.read(path, verify=False) for path, *_ in saves]
    found = {
        name: table_model.moments(
            table_model.Model(max_size, max_times),
            driver.log,
            [table_model.stored_state(one, name) for one in stored],
        )
        for name in TABLES
    }
    for at, (_, (before,), (after,)) in enumerate(saves):
        check_order([found[name][at] for name in TABLES], before, after)
    client.server.stop()
    # A server that loads one of them holds just what is in the files.
    for (path, *_), one in list(zip(saves, stored, strict=True))[::8]:
        tables = [
            testing.table(name, max_size=max_size, max_times_sampled=max_times) for name in TABLES
        ]
        restored = serve(root.parent / "no root", *tables, fallback_checkpoint_path=path)
        for name in TABLES:
            items = [held[:3] for held in state(restored, name)]
            assert items == table_model.stored_state(one, name)[1]
        restored.server.stop()


def test_several_threads_at_once(serve, root, until):
    """Each has keys of its own; the counters have to be the sums of what they did by then."""
    names = "ab"
    tables = [testing.table(name, max_size=10**6) for name in names]
    client = serve(root, *tables, keep_latest=1000)
    drivers = [Driver(client, seed, (seed + 1) * 10**9, names, resets=False) for seed in range(3)]
    stop = go_on(drivers)
    try:
        saves = save_often(client, drivers, until, 12)
    finally:
        stop()
    for path, before, after in saves:
        stored = on_disk.read(path, verify=False)
        inserts = {name: [set()] for name in names}
        for number, driver in enumerate(drivers):
            found = []
            for name in names:
                mine = [
                    (item.key, item.priority, item.times_sampled)
                    for item in stored.items_of(name)
                    if item.key // 10**9 == number + 1
                ]
                found.append(moments_of_items(driver.log, mine))
                counts = {inserts_after(driver.log, k) for k in found[-1]}
                inserts[name].append(counts)
            check_order(found, before[number], after[number])
        for name in names:
            limiter = stored.table(name).rate_limiter
            sums = {sum(choice) for choice in itertools.product(*inserts[name][1:])}
            assert limiter.insert_count in sums
            assert limiter.insert_count - limiter.delete_count == len(stored.items_of(name))


def moments_of_items(log, items):
    """After how many operations the items of a thread were these, whatever the counters."""
    one = table_model.Model(10**9)
    found = set()
    for done in range(len(log) + 1):
        if len(one.items) == len(items) and one.state()[1] == items:
            found.add(done)
        if done < len(log):
            one.apply(log[done])
    return found


def inserts_after(log, count):
    """How many items the first operations inserted."""
    return sum(
        len(arguments[0]) if name == "fill" else name == "insert"
        for name, *arguments in log[:count]
    )


def test_samples_are_counted_with_their_items(serve, root, until):
    """Random samples from several threads: what the items say is what the counters say."""
    tables = [
        testing.table("a", sampler=reverb.selectors.Uniform(), max_size=10**6),
        testing.table("b", sampler=reverb.selectors.Prioritized(0.8), max_size=10**6),
    ]
    client = serve(root, *tables, keep_latest=1000)
    for name in "ab":
        client.insert_batch([np.arange(3000)], {name: 1.0})

    class Sampler:
        def __init__(self, name, count):
            self.done = 0
            self._name, self._count = name, count

        def step(self):
            batch = client.sample_batch(self._name, self._count)
            keys = batch.info.key[:3].tolist()
            client.mutate_priorities(self._name, dict.fromkeys(keys, float(self.done + 1)))
            self.done += 1

        begun = property(lambda self: self.done)

        def close(self):
            pass

    class Inserter(Sampler):
        def step(self):
            client.insert_batch([np.arange(10)], {self._name: 2.0})
            self.done += 1
            time.sleep(0.002)  # The table shall stay small enough to be read by hand.

    drivers = [Sampler("a", 64), Sampler("a", 7), Sampler("b", 64), Inserter("b", 0)]
    stop = go_on(drivers)
    try:
        saves = save_often(client, drivers, until, 5)
    finally:
        stop()
    for path, *_ in saves:
        stored = on_disk.read(path, verify=False)
        for name in "ab":
            record, items = stored.table(name), stored.items_of(name)
            limiter = record.rate_limiter
            assert sum(item.times_sampled for item in items) == limiter.sample_count
            assert sum(item.times_sampled > 0 for item in items) == record.num_unique_samples
            assert limiter.insert_count - limiter.delete_count == len(items)


def test_a_large_table_whose_oldest_items_go_all_the_time(serve, root, until, values):
    """So large that copying it takes many turns, and full, so that places are used again."""
    size = 20_000
    tables = [testing.table(name, max_size=size) for name in "ab"]
    client = serve(root, *tables, keep_latest=1000)
    client.insert_batch([np.arange(size)], {"a": 1.0, "b": 1.0})

    class Pusher:
        begun = done = 0

        def __init__(self):
            self._writer = client.trajectory_writer(1)
            self.next = size

        def step(self):
            for _ in range(100):
                self._writer.append([self.next])
                for name in "ab":
                    self._writer.create_item(name, 1.0, [self._writer.history[0][-1:]])
                self.next += 1
            self._writer.flush()
            self.done += 1
            self.begun = self.done + 1

        def close(self):
            self._writer.close()

    driver = Pusher()
    stop = go_on([driver])
    try:
        saves = save_often(client, [driver], until, 3)
    finally:
        stop()
    client.server.stop()
    for path, (before,), (after,) in saves:
        tables = [testing.table(name, max_size=size) for name in "ab"]
        restored = serve(root.parent / "no root", *tables, fallback_checkpoint_path=path)
        heads = []
        for name in "ab":
            info = restored.server_info()[name]
            inserts = info.rate_limiter_info.insert_stats.completed
            held = np.asarray(values(restored, name))
            assert held.tolist() == list(range(inserts - size, inserts))
            assert (info.num_episodes > 0, info.num_unique_samples) == (True, 0)
            assert size + 100 * before <= inserts <= size + 100 * (after + 1)
            heads.append(inserts)
        # Items go into `a` first, but for those of one message, which may be applied in any order.
        assert abs(heads[0] - heads[1]) <= 200, heads
        restored.server.stop()


def test_items_that_wait_for_their_table_are_no_part_of_it(serve, root, background, values):
    client = serve(root, reverb.Table.queue("table", 3))
    call = background(client.insert_batch, [np.arange(5)], {"table": 1.0})
    testing.wait_for_items(client, "table", 3)
    stored = on_disk.read(client.checkpoint())
    assert [int(stored.columns(item)[0][0]) for item in stored.items] == [0, 1, 2]
    assert stored.table().rate_limiter.insert_count == 3
    assert len(list(client.sample("table", 5))) == 5
    call.result()
    client.server.stop()
    client = serve(root, reverb.Table.queue("table", 3))
    assert values(client) == [0, 1, 2]
    assert len(list(client.sample("table", 3))) == 3


def test_saving_in_a_row_never_goes_back(serve, root, until):
    """The later of two checkpoints has all items of the earlier one, and more."""
    client = serve(root, testing.table(max_size=10**6), keep_latest=1000)
    driver = Driver(client, 3, 10, ["table"], resets=False)
    stop = go_on([driver])
    try:
        saves = save_often(client, [driver], until, 30)
    finally:
        stop()
    paths = [pathlib.Path(path).name for path, *_ in saves]
    assert paths == sorted(paths)
    limiters = [
        reverb.checkpointers.read(path).tables["table"].rate_limiter_info for path, *_ in saves
    ]
    inserts = [limiter.insert_stats.completed for limiter in limiters]
    assert inserts == sorted(inserts)
    for count, (_, (before,), (after,)) in zip(inserts, saves, strict=True):
        assert inserts_after(driver.log, before) <= count <= inserts_after(driver.log, after)
