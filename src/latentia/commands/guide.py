"""The guide of the command line, help that fits the terminal, and suggestions for mistyped commands."""

from __future__ import annotations

import difflib
import re
import shutil
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

import click

from latentia.commands.console import NARROW
from latentia.commands.errors import guarded
from latentia.registry import FAMILIES

#: What other programs call it.
SYNONYMS = {
    "train": "fit",
    "learn": "fit",
    "transform": "encode",
    "classify": "predict",
    "score": "evaluate",
    "test": "evaluate",
    "generate": "sample",
    "draw": "sample",
    "info": "explain",
    "describe": "explain",
    "list": "models",
    "data": "datasets",
    "recipes": "reproduce",
    "show": "report",
    "help": "--help",
}


class Formatter(click.HelpFormatter):
    """Help for terminals of any width: on narrow ones descriptions go below their terms, commands are broken."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None):
        columns = width or min(shutil.get_terminal_size().columns, max_width or 80)
        super().__init__(indent_increment, width=max(columns - 1, 24))

    def write_text(self, text: str) -> None:
        """Paragraphs, wrapped; those that begin with a backspace keep lines, broken as a shell allows."""
        indent = " " * self.current_indent
        for index, paragraph in enumerate(text.split("\n\n")):
            self.write("\n" if index else "")
            if paragraph.startswith("\b\n"):
                for line in paragraph.splitlines()[1:]:
                    self.write("\n".join(_broken(indent + line, self.width)) + "\n")
            else:
                self.write(_fill(" ".join(paragraph.split()), self.width, indent) + "\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Terms and descriptions, side by side where there is room."""
        if self.width >= NARROW:
            super().write_dl(rows, col_max, col_spacing)
            return
        indent = " " * self.current_indent
        for term, text in rows:
            long = max(map(len, term.split())) + len(indent) > self.width
            self.write(_fill(term.replace("|", " | ") if long else term, self.width, indent) + "\n")
            if text:
                self.write(_fill(text, self.width, indent + "    ") + "\n")


def _fill(text: str, width: int, indent: str) -> str:
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _broken(line: str, width: int) -> list[str]:
    """A line, over several if it is too long: a command as a shell allows, anything else between words."""
    if len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    command, mark, remark = line.strip().partition(" # ")
    if mark:
        below = _fill(remark.strip(), width, f"{indent}# ").splitlines()
        return [*below, *_broken(indent + command.rstrip(), width)]
    if not command.startswith(("latentia ", "eval ")):
        return _fill(command, width, indent).splitlines()
    joined = re.sub(r"(?<= )(--?[a-z]\S*) (?=[^-\s])", "\\1\0", command)  # an option stays with its value
    parts = textwrap.wrap(
        joined, width - 2, initial_indent=indent, subsequent_indent=f"{indent}  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    parts = [part.replace("\0", " ") for part in parts]
    return [*(f"{part} \\" for part in parts[:-1]), parts[-1]]


class Reading(click.Context):
    """A context whose help is written by :class:`Formatter`."""

    formatter_class = Formatter


class Guide(click.Group):
    """The top of the command line: commands in groups, and one place where errors become messages."""

    context_class = Reading
    sections: dict[str, list[str]]

    def add_section(self, title: str, *commands: click.Command) -> None:
        """Add commands under a heading of their own."""
        self.__dict__.setdefault("sections", {})[title] = [str(command.name) for command in commands]
        for command in commands:
            command.context_class = Reading
            self.add_command(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which a newcomer meets them."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by section, with the first line of what each says about itself."""
        for title, names in self.sections.items():
            with formatter.section(title):
                about = ((self.commands[name].help or "").strip().partition("\n")[0] for name in names)
                formatter.write_dl(list(zip(names, about, strict=True)))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A command by name; a mistyped one is answered with the nearest."""
        name = args[0]
        if name not in self.commands and not ctx.resilient_parsing and not name.startswith("-"):
            ctx.fail(_unknown(name, list(self.commands)))
        return super().resolve_command(ctx, args)

    def main(self, args: Any = None, *rest: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command line; with ``standalone_mode`` (the default) every end is an exit code."""
        run = super().main
        if not standalone_mode:
            return run(args, *rest, standalone_mode=False, **extra)
        with warnings.catch_warnings():
            # scikit-learn's remark on arrays: here the names have been compared when the file was read.
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            return guarded(lambda words: run(words, *rest, standalone_mode=False, obj=words, **extra), args)


def _unknown(name: str, commands: list[str]) -> str:
    model = next((entry.name for entry in FAMILIES if name in (entry.name, entry.class_name)), None)
    if model is not None:
        return (
            f"{name!r} is a model, not a command. Train it with 'latentia fit {model} DATA --out RUN', or read "
            f"about it with 'latentia explain {model}'."
        )
    near = difflib.get_close_matches(name.lower(), commands, n=2, cutoff=0.5)
    near = [SYNONYMS[name.lower()]] if name.lower() in SYNONYMS else near
    hint = f"Did you mean {' or '.join(repr(each) for each in near)}? " if near else ""
    return f"No such command {name!r}. {hint}Commands: {', '.join(commands)}."
