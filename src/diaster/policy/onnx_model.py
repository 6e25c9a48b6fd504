"""A policy as an ONNX model: the nets, and what their outputs mean in the terms of the environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diaster.actors.acting import CATEGORICAL, EPSILON_GREEDY, NOISY_TANH, TANH_GAUSSIAN, HostParameters, HostPolicy
from diaster.actors.encoding import KERNEL, SMALL, STRIDE, HostEncoder
from diaster.errors import DiasterError
from diaster.types import EnvSpec

OPSET, IR_VERSION = 17, 8  # what runtimes of the last years read
OBS, ACTION = "obs", "action"
OF_TWO_HALVES = (TANH_GAUSSIAN,)  # mean and log deviation: the deterministic action is of the mean alone
KNOWN = (*OF_TWO_HALVES, NOISY_TANH, EPSILON_GREEDY, CATEGORICAL)


class Graph:
    """Operations one after the other, each on the result of the one before."""

    def __init__(self, onnx: Any, first: str) -> None:
        self.onnx, self.last = onnx, first
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def then(self, operation: str, *constants: NDArray[Any], **attributes: Any) -> None:
        names = [f"constant{len(self.constants) + n}" for n in range(len(constants))]
        for name, constant in zip(names, constants, strict=True):
            self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(constant), name))
        result = f"{operation}{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operation, [self.last, *names], [result], **attributes))
        self.last = result

    def end(self, name: str) -> None:
        """Give the last result its name."""
        self.nodes[-1].output[0] = self.last = name


def policy_model(policy: HostPolicy, parameters: HostParameters, spec: EnvSpec) -> bytes:
    """The deterministic policy with these parameters, checked by the package."""
    try:
        import onnx
    except ImportError:
        raise DiasterError("an export needs the package 'onnx'; run pip install 'diaster[onnx]'.") from None
    if policy not in KNOWN:
        raise DiasterError(f"a policy of the kind '{policy.name}' has no form in ONNX yet.")
    graph = Graph(onnx, OBS)
    if parameters.encoder is not None:
        _encode(graph, parameters.encoder, spec)
    for number, (weight, bias) in enumerate(parameters.layers, 1):
        is_last = number == len(parameters.layers)
        if is_last and policy in OF_TWO_HALVES:
            weight, bias = weight[:, : spec.action_dim], bias[: spec.action_dim]
        graph.then("Gemm", weight, bias)
        if not is_last:
            graph.then("Relu")
    (_choose if spec.discrete else _scale)(graph, spec)
    kind = "int64" if spec.discrete and not spec.parts else spec.action_type
    graph.then("Cast", to=_type(onnx, kind))
    graph.end(ACTION)
    made = onnx.helper.make_graph(
        graph.nodes,
        "policy",
        [onnx.helper.make_tensor_value_info(OBS, _type(onnx, np.dtype(spec.obs_dtype).name), ["batch", spec.obs_dim])],
        [onnx.helper.make_tensor_value_info(ACTION, _type(onnx, kind), ["batch", *spec.action_shape])],
        graph.constants,
    )
    model = onnx.helper.make_model(
        made,
        producer_name="diaster",
        doc_string=f"deterministic policy for {spec.id}",
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString()
    return content


def _type(onnx: Any, name: str) -> Any:
    """The package's number for a type of NumPy's."""
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name))


def _encode(graph: Graph, net: HostEncoder, spec: EnvSpec) -> None:
    """What `actors/encoding.py` does with images."""
    assert spec.image is not None
    side, channels = spec.image
    graph.then("Cast", to=_type(graph.onnx, "float32"))
    graph.then("Div", np.full(1, 255.0, np.float32))
    graph.then("Sub", np.full(1, 0.5, np.float32))
    graph.then("Reshape", np.array([-1, side, side, channels], np.int64))
    graph.then("Transpose", perm=[0, 3, 1, 2])
    for weight, bias in net.convolutions:
        kernel = weight.reshape(KERNEL, KERNEL, -1, weight.shape[1]).transpose(3, 2, 0, 1)
        graph.then("Conv", kernel, bias, strides=[STRIDE, STRIDE])
        graph.then("Relu")
    graph.then("Transpose", perm=[0, 2, 3, 1])
    graph.then("Reshape", np.array([-1, len(net.last[0])], np.int64))
    graph.then("Gemm", *net.last)
    graph.then("LayerNormalization", np.ones_like(net.last[1]), epsilon=SMALL)
    graph.then("Tanh")


def _scale(graph: Graph, spec: EnvSpec) -> None:
    """What `EnvSpec.to_env` does with an action in [−1, 1]."""
    half = np.float32(0.5)
    graph.then("Tanh")
    graph.then("Add", np.ones(1, np.float32))
    graph.then("Mul", half.reshape(1))
    graph.then("Mul", spec.action_high - spec.action_low)
    graph.then("Add", spec.action_low)
    graph.then("Max", spec.action_low)
    graph.then("Min", spec.action_high)
    if spec.action_type != "float32":
        graph.then("Round")
    if spec.action_shape != (spec.action_dim,):
        graph.then("Reshape", np.array([-1, *spec.action_shape], np.int64))


def _choose(graph: Graph, spec: EnvSpec) -> None:
    """The number of the discrete action with the largest output, or of each choice in it."""
    graph.then("ArgMax", axis=1, keepdims=0)
    if not spec.parts:
        graph.then("Add", np.array(spec.first_action, np.int64))
        return
    strides = np.cumprod([1, *spec.parts[:0:-1]])[::-1]  # the last choice varies fastest
    graph.then("Reshape", np.array([-1, 1], np.int64))
    graph.then("Div", strides.astype(np.int64))
    graph.then("Mod", np.array(spec.parts, np.int64))
    graph.then("Add", np.array(spec.first_parts, np.int64))
    graph.then("Reshape", np.array([-1, *spec.action_shape], np.int64))
