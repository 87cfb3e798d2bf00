"""From a list of machines to a finished distributed TensorFlow job with one command, over SSH."""

__version__ = "0.1.0.dev0"
