"""Where the guides' sentences come from; claims name one of these, or a paper."""

BEKMAN = "Bekman, Machine Learning Engineering"
TRANSFORMERS = "Hugging Face Transformers, Performance and Scalability"
BIGSCIENCE = "BigScience, tflops_optimization.md"
