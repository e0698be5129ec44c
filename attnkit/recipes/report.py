"""The page of a run: what came of it, from what and how, in one file that needs no other."""

import base64
import html
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from attnkit.files.disk import replacing
from attnkit.files.saved import CONFIG
from attnkit.files.text import read_json, read_text
from attnkit.models.card import flatten, say
from attnkit.training.run_folder import DATA_MANIFEST, ENVIRONMENT, LOSS_CURVE, PAGE, REPORT, writing


def write_page(folder: Path, summary: dict[str, Any], *, said: str) -> None:
    """Write `report.html` of a run whose other files are all there; `said` is its summary for people."""
    pictures = [folder / name for name in (LOSS_CURVE, REPORT) if (folder / name).is_file()]
    config, environment = read_text(folder / CONFIG), read_json(folder / ENVIRONMENT)
    sections = [
        section("Figures", table(summary)),
        section("Data", table(read_json(folder / DATA_MANIFEST))),
        section("Config", f"<pre>{html.escape(config)}</pre>", folded=True),
        section("Environment", table(environment), folded=True),
    ]
    page = Template((files("attnkit.recipes") / "report.html").read_text(encoding="utf-8"))
    text = page.substitute(
        title=html.escape(folder.name),
        kind="Fine-tuned" if "task" in summary else "Pretrained",
        version=html.escape(version("attnkit")),
        said=html.escape(said),
        pictures="\n".join(map(inline, pictures)),
        sections="\n".join(sections),
    )
    with writing(folder / PAGE), replacing(folder / PAGE) as unfinished:
        # The name of a file need not be UTF-8.
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")


def inline(picture: Path) -> str:
    """A PNG file as part of the page."""
    data = base64.b64encode(picture.read_bytes()).decode()
    return f'<img alt="{html.escape(picture.stem)}" src="data:image/png;base64,{data}">'


def section(title: str, body: str, *, folded: bool = False) -> str:
    """A part of the page, that opens when it is clicked if `folded`."""
    return f"<details><summary>{title}</summary>{body}</details>" if folded else f"<h2>{title}</h2>\n{body}"


def table(values: dict[str, Any]) -> str:
    """Names and values that are not None, one row each, nested names joined by dots."""
    flat = flatten({name: dict(enumerate(it)) if is_list(it) else it for name, it in values.items()})
    rows = [f"<tr><td>{html.escape(name)}<td>{html.escape(say(it))}" for name, it in flat.items() if it is not None]
    return "<table>\n" + "\n".join(rows) + "\n</table>"


def is_list(value: Any) -> bool:
    """Whether a value is a list of mappings."""
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)
