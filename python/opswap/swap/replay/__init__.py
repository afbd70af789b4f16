# SPDX-License-Identifier: MIT
"""What a swapped model does in evaluation while nothing has changed: only the kernels of a former call run.

replay      when a call is recorded, and what has to be as it was for a recording to stand for a call
recorder    which functions a call runs on which tensors, written down as a function
calls       in which order they run again
watched     whether attributes of classes and modules of Python are what they were
"""

from .replay import is_recording, replay

__all__ = ["is_recording", "replay"]
