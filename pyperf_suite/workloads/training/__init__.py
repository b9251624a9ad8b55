"""Pieces of training as workloads: one transformer, built in torch, that all of them train or take apart.

What each workload's check sees, element by element, what with, and whether also of steps that are timed:

- training_step, precision_step: the result and all gradients, after AdamW's update weights and moments; float64, limits
  by random rounding (rounding.py); while timed, but for dropout and AdamW.
- checkpointed_step: the same of the whole batch; or of one sequence where a batch takes too long, and of one that takes
  too long itself against the model without checkpointing; while timed, where the whole batch is compared.
- block_part: the result; float64, limits by random rounding; while timed.
- layer_pass: the result or gradients, on every operand set; float64, limits by dtype; while timed.
- optimizer_update: all weights and states, of 8-bit packages weights alone; float64 from where they stand; not while
  timed, as a step goes on from the last.
- data_parallel: all gradients, and that ranks hold the same bits; a single process, limits by the roundings of sums;
  while timed.
- parallel_step: all gradients of a rank's parts, and that ranks hold the same weights; a single process in float64,
  limits by random rounding; not while timed, as a step goes on from the last.
- overlap: the product, a large one on a CPU by Freivalds' check; the mean of the ranks; while timed, where it is exact.
- transfer: every byte, of a file 32 pieces; what was sent; while timed.
- input_pipeline: every sample of an epoch, pictures to the pixel; what was written; while timed, a step's last batch.
- training_memory: counts bytes of a step and has no values to compare.
"""
