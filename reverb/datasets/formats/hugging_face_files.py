# SPDX-License-Identifier: Apache-2.0
"""The files of a split of a dataset of Hugging Face, found by their names."""

import functools
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reverb import errors
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.data_files import DataFile
from reverb.datasets.formats.files import object_of
from reverb.datasets.formats.links import inside, natural, visible
from reverb.datasets.library import library

__all__ = ["split_of"]

_SUFFIXES = (".parquet", ".arrow")
# Formats that the library reads, and which are not read here: their rows are no typed arrays, or
# they may hold programs.
_OTHERS = (".csv", ".json", ".jsonl", ".tar", ".zip", ".gz", ".pkl", ".txt", ".py")
# The names of splits in names of files and directories, as the library knows them.
_SEPARATORS = r"[-._ 0-9]"
_SPLITS = {
    "train": "train|training",
    "validation": "validation|valid|dev|val",
    "test": "test|testing|eval|evaluation",
}
_SHARD = re.compile(r"data/(.+?)-[0-9]{5}-of-[0-9]{5}[^/]*")
_CACHED = re.compile(r".*?-([^-]+?)(?:-[0-9]{5}-of-[0-9]{5})?\.arrow")
_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_CONFIG = re.compile(r"^[ -]*config_name:\s*(\S+)", re.MULTILINE)
_README_BYTES = 1 << 20


def split_of(
    name: str,
    path: pathlib.Path,
    dataset: str,
    split: str | None,
    import_datasets: Callable[[], Any],
) -> tuple[list[DataFile], str]:
    """Returns the files of a split, in their order, and its name.

    Args:
      name: The source, for errors.
      path: The dataset as a path.
      dataset: The dataset as an id.
      split: The split; `None`: the only one, or "train".
      import_datasets: Imports the library, for a dataset that is no path.

    Raises:
      InvalidArgumentError: If there is no such dataset or split.
      DataLossError: If what is beside the files is damaged.
    """
    if path.is_dir():
        found = _saved(path) or _directory(name, path)
    elif path.exists():
        raise errors.InvalidArgumentError(f"{name}: is not a directory; parquet:PATH reads a file")
    elif _ID.fullmatch(dataset):
        found = _of_hub(name, dataset, import_datasets())
    else:
        raise errors.InvalidArgumentError(
            f"{name}: Hugging Face cannot open the dataset: there is no directory {path}, and "
            "this is not the id of a dataset"
        )
    names = list(found)
    chosen = split or (names[0] if len(names) == 1 else "train")
    if chosen not in found:
        raise errors.InvalidArgumentError(
            f"{name}: there is no split {chosen!r}; there are {names}"
        )
    return list(found[chosen]), chosen


def _saved(path: pathlib.Path) -> Mapping[str, Sequence[DataFile]]:
    """The files of a dataset of `save_to_disk`, by their splits; none, if it is another one."""
    if (path / "state.json").exists():
        state = _object(path, path / "state.json")
        return {str(state.get("_split") or "train"): _listed(path, path, state)}
    if not (path / "dataset_dict.json").exists():
        return {}
    found = {}
    index = path / "dataset_dict.json"
    names = _object(path, index).get("splits")
    if not isinstance(names, list) or not all(map(_is_name, names)):
        raise errors.DataLossError(f"{index}: splits must be a list of names of directories")
    for split in names:
        found[split] = _listed(path, path / split, _object(path, path / split / "state.json"))
    return found


def _listed(root: pathlib.Path, path: pathlib.Path, state: Mapping[str, Any]) -> Sequence[DataFile]:
    """The files that a state lists."""
    where = f"{path / 'state.json'}: _data_files"
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise errors.InvalidArgumentError(
            f"{path}: has a selection of rows; save it after `flatten_indices()`"
        )
    files = []
    with reading(where, (KeyError, TypeError), "is damaged"):
        for entry in state["_data_files"]:
            if not _is_name(entry["filename"]):
                raise errors.InvalidArgumentError(
                    f"{where}: {entry['filename']!r:.200} is not the name of a file in the dataset"
                )
            file = path / entry["filename"]
            files.append(DataFile(inside(root, file), file.relative_to(root).as_posix()))
    if not files:
        raise errors.InvalidArgumentError(f"{where}: there are no files")
    return files


def _directory(name: str, path: pathlib.Path) -> Mapping[str, Sequence[DataFile]]:
    """The files of a directory, by their splits."""
    _check_configs(name, path / "README.md", path)
    files = {}
    for suffix in _SUFFIXES:
        for it in visible(path, suffix):
            inside(path, it)
            inner = it.relative_to(path).as_posix()
            files[inner] = DataFile(it, inner)
    if not files:
        others = sorted({it.suffix for it in path.rglob("*") if it.suffix in _OTHERS})
        raise errors.InvalidArgumentError(
            f"{name}: the directory {path} has no files of Parquet or Arrow"
            + (
                f", but of {', '.join(others)}; if you trust them, convert them: "
                f"`datasets.load_dataset({str(path)!r}).save_to_disk(...)`"
                if others
                else ""
            )
        )
    return _by_split(files, natural)


