# SPDX-License-Identifier: MIT
"""From a model to a plan: which modules to rewrite, with which rules, and what the report contains of them.

planner      which modules and Sequentials to rewrite
changes      what the rules replace in one graph
blocks       which blocks a forward has inlined, because a rule may join their code
block_ends   what a block begins and ends with, and whether a rule may join it there
module_kinds what a module is to the planner, by its class
contiguity   code that needs contiguous tensors, before which a replacement must keep the format
apart        activations that are not joined with a normalisation, and why
bypass       forwards that users have set, which may not call the new one
seen_inside  modules whose dictionaries other code reads
gains        which rules are faster: recorded gains, and those of `tune`
advice       what to write by hand if no capture can see an operator
planned      the report that a swap left on the model, and what changed since
"""
