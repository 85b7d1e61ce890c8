"""docs/debugging.md: each program, a block ```python hang, raises the report printed below it, and runs once the fix
below that is made.
"""

import re
from dataclasses import dataclass, field

import pytest

from .mistakes import MISTAKES

FENCE = re.compile(r"^```(python hang|\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Example:
    program: str
    report: str = ""
    fixes: list[str] = field(default_factory=list)


def examples(text: str) -> dict[str, Example]:
    """{heading: example}; the second one below a heading gets a number."""
    found: dict[str, Example] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, example = section.splitlines()[0], None
        for language, block in FENCE.findall(section):
            if language == "python hang":
                example = found[f"{heading} {len(found)}"] = Example(block)
            elif language == "text":
                example.report = block
            else:
                example.fixes.append(block)
    return found


def pytest_generate_tests(metafunc):
    if "example" not in metafunc.fixturenames:
        return
    text = (metafunc.config.rootpath / "docs" / "debugging.md").read_text()
    found = examples(text)
    if "fixes" in metafunc.function.__name__:
        found = {heading: example for heading, example in found.items() if example.fixes}
    metafunc.parametrize("example", found.values(), ids=found)


def run(program: str, folder) -> None:
    """As a script called train.py, run from its own folder."""
    file = folder / "train.py"
    file.write_text(program)
    exec(compile(program, str(file), "exec"), {"__name__": "__main__", "__file__": str(file)})


def test_a_program_gets_its_report(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError) as caught:
        run(example.program, tmp_path)
    report = f"{type(caught.value).__name__}: {caught.value}"
    assert report.split() == example.report.split(), report


def test_it_fixes_the_program(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = example.program
    for fix in example.fixes:
        lines = fix.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        assert program.count(old) == 1
        program = program.replace(old, new)
    run(program, tmp_path)


def test_its_sections_are_those_of_the_table(pytestconfig):
    """Each section with programs shows mistakes of the table, and with errors of the same class."""
    shown: dict[str, set[str]] = {}
    for name, example in examples((pytestconfig.rootpath / "docs" / "debugging.md").read_text()).items():
        shown.setdefault(name.rpartition(" ")[0], set()).add(example.report.partition(":")[0])
    table: dict[str, set[str]] = {}
    for mistake in MISTAKES:
        if mistake.documented:
            table.setdefault(mistake.documented, set()).add(mistake.errors["spawn"].__name__)
    assert shown == table
