"""Lines of Python, written one after another."""

from __future__ import annotations

import ast


class Code:
    """Lines of Python with an indentation."""

    def __init__(self):
        self.lines: list[str] = []
        self.depth = 0

    def add(self, *lines: str) -> None:
        for text in lines:
            self.lines += ["    " * self.depth + line for line in text.splitlines()]

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def unparse(node: ast.AST) -> str:
    """The source of a node that need not have places."""
    return ast.unparse(ast.fix_missing_locations(node))
