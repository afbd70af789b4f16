# SPDX-License-Identifier: MIT
"""What the methods of torch's modules return, by their names."""

from __future__ import annotations

__all__ = ["CHILDREN", "DESCENDANTS", "LISTS", "SEEN"]

# Methods of torch's modules that return which children a module has.
_OF_CHILDREN = """
    __contains__ __dir__ __getitem__ __iter__ __len__ _get_abs_string_index children items keys
    named_children values
"""
CHILDREN = frozenset(_OF_CHILDREN.split())
# Those that return which modules, parameters and buffers there are below it.
_OF_DESCENDANTS = """
    buffers get_buffer get_parameter get_submodule modules named_buffers named_modules named_parameters
    parameters
"""
DESCENDANTS = frozenset(_OF_DESCENDANTS.split())
LISTS = frozenset({"buffers", "named_buffers", "named_parameters", "parameters"})
# Those that the tracer or the ledger of writes sees for itself.
_CALLING = """
    __call__ __delattr__ __getattr__ __setattr__ _call_impl _get_item_by_idx _wrapped_call_impl inner
"""
SEEN = frozenset(_CALLING.split())
