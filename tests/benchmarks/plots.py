"""The figures as an SVG, without a library."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from report import Summaries, Summary, short
from shapes import Load

COLOURS = {"c-relay": "#9aa0a6", "haproxy": "#5b8def", "nginx": "#3aa76d", "envoy": "#b26bd3", "framegate": "#e8710a"}
OTHER = "#c0a060"
PANEL_WIDTH, BAR_HEIGHT, PANEL_HEAD, GAP, MARGIN = 330, 18, 26, 16, 20
LABEL_WIDTH, VALUE_WIDTH = 74, 96
COLUMNS = 3
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#202124}.t{font-weight:600;font-size:13px}.h{font-weight:600;font-size:16px}.n{fill:#5f6368}"
    "@media(prefers-color-scheme:dark){text{fill:#e8eaed}.n{fill:#9aa0a6}.p{fill:#202124}}"
)


def save(path: Path, loads: Sequence[Load], summaries: Summaries, facts: Mapping[str, object]) -> None:
    """One panel for each load, one bar for each candidate; the whisker runs from the cheapest round to the dearest."""
    subtitle = f"{str(facts['date'])[:10]} · {facts['cpu']} · {facts['cores']} cores · Linux {facts['kernel']}; whiskers: cheapest and dearest round"
    rows_of = {load: [row for key, row in summaries.items() if key[:2] == (load.protocol, load.shape.name)] for load in loads}
    panels = [(load, rows) for load, rows in rows_of.items() if rows]
    tallest = max((len(rows) for _, rows in panels), default=0)
    height_of_panel = PANEL_HEAD + tallest * BAR_HEIGHT + GAP
    lines = -(-len(panels) // COLUMNS)
    width = 2 * MARGIN + COLUMNS * PANEL_WIDTH
    height = 2 * MARGIN + 44 + lines * height_of_panel
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<style>{STYLE}</style><rect class="p" width="{width}" height="{height}" fill="#fff"/>',
        f'<text class="h" x="{MARGIN}" y="{MARGIN + 14}">Processor time per echoed frame, µs (less is better)</text>',
        f'<text class="n" x="{MARGIN}" y="{MARGIN + 32}">{escape(subtitle)}</text>',
    ]
    for number, (load, rows) in enumerate(panels):
        left = MARGIN + number % COLUMNS * PANEL_WIDTH
        parts += _panel(load, rows, left, MARGIN + 56 + number // COLUMNS * height_of_panel)
    path.write_text("\n".join([*parts, "</svg>\n"]))


def _panel(load: Load, rows: Sequence[Summary], left: int, top: int) -> list[str]:
    room = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH
    scale = room / max(row.cpu_us for row in rows)
    parts = [f'<text class="t" x="{left}" y="{top + 12}">{escape(load.title)}</text>']
    for number, row in enumerate(rows):
        y = top + PANEL_HEAD - 6 + number * BAR_HEIGHT
        start, end = left + LABEL_WIDTH, left + LABEL_WIDTH + row.cpu_us * scale
        low, high = start + row.low * scale, min(start + row.high * scale, start + room + 10)
        middle = y + BAR_HEIGHT / 2 - 2
        parts += [
            f'<text x="{left}" y="{y + 11}">{escape(row.candidate)}</text>',
            f'<rect x="{start}" y="{y}" width="{end - start:.1f}" height="{BAR_HEIGHT - 4}" fill="{COLOURS.get(row.candidate, OTHER)}"/>',
            f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 3}v6M{high:.1f} {middle - 3}v6" stroke="#5f6368" fill="none"/>',
            f'<text class="n" x="{max(end, high) + 5:.1f}" y="{y + 11}">{short(row.cpu_us)}</text>',
        ]
    return parts
