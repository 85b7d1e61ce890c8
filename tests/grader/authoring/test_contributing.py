"""The walk in CONTRIBUTING.md works: its three pieces, in a new lesson, judge as it says."""

import re
from pathlib import Path

from grader.authoring.new import new_lesson
from grader.authoring.try_out import TryOut

ROOT = Path(__file__).resolve().parents[3]
WALK = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_walk_leads_to_a_lesson_in_which_all_is_as_it_should_be(tmp_path, capsys):
    lesson, exercise = re.search(r"-m grader new (\S+) --exercises (\S+)", WALK).groups()
    assert not list((ROOT / "solutions").glob(f"{lesson[:2]}_*")), "the walk's first command would be refused"
    new_lesson(lesson, [exercise], tmp_path)
    source, check, answers = re.findall(r"^```python walk\n(.*?)^```", WALK, re.DOTALL | re.MULTILINE)
    first_piece = {  # kind: (where what is to be replaced begins in the file that `new` wrote, what replaces it)
        "lesson": ("# %% [markdown]\n# ## Running total", source),
        "checks": ("@oracle(", check),
        "answers": ("wrong, right = ", answers),
    }
    for kind, (begin, piece) in first_piece.items():
        path = tmp_path / "solutions" / lesson / f"{kind}_{lesson[:2]}.py"
        above, found, _ = path.read_text().partition(begin)
        assert found, f"`new` writes no {begin!r} into {path.name}"
        path.write_text(above + piece)
    TryOut(lesson[:2], exercise, tmp_path).round()
    said = capsys.readouterr().out
    assert "all as they should be" in said, said
    assert "That is the sum over two ranks: pass on the total, not your own tensor." in said
