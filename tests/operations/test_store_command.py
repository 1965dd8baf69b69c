# SPDX-License-Identifier: Apache-2.0
"""`reverb store` on the directory that a killed server has left."""

import json
import re
import shlex

import numpy as np
import pytest

import reverb
from reverb import command
from reverb.errors import DataLossError
from support.programs import Program
from support.waiting import wait_until

# Three commits.
_SERVER = """
    import sys
    from operations.test_store_command import fill, serve
    server = serve(sys.argv[1])
    client = server.localhost_client()
    for begin in (0, 10, 20):
        fill(client, range(begin, begin + 10))
        client.sync(b"step %d" % begin)
    print(server.port, flush=True)
    sys.stdin.readline()
"""


def serve(directory, journal=True, **options):
    limiter = reverb.rate_limiters.MinSize(1)
    selectors = reverb.selectors
    table = reverb.Table("replay", selectors.Fifo(), selectors.Fifo(), 10_000, limiter)
    store = reverb.Store(directory, journal=journal, sync_interval_s=60)
    return reverb.Server([table], store=store, **options)


def fill(client, numbers):
    numbers = np.asarray(numbers)
    noise = np.stack([np.random.default_rng(it).integers(0, 256, 4000, np.uint8) for it in numbers])
    client.insert_batch({"noise": noise, "number": numbers}, {"replay": 1.0})


def numbers_of(directory):
    with serve(directory) as server:
        items = server.localhost_client().scan("replay")
        return sorted(int(np.asarray(item.data[1]).reshape(-1)[0]) for item in items)


@pytest.fixture
def left(tmp_path):
    """The directory of a server that was killed after 30 items in three commits."""
    directory = tmp_path / "store"
    with Program(_SERVER, directory) as program:
        program.line()
        program.kill()
    return directory


@pytest.fixture
def run(capfd):
    def run(action, *arguments):
        code = command.main(["store", action, *map(str, arguments)])
        return code, *capfd.readouterr()

    return run


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_server_that_runs_has_the_directory(tmp_path, run):
    with Program(_SERVER, tmp_path) as program:
        program.line()
        for action in ("check", "repair"):
            code, _, err = run(action, tmp_path)
            assert (code, f"is in use by process {program.pid} on " in err) == (1, True)


def test_a_whole_journal_is_told_and_left(left, run):
    files = {path: path.read_bytes() for path in left.iterdir() if path.name != "LOCK"}
    for action in ("check", "repair"):
        code, out, err = run(action, left, "--max-rate=1GB")
        assert (code, err) == (0, "")
        assert "  table replay: 30 items\n" in out
        assert "note of " in out
        assert out.endswith(": step 20\nIt is whole.\n")
    assert files == {path: path.read_bytes() for path in left.iterdir() if path.name != "LOCK"}
    report = json.loads(run("check", left, "--json")[1])
    assert report["tables"] == {"replay": {"num_items": 30, "lost": {}}}
    assert report["files"]["data files"]["count"] == 1
    assert len(numbers_of(left)) == 30


def test_a_repair_keeps_what_is_before_the_damage(left, run):
    (log,) = left.glob("log-*")
    # The second of the three frames.
    second = [it.start() for it in re.finditer(b"CUT1", log.read_bytes())][1]
    flip(log, second + 100)
    with pytest.raises(DataLossError, match=r"is damaged at .* would be lost: ") as refused:
        serve(left)
    action, directory = shlex.split(str(refused.value).partition("reverb store ")[2])
    code, out, _ = run("check", directory)
    assert code == 3
    assert f"Damage: {log.name} is damaged at {second}: " in out
    assert out.endswith(f"Keep the rest by: reverb store repair {left}\n")
    code, out, _ = run(action, directory)
    assert code == 0
    assert "Items and updates since" in out
    (aside,) = left.glob("before-repair-*")
    assert out.endswith(
        f"Repaired: a server can start. The logs and bases of before are in {aside}\n"
    )
    assert (aside / log.name).exists()
    assert run("check", left)[0] == 0
    assert numbers_of(left) == list(range(10))


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_items_without_their_data_are_dropped(left, run, damage):
    (data,) = left.glob("data-*")
    if damage == "missing":
        data.unlink()
        with pytest.raises(DataLossError, match=r"item \d+ needs .*: reverb store repair "):
            serve(left)
    else:
        flip(data, 5000)
    code, out, _ = run("repair", left)
    kept = 0 if damage == "missing" else 29
    assert code == (kept == 0), "1 if nothing can be kept"
    assert f"  table replay: {kept} items\n" in out
    assert f"Of table replay, {30 - kept} item" in out
    assert data.name in out
    assert len(numbers_of(left)) == kept


def test_what_is_no_journal_is_refused_plainly(tmp_path, run):
    (tmp_path / "empty").mkdir()
    tier = tmp_path / "tier"
    source = """
        import sys
        from operations.test_store_command import fill, serve
        store = serve(sys.argv[1], journal=False, max_bytes="16MiB")
        for begin in range(0, 6000, 1000):
            fill(store.localhost_client(), range(begin, begin + 1000))
        print(store.port, flush=True)
        sys.stdin.readline()
    """
    with Program(source, tier) as program:
        program.line()
        wait_until(lambda: list(tier.glob("data-*")))
        program.kill()
    cases = {
        "missing": "missing is no store that can be read: No such file or directory",
        "empty": "empty is no store: it has no files of one",
        "tier": "tier is no journal: what is in it was of use to its server alone",
    }
    for name, expected in cases.items():
        for action in ("check", "repair"):
            code, out, err = run(action, tmp_path / name)
            assert (code, out) == (1, "")
            assert expected in err
    assert not (tmp_path / "missing").exists()
    assert not any((tmp_path / "empty").iterdir())


def test_wrong_rate(tmp_path, run):
    code, _, err = run("check", tmp_path, "--max-rate=fast")
    assert code == 1
    assert '--max-rate must be a number of bytes or a size such as "12GiB", got "fast"' in err
