# SPDX-License-Identifier: MIT
"""From a forward to graphs: its paths, the conditions of each path, and all that the forward reads.

paths              the paths of one forward as graphs, with the conditions of each
tracer, stand_in   one path: torch.fx, with a decision for each branch; the stand-in for a tensor meanwhile
bytecode           which names a function reads and writes, and what no trace can show; imports no torch
follow, reach      the user's functions that a trace runs; everything outside that they can read
trace_frames       which code a trace is in, and which code raised an error
frames             what the variables of a running function hold
layer_methods      what the methods of torch's modules return, by their names
identity           comparisons by identity, which a trace would answer for itself
classes            checks of the class of a tensor: which ones a stand-in answers, and under which condition
concrete, written  tensors that a trace meets or makes; writes of a trace, found and reverted
shell, quiet       copies of the modules to analyse; runs of copies without hooks and random numbers
example_run        the sizes that one run on example inputs shows
einops_backend     einops on the proxies of a capture
"""
