"""What the rules cannot know about a family: settings of its own, the shape of its inputs, or why it has no tiny
model."""

from __future__ import annotations

from typing import Any

_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
_SERIES = {"prediction_length": 2, "context_length": 8, "lags_sequence": [1, 2], "d_model": 32, "num_time_features": 1}
_SHARED = {"num_kv_shared_layers": 0}
_FEW_TOKENS = {"mm_tokens_per_image": 4}
_HYBRID = {"num_hidden_layers": 4}
_VIT = {"vision_config": {"model_args": {"img_size": 64, "patch_size": 16, "embed_dim": 64, "depth": 2,
                                         "num_heads": 4}}}
_HIERA = {
    "image_size": [64, 64], "hidden_size": 16, "embed_dim_per_stage": [16, 32, 64, 128],
    "blocks_per_stage": [1, 2, 3, 2],
    "global_attention_blocks": [4],
}  # fmt: skip

# Settings by model type; dictionaries for sub-configurations.
SETTINGS: dict[str, dict[str, Any]] = {
    "funnel": {"block_sizes": [1, 1], "num_decoder_layers": 1},
    **dict.fromkeys(("ministral", "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text"), _ROPE),
    **dict.fromkeys(("autoformer", "informer", "time_series_transformer"), _SERIES),
    **dict.fromkeys(("kimi_linear", "qwen3_next"), _HYBRID),
    **dict.fromkeys(("codegen", "gptj"), {"rotary_dim": 4}),
    **dict.fromkeys(("deepseek_v2", "dots1"), {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}),
    **dict.fromkeys(("gemma3n_text", "gemma4_unified_assistant"), _SHARED),
    "gemma3n": {"text_config": _SHARED},
    **dict.fromkeys(("gemma3", "t5gemma2_encoder"), _FEW_TOKENS),
    "t5gemma2": {"encoder": _FEW_TOKENS},
    "glm4v_moe_text": {"head_dim": 16},
    "glm4v_moe": {"text_config": {"head_dim": 16}},
    "mamba2": {"hidden_size": 32, "num_heads": 8, "head_dim": 8, "expand": 2, "n_groups": 1},
    "granitemoehybrid": {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
    "bamba": {"num_hidden_layers": 2, "attn_layer_indices": [1]},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "depth_pro": {"scaled_images_ratios": [0.25, 0.5, 1]},
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
    "efficientnet": {"hidden_dim": 2560},
    "ernie4_5_moe": {"moe_k": 2},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 4},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
              "expert_layer_offset": 1},
    "longcat_flash": {"qk_rope_head_dim": 8, "head_dim": 8},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 8},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "pe_video": {"video_config": _VIT},
    "pe_video_encoder": _VIT,
    "reformer": {"is_decoder": True, "axial_pos_shape": [3, 4], "axial_pos_embds_dim": [16, 16]},
    "sam2_vision_model": {
        "backbone_config": _HIERA, "backbone_channel_list": [128, 64, 32, 16],
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    },
    "timm_backbone": {"backbone": "resnet18"},
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
}

# Pixel values with a dimension for frames or pictures before the channels; its size.
FRAMES: dict[str, int] = {
    "xclip": 8, "videomae": 16, "timesformer": 8, "modernvbert": 1, "idefics2": 1, "idefics3": 1, "smolvlm": 1,
    "ultravbert": 1,
    "lightglue": 2, "vivit": 32,
}  # fmt: skip
# Sound with a dimension for channels.
CHANNELS = frozenset({
    "encodec", "dac", "mimi_encoder", "pe_audio", "pe_audio_encoder", "pocket_tts_audio_tokenizer_encoder", "xcodec",
    "xcodec2", "neucodec",
    "vibevoice_acoustic_tokenizer", "vibevoice_acoustic_tokenizer_encoder", "higgs_audio_v2_tokenizer",
})  # fmt: skip
# Text with a box for each token.
BOXED = frozenset({"bros", "layoutlmv3", "lilt"})

# Model types that are left out, with the reason.
NO_MODEL: dict[str, str] = {
    "higgs_audio_v2_tokenizer": "needs torchaudio, which is not installed",
    "voxtral_realtime_text": "named in the tables of transformers, but not there",
    **dict.fromkeys(("edgetam_video", "sam2_video", "sam3_video", "sam3_tracker_video"),
                    "takes an inference session, not tensors"),
    **dict.fromkeys(("bark", "glm_image_vqmodel", "qwen2_5_omni"), "has no forward of its own"),
}
