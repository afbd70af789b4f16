# SPDX-License-Identifier: MIT
"""What the finders share: sites and reports, the user's line behind an operator, pictures, running a user's script."""

from .context import Finder, Hidden
from .sites import Report, Site, format_bytes, format_seconds, plural
from .source import Locator, Origin, is_user_file, line_text, short_path

__all__ = [
    "Finder",
    "Hidden",
    "Locator",
    "Origin",
    "Report",
    "Site",
    "format_bytes",
    "format_seconds",
    "is_user_file",
    "line_text",
    "plural",
    "short_path",
]
