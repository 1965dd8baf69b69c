# SPDX-License-Identifier: Apache-2.0
"""The image: its command, and its steps in virtual environments. No image is built.

A wheel in `dist/` stands for the first stage; the slow variant follows that stage, too.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import venv

import pytest

from support.deployment import DEPLOY, ROOT, arguments, check, flags
from support.dockerfile import Dockerfile, is_sent
from support.rolling_restart import free_ports
from support.sources import newest_source_time
from support.waiting import DEADLINE_S

DOCKER = DEPLOY / "docker"
CONFIG = DOCKER / "server.textproto"
IGNORE = DOCKER / "Dockerfile.dockerignore"
PROGRAMS = f"{pathlib.Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
HADOLINT = shutil.which("hadolint", path=PROGRAMS)

# Makes all of the file system read-only but for one directory, then runs a command there.
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec "$@"'
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


@pytest.fixture(scope="module")
def dockerfile():
    return Dockerfile(DOCKER / "Dockerfile")


@pytest.fixture
def config(tmp_path):
    """The config of the image, with its checkpoints elsewhere."""
    path = tmp_path / "server.textproto"
    text = CONFIG.read_text(encoding="utf-8")
    assert '"/var/lib/reverb"' in text
    path.write_text(text.replace("/var/lib/reverb", str(tmp_path / "saved")), encoding="utf-8")
    return path


def options_of(dockerfile, config):
    """The arguments of the image's command, with another config."""
    program, *rest = dockerfile.command()
    assert program == "reverb_server"
    values = flags(rest)
    assert values == {
        "--config-file": "/etc/reverb/server.textproto",
        "--http-host": "0.0.0.0",
    }
    return arguments(values | {"--config-file": str(config)})


def test_its_command_is_one_that_the_server_takes(dockerfile, config, monkeypatch):
    for name, value in dockerfile.environment().items():
        monkeypatch.setenv(name, value)
    check(options_of(dockerfile, config))


def test_its_ports_are_those_that_it_listens_on(dockerfile):
    environment = dockerfile.environment()
    ports = [environment["REVERB_SERVER_PORT"], environment["REVERB_SERVER_HTTP_PORT"]]
    assert dockerfile.one("EXPOSE").split() == ports == ["8000", "8001"]


def test_it_is_stopped_as_the_server_expects_it_and_not_by_root(dockerfile):
    assert dockerfile.one("STOPSIGNAL") == "SIGTERM"
    assert dockerfile.one("USER") == "10001:10001"
    assert any("--uid 10001 " in it for it in dockerfile.all("RUN"))


def test_both_stages_are_of_one_release_of_debian(dockerfile):
    bases = [stage[0][1].split()[0] for stage in dockerfile.stages]
    assert [it.split(":")[0] for it in bases] == ["rust", "python"]
    assert {it.rpartition("-")[2] for it in bases} == {"trixie"}


def tracked_files():
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs a clone, and git")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return listed.stdout.splitlines()


def test_a_build_is_sent_what_it_needs():
    sent = {path for path in tracked_files() if is_sent(IGNORE, path)}
    workspace = (
        (ROOT / "Cargo.toml").read_text(encoding="utf-8").partition("[workspace.package]")[0]
    )
    members = re.findall(r'^ +"(\S+)",$', workspace, re.MULTILINE)
    assert len(members) > 10
    assert {f"{member}/Cargo.toml" for member in members} <= sent
    assert {"pyproject.toml", "Cargo.toml", "Cargo.lock", "README.md", "LICENSE"} <= sent
    assert {"tools/build_backend.py", "reverb/core/wire/proto/descriptors.bin"} <= sent
    assert {path.split("/")[0] for path in sent if "/" in path} == {"reverb", "tools"}


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".venv/bin/python",
        "target/release/lib_native.so",
        "reverb/core/_native.abi3.so",
        "reverb/core/__pycache__/protos.cpython-312.pyc",
        "deploy/docker/Dockerfile",
        "tokens",
    ],
)
def test_a_build_is_not_sent(path):
    assert not is_sent(IGNORE, path)


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not here; `make setup` installs it")
def test_hadolint_accepts_it(tmp_path):
    def lint(path):
        return subprocess.run([HADOLINT, str(path)], stdout=subprocess.PIPE, text=True, check=False)

    checked = lint(DOCKER / "Dockerfile")
    assert checked.returncode == 0, checked.stdout
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python\nRUN cd /tmp\n", encoding="utf-8")
    assert "DL3003" in lint(bad).stdout


