# SPDX-License-Identifier: Apache-2.0
"""Files of npz and Parquet that claim more than they have, or that a reader would wait for."""

import json
import os
import struct
import zipfile

import numpy as np
import pytest

from reverb import command, datasets, errors, testing
from support import made_episodes
from support.claims import MIB, refused

pa = pytest.importorskip("pyarrow", reason="pyarrow comes with the extra `test`")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow comes with the extra `test`")

FIELDS = ("observations", "next_observations", "actions", "rewards", "terminals")


def npy(shape, data=b"", *, descr="<f8", header=None, version=1):
    """The bytes of an array, whose header may say anything."""
    described = {"descr": descr, "fortran_order": False, "shape": shape}
    text = (repr(described) if header is None else header).encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes((version, 0)) + length + text + data


def write(path, *, method=zipfile.ZIP_DEFLATED, **members):
    """Writes a file of one episode, in which some fields are other bytes."""
    good = {name: npy((4,), bytes(32)) for name in FIELDS}
    good["observations"] = good["next_observations"] = npy((4, 2), bytes(64))
    good["terminals"] = npy((4,), b"\0\0\0\1", descr="|b1")
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in (good | members).items():
            file.writestr(f"{name}.npy", data)
    return f"npz:{path}"


def zeros(rows, descr="<f8", size=8):
    return npy((rows,), bytes(rows * size), descr=descr)


# Fields of a file, and the error.
NPZ = {
    "long header": ({"rewards": npy((4,), header=" " * MIB, version=2)}, "not 10,000"),
    "deep header": ({"rewards": npy((4,), header="[" * 9000)}, "the header of the array"),
    "deep sign": ({"rewards": npy((4,), header="-" * 9000 + "1")}, "the header of the array"),
    "other header": ({"rewards": npy((4,), header="[1, 2]")}, "the header of the array is damaged"),
    "rows": ({"rewards": npy((2**50,))}, r"claims 1125899906842624 rows of 8 bytes"),
    "row": ({"observations": npy((5, 2**32, 2**32), bytes(80))}, "claims 5 rows of"),
    "flags": ({"terminals": npy((2**50, 0), descr="|b1")}, "must be a number a row"),
    "wide flags": ({"terminals": npy((4, 9), bytes(36), descr="|b1")}, "must be a number a row"),
    "negative shape": ({"rewards": npy((-4,), bytes(32))}, r"has the shape \(-4,\)"),
    "float shape": ({"rewards": npy((4.0,), bytes(32))}, r"has the shape \(4.0,\)"),
    "text shape": ({"rewards": npy(("a",), bytes(32))}, r"has the shape \('a',\)"),
    "no values": ({"rewards": npy((4,), descr="|V0")}, "must be numbers"),
    "objects": ({"rewards": npy((4,), descr="|O")}, "must be numbers, got objects"),
    "fields": ({"rewards": npy((4,), descr=[("a", "<f8", (2**20, 2**20))])}, "numbers are read"),
    "joined dtype": ({"rewards": npy((4,), bytes(64), descr="f8,O")}, "numbers are read"),
    "other dtype": ({"rewards": npy((4,), descr="<z9")}, "numbers are read"),
    "falling offsets": (
        {"rewards/offsets": npy((4,), struct.pack("<4Q", 0, 4, 2, 4), descr="<u8")},
        "field rewards/offsets: are no growing offsets from 0",
    ),
    "large offsets": (
        {"rewards/offsets": npy((2,), struct.pack("<2Q", 0, 2**63 + 4), descr="<u8")},
        "are no growing offsets",
    ),
    "negative offsets": (
        {"rewards/offsets": npy((2,), struct.pack("<2q", -4, 4), descr="<i8")},
        "are no growing offsets",
    ),
    "no offsets": ({"rewards/offsets": npy((0,), descr="<i8")}, "are no growing offsets"),
    "many offsets": ({"rewards/offsets": zeros(2 * MIB, "|i1", 1)}, "more than 1,048,576"),
    "deep name": ({"infos/" + "a/" * 30_000 + "b": zeros(4)}, "more than 32 nests"),
    "name in another": ({"infos/a": zeros(4), "infos/a/b": zeros(4)}, "which is an array"),
    "nest of rewards": ({"rewards/a": zeros(4)}, "rewards must be an array, and not a nest"),
    "same info": ({"infos/a": zeros(4), "a": zeros(4)}, "are the same"),
}


