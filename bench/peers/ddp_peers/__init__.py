"""What the peers of the C++ stages share. Which module needs what: "Adding a peer" in ../README.md."""
