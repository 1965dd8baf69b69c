# SPDX-License-Identifier: Apache-2.0
"""Datasets of every layout with random damage, and a program that reads them.

`python -m support.damaged_datasets LAYOUT DIRECTORY FIRST COUNT` makes a dataset, damages it by
`COUNT` seeds, and prints a line for each that raises an error of another kind than those of this
package, or one without the path. The last line has the number of seeds and the memory that reading
took, in MiB. Its address space is bounded.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import faulthandler
import io
import json
import os
import pathlib
import random
import resource
import shutil
import struct
import sys
import warnings
import zipfile

import numpy as np

from reverb import datasets, errors
from reverb.core import native
from support import made_episodes

# Maximum size of an episode and of a unit of a file, while damaged files are read.
MAX_BYTES = 32 << 20
_ADDRESS_BYTES = 3 << 30

_ODD = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63), 1.5, 1e308, float("nan")),
    *("", "x", "../secret", "/etc/passwd", "http://127.0.0.1:1/x", "{x}", "float32", "\0"),
    *([], {}, [[]], [None], [-1], [2**40, 2**40], [2**40, 0], {"x": 1}, [1.5]),
)


def episodes():
    """Small episodes with nests, infos and flags."""
    return [
        made_episodes.nested(length, number, infos={"value": np.arange(length)})
        for number, length in enumerate((5, 3, 8))
    ]


def pictures():
    """Episodes with images that Minari encodes, and that LeRobot does."""
    rng = np.random.default_rng(0)
    return [
        made_episodes.episode(
            length,
            number,
            observations={
                "top": rng.integers(0, 256, (length + 1, 32, 40, 3)).astype(np.uint8),
                "state": rng.normal(size=(length + 1, 2)),
            },
        )
        for number, length in enumerate((3, 2))
    ]


def _npz(root):
    made_episodes.write_npz(root / "a.npz", made_episodes.episodes([5, 3]))
    return f"npz:{root}"


def _export(root):
    """A file with offsets, and the description of its dtypes."""
    made = made_episodes.episodes([5, 3])
    arrays = {
        "observation": np.concatenate([it.observations[:-1] for it in made]),
        "next_observation": np.concatenate([it.observations[1:] for it in made]),
        "action": np.concatenate([it.actions for it in made]),
        "reward": np.concatenate([it.rewards for it in made]),
        "terminated": np.concatenate([it.terminated for it in made]),
        "truncated": np.concatenate([it.truncated for it in made]),
    }
    offsets = {f"{name}/offsets": np.array([0, 5, 8]) for name in arrays}
    np.savez_compressed(root / "a.npz", **arrays, **offsets)
    columns = [{"name": name, "dtype": it.dtype.name} for name, it in arrays.items()]
    layouts = [{"files": [{"name": "a.npz"}], "columns": columns}]
    (root / "a.npz.json").write_text(json.dumps({"layouts": layouts}))
    return f"npz:{root}"


def _parquet(root):
    datasets.save(episodes(), f"hf:{root / 'x'}")
    return f"parquet:{root / 'x'}"


def _steps(compression):
    def make(root):
        import pyarrow as pa
        import pyarrow.parquet as pq

        made = made_episodes.episodes([5, 3])
        table = pa.table(
            {
                "observation": pa.array(
                    [row.tolist() for it in made for row in it.observations[:-1]]
                ),
                "next_observation": [row.tolist() for it in made for row in it.observations[1:]],
                "action": np.concatenate([it.actions for it in made]),
                "reward": np.concatenate([it.rewards for it in made]),
                "terminated": np.concatenate([it.terminated for it in made]),
                "truncated": np.concatenate([it.truncated for it in made]),
                "episode_index": [0] * 5 + [1] * 3,
            }
        )
        pq.write_table(table, root / "a.parquet", compression=compression, row_group_size=4)
        return f"parquet:{root}"

    return make


def _minari(data_format, made=episodes, **options):
    def make(root):
        os.environ["MINARI_DATASETS_PATH"] = str(root)
        given = made()
        if data_format != "hdf5":
            given = [dataclasses.replace(it, infos={}) for it in given]
        if options:
            _write_minari(given, data_format)
        else:
            datasets.save(given, "minari:a-v0", data_format=data_format)
        return f"minari:{root / 'a-v0'}"

    return make


def _write_minari(given, data_format):
    """Writes by Minari itself, which encodes images."""
    import gymnasium
    import minari

    spaces = gymnasium.spaces
    infinite = np.inf
    minari.create_dataset_from_buffers(
        "a-v0",
        [
            minari.data_collector.EpisodeBuffer(
                observations=it.observations,
                actions=it.actions,
                rewards=it.rewards,
                terminations=it.terminated,
                truncations=it.truncated,
                seed=7,
            )
            for it in given
        ],
        observation_space=spaces.Dict(
            {
                "top": spaces.Box(0, 255, (32, 40, 3), np.uint8),
                "state": spaces.Box(-infinite, infinite, (2,), np.float64),
            }
        ),
        action_space=spaces.Discrete(9),
        data_format=data_format,
    )


def _saved(root):
    """A dataset of `save_to_disk`."""
    import datasets as hugging_face

    datasets.save(episodes(), f"hf:{root / 'made'}")
    found = hugging_face.load_dataset(str(root / "made"), split="train", cache_dir=str(root / "c"))
    found.save_to_disk(str(root / "x"))
    for name in ("made", "c"):
        shutil.rmtree(root / name)
    return f"hf:{root / 'x'}"


def _rlds(root):
    datasets.save(episodes(), f"rlds:{root / 'x'}")
    return f"rlds:{root / 'x'}"


def _lerobot(root):
    datasets.save(pictures(), f"lerobot:{root / 'x'}", fps=10)
    return f"lerobot:{root / 'x'}"


LAYOUTS = {
    "npz": _npz,
    "npz of an export": _export,
    "parquet": _parquet,
    "parquet of steps": _steps("none"),
    "parquet of steps, compressed": _steps("zstd"),
    "minari": _minari("hdf5"),
    "minari images": _minari("hdf5", pictures, encoded=True),
    "minari arrow": _minari("arrow"),
    "minari arrow images": _minari("arrow", pictures, encoded=True),
    "minari parquet": _minari("parquet"),
    "hf": _saved,
    "rlds": _rlds,
    "lerobot": _lerobot,
}


def damage(root: pathlib.Path, rng: random.Random) -> str:
    """Damages one of the files of a dataset, and returns what it did."""
    path = rng.choice(sorted(it for it in root.rglob("*") if it.is_file()))
    data = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.8:
        changed = _damaged_json(data, rng)
    elif path.suffix == ".npz" and rng.random() < 0.7:
        changed = _damaged_npz(data, rng)
    elif ".tfrecord" in path.name and rng.random() < 0.8:
        changed = _damaged_records(data, rng)
    else:
        changed = damaged_bytes(data, rng)
    path.write_bytes(changed)
    return path.name


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flips, replaces, removes, repeats or moves bytes."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if not made:
            break
        at = rng.randrange(len(made))
        length = min(rng.choice((1, 2, 4, 8, 64, 512)), len(made) - at)
        kind = rng.randrange(7)
        if kind == 0:
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            made[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            made[at : at + length] = rng.choice((b"\0", b"\xff", b"\x7f")) * length
        elif kind == 3:
            del made[at : at + length]
        elif kind == 4:
            made[at:at] = made[at : at + length] * rng.choice((1, 2, 50))
        elif kind == 5:
            other = rng.randrange(len(made))
            made[at : at + length] = made[other : other + length]
        elif rng.random() < 0.3:
            del made[at:]
    return bytes(made)


def _damaged_json(data: bytes, rng: random.Random) -> bytes:
    found = json.loads(data)
    places = list(_places(found))
    for _ in range(rng.choice((1, 1, 2))):
        holder, key = rng.choice(places)
        with contextlib.suppress(KeyError, IndexError, TypeError):
            value = holder[key]
            kind = rng.randrange(6)
            if kind == 0 and isinstance(holder, dict):
                del holder[key]
            elif kind == 1 and isinstance(value, str) and value.startswith('{"'):
                holder[key] = _damaged_json(value.encode(), rng).decode()
            elif kind == 2:
                holder[key] = copy.deepcopy(rng.choice(places)[0])
            else:
                holder[key] = rng.choice(_ODD)
    return b"[" * 100_000 if rng.random() < 0.02 else json.dumps(found).encode()


def _places(found):
    items = found.items() if isinstance(found, dict) else enumerate(found)
    for key, value in items:
        yield found, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _damaged_npz(data: bytes, rng: random.Random) -> bytes:
    """Damages a member, whose checksum stays right."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as file, zipfile.ZipFile(out, "w") as made:
        names = file.namelist()
        chosen = rng.choice(names)
        for name in names:
            member = file.read(name)
            if name == chosen:
                # Mostly its header.
                head = rng.choice((len(member), 128, 128))
                member = damaged_bytes(member[:head], rng) + member[head:]
            made.writestr(name, member)
    return out.getvalue()


