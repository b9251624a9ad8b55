"""Models that tests of laws count: published ones, and small ones with layers of several kinds."""

from dataclasses import replace

from hypothesis import strategies as st

from pyperf_suite.laws.transformer import ModelDimensions, Sharding, products

MODELS = {
    "gpt2": ModelDimensions(12, 768, 3072, 12, 50257, positions=1024, bias=True, tied=True),
    "gpt2-xl": ModelDimensions(48, 1600, 6400, 25, 50257, positions=1024, bias=True, tied=True),
    "bert": ModelDimensions(12, 768, 3072, 12, 30522, positions=512, bias=True, tied=True, causal=False),
    "llama-2-7b": ModelDimensions(32, 4096, 11008, 32, 32000, gated=True),
    "llama-3-8b": ModelDimensions(32, 4096, 14336, 32, 128256, kv_heads=8, gated=True),
    "llama-3-70b": ModelDimensions(80, 8192, 28672, 64, 128256, kv_heads=8, gated=True),
    "falcon-7b": ModelDimensions(32, 4544, 18176, 71, 65024, kv_heads=1, norms=1, norm_bias=True, tied=True),
    "mixtral-8x7b": ModelDimensions(32, 4096, 14336, 32, 32000, kv_heads=8, gated=True, experts=8, top_k=2),
    "deepseek-v2-lite": ModelDimensions(
        layers=27,
        hidden=2048,
        ffn=10944,
        heads=16,
        vocab=102400,
        head_dim=192,
        gated=True,
        experts=64,
        top_k=6,
        expert_ffn=1408,
        shared_ffn=2816,
        dense_layers=1,
        latent_rank=512,
        rope_head_dim=64,
        value_head_dim=128,
    ),
    "deepseek-v3": ModelDimensions(
        layers=61,
        hidden=7168,
        ffn=18432,
        heads=128,
        vocab=129280,
        head_dim=192,
        gated=True,
        experts=256,
        top_k=8,
        expert_ffn=2048,
        shared_ffn=2048,
        dense_layers=3,
        query_rank=1536,
        latent_rank=512,
        rope_head_dim=64,
        value_head_dim=128,
        router_bias=True,
    ),
}
LLAMA, MIXTRAL, DEEPSEEK = (MODELS[name] for name in ("llama-3-8b", "mixtral-8x7b", "deepseek-v3"))
GPT_3 = ModelDimensions(96, 12288, 49152, 96, 51200, positions=2048, bias=True, tied=True)
models = st.sampled_from(sorted(MODELS)).map(MODELS.__getitem__)

SMALL_LLAMA = ModelDimensions(12, 1024, 4096, 16, 32000, kv_heads=4, head_dim=64, gated=True)
GEMMA = replace(SMALL_LLAMA, window=256, windowed_layers=10)
SCOUT = replace(SMALL_LLAMA, window=256, windowed_layers=9, chunked=True)
SPARSE = ModelDimensions(
    12, 1024, 4096, 16, 32000, kv_heads=4, head_dim=64, gated=True, experts=16, top_k=2, expert_ffn=512, shared_ffn=512,
    dense_layers=2,
)  # fmt: skip
KINDS = {"gemma": GEMMA, "scout": SCOUT, "sparse": SPARSE}


def sizes(model: ModelDimensions, tokens: int, sharding: Sharding | None = None) -> dict[str, tuple]:
    """M, N, K of each product of the forward pass."""
    return {p.part: (p.m, p.n, p.k) for p in products(model, tokens, sharding, phases=("fprop",))}
