"""utils/text/decisions.py: what surrounds a line. How reports use it is in tests/diagnosis/."""

from __future__ import annotations

from utils.text.decisions import place_of


def test_a_file_that_has_been_edited_is_read_again(tmp_path):
    file = tmp_path / "program.py"
    seen = []
    for condition in ("loss < 1", "average < 100"):
        file.write_text(f"for step in range(9):\n    if {condition}:\n        break\n")
        seen += [decision.text for decision in place_of(f"{file}:3").decisions]
    assert seen == ["for step in range(9)", "if loss < 1", "for step in range(9)", "if average < 100"]
