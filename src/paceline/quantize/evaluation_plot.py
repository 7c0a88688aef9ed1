"""An evaluation as a picture: KL by position and by group of layers, in SVG, which needs no library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor, log10
from pathlib import Path
from xml.sax.saxutils import escape

from paceline.errors import ConfigError
from paceline.quantize.evaluation import Evaluation

_WIDTH, _PANEL, _LEFT, _ROW = 720, 240, 170, 22
_RIGHT = _WIDTH - 90
_COLOUR = {"depth": "#2f6f9f", "part": "#b5651d"}


def check_plot_path(path: Path) -> None:
    """Raises: ConfigError for a name or a place that no plot can be written to."""
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"--plot writes SVG; name a file such as {path.stem or 'kl'}.svg", key="plot")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot: folder {path.absolute().parent} does not exist", key="plot")


def write_plot(path: Path, found: Evaluation) -> None:
    """Write the picture to `path`."""
    path.write_text(svg(found), encoding="utf-8")


def svg(found: Evaluation) -> str:
    """The picture as SVG text."""
    rows = [(g.name, g.kl_mean, _COLOUR[g.kind]) for g in found.groups]
    height = 90 + _PANEL + (70 + _ROW * len(rows) if rows else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        _text(16, 24, f"KL({found.base} || {found.model}), nats a token", size=14),
        *_positions(found, 60),
        *(_bars(rows, 130 + _PANEL) if rows else ()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _positions(found: Evaluation, top: int) -> Iterator[str]:
    """A line over octaves of positions, on a logarithmic scale."""
    points = found.by_position()
    positive = [p.kl_mean for p in points if p.kl_mean > 0]
    low, high = _decades(positive)
    bottom = top + _PANEL - 40
    yield _text(16, top - 10, "mean by position in the text")
    for exponent in range(low, high + 1):
        y = bottom - (bottom - top) * (exponent - low) / (high - low)
        yield f'<path d="M70 {y:.1f}H{_RIGHT}" stroke="#ddd"/>'
        yield _text(62, y + 4, f"1e{exponent}", anchor="end")
    places = []
    for i, point in enumerate(points):
        x = 80 + (_RIGHT - 90) * (i / max(1, len(points) - 1))
        share = (log10(max(point.kl_mean, 10.0**low)) - low) / (high - low)
        places.append(f"{x:.1f},{bottom - (bottom - top) * share:.1f}")
        yield _text(x, bottom + 18, str(point.first), anchor="middle")
    yield f'<polyline points="{" ".join(places)}" fill="none" stroke="#2f6f9f" stroke-width="2"/>'
    for place in places:
        x_, y_ = place.split(",")
        yield f'<circle cx="{x_}" cy="{y_}" r="3" fill="#2f6f9f"/>'


def _bars(rows: Sequence[tuple[str, float, str]], top: int) -> Iterator[str]:
    yield _text(16, top - 10, "mean where only this group's weights are the model's")
    most = max(value for _, value, _ in rows) or 1.0
    for i, (name, value, colour) in enumerate(rows):
        y = top + i * _ROW
        width = (_RIGHT - _LEFT) * value / most
        yield _text(_LEFT - 8, y + 13, name, anchor="end")
        yield f'<rect x="{_LEFT}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 6}" fill="{colour}"/>'
        yield _text(_LEFT + width + 6, y + 13, f"{value:.3g}")


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten that enclose all values; two that differ where there is nothing to enclose."""
    if not values:
        return -6, 0
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return low, max(high, low + 1)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
