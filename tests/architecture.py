"""The pictures of the packages in docs/architecture.md, drawn from the imports.

    python -m tests.architecture             prints them, as Mermaid
    python -m tests.architecture --write     puts them into the page

A package imports another if one of its files does; arrows that a longer path implies are left out.
"""

from __future__ import annotations

import re
import sys

from tests.test_layers import GRADER, ROOT, UTILS, House, floors, place_of

PAGE = ROOT / "docs" / "architecture.md"
FLOORS = {"utils": floors(UTILS), "grader": floors(GRADER)}
MERMAID = re.compile(r"```mermaid\n.*?```", re.DOTALL)


def package_of(module: str) -> str:
    """The box that a module belongs to: "utils.worlds.real"; "utils" for the facade."""
    top = module.partition(".")[0]
    place = place_of(module, FLOORS[top])
    return f"{top}.{place}" if place else top


def imports() -> dict[str, set[str]]:
    """{package: the packages of ours that it imports}, the highest floor first."""
    house = House(ROOT)
    found: dict[str, set[str]] = {}
    for top in ("grader", "utils"):
        for name, path in house.files(top).items():
            targets = found.setdefault(package_of(name), set())
            modules = [one.module for one in house.imports(name, path)]
            targets |= {package_of(module) for module in modules if module.split(".")[0] in FLOORS}
    drawn = [package for package in found if package == "utils" or height(package)]
    return {package: found[package] - {package} for package in sorted(drawn, key=height, reverse=True)}


def height(package: str) -> float:
    """The number of its floor, from 1; 0 for a folder that only holds others. The facade is just below the checks."""
    top, _, place = package.partition(".")
    return FLOORS["utils"]["checks"] + 0.5 if package == "utils" else FLOORS[top].get(place, -1) + 1


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without the arrows that a longer path already implies."""

    def reached(package: str) -> set[str]:
        return set().union(*({target} | reached(target) for target in graph.get(package, ())))

    return {
        package: {target for target in targets if not any(target in reached(other) for other in targets - {target})}
        for package, targets in graph.items()
    }


def picture(top: str, graph: dict[str, set[str]]) -> str:
    """The packages of `top` as a Mermaid block, and those outside of it that they import."""
    arrows = {package: targets for package, targets in graph.items() if package.split(".")[0] == top}
    others = sorted({target for targets in arrows.values() for target in targets} - arrows.keys())
    lines = ["```mermaid", "flowchart TB"]
    lines += [f'    {identifier(package)}["{label(package, top)}"]' for package in (*arrows, *others)]
    lines += [
        f"    {identifier(package)} --> {identifier(target)}"
        for package, targets in arrows.items()
        for target in sorted(targets)
    ]
    return "\n".join([*lines, "```"])


def label(package: str, top: str) -> str:
    return "from utils import ..." if package == "utils" else package.removeprefix(f"{top}.")


def identifier(package: str) -> str:
    return package.replace(".", "_")


def pictures() -> list[str]:
    graph = reduced(imports())
    return [picture("utils", graph), picture("grader", graph)]


def main() -> None:
    drawn = pictures()
    if "--write" in sys.argv:
        each = iter(drawn)
        PAGE.write_text(MERMAID.sub(lambda _: next(each), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print("\n\n".join(drawn))


if __name__ == "__main__":
    main()
