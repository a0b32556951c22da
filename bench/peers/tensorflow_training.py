"""How the TensorFlow peer trains: replicas kept mirrored in one process."""

import concurrent.futures
import multiprocessing
import os

import numpy as np
from ddp_peers import arrays
from ddp_peers.errors import PeerError
from ddp_peers.training_log import TrainingLog, versions


def losses_of(tf, output, target):
    """One for each sample."""
    if output.shape[1] == 1:
        return tf.square(output - target)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=output)


def forward(tf, parameters, x):
    """@param parameters weight (in, out) and bias of each layer"""
    for i in range(0, len(parameters), 2):
        x = tf.matmul(x if i == 0 else tf.nn.relu(x), parameters[i]) + parameters[i + 1]
    return x


def train(tf, options, work, log):
    """@return the trained parameters"""
    replicas = options.processes
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(replicas)
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0],
                                               [tf.config.LogicalDeviceConfiguration()] * replicas)
    strategy = (tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)]) if replicas > 1
                else tf.distribute.OneDeviceStrategy("CPU:0"))
    with strategy.scope():
        parameters = [tf.Variable(value.T) for value in work.parameters]
    inputs, targets = map(tf.constant, work.train)

    def update(strategy, *gradients):
        means = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, list(zip(gradients, parameters)))
        for parameter, mean in zip(parameters, means):
            strategy.extended.update(parameter, lambda own, g: own.assign_sub(options.learning_rate * g), args=(mean,))

    def replica_step(samples, share):
        replica = tf.distribute.get_replica_context()
        own = samples[replica.replica_id_in_sync_group::replicas]
        with tf.GradientTape() as tape:
            output = forward(tf, parameters, tf.gather(inputs, own))
            loss = tf.reduce_sum(losses_of(tf, output, tf.gather(targets, own))) / share
        replica.merge_call(update, args=tape.gradient(loss, parameters))
        return loss

    @tf.function
    def step(samples, share):
        losses = strategy.run(replica_step, args=(samples, share))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    for epoch, epoch_steps in enumerate(work.steps):
        # Drawn before training; brought to TensorFlow between epochs, as the other peers draw theirs.
        batches = [(tf.constant(samples), tf.constant(len(samples) / replicas, tf.float32)) for samples in epoch_steps]
        log.begin_epoch(epoch)
        for samples, share in batches:
            log.end(step(samples, share), len(samples))
        log.end_epoch()

    for parameter in parameters:
        first, *others = (copy.numpy() for copy in strategy.experimental_local_results(parameter))
        if any(copy.tobytes() != first.tobytes() for copy in others):
            raise PeerError("the final weights of the replicas differ, expected the same in all")
    return [parameter.numpy() for parameter in parameters]


def report(tf, work, log, trained):
    inputs, targets = work.test
    output = forward(tf, [value.astype(np.float64) for value in trained], inputs.astype(np.float64))
    classes = work.layers[-1] > 1
    loss = np.mean(losses_of(tf, output, targets if classes else targets.astype(np.float64)))
    moved = np.sqrt(sum(np.square(after.T.astype(np.float64) - before).sum()
                        for after, before in zip(trained, work.parameters)))
    log.report(work, parameters=sum(value.size for value in trained), moved=moved, loss=loss,
               accuracy=np.mean(output.numpy().argmax(1) == targets) if classes else None,
               software=versions("tensorflow-cpu"))


def run(options):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # errors are exceptions too, and make one line then
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        drawn = pool.submit(arrays.load, options)
        import tensorflow as tf  # takes as long as the other process

        if not hasattr(tf, "config"):  # this folder's own tensorflow.py
            raise ImportError(name="tensorflow")
        work = drawn.result()
    log = TrainingLog(options, sum(map(len, work.steps)), has_phases=False)
    report(tf, work, log, train(tf, options, work, log))
