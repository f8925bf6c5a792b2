"""Build the model that is served on a CPU: a two-layer Qwen2 and a tokenizer, without weights.

SGLang fills the weights at random from a fixed seed (``--load-format dummy``): what is generated means
nothing, and is the same every time. The tokenizer is a byte-level BPE; with others, prompts become empty.

Run as ``python tiny_model.py FOLDER``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 1024
POSITIONS = 131_072  # the longest request of a trace should fit
END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 0,
}
CHAT = (
    f"{{% for m in messages %}}{TURN}{{{{ m['role'] }}}}\n{{{{ m['content'] }}}}{TURN_END}\n{{% endfor %}}"
    f"{{% if add_generation_prompt %}}{TURN}assistant\n{{% endif %}}"
)


def tokenizer() -> Tokenizer:
    """Return a tokenizer of exactly VOCABULARY tokens, trained on the source of Python's json package."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, TURN, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    text = [path.read_text(encoding="utf-8") for path in sorted(Path(json.__file__).parent.glob("*.py"))]
    trained.train_from_iterator(text, trainer)
    if trained.get_vocab_size() != VOCABULARY:
        raise ValueError(f"the tokenizer has {trained.get_vocab_size()} tokens, expected {VOCABULARY}")
    return trained


def build(folder: Path) -> None:
    """Write config and tokenizer as the files that transformers reads."""
    folder.mkdir(exist_ok=True)
    trained = tokenizer()
    trained.save(str(folder / "tokenizer.json"))
    trained.model.save(str(folder))  # vocab.json and merges.txt
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "model_max_length": POSITIONS,
        "eos_token": END,
        "pad_token": END,
        "unk_token": END,
        "additional_special_tokens": [TURN, TURN_END],
        "chat_template": CHAT,
    }
    for name, content in (("config.json", CONFIG), ("tokenizer_config.json", settings)):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
