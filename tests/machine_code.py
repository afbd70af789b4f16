# SPDX-License-Identifier: MIT
"""What each function of a library for x86-64 takes of the stack, and whom it calls: read from the machine code."""

from __future__ import annotations

import re
import subprocess
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

_FUNCTION = re.compile(r"([0-9a-f]+) <(.+)>:$")
_STACK = re.compile(r"(sub|and)\s+\$0x([0-9a-f]+),%rsp")
_VARIABLE = re.compile(r"sub\s+%\w+,%rsp")
_BELOW = re.compile(r"lea\s+-0x([0-9a-f]+)\(%rsp\),(%\w+)")
_PROBED = re.compile(r"cmp\s+(%\w+),%rsp")
_GOES = re.compile(r"(?:notrack )?(call|j\w+)\s+([0-9a-f]+) <")
_POINTER = re.compile(r"(?:notrack )?(call|jmp)\s+\*(\S+)")
_MENTION = re.compile(r"# ([0-9a-f]+) <")
_OFFSET = re.compile(r"movslq\s+.*,4\),")  # of a switch: where its cases lie
_SWITCH = 12  # instructions, at most, from there to the jump


@dataclass
class Function:
    """Bytes of the frame with the return address, and the addresses of what is called or mentioned."""

    name: str
    file: str  # "" for a function that other files see
    frame: int = 8
    calls: set[int] = field(default_factory=set)
    jumps: set[int] = field(default_factory=set)  # the frame is gone by then
    calls_pointer: bool = False
    jumps_pointer: bool = False
    reads: set[int] = field(default_factory=set)  # places of memory
    addresses: set[int] = field(default_factory=set)  # that it has, and may add to or pass on


@dataclass
class Table:
    """Data with a name of its own; `functions` are those whose addresses it has from the start."""

    name: str
    file: str
    begin: int
    end: int
    functions: set[int] = field(default_factory=set)


@dataclass
class Program:
    functions: dict[int, Function]
    tables: list[Table]  # by address
    asserts: bool  # of a sanitizer, which make frames larger

    def table_at(self, address: int) -> Table | None:
        return _at(self.tables, [t.begin for t in self.tables], address)


def _at(tables: list[Table], begins: list[int], address: int) -> Table | None:
    i = bisect_right(begins, address) - 1
    return tables[i] if i >= 0 and address < tables[i].end else None


def _lines(*command: str) -> Iterator[str]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield from process.stdout
    assert process.returncode == 0


def _symbols(path: str) -> tuple[dict[int, Function], list[Table], bool]:
    functions, tables, file, asserts = {}, [], "", False
    for line in _lines("readelf", "-sW", path):
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
            continue
        kind, binding, name = fields[3], fields[4], fields[7]
        asserts = asserts or name.startswith(("__asan", "__ubsan", "__tsan"))
        if kind == "FILE":
            file = name
        elif fields[6] != "UND" and kind in ("FUNC", "OBJECT"):
            begin, own = int(fields[1], 16), file if binding == "LOCAL" else ""
            if kind == "FUNC":
                functions[begin] = Function(name, own)
            else:
                tables.append(Table(name, own, begin, begin + int(fields[2], 0)))
    return functions, sorted(tables, key=lambda t: t.begin), asserts


def read(path: str) -> Program:
    """All functions of the library. Those that a compiler cut in two, as `f.cold`, are one."""
    functions, tables, asserts = _symbols(path)
    parts = {(f.name, f.file): a for a, f in functions.items()}
    whole = {}
    for address, f in functions.items():
        hot = parts.get((f.name.removesuffix(".cold"), f.file), address)
        whole[address] = parts.get((f.name.removesuffix(".cold"), ""), address) if hot == address else hot
    begins = [t.begin for t in tables]
    for line in _lines("readelf", "-rW", path):
        fields = line.split()
        if len(fields) == 4 and fields[2] == "R_X86_64_RELATIVE":
            table, target = _at(tables, begins, int(fields[0], 16)), int(fields[3], 16)
            if table and target in functions:
                table.functions.add(whole[target])
    starts = sorted(functions)

    def function_at(address: int) -> int:
        return whole[starts[max(bisect_right(starts, address) - 1, 0)]]

    own, since_offset, below = -1, _SWITCH, {}
    for line in _lines("objdump", "-d", "--no-show-raw-insn", path):
        started = _FUNCTION.match(line)
        if started:
            address = int(started.group(1), 16)
            own = whole.get(address, -1)  # not of the jumps into other libraries
        text = line.partition("\t")[2].rstrip("\n")
        if own < 0 or not text:
            continue
        f = functions[own]
        since_offset = 0 if _OFFSET.match(text) else since_offset + 1
        if text.startswith("push"):
            f.frame += 8
        elif stack := _STACK.match(text):
            size = int(stack.group(2), 16)
            size = size if size < 1 << 63 else (1 << 64) - size  # sub -128 is add 128
            f.frame += size if stack.group(1) == "sub" else size - 8
        elif _VARIABLE.match(text):
            raise AssertionError(f"{f.name} has a frame of variable size")
        elif lower := _BELOW.match(text):
            below[lower.group(2)] = int(lower.group(1), 16)
        elif probed := _PROBED.match(text):  # a loop that takes page by page
            f.frame += below[probed.group(1)]
        elif goes := _GOES.match(text):
            target = function_at(int(goes.group(2), 16))
            if goes.group(1) == "call" and "@plt" not in text:
                f.calls.add(target)
            elif "@plt" not in text and target != own:
                f.jumps.add(target)
        elif pointer := _POINTER.match(text):
            if pointer.group(1) == "call":
                f.calls_pointer = True
            elif since_offset > _SWITCH:
                f.jumps_pointer = True
        if mention := _MENTION.search(text):
            (f.addresses if text.startswith("lea") else f.reads).add(int(mention.group(1), 16))
    cut = [a for a in functions if whole[a] != a]
    for address in cut:
        del functions[address]
    return Program(functions, tables, asserts)
