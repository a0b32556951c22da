"""What every peer of the C++ stages shares: the command line, the data, the model, the clock and the report.

`command_line`, `errors` and `training_log` need no framework; `data`, `mlp` and `ranks` need torch.
"""
