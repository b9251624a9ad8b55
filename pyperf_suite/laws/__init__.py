"""Closed forms of what a kernel should cost: functions on numpy arrays that return `explained.Explained`.

Nothing here measures or knows the device in this machine; constants come in as arguments, or from the calibration of
the GPU that is named. What takes a GPU takes its name, its `GpuSpec` or a `Calibration`.
"""
