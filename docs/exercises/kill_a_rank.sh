#!/bin/bash
# Starts a training, kills one of its ranks after the second snapshot, and starts the training again.
#
# usage: kill_a_rank.sh TRAIN SNAPSHOT
set -u
train=$1 snapshot=$2
rm -f "$snapshot" "$snapshot.prev"
too_early() {
  echo "kill_a_rank.sh: got the end of $train after less than two snapshots, expected a longer training"
  exit 1
}
"$train" &
until [ -e "$snapshot.prev" ]; do  # the second snapshot keeps the first one under this name
  kill -0 $! 2>/dev/null || too_early
  sleep 0.02
done
pkill -KILL -n -P $! || too_early
wait $!
echo "kill_a_rank.sh: killed a rank after the second snapshot, and starts again"
"$train"
