# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/adapters.md.
"""Replacements of Acme's replay modules, without TensorFlow.

Modules have the names of the Acme modules that they replace, so a program changes import lines:

| Acme | here |
|---|---|
| `from acme.adders import reverb as adders` | `from reverb.adapters.acme import adders` |
| `from acme import datasets` | `from reverb.adapters.acme import datasets` |
| `from acme.agents import replay` | `from reverb.adapters.acme import replay` |
| `from acme.utils import reverb_utils` | `from reverb.adapters.acme import reverb_utils` |
| `from acme import specs`, `types` | `from reverb.adapters.acme import specs`, `types` |

`tables` makes tables for these adders. Acme is not imported; a program can use Acme's own classes
of the same names beside these. Environments and their specs are those of `dm_env`.
"""
