"""What `pyperf-suite` says when it is asked nothing: where each kind of user begins, in commands."""

MAP = """\
pyperf-suite measures the laws that decide how fast a transformer trains on a machine, and says what to do about it.

Begin with
  pyperf-suite doctor                                              is this machine fit for measuring?
  pyperf-suite run tile_wave                                       a first picture, within a minute
  pyperf-suite report                                              all that was measured here, on one page for a browser
You design a model (no GPU needed)
  pyperf-suite size --config config.json --gpu H200                nearby sizes that train faster, and why
  pyperf-suite explain 4096 50257 2560 --gpu H100                  one matrix product: tiles, waves, alignment
  pyperf-suite layout --config config.json --gpu H100 --gpus 64 --global-batch 512    DP, TP, PP, ZeRO, ranked
You train on this machine
  pyperf-suite run memory block checkpointing                      what takes memory, what time, what can be dropped
  pyperf-suite run precision optimizer input_pipeline              which settings are worth changing here
  pyperf-suite study                                               DDP, ZeRO, TP, PP in live steps, by samples/s
You accept a cluster
  pyperf-suite run topology                                        what is connected to what, and as it should be?
  torchrun --nproc-per-node=8 -m pyperf_suite collectives --profile standard          busbw, stragglers, verdicts
You own kernels
  pyperf-suite ab --old main --new . baseline                      is the new version slower? live pairs decide
  pyperf-suite track --confirm                                     each night: what got slower since when

All commands: pyperf-suite --help. All probes: pyperf-suite run --list. What each shows: docs/README.md.
Completion of names: eval "$(pyperf-suite completion bash)", or zsh; pyperf-suite completion fish | source"""
