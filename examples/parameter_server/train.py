"""A network that learns a function, trained over parameter servers: ps and workers serve, the chief conducts.

Checkpoints are in the shared directory, because ps and chief both write them; a second run goes on from the last one.
The model and its metrics are in the outputs, which tfdeploy brings home.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import tensorflow as tf

INPUTS, HIDDEN = 4, 32
OUTPUTS = Path(os.environ.get("TFDEPLOY_OUTPUTS", "outputs"))
SHARED = Path(os.environ.get("TFDEPLOY_SHARED", "shared"))


class Network(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        start = tf.random_normal_initializer(stddev=0.3, seed=1)
        self.first = tf.Variable(start((INPUTS, HIDDEN)), name="first")
        self.bias = tf.Variable(tf.zeros((HIDDEN,)), name="bias")
        self.second = tf.Variable(start((HIDDEN, 1)), name="second")

    @tf.function(input_signature=[tf.TensorSpec((None, INPUTS), tf.float32)])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(x @ self.first + self.bias) @ self.second


def main() -> None:
    options = arguments()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("ps", "worker"):
        serve(resolver)
    conduct(resolver, options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500, help="how many more, on top of the checkpoint's")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each round, to watch it at work")
    return parser.parse_args()


def serve(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Until the chief is done and tfdeploy stops us."""
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    print(f"{resolver.task_type}-{resolver.task_id} serves", flush=True)
    server.join()


def conduct(resolver: tf.distribute.cluster_resolver.ClusterResolver, options: argparse.Namespace) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        network = Network()
        step = tf.Variable(0, dtype=tf.int64, name="step")

    checkpoint = tf.train.Checkpoint(network=network, step=step)
    manager = tf.train.CheckpointManager(checkpoint, str(SHARED / "checkpoints"), max_to_keep=3)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint)
        print(f"restored step {int(step.numpy())}", flush=True)
    begin = int(step.numpy())

    @tf.function
    def train(batches):  # type: ignore[no-untyped-def]
        x, y = next(batches)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((network(x) - y) ** 2)
        variables = network.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(options.learning_rate * gradient)
        step.assign_add(1)
        return loss

    batches = iter(coordinator.create_per_worker_dataset(lambda: examples(options.batch)))
    started, losses = time.monotonic(), []
    for _ in range(0, options.steps, options.every):
        scheduled = [coordinator.schedule(train, args=(batches,)) for _ in range(options.every)]
        coordinator.join()
        losses.append(sum(float(loss.fetch()) for loss in scheduled) / len(scheduled))
        manager.save()
        print(f"step {int(step.numpy())} loss {losses[-1]:.5f}", flush=True)
        time.sleep(options.pause)

    done = int(step.numpy())
    keep(network, {"from": begin, "to": done, "losses": losses, "seconds": round(time.monotonic() - started, 2)})
    print(f"done at step {done}, loss {losses[-1]:.5f}", flush=True)


def examples(batch: int) -> tf.data.Dataset:
    """y = sin(sum of x), made on the spot: each worker sees other ones."""

    def draw(_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = tf.random.uniform((batch, INPUTS), -1.0, 1.0)
        return x, tf.sin(tf.reduce_sum(x, axis=1, keepdims=True))

    return tf.data.Dataset.range(1).repeat().map(draw).prefetch(2)


def keep(network: Network, metrics: dict[str, object]) -> None:
    """The weights as a model of their own: those of the strategy live on the parameter servers."""
    plain = Network()
    for ours, theirs in zip(plain.trainable_variables, network.trainable_variables, strict=True):
        ours.assign(theirs.read_value())
    OUTPUTS.mkdir(parents=True, exist_ok=True)
    tf.saved_model.save(plain, str(OUTPUTS / "model"))
    (OUTPUTS / "metrics.json").write_text(json.dumps(metrics, indent=2))


if __name__ == "__main__":
    main()
    # A chief whose peers are gone would wait for them for a while at the interpreter's end.
    sys.stdout.flush()
    os._exit(0)
