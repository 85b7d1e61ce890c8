"""`simulate` as checks call it: at the datasheet's rates, for which there are formulas to compare its times with."""

from functools import partial

from .. import simulate as at_any_rates

simulate = partial(at_any_rates, rates="datasheet")
