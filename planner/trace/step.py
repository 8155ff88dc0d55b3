"""One training step, recorded: forward, loss and gradients on fake tensors, out of which a `Graph` is put together."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from planner.errors import AutoparError, TraceError
from planner.ir.batch import forward_arguments
from planner.ir.graph import Buffer, Graph, Op, Parameter, Tensor
from planner.trace.blocks import Run
from planner.trace.borders import Tracker, tracked
from planner.trace.coarse import Limits, Untraceable, needs_data, reason
from planner.trace.fold import Chain, Folder
from planner.trace.record import Record, Recorder
from planner.trace.regions import barren, outside_origin, reads_hidden, region_of_chain
from planner.trace.simplify import simplify
from planner.trace.where import user_line


@dataclass(frozen=True, slots=True)
class Subject:
    """What is recorded: a model of fake tensors, a fake batch of `size` samples, the loss. `stored` are the parameters' dtypes by FQN."""

    model: nn.Module
    batch: Any
    size: int
    loss: Callable[[Any, Any], torch.Tensor]
    mode: FakeTensorMode
    stored: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Leaves:
    """What the graph reads and no operator makes."""

    parameters: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...]
    inputs: tuple[str, ...]


def record_step(subject: Subject, *, runs: tuple[Run, ...], limits: Limits) -> tuple[Graph, Limits]:
    """The graph of one step, with the blocks of `runs` folded where that is exact (planner.trace.fold) and modules kept whole as `limits`
    says; and the limits, with the runs that could not be folded.

    Raises Untraceable if forward stops in a module, TraceError if the loss or the backward pass does.
    """
    while True:
        found, graph = _record(subject, runs=runs, limits=limits)
        if graph is not None:
            return graph, limits
        limits = replace(limits, refused=limits.refused | found)


def _record(subject: Subject, *, runs: tuple[Run, ...], limits: Limits) -> tuple[frozenset[str], Graph | None]:
    """Prefixes of runs that must not be folded, or the graph."""
    recorder = Recorder()
    folder = Folder(recorder, runs=runs, refused=limits.refused)
    tracker = Tracker(recorder, folder)
    leaves = _bind(recorder, subject)
    with subject.mode, recorder, torch.enable_grad():
        try:
            with tracked(subject.model, tracker, kept={one.fqn: one for one in limits.kept}):
                output = _forward(subject, recorder)
        except Untraceable as stop:
            folded = frozenset(chain.run.prefix for chain in folder.chains if len(chain.copies) > 1)
            if folded and not needs_data(stop.error):
                return folded, None  # it may have missed what a copy that was left out leaves behind
            raise
        loss = _loss(subject, output, recorder)
        outputs = tuple(recorder.names.of(leaf) for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor))
        _backward(subject, loss, recorder)
    chains = [chain for chain in folder.chains if len(chain.copies) > 1]
    draft = _draft(recorder, chains, leaves=leaves, outputs=outputs, loss=recorder.names.of(loss), size=subject.size)
    found = recorder.names.stale_reads | folder.number_reads | barren(folder.chains, runs)
    found |= {chain.run.prefix for chain in chains if reads_hidden(draft, chain)}
    if found:
        return frozenset(found), None
    repeated = {fqn for fqn, count in tracker.calls.items() if count > 1}
    return frozenset(), simplify(_folded(draft, chains), repeated=repeated)


def _draft(recorder: Recorder, chains: list[Chain], *, leaves: _Leaves, outputs: tuple[str, ...], loss: str, size: int) -> Graph:
    """The graph with all borders and the parameters of all copies."""
    record = recorder.record
    return Graph(
        ops=_with_saved(record),
        backward=outside_origin(record, chains),
        tensors=tuple(
            Tensor(value.name, value.shape, value.dtype, value.base, value.tensor.requires_grad and not value.name.startswith("grad."))
            for value in record.values.values()
        ),
        parameters=leaves.parameters,
        buffers=leaves.buffers,
        inputs=leaves.inputs,
        outputs=outputs,
        loss=loss,
        batch=size,
        regions=tuple(region_of_chain(chain, record) for chain in chains),
        unmodelled=tuple(sorted(record.unmodelled.items())),
    )


def _forward(subject: Subject, recorder: Recorder) -> Any:
    model = subject.model
    args, kwargs = forward_arguments(model.forward, subject.batch)
    try:
        with torch.autograd.graph.saved_tensors_hooks(recorder.pack, _unpack):
            return model(*args, **kwargs)
    except (AutoparError, Untraceable):
        raise
    except (Exception, SystemExit) as error:  # forward is the user's code and may raise anything
        raise Untraceable(recorder.modules[-1], error) from error


