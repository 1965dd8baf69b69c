# SPDX-License-Identifier: Apache-2.0
"""Changing tables while they run: their settings, pauses, and rate limiters that are off."""

import contextlib
import dataclasses
import inspect
import threading

import numpy as np
import pytest

import reverb
from reverb import errors, testing
from reverb.cluster.shard_tables import part_settings
from reverb.core import protos
from support import rollout_tables
from support.hosts import on_both_hosts
from support.stalls import limiter


class Served:
    """A server with a table `replay` and a client of it."""

    def __init__(self, host, **options):
        self.server = reverb.Server([testing.table("replay", **{"max_size": 1000, **options})])
        self.client = reverb.Client(f"{host}:{self.server.port}")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.server.stop()

    def insert(self, count):
        self.client.insert_batch({"x": np.zeros((count, 4))}, {"replay": np.ones(count)})

    def status(self):
        return self.client.status().tables["replay"]


# A value of each setting that is another one than in `Served` with a prioritized sampler.
CHANGES = {
    "max_size": lambda: 40,
    "max_bytes": lambda: "1MiB",
    "max_times_sampled": lambda: 3,
    "rate_limiter": lambda: reverb.rate_limiters.SampleToInsertRatio(4.0, 10, 20.0),
    "priority_exponent": lambda: 0.5,
    "sampler": lambda: reverb.selectors.Prioritized(0.5),
    "rollouts": lambda: reverb.Rollouts(2, item=("prompt",), max_staleness=1),
}
SETTINGS = [field.name for field in dataclasses.fields(reverb.TableChange)]


def table_of(setting):
    """Options of a table that has the setting."""
    if setting != "rollouts":
        return {"sampler": reverb.selectors.Prioritized(0.8)}
    rollouts = reverb.Rollouts(2, item=("prompt",))
    return {"signature": rollout_tables.SIGNATURE, "rollouts": rollouts}


def test_the_message_has_no_other_settings():
    assert {"table", *SETTINGS} == {it.name for it in protos.TableChange.DESCRIPTOR.fields}


@pytest.mark.parametrize("setting", SETTINGS)
class TestEverySetting:
    """Fails for a setting that was forgotten somewhere; CONTRIBUTING.md has the recipe."""

    @pytest.mark.parametrize("num_shards", [1, 2])
    def test_it_changes_alone(self, setting, num_shards):
        is_group = num_shards > 1
        if setting == "rollouts":
            num_shards = 1  # Of the group, too.
        with contextlib.ExitStack() as stack:
            served = [
                stack.enter_context(Served("127.0.0.1", **table_of(setting)))
                for _ in range(num_shards)
            ]
            addresses = ",".join(f"127.0.0.1:{it.server.port}" for it in served)
            client = reverb.Client(f"shards:///{addresses}" if is_group else addresses)
            changes = {"replay": reverb.TableChange(**{setting: CHANGES[setting]()})}
            changed = client.configure_tables(changes)
            assert changed != []
            assert client.configure_tables(changes) == []

    def test_the_call_has_it(self, setting):
        call = inspect.signature(reverb.Client.configure_table).parameters
        assert call[setting].default == getattr(reverb.TableChange(), setting)
        with Served("127.0.0.1", **table_of(setting)) as served:
            before = served.server._tables[0].internal_settings
            served.client.configure_table("replay", **{setting: CHANGES[setting]()})
            assert served.server._tables[0].internal_settings != before

    def test_a_shard_that_starts_again_gets_it(self, setting):
        def make():
            return Served("127.0.0.1", **table_of(setting))

        with make() as changed, make() as started:
            changed.client.configure_table("replay", **{setting: CHANGES[setting]()})
            [table] = changed.server._tables
            _, part = part_settings(table.internal_table.info(), 0, 1)
            started.server.configure_tables({"replay": part.change_from(())})
            assert started.server._tables[0].internal_settings == table.internal_settings


