"""Defines the look of every chart: readable in print and in grey, colours for colour blindness, safe text.

The palette is that of Okabe and Ito. Names that strangers choose are shortened, and characters that could control a
terminal, a page or the writing direction are shown as escapes (:func:`readable`); a chart has at most
:data:`MOST_NAMES` of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import altair as alt
import pandas as pd

from reliable_channel.analysis import text

WIDTH, HEIGHT = 640, 220
MOST_NAMES = 7
OTHER = "all others"
LONGEST = 40

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK, GREY = "#CC79A7", "#56B4E9", "#333333", "#8C8C8C"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, BLACK, "#F0E442")

Chart: TypeAlias = "alt.Chart | alt.LayerChart | alt.FacetChart"


def readable(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """A copy whose text in ``columns`` can be drawn: bounded, and without unprintable characters."""
    cleaned = {c: [None if v is None or v != v else text.printable(v, LONGEST) for v in frame[c]] for c in columns}
    return frame.assign(**cleaned)


def topmost(frame: pd.DataFrame, column: str, by: str) -> pd.DataFrame:
    """The frame with all names in ``column`` called "all others" but the few with the largest sum of ``by``."""
    totals = _sums(frame, column, by)
    if len(totals) <= MOST_NAMES + 1:
        return frame
    return frame.assign(**{column: frame[column].where(frame[column].isin(totals.index[:MOST_NAMES]), OTHER)})


def keep_topmost(frame: pd.DataFrame, column: str, by: str) -> pd.DataFrame:
    """Only the rows of the few names with the largest sum of ``by``: for lines, which cannot be added up."""
    return frame[frame[column].isin(_sums(frame, column, by).index[:MOST_NAMES])]


def _sums(frame: pd.DataFrame, column: str, by: str) -> pd.Series:
    """The sum of ``by`` of each name in ``column``, the largest first."""
    return frame.groupby(column)[by].sum().sort_values(ascending=False, kind="stable")


def title_params(text: str, *how_to_read: str) -> alt.TitleParams:
    """A title, with a sentence below it that explains how to read the chart."""
    return alt.TitleParams(text, subtitle=list(how_to_read), anchor="start", frame="group")


def answers(frame: pd.DataFrame) -> dict[str, Any]:
    """Encodings for a mark's tooltip (column ``hover``) and link (column ``link``, an absolute address), if the frame
    has them."""
    channels: dict[str, Any] = {"description": alt.Description("hover:N")}
    return channels | ({"href": alt.Href("link:N")} if "link" in frame else {})


def time_axis(times: pd.Series, title: str = "event time (UTC)", until: Any = None) -> alt.X:
    """A time axis of the column ``time`` in UTC, whatever the viewer's time zone, with labels as fine as the span
    needs. It extends to ``until`` (a time) if that is later than the last of ``times``."""
    end = times.max() if until is None or not len(times) else max(times.max(), pd.Timestamp(until))
    span = (end - times.min()).total_seconds() if len(times) else 0
    form = (
        "%Y-%m-%d" if span > 4 * 86_400 else "%d %b %H:%M" if span > 86_400 else "%H:%M" if span > 600 else "%H:%M:%S"
    )
    scale, ticks = alt.Scale(type="utc"), 10 if form == "%H:%M" else 6
    if until is not None and len(times):
        scale.domainMax = int(end.timestamp()) * 1000
    return alt.X("time:T", title=title, scale=scale, axis=alt.Axis(labelOverlap=True, format=form, tickCount=ticks))


def stack_bars(
    frame: pd.DataFrame, name: str, value: str, seconds: float, names: list[str] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Bars of a stack over bins of time: the rows with ``until`` (end of the bin), ``low`` and ``high``; and the names
    from bottom to top, by default from the largest sum to the smallest."""
    summed = frame.groupby(["time", name], as_index=False)[value].sum()
    totals = _sums(summed, name, value)
    names = names or sorted(totals.index, key=lambda n: (n == OTHER, -totals[n]))
    summed = summed.assign(order=summed[name].map({n: number for number, n in enumerate(names)}))
    summed = summed.sort_values(["time", "order"], ignore_index=True)
    if "link" in frame:
        summed["link"] = summed[name].map(frame.groupby(name)["link"].first()).where(summed[name] != OTHER)
    high = summed.groupby("time")[value].cumsum()
    return summed.assign(
        until=summed["time"] + pd.Timedelta(seconds=seconds), low=high - summed[value], high=high
    ), names


