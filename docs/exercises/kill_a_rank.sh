#!/bin/bash
# Starts a training, kills one of its ranks after the second snapshot, and starts the training again.
set -u
snapshot=build/exercise/12/killed.safetensors
train() {  # 60 epochs on two ranks, with a snapshot after each of them
  exec build/bin/03_ddp_spawn 60 1 --nprocs 2 --layers 784,256,10 --resume auto \
    --snapshot "$snapshot"
}
too_early() {
  echo "kill_a_rank.sh: got the end of the training after less than two snapshots, expected a longer training"
  exit 1
}
rm -f "$snapshot" "$snapshot.prev"
train &
until [ -e "$snapshot.prev" ]; do  # the second snapshot keeps the first one under this name
  kill -0 $! 2>/dev/null || too_early
  sleep 0.02
done
pkill -KILL -n -P $! || too_early
wait $!
echo "kill_a_rank.sh: killed a rank after the second snapshot, and starts again"
train
