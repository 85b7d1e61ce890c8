"""Attention in all its forms is one kernel on a virtual GPU: its time, its memory, and the values of torch's own."""

import pytest
import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from tests.worlds.virtual.test_achieved_rates import CLUSTER, lasts
from utils import simulate, track_memory

PEAK = 2.0**39  # attention's share of CLUSTER's GPU, forward; backward reaches half of it
B, H, S, D = 2, 8, 256, 64
ATTEND = functional.scaled_dot_product_attention


def tensors(keys=H, width=D, dtype=torch.bfloat16, s=S, **_):
    shapes = (B, H, s, D), (B, keys, s, D), (B, keys, s, width)
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


FORMS = {
    "grouped": {"keys": 2, "enable_gqa": True},
    "boolean mask": {"mask": lambda s: torch.ones(s, s, dtype=torch.bool).tril()},
    "mask of one row": {"mask": lambda s: torch.ones(B, 1, 1, s, dtype=torch.bool)},
    "bias": {"mask": lambda s: torch.randn(s, s, dtype=torch.bfloat16)},
    "learned bias": {"mask": lambda s: torch.randn(1, H, s, s, dtype=torch.bfloat16).requires_grad_()},
    "grouped and masked": {"keys": 2, "enable_gqa": True, "mask": lambda s: torch.ones(s, s, dtype=torch.bool).tril()},
    "32 bits": {"dtype": torch.float32},
    "other width of values": {"width": 32},
    "wide heads of one key, causal": {"keys": 1, "width": 128, "enable_gqa": True, "is_causal": True},
}


def call(form, s=S):
    """The tensors of a form, and the call."""
    made = tensors(s=s, **form)
    options = {name: form[name] for name in ("enable_gqa", "is_causal") if name in form}
    if "mask" in form:
        options["attn_mask"] = form["mask"](s)
    return [*made, options.get("attn_mask")], lambda: ATTEND(*made, **options)


def steps(form):
    inputs, attend = call(form)
    with track_memory() as storages:
        before = sum(storages.by_kind().values())
        forward = []
        took = lasts(lambda: forward.append(attend()))
        kept = sum(storages.by_kind().values()) - before
    grad = torch.empty_like(forward[0])
    return (
        took,
        lasts(lambda: forward[0].backward(grad)),
        kept,
        [getattr(getattr(x, "grad", None), "shape", None) for x in inputs],
    )


def values(form, s=16):
    torch.manual_seed(1)
    inputs, attend = call(form, s)
    out = attend()
    out.backward(torch.randn_like(out))
    return [out.detach(), *(x.grad for x in inputs if x is not None and x.grad is not None)]


def of_every_form(do, **options):
    """{form: what `do` returns for it on a virtual rank}"""

    def program(rank, world_size):
        return {name: do(form) for name, form in FORMS.items()}

    return simulate(program, 1, cluster=CLUSTER, **options).results[0]


def test_every_form_is_one_kernel_that_keeps_no_scores():
    with_values, without = (of_every_form(steps, device=device) for device in ("cpu", "meta"))
    for name, form in FORMS.items():
        forward, backward, kept, shapes = without[name]
        width, keys, part = form.get("width", D), form.get("keys", H), 0.5 if form.get("is_causal") else 1.0
        pairs = 2 * B * H * S * S * part
        assert forward == pytest.approx(pairs * (D + width) / PEAK, rel=0.15), name
        assert backward == pytest.approx(pairs * (3 * D + 2 * width) / (PEAK / 2), rel=0.15), name
        assert kept < 2 * B * H * S * S, f"{name}: the scores alone are as much"
        assert shapes[:3] == [(B, H, S, D), (B, keys, S, D), (B, keys, S, width)]
        assert with_values[name][:3] == pytest.approx((forward, backward, kept), rel=1e-3)
    assert without["learned bias"][3][3] == (1, H, S, S)


def test_values_and_gradients_are_torchs_own():
    found = of_every_form(values, device="cpu")
    for name, form in FORMS.items():
        right = values(form)
        assert len(found[name]) == len(right) and all(map(torch.equal, found[name], right)), name


def test_inference_mode_makes_no_difference():
    """Compound operations arrive there in one piece."""

    def program(rank, world_size):
        layer, took = torch.nn.Linear(64, 64), []
        for context in (torch.no_grad(), torch.inference_mode()):
            with context:
                x, inputs = torch.empty(4096, 64), tensors(2)
                took.append((lasts(lambda x=x: layer(x)), lasts(lambda i=inputs: ATTEND(*i, enable_gqa=True))))
        return took

    expected, found = simulate(program, 1, cluster=CLUSTER).results[0]
    assert found == pytest.approx(expected)