def _by_split(
    files: Mapping[str, DataFile], order: Callable[[str], Any] | None = None
) -> Mapping[str, Sequence[DataFile]]:
    """Sorts files by their splits, by the rules of the library, and by their names.

    Files of the hub stay in the order of texts, because numbers identify their episodes.
    """
    ordered = sorted(files, key=order)
    rules: list[Callable[[str], str | None]] = [
        lambda it: found[1] if (found := _SHARD.fullmatch(it)) else None,
        lambda it: _keyword(it.split("/")[:-1], ""),
        lambda it: _keyword(it.split("/")[-1:], _SEPARATORS),
    ]
    for rule in rules:
        found: dict[str, list[DataFile]] = {}
        for it in ordered:
            split = rule(it)
            if split is not None:
                found.setdefault(split, []).append(files[it])
        if found:
            return found
    return {"train": [files[it] for it in ordered]}


def _keyword(parts: Sequence[str], after: str) -> str | None:
    """The split in the name of a directory, or of a file, which continues after it."""
    end = f"{after}.*" if after else f"(?:{_SEPARATORS}.*)?"
    for part in parts:
        for split, names in _SPLITS.items():
            if re.fullmatch(f"(?:.*{_SEPARATORS})?(?:{names}){end}", part):
                return split
    return None


def _check_configs(name: str, readme: pathlib.Path, root: pathlib.Path) -> None:
    """Refuses a dataset of several configurations, of which one would have to be chosen."""
    if not readme.exists():
        return
    inside(root, readme)
    with readme.open("rb") as file:
        _check_readme(name, file.read(_README_BYTES))


def _check_readme(name: str, data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    if not text.startswith("---"):
        return
    found = set(_CONFIG.findall(text[: text.find("\n---", 3)]))
    if len(found) > 1:
        raise errors.InvalidArgumentError(
            f"{name}: has the configurations {sorted(found)[:10]}; give the path of a directory "
            "with the files of one"
        )


def _of_hub(name: str, dataset: str, library_: object) -> Mapping[str, Sequence[DataFile]]:
    """The files of a dataset of the hub, or, if it does not answer, of the library's cache."""
    hub = library("huggingface_hub", "huggingface_hub", "hf")
    kinds = library("huggingface_hub", "huggingface_hub", "hf", "huggingface_hub.errors")
    # Its newer versions call the hub by httpx, whose errors are their own.
    network = getattr(sys.modules.get("httpx"), "HTTPError", OSError)
    damages = (kinds.HfHubHTTPError, kinds.OfflineModeIsEnabled, network, OSError, ValueError)
    try:
        commit = hub.HfApi().dataset_info(dataset).sha
        system = hub.HfFileSystem()
        root = f"datasets/{dataset}@{commit}"
        files = {}
        for path in system.find(root):
            inner = path[len(root) + 1 :]
            if inner == "README.md":
                with system.open(path, "rb") as file:
                    _check_readme(name, file.read(_README_BYTES))
            if inner.endswith(".parquet") and not inner.startswith("."):
                opener = functools.partial(system.open, path, "rb")
                files[inner] = DataFile(pathlib.Path(path), open=opener, damages=damages)
    except damages as error:
        if isinstance(error, errors.ReverbError):
            raise
        cached = _cached(library_, dataset)
        if cached:
            return cached
        text = str(error).splitlines() or [type(error).__name__]
        raise errors.InvalidArgumentError(
            f"{name}: Hugging Face cannot open the dataset: {text[0]}"
        ) from None
    if not files:
        raise errors.InvalidArgumentError(
            f"{name}: has no files of Parquet; if you trust the others, convert them: "
            f"`datasets.load_dataset({dataset!r}).save_to_disk(...)`, and give its path"
        )
    return _by_split(files)


def _cached(library_: Any, dataset: str) -> Mapping[str, Sequence[DataFile]]:
    """The files of a dataset that the library has prepared."""
    home = pathlib.Path(library_.config.HF_DATASETS_CACHE).expanduser()
    *namespace, last = dataset.split("/")
    snake = re.sub(r"([a-z\d])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", last))
    root = home / "___".join([*namespace, snake.lower()])
    found: dict[str, list[DataFile]] = {}
    directories = [it for it in root.glob("*/*/*") if (it / "dataset_info.json").exists()]
    if not directories:
        return {}
    newest = max(directories, key=lambda it: it.stat().st_mtime)
    for path in visible(newest, ".arrow"):
        inside(newest, path, home)
        if match := _CACHED.fullmatch(path.name):
            found.setdefault(match[1], []).append(DataFile(path))
    return found


def _object(root: pathlib.Path, path: pathlib.Path) -> dict[str, Any]:
    inside(root, path)
    return object_of(path)


def _is_name(value: object) -> bool:
    """Whether a value is the name of a file or directory beside the file that has it."""
    return (
        isinstance(value, str)
        and bool(re.fullmatch(r"[^/\\\0:]{1,255}", value))
        and (value not in (".", ".."))
    )
