#!/bin/sh
# transformers 5.24.0: whether a model of text and images ties embedding and logits is not what its text_config says.
#
# One would guess that `text_config.tie_word_embeddings`, which stands beside hidden and vocabulary and is saved with
# them, decides, and in all families alike. It decides in llama4, whose class holds a whole causal model. In the others the
# outer flag does, whose default differs: mistral3 and internvl tie though the text says false, so that the model has
# vocab x hidden parameters fewer than its own part of text has alone; llava_next does not tie though it says true; llava
# copies the inner flag to the outer one, but only a true one. Both flags are saved, and nothing is said of it. Whoever
# counts parameters, or memory, by text_config alone is wrong by one matrix of vocab x hidden.
#
# Exits with 1 if that changes. Takes about a minute, most of it the installation; models are built on the meta device.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check "torch==2.13.0" "numpy==2.4.6" \
  "transformers==5.24.0" 2>"$folder/log" || { cat "$folder/log" >&2; exit 1; }
cat >"$folder/tied.py" <<'PYTHON'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

transformers.logging.set_verbosity_error()
SIZES = {"vocab_size": 1009, "hidden_size": 96, "intermediate_size": 152, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 6, "num_key_value_heads": 3, "pad_token_id": 0}
EXPECTED = {
    ("mistral3", "mistral"): {False: (True, True), True: (True, True)},
    ("internvl", "qwen2"): {False: (True, True), True: (True, True)},
    ("llava", "llama"): {False: (False, False), True: (True, True)},
    ("llava_next", "llama"): {False: (False, False), True: (False, False)},
    ("llama4", "llama4_text"): {False: (False, False), True: (False, True)},
}


def count(*modules):
    return sum({id(each): each.numel() for module in modules for each in module.parameters()}.values())


print("transformers", transformers.__version__, "torch", torch.__version__)
changed = 0
for (family, text), expected in EXPECTED.items():
    for inner, (outer, tied) in expected.items():
        config = AutoConfig.for_model(family, text_config={"model_type": text, "tie_word_embeddings": inner, **SIZES})
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(config)
            alone = AutoModelForCausalLM.from_config(AutoConfig.for_model(text, tie_word_embeddings=inner, **SIZES))
        embedding, logits = model.get_input_embeddings(), model.get_output_embeddings()
        is_tied = embedding.weight is logits.weight
        part = count(model.get_decoder(), logits)
        saved = config.to_dict()["text_config"]["tie_word_embeddings"]
        print(
            f"{family}: text_config says {inner} (saved: {saved}), the outer flag is {config.tie_word_embeddings}, "
            f"tied: {is_tied}; {part} parameters of text, alone {count(alone)}"
        )
        changed += (saved, config.tie_word_embeddings, is_tied) != (inner, outer, tied)
        changed += (part - count(alone)) != (inner - is_tied) * SIZES["vocab_size"] * SIZES["hidden_size"]
raise SystemExit(changed > 0)
PYTHON
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore "$folder/tied.py"