def _damaged_records(data: bytes, rng: random.Random) -> bytes:
    """Damages a record, whose checksum stays right."""
    at = 0
    made = b""
    chosen = rng.randrange(3)
    index = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        record = data[at + 12 : at + 12 + length]
        at += length + 16
        if index == chosen:
            record = damaged_bytes(record, rng)
        index += 1
        head = struct.pack("<Q", len(record))
        made += head + struct.pack("<I", native.masked_crc32c(head))
        made += record + struct.pack("<I", native.masked_crc32c(record))
    return made


def fault_of(source: str, root: pathlib.Path) -> str | None:
    """Reads a damaged dataset; returns what is wrong with its error, or `None`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in datasets.episodes(source, max_bytes=MAX_BYTES):
                pass
    except errors.InternalError as error:
        return f"InternalError: {error}"
    except errors.ReverbError as error:
        return None if str(root) in str(error) else f"without the file: {error}"
    except Exception as error:  # Everything else is the fault that is searched.
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = place and f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}"
        return f"{type(error).__name__}: {str(error)[:200]!r} at {where}"
    return None


def main(layout: str, directory: str, first: int, count: int) -> None:
    """Reads damaged datasets of a layout."""
    faulthandler.enable()
    os.environ["HF_HUB_OFFLINE"] = "1"
    good = pathlib.Path(directory) / "good"
    good.mkdir(parents=True)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = LAYOUTS[layout](good)
    if fault := fault_of(source, good):
        print(f"without damage: {fault}", flush=True)
    assert sum(1 for _ in datasets.episodes(source)) >= 2
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESS_BYTES, used + _ADDRESS_BYTES))
    bad = pathlib.Path(directory) / "bad"
    for seed in range(first, first + count):
        shutil.copytree(good, bad)
        # The number of a seed that ends the process is in the error output.
        print(f"seed {seed}", file=sys.stderr, flush=True)
        name = damage(bad, random.Random(f"{layout} {seed}"))
        fault = fault_of(source.replace(str(good), str(bad)), bad)
        if fault is not None:
            print(f"seed {seed}, {name}: {fault}", flush=True)
        shutil.rmtree(bad)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{count} {(after - before) >> 10}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