@on_both_hosts
class TestSettings:
    def test_each_setting_changes(self, host):
        sampler = reverb.selectors.Prioritized(0.8)
        with Served(host, sampler=sampler) as served:
            served.insert(100)
            info = served.client.configure_table(
                "replay",
                max_size=40,
                max_bytes="1MiB",
                max_times_sampled=3,
                rate_limiter=reverb.rate_limiters.SampleToInsertRatio(4.0, 10, 20.0),
                priority_exponent=0.5,
            )
            assert (info.max_size, info.current_size, info.max_times_sampled) == (40, 40, 3)
            assert info.rate_limiter_info.samples_per_insert == 4.0
            assert info.rate_limiter_info.min_size_to_sample == 10
            assert info.sampler_options.prioritized.priority_exponent == 0.5
            status = served.status()
            assert (status.max_items, status.max_bytes) == (40, 2**20)
            assert (status.removed.shrunk, status.removed.total) == (60, 60)
            assert served.client.server_info()["replay"].max_size == 40
            unlimited = served.client.configure_table("replay", max_bytes=None, max_times_sampled=0)
            assert unlimited.max_times_sampled == 0
            assert served.status().max_bytes is None

    def test_no_table_changes_nothing(self, host):
        with Served(host) as served:
            assert served.client.configure_tables({}) == []
            served.client.close()
            with pytest.raises(errors.FailedPreconditionError, match="is closed"):
                served.client.configure_tables({})

    def test_no_setting_changes_nothing(self, host):
        with Served(host, max_bytes="1MiB", max_times_sampled=7) as served:
            before = served.client.server_info()["replay"]
            after = served.client.configure_table("replay")
            assert (after.max_size, after.max_times_sampled) == (1000, 7)
            assert after.rate_limiter_info == before.rate_limiter_info
            assert served.status().max_bytes == 2**20

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"max_size": 0}, "max_size must be at least 1 and at most 2147483647, got 0"),
            (
                {"max_size": 4},
                "max_size 4 is below min_size_to_sample 5 of table replay: nothing could be "
                "sampled any more. Change the rate limiter in the same call",
            ),
            ({"max_size": 2**70}, "max_size must fit into 64 bits, got 1180591620717411303424"),
            ({"max_times_sampled": 2**31}, "max_times_sampled must fit into 32 bits, got"),
            ({"max_bytes": "12 gigs"}, 'a size such as "12GiB"'),
            ({"max_bytes": 0}, "max_bytes must be at least 1"),
            ({"max_times_sampled": -1}, "max_times_sampled must be at least 0, got -1"),
            (
                {"priority_exponent": 0.5},
                "The sampler of table replay is uniform: it has no priority_exponent",
            ),
            (
                {"rate_limiter": limiter(min_size=1001)},
                "min_size_to_sample 1001 is above max_size 1000",
            ),
        ],
    )
    def test_what_cannot_be_is_refused(self, host, change, text):
        options = {"sampler": reverb.selectors.Uniform(), "rate_limiter": limiter(min_size=5)}
        with Served(host, **options) as served:
            with pytest.raises(errors.InvalidArgumentError) as raised:
                served.client.configure_table("replay", **{"max_times_sampled": 9, **change})
            assert text in str(raised.value)
            assert served.client.server_info()["replay"].max_times_sampled == 0

    def test_wrong_types_and_names(self, host):
        with Served(host) as served:
            with pytest.raises(TypeError, match="must be one of reverb"):
                served.client.configure_table("replay", rate_limiter=3)
            with pytest.raises(TypeError):
                served.client.configure_table("replay", max_size="many")
            with pytest.raises(TypeError, match=r"must hold reverb\.TableChange objects, got \{"):
                served.client.configure_tables({"replay": {"max_size": 1}})
            with pytest.raises(errors.TableNotFoundError):
                served.client.configure_table("other", max_size=1)

    def test_a_snapshot_has_the_new_settings(self, host, tmp_path):
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
        with reverb.Server([testing.table("replay")], checkpointer=checkpointer) as server:
            client = reverb.Client(f"{host}:{server.port}")
            client.configure_table("replay", max_size=77)
            client.checkpoint()
        with reverb.Server(
            [testing.table("replay")],
            checkpointer=reverb.checkpointers.DefaultCheckpointer(
                str(tmp_path), restore_settings=True
            ),
        ) as server:
            assert server.localhost_client().server_info()["replay"].max_size == 77


@on_both_hosts
class TestPause:
    def test_a_timeout_says_who_pauses(self, host, monkeypatch):
        with Served(host) as served:
            served.insert(3)
            served.client.pause_table("replay", inserts=False)
            with pytest.raises(reverb.DeadlineExceededError) as raised:
                served.client.sample_batch("replay", 1, timeout_ms=10)
            assert "Samples of table replay are paused by " in str(raised.value)
            assert "resume_table resumes them" in str(raised.value)
            served.insert(1)
            served.client.resume_table("replay")
            assert next(served.client.sample("replay"))

    def test_one_side_is_meant(self, host):
        with Served(host) as served:
            with pytest.raises(errors.InvalidArgumentError, match="must not both be False"):
                served.client.pause_table("replay", inserts=False, samples=False)
            with pytest.raises(errors.TableNotFoundError):
                served.client.resume_table("other")


