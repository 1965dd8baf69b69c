# SPDX-License-Identifier: Apache-2.0
"""Untrusted datasets: no program runs, nothing outside of the dataset is read, nobody is called.

A case is a dataset of a format with something in it that its library would follow. `Watched` notes
whatever would run or call; afterwards nothing may have been noted, and the values of the secret
file may be in no episode.
"""

import dataclasses
import importlib
import json
import os
import pathlib
import pickle
import shutil
import socket
import subprocess

import numpy as np
import pytest

from reverb import command, datasets, errors, testing
from reverb.datasets.formats import FORMATS
from support import made_episodes

gymnasium = pytest.importorskip("gymnasium", reason="it comes with the extra `minari`")
h5py = pytest.importorskip("h5py", reason="it comes with the extra `minari`")
image = pytest.importorskip("PIL.Image", reason="Pillow comes with the extra `lerobot`")
pa = pytest.importorskip("pyarrow", reason="pyarrow comes with the extra `test`")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow comes with the extra `test`")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SECRET = 777.25


@dataclasses.dataclass
class Place:
    """Where a case makes its dataset, with what is beside it."""

    root: pathlib.Path

    @property
    def secret(self):
        """Values that no episode may have."""
        return self.root / "secret"

    @property
    def out(self):
        return self.root / "out"


class Evil:
    def __reduce__(self):
        return print, ("a program of the dataset",)


@pytest.fixture(autouse=True)
def watched(monkeypatch):
    """Notes calls that a dataset must not cause; libraries of this program may be imported."""
    calls = []
    ours = {"reverb", "numpy", "pyarrow", "h5py", "PIL", "minari", "datasets", "huggingface_hub"}

    def note(module, name, allowed=lambda *_: False):
        original = getattr(module, name)

        def noted(*args, **options):
            if not allowed(*args):
                calls.append((name, args))
            return original(*args, **options)

        monkeypatch.setattr(module, name, noted)

    note(importlib, "import_module", lambda it, *_: it.partition(".")[0] in ours)
    for module, name in (
        (gymnasium, "make"),
        (subprocess.Popen, "__init__"),
        (os, "system"),
        (socket.socket, "connect"),
        (pickle, "load"),
        (pickle, "loads"),
    ):
        note(module, name)
    return calls


def of_npz(place):
    made_episodes.write_npz(place.out.with_suffix(".npz"), made_episodes.episodes())
    return place.out.with_suffix(".npz")


def npz_objects(place):
    path = of_npz(place)
    with np.load(path) as file:
        np.savez(path, **{**file, "infos/x": np.array([Evil()] * 55, object)})
    return f"npz:{path}"


def npz_link(place):
    of_npz(place)
    place.out.mkdir()
    place.out.with_suffix(".npz").rename(place.secret)
    (place.out / "a.npz").symlink_to(place.secret)
    return f"npz:{place.out}"


def npz_manifest_link(place):
    path = of_npz(place)
    place.secret.write_text(json.dumps({"layouts": []}))
    place.out.mkdir()
    path = path.rename(place.out / "a.npz")
    path.with_name("a.npz.json").symlink_to(place.secret)
    return f"npz:{path}"


def parquet_link(place):
    datasets.save(made_episodes.episodes(), f"hf:{place.out}")
    (path,) = place.out.rglob("*.parquet")
    path.rename(place.secret)
    path.symlink_to(place.secret)
    return f"parquet:{place.out}"


def minari(place, change, data_format="hdf5"):
    """A dataset of Minari whose files are changed."""
    datasets.save(made_episodes.episodes(), "minari:mine/a-v0", data_format=data_format)
    root = pathlib.Path(os.environ["MINARI_DATASETS_PATH"]) / "mine" / "a-v0"
    change(root / "data")
    root.rename(place.out)
    return f"minari:{place.out}"


def spec(entry_point, **kwargs):
    return json.dumps(
        {
            "id": "x-v0",
            "entry_point": entry_point,
            "kwargs": kwargs,
            "reward_threshold": None,
            "nondeterministic": False,
            "max_episode_steps": None,
            "order_enforce": False,
            "disable_env_checker": True,
            "additional_wrappers": [],
            "vector_entry_point": None,
        }
    )


