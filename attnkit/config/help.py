"""The help of a verb: every key of its run under its section, with type, default and meaning."""

import re
import textwrap

from attnkit.config.source import Settings, read_settings, registered

WIDTH = 110
ALWAYS = """\
  --config FILE  keys from a YAML file; of several files the later wins, and flags win over files
  --print_config  print all keys with their meaning and their values here, as --config takes them, and stop"""
FOLDERS = """
  --resume, --overwrite  short for --training.resume and --training.overwrite"""


def help_text(module: str, name: str, *, usage: str) -> str:
    """The help of the run class `name` of a module of attnkit."""
    run = read_settings(module, name)
    own = Settings(doc="", fields=run.fields)
    parts = [f"usage: {usage}", run.doc]
    parts += [section_text(settings, section) for section, settings in {**run.sections, "": own}.items()]
    parts.append(ALWAYS + FOLDERS * ("training" in run.sections and "output_dir" in run.sections["training"].fields))
    return "\n\n".join(part for part in parts if part) + "\n"


def section_text(settings: Settings, section: str) -> str:
    """The keys of one section."""
    lines = [paragraphs(f"{section}: {settings.doc}", "    ").removeprefix("    ")] if section else []
    for name, setting in settings.fields.items():
        key = f"{section}.{name}" if section else name
        default = f" = {setting.default}" if setting.default else ""
        lines.append(f"  --{key}  ({setting.hint}{default})")
        lines += [paragraphs(text, " " * 8) for text in (setting.doc, names_in(setting.doc)) if text]
    return "\n".join(lines)


def names_in(doc: str) -> str:
    """The names in the registry that a text is about, if it is about one."""
    families = re.findall(r"registry `attnkit\.(\w+)`", doc)
    return "; ".join(", ".join(registered(family)) for family in families)


def paragraphs(doc: str, indent: str) -> str:
    """A docstring as paragraphs of full lines, without the one on errors, which is for callers."""
    said = [" ".join(part.split()) for part in doc.split("\n\n") if not part.startswith("Raises ")]
    return "\n".join(textwrap.fill(part, width=WIDTH, initial_indent=indent, subsequent_indent=indent) for part in said)