@on_both_hosts
class TestRateLimiterOff:
    def test_only_one_at_a_time(self, host):
        with Served(host) as served, served.client.rate_limiter_off("replay"):
            other = reverb.Client(f"{host}:{served.server.port}")
            with (
                pytest.raises(errors.FailedPreconditionError) as raised,
                other.rate_limiter_off("replay"),
            ):
                pass
            assert "The rate limiter of table replay is off already, for " in str(raised.value)

    def test_an_error_in_the_block_is_the_one_to_see(self, host):
        with Served(host, rate_limiter=limiter(1.0, 1, 0.0, 2.0)) as served:
            with pytest.raises(KeyError, match="mine"), served.client.rate_limiter_off("replay"):
                raise KeyError("mine")
            assert served.status().rate_limiter_off is None

    def test_a_server_that_stops_within_the_block(self, host):
        with (
            Served(host) as served,
            pytest.raises(errors.UnavailableError),
            served.client.rate_limiter_off("replay"),
        ):
            served.server.stop()


@on_both_hosts
class TestDrain:
    def test_streams_end_and_probes_say_so(self, host):
        with Served(host) as served:
            with served.client.trajectory_writer(1) as writer:
                writer.append([1.0])
                writer.create_item("replay", 1.0, [writer.history[0][-1:]])
                writer.flush()
                assert served.client.drain(5_000) == 0
            status = served.client.status()
            assert status.draining.client
            assert status.tables["replay"].diagnosis.state == "draining"
            refused = reverb.Client(f"{host}:{served.server.port}", connect_timeout_s=0.2)
            with pytest.raises(errors.UnavailableError, match="The server is draining"):
                refused.insert([1.0], {"replay": 1.0})
            with pytest.raises(errors.UnavailableError, match="The server is draining"):
                refused.sample_batch("replay", 1)
            assert refused.checkpoint()

    def test_a_bad_time_is_refused(self, host):
        with Served(host) as served:
            with pytest.raises(errors.InvalidArgumentError, match="timeout_ms must be"):
                served.client.drain(-1)
            with pytest.raises(errors.InvalidArgumentError, match="drain_s must be at least 0"):
                served.server.stop(drain_s=-1.0)
            with pytest.raises(errors.InvalidArgumentError, match="at most 86400, got inf"):
                served.server.stop(drain_s=float("inf"))
            assert served.client.status().draining is None

    def test_a_waiting_learner_is_not_given_items_that_it_never_gets(self, host):
        """A queue hands each item out once, also when it is drained between two servers."""
        table = reverb.Table.queue("replay", 1000)
        with reverb.Server([table]) as server:
            client = reverb.Client(f"{host}:{server.port}", connect_timeout_s=0.5)
            got = []

            def learn():
                try:
                    while True:
                        got.extend(client.sample_batch("replay", 3).info.key)
                except errors.ReverbError as error:
                    got.extend(sample.info.key for sample in getattr(error, "samples", ()))

            learner = threading.Thread(target=learn)
            learner.start()
            writer = server.localhost_client()
            writer.insert_batch([np.arange(100)], {"replay": np.ones(100)})
            server.stop(drain_s=5.0)
            learner.join()
            assert len(got) + table.info.current_size == 100


@on_both_hosts
class TestTimeouts:
    """A timeout says what the table waits for, in the words of the page."""

    def test_a_sample_that_has_waited_for_long(self, host):
        with Served(host, rate_limiter=limiter(min_size=9)) as served:
            served.insert(2)
            with pytest.raises(reverb.DeadlineExceededError) as raised:
                served.client.sample_batch("replay", 1, timeout_ms=1100)
            text = str(raised.value)
            assert "Table replay: 7 more inserts allow the next sample. " in text
            assert "The table is filling: 2 of 9 items; then sampling starts" in text

    def test_a_short_wait_is_told_as_before(self, host):
        with Served(host, rate_limiter=limiter(min_size=9)) as served:
            with pytest.raises(reverb.DeadlineExceededError) as raised:
                served.client.sample_batch("replay", 1, timeout_ms=50)
            assert "The table is" not in str(raised.value)