def minari_metadata(**facts):
    """Changes the metadata; `None` removes a field."""

    def change(data):
        path = data / "metadata.json"
        found = json.loads(path.read_text()) | facts
        path.write_text(json.dumps({k: v for k, v in found.items() if v is not None}))

    return change


def without_spaces(field):
    """A dataset without one of its spaces."""
    return lambda place: minari(
        place, minari_metadata(**{field: None}, env_spec=spec("os:system", command="true"))
    )


def with_spec(field):
    """A dataset with its spaces, beside which a specification names a program."""
    return lambda place: minari(
        place, minari_metadata(**{field: spec("os:system", command="true"), "requirements": ["x"]})
    )


def minari_id(place):
    datasets.save(made_episodes.episodes(), "minari:mine/a-v0")
    data = pathlib.Path(os.environ["MINARI_DATASETS_PATH"]) / "mine" / "a-v0" / "data"
    without = {"observation_space": None, "action_space": None}
    minari_metadata(**without, env_spec=spec("os:system", command="true"))(data)
    return "minari:mine/a-v0"


def minari_hdf5(fill):
    """A dataset whose file has something else in the place of the observations."""

    def make(place):
        def change(data):
            with h5py.File(place.secret, "w") as other:
                other["data"] = np.full((6, 4), SECRET, np.float32)
                other["infos"] = np.full(6, SECRET)
            with h5py.File(data / "main_data.hdf5", "a") as file:
                fill(place, file["episode_0"])

        return minari(place, change)

    return make


def external_storage(place, episode):
    place.secret.write_bytes(np.full((6, 4), SECRET, np.float32).tobytes())
    del episode["observations"]
    episode.create_dataset("observations", (6, 4), "f4", external=[(str(place.secret), 0, 96)])


def external_link(place, episode):
    del episode["observations"]
    episode["observations"] = h5py.ExternalLink(str(place.secret), "/data")


def external_group(place, episode):
    del episode.file["episode_1"]
    episode.file["episode_1"] = h5py.ExternalLink(str(place.secret), "/")


def external_info(place, episode):
    episode.create_group("infos")["x"] = h5py.ExternalLink(str(place.secret), "/infos")


def soft_link(place, episode):
    del episode["actions"]
    episode["actions"] = h5py.SoftLink("/episode_1/actions")


def virtual(place, episode):
    del episode["observations"]
    layout = h5py.VirtualLayout((6, 4), "f4")
    layout[:] = h5py.VirtualSource(str(place.secret), "data", (6, 4))
    episode.create_virtual_dataset("observations", layout)


def virtual_pipe(place, episode):
    """One whose shape alone opens the other file."""
    os.mkfifo(place.root / "pipe")
    del episode["observations"]
    layout = h5py.VirtualLayout((6, 4), "f4", maxshape=(None, 4))
    source = h5py.VirtualSource(str(place.root / "pipe"), "data", (6, 4), maxshape=(None, 4))
    layout[0 : h5py.h5s.UNLIMITED, :] = source[0 : h5py.h5s.UNLIMITED, :]
    episode.create_virtual_dataset("observations", layout)


def other_filter(place, episode):
    del episode["observations"]
    episode.create_dataset("observations", data=np.zeros((6, 4), "f4"), compression="lzf")


def references(place, episode):
    del episode["observations"]
    episode["observations"] = np.array([episode.ref] * 6, h5py.ref_dtype)


def minari_link(data_format, name):
    """A dataset whose file is a link to somewhere else."""

    def make(place):
        def change(data):
            (data / name).rename(place.secret)
            (data / name).symlink_to(place.secret)

        return minari(place, change, data_format)

    return make


def saved(place):
    """A dataset of Hugging Face with another beside it, whose rows are secret."""
    hugging_face = pytest.importorskip("datasets", reason="it comes with the extra `hf`")
    columns = {"observation": [[1.0]], "action": [1], "reward": [1.0], "terminated": [True]}
    rows = columns | {"next_observation": [[1.0]], "truncated": [False]}
    hugging_face.Dataset.from_dict(rows).save_to_disk(str(place.out))
    hugging_face.Dataset.from_dict(rows | {"reward": [SECRET]}).save_to_disk(str(place.secret))
    (file,) = place.secret.glob("*.arrow")
    return file


def state(value):
    """A dataset whose state names another file."""

    def make(place):
        text = value.format(other=saved(place), out=place.out)
        path = place.out / "state.json"
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"_data_files": [{"filename": text}]})
        )
        return f"hf:{place.out}"

    return make


