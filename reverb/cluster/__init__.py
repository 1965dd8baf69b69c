# SPDX-License-Identifier: Apache-2.0
"""Several servers that share the load of the same tables: shards of a group.

Nothing here needs an engine that runs them; `reverb.adapters.ray` has one.
"""