@pytest.mark.parametrize("case", NPZ)
def test_a_claim_of_an_npz_file(case, tmp_path):
    members, text = NPZ[case]
    refused(write(tmp_path / "a.npz", **members), text)


def test_episodes_of_an_npz_file_are_bounded(tmp_path):
    rows = 2 * MIB
    big = {"observations": zeros(rows), "next_observations": zeros(rows), "actions": zeros(rows)}
    flags = bytearray(rows)
    flags[-1] = 1
    big["rewards"] = zeros(rows)
    source = write(tmp_path / "a.npz", **big, terminals=npy((rows,), bytes(flags), descr="|b1"))
    refused(source, r"episode 0: it takes 69,206,016 bytes of memory, more than", max_bytes="1MiB")
    refused(source, r"has 2097152 steps, more than max_length = 1000", max_length=1000)
    ends = write(tmp_path / "b.npz", **big, terminals=npy((rows,), b"\1" * rows, descr="|b1"))
    refused(ends, "has more than 1,048,576 episodes")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_method_that_numpy_does_not_write(tmp_path, method):
    refused(write(tmp_path / "a.npz", method=method), f"compressed by method {method}")


@pytest.mark.parametrize(("name", "at", "text"), [("flag", 8, "is encrypted"), ("kind", 10, "99")])
def test_an_archive_whose_members_cannot_be_read(tmp_path, name, at, text):
    source = write(tmp_path / "a.npz")
    data = bytearray((tmp_path / "a.npz").read_bytes())
    entry = data.find(b"PK\1\2")
    while entry >= 0:
        data[entry + at] = 1 if name == "flag" else 99
        entry = data.find(b"PK\1\2", entry + 4)
    (tmp_path / "a.npz").write_bytes(data)
    refused(source, text)


def test_an_archive_of_very_many_members(tmp_path):
    names = {f"infos/{number}": b"" for number in range(40_000)}
    refused(write(tmp_path / "a.npz", **names), "its list of members has")
    names = {f"infos/{number}": b"" for number in range(5_000)}
    refused(write(tmp_path / "b.npz", **names), "has 5005 fields, more than 4096")


def test_two_members_of_one_name(tmp_path):
    source = write(tmp_path / "a.npz")
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "a") as file,
        pytest.warns(UserWarning, match="Duplicate"),
    ):
        file.writestr("rewards.npy", zeros(4))
    refused(source, "has two fields of one name")


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        ("[" * 200_000, "more than 100000 objects"),
        ("[" * 20_000, "recursion|is damaged"),
        ("[1]", "must have an object"),
        ('{"layouts": 1}', "is damaged"),
        (
            '{"layouts": [{"files": [{"name": "a.npz"}], "columns": [{"name": "rewards"}]}]}',
            "dtype",
        ),
        *(
            (
                json.dumps(
                    {
                        "layouts": [
                            {
                                "files": [{"name": "a.npz"}],
                                "columns": [{"name": "rewards", "dtype": dtype}],
                            }
                        ]
                    }
                ),
                "field rewards: has the dtype",
            )
            for dtype in ("object", "f8,O", "int8", [["a", "O"]], {}, 3)
        ),
    ],
)
def test_a_description_that_is_damaged(tmp_path, manifest, text):
    source = write(tmp_path / "a.npz")
    (tmp_path / "a.npz.json").write_text(manifest)
    refused(source, text)


class TestOddFiles:
    @pytest.mark.parametrize("format_", ["npz", "parquet"])
    def test_a_pipe_and_a_device(self, tmp_path, format_):
        os.mkfifo(tmp_path / f"a.{format_}")
        refused(f"{format_}:{tmp_path}", "is no plain file")
        refused(f"{format_}:{tmp_path / f'a.{format_}'}", "is no plain file")
        (tmp_path / f"a.{format_}").unlink()
        (tmp_path / f"a.{format_}").symlink_to("/dev/zero")
        refused(f"{format_}:{tmp_path}", "leads to /dev/zero, which is outside of the dataset")
        refused(f"{format_}:{tmp_path / f'a.{format_}'}", "is no plain file")

    def test_a_pipe_in_the_place_of_a_description(self, tmp_path):
        source = write(tmp_path / "a.npz")
        os.mkfifo(tmp_path / "a.npz.json")
        with pytest.raises(errors.InvalidArgumentError, match=r"a\.npz\.json: is no plain file"):
            list(datasets.episodes(source))

    def test_a_name_with_braces(self, tmp_path):
        (tmp_path / "{0}").mkdir()
        refused(write(tmp_path / "{0}" / "a.npz", rewards=npy((2**50,))), "claims")