def state_link(place):
    other = saved(place)
    (file,) = place.out.glob("*.arrow")
    file.unlink()
    file.symlink_to(other)
    return f"hf:{place.out}"


def dict_of_splits(place):
    saved(place)
    place.out.joinpath("state.json").unlink()
    (place.out / "dataset_dict.json").write_text(
        json.dumps({"splits": [f"../{place.secret.name}"]})
    )
    return f"hf:{place.out}"


def readme(text, name="README.md"):
    """A directory with a Parquet file, whose README says that the data is elsewhere."""

    def make(place):
        secret = made_episodes.episode(5, rewards=np.full(5, SECRET, np.float32))
        datasets.save([secret], f"hf:{place.secret}")
        datasets.save(made_episodes.episodes(), f"hf:{place.out}")
        path = next(place.secret.rglob("*.parquet"))
        body = f"configs:\n- config_name: default\n  data_files: {text.format(other=path)}\n"
        (place.out / name).write_text(f"---\n{body}---\n" if name == "README.md" else body)
        return f"hf:{place.out}"

    return make


def script(place):
    datasets.save(made_episodes.episodes(), f"hf:{place.out}")
    for name in ("out.py", "dataset.py", "__init__.py"):
        (place.out / name).write_text("import os\nos.system('true')\n")
    return f"hf:{place.out}"


def pickled(place):
    place.out.mkdir()
    (place.out / "train.pkl").write_bytes(pickle.dumps(Evil()))
    return f"hf:{place.out}"


def infos_file(place):
    datasets.save(made_episodes.episodes(), f"hf:{place.out}")
    url = {"default": {"download_checksums": {"http://127.0.0.1:1/x": {}}, "features": {"x": 1}}}
    (place.out / "dataset_infos.json").write_text(json.dumps(url))
    return f"hf:{place.out}"


def address_in_a_name(place):
    datasets.save(made_episodes.episodes(), f"hf:{place.out}")
    (path,) = place.out.rglob("*.parquet")
    path.rename(place.out / "zip:::127.0.0.1:1::x.parquet")
    return f"hf:{place.out}"


def rlds(change):
    """A dataset of RLDS whose descriptions are changed."""

    def make(place):
        pytest.importorskip("tensorflow_datasets", reason="it comes with the extra `rlds`")
        datasets.save(made_episodes.full(), f"rlds:{place.out}")
        change(place)
        return f"rlds:{place.out}"

    return make


def feature_class(name, old=False):
    """Changes the class of a feature."""

    def change(place):
        (place.out / "evil_module.py").write_text("import os\nos.system('true')\n")
        path = place.out / "features.json"
        described = json.loads(path.read_text())
        steps = described["featuresDict"]["features"]["steps"]["sequence"]["feature"]
        reward = {"type": name, "content": {}} if old else {"pythonClassName": name}
        steps["featuresDict"]["features"]["reward"] = reward
        path.write_text(json.dumps(described))

    return change


def builder_script(place):
    (place.out / "out.py").write_text("import os\nos.system('true')\n")
    path = place.out / "dataset_info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"moduleName": "out"}))


def template(text):
    """Changes the template of the names of the files."""

    def change(place):
        (shard,) = place.out.glob("*.tfrecord*")
        shutil.move(shard, place.secret)
        path = place.out / "dataset_info.json"
        described = json.loads(path.read_text())
        described["splits"][0]["filepathTemplate"] = text.format(other=place.secret)
        path.write_text(json.dumps(described))

    return change


def record_link(place):
    (shard,) = place.out.glob("*.tfrecord*")
    shutil.move(shard, place.secret)
    shard.symlink_to(place.secret)


def lerobot(change):
    """A dataset of LeRobot with images that is changed."""

    def make(place):
        observations = {"top": np.zeros((6, 6, 8, 3), np.uint8), "state": np.zeros((6, 2))}
        made = [made_episodes.episode(5, observations=observations)]
        datasets.save(made, f"lerobot:{place.out}", fps=10)
        change(place)
        return f"lerobot:{place.out}"

    return make


def lerobot_link(pattern):
    """Changes a file into a link to somewhere else."""

    def change(place):
        path = next(place.out.glob(pattern))
        path.rename(place.secret)
        path.symlink_to(place.secret)

    return change


