# SPDX-License-Identifier: MIT
"""From a model to a plan: which modules to rewrite, with which rules, and what the report contains of them.

planner      which modules and Sequentials to rewrite
changes      what the rules replace in one graph
blocks       which blocks a forward has inlined, because a rule may join their code
module_kinds what a module is to the planner, by its class
contiguity   code that needs contiguous tensors, before which a replacement must keep the format
gains        which rules are faster: recorded gains, and those of `tune`
advice       what to write by hand if no capture can see an operator
planned      the report that a swap left on the model, and what changed since
"""
