# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the documentation; `make docs` calls it with warnings as errors.

Why Sphinx: it reports dead links, unknown names and faulty docstrings as warnings, and is
maintained. MkDocs 1 and Material for MkDocs are at their end of life.
"""

import importlib
import pathlib
import re
import sys
import types
from typing import Any

from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock
from sphinx.util import logging

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = pathlib.Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS / "extensions")]

# Name, version and address have one place.
_METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = _METADATA["urls"]["Repository"]

project = _METADATA["name"]
release = version = _METADATA["version"]
author = f"the authors of {project}"
project_copyright = author
language = "en"

extensions = [
    "method_tables",
    "myst_nb",
    "public_names",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "tutorials",
]
exclude_patterns = ["extensions"]

# ---- Pages ---------------------------------------------------------------------------------------

myst_enable_extensions = ["dollarmath"]
# Links such as `waiting.md#prefetch` are checked.
myst_heading_anchors = 3
# The first comment of a page is its SPDX line.
suppress_warnings = ["myst.header"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
# Output that a notebook has comes from `make notebooks`; its TensorFlow is not installed here.
nb_execution_mode = "off"
nb_merge_streams = True

# ---- Reference -----------------------------------------------------------------------------------

# Modules that import these are documented without them. The modules stand in for the whole build,
# because the TensorFlow part looks at them when it is loaded.
_LIBRARIES = [
    "gin",
    "gymnasium",
    "jax",
    "msgpack",
    "ray",
    "stable_baselines3",
    "tensordict",
    "tensorflow",
    "tf_agents",
    "torch",
    "torchrl",
]
with mock(_LIBRARIES):
    for _name in _LIBRARIES:
        importlib.import_module(_name)
    import gin
    import gymnasium
    import gymnasium.spaces
    import stable_baselines3.common.buffers
    import stable_baselines3.common.type_aliases
    import tensorflow
    import tf_agents.replay_buffers
    import tf_agents.specs
    import torch
    import torchrl.data
    import torchrl.data.replay_buffers.samplers
    import torchrl.data.replay_buffers.storages
    import torchrl.data.replay_buffers.writers

    gin.configurable = lambda **_: lambda decorated: decorated
    tensorflow.__version__ = "2.21.0"
    # Base classes: plain ones, so that a signature is that of the class derived from them.
    _dataset = types.SimpleNamespace(Dataset=type("Dataset", (), {}))
    tensorflow.compat = types.SimpleNamespace(v1=types.SimpleNamespace(data=_dataset))
    tf_agents.replay_buffers.replay_buffer = types.SimpleNamespace(
        ReplayBuffer=type("ReplayBuffer", (), {})
    )
    gymnasium.Wrapper = type("Wrapper", (), {})
    gymnasium.vector = types.SimpleNamespace(VectorWrapper=type("VectorWrapper", (), {}))
    stable_baselines3.common.buffers.ReplayBuffer = type("ReplayBuffer", (), {})
    torch.dtype = type("dtype", (), {})
    torchrl.data.TensorDictReplayBuffer = type(
        "TensorDictReplayBuffer", (), {"sample": lambda self: None}
    )
    torchrl.data.replay_buffers.samplers.Sampler = type("Sampler", (), {})
    torchrl.data.replay_buffers.samplers.PrioritizedSampler = type("PrioritizedSampler", (), {})
    torchrl.data.replay_buffers.storages.Storage = type("Storage", (), {})
    torchrl.data.replay_buffers.writers.Writer = type("Writer", (), {})
    torch.utils.data = types.SimpleNamespace(IterableDataset=type("IterableDataset", (), {}))
    _STAND_INS = {
        name: module for name, module in sys.modules.items() if name.partition(".")[0] in _LIBRARIES
    }
sys.modules.update(_STAND_INS)
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# Longer signatures have a line for each argument.
python_maximum_signature_line_length = 90
autodoc_default_options = {"members": True}
autoclass_content = "both"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Yields", "returns_style")]

# Docstrings write `names` in single backticks; those of the reference become links.
default_role = "py:obj"
nitpicky = True
# Foreign names; their own references would have to be fetched from the network.
nitpick_ignore_regex = [("py:.*", r"(collections\.abc|datetime|numpy|os|queue|tf)\..*")]
add_module_names = False

# ---- Looks ---------------------------------------------------------------------------------------

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}
html_show_sphinx = False

_logger = logging.getLogger(__name__)
_PLURAL = re.compile(r"(?<!`)(`[^`\n]+`)(?=[A-Za-z])")
_LINK_OUT = re.compile(r"\]\((\.\./[^)#\s]+)\)")


def _link_files_of_the_repository(app: Sphinx, page: str, source: list[str]) -> None:
    """Turns links to files outside docs/ into links to the repository; the files must exist."""

    def link(match: re.Match[str]) -> str:
        path = (DOCS / page).parent.joinpath(match[1]).resolve()
        if path.is_relative_to(DOCS):
            return match[0]
        if not path.exists():
            _logger.warning("no such file: %s", match[1], location=page)
        return f"]({REPOSITORY}/blob/main/{path.relative_to(ROOT).as_posix()})"

    source[0] = _LINK_OUT.sub(link, source[0])


def _allow_plurals(*arguments: Any) -> None:
    """Reads "`Step`s", which reStructuredText does not understand without a mark in between."""
    lines = arguments[-1]
    lines[:] = [_PLURAL.sub(r"\1\\ ", line) for line in lines]


def _keep_names_without_a_page(app: Sphinx, env: Any, node: Any, content: Any) -> Any:
    """Shows names that the default role does not find, such as arguments, as code.

    Types in signatures that belong to other libraries, or that programs do not name, stay too.
    """
    parent = node.parent
    while parent is not None and not isinstance(parent, addnodes.desc_signature):
        parent = parent.parent
    return content if node.get("reftype") == "obj" or parent is not None else None


def setup(app: Sphinx) -> None:
    """Registers the functions above."""
    app.connect("autodoc-process-docstring", _allow_plurals)
    app.connect("source-read", _link_files_of_the_repository)
    app.connect("missing-reference", _keep_names_without_a_page)