def images(data, path=None):
    """Changes the images of a dataset."""

    def change(place):
        image.new("RGB", (8, 6), (7, 7, 7)).save(place.secret, "png")
        named = path and path.format(secret=place.secret)
        (file,) = place.out.glob("data/*/*.parquet")
        table = pq.read_table(file)
        column = pa.array([{"bytes": data, "path": named}] * 5)
        index = table.schema.get_field_index("observation.top")
        pq.write_table(table.set_column(index, "observation.top", column), file)

    return change


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 6\n%%EndComments\n%%EOF\n"
OUTSIDE = "outside of the dataset"

# Makers of the datasets, and the errors; `None`: the dataset is read as if nothing were odd.
CASES = {
    "npz objects": (npz_objects, "must be numbers, got objects"),
    "npz link": (npz_link, OUTSIDE),
    "npz manifest link": (npz_manifest_link, OUTSIDE),
    "parquet link": (parquet_link, OUTSIDE),
    "minari without observation space": (without_spaces("observation_space"), "no environment is"),
    "minari without action space": (without_spaces("action_space"), "no environment is made"),
    "minari id without spaces": (minari_id, "no environment is made"),
    "minari env_spec": (with_spec("env_spec"), None),
    "minari eval_env_spec": (with_spec("eval_env_spec"), None),
    "minari external storage": (minari_hdf5(external_storage), "in other files"),
    "minari external link": (minari_hdf5(external_link), "links in HDF5 are not followed"),
    "minari external group": (minari_hdf5(external_group), "links in HDF5 are not followed"),
    "minari external info": (minari_hdf5(external_info), "links in HDF5 are not followed"),
    "minari soft link": (minari_hdf5(soft_link), "links in HDF5 are not followed"),
    "minari virtual": (minari_hdf5(virtual), "in other files"),
    "minari virtual pipe": (minari_hdf5(virtual_pipe), "in other files"),
    "minari filter": (minari_hdf5(other_filter), "has the filters"),
    "minari references": (minari_hdf5(references), "must be an array of numbers"),
    "minari metadata link": (minari_link("hdf5", "metadata.json"), OUTSIDE),
    "minari file link": (minari_link("hdf5", "main_data.hdf5"), OUTSIDE),
    "minari arrow link": (minari_link("arrow", "0/part-0.arrow"), OUTSIDE),
    "minari parquet link": (minari_link("parquet", "0/part-0.parquet"), OUTSIDE),
    "minari episode link": (minari_link("arrow", "0/metadata.json"), OUTSIDE),
    "hf state above": (state("../secret/data-00000-of-00001.arrow"), "not the name of a file"),
    "hf state absolute": (state("{other}"), "not the name of a file"),
    "hf state address": (state("http://127.0.0.1:1/x.arrow"), "not the name of a file"),
    "hf state chain": (state("zip://x.arrow::{out}/x.zip"), "not the name of a file"),
    "hf state link": (state_link, OUTSIDE),
    "hf splits above": (dict_of_splits, "names of directories"),
    "hf readme above": (readme("../secret/data/*.parquet"), None),
    "hf readme absolute": (readme("{other}"), None),
    "hf readme address": (readme("http://127.0.0.1:1/x.parquet"), None),
    "hf readme hub": (readme("hf://datasets/a/b/x.parquet"), None),
    "hf yaml": (readme("http://127.0.0.1:1/x.parquet", ".huggingface.yaml"), None),
    "hf script": (script, None),
    "hf pickle": (pickled, "no files of Parquet or Arrow"),
    "hf infos": (infos_file, None),
    "hf address in a name": (address_in_a_name, None),
    "rlds class": (rlds(feature_class("evil_module.Feature")), "no class is imported"),
    "rlds old class": (rlds(feature_class("evil_module.Feature", True)), "no class is imported"),
    "rlds module": (rlds(builder_script), None),
    "rlds template above": (rlds(template("../secret")), "not the name of a file"),
    "rlds template absolute": (rlds(template("{other}")), "not the name of a file"),
    "rlds template address": (rlds(template("gs://a/b")), "not the name of a file"),
    "rlds link": (rlds(record_link), OUTSIDE),
    "lerobot data link": (lerobot(lerobot_link("data/*/*.parquet")), OUTSIDE),
    "lerobot meta link": (lerobot(lerobot_link("meta/info.json")), OUTSIDE),
    "lerobot episodes link": (lerobot(lerobot_link("meta/episodes/*/*.parquet")), OUTSIDE),
    "lerobot postscript": (lerobot(images(POSTSCRIPT)), "is not a PNG or JPEG image"),
    "lerobot image path": (lerobot(images(None, "{secret}")), "a path or an address is not"),
    "lerobot image address": (lerobot(images(None, "http://127.0.0.1:1/x.png")), "is not followed"),
}


