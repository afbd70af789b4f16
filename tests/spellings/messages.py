# SPDX-License-Identifier: MIT
"""Forwards that warn or write to a log, with texts of sizes and without."""

# ruff: noqa: B028, UP031, UP032

from __future__ import annotations

import logging
import warnings
from warnings import warn

from torch import Tensor

log = logging.getLogger(__name__)


class OwnLogger(logging.Logger):
    """With a method of its own."""

    def info(self, message: object, *args: object, **options: object) -> None:  # type: ignore[override]
        super().info(f"own {message}", *args)


own_log = OwnLogger(f"{__name__}.own", logging.DEBUG)
unknown_log = logging.Logger(f"{__name__}.unknown", logging.DEBUG)  # getLogger() does not return it


class Config:
    rate = 3


config = Config()


def shuffled(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)


def warns(x: Tensor) -> Tensor:
    warnings.warn("slow")
    return shuffled(x)


def warns_of_sizes(x: Tensor) -> Tensor:
    warnings.warn(f"{x.shape} and {x.dtype!r}, {x.ndim:>3} dimensions")
    return shuffled(x)


def warns_of_a_category(x: Tensor) -> Tensor:
    warnings.warn("%s images" % x.shape[0], DeprecationWarning)
    return shuffled(x)


def warns_by_keywords(x: Tensor) -> Tensor:
    warnings.warn(message="{} channels".format(x.size(1)), category=RuntimeWarning, stacklevel=1)
    return shuffled(x)


def warns_afterwards(x: Tensor) -> Tensor:
    y = shuffled(x)
    warnings.warn("size " + str(y.size(2)))
    return y


def warns_within(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    y = x.view(b, 2, c // 2, h, w)
    warnings.warn(f"{h} rows", stacklevel=1)
    return y.transpose(1, 2).reshape(b, c, h, w)


def warns_of_some(x: Tensor) -> Tensor:
    if x.shape[2] > 4:
        warnings.warn(f"{x.shape[2]} rows are many", FutureWarning)
    return shuffled(x)


def warns_twice(x: Tensor) -> Tensor:
    for text in ("first", "second"):
        warnings.warn(f"{text} of {x.shape[3]}")
    return shuffled(x)


def _say(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def warns_in_a_function(x: Tensor) -> Tensor:
    _say("from elsewhere")
    return shuffled(x)


def warns_imported(x: Tensor) -> Tensor:
    warn("imported by name")
    return shuffled(x)


def warns_of_the_caller(x: Tensor) -> Tensor:
    warnings.warn("who called", stacklevel=2)
    return shuffled(x)


WARNINGS = [
    warns, warns_of_sizes, warns_of_a_category, warns_by_keywords, warns_afterwards, warns_within, warns_of_some,
    warns_twice, warns_in_a_function, warns_of_the_caller,
]  # fmt: skip


def logs(x: Tensor) -> Tensor:
    log.debug("here")
    return shuffled(x)


def logs_sizes(x: Tensor) -> Tensor:
    log.info("%s of %d rows, %r", x.shape, x.shape[2], x.dtype)
    return shuffled(x)


def logs_a_text(x: Tensor) -> Tensor:
    log.warning(f"{x.ndim} dimensions on {x.device}")
    return shuffled(x)


def logs_a_text_in_a_text(x: Tensor) -> Tensor:
    log.error("%s: %s", "sizes", f"{tuple(x.shape)}")
    return shuffled(x)


def logs_afterwards(x: Tensor) -> Tensor:
    y = shuffled(x)
    log.critical("left with %s", tuple(y.shape))
    return y


def logs_some(x: Tensor) -> Tensor:
    if x.shape[2] > 4:
        log.warning("%d rows", x.shape[2])
    else:
        log.info("few rows")
    return shuffled(x)


def logs_a_format(x: Tensor) -> Tensor:
    log.info("{} of {rows:>3}".format(x.dtype, rows=x.shape[2]))
    return shuffled(x)


def logs_to_the_root(x: Tensor) -> Tensor:
    logging.warning("%d images", x.size(0))
    return shuffled(x)


LOGS = [
    logs,
    logs_sizes,
    logs_a_text,
    logs_a_text_in_a_text,
    logs_afterwards,
    logs_some,
    logs_a_format,
    logs_to_the_root,
]


def warns_of_elements(x: Tensor) -> Tensor:
    warnings.warn(f"{x.sum()}")
    return shuffled(x)


def warns_of_an_object(x: Tensor) -> Tensor:
    warnings.warn(UserWarning("an object"))
    return shuffled(x)


def logs_a_stack(x: Tensor) -> Tensor:
    log.info("stack", stack_info=True)
    return shuffled(x)


def logs_an_error(x: Tensor) -> Tensor:
    log.exception("no error")
    return shuffled(x)


def logs_a_level(x: Tensor) -> Tensor:
    log.log(35, "a level")
    return shuffled(x)


def logs_elements(x: Tensor) -> Tensor:
    log.info("%s", x.mean())
    return shuffled(x)


def logs_a_text_within(x: Tensor) -> Tensor:
    log.info("%s", (f"{x.shape}",))
    return shuffled(x)


def warns_loudly(x: Tensor) -> Tensor:
    warnings.warn(f"{x.shape}".upper())
    return shuffled(x)


def logs_an_object(x: Tensor) -> Tensor:
    log.info("%s", config)
    return shuffled(x)


def logs_if_enabled(x: Tensor) -> Tensor:
    if log.isEnabledFor(logging.DEBUG):
        log.debug("enabled")
    return shuffled(x)


def logs_its_own_way(x: Tensor) -> Tensor:
    own_log.info("a class")
    return shuffled(x)


def logs_to_an_unknown_log(x: Tensor) -> Tensor:
    unknown_log.info("unknown")
    return shuffled(x)


def prints(x: Tensor) -> Tensor:
    print(x.shape)
    return shuffled(x)


def logs_what_a_format_looks_up(x: Tensor) -> Tensor:
    log.info("{.rate}".format(config))
    return shuffled(x)


def decides(x: Tensor) -> Tensor:
    text = f"{x.shape[1]}"
    log.info(text)
    return shuffled(x) if text == "4" else x


LEFT = [
    warns_of_elements, warns_of_an_object, warns_imported, warns_loudly, logs_a_stack, logs_an_error, logs_a_level,
    logs_elements, logs_an_object, logs_if_enabled, logs_its_own_way, logs_to_an_unknown_log, logs_a_text_within,
    logs_what_a_format_looks_up, prints, decides,
]  # fmt: skip
