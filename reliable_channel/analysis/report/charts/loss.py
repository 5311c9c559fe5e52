"""Draws the charts of ``report/loss.py``."""

from __future__ import annotations

import datetime as dt

import altair as alt
import pandas as pd

from reliable_channel.analysis.report.charts import look

MOST_CAUSES = 4
OTHERS = "missing: other causes"
_MISSING = (look.VERMILION, look.ORANGE, look.PURPLE, "#A6761D", "#F0C0A0")
_UNKNOWN = "#BDBDBD"
NONE_LOST = "No verdict in this window names a loss."


def causes(frame: pd.DataFrame) -> look.Chart:
    """How many messages were lost, by cause (:func:`loss.causes`)."""
    title = "Why messages were not delivered"
    if frame.empty:
        return look.nothing(title, NONE_LOST)
    shown = frame.assign(cause=frame["cause"].str.replace("_", " "))
    names = list(dict.fromkeys(shown["cause"]))
    base = alt.Chart(
        shown, title=look.title_params(title, "Unknown may still turn out either way and is judged again.")
    )
    bars = base.mark_bar().encode(
        y=alt.Y("cause:N", sort=names, title=None),
        x=alt.X("messages:Q", title="messages", axis=alt.Axis(tickMinStep=1)),
        color=look.colours_by_name("verdict", ["missing", "unknown"], [look.VERMILION, look.GREY]),
    )
    numbers = base.mark_text(align="left", dx=4).encode(
        y=alt.Y("cause:N", sort=names), x=alt.X("sum(messages):Q"), text="sum(messages):Q"
    )
    return look.set_size(bars + numbers, 40 + 22 * len(names))


def losses_over_time(frame: pd.DataFrame) -> look.Chart:
    """Lost messages over time, by cause (:func:`loss.losses_over_time`)."""
    title = "What was not delivered, and when"
    if frame.empty:
        return look.nothing(title, NONE_LOST)
    shown = look.topmost(frame.assign(cause=frame["cause"].str.replace("_", " ")), "cause", "messages")
    shown.attrs = frame.attrs
    return look.bars_over_time(shown, "cause", "messages", title, "By the time of the first trace", "messages")


def bursts(frame: pd.DataFrame) -> look.Chart:
    """Runs of lost messages by length, beside the numbers expected for independent losses (:func:`loss.bursts`)."""
    title = "Do losses come in bursts?"
    if frame.empty:
        return look.nothing(title, NONE_LOST)
    shown = frame.groupby("length", as_index=False)[["bursts", "expected"]].sum()
    axis = alt.X("length:O", title="messages lost one after another", axis=alt.Axis(labelAngle=0))
    subtitle = "Bars: runs that were seen. Marks: as many as there would be if losses were independent."
    base = alt.Chart(shown, title=look.title_params(title, subtitle))
    bars = base.mark_bar(color=look.SKY).encode(x=axis, y=alt.Y("bursts:Q", title="runs"))
    marks = base.mark_tick(color=look.VERMILION, thickness=3, size=26).encode(x=axis, y="expected:Q")
    return look.set_size(bars + marks, width=min(640, 120 + 46 * len(shown)))


