"""How a launch is timed, when timing may stop, and whether the result that was timed is right.

Each module holds one of these ideas and needs numpy alone; nothing here knows an operator or a
device.
"""
