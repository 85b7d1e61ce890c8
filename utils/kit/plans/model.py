"""A transformer as numbers: what a plan needs to know of it.

    Model(layers=80, width=8192, heads=64, length=8192, vocabulary=128_256, key_heads=8, ffn=28_672, gated=True)

published.py has those that papers describe.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Model:
    """A decoder with `layers` layers of attention and an MLP, or a mixture of experts, and a table at each end.

    length      tokens per sequence
    vocabulary  rows of the table of embeddings and of the output matrix; 0: neither is there
    key_heads   heads of keys and values, each shared by several of queries; 0: as many as `heads`
    head_width  0: width / heads
    ffn         inner width of the MLP, or of one expert; 0: 4 x width
    gated       whether the MLP has three matrices (SwiGLU) or two
    tied        whether embeddings and output are the same table
    experts     in each layer, instead of one MLP; 0: none. A token goes to `top` of them
    shared      more experts, which all tokens go to
    plain       so many of the first layers have no experts, but an MLP as wide as those of one token: top + shared
    """

    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int
    key_heads: int = 0
    head_width: int = 0
    ffn: int = 0
    gated: bool = False
    tied: bool = False
    experts: int = 0
    top: int = 0
    shared: int = 0
    plain: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for sizes that contradict each other."""
        for name, default in (("key_heads", self.heads), ("head_width", self.width // self.heads)):
            object.__setattr__(self, name, getattr(self, name) or default)
        object.__setattr__(self, "ffn", self.ffn or 4 * self.width)
        if self.heads % self.key_heads:
            raise ValueError(f"{self.heads} heads can't share {self.key_heads} heads of keys evenly")
        if bool(self.experts) != bool(self.top) or self.top > self.experts or (self.shared and not self.experts):
            raise ValueError(
                f"experts={self.experts}, top={self.top}, shared={self.shared}: with experts, top is 1 to their "
                "number; without, all three are 0"
            )
        if self.plain and not (self.experts and self.plain <= self.layers):
            raise ValueError(
                f"plain={self.plain}: with experts, it is at most the {self.layers} layers; without, it is 0"
            )

    def __hash__(self) -> int:  # short, since every look-up of a cost needs it
        return hash((self.layers, self.width, self.length, self.vocabulary, self.ffn))

    @property
    def queries(self) -> int:
        """Width of all heads of queries together; `keys`: of keys."""
        return self.heads * self.head_width

    @property
    def keys(self) -> int:
        return self.key_heads * self.head_width

    @property
    def dense_ffn(self) -> int:
        """Inner width of the MLP that every token goes through."""
        return self.ffn * self.shared if self.experts else self.ffn

    @property
    def matrices(self) -> int:
        """Widths of `ffn` that go into the MLP and out of it: 3 if gated, else 2."""
        return 3 if self.gated else 2

    @property
    def dense_parameters(self) -> int:
        """Of a layer, without experts that not every token goes to: matrices, two norms, and the router."""
        attention = self.width * (2 * self.queries + 2 * self.keys)
        return attention + self.width * (self.matrices * self.dense_ffn + self.experts + 4)

    @property
    def expert_parameters(self) -> int:
        """Of one expert."""
        return self.matrices * self.width * self.ffn if self.experts else 0

    @property
    def plain_layer(self) -> Model:
        """A model whose layers are those without experts."""
        return replace(self, ffn=self.ffn * (self.top + self.shared), experts=0, top=0, shared=0, plain=0)

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        tables = self.vocabulary * self.width * (1 if self.tied else 2)
        final_norm = 2 * self.width if self.vocabulary else 0
        layers = self.layers * (self.dense_parameters + self.experts * self.expert_parameters)
        if self.plain:
            less = self.experts * self.expert_parameters + self.dense_parameters - self.plain_layer.dense_parameters
            layers -= self.plain * less
        return layers + tables + final_norm

    @property
    def active_parameters(self) -> int:
        """Those that one token is multiplied with."""
        layer = self.dense_parameters - 4 * self.width + self.top * self.expert_parameters
        return self.layers * layer + self.vocabulary * self.width

    @property
    def flops_per_token(self) -> float:
        """Forward and backward; attention among all pairs of tokens, as PaLM's MFU counts it (arXiv 2204.02311, B)."""
        return 6 * self.active_parameters + 12 * self.layers * self.queries * self.length
