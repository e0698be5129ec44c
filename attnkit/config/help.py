"""The help of a verb: every key of its run under its section, with type, default and meaning."""

import textwrap

from attnkit.config.source import Settings, read_settings

WIDTH = 110


def help_text(module: str, name: str, *, usage: str) -> str:
    """The help of the run class `name` of a module of attnkit."""
    run = read_settings(module, name)
    own = Settings(doc="", fields=run.fields)
    parts = [f"usage: {usage}", run.doc]
    parts += [section_text(settings, section) for section, settings in {**run.sections, "": own}.items()]
    return "\n\n".join(part for part in parts if part) + "\n"


def section_text(settings: Settings, section: str) -> str:
    """The keys of one section."""
    lines = [paragraphs(f"{section}: {settings.doc}", "    ").removeprefix("    ")] if section else []
    for name, setting in settings.fields.items():
        key = f"{section}.{name}" if section else name
        default = f" = {setting.default}" if setting.default else ""
        lines.append(f"  --{key}  ({setting.hint}{default})")
        if setting.doc:
            lines.append(paragraphs(setting.doc, " " * 8))
    return "\n".join(lines)


def paragraphs(doc: str, indent: str) -> str:
    """A docstring as paragraphs of full lines, without the one on errors, which is for callers."""
    said = [" ".join(part.split()) for part in doc.split("\n\n") if not part.startswith("Raises ")]
    return "\n".join(textwrap.fill(part, width=WIDTH, initial_indent=indent, subsequent_indent=indent) for part in said)