def stacked_bars(
    rows: pd.DataFrame,
    title: alt.TitleParams,
    name: str,
    names: list[str],
    colours: list[str] | None = None,
    **axes: Any,
) -> alt.Chart:
    """Bars along ``axes``, whose parts are stacked in the order of ``names``."""
    ordered = rows.assign(order=rows[name].map({part: number for number, part in enumerate(names)}))
    color = colours_by_name(name, names, colours)
    return alt.Chart(ordered, title=title).mark_bar().encode(**axes, color=color, order="order:Q")


def bars_over_time(
    frame: pd.DataFrame,
    name: str,
    value: str,
    title: str,
    how: str,
    what: str,
    colours: Mapping[str, str] | None = None,
) -> Chart:
    """Stacked bars over bins of time; ``frame.attrs["seconds"]`` is the width of a bin. ``colours``: of each name, from
    bottom to top."""
    seconds = frame.attrs.get("seconds", 0)
    rows, names = stack_bars(frame, name, value, seconds, [*colours] if colours else None)
    rows["hover"] = [
        f"{row[name]}: {text.pluralize(row[value], what)}, {row['time']:%Y-%m-%d %H:%M:%S}"
        for row in rows.to_dict("records")
    ]
    chart = (
        alt.Chart(rows, title=title_params(title, f"{how}; one bar for {every(seconds)}."))
        .mark_rect(stroke="white", strokeWidth=0.4)
        .encode(
            **answers(rows),
            x=time_axis(pd.concat([rows["time"], rows["until"]]), until=frame.attrs.get("until")),
            x2="until:T",
            y=alt.Y("low:Q", title=f"{what} {_each(seconds)}", axis=whole_numbers(rows["high"])),
            y2="high:Q",
            color=colours_by_name(name, names, [*colours.values()] if colours else None),
        )
    )
    return set_size(chart)


def whole_numbers(values: pd.Series) -> alt.Axis:
    """An axis for counts: no tick between one and two."""
    largest = 1 if values.empty else int(values.max())
    return alt.Axis(format=",d", tickMinStep=1, tickCount=max(1, min(8, largest)))


def _each(seconds: float) -> str:
    words = every(seconds).removeprefix("every ")
    return f"in {words}" if words[0].isdigit() else f"{'an' if words == 'hour' else 'a'} {words}"


def every(seconds: float) -> str:
    """A width of time in words: ``every minute``, ``every 15 s``."""
    for unit, long, size in (("days", "day", 86_400), ("h", "hour", 3_600), ("min", "minute", 60), ("s", "second", 1)):
        if seconds == size:
            return f"every {long}"
        if seconds >= size and seconds % size == 0:
            return f"every {seconds // size:g} {unit}"
    return f"every {seconds:g} s"


def colours_by_name(column: str, names: list[str], colours: list[str] | None = None) -> alt.Color:
    """One colour per name, in this order, with the legend below the chart. A colour depends on the alphabetical
    position of its name, so that charts of the same names agree whatever order they show them in."""
    rank = {name: number for number, name in enumerate(sorted({*names} - {OTHER}))}
    chosen = colours or [GREY if name == OTHER else PALETTE[rank[name] % len(PALETTE)] for name in names]
    scale = alt.Scale(domain=names, range=chosen)
    columns = 6 if max((len(name) for name in names), default=0) <= 12 else 3
    return alt.Color(
        f"{column}:N", sort=names, scale=scale, legend=alt.Legend(orient="bottom", title=None, columns=columns)
    )


def nothing(text: str, why: str) -> Chart:
    """A placeholder for a chart without data: what it would show, and why it is empty."""
    words = alt.Chart(pd.DataFrame({"why": [why]})).mark_text(fontSize=13, color=GREY, fontStyle="italic")
    return set_size(words.encode(text="why:N").properties(title=title_params(text)), 60)


def set_size(chart: Any, height: int = HEIGHT, width: int = WIDTH) -> Chart:
    """The chart with the common size and type."""
    drawn: Chart = (
        chart.properties(width=width, height=height)
        .configure_view(stroke=None)
        .configure_axis(
            labelFontSize=11, titleFontSize=12, gridColor="#DDDDDD", titleFontWeight="normal", labelLimit=240
        )
        .configure_title(fontSize=15, subtitleFontSize=12, subtitleColor="#555555", offset=12)
        .configure_legend(labelFontSize=11, titleFontSize=12, labelLimit=240, symbolLimit=12, columnPadding=16)
    )
    return drawn
