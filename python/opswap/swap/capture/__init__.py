# SPDX-License-Identifier: MIT
"""From a forward to graphs: its paths, the conditions of each path, and all that the forward reads.

paths              the paths of one forward as graphs, with the conditions of each
modes, flags       the paths in train() and in eval(); both as one graph that reads the flag
tracer, stand_in   one path: torch.fx, with a decision for each branch; the stand-in for a tensor meanwhile
given              stand-ins for lists of tensors
patches, replaced  what torch.fx replaces during a trace; functions that a trace replaces besides
texts              texts that a forward makes of sizes, dtypes and devices
bytecode           which names a function reads and writes, and what no trace can show; imports no torch
element_writes     whether code may write to elements of a container, by its byte code
look_up            which functions called __getattribute__ read nothing but their own object
follow, reach      the user's functions that a trace runs; everything outside that they can read
kinds              what needs no watch
class_entries      what the entries of a class are, and which class gives one of them
unseen, later_code what code that no trace sees may write to; the same of code that is set after the capture
reached            where a search found code, and whether other code is there now
trace_frames       which code a trace is in, and which code raised an error
frames             what the variables of a running function hold
layer_methods      what the methods of torch's modules return, by their names
identity           comparisons by identity, which a trace would answer for itself
classes            checks of the class of a tensor: which ones a stand-in answers, and under which condition
concrete, written  tensors that a trace meets or makes; writes of a trace, found and reverted
shell, quiet       copies of the modules to analyse; runs of copies without hooks and random numbers
dry_run            runs after which everything outside of the model is as it was
example_run        the sizes that one run on example inputs shows
results            what modules returned in that run, as zeros
einops_backend     einops on the proxies of a capture
"""