def _loss(subject: Subject, output: Any, recorder: Recorder) -> torch.Tensor:
    try:
        with torch.autograd.graph.saved_tensors_hooks(recorder.pack, _unpack):
            return _scalar(subject.loss(output, subject.batch))
    except AutoparError:
        raise
    except (Exception, SystemExit) as error:  # loss is the user's code and may raise anything
        raise TraceError(f"{user_line(error) or 'loss(output, batch)'}: the loss cannot be recorded: {reason(error)}") from None


def _backward(subject: Subject, loss: torch.Tensor, recorder: Recorder) -> None:
    recorder.in_backward = True
    recorder.names.stale.clear()  # saved tensors are read again now, each by the backward of the op that saved it
    trainable = [parameter for parameter in subject.model.parameters() if parameter.requires_grad]
    try:
        torch.autograd.grad(loss, trainable, allow_unused=True)
    except (Exception, SystemExit) as error:  # custom backward functions are the user's code and may raise anything
        raise TraceError(f"{user_line(error) or 'backward'}: the backward pass cannot be recorded: {reason(error)}") from None


def _unpack(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _bind(recorder: Recorder, subject: Subject) -> _Leaves:
    """Name parameters, buffers and inputs after their FQNs and paths."""
    names: dict[int, list[str]] = {}
    objects: dict[int, torch.Tensor] = {}
    for fqn, parameter in subject.model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(fqn)
        objects[id(parameter)] = parameter
    parameters = []
    for key, fqns in names.items():
        tensor = objects[key]
        recorder.bind(tensor, fqns[0])
        parameters.append(Parameter(fqns[0], tuple(fqns), tuple(tensor.shape), subject.stored[fqns[0]], tensor.requires_grad))
    buffers = []
    persistent = subject.model.state_dict(keep_vars=True).keys()
    for fqn, buffer in subject.model.named_buffers():
        recorder.bind(buffer, fqn)
        buffers.append(Buffer(fqn, fqn, tuple(buffer.shape), str(buffer.dtype).removeprefix("torch."), fqn in persistent))
    inputs = []
    for path, leaf in pytree.tree_flatten_with_path(subject.batch)[0]:
        if isinstance(leaf, torch.Tensor) and not recorder.names.bound(leaf):
            name = f"batch{pytree.keystr(path)}"
            recorder.bind(leaf, name)
            inputs.append(name)
    return _Leaves(tuple(parameters), tuple(buffers), tuple(inputs))


def _scalar(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor):
        raise TraceError(f"loss(output, batch) returned {type(loss).__name__}, not a tensor; return the scalar mean loss")
    if loss.numel() != 1:
        raise TraceError(f"loss(output, batch) returned a tensor of shape {tuple(loss.shape)}; return a scalar, for example its mean()")
    if not loss.requires_grad:
        raise TraceError("the loss does not depend on any trainable parameter; check requires_grad, detach() and no_grad() in the model")
    return loss


def _with_saved(record: Record) -> tuple[Op, ...]:
    saved: dict[str, list[str]] = {}
    for node, names in record.saved_by_node.items():
        if node in record.op_of_node:
            saved.setdefault(record.op_of_node[node], []).extend(names)
    return tuple(replace(op, saved=tuple(dict.fromkeys(saved.get(op.name, ())))) for op in record.forward)


def _folded(graph: Graph, chains: list[Chain]) -> Graph:
    """Without the parameters and buffers of the copies that were left out, and without values that nothing mentions."""
    gone = tuple(f"{copy}." for chain in chains for copy in chain.copies[1:])
    parameters = tuple(parameter for parameter in graph.parameters if not parameter.fqn.startswith(gone)) if gone else graph.parameters
    buffers = tuple(buffer for buffer in graph.buffers if not buffer.fqn.startswith(gone)) if gone else graph.buffers
    used: Set[str] = {name for op in graph.ops + graph.backward for name in (*op.inputs, *op.outputs, *op.saved)}
    used |= {parameter.tensor for parameter in parameters} | {buffer.tensor for buffer in buffers}
    used |= {*graph.inputs, *graph.outputs, graph.loss}
    used |= {tensor.base for tensor in graph.tensors if tensor.name in used}
    return replace(graph, parameters=parameters, buffers=buffers, tensors=tuple(tensor for tensor in graph.tensors if tensor.name in used))