def by_segment_index(frame: pd.DataFrame) -> look.Chart:
    """The share of data segments lost by their index (:func:`loss.by_segment_index`)."""
    title = "Does the place in a message matter?"
    if frame.empty:
        return look.nothing(title, "No message of several segments is complete or given up in this window.")
    subtitle = "Share of data segments that never arrived, by their index; the line is the mean of all."
    base = alt.Chart(frame, title=look.title_params(title, subtitle))
    bars = base.mark_bar(color=look.SKY).encode(
        x=alt.X("segment_index:O", title="index of the segment", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("loss:Q", title="share lost", axis=alt.Axis(format=".1%")),
    )
    mean = pd.DataFrame({"loss": [frame["lost"].sum() / max(1, frame["expected"].sum())]})
    line = alt.Chart(mean).mark_rule(color=look.VERMILION, strokeWidth=2, strokeDash=[6, 3]).encode(y="loss:Q")
    return look.set_size(bars + line, width=min(640, 160 + 30 * len(frame)))


PARITY = {"whole": look.GREY, "repaired": look.BLUE, "one short": look.ORANGE, "more short": look.VERMILION}


def parity(frame: pd.DataFrame) -> look.Chart:
    """The effect of parity (:func:`loss.parity`)."""
    title = "What parity saved, and what was one short"
    if frame.empty:
        return look.nothing(title, "No message of several segments is complete or given up in this window.")
    shown = frame.assign(parity=frame["parity_count"].astype(int))
    subtitle = "Messages of several segments. One short: a single parity segment more would have saved it."
    y = alt.Y("parity:O", title="parity segments sent")
    x = alt.X("messages:Q", title="messages", axis=alt.Axis(tickMinStep=1))
    chart = look.stacked_bars(
        shown, look.title_params(title, subtitle), "outcome", [*PARITY], [*PARITY.values()], y=y, x=x
    )
    return look.set_size(chart, 60 + 26 * shown["parity"].nunique())


def stores(frame: pd.DataFrame) -> look.Chart:
    """The answers of store nodes (:func:`loss.stores`)."""
    title = "What store nodes answered"
    if frame.empty:
        return look.nothing(title, "No store node was asked in this window (store.nodes names those to ask).")
    answers = {"present": look.GREEN, "absent": look.ORANGE, "error": look.VERMILION}
    shown = look.readable(frame, "node")
    shown["question"] = shown["node"] + " · " + shown["purpose"]
    long = shown.melt(["question"], list(answers), "answer", "count")
    subtitle = "Refetch: missing messages. Audit: messages known to have been sent."
    y, x = alt.Y("question:N", title=None), alt.X("count:Q", title="answers", axis=alt.Axis(tickMinStep=1))
    chart = look.stacked_bars(
        long, look.title_params(title, subtitle), "answer", [*answers], [*answers.values()], y=y, x=x
    )
    return look.set_size(chart, 40 + 26 * len(shown))


def refetch(frame: pd.DataFrame) -> look.Chart:
    """Requests for missing messages by attempt (:func:`loss.refetch`)."""
    title = "Asking for what is missing"
    if frame.empty:
        return look.nothing(title, "Nothing was asked for with a hash in this window.")
    steps = {"requests": look.GREY, "answered": look.SKY, "found": look.GREEN}
    long = frame.melt(["attempt"], list(steps), "step", "count")
    chart = (
        alt.Chart(
            long,
            title=look.title_params(title, "Requests that went out, that a store node answered, that it could serve."),
        )
        .mark_bar()
        .encode(
            x=alt.X("attempt:O", title="attempt", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("step:N", sort=list(steps)),
            y=alt.Y("count:Q", title="messages", axis=alt.Axis(tickMinStep=1)),
            color=look.colours_by_name("step", list(steps), list(steps.values())),
        )
    )
    return look.set_size(chart, width=min(640, 160 + 70 * len(frame)))


def quarantine(frame: pd.DataFrame) -> look.Chart:
    """Quarantined records by reason (:func:`quarantine.reasons`)."""
    title = "What was quarantined, and why"
    if frame.empty:
        return look.nothing(title, "No record was quarantined in this window.")
    shown = frame.fillna({"stage": "unknown", "reason": "unknown"})
    shown = shown.assign(reason=shown["reason"].str.replace("_", " "))
    names = list(dict.fromkeys(shown["reason"]))
    stages = list(dict.fromkeys(shown["stage"]))
    chart = (
        alt.Chart(
            shown, title=look.title_params(title, "Records in quarantine by reason and by the stage that refused them.")
        )
        .mark_bar()
        .encode(
            y=alt.Y("reason:N", sort=names, title=None),
            x=alt.X("records:Q", title="records", axis=alt.Axis(tickMinStep=1)),
            color=look.colours_by_name(
                "stage",
                stages,
                [look.BLUE, look.ORANGE, look.GREEN, look.SKY, look.VERMILION, look.GREY][: len(stages)],
            ),
        )
    )
    return look.set_size(chart, 40 + 22 * len(names))


def verdicts(bins: pd.DataFrame, seconds: int, until: dt.datetime | None = None) -> look.Chart:
    """Verdicts by cause over time, stacked: delivered messages at the bottom, missing ones above. ``bins``: time,
    verdict, outcome (verdict and cause in words), messages, link (to the list of these messages); ``seconds``: the
    width of a bin; ``until``: where the axis of time ends, if not at the last bar."""
    title = "Verdicts over time"
    if bins.empty:
        return look.nothing(title, "No message is judged in this window.")
    missing = bins[bins["verdict"] == "missing"].groupby("outcome")["messages"].sum()
    kept = list(missing.sort_values(ascending=False, kind="stable").index)
    few = kept if len(kept) <= MOST_CAUSES + 1 else kept[:MOST_CAUSES]

    def label(verdict: str, outcome: str) -> str:
        if verdict == "unknown":
            return "not known yet"
        return outcome if verdict == "delivered" or outcome in few else OTHERS

    named = [label(verdict, outcome) for verdict, outcome in zip(bins["verdict"], bins["outcome"], strict=True)]
    shown = bins.assign(name=named)
    shown["link"] = shown["link"].where(shown["name"] != OTHERS)
    reds = [name for name in (*few, OTHERS) if name in named]
    colours = {"delivered": look.BLUE, "delivered late": look.SKY, **dict(zip(reds, _MISSING, strict=False))}
    colours |= {"not known yet": _UNKNOWN}
    shown.attrs = {"seconds": seconds, "until": until}
    colours = {name: colour for name, colour in colours.items() if name in named}
    return look.bars_over_time(shown, "name", "messages", title, "By the time of the first trace", "messages", colours)
