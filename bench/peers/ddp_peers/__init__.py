"""What every peer of the C++ stages shares: the command line, the data, the model, the clock and the report.

Which module needs what: "Adding a peer" in ../README.md.
"""
