#!/usr/bin/env python3
"""Trains the stages' model with JAX: a peer as in bench/peers/README.md."""

import os
import re
import sys

from ddp_peers.command_line import run_peer

VARIANTS = {"jit": "a virtual device for each replica in one process, the whole step jitted, parameters donated"}


def make_step(options, devices, layout):
    """@param layout turns weights from torch's (out, in) into the parameters' shape, and back
    @return step(parameters, inputs, targets, samples, weights) -> (parameters, loss), and two functions that copy a value
    to all devices, and a row of it to each device"""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    def loss_of(parameters, inputs, targets, weights):
        x = inputs
        for i in range(0, len(parameters), 2):
            x = (x if i == 0 else jax.nn.relu(x)) @ layout(parameters[i]).T + parameters[i + 1]
        if x.shape[1] == 1:
            return jnp.sum(jnp.square(x - targets) * weights[:, None])
        return -jnp.sum(jax.nn.log_softmax(x) * jax.nn.one_hot(targets, x.shape[1]) * weights[:, None])

    def step(parameters, inputs, targets, samples, weights):
        own = samples[0]
        loss, gradients = jax.value_and_grad(loss_of)(parameters, inputs[own], targets[own], weights[0])
        if options.processes > 1:
            loss, gradients = jax.lax.psum((loss, gradients), "replicas")
        return [p - options.learning_rate * g for p, g in zip(parameters, gradients)], loss

    same, rows = PartitionSpec(), PartitionSpec("replicas")
    mesh = jax.make_mesh((options.processes,), ("replicas",), devices=devices)
    if options.processes > 1:
        # check_vma would silently sum the gradients over the replicas.
        step = jax.shard_map(step, mesh=mesh, in_specs=(same, same, same, rows, rows), out_specs=(same, same), check_vma=False)
    on_all, by_row = NamedSharding(mesh, same), NamedSharding(mesh, rows)
    return (jax.jit(step, donate_argnums=0), lambda value: jax.device_put(value, on_all),
            lambda value: jax.device_put(value, by_row))


def deal(np, samples, replicas):
    """@return samples of each replica, and the weights of their losses: zero where a replica has fewer than others."""
    width = -(-len(samples) // replicas)
    indices, weights = np.zeros((replicas, width), np.int32), np.zeros((replicas, width), np.float32)
    for replica in range(replicas):
        own = samples[replica::replicas]
        indices[replica, :len(own)], weights[replica, :len(own)] = own, 1 / len(samples)
    return indices, weights


def place_in_core(cpu):
    """Sort key: the first CPU of every physical core comes before any core's second CPU."""
    try:
        with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
            return int(re.match("[0-9]+", file.read())[0]) != cpu, cpu
    except OSError:  # unknown
        return False, cpu


def run(options):
    from ddp_peers import arrays

    drawing = arrays.start_drawing(options)
    # XLA has a thread for each core that the process may use at the import, for all devices together.
    cpus, wanted = os.sched_getaffinity(0), options.processes * options.threads
    if wanted < len(cpus):
        os.sched_setaffinity(0, sorted(cpus, key=place_in_core)[:wanted])
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={options.processes}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np

    # Computes in the calling thread, because passing the step to another thread is slower.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    work = drawing.result()
    # By measurement, torch's layout of weights is faster on one device and slower on several.
    layout = (lambda value: value) if options.processes == 1 else (lambda value: value.T)
    initial = [layout(value) for value in work.parameters]
    step, on_all, by_row = make_step(options, jax.devices(), layout)
    inputs, targets = on_all(work.inputs), on_all(work.targets)

    def make_batch(samples):
        return tuple(map(by_row, deal(np, samples, options.processes)))

    # An epoch's last batch may be smaller. Both programs are compiled before the first step, on a copy of the parameters.
    for size in {min(options.global_batch, options.dataset_size), options.dataset_size % options.global_batch} - {0}:
        jax.block_until_ready(step(on_all(initial), inputs, targets, *make_batch(np.arange(size))))
    parameters = on_all(initial)

    def run_step(*batch):
        nonlocal parameters
        parameters, loss = step(parameters, inputs, targets, *batch)
        return loss.block_until_ready()  # all results of a program are ready together

    log = arrays.train(options, work, make_batch, run_step)
    arrays.report(log, options, work, [[layout(np.asarray(shard.data)) for shard in parameter.addressable_shards]
                                       for parameter in parameters])


if __name__ == "__main__":
    sys.exit(run_peer("jax", ["torch", "jax"], VARIANTS, run, has_replicas=True))
