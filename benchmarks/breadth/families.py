"""What the rules cannot know about a family: settings of its own, inputs of its own, or why it has no tiny model."""

from __future__ import annotations

from typing import Any

# Settings by model type; dictionaries for sub-configurations.
SETTINGS: dict[str, dict[str, Any]] = {
    "funnel": {"block_sizes": [1, 1], "num_decoder_layers": 1},
}

# Model types that are left out, with the reason.
NO_MODEL: dict[str, str] = {
    "higgs_audio_v2_tokenizer": "needs torchaudio, which is not installed",
    "voxtral_realtime_text": "named in the tables of transformers, but not there",
}
