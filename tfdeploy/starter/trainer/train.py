"""A linear model trained by parameter servers: small enough to read, real enough to change."""

import argparse
import os

import tensorflow as tf


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoints", default="/shared/checkpoints")
    arguments = parser.parse_args()

    # Who this task is and who the others are: tfdeploy says it in TF_CONFIG.
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("ps", "worker"):
        serve(resolver)
    else:
        train(resolver, arguments.steps, arguments.checkpoints)


def serve(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Works for the chief until tfdeploy stops it."""
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()


def train(resolver: tf.distribute.cluster_resolver.ClusterResolver, steps: int, directory: str) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = tf.Variable(tf.zeros([2, 1]))
        bias = tf.Variable(0.0)
        step = tf.Variable(0, dtype=tf.int64)

    def examples() -> tf.data.Dataset:
        inputs = tf.random.stateless_normal([512, 2], seed=[1, 2])
        labels = inputs @ [[3.0], [-2.0]] + 0.5
        return tf.data.Dataset.from_tensor_slices((inputs, labels)).repeat().batch(32)

    def one_step(iterator: tf.data.Iterator) -> tf.Tensor:
        inputs, labels = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((inputs @ weights + bias - labels) ** 2)
        for variable, gradient in zip((weights, bias), tape.gradient(loss, (weights, bias)), strict=True):
            variable.assign_sub(0.05 * gradient)
        step.assign_add(1)
        return loss

    train_step = tf.function(one_step)
    checkpoints = saved_in(directory, weights=weights, bias=bias, step=step)
    iterator = iter(coordinator.create_per_worker_dataset(examples))
    while int(step) < steps:
        losses = [coordinator.schedule(train_step, args=(iterator,)) for _ in range(20)]
        coordinator.join()
        if checkpoints:
            checkpoints.save()
        print(f"step {int(step)} loss {losses[-1].fetch():.6f}")


def saved_in(directory: str, **variables: tf.Variable) -> tf.train.CheckpointManager | None:
    """Goes on from the last checkpoint; chief and ps must both see the directory."""
    if not os.path.isdir(os.path.dirname(directory)):
        print(f"no {os.path.dirname(directory)}: training without checkpoints (set shared: in tfdeploy.yml)")
        return None
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(**variables), directory, max_to_keep=2)
    manager.restore_or_initialize()
    return manager


if __name__ == "__main__":
    main()
