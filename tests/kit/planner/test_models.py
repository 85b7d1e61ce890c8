"""Models by name and from configs of transformers; the counts of parameters are those that the models' cards give."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from utils.kit.planner import find_model, model_from_config
from utils.kit.plans import MODELS

QWEN_14B = {
    "model_type": "qwen2",
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
NEOX = {
    **{"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44},
    **{"num_attention_heads": 64, "max_position_embeddings": 2048, "vocab_size": 50432, "tie_word_embeddings": False},
}
MIXTRAL = {
    **{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768, "vocab_size": 32000},
    **{"num_local_experts": 8, "num_experts_per_tok": 2},
}
GPT_2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
DEEPSEEK_V3 = {
    **{"model_type": "deepseek_v3", "hidden_size": 7168, "moe_intermediate_size": 2048, "num_hidden_layers": 61},
    **{"num_attention_heads": 128, "max_position_embeddings": 163840, "vocab_size": 129280, "v_head_dim": 128},
    **{"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3},
}
QWEN_EXPERTS = {
    **{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768},
    **{"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128},
    **{"num_experts": 128, "num_experts_per_tok": 8, "max_position_embeddings": 40960, "vocab_size": 151936},
}
GEMMA = {  # its tables are tied, and it doesn't say so
    **{"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28},
    **{"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256000},
    **{"max_position_embeddings": 8192},
}
GEMMA_2 = GEMMA | {
    **{"model_type": "gemma2", "hidden_size": 4608, "intermediate_size": 36864, "num_hidden_layers": 46},
    **{"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128},
}
PHI_2 = {
    **{"model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 2048, "vocab_size": 51200},
}
PHI_3 = PHI_2 | {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "vocab_size": 32064}
DEEPSEEK = {
    **{"model_type": "deepseek_v2", "hidden_size": 5120, "moe_intermediate_size": 1536, "num_hidden_layers": 60},
    **{"num_attention_heads": 128, "max_position_embeddings": 163840, "vocab_size": 102400, "v_head_dim": 128},
    **{"n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
}
MISTRAL = {
    **{"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768, "vocab_size": 32000},
}


@pytest.mark.parametrize(
    "config, billions",
    [
        *((QWEN_14B, 14.77), (NEOX, 20.6), (MIXTRAL, 46.7), (GPT_2, 0.124), (MISTRAL, 7.24), (QWEN_EXPERTS, 30.5)),
        *((DEEPSEEK, 236), (DEEPSEEK_V3, 671), (GEMMA, 8.54), (GEMMA_2, 27.2), (PHI_2, 2.78), (PHI_3, 3.82)),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_a_config_becomes_a_model_with_as_many_parameters_as_its_card_says(config, billions):
    model = model_from_config(config)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_configs_of_published_models_are_these_models():
    assert replace(model_from_config(MIXTRAL), length=4096) == MODELS["mixtral-8x7b"]
    assert replace(model_from_config(DEEPSEEK), length=4096) == MODELS["deepseek-v2"]
    assert replace(model_from_config(DEEPSEEK_V3), length=4096) == MODELS["deepseek-v3"]


def test_heads_may_have_a_width_of_their_own_and_tables_are_padded():
    model = model_from_config({**QWEN_14B, "head_dim": 64, "vocab_size": 151_665, "tie_word_embeddings": True})
    assert (model.head_width, model.vocabulary, model.tied) == (64, 151_680, True)
    assert not model_from_config(GPT_2).gated and model_from_config(GPT_2).tied


@pytest.mark.parametrize(
    "change, words",
    [
        ({"model_type": "qwen3_next"}, "model_type 'qwen3_next': did you mean 'qwen3_moe'"),
        ({"model_type": None}, "has no model_type"),
        ({"num_hidden_layers": None}, "has num_hidden_layers: None"),
        ({"hidden_size": "5120"}, "has hidden_size: '5120'"),
    ],
)
def test_a_config_that_cannot_be_read_is_told_why(change, words):
    with pytest.raises(ValueError, match=words):
        model_from_config({**QWEN_14B, **change})


def test_a_missing_field_is_named():
    with pytest.raises(ValueError, match="lacks 'num_local_experts'; for model_type 'mixtral' .* leaves out a class's"):
        model_from_config({name: value for name, value in MIXTRAL.items() if name != "num_local_experts"})


def test_a_path_may_be_a_folder_and_its_length_is_moderate(tmp_path):
    folder = tmp_path / "my-14b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN_14B))
    for path in (folder, folder / "config.json", str(folder)):
        assert find_model(path)[0] == "my-14b"
        assert find_model(path)[1].length == 8192
    assert find_model(folder, 4096)[1].length == 4096
    (folder / "config.json").write_text(json.dumps({"model_type": "mistral3", "text_config": QWEN_14B}))
    assert find_model(folder)[1].layers == 48


def test_what_is_no_model_is_told_what_is(tmp_path):
    with pytest.raises(ValueError, match="there is no model 'Llama3-70b': did you mean 'llama-3-70b'"):
        find_model("Llama3-70b")
    with pytest.raises(FileNotFoundError, match=rf"the folder {tmp_path} has no config.json. Nothing is downloaded"):
        find_model(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no file meta-llama/Llama-3.1-8B. Nothing is downloaded"):
        find_model("meta-llama/Llama-3.1-8B")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        find_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="holds a list"):
        find_model(tmp_path)


def test_a_model_and_a_name_are_taken_as_they_are():
    assert find_model("llama-3-70b") == ("llama-3-70b", MODELS["llama-3-70b"])
    assert find_model(MODELS["llama-3-8b"], 4096) == ("your model", replace(MODELS["llama-3-8b"], length=4096))