def test_the_program_may_ask_for_another_kernel():
    def program(rank, world_size):
        from torch.nn.attention import SDPBackend, sdpa_kernel  # can't be sent

        q, k, v = (x.detach() for x in tensors(s=8192))  # long enough not to wait for the host

        def under(*backends):
            with sdpa_kernel([*backends]):
                return lasts(lambda: ATTEND(q, k, v))

        return lasts(lambda: ATTEND(q, k, v)), under(SDPBackend.FLASH_ATTENTION), under(SDPBackend.MATH)

    fused, second, composed = simulate(program, 1, cluster="dgx-h100").results[0]
    assert fused < second < composed
    fused, second, composed = simulate(program, 1, cluster="dgx-a100").results[0]
    assert fused == second < composed


def test_packed_sequences_are_charged_one_by_one():
    def program(rank, world_size, causal):
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = (torch.empty(1024, H, D, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        ends, made = torch.tensor([0, 512, 1024], dtype=torch.int32), []
        window = (-1, 0) if causal else (-1, -1)
        forward = lasts(lambda: made.append(varlen_attn(q, k, v, ends, ends, 512, 512, window_size=window)))
        return forward, lasts(lambda: made[0].backward(torch.empty_like(made[0])))

    full, causal = (simulate(program, 1, part, cluster=CLUSTER).results[0] for part in (False, True))
    pairs = 2 * H * 2 * 512**2
    assert full == pytest.approx((pairs * 2 * D / PEAK, pairs * 5 * D / (PEAK / 2)), rel=0.02)
    assert causal == pytest.approx([took / 2 for took in full], rel=0.1)


# ---- flex_attention


def causal(b, h, q, k):
    return q >= k


def flex(masked, compiled, keys, s):
    q, k, v = tensors(keys, s=s)
    mask = create_block_mask(causal, None, None, s, s, device="cpu") if masked else None
    attend = torch.compile(flex_attention) if compiled else flex_attention
    made = []
    with track_memory() as storages:
        before = sum(storages.by_kind().values())
        forward = lasts(lambda: made.append(attend(q, k, v, block_mask=mask, enable_gqa=keys != H)))
        kept = sum(storages.by_kind().values()) - before
    return forward, lasts(lambda: made[0].backward(torch.empty_like(made[0]))), kept, k.grad.shape


@pytest.mark.parametrize(("compiled", "keys"), [(False, H), (True, 2)])
def test_flex_attention_computes_the_blocks_of_its_mask(compiled, keys):
    s = 1024

    def program(rank, world_size):
        return flex(False, compiled, keys, s), flex(True, compiled, keys, s)

    full, masked = simulate(program, 1, cluster=CLUSTER).results[0]
    blocks = 8 * 9 / 2 / 8**2  # blocks of 128 queries and keys
    pairs = 2 * B * H * s * s
    assert full[:2] == pytest.approx((pairs * 2 * D / PEAK, pairs * 5 * D / (PEAK / 2)), rel=0.05)
    assert masked[:2] == pytest.approx([blocks * t for t in full[:2]], rel=0.05)
    assert masked[2] < B * H * s * s and masked[3] == (B, keys, s, D)


def flex_values(rank=0, world_size=1):
    torch.manual_seed(1)
    q, k, v = (x.detach().float().requires_grad_() for x in tensors(2, s=16))
    slopes = torch.linspace(0.1, 1, H).requires_grad_()
    mask = create_block_mask(causal, None, None, 16, 16, device="cpu")

    def score(score, b, h, q, k):
        return score + slopes[h] * (k - q)

    out, aux = flex_attention(
        q, k, v, score_mod=score, block_mask=mask, enable_gqa=True, return_aux=AuxRequest(lse=True)
    )
    out.square().sum().backward()
    return [out.detach(), aux.lse.detach(), *(x.grad for x in (q, k, v, slopes))]


def test_flex_attention_has_values_and_gradients_of_what_it_captures():
    torch.manual_seed(1)
    q, k, v = (x.detach().float().requires_grad_() for x in tensors(2, s=16))
    slopes = torch.linspace(0.1, 1, H).requires_grad_()
    distance = torch.arange(16) - torch.arange(16)[:, None]
    scores = q @ k.repeat_interleave(4, 1).transpose(2, 3) / D**0.5 + slopes[:, None, None] * distance
    scores = scores.masked_fill(distance > 0, -torch.inf)
    out = scores.softmax(-1) @ v.repeat_interleave(4, 1)
    out.square().sum().backward()
    right = [out.detach(), scores.logsumexp(-1).detach(), *(x.grad for x in (q, k, v, slopes))]
    found = simulate(flex_values, 1, device="cpu").results[0]
    for got, expected in zip(found, right, strict=True):
        torch.testing.assert_close(got, expected)
    shapes = [x.shape for x in simulate(flex_values, 1).results[0]]
    assert shapes == [x.shape for x in right]


def test_flex_attention_refuses_sizes_that_do_not_fit():
    def program(rank, world_size):
        flex_attention(*tensors(2))

    with pytest.raises(Exception, match="8 heads of queries and 2 of keys"):
        simulate(program, 1)
