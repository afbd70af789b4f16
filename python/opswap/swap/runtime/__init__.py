# SPDX-License-Identifier: MIT
"""While a swapped model runs: what is watched, and what happens if it has changed.

guards             the conditions that a new forward evaluates
state, outside     what is watched in a module, and outside of the model
patched            what a trace in another thread has replaced meanwhile
snapshot           copies of Python values, and whether a value still equals its copy
purity             code whose answers are constants, and code whose results may change
instance_forward   a new forward on one layer of torch, whose class stays
condition_texts    why a condition of a rule is false, in words of the rule
fallback           called when the original runs: count, notify `explain`, log
reasons            the first condition that fails, in words
"""
