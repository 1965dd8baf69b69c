# SPDX-License-Identifier: Apache-2.0
"""The notebooks as pages: copies of notebooks/*.ipynb in docs/tutorials/, which git ignores.

`make notebooks` leaves executed copies in notebooks/executed/. Where one has the same source as the
notebook, the page shows it with its output; otherwise the page has no output. `make docs` does not
execute them itself, because they need several environments with TensorFlow and take minutes:
`make docs EXECUTED=1` runs `make notebooks` first.
"""

import json
import pathlib
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
EXECUTED = NOTEBOOKS / "executed"

_logger = logging.getLogger(__name__)


def copy_notebooks(app: Sphinx) -> None:
    """Copies what changed, so that other pages are not built again."""
    target = pathlib.Path(app.srcdir) / "tutorials"
    notebooks = sorted(NOTEBOOKS.glob("*.ipynb"))
    for stale in set(target.glob("*.ipynb")) - {target / path.name for path in notebooks}:
        stale.unlink()
    for path in notebooks:
        text = (_executed(path) or path).read_text(encoding="utf-8")
        copy = target / path.name
        if not copy.exists() or copy.read_text(encoding="utf-8") != text:
            copy.write_text(text, encoding="utf-8")


def _executed(path: pathlib.Path) -> pathlib.Path | None:
    executed = EXECUTED / path.name
    if not executed.exists():
        return None
    if _cells(executed) != _cells(path):
        _logger.info("%s has changed since `make notebooks`: shown without output", path.name)
        return None
    return executed


def _cells(path: pathlib.Path) -> list[tuple[str, str]]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def setup(app: Sphinx) -> dict[str, bool]:
    """Copies before Sphinx looks for pages."""
    app.connect("builder-inited", copy_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
