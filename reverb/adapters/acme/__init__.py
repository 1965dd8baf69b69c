# SPDX-License-Identifier: Apache-2.0
"""What Acme agents need from a replay database, without TensorFlow.

Modules are named as those of Acme that they stand in for, so that a program changes import lines:

| Acme | here |
|---|---|
| `from acme.adders import reverb as adders` | `from reverb.adapters.acme import adders` |
| `from acme import datasets` | `from reverb.adapters.acme import datasets` |
| `from acme.agents import replay` | `from reverb.adapters.acme import replay` |
| `from acme.utils import reverb_utils` | `from reverb.adapters.acme import reverb_utils` |
| `from acme import specs`, `types` | `from reverb.adapters.acme import specs`, `types` |

`tables` makes tables for those adders. Acme itself is not imported; a program may go on using
Acme's own classes of the same names beside these. Environments and their specs are those of
`dm_env`.
"""
