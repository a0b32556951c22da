#!/bin/sh
# Trains 60 epochs on two ranks, and writes a snapshot after each of them.
exec build/bin/03_ddp_spawn 60 1 --nprocs 2 --layers 784,256,10 --resume auto \
  --snapshot build/exercise/12/killed.safetensors
