# SPDX-License-Identifier: MIT
"""The backend of torch.compile.

backend      the rules on the graphs of Dynamo
open_sizes   copies of such graphs with sizes as numbers
"""
