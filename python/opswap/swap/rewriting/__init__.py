# SPDX-License-Identifier: MIT
"""From a plan to the model.

carry_out      change the model, completely or not at all
code           the text of a new forward, and the class of the link that it is a method of
input_format   convert parameters and inputs to a memory format, and back
"""
