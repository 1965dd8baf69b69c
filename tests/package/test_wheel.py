# SPDX-License-Identifier: Apache-2.0
"""The content of a wheel, and its use where only its dependencies are installed.

Looks at the wheel in `dist/` if there is one; the slow variants build one first.
"""

import email.parser
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest

from support.sources import newest_source_time

ROOT = pathlib.Path(__file__).parents[2]

# Building compiles everything, and installing asks a package index.
pytestmark = pytest.mark.timeout(1800)

# Runs in an environment that has the wheel and what it depends on, and nothing else.
USE_THE_WHEEL = """
import importlib.util
import sys

import numpy as np
import reverb.testing

assert importlib.util.find_spec("tensorflow") is None, "this should be an environment without it"
assert sys.argv[1] in reverb.__file__, reverb.__file__
with reverb.testing.server([reverb.testing.table("table")]) as client:
    client.insert({"x": np.arange(3), "y": np.float32(7)}, {"table": 1.5})
    (sample,) = client.sample("table", emit_timesteps=False)
    assert sample.info.priority == 1.5
    np.testing.assert_array_equal(sample.data[0], [[0, 1, 2]])
    np.testing.assert_array_equal(sample.data[1], [7])
    batch = client.sample_batch("table", 4)
    assert batch.data[0].shape == (4, 1, 3)
print("used", reverb.__version__)
"""


NATIVE = (".so", ".pyd", ".dylib", ".dll")
SHIM = "reverb/tf_ops/_reverb_ops.so"
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(
    scope="module", params=["in_dist", pytest.param("built_now", marks=pytest.mark.slow)]
)
def wheel(request, tmp_path_factory):
    """The path of a wheel: of `make wheel`, and of what pip does with a source distribution."""
    if request.param == "in_dist":
        wheels = sorted((ROOT / "dist").glob("*.whl"))
        if not wheels:
            pytest.skip("no wheel in dist/; `make wheel` builds one")
        (path,) = wheels
        if path.stat().st_mtime < newest_source_time():
            pytest.skip("the wheel in dist/ is older than its sources; `make wheel` builds another")
        return path
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "maturin", "sdist", "--out", str(out)], cwd=ROOT, check=True
    )
    (sources,) = out.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        built = [name for name in archive.getnames() if name.endswith(NATIVE)]
    assert built == [], "a source distribution holds no compiled files"
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", str(out), sources], check=True)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel):
    """The names of all files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def metadata(wheel):
    """The wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.parser.Parser().parsestr(archive.read(name).decode())


def test_one_wheel_serves_every_python_from_3_10(wheel):
    assert wheel.name.startswith("reverb_replay-")
    assert "-cp310-abi3-" in wheel.name


@pytest.mark.parametrize(
    "name",
    [
        "reverb/__init__.py",
        "reverb/py.typed",
        "reverb/core/__init__.py",
        "reverb/core/_native.pyi",
        "reverb/core/wire/proto/descriptors.bin",
    ],
)
def test_wheel_holds(names, name):
    assert name in names


def test_wheel_holds_the_native_module_and_what_tensorflow_loads(names):
    native = {name for name in names if name.endswith(NATIVE)}
    assert native == {"reverb/core/_native.abi3.so", SHIM}


def test_the_native_module_has_no_debug_information(wheel):
    with zipfile.ZipFile(wheel) as archive:
        # TLS and certificates take 2.3 MB of this, groups of shards 1.9 MB, rollouts 0.6 MB.
        assert archive.getinfo("reverb/core/_native.abi3.so").file_size <= 18_500_000


def test_what_tensorflow_loads_is_small(wheel):
    with zipfile.ZipFile(wheel) as archive:
        assert archive.getinfo(SHIM).file_size <= 15_000


def test_the_shim_needs_three_old_functions_and_exports_none(wheel, tmp_path):
    if sys.platform != "linux" or shutil.which("nm") is None:
        pytest.skip("nm, which tells what a library needs, is not here or tells it differently")
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract(SHIM, tmp_path)
    listed = subprocess.run(
        ["nm", "--dynamic", library], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    symbols = [line.split()[-2:] for line in listed.splitlines()]
    needed = {name.split("@")[0] for kind, name in symbols if kind == "U"}
    assert needed == {"getenv", "strlen", "write"}
    # Symbols of every library, which come from the linker and are optional ("w").
    assert {kind for kind, _ in symbols} <= {"U", "w"}


# ---- The wheel of `make release` ----------------------------------------------------------------


@pytest.fixture(scope="module")
def old_glibc(wheel):
    """The release of glibc that the wheel's tag promises to be enough, as `(2, 17)`."""
    tag = re.search(r"manylinux_(\d+)_(\d+)", wheel.name)
    if tag is None:
        pytest.skip("the wheel is for this system's glibc; `make release` builds one for manylinux")
    return int(tag[1]), int(tag[2])


@pytest.mark.parametrize("library", ["reverb/core/_native.abi3.so", SHIM])
def test_no_library_needs_a_newer_glibc_than_the_tag_says(wheel, old_glibc, library, tmp_path):
    elf = pytest.importorskip("elftools.elf.elffile", reason="`make release` has pyelftools")
    with zipfile.ZipFile(wheel) as archive:
        path = archive.extract(library, tmp_path)
    with pathlib.Path(path).open("rb") as file:
        section = elf.ELFFile(file).get_section_by_name(".gnu.version_r")
        needed = {version.name for _, versions in section.iter_versions() for version in versions}
    releases = {tuple(map(int, name[6:].split("."))) for name in needed if name[:6] == "GLIBC_"}
    assert releases, needed
    assert max(releases) <= old_glibc


def test_auditwheel_agrees_with_the_tag(wheel, old_glibc):
    if importlib.util.find_spec("auditwheel") is None:
        pytest.skip("auditwheel is not installed; `make release` has it")
    told = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert 'following platform tag: "manylinux_{}_{}_'.format(*old_glibc) in " ".join(told.split())


def test_wheel_holds_every_python_file_of_the_package(names):
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "reverb").rglob("*.py")}
    assert expected <= set(names)


def test_wheel_holds_the_license(names, metadata):
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert metadata["License-Expression"] == "Apache-2.0"


def test_wheel_holds_no_sources_of_the_core(names):
    sources = (".rs", ".toml", ".proto", ".lock", ".proptest-regressions")
    assert [name for name in names if name.endswith(sources) or "/tests/" in name] == []


def test_wheel_holds_only_the_package(names):
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} <= {
        "reverb",
        "reverb_replay.libs",
    }


def test_wheel_does_not_ask_for_tensorflow(metadata):
    requirements = metadata.get_all("Requires-Dist")
    assert any(requirement.startswith("numpy") for requirement in requirements)
    tensorflow = [name for name in requirements if name.startswith("tensorflow")]
    assert tensorflow
    assert all("extra ==" in name for name in tensorflow)


def test_wheel_works_without_tensorflow(wheel, tmp_path):
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel],
        check=True,
    )
    # Elsewhere than in the source tree, whose package would be found first.
    used = subprocess.run(
        [python, "-c", USE_THE_WHEEL, str(environment)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    assert used.stdout.startswith("used ")
    for command, says in [("reverb", "export"), ("reverb_server", "--checkpoint-dir")]:
        told = subprocess.run(
            [python.with_name(command), "--help"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
        )
        assert says in told.stdout
