# SPDX-License-Identifier: Apache-2.0
"""The snippets about Ray run as they stand."""

import pytest

pytestmark = pytest.mark.alone


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("cluster")
def test_snippets_for_ray_run(run_snippets):
    assert run_snippets(" ray") == ["docs/howto/ray.md"]
