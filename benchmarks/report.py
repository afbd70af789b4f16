# SPDX-License-Identifier: MIT
"""Turn result files into the README's tables: python benchmarks/report.py [FILE ...] [--picture networks.png]"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from opswap._table import markdown, milliseconds

Row = dict[str, Any]

_RESULTS = Path(__file__).parent / "results"
_OPERATOR = ("case", "shape", "dtype", "layout", "direction")
_MODEL = ("case", "shape", "direction")
_AS_USED = ", as used"
# Of these cases: the columns, with the forms that they show, and the colours in the picture.
_USED = {
    "stock as it comes": "tab:gray",
    "stock with reused memory": "silver",
    "torch.compile": "tab:orange",
    "optimize": "tab:blue",
}


def _settings(rows: Iterable[Row]) -> list[tuple[int, str]]:
    """Threads and allocation mode, in the order of the file."""
    return list(dict.fromkeys((row["threads"], row["allocation"]) for row in rows))


def _heading(setting: tuple[int, str]) -> str:
    threads, allocation = setting
    return f"{threads} thread{'s' if threads > 1 else ''}, {allocation}"


def _groups(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def _ratio(row: Row) -> str:
    text = f"{row['ratio']:.2f}"
    return text if row["ratio"] >= 1.0 else f"**{text}** (slower)"


def _kept(row: Row) -> str:
    """MB that every form keeps for the backward; empty if that is not measured."""
    return ", ".join(f"{name} {size / 1e6:.1f}" for name, size in (row.get("kept_bytes") or {}).items())


def _operator_table(rows: list[Row]) -> list[str]:
    """One line per operator, shape, dtype, layout and direction: times of the first setting, ratios of all."""
    settings = _settings(rows)
    head = [*_OPERATOR, f"stock, ms ({_heading(settings[0])})", "opswap, ms", "share of copy"]
    head += [f"x, {_heading(setting)}" for setting in settings]
    keeps = any(_kept(row) for row in rows)
    head += ["kept for backward, MB"] if keeps else []
    lines = []
    for key, group in _groups(rows, _OPERATOR).items():
        found = {(row["threads"], row["allocation"]): row for row in group}
        first = group[0]
        stock = ", ".join(f"{name} {spread['median']:.2f}" for name, spread in first["stock"].items())
        cells = [*key, stock, f"{first['opswap_ms']:.2f}", f"{first['roof_share']:.0%}"]
        cells += [_ratio(found[s]) if s in found else "" for s in settings]
        lines.append([*cells, _kept(first)] if keeps else cells)
    return markdown(head, lines)


def _model_table(rows: list[Row]) -> list[str]:
    """One line per model and setting: median times of every form in both layouts; empty if a form does not run.

    One line per dtype and layout, if there are several and the names of the forms do not contain them.
    """
    stock = list(dict.fromkeys(name for row in rows for name in row["stock"]))
    forms = list(dict.fromkeys(_form(row) for row in rows))
    plans = any(row.get("plan") for row in rows)
    told = all(row["layout"] in _form(row) for row in rows)
    varying = [key for key in ("dtype", "layout") if len({row[key] for row in rows}) > 1]
    keys = [*_MODEL, *(key for key in varying if not (told and key == "layout"))]
    lines = []
    for key, group in _groups(rows, (*keys, "threads", "allocation")).items():
        times = {name: spread["median"] for name, spread in group[0]["stock"].items()}
        times |= {_form(row): row["opswap_ms"] for row in group}
        cells = [milliseconds(times[name]) if name in times else "" for name in (*stock, *forms)]
        best = max(group, key=lambda row: row["ratio"])
        cells += [_ratio(best), best.get("plan", "")] if plans else [_ratio(best)]
        lines.append([*key[: len(keys)], _heading((key[-2], key[-1])), *cells])
    head = [*keys, "setting", *stock, *forms, "best stock / best swapped"]
    return markdown([*head, "runs as"] if plans else head, lines)


def _used_times(row: Row) -> dict[str, float]:
    """Milliseconds of each form that the row has, in the order of the columns."""
    times = {name: spread["median"] for name, spread in row["stock"].items()} | {"optimize": row["opswap_ms"]}
    return {name: times[name] for name in _USED if name in times}


def _used_name(row: Row) -> str:
    return f"{row['case'].removesuffix(_AS_USED)}, {row['shape'].replace(',', ' x ')}"


def _used_table(rows: list[Row]) -> list[str]:
    """One line per network, direction and setting: the forms of stock and `optimize`, and how many times faster it is
    than stock as it comes and than the fastest form.

    Of one setting, this is the README's table.
    """
    several, lines = len(_settings(rows)) > 1, []
    forms = [form for form in _USED if any(form in _used_times(row) for row in rows)]
    for row in rows:
        times = _used_times(row)
        gain = _ratio({"ratio": times["stock as it comes"] / times["optimize"]})
        setting = [_heading((row["threads"], row["allocation"]))] if several else []
        cells = [_used_name(row), row["direction"], *setting]
        shown = [milliseconds(times[form]) if form in times else "" for form in forms]
        lines.append([*cells, *shown, gain, _ratio(row)])
    head = ["network, batch", "direction", *(["setting"] if several else []), *forms]
    return markdown([*head, "times as fast as stock", "as the best other"], lines)


def draw_used(path: Path, rows: list[Row]) -> None:
    """The same as a picture, a PNG: a bar per form, as a share of the time of stock as it comes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.75 + 0.75 * len(rows)), layout="constrained")
    axes = figure.subplots()
    times = [_used_times(row) for row in rows]
    forms = [form for form in _USED if any(form in found for found in times)]
    height = 0.8 / len(forms)
    for index, form in enumerate(forms):
        ran = [(place, found) for place, found in enumerate(times) if form in found]
        places = [place + height * index for place, _ in ran]
        shares = [found[form] / found["stock as it comes"] for _, found in ran]
        axes.barh(places, shares, height=0.9 * height, color=_USED[form], label=form)
        for place, share, (_, found) in zip(places, shares, ran, strict=True):
            axes.text(share, place, f" {milliseconds(found[form])} ms", va="center", fontsize=7)
    axes.set_yticks(
        [place + 0.4 - height / 2 for place in range(len(rows))],
        [f"{_used_name(row)}\n{row['direction']}" for row in rows],
        fontsize=8,
    )
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("time, stock as it comes = 1")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.12), ncols=len(forms), frameon=False)
    FigureCanvasAgg(figure).print_png(path)


