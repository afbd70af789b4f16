# SPDX-License-Identifier: MIT
"""Properties of the nodes of a graph.

table      what each call of torch does, by name: the table that swap and merge read
calls      which calls of torch move data, read sizes or write
metadata   what code reads of sizes, dtypes and devices
aliasing   code that sees whether a view became a copy
layout     code that depends on the memory format, and modules that keep it
"""