def test_every_format_has_hostile_files():
    assert {case.partition(" ")[0] for case in CASES} == set(FORMATS)


@pytest.mark.parametrize("case", CASES)
def test_nothing_of_a_dataset_is_run_or_followed(case, tmp_path, watched):
    make, text = CASES[case]
    source = make(Place(tmp_path))
    watched.clear()  # The libraries themselves have written the dataset.
    found = []
    error = None
    try:
        for episode in datasets.episodes(source):
            found.append(episode)
    except errors.ReverbError as caught:
        error = str(caught)
    assert watched == []
    if text is None:
        assert error is None
        assert found
    else:
        assert error is not None
        assert text in error
        assert str(tmp_path) in error or "minari:" in source
    for episode in found:
        for _, array in episode._arrays():
            assert not (np.asarray(array) == SECRET).any()


def test_the_command_makes_no_environment(tmp_path, watched, capsys):
    source = without_spaces("observation_space")(Place(tmp_path))
    watched.clear()
    with testing.server([testing.table("t")]) as client:
        where = [client.server_address, "--table=t", "--items=episodes"]
        assert command.main(["import", source, *where, "--dry-run"]) == 1
        assert command.main(["import", source, *where]) == 1
    assert "serialize_space" in capsys.readouterr().err
    assert [it for it in watched if it[0] != "connect"] == []


class TestLinksThatAreFollowed:
    def test_a_link_of_the_user(self, tmp_path):
        episodes = made_episodes.episodes()
        made_episodes.write_npz(tmp_path / "real.npz", episodes)
        (tmp_path / "link.npz").symlink_to(tmp_path / "real.npz")
        made_episodes.assert_equal(datasets.episodes(f"npz:{tmp_path / 'link.npz'}"), episodes)
        datasets.save(episodes, f"lerobot:{tmp_path / 'real'}", fps=10)
        (tmp_path / "link").symlink_to(tmp_path / "real")
        made_episodes.assert_equal(datasets.episodes(f"lerobot:{tmp_path / 'link'}"), episodes)

    @pytest.mark.parametrize("format_", ["parquet", "hf"])
    def test_a_snapshot_of_the_hub(self, tmp_path, format_):
        episodes = made_episodes.episodes()
        repository = tmp_path / "datasets--a--b"
        snapshot = repository / "snapshots" / "0123"
        datasets.save(episodes, f"hf:{snapshot}")
        (path,) = snapshot.rglob("*.parquet")
        (repository / "blobs").mkdir()
        path.rename(repository / "blobs" / "4567")
        path.symlink_to(os.path.relpath(repository / "blobs" / "4567", path.parent))
        made_episodes.assert_equal(datasets.episodes(f"{format_}:{snapshot}"), episodes)

    def test_the_cache_of_the_hub(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        episodes = made_episodes.episodes()
        datasets.save(episodes, f"lerobot:{tmp_path / 'out'}", fps=10)
        (tmp_path / "hub").mkdir()
        (path,) = (tmp_path / "out").glob("data/*/*.parquet")
        path.rename(tmp_path / "hub" / "blob")
        path.symlink_to(tmp_path / "hub" / "blob")
        made_episodes.assert_equal(datasets.episodes(f"lerobot:{tmp_path / 'out'}"), episodes)

    def test_a_volume_of_kubernetes(self, tmp_path):
        episodes = made_episodes.episodes()
        (tmp_path / "..2026").mkdir()
        made_episodes.write_npz(tmp_path / "..2026" / "a.npz", episodes)
        (tmp_path / "..data").symlink_to("..2026")
        (tmp_path / "a.npz").symlink_to("..data/a.npz")
        made_episodes.assert_equal(datasets.episodes(f"npz:{tmp_path}"), episodes)
