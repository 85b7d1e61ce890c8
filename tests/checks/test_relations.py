"""utils/checks/relations.py: what can be said of a wrong result in any exercise."""

import pytest
import torch

from tests.checks.test_oracles import answered, failure
from utils.checks.oracles import Case
from utils.checks.relations import relation

XS = [torch.tensor([[1.0, 2.0], [4.0, 8.0]]) * factor for factor in (1, -3, 8)]
RIGHT = [x + 100 for x in XS]
RELATED = {
    "this rank's own input": XS[1],
    "rank 2's input": XS[2],
    "what rank 0 should return": RIGHT[0],
    "the sum of all ranks' input": sum(XS),
    "the mean of all ranks' input": sum(XS) / 3,
    "the right one, transposed": RIGHT[1].T,
    "": XS[1] * 2,
}


@pytest.mark.parametrize("words", RELATED)
def test_a_result_may_be_related_to_inputs_and_to_other_results(words):
    assert relation(RELATED[words], 1, RIGHT, [XS], 0) == words


def test_an_input_may_have_a_name_and_any_type():
    inputs = [[{"x": x, "counts": [3, rank]} for rank, x in enumerate(XS)], ["a", None, 3]]
    assert relation(XS[0], 1, RIGHT, inputs, 0) == "rank 0's x"


def test_what_can_be_chance_has_no_relation():
    zeros = [torch.zeros(3)] * 2
    assert relation(torch.zeros(3), 0, [torch.ones(3)] * 2, [zeros], 0) == ""


def test_it_is_said_where_nothing_else_is():
    case = Case([XS], right={"y": RIGHT, "n": 3}, mistakes={"y": {"x unchanged": XS}})
    assert failure(case, answered(*((x, 3) for x in XS))).endswith("That is x unchanged.")
    assert failure(case, answered(*((XS[0], 3) for _ in XS))).endswith("That is rank 0's input.")
