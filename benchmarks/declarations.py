"""How often the estimators' parameters are declared: how many declarations stand in the source, of how many names.

    python benchmarks/declarations.py [src/latentia]

Counts the arguments of constructors that are written by hand, and the attributes declared by ``param()``, of all
estimators and of what they inherit. A changed default is no declaration.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from pathlib import Path

BASE = "LatentEstimator"


def classes(folder: Path) -> dict[str, list[ast.ClassDef]]:
    """All classes under a folder, by name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def estimators(known: dict[str, list[ast.ClassDef]]) -> list[ast.ClassDef]:
    """All estimators, and all that they inherit."""
    parents = {
        name: {base.id for node in nodes for base in node.bases if isinstance(base, ast.Name)} & set(known)
        for name, nodes in known.items()
    }

    def above(name: str) -> set[str]:
        return {name}.union(*map(above, parents[name]))

    wanted = set().union(*(above(name) for name in known if BASE in above(name)))
    return [node for name in sorted(wanted) for node in known[name]]


def declared(node: ast.ClassDef) -> list[str]:
    """The names of the parameters that a class declares itself."""
    found = []
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            found += [argument.arg for argument in (*each.args.args[1:], *each.args.kwonlyargs)]
        if isinstance(each, ast.AnnAssign) and isinstance(each.value, ast.Call):
            maker = each.value.func
            if isinstance(maker, ast.Name) and maker.id == "param" and isinstance(each.target, ast.Name):
                found.append(each.target.id)
    return found


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1] / "src" / "latentia")
    counts = Counter(name for node in estimators(classes(parser.parse_args().folder)) for name in declared(node))
    several = {name: count for name, count in counts.items() if count > 1}
    print(f"{counts.total()} declarations of {len(counts)} names")
    print(f"{len(several)} names are declared more than once, {sum(several.values())} times in all")
    print(", ".join(f"{name} {count}" for name, count in Counter(several).most_common()))


if __name__ == "__main__":
    main()
