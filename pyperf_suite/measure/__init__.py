"""How a launch is timed, when timing may stop, and whether the result is right, by numpy alone and for any operator."""
