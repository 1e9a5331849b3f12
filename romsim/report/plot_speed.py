"""Plots of a chip's speed: against context and prompt, by layer and resource, and limits."""

from __future__ import annotations

from romsim.bounds import RESOURCES
from romsim.report import speed
from romsim.report.model import ChipReport
from romsim.report.plot_names import named, table_of
from romsim.report.plots import COLOURS, Axis, BarPlot, LinePlot, Series

__all__ = ["layers_plot", "limits_plot", "rates_plot", "resources_plot", "ttft_plot"]

_RESOURCE_COLOURS = {
    "weights": "#3b6fb6",
    "collect": "#8ab4de",
    "kv port": "#c4506a",
    "exponentials": "#e6a1ae",
    "adapter": "#8e5aa8",
    "vector": "#2f9c8a",
    "latency": "#a3a9b3",
    "issue": "#6f7681",
    "wake": "#3a3f47",
    "host": "#c9a227",
}


def rates_plot(chips: tuple[ChipReport, ...]) -> LinePlot:
    """Return tokens/s against context."""
    series = []
    for number, chip in enumerate(chips):
        table = table_of(chip, "rates")
        for key, what, dash in (
            ("single", "one stream", "solid"),
            ("aggregate", "all streams", "dot"),
        ):
            series.append(
                Series(
                    name=named(chips, chip, what),
                    x=table.numbers("tokens"),
                    y=table.numbers(key),
                    colour=COLOURS[f"chip {number}"] if key == "single" else "#8a8f98",
                    dash=dash,
                )
            )
    return LinePlot(
        key="rates",
        title="Decoding speed against context",
        caption="One stream and all streams coincide: sequences take turns on the sequencer.",
        x=Axis(title="context, tokens", unit="tokens", log=True),
        y=Axis(title="tokens/s", unit="tokens/s"),
        series=tuple(series),
    )


def ttft_plot(chips: tuple[ChipReport, ...]) -> LinePlot:
    """Return the time to first token against the prompt."""
    return LinePlot(
        key="ttft",
        title="Time to first token against prompt",
        caption="From the first prompt token to the first logits.",
        x=Axis(title="prompt, tokens", unit="tokens", log=True),
        y=Axis(title="time to first token, s", unit="s", log=True),
        series=tuple(
            Series(
                name=named(chips, chip, "time to first token"),
                x=table_of(chip, "ttft").numbers("tokens"),
                y=table_of(chip, "ttft").numbers("seconds"),
                colour=COLOURS[f"chip {number}"],
            )
            for number, chip in enumerate(chips)
        ),
    )


def layers_plot(number: int, chip: ChipReport) -> BarPlot:
    """Return a token's cycles by layer and unit."""
    table = table_of(chip, "layers")
    names = table.texts("layer")
    colours = {"L": "rom", "H": "sram", "V": "vector"}
    parts = [(key, speed.UNIT_NAMES[key], COLOURS[c]) for key, c in colours.items()]
    parts.append(("other", "issue and host", COLOURS["host"]))
    return BarPlot(
        key=f"layers-{number}",
        title=f"Time per layer at {chip.context:,} tokens",
        caption="Cycles on the critical path, each counted once; the bars sum to the token.",
        x=Axis(title="layer"),
        y=Axis(title="cycles", unit="cycles"),
        series=tuple(
            Series(name=name, x=names, y=table.numbers(key), colour=colour)
            for key, name, colour in parts
        ),
        stacked=True,
    )


def resources_plot(number: int, chip: ChipReport) -> BarPlot:
    """Return what cycles are spent on at several contexts."""
    table = table_of(chip, "resources")
    names = tuple(f"{tokens:,.0f}" for tokens in table.numbers("tokens"))
    keys = {column.key for column in table.columns}
    found = [
        (name, table.numbers(name.replace(" ", "_")))
        for name in (*RESOURCES, "issue", "wake", "host")
        if name.replace(" ", "_") in keys
    ]
    return BarPlot(
        key=f"resources-{number}",
        title="What a token's time is spent on",
        caption="Latency: pipeline fills, broadcast, collect and trees that work has to wait for.",
        x=Axis(title="cycles", unit="cycles"),
        y=Axis(title="context, tokens"),
        series=tuple(
            Series(name=name, x=names, y=values, colour=_RESOURCE_COLOURS[name])
            for name, values in found
            if any(values)
        ),
        stacked=True,
        sideways=True,
    )


def limits_plot(number: int, chip: ChipReport) -> LinePlot:
    """Return limits of lanes and ports, and what is achieved."""
    table = table_of(chip, "limits")
    colours = {
        "weight lanes": COLOURS["lanes"],
        "ROM ports": COLOURS["rom"],
        "KV ports": COLOURS["sram"],
        "attention lanes": COLOURS["attention"],
    }
    dashes = {"weight lanes": "dot", "attention lanes": "dot"}
    tokens = table.numbers("tokens")
    series = [
        Series(
            name=f"limit of {column.label}",
            x=tokens,
            y=table.numbers(column.key),
            colour=colours[column.label],
            dash=dashes.get(column.label, "dash"),
        )
        for column in table.columns
        if column.label in colours
    ]
    achieved = Series(
        name="achieved", x=tokens, y=table.numbers("achieved"), colour=COLOURS["vector"]
    )
    return LinePlot(
        key=f"roofline-{number}",
        title="Roofline",
        caption=(
            "What each resource would allow, were nothing else in the way. The gap is dependent "
            "latency and vector work."
        ),
        x=Axis(title="context, tokens", unit="tokens", log=True),
        y=Axis(title="tokens/s", unit="tokens/s", log=True),
        series=(achieved, *series),
    )
