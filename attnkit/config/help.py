"""The help of a verb: every key of its run under its section, with type, default and meaning."""

import re
import textwrap

from attnkit.config.source import Settings, read_settings, registered
from attnkit.errors import UsageError, nearest

WIDTH = 110
EVERYTHING = "all"
ALWAYS = """\
  --config FILE  keys from a YAML file; of several files the later wins, and flags win over files
  --print_config  print all keys with their meaning and their values here, as --config takes them, and stop"""
FOLDERS = """
  --resume, --overwrite, --push_to_hub OWNER/NAME  short for these keys of training"""

MORE = """\
  --help SECTION, --help SECTION.KEY, --help all  what keys mean, with their types and defaults;
        a key is given as --section.key VALUE, or in a YAML file under its section"""


def help_text(module: str, name: str, *, usage: str, topic: str = "") -> str:
    """The help of the run class `name` of a module of attnkit.

    Without a topic it names the keys of every section and says what those beside them mean; a topic is a section, a
    key, or `all`. Raises `UsageError` for any other.
    """
    run = read_settings(module, name)
    sections = {**run.sections, "": Settings(doc="", fields=run.fields)}
    if topic not in ("", EVERYTHING):
        return about(topic, sections)
    is_short = not topic and bool(run.sections)
    say = names_text if is_short else section_text
    parts = [f"usage: {usage}", run.doc]
    parts += [(say if section else section_text)(settings, section) for section, settings in sections.items()]
    parts.append(ALWAYS + FOLDERS * ("training" in run.sections and "output_dir" in run.sections["training"].fields))
    parts.append(MORE * is_short)
    return "\n\n".join(part for part in parts if part) + "\n"


def about(topic: str, sections: dict[str, Settings]) -> str:
    """What one section, or one key, means."""
    if topic in sections:
        return section_text(sections[topic], topic) + "\n"
    section, _, key = topic.rpartition(".")
    if section not in sections or key not in sections[section].fields:
        allowed = [f"{section}.{it}" for it in sections[section].fields] if section in sections and section else []
        allowed = allowed or [EVERYTHING, *filter(None, sections), *sections[""].fields]
        raise UsageError(f"--help {topic}: no such section or key: {nearest(topic, allowed)}")
    one = Settings(doc="", fields={key: sections[section].fields[key]})
    return section_text(one, section).removeprefix(f"{section}: \n") + "\n"


def names_text(settings: Settings, section: str) -> str:
    """What a section is, and the names of its keys."""
    said = paragraphs(f"{section}: {settings.doc}", "    ").removeprefix("    ")
    return said + "\n" + paragraphs(", ".join(settings.fields), " " * 8)


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
