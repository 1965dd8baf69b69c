# SPDX-License-Identifier: Apache-2.0
"""Datasets that claim more than they have: HDF5, Arrow, records, images and spaces."""

import io
import json
import os
import pathlib
import struct
import zlib

import numpy as np
import pytest

from reverb import datasets
from reverb.core import native
from support import made_episodes
from support.claims import MIB, refused

h5py = pytest.importorskip("h5py", reason="it comes with the extra `minari`")
image = pytest.importorskip("PIL.Image", reason="Pillow comes with the extra `lerobot`")
pa = pytest.importorskip("pyarrow", reason="pyarrow comes with the extra `test`")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow comes with the extra `test`")


def minari(tmp_path, data_format="hdf5"):
    """A dataset of Minari, and the directory of its data."""
    datasets.save(made_episodes.episodes(), "minari:mine/a-v0", data_format=data_format)
    root = pathlib.Path(os.environ["MINARI_DATASETS_PATH"]) / "mine" / "a-v0"
    root.rename(tmp_path / "out")
    return f"minari:{tmp_path / 'out'}", tmp_path / "out" / "data"


def unwritten(episode):
    """A dataset without values."""
    episode.create_dataset("observations", (6, 2**40), "f4", chunks=(1, 1024))


def unwritten_without_chunks(episode):
    episode.create_dataset("observations", (6, 2**20), "f4")


def many_chunks(episode):
    episode.create_dataset("observations", (2**30,), "f4", chunks=(1,))


def large_chunk(episode):
    episode.create_dataset("observations", (6, 4), "f4", chunks=(2**26, 4), maxshape=(None, 4))


def inflated_chunk(episode):
    """A chunk that inflates to more than its shape."""
    made = episode.create_dataset("observations", (6, 4), "f4", chunks=(6, 4), compression="gzip")
    made.id.write_direct_chunk((0, 0), zlib.compress(bytes(64 * MIB)))


def large(episode):
    made = episode.create_dataset("observations", (6, MIB), "f4", chunks=(1, MIB), compression=1)
    made[...] = 0


HDF5 = {
    "unwritten": (unwritten, "has 0 chunks"),
    "unwritten without chunks": (unwritten_without_chunks, "has no values in the file"),
    "many chunks": (many_chunks, "at most 131072 are read"),
    "large chunk": (large_chunk, "a chunk takes 1,073,741,824 bytes"),
    "inflated chunk": (inflated_chunk, "a chunk inflates to more than its 96 bytes"),
    "large": (large, "the episode takes 25,165,824 bytes"),
}


@pytest.mark.parametrize("case", HDF5)
def test_a_claim_of_hdf5(case, tmp_path):
    change, text = HDF5[case]
    source, data = minari(tmp_path)
    with h5py.File(data / "main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        change(file["episode_0"])
    refused(source, text, max_bytes="16MiB", max_mib=64)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"observation_space": "[" * 20_000}, "observation_space: is damaged"),
        ({"observation_space": '{"type": "Tuple", "subspaces": [' * 60}, "is damaged"),
        ({"observation_space": '{"type": "Graph"}'}, "is of the kind 'Graph'"),
        ({"observation_space": '{"type": "Box", "shape": [-1], "dtype": "u1"}'}, "the shape"),
        ({"action_space": 3}, "action_space: is damaged"),
        ({"total_episodes": -1}, "total_episodes is -1"),
        ({"total_episodes": "many"}, "total_episodes is 'many'"),
        ({"dataset_id": []}, r"dataset_id \[\]"),
        ({"data_format": "../hdf5"}, "hdf5, arrow and parquet are read"),
    ],
)
def test_metadata_that_is_damaged(tmp_path, facts, text):
    source, data = minari(tmp_path)
    path = data / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    refused(source, text)


def test_a_space_of_any_size_takes_nothing(tmp_path):
    source, data = minari(tmp_path)
    path = data / "metadata.json"
    space = {"type": "Box", "dtype": "uint8", "shape": [10**6, 10**6], "low": 0, "high": 9}
    facts = json.loads(path.read_text()) | {"observation_space": json.dumps(space)}
    path.write_text(json.dumps(facts))
    made_episodes.assert_equal(datasets.episodes(source), made_episodes.episodes())


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_buffer_of_arrow_that_inflates(tmp_path, compression):
    source, data = minari(tmp_path, "arrow")
    path = data / "0" / "part-0.arrow"
    zeros = pa.record_batch({"x": np.zeros(8 * MIB)})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, zeros.schema, options=options) as file:
        file.write_batch(zeros)
    assert path.stat().st_size < MIB
    refused(source, "a record batch takes 67,108,864 bytes", max_bytes="16MiB")


