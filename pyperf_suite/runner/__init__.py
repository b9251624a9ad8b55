"""From cases to records: the plan, the worker processes that own the device, the journal, resume."""
