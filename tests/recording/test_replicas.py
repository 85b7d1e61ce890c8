"""utils/recording/replicas.py: fingerprints of parameters."""

import torch
from torch import nn

from utils.recording.replicas import fingerprints


class OfOneNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.arange(6.0)[::3][:1])  # contiguous, with a stride of 3


def test_a_parameter_of_one_number_may_have_any_stride():
    module = OfOneNumber()
    assert module.gain.stride() == (3,)
    before = dict(fingerprints())["OfOneNumber.gain"]
    nn.init.ones_(module.gain)
    assert dict(fingerprints())["OfOneNumber.gain"] != before
