#!/usr/bin/env python3
"""Trains the stages' model with TensorFlow's MirroredStrategy: a peer as in bench/peers/README.md."""

import os
import sys

from ddp_peers.command_line import run_peer

VARIANTS = {"mirrored": "replicas in one process, a logical device for each, the step one tf.function"}


def make_step(tf, options, work):
    """@return step(samples, share) -> loss, and a function that returns each replica's copy of each parameter"""
    replicas = options.processes
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(replicas)
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0],
                                               [tf.config.LogicalDeviceConfiguration()] * replicas)
    strategy = (tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)]) if replicas > 1
                else tf.distribute.OneDeviceStrategy("CPU:0"))
    with strategy.scope():
        parameters = [tf.Variable(initial.T) for initial in work.parameters]  # weights are (in, out)
    inputs, targets = tf.constant(work.inputs), tf.constant(work.targets)

    def forward(x):
        for i in range(0, len(parameters), 2):
            x = tf.matmul(x if i == 0 else tf.nn.relu(x), parameters[i]) + parameters[i + 1]
        return x

    def sum_of_losses(output, target):
        if output.shape[1] == 1:
            return tf.reduce_sum(tf.square(output - target))
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=output))

    def update(strategy, *gradients):
        means = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, list(zip(gradients, parameters)))
        for parameter, mean in zip(parameters, means):
            strategy.extended.update(parameter, lambda own, g: own.assign_sub(options.learning_rate * g), args=(mean,))

    def replica_step(samples, share):
        replica = tf.distribute.get_replica_context()
        own = samples[replica.replica_id_in_sync_group::replicas]
        with tf.GradientTape() as tape:
            loss = sum_of_losses(forward(tf.gather(inputs, own)), tf.gather(targets, own)) / share
        replica.merge_call(update, args=tape.gradient(loss, parameters))
        return loss

    @tf.function
    def step(samples, share):
        losses = strategy.run(replica_step, args=(samples, share))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    return step, lambda: [[copy.numpy().T for copy in strategy.experimental_local_results(parameter)] for parameter in parameters]


def run(options):
    from ddp_peers import arrays

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # errors are exceptions too, which become one line
    drawing = arrays.start_drawing(options)
    import tensorflow as tf  # takes as long as the other process

    work = drawing.result()
    step, trained = make_step(tf, options, work)

    def make_batch(samples):
        return tf.constant(samples), tf.constant(len(samples) / options.processes, tf.float32)

    log = arrays.train(options, work, make_batch, step)
    arrays.report(log, options, work, trained())


if __name__ == "__main__":
    sys.exit(run_peer("tensorflow", ["torch", "tensorflow-cpu"], VARIANTS, run, has_replicas=True))
