"""A model by its name in published.py, or from the config.json that transformers keeps beside a model's weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...text.units import nearest
from ..plans import MODELS, Model

LONGEST = 8192  # tokens of a sequence if nobody says: what a model can read is often far more than it is trained with
PADDED = 128  # rows of a table are a multiple of this, as in Megatron-LM

# {model_type: {a field of Model: a field of the config}}
GPT_2 = {"layers": "n_layer", "width": "n_embd", "heads": "n_head", "length": "n_positions"}
NEOX = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "length": "max_position_embeddings",
    "ffn": "intermediate_size",
}
MIXTRAL = NEOX | {"experts": "num_local_experts", "top": "num_experts_per_tok"}
QWEN_MOE = {**NEOX, "ffn": "moe_intermediate_size", "experts": "num_experts", "top": "num_experts_per_tok"}
DEEPSEEK = {name: field for name, field in NEOX.items() if name != "ffn"} | {
    "ffn": "moe_intermediate_size",
    "experts": "n_routed_experts",
    "top": "num_experts_per_tok",
    "shared": "n_shared_experts",
}
NEEDED = {
    "gpt2": GPT_2,
    "gpt_neox": NEOX,
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "phi3"), NEOX),
    "mixtral": MIXTRAL,
    "qwen3_moe": QWEN_MOE,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), DEEPSEEK),
}
MAY_BE_MISSING = {"key_heads": "num_key_value_heads", "head_width": "head_dim"}
TWO_MATRICES = ("gpt2", "gpt_neox", "phi")
TIED = ("gpt2", "gemma", "gemma2")  # unless the config says otherwise
LATENT, PLAIN = ("deepseek_v2", "deepseek_v3"), "first_k_dense_replace"


def find_model(model: str | Path | Model, sequence: int | None = None) -> tuple[str, Model]:
    """(name, Model) of a name in MODELS, of a path to a config.json or its folder, or of a Model.

    sequence   tokens per sequence; by default as published, and for a config what the model can read, 8,192 at most

    Of a model that also reads images, it is the part for text.

    Raises ValueError for an unknown name, and as model_from_config does; FileNotFoundError for a path without a file.
    """
    if isinstance(model, Model):
        name, found = "your model", model
    elif str(model) in MODELS:
        name, found = str(model), MODELS[str(model)]
    elif isinstance(model, Path) or model.endswith(".json") or "/" in model or Path(model).is_dir():
        path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
        name, found = path.parent.resolve().name, model_from_config(read(path))
        found = replace(found, length=min(found.length, LONGEST))
    else:
        raise ValueError(
            f"there is no model {model!r}{nearest(model.lower(), MODELS)} There are {', '.join(MODELS)}; for another, "
            "give the path of its config.json."
        )
    return name, replace(found, length=sequence) if sequence else found


def read(path: Path) -> dict[str, Any]:
    if not path.exists():
        what = f"the folder {path.parent} has no {path.name}" if path.parent.is_dir() else f"there is no file {path}"
        raise FileNotFoundError(
            f"{what}. Nothing is downloaded: save a model's config.json from Hugging Face, and give its path."
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is not JSON ({error}): is it all of the file, and not the web page about it?"
        ) from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds a {type(config).__name__}; a config.json of transformers holds an object.")
    text: dict[str, Any] = config.get("text_config") or config  # beside a part for images
    return text


def model_from_config(config: Mapping[str, Any]) -> Model:
    """The Model that a config of transformers describes, with as many tokens per sequence as it can read.

    Known model types are those of NEEDED. Vocabularies are padded to a multiple of 128. Biases, and windows of
    attention, are left out. Multi-head latent attention becomes heads that share one head of keys and values, and
    layers without experts get an MLP as wide as the experts of one token, as in published.py.

    Raises ValueError for another model type, and for a field that is missing or not a number.
    """
    kind = config.get("model_type")
    if kind not in NEEDED:
        known = ", ".join(NEEDED)
        what = "has no model_type" if kind is None else f"is of model_type {kind!r}{nearest(str(kind), NEEDED)[:-1]}"
        raise ValueError(f"the config {what}. Those that can be read: {known}. Describe others with a Model(...).")
    sizes = {name: number(config, field, kind) for name, field in NEEDED[kind].items()}
    sizes["vocabulary"] = -(-number(config, "vocab_size", kind) // PADDED) * PADDED
    if kind in LATENT:
        sizes |= {"key_heads": 1, "head_width": number(config, "v_head_dim", kind)}
        sizes |= {"plain": number(config, PLAIN, kind)} if config.get(PLAIN) else {}
    else:
        sizes |= {name: number(config, field, kind) for name, field in MAY_BE_MISSING.items() if config.get(field)}
    if kind == "gpt2" and config.get("n_inner"):
        sizes["ffn"] = number(config, "n_inner", kind)
    tied = bool(config.get("tie_word_embeddings", kind in TIED))
    return Model(**sizes, gated=kind not in TWO_MATRICES, tied=tied)


def number(config: Mapping[str, Any], field: str, kind: str) -> int:
    value = config.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        has = f"has {field}: {value!r}" if field in config else f"lacks {field!r}"
        default = "" if field in config else " transformers leaves out a class's defaults: write it into the file."
        raise ValueError(f"the config {has}; for model_type {kind!r} it must be a whole number, 1 or more.{default}")
    return value