class Image:
    """The files of the Dockerfile's image, in folders of this machine.

    Attributes:
      path: The folder of the programs of its last stage.
    """

    def __init__(self, dockerfile, directory):
        self._directory = directory
        self._build_steps = dockerfile.all("RUN", 0)
        self._steps = dockerfile.all("RUN")
        self.wheels = directory / "wheels"
        self.path = directory / "python" / "bin"

    def build_wheel(self):
        """Follows the first stage, in a copy of the context."""
        source = self._directory / "source"
        for path in tracked_files():
            if is_sent(IGNORE, path):
                (source / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, source / path)
        (step,) = (step for step in self._build_steps if "pip wheel" in step)
        self._run(step, source)

    def install(self):
        """Follows the last stage: an environment takes the place of the image's Python."""
        venv.create(self._directory / "python", with_pip=True)
        (step,) = (step for step in self._steps if "pip install" in step)
        self._run(re.sub(r"^--mount=\S+ ", "", step), self._directory)

    def _run(self, step, directory):
        here = re.sub(r"(?<=[\s=])/(build|wheels)\b", rf"{self._directory}/\1", f" {step}")
        environment = os.environ | {"PATH": f"{self.path}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-ec", here], cwd=directory, env=environment, check=True)


@pytest.fixture(
    scope="module", params=["wheel_in_dist", pytest.param("all_steps", marks=pytest.mark.slow)]
)
def image(request, dockerfile, tmp_path_factory):
    image = Image(dockerfile, tmp_path_factory.mktemp("image"))
    if request.param == "all_steps":
        if shutil.which("cargo") is None:
            pytest.skip("cargo is not on the path")
        image.build_wheel()
    else:
        wheels = list((ROOT / "dist").glob("*.whl"))
        if len(wheels) != 1 or wheels[0].stat().st_mtime < newest_source_time():
            pytest.skip("no wheel of these sources in dist/; `make test-image` builds one")
        image.wheels.mkdir()
        shutil.copy(wheels[0], image.wheels)
    image.install()
    return image


def read_only(directory):
    """The beginning of a command that can write to one directory only; nothing if it cannot be."""
    if shutil.which("unshare") is None:
        return []
    command = [*UNSHARE, "sh", "-c", READ_ONLY, str(directory)]
    probe = [*command, "sh", "-c", f"! touch {directory.parent}/probe && touch {directory}/probe"]
    tried = subprocess.run(probe, stderr=subprocess.DEVNULL, check=False)
    return command if tried.returncode == 0 else []


# Compiling takes many minutes, and installing asks a package index.
@pytest.mark.timeout(1800)
def test_its_server_runs_on_a_read_only_root(image, dockerfile, config, tmp_path):
    saved = tmp_path / "saved"
    saved.mkdir()
    prefix = read_only(saved)
    port, http_port = free_ports(2)
    environment = dockerfile.environment() | {
        "PATH": f"{image.path}:/usr/bin:/bin",
        "REVERB_SERVER_PORT": str(port),
        "REVERB_SERVER_HTTP_PORT": str(http_port),
    }
    command = [*prefix, str(image.path / "reverb_server"), *options_of(dockerfile, config)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd="/", env=environment, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            line = process.stdout.readline()
            assert f" is ready on port {port} of all addresses" in line
            use_it(image.path / "python", port, http_port)
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
            assert f"checkpoint={saved}/" in process.stderr.read()
        finally:
            process.kill()
    # `probe` is of the test.
    assert [path.name for path in saved.iterdir() if path.name != "probe"]
    if not prefix:
        pytest.skip("it ran, but this user cannot make the file system read-only")


def use_it(python, port, http_port):
    """Uses the server from the image's own Python."""
    program = f"""
import urllib.request
import numpy as np
import reverb

client = reverb.Client("127.0.0.1:{port}")
client.insert_batch([np.arange(2000)], {{"replay": 1.0}})
assert client.sample_batch("replay", 8).data[0].shape == (8, 1)
for path in ("livez", "readyz", "metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/{{path}}", timeout=10) as answer:
        assert answer.status == 200
"""
    subprocess.run([python, "-c", program], cwd="/", check=True, timeout=2 * DEADLINE_S)
