# SPDX-License-Identifier: MIT
"""From a plan to the model.

code           a new forward for one module, and its own one back
forward_text   the text around the captured code: arguments, conditions, the call of the original
input_format   convert parameters and inputs to a memory format, and back
"""
