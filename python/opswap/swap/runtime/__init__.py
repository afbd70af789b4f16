# SPDX-License-Identifier: MIT
"""While a swapped model runs: what is watched, and what happens if it has changed.

guards             the conditions that a new forward evaluates
state, outside     what is watched in a module, and outside of the model
global_state       state of whole libraries, as that of decimal and of NumPy
virtual            registrations with an abstract class, and attributes that a class answers by __getattr__
lists              arguments that are lists of tensors
patched            what a trace in another thread has replaced meanwhile
snapshot, members  copies of Python values, and whether a value still equals its copy; what an object consists of
purity             code whose answers are constants, and code whose results may change
read_once          a module each of whose attributes is read once per call
instance_forward   a new forward on one layer of torch, whose class stays
plan_of            where the plan of a swap is on a model
messages           errors, warnings and lines for a log, as the original forward says them
fallback           called when the original runs: count, notify `explain`, log
reasons            the first condition that fails, in words
condition_texts    why a condition of a rule is false, in words of the rule
differences, shown what has changed, and values, in words
"""
