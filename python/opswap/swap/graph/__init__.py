# SPDX-License-Identifier: MIT
"""Properties of the nodes of a graph.

calls      which calls of torch move data, read sizes or write
metadata   what code reads of sizes, dtypes and devices
aliasing   code that sees whether a view became a copy
"""