def png(width, height):
    """The head of an image of any size, and little behind it."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    made = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")):
        made += struct.pack(">I", len(data)) + kind + data
        made += struct.pack(">I", zlib.crc32(kind + data))
    return made


def encoded(size=(8, 6), form="png"):
    data = io.BytesIO()
    image.new("RGB", size, (7, 7, 7)).save(data, form)
    return data.getvalue()


@pytest.mark.parametrize(
    ("pictures", "text"),
    [
        ([png(60_000, 60_000)], "60000 x 60000 pixels|is not a PNG or JPEG"),
        ([png(9_000, 9_000)], "is an image of 9000 x 9000 pixels"),
        ([encoded()[:-30]], "is not a PNG or JPEG image that can be decoded"),
        ([encoded(), encoded((8, 7))], "has images of different sizes, 8 x 6 and 8 x 7"),
        ([encoded(form="bmp")], "is not a PNG or JPEG image"),
        ([encoded(form="gif")], "is not a PNG or JPEG image"),
        ([None], "must be the bytes of an image"),
        ([encoded((2000, 2000))], "it takes .* more than max_bytes"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_claim_of_an_image(tmp_path, pictures, text):
    made = [made_episodes.episode(5, observations={"top": np.zeros((6, 6, 8, 3), np.uint8)})]
    datasets.save(made, f"lerobot:{tmp_path / 'out'}", fps=10)
    (path,) = (tmp_path / "out").glob("data/*/*.parquet")
    table = pq.read_table(path)
    column = pa.array([{"bytes": pictures[it % len(pictures)], "path": "x.png"} for it in range(5)])
    index = table.schema.get_field_index("observation.top")
    pq.write_table(table.set_column(index, "observation.top", column), path)
    refused(f"lerobot:{tmp_path / 'out'}", text, max_bytes="16MiB", max_mib=64)


def test_one_image_in_many_frames(tmp_path):
    """The dictionary of a column has it once, so that a file of 1 MiB has frames of 256 MiB."""
    rng = np.random.default_rng(0)
    made = [made_episodes.episode(5, observations={"top": np.zeros((6, 6, 8, 3), np.uint8)})]
    datasets.save(made, f"lerobot:{tmp_path / 'out'}", fps=10)
    (path,) = (tmp_path / "out").glob("data/*/*.parquet")
    rows = 256
    table = pq.read_table(path)
    columns = {
        name: pa.chunked_array([table[name].combine_chunks().take(pa.array([0] * rows))])
        for name in table.column_names
    }
    data = rng.bytes(MIB)
    indices = pa.array([0] * rows, pa.int32())
    top = pa.DictionaryArray.from_arrays(indices, pa.array([data])).cast(pa.binary())
    columns["observation.top"] = pa.StructArray.from_arrays([top], ["bytes"])
    pq.write_table(pa.table(columns), path, dictionary_pagesize_limit=2 * MIB)
    del top, columns, table
    assert path.stat().st_size < 2 * MIB
    refused(f"lerobot:{tmp_path / 'out'}", "is not a PNG or JPEG image", max_mib=64)


def record(data):
    head = struct.pack("<Q", len(data))
    return head + _checksum(head) + data + _checksum(data)


def _checksum(data):
    return struct.pack("<I", native.masked_crc32c(data))


def rlds(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets", reason="it comes with the extra `rlds`")
    assert tfds
    datasets.save(made_episodes.episodes(), f"rlds:{tmp_path / 'out'}")
    (shard,) = (tmp_path / "out").glob("*.tfrecord*")
    return f"rlds:{tmp_path / 'out'}", shard


def packed(key, count):
    """A message with a list of zeros, one byte each."""

    def part(field, data):
        length = len(data)
        encoded_length = b""
        while length > 127:
            encoded_length += bytes([length & 127 | 128])
            length >>= 7
        return bytes([field << 3 | 2]) + encoded_length + bytes([length]) + data

    values = part(3, part(1, bytes(count)))
    return part(1, part(1, part(1, key.encode()) + part(2, values)))


@pytest.mark.filterwarnings("ignore")
class TestRecords:
    def test_a_length_beyond_the_file(self, tmp_path):
        source, shard = rlds(tmp_path)
        head = struct.pack("<Q", 2**62)
        shard.write_bytes(head + _checksum(head) + bytes(100))
        refused(source, "episode 0 cannot be read: .*: the file ends in the record")

    def test_a_record_that_is_too_large(self, tmp_path):
        source, shard = rlds(tmp_path)
        shard.write_bytes(record(bytes(4 * MIB)))
        refused(source, "the record takes 4,194,304 bytes", max_bytes="1MiB")

    def test_numbers_of_a_byte_each(self, tmp_path):
        source, shard = rlds(tmp_path)
        shard.write_bytes(
            record(packed("steps/action", 4 * MIB) + packed("steps/is_last", 4 * MIB))
        )
        refused(source, "field is_last: must be true|the episode takes", max_bytes="16MiB")

    def test_a_tensor_that_inflates(self, tmp_path):
        source, _ = rlds(tmp_path)
        path = tmp_path / "out" / "features.json"
        path.write_text(path.read_text().replace('"dimensions": [\n', '"dimensions": [ "1000000",'))
        refused(source, "field observation: has 24 numbers, and not 4000000 in each of 6 rows")
        path.write_text(path.read_text().replace("1000000", "-7"))
        refused(source, "leave_out=|field observation")
