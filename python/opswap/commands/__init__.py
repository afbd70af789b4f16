# SPDX-License-Identifier: MIT
"""One module per command; each has `add(commands)`. The finders' commands are with the finders."""