def columns(**more):
    """An episode a row."""
    made = made_episodes.episodes([5, 3])
    return {
        "observations": [it.observations.tolist() for it in made],
        "actions": [it.actions.tolist() for it in made],
        "rewards": [it.rewards.tolist() for it in made],
        "terminated": [it.terminated.tolist() for it in made],
        "truncated": [it.truncated.tolist() for it in made],
        **more,
    }


class TestParquet:
    def test_a_list_of_equal_values(self, tmp_path):
        path = tmp_path / "a.parquet"
        count = 4 * MIB
        values = pa.array(np.zeros(count), pa.float64())
        lists = pa.ListArray.from_arrays(pa.array([0, 1, count], pa.int32()), values)
        pq.write_table(pa.table(columns(actions=lists)), path)
        assert path.stat().st_size < MIB
        text = f"^{path}: row group 0: it takes .* more than max_bytes = 16,777,216"
        refused(f"parquet:{path}", text, max_bytes="16MiB")

    def test_a_column_that_is_left_out_takes_nothing(self, tmp_path):
        path = tmp_path / "a.parquet"
        count = 4 * MIB
        values = pa.array(np.zeros(count), pa.float64())
        lists = pa.ListArray.from_arrays(pa.array([0, 1, count], pa.int32()), values)
        pq.write_table(pa.table(columns(x=lists)), path)
        source = f"parquet:{path}"
        refused(source, "row group 0: it takes", max_bytes="16MiB")
        assert len(list(datasets.episodes(source, max_bytes="16MiB", leave_out=("x",)))) == 2

    def test_the_length_of_the_footer(self, tmp_path):
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table(columns()), path)
        path.write_bytes(path.read_bytes()[:-8] + struct.pack("<I", 2**31) + b"PAR1")
        refused(f"parquet:{path}", "its footer claims 2,147,483,648 bytes")

    def test_an_episode_of_steps_without_an_end(self, tmp_path):
        path = tmp_path / "a.parquet"
        rows = MIB
        names = ("observation", "next_observation", "action", "reward")
        table = {name: np.zeros(rows) for name in names}
        flags = np.zeros(rows, np.bool_)
        pq.write_table(pa.table({**table, "terminated": flags, "truncated": flags}), path)
        assert path.stat().st_size < MIB
        refused(f"parquet:{path}", "episode 0: it takes .* more than max_bytes", max_bytes="4MiB")
        refused(f"parquet:{path}", "more than max_length = 9", max_length=9)

    @pytest.mark.parametrize(
        ("name", "text"), [("x/" * 40, "nests|same"), ("terminated/x", "must be an array")]
    )
    def test_a_name_that_makes_nests(self, tmp_path, name, text):
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table(columns(**{name: [[1.0] * 5, [1.0] * 3]})), path)
        refused(f"parquet:{path}", text)


def test_the_command_bounds_episodes(tmp_path, capsys):
    source = made_episodes.write_npz(tmp_path / "a.npz", made_episodes.episodes([50]))
    with testing.server([testing.table("t")]) as client:
        where = ["import", source, client.server_address, "--table=t", "--dry-run"]
        assert command.main([*where, "--items=transitions", "--max-bytes=1KiB"]) == 1
        assert "more than --max-bytes = 1,024; give a larger --max-bytes" in capsys.readouterr().err
        assert command.main([*where, "--items=episodes", "--max-length=9"]) == 1
        assert "more than max_length = 9; give a larger --max-length" in capsys.readouterr().err


def test_a_bound_that_is_none(tmp_path):
    for options in ({"max_bytes": 0}, {"max_bytes": "many"}, {"max_length": 0}):
        with pytest.raises(errors.InvalidArgumentError, match=next(iter(options))):
            datasets.episodes(f"npz:{tmp_path}", **options)
