"""A loopback service for the official `tinker` SDK 0.36, with a small real policy.

    python tests/support/programs/tinker_service.py     prints its address, and runs until ended

The models are tables of logits: a few token ids can be sampled, and a token's logit is the sum of
several rows. In `fake/tabular` there is one for all contexts, one for the last token, and one for
the first tokens of the prompt; in `fake/window` one for each of the last tokens. Sampling, the
gradients of the three losses, and Adam are real, so a curve that is learnt through it is earned. It
says nothing about any language model.

`GET /stats` counts calls and what was trained on. `POST /fail` with `{"route", "status", "times"}`
makes a route fail.
"""

from __future__ import annotations

import collections
import copy
import json
import math
import sys
import threading
import uuid
import zlib
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

TABULAR, WINDOW = "fake/tabular", "fake/window"
VOCABULARY = {TABULAR: 16, WINDOW: 4}
"""How many of the first token ids each model can sample."""

ROWS = 4096
END = 0
PROMPT_PREFIX = 16
WINDOW_TOKENS = 8
DTYPES = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64}


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def rows_of(model, context):
    """The rows of the table whose sum is the logits after this context."""
    if model == WINDOW:
        last = [-1] * WINDOW_TOKENS + [int(token) for token in context]
        return [zlib.crc32(f"{i} {last[-1 - i]}".encode()) % ROWS for i in range(WINDOW_TOKENS)]
    prefix = np.asarray(context[:PROMPT_PREFIX], np.int32).tobytes()
    return [0, 1 + int(context[-1]) % (ROWS // 2 - 1), ROWS // 2 + zlib.crc32(prefix) % (ROWS // 2)]


@dataclass
class Policy:
    """The weights, their gradients, and Adam's moments."""

    model: str
    rank: int
    weights: np.ndarray = field(init=False)
    gradient: np.ndarray = field(init=False)
    first: np.ndarray = field(init=False)
    second: np.ndarray = field(init=False)
    steps: int = 0

    def __post_init__(self):
        self.words = VOCABULARY[self.model]
        for name in ("weights", "gradient", "first", "second"):
            setattr(self, name, np.zeros((ROWS, self.words)))

    def forward_backward(self, tokens, targets, inputs, loss_fn, config):
        """Add the gradient of one sequence; return its log-probabilities and its loss."""
        rows = np.array([rows_of(self.model, tokens[: i + 1]) for i in range(len(tokens))])
        all_logprobs = log_softmax(self.weights[rows].sum(axis=1))
        # Prompt tokens that cannot be sampled have no probability; nothing is learnt from them.
        known = targets < self.words
        picked = np.where(known, targets, 0)
        logprobs = np.where(known, all_logprobs[np.arange(len(targets)), picked], 0.0)
        advantages = inputs["advantages"]
        ratio = np.exp(logprobs - inputs["logprobs"])
        low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
        if loss_fn == "importance_sampling":
            scale = ratio * advantages
            loss = -scale.sum()
        elif loss_fn == "ppo":
            is_active = np.where(advantages >= 0, ratio <= high, ratio >= low)
            scale = ratio * advantages * is_active
            loss = -np.minimum(ratio * advantages, ratio.clip(low, high) * advantages).sum()
        elif loss_fn == "cispo":
            scale = ratio.clip(low, high) * advantages
            loss = -(scale * logprobs).sum()
        else:
            raise ValueError(f"no loss {loss_fn!r}")
        by_logit = np.exp(all_logprobs) * scale[:, None]
        by_logit[np.arange(len(targets)), picked] -= scale
        for column in range(rows.shape[1]):
            np.add.at(self.gradient, rows[:, column], by_logit)
        return logprobs.astype(np.float32), float(loss)

    def adam(self, params):
        self.steps += 1
        beta1, beta2 = params["beta1"], params["beta2"]
        self.first = beta1 * self.first + (1 - beta1) * self.gradient
        self.second = beta2 * self.second + (1 - beta2) * self.gradient**2
        first = self.first / (1 - beta1**self.steps)
        second = self.second / (1 - beta2**self.steps)
        self.weights = self.weights - params["learning_rate"] * first / (
            np.sqrt(second) + params["eps"]
        )
        norm = float(np.linalg.norm(self.gradient))
        self.gradient = np.zeros_like(self.gradient)
        return norm

    def sample(self, prompt, params):
        """Return the tokens, their log-probabilities, and whether a stop token ended them."""
        rng = np.random.default_rng(params.get("seed"))
        stop = [END] if params.get("stop") is None else params["stop"]
        context, logprobs = list(prompt), []
        for _ in range(params["max_tokens"]):
            all_logprobs = log_softmax(self.weights[rows_of(self.model, context)].sum(axis=0))
            temperature = params.get("temperature", 1.0)
            if temperature == 0:
                token = int(all_logprobs.argmax())
            else:
                tempered = np.exp(log_softmax(all_logprobs / temperature))
                token = int(rng.choice(self.words, p=tempered))
            context.append(token)
            logprobs.append(all_logprobs[token])
            if token in stop:
                return context[len(prompt) :], logprobs, True
        return context[len(prompt) :], logprobs, False


class Service:
    """The routes under `/api/v1`. A result is kept as a future until it is retrieved."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.models: dict[str, Policy] = {}
        self.samplers: dict[str, Policy] = {}
        self.saved: dict[str, Policy] = {}
        self.last_saved = ""
        self.futures: dict[str, dict[str, Any] | bytes] = {}
        self.failures: dict[str, list[int]] = collections.defaultdict(list)
        self.sampled: set[tuple] = set()
        self.stats = collections.Counter()

    def call(self, route: str, body: dict[str, Any]) -> tuple[int, Any]:
        handler = getattr(self, f"on_{route.split('/')[0]}", None)
        if handler is None:
            return 404, {"detail": f"no route {route}"}
        return 200, handler(body)

    def future(self, result, **more):
        request_id = uuid.uuid4().hex
        self.futures[request_id] = result
        return {"request_id": request_id, **more}

    def on_client(self, body):
        return {"pjwt_auth_enabled": False, "use_pyqwest_transport": False}

    def on_healthz(self, body):
        return {"status": "ok"}

    def on_telemetry(self, body):
        return {"status": "accepted"}

    def on_sessions(self, body):
        return {}

    def on_get_server_capabilities(self, body):
        about = {"max_context_length": 4096, "trainable": True}
        return {"supported_models": [{"model_name": one, **about} for one in (TABULAR, WINDOW)]}

    def on_create_session(self, body):
        return {"type": "create_session", "session_id": f"session-{uuid.uuid4().hex[:8]}"}

    def on_session_heartbeat(self, body):
        return {"type": "session_heartbeat"}

    def on_create_model(self, body):
        model_id = f"{body['session_id']}:train:{body['model_seq_id']}"
        self.models[model_id] = Policy(body["base_model"], body["lora_config"]["rank"])
        return self.future({"type": "create_model", "model_id": model_id}, model_id=model_id)

    def on_weights_info(self, body):
        saved = self.saved[body["tinker_path"]]
        return {"base_model": saved.model, "is_lora": True, "lora_rank": saved.rank}

    def on_save_weights(self, body):
        path = f"tinker://{body['model_id']}/weights/{body['path']}"
        self.stats["saves over the last one"] += path == self.last_saved
        self.last_saved = path
        self.saved[path] = copy.deepcopy(self.models[body["model_id"]])
        return self.future({"type": "save_weights", "path": path})

    def on_load_weights(self, body):
        self.models[body["model_id"]] = copy.deepcopy(self.saved[body["path"]])
        return self.future({"type": "load_weights", "path": body["path"]})

    def on_save_weights_for_sampler(self, body):
        kept = copy.deepcopy(self.models[body["model_id"]])
        if body.get("path"):
            path = f"tinker://{body['model_id']}/sampler_weights/{body['path']}"
            self.saved[path] = kept
            return self.future({"type": "save_weights_for_sampler", "path": path})
        name = f"{body['model_id']}:sample:{body['sampling_session_seq_id']}"
        self.samplers[name] = kept
        return self.future({"type": "save_weights_for_sampler", "sampling_session_id": name})

    def on_create_sampling_session(self, body):
        name = f"{body['session_id']}:sample:{body['sampling_session_seq_id']}"
        self.samplers[name] = self.saved[body["model_path"]]
        return {"type": "create_sampling_session", "sampling_session_id": name}

    def on_optim_step(self, body):
        norm = self.models[body["model_id"]].adam(body["adam_params"])
        return self.future({"metrics": {"grad_norm": norm}}, model_id=body["model_id"])

    def on_asample(self, body):
        sampler = self.samplers[body["sampling_session_id"]]
        prompt = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
        self.stats[f"last prompt token {prompt[-1]}"] += 1
        reply = pb.SampleResponse()
        for _ in range(body["num_samples"]):
            tokens, logprobs, stopped = sampler.sample(prompt, body["sampling_params"])
            sequence = reply.sequences.add()
            sequence.stop_reason = pb.STOP_REASON_STOP if stopped else pb.STOP_REASON_LENGTH
            sequence.tokens = np.asarray(tokens, np.int32).tobytes()
            sequence.logprobs = np.asarray(logprobs, np.float32).tobytes()
            self.sampled.add(_trace(prompt, tokens, np.asarray(logprobs, np.float32)))
        ids = [uuid.uuid4().hex for _ in range(body["num_samples"])]
        return self.future(reply.SerializeToString(), sample_sequence_ids=ids)

    def on_forward_backward(self, raw):
        request = pb.ForwardBackwardRequest.FromString(raw)
        model = self.models[request.model_id]
        reply = pb.ForwardBackwardOutput(loss_fn_output_type="TorchLossReturn")
        record = reply.loss_fn_outputs.add()
        outputs = []
        for datum in request.data:
            tokens = np.concatenate(
                [np.frombuffer(chunk.encoded_text.tokens, np.int32) for chunk in datum.model_input]
            )
            inputs = {
                name: np.frombuffer(tensor.dense, DTYPES[tensor.dtype]).reshape(list(tensor.shape))
                for name, tensor in datum.loss_fn_inputs.items()
            }
            targets = inputs["target_tokens"]
            self._check(tokens.tolist(), targets.tolist(), inputs)
            logprobs, loss = model.forward_backward(
                tokens, targets, inputs, request.loss_fn, dict(request.loss_fn_config)
            )
            reply.metrics["loss:sum"] += loss
            outputs.append(logprobs)
        reply.metrics["undefined:mean"] = math.nan
        record.num_datums = len(outputs)
        logprob_field = record.fields["logprobs"]
        logprob_field.dtype = pb.DTYPE_FLOAT32
        logprob_field.data = b"".join(one.tobytes() for one in outputs)
        offsets = np.cumsum([0] + [one.nbytes for one in outputs])
        logprob_field.offsets = offsets.astype(np.int64).tobytes()
        return self.future(reply.SerializeToString(), model_id=request.model_id)

    def _check(self, tokens, targets, inputs):
        """Count sequences by whether exactly these tokens were sampled, with these figures.

        Of a conversation, every reply must have been sampled after what precedes it.
        """
        whole = [*tokens, targets[-1]]
        learnt = np.flatnonzero(inputs["advantages"])
        replies = np.split(learnt, np.flatnonzero(np.diff(learnt) > 1) + 1)
        if not len(learnt):
            self.stats["nothing to learn"] += 1
            return
        traces = [
            _trace(
                whole[: reply[0] + 1],
                whole[reply[0] + 1 : reply[-1] + 2],
                inputs["logprobs"][reply[0] : reply[-1] + 1],
            )
            for reply in replies
        ]
        is_exact = self.sampled.issuperset(traces) and targets == whole[1:]
        self.stats["exact" if is_exact else "inexact"] += 1

    def on_retrieve_future(self, body):
        return self.futures[body["request_id"]]


def _trace(prompt, tokens, logprobs):
    return tuple(map(int, prompt)), tuple(map(int, tokens)), np.asarray(logprobs).tobytes()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # headers and body in one packet; two cost 40 ms of delayed acknowledgement
    service: Service

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        if len(raw) < length:
            return None  # the client has gone
        service = self.service
        route = self.path.removeprefix("/api/v1/")
        with service.lock:
            if self.path == "/stats":
                return self.reply(200, dict(service.stats))
            if self.path == "/fail":
                order = json.loads(raw)
                service.failures[order["route"]] = [order["status"]] * order["times"]
                return self.reply(200, {})
            service.stats[route] += 1
            if self.headers.get("X-API-Key") != "tml-loopback":
                return self.reply(401, {"detail": "this key is not known"})
            if service.failures[route]:
                return self.reply(service.failures[route].pop(), {"detail": "made to fail"})
            if self.headers.get("Content-Type") != "application/x-protobuf":
                raw = json.loads(raw) if raw else {}
            try:
                answer = service.call(route, raw)
            except Exception as error:  # noqa: BLE001 - a call without an answer would be repeated
                print(f"{route}: {error!r}, {dict(self.headers)}", file=sys.stderr, flush=True)
                return self.reply(422, {"detail": repr(error)})
            return self.reply(*answer)

    do_GET = do_POST

    def reply(self, status: int, content: Any) -> None:
        is_proto = isinstance(content, bytes)
        body = content if is_proto else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", f"application/{'x-protobuf' if is_proto else 'json'}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    Handler.service = Service()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
