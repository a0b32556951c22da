"""Modules that the peers of the C++ stages share. For their dependencies see "Adding a peer" in ../README.md."""
