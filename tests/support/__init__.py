# SPDX-License-Identifier: Apache-2.0
"""What tests of several rooms share; `pythonpath` in pyproject.toml makes it importable."""
