"""A small model in ONNX's format, written without its package: y = relu(x @ w), as often as there are matrices.

https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

import numpy as np

# Of TensorProto.DataType.
FLOAT = 1


def field(number, content):
    """Return a field of a message: an integer, or bytes or a text with its length."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value):
    """Return a number, seven bits a byte, the lowest first."""
    parts = [value & 127]
    while value := value >> 7:
        parts[-1] |= 128
        parts.append(value & 127)
    return bytes(parts)


def node(kind, inputs, output):
    return b"".join([*(field(1, name) for name in inputs), field(2, output), field(4, kind)])


def value(name, shape):
    dimensions = b"".join(field(1, field(1, size)) for size in shape)
    return field(1, name) + field(2, field(1, field(1, FLOAT) + field(2, dimensions)))


def tensor(name, array):
    sizes = b"".join(field(1, size) for size in array.shape)
    return sizes + field(2, FLOAT) + field(8, name) + field(9, np.ascontiguousarray(array, np.float32).tobytes())


def chain(weights, rows):
    """Return the model of these matrices, for an input of so many rows."""
    nodes, name = [], "x"
    for number in range(len(weights)):
        nodes.append(node("MatMul", [name, f"w{number}"], f"product{number}"))
        name = "y" if number == len(weights) - 1 else f"positive{number}"
        nodes.append(node("Relu", [f"product{number}"], name))
    graph = b"".join(
        [
            *(field(1, each) for each in nodes),
            field(2, "chain"),
            *(field(5, tensor(f"w{number}", matrix)) for number, matrix in enumerate(weights)),
            field(11, value("x", (rows, weights[0].shape[0]))),
            field(12, value("y", (rows, weights[-1].shape[1]))),
        ]
    )
    # The versions of the format and of the operators.
    return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13))