def _cost_table(rows: list[Row]) -> list[str]:
    """One line per network and setting: how many times as long a watched call takes."""
    groups = _groups(rows, ("case", "shape", "layout", "threads", "allocation"))
    forms = [row["form"] for row in max(groups.values(), key=len)]
    lines = []
    for key, group in groups.items():
        ratios = {row["form"]: f"{row['ratio']:.2f}" for row in group}
        lines.append([*key[:3], _heading((key[3], key[4])), *(ratios.get(f, "") for f in forms)])
    return markdown(["case", "shape", "layout", "setting", *forms], lines)


def _form(row: Row) -> str:
    return row.get("form", f"swapped {row['layout']}")


def _machine_line(rows: list[Row]) -> str:
    row = rows[-1]
    machine = (
        f"{row['cpu']}, {row['isa']}, torch {row['torch']}, opswap {row['opswap_version']}, {row['date']}. "
        f"{len(rows)} rows"
    )
    gains = [r["ratio"] for r in rows if not r.get("costs")]
    return (
        f"{machine}, {sum(g < 1.0 for g in gains)} slower than the best stock form."
        if gains
        else f"{machine}."
    )


def report(rows: list[Row]) -> str:
    """Markdown of one result file."""
    operators = [row for row in rows if row["roof_share"] is not None]
    costs = [row for row in rows if row.get("costs")]
    models = [row for row in rows if row["roof_share"] is None and not row.get("costs")]
    used = [row for row in models if row["case"].endswith(_AS_USED)]
    models = [row for row in models if row not in used]
    parts = [_machine_line(rows)]
    parts += ["\n".join(_operator_table(operators))] if operators else []
    parts += ["\n".join(_model_table(models))] if models else []
    parts += ["\n".join(_used_table(used))] if used else []
    parts += ["\n".join(_cost_table(costs))] if costs else []
    return "\n\n".join(parts)


def summary(rows: Sequence[Row]) -> list[str]:
    """One line per operator, dtype and layout: how many times faster, smallest to largest over the shapes."""
    directions = list(dict.fromkeys(row["direction"] for row in rows))
    lines = []
    for key, group in _groups(rows, ("case", "dtype", "layout")).items():
        ratios = [sorted(r["ratio"] for r in group if r["direction"] == d) for d in directions]
        lines.append([*key, *map(_range, ratios)])
    return markdown(["case", "dtype", "layout", *directions], lines)


def _range(ratios: Sequence[float]) -> str:
    ends = [f"{r:.2f}" for r in (*ratios[:1], *ratios[1:][-1:])]
    return " to ".join(ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "file", nargs="*", type=Path, help="written by run.py --json; by default all of results/"
    )
    parser.add_argument(
        "--summary", action="store_true", help="only the range of the ratios, of the first setting in a file"
    )
    parser.add_argument(
        "--picture", type=Path, metavar="PNG", help="only draw the networks as they are used, to this file"
    )
    arguments = parser.parse_args()
    files = arguments.file or sorted(_RESULTS.glob("*.json"))
    if not files:
        parser.error(f"no result files in {str(_RESULTS)!r}")
    for file in files:
        try:
            rows = json.loads(file.read_text())
        except (OSError, json.JSONDecodeError) as error:
            parser.error(f"{str(file)!r} cannot be read: {error}")
        if arguments.picture is not None:
            used = [row for row in rows if row["case"].endswith(_AS_USED)]
            if not used:
                parser.error(f"{str(file)!r} has no networks as they are used")
            draw_used(arguments.picture, used)
        elif arguments.summary:
            rows = [row for row in rows if not row.get("costs")]
            if not rows:
                continue
            first = _settings(rows)[0]
            rows = [row for row in rows if (row["threads"], row["allocation"]) == first]
            print(f"{_heading(first)}\n\n" + "\n".join(summary(rows)) + "\n")
        else:
            print(f"{file.name}: {report(rows)}\n")


if __name__ == "__main__":
    main()
