# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/adapters.md.
"""Adapters to other libraries. They use the public package `reverb` only.

`tf_agents` and `acme` have modules with the names of the library's modules that they replace, so a
program changes one import line. `import reverb` imports none of them.
"""
